from pydist.nn.modules.activation import LogSoftmax, ReLU, Softmax
from pydist.nn.modules.batchnorm import BatchNorm1d, BatchNorm2d
from pydist.nn.modules.container import ModuleDict, ModuleList, ParameterDict, ParameterList, Sequential
from pydist.nn.modules.conv import Conv2d
from pydist.nn.modules.dropout import Dropout
from pydist.nn.modules.flatten import Flatten
from pydist.nn.modules.linear import Identity, Linear
from pydist.nn.modules.loss import CrossEntropyLoss, NLLLoss
from pydist.nn.modules.module import Module
from pydist.nn.modules.pooling import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AvgPool1d,
    AvgPool2d,
    MaxPool1d,
    MaxPool2d,
)
from pydist.nn.modules.sync_batchnorm import SyncBatchNorm

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AvgPool1d",
    "AvgPool2d",
    "BatchNorm1d",
    "BatchNorm2d",
    "Conv2d",
    "CrossEntropyLoss",
    "Dropout",
    "Flatten",
    "Identity",
    "Linear",
    "LogSoftmax",
    "MaxPool1d",
    "MaxPool2d",
    "Module",
    "ModuleDict",
    "ModuleList",
    "NLLLoss",
    "ParameterDict",
    "ParameterList",
    "ReLU",
    "Sequential",
    "Softmax",
    "SyncBatchNorm",
]
