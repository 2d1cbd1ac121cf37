"""A job on this host: starts the workers, moves their output, handles signals, and ends all processes.

One loop owns everything: it reads the workers' pipes, gets signals (also SIGCHLD) through a wake-up pipe, and is the
only one to write to the launcher's stdout and stderr. It never blocks in a write, so a paused terminal cannot hide a
dead rank. The launcher looks at workers that have ended, but waits for them only at the end of the job: until then the
zombie keeps its process number, so a signal to its session cannot hit a stranger. csrc/base/spawn.h says why no worker
outlives the launcher.
"""

import os
import select
import signal
import sys
from time import monotonic

from pydist import _C
from pydist._launch.fold import Fold, NEVER, Prefix
from pydist._launch.report import Report
from pydist._launch.sink import Nowhere, Sink
from pydist._launch.stream import Stream
from pydist._launch.worker import Worker, worker_argv, worker_env

GRACE_KILL = 5.0  # s after SIGKILL after which a process counts as one that cannot be killed
SILENCE = 1.0  # s between two checks for ranks from which the control server hears nothing
QUEUE_MAX = 1 << 20  # most bytes that wait for a slow reader; beyond, the workers' pipes fill up
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Job:
    report_of = Report
    grace = 1.0  # s for survivors of a dead rank to raise PeerFailed before SIGTERM
    grace_signal = 2.0  # s for workers to end after a forwarded SIGINT, SIGTERM or SIGHUP
    grace_term = 0.5  # s between SIGTERM and SIGKILL

    def __init__(self, plan):
        self.plan = plan
        self.report = self.report_of(plan, self.say)
        self.lifeline = 0 if plan.by_ssh else None  # the descriptor whose end is the job's end
        self.workers = self.report.workers
        self.signal = None  # the signal that ends the job
        self.looked = monotonic()
        self.patience = next(float(value) for name, value, _ in _C.flags() if name == "PYDIST_SILENT")
        self.ends = []  # (time, signal for all sessions), in order
        self.give_up = None  # when to stop to wait for processes that SIGKILL does not end
        self.server = self.guard = self.guard_fd = None
        while (devnull := os.open(os.devnull, os.O_RDWR)) <= 2:  # from here on, descriptors 0, 1 and 2 exist
            pass
        self.devnull = devnull
        same = os.path.samestat(os.fstat(1), os.fstat(2))
        self.out = Sink(1)
        self.err = self.out if same else Sink(2)
        self.sinks = (self.out,) if same else (self.out, self.err)
        self.folds = tuple(self.fold_of(sink, number) for number, sink in ((1, self.out), (2, self.err)))

    def fold_of(self, sink, number):
        """The fold for stdout (1) or stderr (2) of all ranks, on their way to a sink."""
        plan = self.plan
        slots = plan.slots or (plan.local,) * plan.hosts
        names = self.host_names()
        places = [(names[host], local) for host, count in enumerate(slots) for local in range(count)]
        coloured = plan.color == "always" or plan.color == "auto" and sink.terminal and not os.environ.get("NO_COLOR")
        prefix = Prefix() if plan.by_ssh else Prefix(plan.prefix, plan.role, places, coloured)
        return Fold(sink, prefix, number == 2, plan.fold, plan.progress_every, bool(plan.by_ssh))

    def host_names(self):
        """The hosts' names. Only this host's own name is known here."""
        return [os.uname().nodename if host == self.plan.host else f"host{host}" for host in range(self.plan.hosts)]

    def say(self, text):
        if text:
            if self.plan.by_ssh:
                text = text.replace("pydist.run: ", f"pydist.run: {self.plan.by_ssh}: ", 1)
            self.flush_folds()
            self.err.lines(text.rstrip("\n").encode("utf-8", "replace") + b"\n")

    def flush_folds(self):
        for fold in self.folds:
            fold.flush()

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
            if not self.start():
                return 127
            self.loop()
            self.wait_for_other_hosts()
            code = self.report.write(self.signal)
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
        """Starts host 0's server and all workers. Returns False if one cannot be started."""
        try:
            control, secrets = self.serve()
        except (OSError, RuntimeError, MemoryError) as error:
            self.say(f"pydist.run: cannot start the control server: {error}")
            self.write_out()
            return False
        return self.start_workers(control, secrets)

    def serve(self):
        """(the control server's address, descriptors with its secret). On host 0 the server is here, behind a unix
        socket."""
        plan = self.plan
        where = at(plan.address, plan.port)
        if plan.insecure:
            os.environ["PYDIST_INSECURE"] = "1"  # for our server and for the workers
        secret = secret_from(self.lifeline) if plan.by_ssh else None
        if plan.host > 0:
            return where, (descriptor_with(secret),) if secret else ()
        listen = at(listening_address(plan.address), plan.port) if plan.hosts > 1 else None
        self.server = self.report.server = _C.ControlServer(plan.world, listen, secret)
        return self.server.address, (self.server.secret_fd,)

    def start_workers(self, control, secrets):
        plan, one = self.plan, self.plan.world == 1
        stdin = 0 if one and not plan.by_ssh else self.devnull
        argv = worker_argv(plan)
        columns = max(0, self.err.columns() - self.folds[1].prefix.columns(plan.world))
        env = worker_env(plan, control, secrets[0] if secrets else -1, columns)
        files = plan.tee + plan.redirects
        merged = one and self.out is self.err and not any(files)  # one pipe for both streams keeps the order of writes
        for local in range(plan.local):
            rank, ends, logs = plan.first + local, [], []  # (read end, write end); the pipe of stderr comes first
            try:
                for number in (1, 2):
                    logs.append(self.log_file(local, number))
                for _ in range(1 if merged else 2):
                    ends += os.pipe()
                pid = _C.spawn(argv, env(local), stdin, ends[-1], ends[1], secrets)
            except (OSError, MemoryError) as error:
                for fd in [*ends, *(log for log in logs if log is not None)]:
                    os.close(fd)
                self.say(f"pydist.run: cannot start rank {rank}: {error}")
                self.write_out()
                return False
            os.write(self.guard_fd, pid.to_bytes(4, sys.byteorder))
            for read, write in zip(ends[::2], ends[1::2]):
                os.close(write)
                os.set_blocking(read, False)
            out, err = (self.way_of(rank, local, number) for number in (1, 2))
            out = Stream(rank, None if merged else ends[2], *out, False, logs[0])
            self.workers.append(Worker(rank, pid, out, Stream(rank, ends[0], *err, True, logs[1])))
        return True

    def way_of(self, rank, local, number):
        """The (sink, lane) of a rank's stdout (1) or stderr (2)."""
        hidden = self.plan.shown is not None and rank not in self.plan.shown
        if hidden or self.into_files(self.plan.redirects, local, number):
            return Nowhere(), Nowhere()
        return (self.out, self.err)[number - 1], None if self.plan.world == 1 else self.folds[number - 1].lane(rank)

    @staticmethod
    def into_files(chosen, local, number):
        return bool(chosen and chosen[local] & number)

    def log_file(self, local, number):
        """A descriptor of the log file for this rank's stdout (1) or stderr (2); None: no file."""
        plan = self.plan
        if not (self.into_files(plan.tee, local, number) or self.into_files(plan.redirects, local, number)):
            return None
        folder = os.path.join(plan.log_dir, plan.run_id, f"attempt_{plan.restart}", str(local))
        os.makedirs(folder, exist_ok=True)
        name = os.path.join(folder, ("stdout.log", "stderr.log")[number - 1])
        return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)

    @property
    def sessions(self):
        return [worker.pid for worker in self.workers]

    @property
    def streams(self):
        return [stream for worker in self.workers for stream in (worker.out, worker.err)]

    def end_all(self):
        """Kills all processes that are left, whatever happened before."""
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
        """Runs until all workers, and all processes in their sessions, have ended."""
        orphans = False
        while self.give_up is None or monotonic() < self.give_up:
            now = monotonic()
            running = [worker for worker in self.workers if worker.code is None]
            if not running:
                self.report.judge(last=True)
                if not _C.session_kill(self.sessions, 0):
                    return
                if not orphans:
                    orphans = True
                    self.end_by(now)
            while self.ends and self.ends[0][0] <= now:
                sig = self.ends.pop(0)[1]
                for worker in running:
                    worker.told_to_end = sig
                self.send(sig)
                if sig == signal.SIGKILL:
                    self.give_up = now + GRACE_KILL
            self.end_silent(running)
            self.end_stopped(running)
            self.wait(0.01 if orphans else SILENCE)

    def end_silent(self, running):
        """Ends ranks that have stopped: the others count them as dead, and they would keep the job from ending."""
        for worker in running if self.server else ():
            if self.server.silent(worker.rank) and not worker.silent:
                worker.silent = True
                _C.session_kill([worker.pid], signal.SIGKILL)

    def end_stopped(self, running):
        """Ends stopped ranks that have not joined yet: the server hears nothing from those, and the others would wait
        for minutes."""
        now = monotonic()
        if self.patience <= 0 or self.plan.world == 1 or now - self.looked < SILENCE:
            return
        slept, self.looked = now - self.looked > 3 * SILENCE, now  # this launcher itself was stopped
        for worker in running:
            if not worker.is_stopped():
                worker.stopped = None
            elif worker.stopped is None or slept:
                worker.stopped = now
            elif now - worker.stopped >= self.patience + SILENCE and not worker.silent:
                worker.silent = True
                if self.server:
                    self.server.dead(worker.rank, f"is stopped (process {worker.pid}: SIGSTOP or Ctrl-Z)")
                _C.session_kill([worker.pid], signal.SIGKILL)

    def ending(self):
        return self.signal or (self.report.failed and self.plan.on_failure == "stop")

    def wait_for_other_hosts(self):
        """Waits until the ranks of other hosts, which need our server, have left. A failure or a signal ends the
        wait."""
        if self.plan.hosts == 1 or not self.server:
            return
        while not self.ending():
            try:
                return self.server.drain(0.1)
            except _C.CommTimeout:
                self.wait(0.01)

    def send(self, sig):
        _C.session_kill(self.sessions, sig)

    def end_by(self, when):
        self.ends = [(when, signal.SIGTERM), (when + self.grace_term, signal.SIGKILL)]

    def wait(self, at_most):
        """Sleeps until something happens, and handles it."""
        poller = select.poll()
        poller.register(self.wake, select.POLLIN)
        if self.lifeline is not None:
            poller.register(self.lifeline, select.POLLIN)
        streams, readable = self.streams, {}
        if not any(len(sink.queue) > QUEUE_MAX for sink in self.sinks):
            readable = {stream.fd: stream for stream in streams if stream.fd is not None and not stream.is_paused}
        for fd in readable:
            poller.register(fd, select.POLLIN)
        for sink in self.sinks:
            if sink.queue:
                poller.register(sink.fd, select.POLLOUT)
        held = [] if self.ends or self.ending() else [worker.err for worker in self.workers if worker.err.held]
        times = [stream.due for stream in held] + [when for when, _ in self.ends[:1]]
        times += [self.give_up] if self.give_up else []
        resting = [stream for stream in streams if stream.rest_due is not None]
        times += [stream.rest_due for stream in resting]
        times += [due for due in (fold.next() for fold in self.folds) if due < NEVER]
        times += [sink.draw_due for sink in self.sinks if sink.draw_due < NEVER and not sink.queue]
        now = monotonic()
        times += [now + at_most] if at_most else []
        events = poller.poll(max(0.0, min(times) - now) * 1000 + 1 if times else None)
        woken = False
        for fd, _ in events:
            if fd == self.wake:
                woken = True
            elif fd == self.lifeline:
                self.hear()
            elif fd in readable:
                readable[fd].read()
        for stream in held:
            if stream.held and stream.due <= monotonic():
                stream.release()
        now = monotonic()
        for stream in resting:
            if stream.rest_due is not None and stream.rest_due <= now:
                stream.settle()
        if woken:
            for sig in os.read(self.wake, 4096):
                if sig != signal.SIGCHLD:
                    self.interrupt(sig)
            self.bury([worker for worker in self.workers if worker.look()])
        self.show()

    def show(self):
        """Lets lines go out that have waited long enough, and writes as much as our readers take."""
        now = monotonic()
        for fold in self.folds:
            fold.run(now)
        for sink in self.sinks:
            if sink.draw_due <= now and not sink.queue:
                sink.draw()
            sink.flush()

    def hear(self):
        """--hosts forwards signals as bytes. If it, or the way to it, is gone, the job ends."""
        try:
            heard = os.read(self.lifeline, 64)
        except OSError:
            heard = b""
        if not heard:
            self.lifeline = None
        for sig in heard or bytes([signal.SIGHUP]):
            self.interrupt(sig)

    def bury(self, ended):
        """Handles the end of a worker. The first failure ends the job."""
        for worker in (
            ended if self.server else ()
        ):  # the server does not count a rank as dead that has left in good order
            self.server.dead(worker.rank, worker.cause + ("\n" + worker.trace if worker.trace else ""))
        self.report.last = ended[-1] if ended else self.report.last
        bad = [worker for worker in ended if worker.code and not worker.told_to_end]
        if not bad or self.signal:
            return
        if not self.report.failed and self.plan.on_failure == "stop":
            self.end_by(monotonic() + self.grace)
        self.report.failed += bad
        self.report.judge()

    def interrupt(self, sig):
        """Forwards Ctrl-C and similar signals once. The second time, or if the job ends anyway, there is no grace
        period."""
        now = monotonic()
        self.flush_folds()
        if self.signal or self.ends:
            self.ends = [(now, signal.SIGKILL)]
        else:
            self.end_by(now + self.grace_signal)
            self.send(sig)
        self.signal = self.signal or sig

    def write_out(self):
        """Waits until the reader has taken our output, as any program does, or until a signal."""
        for stream in self.streams:
            stream.drain()
            stream.flush()
        self.flush_folds()
        for sink in self.sinks:
            if sink.rows:
                sink.draw()
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


def at(address, port):
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def listening_address(name):
    """Where host 0 listens. If a name means loopback here (127.0.1.1 in /etc/hosts), other hosts have another address
    for it; then host 0 listens on all addresses."""
    import _socket  # importing socket would take 4 ms

    try:
        address = _socket.getaddrinfo(name, None)[0][4][0]
    except OSError:
        return name  # the server reports what is wrong
    loopback = address.startswith("127.") or address == "::1"
    return "0.0.0.0" if loopback and name not in (address, "localhost") else name


def secret_from(fd):
    """The secret in the first line from a descriptor."""
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(fd, 1)
        if not data or len(line) > 256:
            raise OSError("got no secret on standard input (expected --by-ssh only from a launcher with --hosts)")
        line += data
    return bytes.fromhex(line.decode())


def descriptor_with(secret):
    fd = os.memfd_create("pydist-secret")
    os.write(fd, secret)
    return fd
