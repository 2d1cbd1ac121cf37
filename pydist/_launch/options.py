"""The command line, with torchrun's options: from words to a Plan."""

import os
from collections import namedtuple

from pydist import _C

RANKS_MAX = _C.RANKS_MAX
SSH = "ssh -o BatchMode=yes -o ServerAliveInterval=15"
PORT = 29500  # for several hosts, which have to agree on one; on one host any free port

# name, argument, default, help; no help: accepted, as torchrun has it, and ignored
OPTIONS = (
    ("nproc-per-node", "N", "1", "ranks on each host; auto or cpu: one per core; gpu: one per GPU"),
    ("workers", "N", "", "the same as --nproc-per-node, for jobs with a parameter server"),
    ("servers", "N", "", "DMLC_NUM_SERVER of the workers; no process: their memory is the server"),
    ("nnodes", "N", "1", "hosts; MIN:MAX means MAX, sizes do not change during a job"),
    ("node-rank", "N", "", "number of this host; the others connect to host 0 [0 on one host]"),
    ("master-addr", "ADDR", "", "address of host 0 [127.0.0.1]"),
    ("master-port", "PORT", "", f"port of host 0 [a free one; {PORT} with several hosts]"),
    ("rdzv-endpoint", "ADDR:PORT", "", "the same as --master-addr and --master-port"),
    ("rdzv-id", "ID", "", "name of the job, TORCHELASTIC_RUN_ID of the workers [random]"),
    ("rdzv-backend", "NAME", "static", "static or c10d, which mean the same here"),
    ("role", "NAME", "default", "ROLE_NAME of the workers"),
    ("standalone", None, False, "one host"),
    ("insecure", None, False, "several hosts without PYDIST_SECRET_FILE: everybody who reaches the port may join"),
    ("module", None, False, "-m: the script is a module's name, as in python -m"),
    ("no-python", None, False, "the script is a program to run as it is"),
    ("on-failure", "WHAT", "stop", "when a rank fails: stop the others, or keep them (the last one's code counts)"),
    ("hosts", "LIST", "", "a:2,b:2: starts the job from here, by ssh: 2 ranks on host a, 2 on b [--nproc-per-node]"),
    ("hostfile", "FILE", "", "the same from a file with lines such as `a:2` or `a slots=2`"),
    ("ssh", "COMMAND", SSH, "how --hosts reaches a host: COMMAND HOST PROGRAM; {host} in it is the host's name"),
    ("by-ssh", None, False, "how --hosts starts a host's launcher: secret on standard input, whose end ends the job"),
    ("logical-shards", "V", "", "PYDIST_SHARDS: a step is the work of V logical shards (a power of two)"),
    ("max-restarts", "N", "0", "how often the job is started again after a failure (one host)"),
    ("log-dir", "DIR", "", "writes DIR/ID/attempt_N/LOCAL_RANK/stdout.log and stderr.log; alone: as with --tee 3"),
    ("tee", "WHAT", "", "-t: into files too: 1 stdout, 2 stderr, 3 both, 0 none; or by local rank: 0:3,1:1"),
    ("redirects", "WHAT", "", "-r: the same, but only into files"),
    ("fold", "WHAT", "", "auto: equal lines of several ranks, within 150 ms, once, `[0-3,5] text`; off [PYDIST_FOLD]"),
    ("progress-every", "SECONDS", "30", "how often a progress bar in a pipe or file is a line; 0: only at its end"),
    ("prefix", "TEXT", "[{rank}] ", "before each line of several ranks; also {host} {local_rank} {role} {time}"),
    ("color", "WHEN", "auto", "prefixes in a colour by rank: auto (a terminal, and no NO_COLOR), always or never"),
    ("filter-ranks", "LIST", "", "shows only these ranks, such as 0,4-7; files of --log-dir have all"),
    ("local-ranks-filter", "LIST", "", "the same by the number on each host"),
    ("compat", None, False, "the script imports torch and gets pydist (python -m pydist.compat)"),
    ("cpu-as-cuda", "N", "0", "pretend N GPUs on each host: cuda and nccl mean the CPU"),
    ("help", None, False, "-h: this text"),
    ("monitor-interval", "SECONDS", "", ""),
    ("start-method", "NAME", "", ""),
    ("rdzv-conf", "LIST", "", ""),
    ("local-addr", "ADDR", "", ""),
    ("use-env", None, False, ""),
)  # fmt: skip
SHORT = {"-m": "--module", "-h": "--help", "-t": "--tee", "-r": "--redirects"}


