"""Wrappers that checkpoint activations, which stand in `pydist.nn.utils.checkpoint_wrapper`: they are modules."""

from pydist._aliases import from_home

_NAMES = (
    "ActivationWrapper",
    "CheckpointImpl",
    "CheckpointWrapper",
    "OffloadWrapper",
    "apply_activation_checkpointing",
    "checkpoint_wrapper",
    "offload_wrapper",
)
__getattr__ = from_home(__name__, "pydist.nn.utils.checkpoint_wrapper", _NAMES)
