"""The store at which ranks meet, found by a URL: for programs that share keys before there is a group."""

import os

from pydist.distributed._group.rendezvous import _split, who
from pydist.distributed.store import FileStore
from pydist.distributed.tcp_store import TCPStore

__all__ = ["rendezvous"]


def rendezvous(url, rank=-1, world_size=-1, **kwargs):
    """Yields once (store, rank, world_size), for a URL that all ranks know: file:///path, tcp://host:port, or env://, which
    is tcp:// by MASTER_ADDR and MASTER_PORT; rank 0 hosts the store of the last two. rank and world_size may also stand in
    the URL or the environment. timeout: of the store, a timedelta.

    Raises ValueError for another URL, or if rank and world_size are not known.

    >>> import os, tempfile
    >>> from pydist.distributed import rendezvous
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store, rank, world_size = next(rendezvous(f"file://{folder}/meet", rank=0, world_size=1))
    ...     store.set("key", "value")
    ...     store.get("key"), rank, world_size
    (b'value', 0, 1)
    """
    method, place, _ = _split(url)
    rank, world = who(url, world_size, rank)
    if method == "file":
        yield FileStore(place.partition("://")[2], world), rank, world
        return
    host, _, port = place.partition("://")[2].rpartition(":") if method == "tcp" else (
        os.environ.get("MASTER_ADDR"), "", os.environ.get("MASTER_PORT"))  # fmt: skip
    if not host or not port:
        raise ValueError(f"rendezvous: {url} without MASTER_ADDR and MASTER_PORT (expected both in the environment)")
    yield TCPStore(host.strip("[]"), int(port), world, rank == 0, wait_for_workers=False, **kwargs), rank, world
