"""The launcher: ``python -m pydist.run [options] script.py args...`` runs one process per rank on this host.

One loop owns everything: it reads the workers' pipes, hears signals (SIGCHLD too) through a wake-up pipe, and alone
writes to the launcher's stdout and stderr. It never blocks in a write, so a paused terminal cannot hide a dead rank.
A worker that has ended is looked at but not waited for until the job is over: its zombie keeps its number, so a signal
to its session cannot hit a stranger. csrc/base/spawn.h says why no worker outlives the launcher.

Output, with more than one rank: lines are written whole, after "[rank] ". ``\\n`` ends a line, and so does ``\\r`` (a
progress bar). On a terminal the unfinished or ``\\r``-ended text of the lowest rank that has one is a status line below
the others: redrawn in place, erased and drawn again around whole lines. Elsewhere each ``\\r`` piece is written when
its end has come. A line over 1 MiB is cut into several. With one rank the bytes pass through as they are,
through one pipe where our stdout and stderr are the same.

Tracebacks: what a worker writes to stderr from "Traceback (most recent call last):" on is held back for half a second.
If the worker goes on, it was no end and is shown; if the worker ends, the report shows it once, after the line that
names the rank, for the rank that failed first, and as one line each for the ranks that failed because of it.
"""

import os
import select
import signal
import sys
from time import monotonic

from pydist import _C

GRACE = 1.0  # s that survivors of a dead rank have to raise PeerFailed before SIGTERM
GRACE_SIGNAL = 2.0  # s that workers have after a forwarded SIGINT, SIGTERM or SIGHUP
GRACE_TERM = 0.5  # s between SIGTERM and SIGKILL
GRACE_KILL = 5.0  # s after SIGKILL until a process counts as one that cannot be killed
HOLD = 0.5  # s that a traceback is held back
LINE_MAX = 1 << 20  # longer lines are cut
TRACE_MAX = 1 << 18  # longer tracebacks are not held back
QUEUE_MAX = 1 << 20  # bytes waiting for a slow reader of ours; beyond, the workers' pipes fill up
RANKS_MAX = 4096  # PD_GUARD_MAX of csrc/base/spawn.h
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# name, argument, default, help
OPTIONS = (
    ("nproc-per-node", "N", "1", "ranks on this host; auto or cpu: one per core"),
    ("nnodes", "N", "1", "hosts; this version runs on one"),
    ("node-rank", "N", "0", "number of this host"),
    ("master-addr", "ADDR", "127.0.0.1", "MASTER_ADDR of the workers"),
    ("master-port", "PORT", "", "MASTER_PORT of the workers (a free port)"),
    ("standalone", None, False, "one host (what this version does anyway)"),
    ("module", None, False, "-m: the script is a module's name, as in python -m"),
    ("no-python", None, False, "the script is a program to run as it is"),
    ("help", None, False, "-h: this text"),
)


class UsageError(Exception):
    pass


def help_text():
    rows = []
    for name, arg, default, text in OPTIONS:
        left = f"--{name} {arg or ''}"
        rows.append(f"  {left:24}{text}" + (f" [{default}]" if default else ""))
    return ("usage: python -m pydist.run [options] script.py args...\n"
            "       python -m pydist.run [options] -m package.module args...\n\n"
            + "\n".join(rows) + "\n")


def parse(argv):
    """(options by name, command): options end at the first word without a dash, or after ``--``."""
    table = {name: arg for name, arg, _, _ in OPTIONS}
    opts = {name: default for name, _, default, _ in OPTIONS}
    words = list(argv)
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word == "--":
            break
        name, equals, value = {"-m": "--module", "-h": "--help"}.get(word, word).partition("=")
        name = name[2:].replace("_", "-") if name.startswith("--") else ""
        if name not in table:
            raise UsageError(f"unknown option {word}")
        if table[name] is None:
            if equals:
                raise UsageError(f"--{name} takes no value")
            opts[name] = True
        else:
            if not equals and not words:
                raise UsageError(f"--{name} needs a value ({table[name]})")
            opts[name] = value if equals else words.pop(0)
    return opts, words


def number(opts, name, low, high):
    text = opts[name]
    if not (text.isascii() and text.isdigit() and low <= int(text) <= high):
        raise UsageError(f"--{name}: {text!r} (expected a number from {low} to {high})")
    return int(text)


