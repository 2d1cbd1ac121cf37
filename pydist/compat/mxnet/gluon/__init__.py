"""Models of blocks: `mx.gluon`."""

from pydist.compat.mxnet._base import lacking as _lacking
from pydist.compat.mxnet.gluon import data, loss, model_zoo, nn, utils
from pydist.compat.mxnet.gluon.block import Block, HybridBlock, SymbolBlock
from pydist.compat.mxnet.gluon.parameter import Constant, DeferredInitializationError, Parameter, ParameterDict
from pydist.compat.mxnet.gluon.trainer import Trainer

__getattr__ = _lacking("mx.gluon", ["rnn", "contrib", "probability", "metric"], "the layers of gluon.nn")
