"""Where the ranks meet and which rank this process is: from arguments, the launcher's environment, or PyTorch's
variables.

The launcher (`python -m pydist.run`) says all of it. Without a launcher, rank 0 hosts the server that the others
connect to. One of PyTorch's methods says where: env:// (MASTER_ADDR and MASTER_PORT), tcp://host:port or file:///path.
Under mpirun and srun the environment says which rank a process is, and on one host also where to meet.
"""

import hashlib
import os
import re
import secrets
from collections import namedtuple

from pydist import _C

Place = namedtuple("Place", "rank world address secret_fd")  # address None: a world of one, no other rank to meet

_NOT_GIVEN = (-1, None)


# Other programs that start ranks: their variables for rank, size, local rank, ranks on this host, and the job's name.
_STARTERS = {
    "mpirun (Open MPI)": (
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
        ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    ),
    "srun": (
        "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE",
        ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ),
    "mpirun (MPICH)": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ()),
}  # fmt: skip

Started = namedtuple("Started", "by rank world local_rank local_world job")


def started():
    """What mpirun or srun say about this process. None if neither started it, or if a launcher or PyTorch's variables
    say more."""
    if any(name in os.environ for name in ("PYDIST_CONTROL", "RANK", "WORLD_SIZE")):
        return None
    for by, (*numbers, names) in _STARTERS.items():
        values = [re.match(r"\d+", os.environ.get(name, "")) for name in numbers]  # "2(x3)": 2 on each of 3 nodes
        if all(values):
            # MPICH names no job; its ranks on one host have the same parent process
            job = [os.environ[name] for name in names if name in os.environ] or [f"child of {os.getppid()}"]
            return Started(by, *(int(value[0]) for value in values), f"{by} {' '.join(job)}")
    return None


def _environment_number(name):
    value = os.environ.get(name)
    if value is not None and not (value.isascii() and value.isdigit()):
        raise ValueError(f"init_process_group: {name}={value!r} in the environment (expected a number)")
    return None if value is None else int(value)


def _argument(name, value):
    if value in _NOT_GIVEN:
        return None
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"init_process_group: {name} is {value!r} (expected a number)")
    return int(value)


def _split(init_method):
    """Splits a URL into (method, the URL without its query, {"rank": ..., "world_size": ...} from the query)."""
    if init_method is None:
        return "env", None, {}
    if not isinstance(init_method, str):
        raise TypeError(f"init_process_group: init_method is {init_method!r} (expected a URL such as 'env://')")
    url, _, query = init_method.partition("?")
    method, separator, rest = url.partition("://")
    if not separator or method not in ("env", "tcp", "file"):
        raise ValueError(f"init_process_group: init_method {init_method!r} (expected env://, tcp:// or file://)")
    if method != "env" and (not rest or method == "tcp" and not rest.rpartition(":")[2].isdigit()):
        wanted = "tcp://host:port" if method == "tcp" else "file:///path"
        raise ValueError(f"init_process_group: init_method {init_method!r} (expected {wanted})")
    asked = {}
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        if name not in ("rank", "world_size") or not value.isdigit():
            wanted = "rank=N&world_size=N"
            raise ValueError(f"init_process_group: init_method {init_method!r}: {part!r} (expected {wanted})")
        asked[name] = int(value)
    return method, url, asked


def expected():
    """(rank, world) as the environment says them before a group is made; (0, 1) if it says nothing."""
    mpirun = started()
    if mpirun:
        return mpirun.rank, mpirun.world
    rank, world = _environment_number("RANK"), _environment_number("WORLD_SIZE")
    return rank or 0, 1 if world is None else world