def check(opts, command):
    """The world size; UsageError for what this version cannot do."""
    if opts["nnodes"] not in ("1", "1:1") or opts["node-rank"] != "0":
        raise UsageError("several hosts come with tcp; not in this version (--nnodes 1, --node-rank 0)")
    if opts["master-port"]:
        number(opts, "master-port", 1, 65535)
    cores = opts["nproc-per-node"] in ("auto", "cpu")
    world = len(os.sched_getaffinity(0)) if cores else number(opts, "nproc-per-node", 1, RANKS_MAX)
    if not command:
        raise UsageError("no script given")
    if opts["module"] and opts["no-python"]:
        raise UsageError("--module and --no-python exclude each other")
    if not (opts["module"] or opts["no-python"] or os.path.exists(command[0])):
        raise UsageError(f"no such script: {command[0]}")
    return world


def free_port():
    import _socket  # socket itself costs 4 ms

    probe = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    probe.bind(("", 0))
    port = probe.getsockname()[1]
    probe.close()
    return port


def worker_argv(opts, command):
    if opts["no-python"]:
        name = command[0]
        if "/" not in name:
            paths = (os.path.join(folder, name) for folder in os.get_exec_path())
            name = next((path for path in paths if os.access(path, os.X_OK)), name)
        return [name, *command[1:]]
    return [sys.executable, *(["-m"] if opts["module"] else []), *command]


def worker_env(opts, world, server, columns):
    """A function of the rank: that worker's environment as "NAME=value"."""
    base = dict(os.environb)
    base.setdefault(b"PYTHONUNBUFFERED", b"1")
    if columns:  # a bar cannot ask the pipe for the terminal's width
        base.setdefault(b"COLUMNS", b"%d" % columns)
    common = {
        "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "ROLE_WORLD_SIZE": world, "GROUP_WORLD_SIZE": 1,
        "GROUP_RANK": 0, "ROLE_NAME": "default",
        "MASTER_ADDR": opts["master-addr"], "MASTER_PORT": opts["master-port"] or free_port(),
        "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0,
        "TORCHELASTIC_RUN_ID": os.urandom(8).hex(),
        "PYDIST_CONTROL": server.address, "PYDIST_SECRET_FD": server.secret_fd,
    }

    def of_rank(rank):
        own = {"RANK": rank, "LOCAL_RANK": rank, "ROLE_RANK": rank}
        named = {os.fsencode(name): os.fsencode(str(value)) for name, value in {**common, **own}.items()}
        return [name + b"=" + value for name, value in {**base, **named}.items()]

    return of_rank


# Tracebacks, as text.

MARK = b"Traceback (most recent call last):\n"
MARK_SYNTAX = b'  File "'  # a syntax error in the script itself has no other first line


def exceptions(text):
    """The "Type: message" lines in a traceback, in order; the last one is what was raised."""
    found, inside = [], False
    for line in text.split("\n"):
        if line[:4] in ("  | ", "  + "):  # an exception group
            line = line[4:]
        if line.endswith(MARK[:-1].decode()) or line.startswith(MARK_SYNTAX.decode()):
            inside = True
        elif inside and line and not line[0].isspace():
            found.append(line.removeprefix("__main__."))  # which Python 3.11 leaves out itself
            inside = False
    return found


def is_peer_failed(text):
    return any(line.partition(":")[0].rpartition(".")[2] == "PeerFailed" for line in exceptions(text))


def place(text):
    """Where a traceback ends: "train.py:31 in step", the last line outside pydist where there is one."""
    own = os.path.dirname(os.path.abspath(__file__)) + os.sep
    frames = [line.split('"', 2) for line in text.split("\n") if line.startswith('  File "') and line.count('"') > 1]
    frames = [frame for frame in frames if own not in frame[1]] or frames
    if not frames:
        return None
    _, path, rest = frames[-1]
    line, _, function = rest.replace(", line ", "", 1).partition(", in ")
    return f"{os.path.basename(path)}:{line}" + (f" in {function}" if function else "")


def listed(ranks):
    """[0, 1, 2, 5] -> "ranks 0-2, 5"."""
    runs = []
    for rank in ranks:
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
    return ("rank " if len(ranks) == 1 else "ranks ") + text


