"""Init functions on shards of a model that began on meta: the values, and the generator afterwards, of whole parameters."""

import pytest

import pydist
from pydist import nn
from pydist.distributed.fsdp import fully_shard
from pydist.distributed.tensor import Shard
from pydist.nn import init
from pydist.testing import run_ranks

FILLS = {
    "uniform_": lambda t: init.uniform_(t, -1, 2),
    "normal_": lambda t: init.normal_(t, 1, 2),
    "trunc_normal_": lambda t: init.trunc_normal_(t, std=0.3),
    "constant_": lambda t: init.constant_(t, 3.5),
    "ones_": init.ones_,
    "zeros_": init.zeros_,
    "eye_": init.eye_,
    "dirac_": init.dirac_,
    "xavier_uniform_": init.xavier_uniform_,
    "xavier_normal_": init.xavier_normal_,
    "kaiming_uniform_": init.kaiming_uniform_,
    "kaiming_normal_": init.kaiming_normal_,
    "orthogonal_": init.orthogonal_,
    "sparse_": lambda t: init.sparse_(t, 0.4),
}


def layer(name):
    return nn.Conv1d(12, 24, 3, bias=False) if name == "dirac_" else nn.Linear(12, 24, bias=False)


def filled(model, name):
    """(the weight, the next random numbers)"""
    pydist.manual_seed(3)
    FILLS[name](model.weight)
    return model.weight, pydist.rand(3)


def work(rank, dim):
    for name in FILLS:
        want, numbers = filled(layer(name), name)
        with pydist.device("meta"):
            model = layer(name)
        fully_shard(model, shard_placement_fn=lambda p: Shard(dim)).to_empty(device="cpu")
        weight, next_numbers = filled(model, name)
        assert pydist.equal(weight.full_tensor(), want), name
        assert pydist.equal(next_numbers, numbers), name


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_values_of_whole_parameters(world, dim):
    run_ranks(world, work, dim)