def who(init_method, world_size, rank):
    """(rank, world): from the arguments, else from the URL, else from the environment. Raises ValueError or TypeError
    if these contradict each other or the launcher."""
    found, asked, mpirun = [], _split(init_method)[2], started()
    for name, variable, argument in (("rank", "RANK", rank), ("world_size", "WORLD_SIZE", world_size)):
        said, given = _environment_number(variable), _argument(name, argument)
        if mpirun:
            said = mpirun.rank if name == "rank" else mpirun.world
        given = asked.get(name) if given is None else given
        if given is not None and said is not None and given != said and "PYDIST_CONTROL" in os.environ:
            raise ValueError(
                f"init_process_group: {name}={given}, but the launcher says {variable}={said} (expected the same)"
            )
        found.append(said if given is None else given)
    rank, world = found
    world = 1 if world is None else world
    if rank is None:
        if world > 1:
            raise ValueError("init_process_group: WORLD_SIZE is greater than 1, but RANK is not set (expected both)")
        rank = 0
    if not 0 <= rank < world:
        raise ValueError(f"init_process_group: rank {rank} (expected 0 to {world - 1})")
    return rank, world


def find_place(init_method=None, world_size=-1, rank=-1):
    """The Place of this process. Raises RuntimeError if several ranks have nowhere to meet, and the errors of `who`."""
    rank, world = who(init_method, world_size, rank)
    control = os.environ.get("PYDIST_CONTROL")
    if control is not None:
        return Place(rank, world, control, int(os.environ.get("PYDIST_SECRET_FD", -1)))
    if world == 1:
        return Place(rank, world, None, -1)
    method, url, _ = _split(init_method)
    if method == "env":
        host, port = os.environ.get("MASTER_ADDR"), _environment_number("MASTER_PORT")
        if (
            not (host and port is not None) and "PYDIST_MEETING" in os.environ
        ):  # multiprocessing.spawn started this process
            return Place(rank, world, os.environ["PYDIST_MEETING"], -1)
        if not host and (start := started()):
            return Place(rank, world, _meeting_of(start), -1)
        if not host or port is None:
            raise RuntimeError(
                f"init_process_group: {world} ranks, but no launcher (PYDIST_CONTROL is not set) and no MASTER_ADDR "
                f"and MASTER_PORT: start the script with `python -m pydist.run --nproc-per-node {world} script.py`"
            )
        url = f"tcp://[{host}]:{port}" if ":" in host and host[0] != "[" else f"tcp://{host}:{port}"
    return Place(rank, world, url, -1)


def open_place(init_method, rank):
    """(rank, URL) for a process that says how to meet but not with how many, and that no launcher started; else None. Raises
    ValueError if it has no rank."""
    method, url, asked = _split(init_method)
    if {"PYDIST_CONTROL", "PYDIST_MEETING", "WORLD_SIZE"} & set(os.environ) or "world_size" in asked or started():
        return None
    found = _argument("rank", rank)
    found = asked.get("rank") if found is None else found
    if method == "env":
        found = _environment_number("RANK") if found is None else found
        if found is None:
            raise ValueError("init_rpc: env://: environment variable RANK expected, but not set (expected it or rank=)")
        host, port = os.environ.get("MASTER_ADDR"), _environment_number("MASTER_PORT")
        if not host or port is None:
            raise ValueError(
                "init_rpc: env:// without world_size, MASTER_ADDR and MASTER_PORT (expected world_size, or where to meet)"
            )
        url = f"tcp://[{host}]:{port}" if ":" in host and host[0] != "[" else f"tcp://{host}:{port}"
    if found is None:
        raise ValueError(f"init_rpc: {url}: rank parameter missing (expected rank=, and world_size= if it is known)")
    return found, url


def find_store_place(store, world_size, rank):
    """The Place of ranks that share only a store. Each rank writes its host into the store, and rank 0 writes where
    they meet. Raises ValueError without rank and world_size, TypeError for an object that is not a store."""
    if not all(callable(getattr(store, name, None)) for name in ("get", "set", "check")):
        raise TypeError(f"init_process_group: store is {type(store).__name__} (expected a Store, such as TCPStore)")
    rank, world = who(None, world_size, rank)
    if world_size in _NOT_GIVEN and expected()[1] == 1 and "WORLD_SIZE" not in os.environ:
        raise ValueError("init_process_group: got a store without rank and world_size (expected all three)")
    if world == 1 or "PYDIST_CONTROL" in os.environ:
        return find_place(None, world, rank)
    key = "pydist/meet"
    store.set(f"{key}/{rank}", this_host())
    if rank == 0 and not store.check([key]):  # a later group meets at the place of the first one
        hosts = {bytes(store.get(f"{key}/{r}")) for r in range(world)}
        store.set(key, f"job://{secrets.token_hex(8)}" if len(hosts) == 1 else listening_place(store))
    return Place(rank, world, bytes(store.get(key)).decode(), -1)