class Sink:
    """The launcher's stdout or stderr (one object where both are the same terminal or file)."""

    def __init__(self, fd):
        self.fd = fd
        self.terminal = os.isatty(fd) and os.environ.get("TERM", "dumb") != "dumb"
        self.queue = bytearray()
        self.closed = False
        self.owner = None  # the stream whose status line is drawn
        self.status = b""
        self.ready = select.poll()
        self.ready.register(fd, select.POLLOUT)

    def columns(self):
        return os.get_terminal_size(self.fd).columns if self.terminal else 0

    def put(self, data):
        if not self.closed:
            self.queue += data

    def lines(self, data):
        """Whole lines: above the status line, if there is one."""
        self.put(b"\r\x1b[K" + data + self.status if self.owner else data)

    def draw(self, stream, text):
        """The status line of a stream; empty: none. The first one of the lowest rank stays."""
        if self.owner is not stream and (not text or self.owner and self.owner.rank <= stream.rank):
            return
        width = self.columns()
        if text and width:
            text = text.decode("utf-8", "replace")[:width - 1].encode()
        self.put((b"\r\x1b[K" if self.owner else b"") + text)
        self.owner, self.status = (stream, text) if text else (None, b"")

    def flush(self):
        """Writes what the reader takes without blocking: POLLOUT promises room for PIPE_BUF bytes in a pipe."""
        try:
            while self.queue and self.ready.poll(0):
                del self.queue[:os.write(self.fd, self.queue[:select.PIPE_BUF])]
        except OSError:  # the reader is gone; the workers feel it on their pipes as they would on ours
            self.closed = True
            self.queue.clear()


class Stream:
    """One pipe of one worker, cut into lines (see the module's text)."""

    def __init__(self, rank, fd, sink, prefix, catches):
        self.rank, self.fd, self.sink, self.prefix = rank, fd, sink, prefix
        self.catches = catches  # holds tracebacks back
        self.open = b""  # the text after the last line end
        self.fresh = True  # nothing came yet
        self.held = False  # `trace` waits for the worker's end, or for `due`
        self.trace = b""  # the last text of this stream, from its traceback on
        self.due = 0.0

    def read(self):
        """False at the end or when nothing is there yet; `fd` is None once it ended."""
        try:
            data = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data or self.sink.closed:
            self.close()
            return False
        self.feed(data)
        return True

    def drain(self):
        """What is there now, and no more than a pipe holds: a grandchild may keep writing."""
        for _ in range(16):
            if self.fd is None or not self.read():
                return

    def close(self):
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def feed(self, data):
        if self.held:
            self.trace += data
            if len(self.trace) > TRACE_MAX:
                self.release()
            return
        data, self.open = self.open + data, b""
        if self.catches:
            at = 0 if self.fresh and data.startswith(MARK_SYNTAX) else data.find(MARK)
            self.fresh = False
            if at >= 0:
                self.emit(data[:at])
                self.held, self.trace, self.due = True, data[at:], monotonic() + HOLD
                return
            self.trace = b""  # an earlier one was not the end
        self.emit(data)

    def emit(self, data):
        if not self.prefix:
            keep = self.catches and data[data.rfind(b"\n") + 1:]
            if keep and MARK.startswith(keep):
                self.open, data = keep, data[:-len(keep)]
            self.sink.put(data)
            return
        cut = data.rfind(b"\n") + 1
        if not self.sink.terminal:  # a final \r may be half of \r\n
            cut = max(cut, data.rfind(b"\r", 0, -1) + 1)
        lines, self.open = data[:cut], data[cut:]
        if len(self.open) > LINE_MAX:
            lines, self.open = lines + self.open + b"\n", b""
        if self.sink.terminal and b"\r" in self.open:
            self.open = self.last_piece(self.open)
        if lines:
            self.sink.lines(self.prefixed(lines))
        if self.sink.terminal:
            self.sink.draw(self, self.prefix + self.open if self.open.strip() else b"")

    @staticmethod
    def last_piece(line):
        return next((piece for piece in reversed(line.split(b"\r")) if piece), b"")  # blanks erase

    def prefixed(self, lines):
        if b"\r" in lines:
            lines = lines.replace(b"\r\n", b"\n")
            if self.sink.terminal:
                lines = b"\n".join(map(self.last_piece, lines[:-1].split(b"\n"))) + b"\n"
            lines = lines[:-1].replace(b"\r", b"\r" + self.prefix) + lines[-1:]
        return self.prefix + lines[:-1].replace(b"\n", b"\n" + self.prefix) + lines[-1:]

    def release(self):
        """Shows the held text; it stays the trace until something follows."""
        if self.held:
            self.held = False
            text, self.open = self.open + self.trace, b""
            self.emit(text)

    def flush(self):
        """The worker has ended: an unfinished line is a line."""
        text, self.open = self.open, b""
        if not self.prefix:
            self.sink.put(text)
        elif text.strip():
            self.emit(text + b"\n")
        elif self.sink.terminal:  # an erased bar
            self.sink.draw(self, b"")