class UsageError(Exception):
    """The command line is wrong. The text says how."""


_PLAN = {
    "command": (), "local": 1, "hosts": 1, "host": 0, "address": "127.0.0.1", "port": 0, "run_id": "",
    "role": "default", "insecure": False, "module": False, "no_python": False, "on_failure": "stop",
    "max_restarts": 0, "restart": 0, "log_dir": "", "tee": (), "redirects": (), "slots": (), "by_ssh": "",
    "fold": True, "progress_every": 30.0, "prefix": "[{rank}] ", "color": "auto", "shown": None,
}  # fmt: skip


class Plan(namedtuple("Plan", _PLAN, defaults=_PLAN.values())):
    """What a launcher does: ranks first..first + local - 1 of `world` run the command on this host.

    address and port are those of host 0; port 0: a free one. restart: how often the job was started before. tee,
    redirects: for each local rank, which of its streams, 1 and 2, go into files under log_dir. slots: the number of
    ranks on each host, as --hosts says. by_ssh: this host's name, if --hosts started this launcher. fold,
    progress_every, prefix, color: how lines look. shown: the ranks whose lines are shown, None: all.
    """

    __slots__ = ()

    @property
    def world(self):
        return sum(self.slots) or self.hosts * self.local

    @property
    def first(self):
        return sum(self.slots[: self.host]) or self.host * self.local


def help_text():
    """The text of --help."""
    rows = [(f"--{name} {arg or ''}", text, default) for name, arg, default, text in OPTIONS if text]
    nothing = ", ".join(f"--{name}" for name, _, _, text in OPTIONS if not text)
    return (
        "usage: python -m pydist.run [options] script.py args...\n"
        "       python -m pydist.run [options] -m package.module args...\n\n"
        + "".join(f"  {left:26}{text}" + (f" [{default}]\n" if default else "\n") for left, text, default in rows)
        + f"\naccepted and ignored: {nothing}\n"
        + "several hosts: --hosts, where ssh asks for no password; or the same command on each, with its --node-rank, and\n"
        "PYDIST_SECRET_FILE in the environment, naming a file (mode 0600, at least 32 bytes) that is the same on all\n"
    )


def parse(argv):
    """(options by name, command). Options end at the first word without a dash, or after ``--``."""
    table = {name: arg for name, arg, *_ in OPTIONS}
    options = {name: default for name, _, default, _ in OPTIONS}
    words = list(argv)
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word == "--":
            break
        name, equals, value = SHORT.get(word, word).partition("=")
        name = name[2:].replace("_", "-") if name.startswith("--") else ""
        if name not in table:
            raise UsageError(f"unknown option {word}")
        if table[name] is None:
            if equals:
                raise UsageError(f"--{name} got a value (expected none)")
            options[name] = True
        else:
            if not equals and not words:
                raise UsageError(f"--{name} needs a value ({table[name]})")
            options[name] = value if equals else words.pop(0)
    return options, words


def _number(name, text, low, high):
    if not (text.isascii() and text.isdigit() and low <= int(text) <= high):
        raise UsageError(f"--{name}: {text!r} (expected a number from {low} to {high})")
    return int(text)


def _pretended(options):
    return _number("cpu-as-cuda", options["cpu-as-cuda"], 0, 128)


def _local_ranks(options):
    text = options["workers"] or options["nproc-per-node"]
    if text in ("auto", "cpu"):
        return len(os.sched_getaffinity(0))
    if text == "gpu":
        from pydist import _C, cuda

        if count := _pretended(options) or cuda.device_count():
            return count
        raise UsageError(
            f"--nproc-per-node: gpu, but there is no GPU: {_C.cuda_why()} (expected a number, auto or cpu)"
        )
    return _number("nproc-per-node", text, 1, RANKS_MAX)


def _hosts(options):
    """(the number of hosts, this one's number)."""
    low, colon, high = options["nnodes"].partition(":")
    low = _number("nnodes", low, 1, RANKS_MAX)
    hosts = _number("nnodes", high, low, RANKS_MAX) if colon else low
    if options["standalone"]:
        if options["nnodes"] not in ("1", "1:1"):
            raise UsageError("got both --standalone and --nnodes (expected one of them)")
        hosts = 1
    if hosts > 1 and not (options["node-rank"] or options["hosts"] or options["hostfile"]):
        raise UsageError(f"--nnodes {options['nnodes']} needs --node-rank, the number of this host (0 to {hosts - 1})")
    return hosts, _number("node-rank", options["node-rank"] or "0", 0, hosts - 1)


