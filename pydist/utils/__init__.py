"""Utilities: `pydist.utils.data` (datasets, samplers, loader), `checkpoint` (activations computed again in backward),
`tensorboard` (event files) and `hooks`."""


def __getattr__(name):
    if name in ("_pytree", "checkpoint", "data", "hooks", "tensorboard"):
        from importlib import import_module

        return import_module(f"pydist.utils.{name}")
    raise AttributeError(f"module 'pydist.utils' has no attribute '{name}'")