class Worker:
    def __init__(self, rank, pid, out, err):
        self.rank, self.pid, self.out, self.err = rank, pid, out, err
        self.code = None  # as a shell gives it; None while it runs
        self.cause = ""  # "exited with code 3"
        self.because_of_peer = False
        self.told_to_end = None  # the signal that the launcher sent

    @property
    def trace(self):
        return self.err.trace.decode("utf-8", "replace")

    def look(self):
        """True if the worker has ended since the last look; leaves the zombie."""
        info = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) if self.code is None else None
        if info is None:
            return False
        self.out.drain()
        self.err.drain()
        self.code = info.si_status + (0 if info.si_code == os.CLD_EXITED else 128)
        self.cause = self.describe(info)
        if self.code == 0:
            self.err.release()
        self.out.flush()
        self.err.flush()
        return True

    def describe(self, info):
        found = exceptions(self.trace)
        self.because_of_peer = is_peer_failed(self.trace)
        if info.si_code != os.CLD_EXITED:
            hint = (signal.strsignal(info.si_status) or "").lower()
            if info.si_status == signal.SIGKILL and not self.told_to_end:
                hint += "; out of memory?"
            return f"died: {signal_name(info.si_status)} ({hint})"
        if info.si_status == 1 and found:
            return f"raised {found[-1]}"
        return f"exited with code {info.si_status}"


