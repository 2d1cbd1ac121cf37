"""The default process group: one per process, or one per thread if the ranks are threads."""

import os
import threading
import warnings

from pydist import _C
from pydist.distributed._group.backend import Backend, MPI_LIBRARY, checked, say_what_serves, serves_by_mpi
from pydist.distributed._group.rendezvous import expected, find_mpi_place, find_place, find_store_place, who
from pydist.distributed._group.tuning import load

_default = None  # the process's group
_joined = None  # the Place that this group and later ones are connected to
_backend = Backend(Backend.NATIVE)
_asked = False  # init_process_group was called; False if a collective made the group
_lent = False  # run_ranks has called it, and the function of the rank may call it, too
_made = {}  # see made_apart
_logical = None  # the Logical of the process
_any_logical = False  # whether a thread or the process has had one
_lock = threading.Lock()


class _Here(threading.local):
    """What a thread that is a rank has for its own. In other threads nothing is set, which is quick to see."""

    group = logical = None


_here = _Here()


def outside(op):
    """What a collective does on a rank outside the group: it warns."""
    warnings.warn(f"{op}: this rank is not in the group, so the call does nothing", stacklevel=4)


class _NonMember:
    """Stands for a group that this rank is not in: its collectives only warn, as in PyTorch."""

    rank = size = _C.Count(-1)
    ranks = ()

    def __getattr__(self, name):
        if name.startswith("__") or not hasattr(_C.Group, name):
            raise AttributeError(f"GroupMember.NON_GROUP_MEMBER has no attribute '{name}'")

        return lambda *args, **kwargs: outside(name)

    def __repr__(self):
        return "GroupMember.NON_GROUP_MEMBER"

    def __reduce__(self):
        return "_NON_MEMBER"


_NON_MEMBER = _NonMember()


class _GroupNames(type):
    @property
    def WORLD(cls):
        return current()


class group(metaclass=_GroupNames):
    """`group.WORLD` is the default group."""


class GroupMember(metaclass=_GroupNames):
    """`GroupMember.NON_GROUP_MEMBER` is what new_group returns on ranks outside the group: its rank and size are -1,
    and its collectives do nothing. `GroupMember.WORLD` is the default group."""

    NON_GROUP_MEMBER = _NON_MEMBER


def is_available():
    """True: pydist always has collectives."""
    return True


def is_initialized():
    """True after init_process_group, and always in a thread that is a rank."""
    return _asked or _here.group is not None


def _existing():
    return _here.group or _default


def get_rank(group=None):
    """This rank's number: 0 in a world of one. Before the group is made: RANK, as the launcher set it."""
    group = _existing() if group is None else _checked_group(group)
    return expected()[0] if group is None else group.rank


def get_world_size(group=None):
    """The number of ranks: 1 in a world of one. Before the group is made: WORLD_SIZE, as the launcher set it."""
    group = _existing() if group is None else _checked_group(group)
    return expected()[1] if group is None else group.size


def get_node_local_rank(fallback_rank=None):
    """This rank's number on its host, from LOCAL_RANK. If that is not set: `fallback_rank`, or RuntimeError without
    one."""
    if "LOCAL_RANK" in os.environ:
        return int(os.environ["LOCAL_RANK"])
    if fallback_rank is None:
        raise RuntimeError(
            "get_node_local_rank: LOCAL_RANK is not set in the environment (expected LOCAL_RANK or the argument fallback_rank)"
        )
    return int(fallback_rank)


def get_process_group_ranks(group=None):
    """The group's ranks, as numbers in the job, in the group's order."""
    group = _existing() if group is None else _checked_group(group)
    return list(range(expected()[1])) if group is None else list(group.ranks)


def get_group_rank(group, global_rank):
    """The number in the group of a rank of the job. Raises ValueError if that rank is not in the group."""
    ranks = get_process_group_ranks(group)
    if global_rank not in ranks:
        raise ValueError(f"rank {global_rank} is not in the group (expected one of {ranks})")
    return ranks.index(global_rank)


def get_global_rank(group, group_rank):
    """The number in the job of a rank of the group. Raises ValueError if the group has no such rank."""
    ranks = get_process_group_ranks(group)
    if not 0 <= group_rank < len(ranks):
        raise ValueError(f"group rank {group_rank} is not in the group (expected 0 to {len(ranks) - 1})")
    return ranks[group_rank]


def made_apart():
    """A dictionary by the ranks of a group: how often this rank has made such a group without the ranks outside it."""
    return _here.__dict__.setdefault("made", {}) if _here.group else _made