def host_list(options, local):
    """(names, ranks on each) from --hosts or --hostfile; `local`: the number of ranks if nothing else is given."""
    import re  # a launcher on one host does not need this import

    if options["hosts"] and options["hostfile"]:
        raise UsageError("got both --hosts and --hostfile (expected one of them)")
    words = options["hosts"].split(",")
    if options["hostfile"]:
        try:
            with open(options["hostfile"]) as file:
                words = [line.partition("#")[0].strip() for line in file]
        except OSError as error:
            raise UsageError(f"--hostfile {options['hostfile']}: {error.strerror}") from None
    found = [
        re.fullmatch(r"([^\s:\[]+|\[[^\]\s]+\])(?:(?::|\s+(?:slots=)?)(\d+))?(?:\s.*)?", word) for word in words if word
    ]
    if not found or not all(found):
        wrong = next((word for word, match in zip(filter(None, words), found) if not match), "")
        raise UsageError(f"--hosts: {wrong!r} (expected names with ranks, such as a:2,b:2)")
    slots = tuple(_number("hosts", match[2], 1, RANKS_MAX) if match[2] else local for match in found)
    return tuple(match[1] for match in found), slots


def starts_hosts(options):
    """Whether this launcher starts those of several hosts and has no ranks itself."""
    return bool(options["hosts"] or options["hostfile"]) and not options["node-rank"]


def bare(name):
    """The host in user@host and in [v6]."""
    return name.rpartition("@")[2].strip("[]")


def _endpoint(options, hosts):
    """(address, port) of host 0. Port 0: a free one."""
    address, port = options["master-addr"], options["master-port"]
    if options["rdzv-endpoint"]:
        address, colon, end = options["rdzv-endpoint"].rpartition(":")
        address, port = (address, end) if colon else (end, port)
    if hosts > 1 and not address:
        raise UsageError("several hosts need --master-addr, the address of host 0")
    default = str(PORT) if hosts > 1 else "0"
    address = address.strip("[]")
    return address or "127.0.0.1", _number("master-port", port or default, 0 if hosts == 1 else 1, 65535)


def _check_secret(options, hosts):
    insecure = options["insecure"] or options["by-ssh"] or os.environ.get("PYDIST_INSECURE") == "1"
    if hosts > 1 and not (starts_hosts(options) or insecure or os.environ.get("PYDIST_SECRET_FILE")):
        raise UsageError(
            "several hosts need PYDIST_SECRET_FILE, naming a file (mode 0600, at least 32 bytes) that is the same on "
            "all of them, or --insecure"
        )


def _of_shards(options):
    """Variables for a job with logical shards: Python's hashes of texts, and so the order of sets, are the same
    everywhere."""
    if not options["logical-shards"]:
        return {}
    number = _number("logical-shards", options["logical-shards"], 1, 1024)
    if number & (number - 1):
        raise UsageError(f"--logical-shards: {number} (expected a power of two)")
    return {"PYDIST_SHARDS": str(number), "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")}


def _check_fixed(options):
    if options["rdzv-backend"] not in ("static", "c10d"):
        raise UsageError(f"--rdzv-backend: {options['rdzv-backend']!r} (expected static or c10d)")
    if options["on-failure"] not in ("stop", "keep"):
        raise UsageError(f"--on-failure: {options['on-failure']!r} (expected stop or keep)")


def _streams(name, text, local):
    """A number for each local rank: 1 for stdout, 2 for stderr, 3 for both, 0 for none."""
    if ":" not in text:
        return (_number(name, text or "0", 0, 3),) * local
    chosen = [0] * local
    for word in text.split(","):
        rank, _, streams = word.partition(":")
        chosen[_number(name, rank, 0, local - 1)] = _number(name, streams, 0, 3)
    return tuple(chosen)


def _files(options, local):
    """(folder, streams that also go into files, streams that go only into files)."""
    folder, tee = options["log-dir"], options["tee"]
    if folder and not (tee or options["redirects"]):
        tee = "3"
    tee, redirects = _streams("tee", tee, local), _streams("redirects", options["redirects"], local)
    if not folder and any(tee + redirects):
        raise UsageError("--tee and --redirects need --log-dir, the folder of the files")
    return folder, tee, redirects


