"""The default process group: one per process, and one per thread where ranks are threads."""

import os
import threading

from pydist import _C
from pydist.distributed.backend import Backend, checked, say_what_serves

_default = None  # the process's group
_backend = Backend(Backend.NATIVE)
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
    group = _existing() if group is None else _checked_group(group)
    return int(os.environ.get("RANK", 0)) if group is None else group.rank


def get_world_size(group=None):
    """The number of ranks: 1 in a world of one, the launcher's WORLD_SIZE before a group is made."""
    group = _existing() if group is None else _checked_group(group)
    return int(os.environ.get("WORLD_SIZE", 1)) if group is None else group.size


def get_node_local_rank(fallback_rank=None):
    """This rank's number on its host, from LOCAL_RANK; without it `fallback_rank`, or RuntimeError."""
    if "LOCAL_RANK" in os.environ:
        return int(os.environ["LOCAL_RANK"])
    if fallback_rank is None:
        raise RuntimeError("get_node_local_rank: LOCAL_RANK is not in the environment (expected it or fallback_rank)")
    return int(fallback_rank)


def get_process_group_ranks(group=None):
    """The ranks of the group, in order."""
    return list(range(get_world_size(group)))


def is_torchelastic_launched():
    """Whether a launcher, pydist.run or torchrun, started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def get_backend(group=None):
    """The name that init_process_group was given, "native" if none."""
    if group is not None:
        _checked_group(group)
    return _backend


def _checked_group(group):
    if type(group) is not _C.Group:
        raise TypeError(f"group is {type(group).__name__} (expected a process group or None)")
    return group


def current(group=None):
    """`group`, or else the default group, made now if there is none."""
    if group is not None:
        return _checked_group(group)
    group = _existing()
    if group is None:
        with _lock:
            group = _default or _join(None, -1, -1)
    return group


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

    `backend`: None, "native", "gloo" (all the engine's own) or names by device such as "cpu:gloo,cuda:nccl". `init_method`: None or "env://". `timeout`: a timedelta
    or seconds after which a wait for a live peer raises CommTimeout. Raises ValueError where the arguments contradict
    the environment or each other, RuntimeError without a launcher or where called twice.
    """
    global _asked, _backend
    backend = checked(backend)
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
        _asked, _backend = True, backend
        say_what_serves(backend, _default.rank)


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
        _default, _asked, _backend = None, False, Backend(Backend.NATIVE)
        _C._rng_shard(0)
