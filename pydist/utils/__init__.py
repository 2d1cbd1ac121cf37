"""Utilities: `pydist.utils.data` (datasets, samplers, loader), `tensorboard` (event files) and `hooks`."""


def __getattr__(name):
    if name in ("data", "hooks", "tensorboard"):
        from importlib import import_module

        return import_module(f"pydist.utils.{name}")
    raise AttributeError(f"module 'pydist.utils' has no attribute '{name}'")
