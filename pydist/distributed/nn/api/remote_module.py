"""`RemoteModule`, which stands in `pydist.nn.parallel`: modules know of workers, and not the other way round."""

__all__ = ["RemoteModule"]  # noqa: F822 (found by __getattr__)


def __getattr__(name):
    if name == "RemoteModule":
        from pydist.nn.parallel.remote_module import RemoteModule

        return RemoteModule
    raise AttributeError(
        f"module 'pydist.distributed.nn.api.remote_module' has no attribute {name!r} (expected RemoteModule)"
    )
