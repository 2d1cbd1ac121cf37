"""Datasets, samplers and the loader."""

from pydist.utils.data.collate import default_collate, default_convert
from pydist.utils.data.dataloader import DataLoader
from pydist.utils.data.dataset import Dataset, IterableDataset, Subset, TensorDataset, random_split
from pydist.utils.data.distributed import DistributedSampler
from pydist.utils.data.prefetch import get_worker_info
from pydist.utils.data.sampler import BatchSampler, RandomSampler, Sampler, SequentialSampler, SubsetRandomSampler

__all__ = [
    "BatchSampler",
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "IterableDataset",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "default_collate",
    "default_convert",
    "get_worker_info",
    "random_split",
]