def this_host():
    """A text that is equal for processes that can share memory."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return f"{boot} {os.stat('/proc/self/ns/net').st_ino} {os.geteuid()} {os.environ.get('PYDIST_HOST', '')}"


def _address_towards(host):
    """The address of this host that packets to `host` leave from; None if there is no route."""
    import socket

    try:
        family, _, _, _, place = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(place)  # sends nothing
            return probe.getsockname()[0]
    except OSError:
        return None


def listening_place(store=None):
    """The URL at which this process can listen for other hosts: the address from which it reaches MASTER_ADDR or the
    store, else any address of this host."""
    import socket

    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    channel = getattr(store, "_channel", None)
    own = channel and channel.connection.getsockname()
    master = os.environ.get("MASTER_ADDR")
    found = [master and _address_towards(master), own[0] if isinstance(own, tuple) else None]
    found = [address for address in found if address and not address.startswith("127.") and address != "::1"]
    found += [address for _, address in _C.interfaces()]
    if not found:
        raise RuntimeError(
            "init_process_group: the ranks are on several hosts, and pydist found no network address of this one (expected MASTER_ADDR in the environment)"
        )
    with socket.create_server(("", 0)) as probe:
        port = probe.getsockname()[1]
    return f"tcp://[{found[0]}]:{port}" if ":" in found[0] else f"tcp://{found[0]}:{port}"


def _tell_local(start):
    """Sets LOCAL_RANK and LOCAL_WORLD_SIZE for get_node_local_rank and for scripts that read them."""
    os.environ.setdefault("LOCAL_RANK", str(start.local_rank))
    os.environ.setdefault("LOCAL_WORLD_SIZE", str(start.local_world))


def _meeting_of(start):
    """Where ranks that mpirun or srun started meet, if nobody has said it."""
    _tell_local(start)
    name = hashlib.sha256(start.job.encode()).hexdigest()[:12]
    if start.local_world >= start.world:
        return f"job://{name}"
    if start.by == "srun" and (first := first_host(os.environ.get("SLURM_STEP_NODELIST", ""))):
        return f"tcp://{first}:{20000 + int(name, 16) % 20000}"
    raise RuntimeError(
        f"init_process_group: {start.by} started ranks on several hosts (expected MASTER_ADDR, rank 0's host, and "
        "MASTER_PORT, a free port on it, in the environment of all of them)"
    )


_mpi_meeting = None  # where the ranks of this process's MPI job meet; broadcast once, for all groups


def find_mpi_place(path, world_size, rank):
    """(the Place of this process in its MPI job, the MPI's name). Raises ValueError if arguments say something else,
    RuntimeError if there is no such job."""
    global _mpi_meeting
    real_rank, real_world, name = _C.mpi_open(path)
    for what, given, real in (("rank", rank, real_rank), ("world_size", world_size, real_world)):
        if _argument(what, given) not in (None, real):
            raise ValueError(f"init_process_group: {what}={given}, but MPI says {real} (expected the same)")
    start = started()
    if start and start.world != real_world:
        raise RuntimeError(
            f"init_process_group: {start.by} started {start.world} ranks, but {name} sees {real_world}: pydist was built "
            "with another MPI (expected an install of pydist with MPICC set to the mpicc of this mpirun)"
        )
    if start:
        _tell_local(start)
    if _mpi_meeting is None:
        apart = start and start.local_world < start.world or "MASTER_ADDR" in os.environ
        mine = find_place("env://", real_world, real_rank).address if apart else f"job://{secrets.token_hex(6)}"
        _mpi_meeting = _C.mpi_broadcast((mine or "").encode()).decode()
    return Place(real_rank, real_world, _mpi_meeting if real_world > 1 else None, -1), name


def first_host(nodes):
    """The first host in Slurm's list of nodes: "node03" for "node[03-05,9],other"."""
    match = re.match(r"([^\[,]+)(?:\[(\d+))?", nodes)
    return match and match[1] + (match[2] or "")