def _ranks(name, text, count):
    """The numbers in "0,2-3"; None if it is not such a list."""
    if not text:
        return None
    found = set()
    for word in text.split(","):
        low, dash, high = word.strip().partition("-")
        low = _number(name, low, 0, count - 1)
        found.update(range(low, 1 + (_number(name, high, low, count - 1) if dash else low)))
    return frozenset(found)


def _looks(options, slots):
    """The options for the look of lines: fold, progress_every, prefix, color, shown."""
    options = {**options, "fold": options["fold"] or os.environ.get("PYDIST_FOLD") or "auto"}
    for name, allowed in (("fold", ("auto", "off")), ("color", ("auto", "always", "never"))):
        if options[name] not in allowed:
            raise UsageError(f"--{name}: {options[name]!r} (expected {', '.join(allowed[:-1])} or {allowed[-1]})")
    try:
        every = float(options["progress-every"])
    except ValueError:
        every = -1.0
    if not 0 <= every < 1e9:
        raise UsageError(f"--progress-every: {options['progress-every']!r} (expected seconds; 0: only at the end)")
    try:
        options["prefix"].format(rank="", host="", local_rank="", role="", time="")
    except (ValueError, LookupError, AttributeError, TypeError):
        fields = "{rank} {host} {local_rank} {role} {time}"
        raise UsageError(f"--prefix: {options['prefix']!r} (expected a text with some of {fields})") from None
    if not options["prefix"].isprintable():
        raise UsageError(f"--prefix: {options['prefix']!r} (expected no control characters)")
    shown = _ranks("filter-ranks", options["filter-ranks"], sum(slots))
    local = _ranks("local-ranks-filter", options["local-ranks-filter"], max(slots))
    if local is not None:
        chosen = frozenset(
            sum(slots[:host]) + rank for host, count in enumerate(slots) for rank in local if rank < count
        )
        shown = chosen if shown is None else shown & chosen
    return options["fold"] == "auto", every, options["prefix"], options["color"], shown


def environment_from(options):
    """The variables that the options add to the workers' environment."""
    pretended, found = _pretended(options), _of_shards(options)
    if options["compat"]:
        from pydist.compat import environment

        found.update(environment())
    if pretended:
        found["PYDIST_CPU_AS_CUDA"] = str(pretended)
    if options["workers"] or options["servers"]:
        servers = _number("servers", options["servers"] or "0", 0, RANKS_MAX)
        found.update(DMLC_ROLE="worker", DMLC_NUM_WORKER=str(_local_ranks(options)), DMLC_NUM_SERVER=str(servers))
    return found


def plan_from(options, command):
    """The Plan. Raises UsageError for options that contradict each other or cannot be satisfied."""
    _check_fixed(options)
    local, names, slots = _local_ranks(options), (), ()
    if options["hosts"] or options["hostfile"]:
        names, slots = host_list(options, local)
        options = {**options, "nnodes": str(len(names)), "master-addr": options["master-addr"] or bare(names[0])}
    hosts, host = _hosts(options)
    local = slots[host] if slots else local
    if sum(slots) > RANKS_MAX or local * hosts > RANKS_MAX and not slots:
        raise UsageError(f"{local} ranks on each of {hosts} hosts (expected at most {RANKS_MAX} in all)")
    restarts = _number("max-restarts", options["max-restarts"], 0, 1000000)
    if restarts and hosts > 1:
        raise UsageError("--max-restarts: a job on several hosts cannot be restarted (expected 0, or one host)")
    address, port = _endpoint(options, hosts)
    _check_secret(options, hosts)
    if not command:
        raise UsageError("no script given (expected its path after the options)")
    if options["module"] and options["no-python"]:
        raise UsageError("got both --module and --no-python (expected one of them)")
    starts = starts_hosts(options)
    if not (options["module"] or options["no-python"] or starts or os.path.exists(command[0])):
        raise UsageError(f"no such script: {command[0]}")
    if starts and hosts > 1 and not (options["master-port"] or options["rdzv-endpoint"]):
        port = 20000 + int.from_bytes(os.urandom(2), "little") % 10000
    run_id = options["rdzv-id"] or os.urandom(8).hex()
    return Plan(
        tuple(command), local, hosts, host, address, port, run_id, options["role"], options["insecure"],
        options["module"], options["no-python"], options["on-failure"], restarts, 0,
        *_files(options, local), slots, names[host] if options["by-ssh"] and names else "",
        *_looks(options, slots or (local,) * hosts),
    )  # fmt: skip
