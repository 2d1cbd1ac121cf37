"""`RemoteModule`, which stands in `pydist.nn.parallel`: modules know of workers, and not the other way round."""

from pydist._aliases import from_home

__all__ = ["RemoteModule"]  # noqa: F822 (found by __getattr__)
__getattr__ = from_home(__name__, "pydist.nn.parallel.remote_module", __all__)