def logical():
    """The Logical (logical.py) of this thread or process, or None."""
    return _logical if _here.group is None else _here.logical


def _set_logical(shards):
    global _logical, _any_logical
    from pydist.distributed._group.logical import Logical

    _any_logical = _any_logical or shards is not None
    made = None if shards is None else Logical(shards)
    if _here.group is not None:
        _here.logical = made
    else:
        _logical = made


def _shards_asked(given):
    """The number of logical shards: the argument, or PYDIST_SHARDS, or None."""
    from pydist.distributed._group.logical import checked

    if given is None and (text := os.environ.get("PYDIST_SHARDS")):
        try:
            given = int(text)
        except ValueError:
            raise ValueError(f"init_process_group: PYDIST_SHARDS is {text!r} (expected a power of two)") from None
    return checked("init_process_group", given)


def is_torchelastic_launched():
    """Whether a launcher (pydist.run or torchrun) started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def get_backend(group=None):
    """The backend's name as given to init_process_group; "native" if none was given."""
    if group is not None:
        _checked_group(group)
    return _backend


def _checked_group(group):
    if type(group) is not _C.Group and group is not _NON_MEMBER:
        raise TypeError(f"group is {type(group).__name__} (expected a process group or None)")
    return group


def current(group=None):
    """`group`, or the default group, which is made now if there is none."""
    if group is not None:
        return _checked_group(group)
    group = _existing()
    if group is None:
        with _lock:
            group = _default or _join(None, find_place())
    return group


def for_call(group):
    """current(group), for a call of the program. Raises RuntimeError inside a logical shard: ranks run different numbers of
    shards, so their calls would not match."""
    if _any_logical:
        _refuse_inside_shard()
    if group is not None:
        return _checked_group(group)
    return _here.group or _default or current()


def _refuse_inside_shard():
    found = logical()
    if found is not None and found.open is not None:
        raise RuntimeError(
            f"a collective or message inside logical shard {found.open} (expected it outside of the loop over the shards: "
            "ranks run different numbers of shards)"
        )


def is_fast(op, order):
    """Whether sums may be taken in any order (order="fast")."""
    if order not in (None, "tree", "fast"):
        raise ValueError(f"{op}: order is {order!r} (expected None, 'tree' or 'fast')")
    return order == "fast"


def _join(timeout, place, transport=None, patience=None, fast=False):
    """Makes the process's group. With transport "mpi" its data go through MPI. `patience`: seconds for the other ranks
    to come; None: `timeout`."""
    global _default, _joined
    if _joined is not None and _joined != place:
        leave(timeout)  # the ranks of an earlier group no longer agree on these counts
    tuning = load(place.rank == 0) if place.world > 1 else None
    _default = _C.comm_init(*place, timeout, transport=transport, patience=patience, fast=fast, tuning=tuning)
    _joined = place if place.address is not None else None
    _C._rng_shard(place.rank)
    if place.address is not None:
        from pydist.distributed._group.exit_hooks import watch

        watch(destroy_process_group)
    return _default


def leave(timeout=None, keep=False):
    """Closes the connection, unless it is the launcher's and has to stay open."""
    global _joined
    _C.comm_leave(timeout, keep=keep)
    _joined = None


def init_at(place, timeout=None, patience=None):
    """init_process_group at a Place that is known already."""
    global _asked
    with _lock:
        _join(timeout, place, patience=patience)
        _asked = True


