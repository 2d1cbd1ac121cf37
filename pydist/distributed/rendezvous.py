"""Where the ranks meet and who this one is: from arguments, the launcher's environment, or PyTorch's variables.

The launcher (`python -m pydist.run`) says all of it. Without one, rank 0 hosts what the others connect to, and says
where by one of PyTorch's methods: env:// (MASTER_ADDR and MASTER_PORT), tcp://host:port or file:///path.
"""

import os
from collections import namedtuple

Place = namedtuple("Place", "rank world address secret_fd")  # address None: a world of one, nobody to meet

_NOT_GIVEN = (-1, None)


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
    """(method, the URL without its query, {"rank": ..., "world_size": ...} from the query)."""
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


def who(init_method, world_size, rank):
    """(rank, world): arguments, else the URL's, else the environment's. ValueError or TypeError where they contradict
    each other, or a launcher's word."""
    found, asked = [], _split(init_method)[2]
    for name, variable, argument in (("rank", "RANK", rank), ("world_size", "WORLD_SIZE", world_size)):
        said, given = _environment_number(variable), _argument(name, argument)
        given = asked.get(name) if given is None else given
        if given is not None and said is not None and given != said and "PYDIST_CONTROL" in os.environ:
            raise ValueError(f"init_process_group: {name}={given}, but the launcher says {variable}={said}")
        found.append(said if given is None else given)
    rank, world = found
    world = 1 if world is None else world
    if rank is None:
        if world > 1:
            raise ValueError("init_process_group: WORLD_SIZE is over 1 and RANK is not set")
        rank = 0
    if not 0 <= rank < world:
        raise ValueError(f"init_process_group: rank {rank} (expected 0 to {world - 1})")
    return rank, world


def find_place(init_method=None, world_size=-1, rank=-1):
    """The Place of this process. RuntimeError where several ranks have nowhere to meet; `who` says the rest."""
    rank, world = who(init_method, world_size, rank)
    control = os.environ.get("PYDIST_CONTROL")
    if control is not None:
        return Place(rank, world, control, int(os.environ.get("PYDIST_SECRET_FD", -1)))
    if world == 1:
        return Place(rank, world, None, -1)
    method, url, _ = _split(init_method)
    if method == "env":
        host, port = os.environ.get("MASTER_ADDR"), _environment_number("MASTER_PORT")
        if not host or port is None:
            raise RuntimeError(
                f"init_process_group: {world} ranks, but no launcher (PYDIST_CONTROL is not set) and no MASTER_ADDR "
                f"and MASTER_PORT: start the script with `python -m pydist.run --nproc-per-node {world} script.py`"
            )
        url = f"tcp://[{host}]:{port}" if ":" in host and host[0] != "[" else f"tcp://{host}:{port}"
    return Place(rank, world, url, -1)
