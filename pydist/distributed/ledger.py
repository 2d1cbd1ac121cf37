"""A record of the bits of a training run, which `python -m pydist.verify` compares between runs.

With PYDIST_BITS=FILE in the environment each rank writes FILE.RANK, a line of JSON for each shard that it runs and for
each step: hashes of what went in and what came out. PYDIST_BITS_STEPS=N ends the program after N steps.
"""

import json
import os
import sys

import pydist
from pydist import _C
from pydist.distributed._group import process_group

on = "PYDIST_BITS" in os.environ  # this rank writes a ledger
_file = None
_batches = []


def _hash(value):
    """A hash of what a data set gives: tensors, arrays, numbers and texts in any nesting."""
    if isinstance(value, _C.Tensor):
        return f"{_C.hash_tensors([value.detach().cpu().contiguous()])[0]:016x}"
    if isinstance(value, dict):
        return [[str(key), _hash(item)] for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [_hash(item) for item in value]
    if hasattr(value, "__array__"):
        return _hash(pydist.as_tensor(value))
    return repr(value)


def _named(named):
    return {name: _hash(value) for name, value in named}


def _write(row):
    global _file
    if _file is None:
        rank = os.environ.get("RANK", process_group.current().rank)
        _file = open(f"{os.environ['PYDIST_BITS']}.{rank}", "a", buffering=1)
    _file.write(json.dumps(row) + "\n")


def _models(step):
    models = [model for model in step._models if hasattr(model, "reducer")]  # not those that fully_shard has sharded
    for at, model in enumerate(models):
        yield f"{at}." if len(models) > 1 else "", model


def _state(step):
    """Hashes of all parameters and buffers, and of the states of a Transaction's optimizers."""
    found = {}
    for prefix, model in _models(step):
        found |= {prefix + name: bits for name, bits in _named(model.module.state_dict().items()).items()}
    for at, item in enumerate(getattr(getattr(step, "transaction", None), "_objects", ())):
        if hasattr(item, "param_groups"):
            for number, state in item.state_dict()["state"].items():
                found |= {f"optimizer {at}, parameter {number}, {key}": _hash(value) for key, value in state.items()}
    return found


def begin(step):
    """The step begins."""
    for _, model in _models(step):
        model.reducer.hash_shards()
    _write({"step": step.number, "state": _state(step)})
    _batches.clear()


def batch(value):
    """A shard's next micro-batch."""
    _batches.append(_hash(value))


def shard(step, number):
    """A shard has ended: its micro-batches, what was noted, its gradients."""
    leaves = {
        prefix + name: f"{bits:016x}" for prefix, model in _models(step) for name, bits in model.hashes_of_shard.items()
    }
    noted = {name: list(sums[number]) for name, sums in step._noted.items() if number in sums}
    _write({"step": step.number, "shard": number, "batches": list(_batches), "noted": noted, "leaves": leaves})
    _batches.clear()


def gradients(step):
    """All shards of all ranks have ended: the mean gradient, and the buffers that the step leaves."""
    found = {}
    for prefix, model in _models(step):
        grads = ((name, p.grad) for name, p in model._reduced_at_wrap if p.grad is not None)
        found |= {prefix + name: bits for name, bits in _named(grads).items()}
    _write({"step": step.number, "gradients": found})


def made(step):
    """The step was made."""
    _write({"step": step.number, "made": True})
    if step.number + 1 >= int(os.environ.get("PYDIST_BITS_STEPS", sys.maxsize)):
        _write({"step": step.number + 1, "state": _state(step)})
        sys.exit(0)
