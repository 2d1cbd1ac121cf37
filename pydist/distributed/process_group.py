"""The default process group: one per process, and one per thread where ranks are threads."""

import os
import threading

from pydist import _C

_BACKENDS = ("native", "gloo")  # names for the engine's own collectives
_default = None  # the process's group
_backend = "native"
_asked = False  # init_process_group was called, as opposed to a group made on demand
_here = threading.local()  # .group: of a thread that is a rank
_lock = threading.Lock()


class _GroupNames(type):
    @property
    def WORLD(cls):
        return current()


class group(metaclass=_GroupNames):
    """`group.WORLD` is the default group."""


def is_available():
    """True: collectives are always there."""
    return True


def is_initialized():
    """True after init_process_group, and in a thread that is a rank."""
    return _asked or getattr(_here, "group", None) is not None


def _existing():
    return getattr(_here, "group", None) or _default


def get_rank(group=None):
    """This rank's number: 0 in a world of one, the launcher's RANK before a group is made."""
    group = group or _existing()
    return int(os.environ.get("RANK", 0)) if group is None else group.rank


def get_world_size(group=None):
    """The number of ranks: 1 in a world of one, the launcher's WORLD_SIZE before a group is made."""
    group = group or _existing()
    return int(os.environ.get("WORLD_SIZE", 1)) if group is None else group.size


def get_backend(group=None):
    """The name that init_process_group was given, "native" if none."""
    return _backend


def current(group=None):
    """`group`, or else the default group, made now if there is none."""
    group = group or _existing()
    if group is None:
        with _lock:
            group = _default or _join(None, -1, -1)
    return group


def _check_backend(backend):
    for part in str(backend or "native").lower().split(","):
        device, _, name = part.rpartition(":")
        if name == "nccl":
            if device not in ("", "cuda"):
                raise ValueError(f"init_process_group: backend {backend!r}: nccl is for cuda")
            if not device:
                raise RuntimeError("init_process_group: backend 'nccl' needs a GPU build (use None or 'gloo' on CPUs)")
        elif name not in _BACKENDS:
            raise ValueError(f"init_process_group: backend {backend!r} is not there (expected {_BACKENDS} or None)")


def _number(name, given):
    """The rank or the world size: the argument, else the environment's, else None."""
    value = os.environ.get(name)
    if value is not None and not value.isdigit():
        raise ValueError(f"init_process_group: {name}={value!r} in the environment (expected a number)")
    if given not in (-1, None) and value is not None and "PYDIST_CONTROL" in os.environ and int(value) != given:
        raise ValueError(f"init_process_group: {name.lower()}={given}, but the launcher says {name}={value}")
    return given if given not in (-1, None) else value and int(value)


def _join(timeout, world_size, rank):
    """Makes the process's group from the arguments and the environment."""
    global _default
    world, rank = _number("WORLD_SIZE", world_size), _number("RANK", rank)
    world = 1 if world is None else world
    if rank is None:
        if world > 1:
            raise ValueError("init_process_group: WORLD_SIZE is over 1 and RANK is not set")
        rank = 0
    if not 0 <= rank < world:
        raise ValueError(f"init_process_group: rank {rank} (expected 0 to {world - 1})")
    address = os.environ.get("PYDIST_CONTROL")
    if address is None and world > 1:
        raise RuntimeError(
            f"init_process_group: {world} ranks, but no launcher (PYDIST_CONTROL is not set): start the script with "
            f"`python -m pydist.run --nproc-per-node {world} script.py`"
        )
    _default = _C.comm_init(rank, world, address, int(os.environ.get("PYDIST_SECRET_FD", -1)), timeout)
    _C._rng_shard(rank)
    if address is not None:
        from pydist.distributed._ending import watch

        watch(destroy_process_group)
    return _default


def init_process_group(
    backend=None,
    init_method=None,
    timeout=None,
    world_size=-1,
    rank=-1,
    store=None,
    group_name="",
    pg_options=None,
    device_id=None,
):
    """Joins the other ranks. The launcher's environment says who they are; arguments must agree with it.

    `backend`: None, "native" or "gloo" (all the engine's own). `init_method`: None or "env://". `timeout`: a timedelta
    or seconds after which a wait for a live peer raises CommTimeout. Raises ValueError where the arguments contradict
    the environment or each other, RuntimeError without a launcher or where called twice.
    """
    global _asked, _backend
    _check_backend(backend)
    if store is not None:
        raise NotImplementedError("init_process_group: store (the launcher has one)")
    if init_method not in (None, "env://") and "PYDIST_CONTROL" not in os.environ and world_size != 1:
        raise NotImplementedError(
            f"init_process_group: init_method {init_method!r} (`python -m pydist.run` needs none)"
        )
    with _lock:
        if _asked:
            raise ValueError("trying to initialize the default process group twice!")
        if _default is None:
            _join(timeout, world_size, rank)
        else:  # made on demand by an earlier collective
            for name, given, real in (("rank", rank, _default.rank), ("world_size", world_size, _default.size)):
                if given not in (-1, None, real):
                    raise ValueError(f"init_process_group: {name}={given}, but the group that exists has {real}")
        _asked = True
        _backend = str(backend or "native").lower()


def destroy_process_group(group=None):
    """Leaves the group (default: the process's). Tensors that were reduced in it stay valid."""
    global _default, _asked, _backend
    own = getattr(_here, "group", None)
    if group is None:
        group = own or _default
    if group is None:
        return
    group.destroy()
    if group is own:
        _here.group = None
    elif group is _default:
        _default, _asked, _backend = None, False, "native"
        _C._rng_shard(0)