def signal_name(number):
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Job:
    def __init__(self, opts, command, world):
        self.opts, self.command, self.world = opts, command, world
        self.workers = []
        self.failed = []  # in order of death; not those that the launcher ended
        self.root = None  # the worker that failed first
        self.signal = None  # the signal that ends the job
        self.plan = []  # (time, signal for all sessions), in order
        self.give_up = None  # when to stop waiting for processes that SIGKILL does not end
        self.root_text = ""  # the traceback that the report showed
        self.server = self.guard = self.guard_fd = None
        while (devnull := os.open(os.devnull, os.O_RDWR)) <= 2:  # 0, 1 and 2 exist from here on
            pass
        self.devnull = devnull
        same = os.path.samestat(os.fstat(1), os.fstat(2))
        self.out = Sink(1)
        self.err = self.out if same else Sink(2)
        self.sinks = (self.out,) if same else (self.out, self.err)

    def say(self, text):
        if text:
            self.err.lines(text.rstrip("\n").encode("utf-8", "replace") + b"\n")

    # Starting and ending.

    def run(self):
        wake = os.pipe()
        for end in wake:
            os.set_blocking(end, False)
        handled = [sig for sig in FORWARDED if signal.getsignal(sig) != signal.SIG_IGN]  # nohup, a shell's `&`
        old = {sig: signal.signal(sig, lambda *_: None) for sig in (*handled, signal.SIGCHLD)}
        old_wake = signal.set_wakeup_fd(wake[1], warn_on_full_buffer=False)
        self.wake = wake[0]
        try:
            self.guard, self.guard_fd = _C.guard()  # before the server's thread: a fork copies no thread
            self.server = _C.ControlServer(self.world)
            if self.start():
                self.loop()
            code = self.report()
            self.write_out()
            return code
        finally:
            self.end_all()
            signal.set_wakeup_fd(old_wake)
            for sig, handler in old.items():
                signal.signal(sig, handler)
            for fd in (*wake, self.devnull):
                os.close(fd)

    def start(self):
        argv = worker_argv(self.opts, self.command)
        columns = max(0, self.err.columns() - len(f"[{self.world - 1}] "))
        env = worker_env(self.opts, self.world, self.server, columns)
        one = self.world == 1
        merged = one and self.out is self.err  # one pipe keeps the order of the worker's writes to both
        for rank in range(self.world):
            ends = []  # read, write; the pipe of stderr comes first
            try:
                for _ in range(1 if merged else 2):
                    ends += os.pipe()
                pid = _C.spawn(argv, env(rank), 0 if one else self.devnull, ends[-1], ends[1], (self.server.secret_fd,))
            except (OSError, MemoryError) as error:
                for fd in ends:
                    os.close(fd)
                self.say(f"pydist.run: cannot start rank {rank}: {error}")
                return False
            os.write(self.guard_fd, pid.to_bytes(4, sys.byteorder))
            for read, write in zip(ends[::2], ends[1::2]):
                os.close(write)
                os.set_blocking(read, False)
            prefix = b"" if one else b"[%d] " % rank
            out = Stream(rank, None if merged else ends[2], self.out, prefix, False)
            self.workers.append(Worker(rank, pid, out, Stream(rank, ends[0], self.err, prefix, True)))
        return True

    @property
    def sessions(self):
        return [worker.pid for worker in self.workers]

    @property
    def streams(self):
        return [stream for worker in self.workers for stream in (worker.out, worker.err)]

    def end_all(self):
        """Whatever happened before: nobody is left."""
        deadline = monotonic() + GRACE_KILL
        while _C.session_kill(self.sessions, signal.SIGKILL) and monotonic() < deadline:
            select.poll().poll(2)
        for stream in self.streams:
            stream.close()
        for worker in self.workers:
            os.waitpid(worker.pid, os.WNOHANG)
        if self.server:
            self.server.close()
        if self.guard:
            os.kill(self.guard, signal.SIGKILL)
            os.waitpid(self.guard, 0)
            os.close(self.guard_fd)

    # The loop.

    def loop(self):
        """Until all workers have ended, and all that they started in their sessions."""
        orphans = False
        while self.give_up is None or monotonic() < self.give_up:
            now = monotonic()
            running = [worker for worker in self.workers if worker.code is None]
            if not running:
                self.judge(last=True)
                if not _C.session_kill(self.sessions, 0):
                    return
                if not orphans:
                    orphans = True
                    self.end_by(now)
            while self.plan and self.plan[0][0] <= now:
                sig = self.plan.pop(0)[1]
                for worker in running:
                    worker.told_to_end = sig
                _C.session_kill(self.sessions, sig)
                if sig == signal.SIGKILL:
                    self.give_up = now + GRACE_KILL
            self.wait(0.01 if orphans else None)

    def end_by(self, when):
        self.plan = [(when, signal.SIGTERM), (when + GRACE_TERM, signal.SIGKILL)]

    def wait(self, at_most):
        """Sleeps until something happens, and handles it."""
        poller = select.poll()
        poller.register(self.wake, select.POLLIN)
        readable = {}
        if not any(len(sink.queue) > QUEUE_MAX for sink in self.sinks):
            readable = {stream.fd: stream for stream in self.streams if stream.fd is not None}
        for fd in readable:
            poller.register(fd, select.POLLIN)
        for sink in self.sinks:
            if sink.queue:
                poller.register(sink.fd, select.POLLOUT)
        ending = self.plan or self.signal or self.failed
        held = [] if ending else [worker.err for worker in self.workers if worker.err.held]
        times = [stream.due for stream in held] + [when for when, _ in self.plan[:1]]
        times += [self.give_up] if self.give_up else []
        now = monotonic()
        times += [now + at_most] if at_most else []
        events = poller.poll(max(0.0, min(times) - now) * 1000 + 1 if times else None)
        woken = False
        for fd, _ in events:
            if fd == self.wake:
                woken = True
            elif fd in readable:
                readable[fd].read()
        for stream in held:
            if stream.held and stream.due <= monotonic():
                stream.release()
        if woken:
            for sig in os.read(self.wake, 4096):
                if sig != signal.SIGCHLD:
                    self.interrupt(sig)
            self.bury([worker for worker in self.workers if worker.look()])
        for sink in self.sinks:
            sink.flush()

    def bury(self, ended):
        """The first bad end is the end of the job."""
        for worker in ended:  # to the server, one that took its leave is not dead
            self.server.dead(worker.rank, worker.cause + ("\n" + worker.trace if worker.trace else ""))
        bad = [worker for worker in ended if worker.code and not worker.told_to_end]
        if not bad or self.signal:
            return
        if not self.failed:
            self.end_by(monotonic() + GRACE)
        self.failed += bad
        self.judge()

    def interrupt(self, sig):
        """Ctrl-C and the like: forwarded once; the second time, or when the job ends anyway, there is no waiting."""
        now = monotonic()
        if self.signal or self.failed:
            self.plan = [(now, signal.SIGKILL)]
        else:
            self.end_by(now + GRACE_SIGNAL)
            _C.session_kill(self.sessions, sig)
        self.signal = self.signal or sig

    # The report.

    def judge(self, last=False):
        """Names the rank that failed first, once that is known: not one that ended only because a peer did."""
        if self.root or not self.failed:
            return
        raised = self.server.first_raised()
        if raised and not is_peer_failed(raised[1]):
            root, text = self.workers[raised[0]], raised[1].rstrip("\n") + "\n"
            cause = "raised " + (exceptions(text) or text.splitlines())[-1]
        else:
            root = next((worker for worker in self.failed if not worker.because_of_peer), None)
            if root is None and last:
                root = self.failed[0]
            if root is None:
                return
            text, cause = root.trace, root.cause
        self.say(f"pydist.run: rank {root.rank} (pid {root.pid}) {cause}")
        if root.err.held or exceptions(root.trace)[-1:] != exceptions(text)[-1:]:  # else it was shown already
            self.say(text)
        self.root, self.root_text = root, text

    def report(self):
        """What is left to say; the exit code."""
        if len(self.workers) < self.world:
            return 127
        if self.signal:
            self.report_signal()
            return 128 + self.signal
        others = {}
        for worker in self.workers:
            if worker is self.root or worker.code == 0:
                continue
            if worker.code is None:
                line = "cannot be killed"
            elif worker.told_to_end:
                line = f"ended by the launcher ({signal_name(worker.told_to_end)})"
            else:
                line = f"then {worker.cause}"
            others.setdefault(line, []).append(worker.rank)
            if not (worker.because_of_peer or worker.cause.startswith("raised")):
                worker.err.release()
        if self.root and self.root.err.held and self.root_text in self.root.trace:
            self.say(self.root.trace.replace(self.root_text, "", 1))
        for line, ranks in others.items():
            self.say(f"pydist.run: {listed(ranks)} {line}")
        if not self.root:
            return 0
        return 1 if self.root.told_to_end or not self.root.code else self.root.code

    def report_signal(self):
        """Three lines at most: where the ranks were."""
        name = signal_name(self.signal)
        self.say(f"pydist.run: ended by {name}" + (" (Ctrl-C)" if self.signal == signal.SIGINT else ""))
        places = {}
        for worker in self.workers:
            where = place(worker.trace)
            if where:
                places.setdefault(where, []).append(worker.rank)
        for where, ranks in list(places.items())[:3]:
            self.say(f"pydist.run: {listed(ranks)} at {where}")

    def write_out(self):
        """Waits for the reader of our output as any program does, or for a signal."""
        for stream in self.streams:
            stream.drain()
            stream.flush()
        while any(sink.queue for sink in self.sinks):
            waiting = select.poll()
            waiting.register(self.wake, select.POLLIN)
            for sink in self.sinks:
                if sink.queue:
                    waiting.register(sink.fd, select.POLLOUT)
            events = waiting.poll()
            if any(fd == self.wake for fd, _ in events) and set(os.read(self.wake, 4096)) - {signal.SIGCHLD}:
                return
            for sink in self.sinks:
                sink.flush()


def main(argv=None):
    try:
        opts, command = parse(sys.argv[1:] if argv is None else argv)
        if opts["help"]:
            os.write(1, help_text().encode())
            return 0
        world = check(opts, command)
    except UsageError as error:
        os.write(2, f"pydist.run: {error}; --help lists the options\n".encode("utf-8", "replace"))
        return 2
    return Job(opts, command, world).run()


if __name__ == "__main__":
    sys.exit(main())