def _choose_gpu(backend, device_id):
    """Makes this rank's GPU the current one of its thread: device_id, or with nccl the GPU of LOCAL_RANK if the script
    has chosen none. If all ranks used cuda:0, NCCL would refuse."""
    if device_id is None and (Backend.NCCL not in backend or "LOCAL_RANK" not in os.environ):
        return
    if _C.pretended_cuda() or not _C.cuda_count():
        return
    if device_id is not None:
        index = device_id if isinstance(device_id, int) else _C.device(device_id).index
        if index is not None:
            _C.cuda_set_current(index)
    elif _C.cuda_current() == 0 and int(os.environ["LOCAL_RANK"]) < _C.cuda_count():
        _C.cuda_set_current(int(os.environ["LOCAL_RANK"]))


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
    order=None,
    *,
    logical_shards=None,
):
    """Joins the other ranks of the job.

    Under a launcher the environment says which rank this is, and arguments must agree with it. Without a launcher all
    ranks call this with `world_size` and their `rank` (or with WORLD_SIZE and RANK in the environment) and the same
    `init_method`: "env://" (the default: MASTER_ADDR and MASTER_PORT in the environment), "tcp://host:port" or
    "file:///path". The host is that of rank 0. Rank 0's process serves the others, so it has to end last: at its exit
    it waits for them. On one host only processes of the same user can join. Across hosts, PYDIST_SECRET_FILE names a
    file with a secret that all hosts share.

    Under mpirun and srun no arguments are needed either. Processes of multiprocessing.spawn need only `rank` and
    `world_size`.

    `store`: instead of an `init_method`, any store that all ranks share (TCPStore, FileStore, PrefixStore), with `rank`
    and `world_size`. The ranks find each other through it.

    `backend`: None, "native" or "gloo" (three names for the engine's own backend), "nccl", names by device such as
    "cpu:gloo,cuda:nccl", or "mpi". "mpi" uses the same algorithms, order and errors over messages of the MPI that
    pydist was built with, under its mpirun. Whatever the name, tensors on CPUs go through the engine's own collectives,
    and tensors on a GPU go through NCCL, in NCCL's own order (the same bits for the same configuration). "nccl" checks
    at once that there are a GPU and NCCL's library, and makes the GPU of LOCAL_RANK the current one if the script has
    chosen none.

    `device_id`: the GPU of this rank; it becomes the current one. `timeout`: a timedelta or seconds. It limits how long
    the ranks may take to come (default: 300 s) and how long a collective waits for a live rank before it raises
    CommTimeout (default: 30 min). `order`: None or "tree" takes sums in one fixed order. "fast" allows any order: all
    ranks still get the same bits, but other algorithms, transports and world sizes give other bits (ring, halving, with
    backend="mpi" MPI's own all_reduce). group_name and pg_options are accepted and ignored.

    `logical_shards`: a power of two, or None (then PYDIST_SHARDS in the environment, if it is set). A training step is
    then the work of so many logical shards, and its result has the same bits for any number of ranks: see
    `distributed.shards`. All ranks give the same number.

    Raises ValueError or TypeError if arguments contradict the environment or each other, RuntimeError if several ranks
    have nowhere to meet or if "nccl" finds no GPU or no NCCL, DistError if the others do not come or refuse this rank.
    """
    global _asked, _backend, _lent
    backend, fast, shards = checked(backend), is_fast("init_process_group", order), _shards_asked(logical_shards)
    if fast and shards is not None:
        raise ValueError(
            "init_process_group: order is 'fast' beside logical shards, whose sums have one order (expected 'tree')"
        )
    if store is not None and init_method is not None:
        raise ValueError("init_process_group: got both init_method and store (expected one of them)")
    own = _here.group or (_default if _lent else None)
    if own is not None:  # a rank of run_ranks already has its group
        if rank not in (-1, None, own.rank) or world_size not in (-1, None, own.size):
            raise ValueError(
                f"init_process_group: rank={rank}, world_size={world_size}, but this is rank {own.rank} of "
                f"{own.size} (expected the same)"
            )
        _set_logical(shards)
        _lent = False
        return
    transport = place = None
    if serves_by_mpi(backend):
        place, _ = find_mpi_place(MPI_LIBRARY, world_size, rank)
        transport, rank, world = "mpi", place.rank, place.world
    else:
        if store is not None and not _asked:
            place = find_store_place(store, world_size, rank)
        rank, world = who(init_method, world_size, rank)
    with _lock:
        if _asked:
            raise ValueError("trying to initialize the default process group twice!")
        if _default is None:
            _join(timeout, place or find_place(init_method, world, rank), transport, fast=fast)
        elif (rank, world) != (_default.rank, _default.size):  # an earlier collective has made it
            raise ValueError(
                f"init_process_group: rank={rank}, world_size={world}, but an earlier collective has made the group with rank "
                f"{_default.rank} of {_default.size}"
            )
        _asked, _backend = True, backend
        _set_logical(shards)
        _choose_gpu(backend, device_id)
        say_what_serves(backend, _default.rank)


def lend_process_group(rank, world):
    """Begins a process of run_ranks: as a thread that is a rank it has a group, and may call init_process_group once."""
    global _lent
    init_process_group(rank=rank, world_size=world)
    _lent = True


def destroy_process_group(group=None):
    """Leaves the group (default: the process's group). Tensors that were reduced in it stay valid."""
    global _default, _asked, _backend, _lent
    own = _here.group
    if group is None:
        group = own or _default
    if group is None or group is _NON_MEMBER:
        return
    group.destroy()
    _C.spread_forget()  # plans of ops on DTensors keep groups
    if group is own:
        _here.group = _here.logical = None
    elif group is _default:
        _default, _asked, _lent, _backend = None, False, False, Backend(Backend.NATIVE)
        _made.clear()
        _C._rng_shard(0)
