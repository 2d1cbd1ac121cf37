"""Wrappers that checkpoint activations, which stand in `pydist.nn.utils.checkpoint_wrapper`: they are modules."""

_NAMES = (
    "ActivationWrapper",
    "CheckpointImpl",
    "CheckpointWrapper",
    "OffloadWrapper",
    "apply_activation_checkpointing",
    "checkpoint_wrapper",
    "offload_wrapper",
)


def __getattr__(name):
    if name in _NAMES:
        from pydist.nn.utils import checkpoint_wrapper as home

        return getattr(home, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r} (expected one of {', '.join(_NAMES)})")
