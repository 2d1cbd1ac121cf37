"""Datasets, samplers and loaders."""

from pydist.compat.mxnet._base import lacking as _lacking
from pydist.compat.mxnet.gluon.data import vision
from pydist.compat.mxnet.gluon.data.dataloader import DataLoader
from pydist.compat.mxnet.gluon.data.dataset import ArrayDataset, Dataset, SimpleDataset
from pydist.compat.mxnet.gluon.data.sampler import (
    BatchSampler,
    FilterSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
)

__getattr__ = _lacking("mx.gluon.data", ["RecordFileDataset"], "an ArrayDataset")
