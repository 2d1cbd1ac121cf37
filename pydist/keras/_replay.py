"""Replay of the steps that Keras' loops call: after some batches they run as programs of the engine (pydist/_replay.py)."""

import numpy as np

import pydist
from pydist import _C, _replay
from pydist._replay import Recorded
from pydist.utils._pytree import tree_map


def recorded(model, step, steps, plain):
    """The model's method `step` as a function of a batch, which is replayed where that is possible; with run_eagerly=True it
    never is. With `steps` (_trainer.Steps) it also takes what a replica's share is. plain: the method is Keras' own."""
    if model.run_eagerly:
        return step

    def call(data, *share):
        return step(data)

    run = Recorded(call, watch=_watched(model), name=f"{type(model).__name__}.{step.__name__}")
    if steps is None:
        return run
    if not plain:
        run.stay("replicas look at the logs of a step that is not Keras' own")
    elif len(steps.strategy._devices) > 1:
        run.stay("several replicas share this process")
    elif steps.strategy._logical is not None:
        run.stay("it runs logical shards")
    else:
        return run
    return step


def as_tensors(data):
    """A batch with tensors in the place of the arrays that train_on_batch and its kin have got."""
    if isinstance(data, tuple) and any(isinstance(part, (np.ndarray, list, dict)) for part in data):
        return tree_map(lambda leaf: _C.as_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf, data)
    return data


def _watched(model):
    """What a step depends on, besides tensors."""
    things = [*model._flatten_layers(), *model.metrics]
    things += [getattr(model, name, None) for name in ("optimizer", "_compile_loss", "_compile_metrics")]
    things = [thing for thing in things if thing is not None]
    for layer in model._flatten_layers():
        things += [layer._layers, (layer, "_dtype_policy")]
    for owner, names in ((model, _PARTS), (getattr(model, "optimizer", None), ("_learning_rate",))):
        things += [(owner, name) for name in names if hasattr(owner, "__dict__") and name in vars(owner)]
    return things


_PARTS = "optimizer", "_compile_loss", "_compile_metrics", "_loss_tracker", "_functional"


def _draw_each_time(module):
    """Layers with a seed draw from a generator that they make anew in each step. Python does that in replays, too."""
    for name in ("normal", "uniform", "randint", "truncated_normal"):
        setattr(module, name, _replay.in_python(getattr(module, name)))
    theirs = module.dropout

    def mask_of(shape, keep, seed):
        generator = module.torch_seed_generator(seed)
        return pydist.bernoulli(_C.full(shape, keep), generator=generator).bool()

    def dropout(inputs, rate, noise_shape=None, seed=None):
        seeded = seed is not None and getattr(seed, "_initial_seed", 0) is not None or noise_shape is not None
        if not seeded or rate in (0.0, 1.0) or module.get_device() == "meta":
            return theirs(inputs, rate, noise_shape, seed)
        shape = tuple(module._get_concrete_noise_shape(inputs, noise_shape))
        mask = _replay.each_time(mask_of, shape, 1.0 - rate, seed)
        return _C.where(mask, inputs / (1.0 - rate), _C.zeros_like(inputs))

    module.dropout = dropout


SEAMS = {"keras.src.backend.torch.random": _draw_each_time}
