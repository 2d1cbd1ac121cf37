"""The agent: one for each worker process. It sends calls, answers those of others, and knows who is there.

Who does what. Messages come and go through pipes (`_C.Pipes`, csrc/comm/pipe), which have no threads. The pool's threads
take the next message of anybody; at least one of them is always ready to do so, since a thread that begins to run a
call starts another one if it is the last. A thread that waits for an answer reads the messages of that worker itself,
which saves a change of threads. What must happen in the order in which a worker has sent its messages (counting
references) is done before the worker's next message may be taken (`resume`); a call then runs in any order.

Nothing is sent by a thread that has a worker's turn, as two workers that wait for each other's full sockets would wait
for ever. What has to be sent goes to the outbox, which keeps its order, and leaves after the turn.
"""

import collections
import contextlib
import functools
import logging
import os
import re
import struct
import threading
import time

from pydist import _C
from pydist.distributed.rpc import _pickling, _report
from pydist.distributed.rpc._errors import RpcTimeout, pack_error, shown, unpack_error
from pydist.futures import Future

__all__ = ["Agent", "WorkerInfo", "current"]

# kinds of messages
CALL, REQUEST, REMOTE, ANSWER, ERROR, DROP, FORK, FORK_OK, CHILD_OK, DELETE, FLUSHED, FETCH = range(1, 13)
OPCALL, OPRESULT = 13, 14  # a call of an op, which the callee's pipes run without Python; if they could not answer it
GONE = 0xFF00  # the pipes' own: a worker is gone

_HEAD = struct.Struct("<QQHH")  # autograd's context and message; flags of tensors, references
_PLAIN = bytes(_HEAD.size)  # neither gradients nor references nor a pickle
_ID = struct.Struct("<Q")
_REFERENCE = struct.Struct("<IQQ")  # owner, id, fork (0: none, it goes to the owner)
_REMOTE = 1 << 47  # in the number of a remote(): the rest is the value's number, and the next one is its first copy's
_SLICE = 0.05  # seconds that a wait for one worker lasts, before it looks for signals and time limits
_STUCK = 0.5  # seconds that a function of the program may go on when the agent ends
_IDLE = 1.0  # seconds that an idle thread sleeps at most, before it looks for calls whose time is over
_SPARE = 256  # threads beyond 16 times num_worker_threads, for calls that wait

_Op = type(_C.add)  # the class of the engine's functions
_agent = None
_here = threading.local()  # .pool: this thread belongs to an agent's pool; .counted: it runs a call that counts


def check_name(name):
    """Raises an error unless `name` can be a worker's."""
    if not isinstance(name, str):
        raise TypeError(f"rpc: the worker's name is {name!r} (expected a str)")
    if not name:
        raise RuntimeError("Worker name must be non-empty (expected a name)")
    if len(name) >= 128:
        raise RuntimeError(f"Worker name must be shorter than 128 characters; got {len(name)} (expected fewer)")
    if not re.fullmatch(r"[A-Za-z0-9\-_:]*", name) or name.isdigit():
        raise RuntimeError(
            f"Worker name must match ^[A-Za-z0-9-_:]*$ and be no number; got {name!r} (expected such a name)"
        )


class WorkerInfo:
    """A worker's name and id (its rank)."""

    __slots__ = ("id", "name")

    def __init__(self, name, id):
        check_name(name)
        self.name, self.id = name, id

    def __repr__(self):
        return f"WorkerInfo(id={self.id}, name={self.name})"

    def __eq__(self, other):
        return isinstance(other, WorkerInfo) and (self.id, self.name) == (other.id, other.name)

    def __hash__(self):
        return hash((self.id, self.name))

    def __reduce__(self):
        return WorkerInfo, (self.name, self.id)


def current():
    """This process's agent. Raises RuntimeError if there is none."""
    if _agent is None:
        raise RuntimeError(
            "RPC has not been initialized. Call torch.distributed.rpc.init_rpc first. (expected init_rpc)"
        )
    if _agent.pid != os.getpid():
        raise RuntimeError(
            f"rpc: this process was forked from worker {_agent.me.name} and has no agent (expected init_rpc in the child)"
        )
    return _agent


def is_current():
    """Whether this process has an agent."""
    return _agent is not None and _agent.pid == os.getpid()


def set_current(agent):
    """Makes it the process's agent; None: there is none any more."""
    global _agent
    _agent = agent


class Answer(Future):
    """The future of a call. Who waits for it reads what the callee sends."""

    _comes = True

    def __init__(self, agent, to, number, what, limit):
        super().__init__()
        self.agent, self.to, self.number, self.what, self.limit = agent, to, number, what, limit
        self.since = time.monotonic()
        self.until = self.since + limit if limit else None
        self.waiter = None  # the thread that waits for it
        self.span = None  # a _spans.Span, if the call is profiled
        self._drive = self._read

    def _read(self):
        self.agent.wait_for(self)

    def left(self):
        """Seconds until its time is over."""
        return self.until - time.monotonic() if self.until else 1e9


Run = collections.namedtuple("Run", "what since sender number")  # a call that a thread runs


class _Job:
    """A call that has arrived and does not run yet."""

    __slots__ = ("kind", "sender", "number", "data", "tensors", "references", "context", "reference", "record")

    def __init__(self, kind, sender, number, data, tensors, references, context, reference=None):
        self.kind, self.sender, self.number, self.data = kind, sender, number, data
        self.tensors, self.references, self.context, self.reference = tensors, references, context, reference
        self.record = None  # a _spans.Record, if the caller wants one


def _autograd():
    from pydist.distributed.autograd import _messages

    return _messages


class Agent:
    """A worker's agent. `pipes`, `workers`: by id, and the options come from init_rpc. members: in an open world, where
    workers come and go, what finds those that have come (_open.Members)."""

    def __init__(self, me, workers, pipes, options, members=None):
        from pydist.distributed.rpc.references import References

        self.me, self.rank, self.pipes, self.options = me, me.id, pipes, options
        self.members = members
        self.workers = {worker.id: worker for worker in workers} if members is None else members.by_id
        self.names = {worker.name: worker for worker in workers} if members is None else members.by_name
        self.pid, self.timeout = os.getpid(), options.rpc_timeout
        self.lock = threading.Lock()
        self.answers = {}  # number -> Answer
        self.sequence = 0
        self.todo = collections.deque()  # jobs that wait for a thread
        self.dropped = set()  # (sender, number) of calls that were given up before they started
        self.outbox, self.outbox_lock = collections.deque(), threading.Lock()
        self.threads, self.idle, self.running = set(), 0, 0
        self.runs = {}  # thread -> Run
        self.alarm = 0.0  # when an idle thread looks at time limits next
        self.gone = {}  # rank -> the error that its calls get
        self.counts = collections.Counter()
        self.gil_profiling = False
        self.closing = False
        self.leaving, self.on_gone = [], []  # callbacks: at shutdown; (rank) after a worker has gone
        self.references = References(self)

    def start(self):
        """Lets others call this worker."""
        _C._report_also(functools.partial(_report.text, self))
        if not self._spawn():
            raise RuntimeError("rpc: this process cannot start a thread (expected the machine to have room for one)")

    # ---- names with which PyTorch's programs look at an agent -----------------------------------------------------------

    def get_worker_infos(self):
        """The WorkerInfos of all workers, by id."""
        if self.members is not None:
            self.members.look()
        return [self.workers[i] for i in sorted(self.workers)]

    def get_worker_info(self, name=None):
        """The WorkerInfo of that name; None: of this worker."""
        return self.me if name is None else self.worker(name)

    def get_debug_info(self):
        """Counts as strings, with PyTorch's names."""
        info = {
            "agent.thread_pool_size": self._limit(),
            "agent.num_idle_threads": self.idle,
            "agent.num_pending_requests": len(self.answers),
            "agent.server_active_calls": self.running,
            "agent.client_active_calls": len(self.answers),
            "agent.server_active_async_calls": self.counts["async_calls"],
        }
        if self.gil_profiling:
            info["agent.gil_average_wait_time_us"] = _gil_wait() * 1e6
        return {name: str(value) for name, value in info.items()}

    # ---- numbers and names -------------------------------------------------------------------------------------------

    def unique(self):
        """A number that no worker of this world uses for anything else."""
        with self.lock:
            self.sequence += 1
            return self.rank << 48 | self.sequence

    def _count(self, what, n=1):
        with self.lock:
            self.counts[what] += n

    def worker(self, to):
        """The WorkerInfo of a name, an id or a WorkerInfo."""
        if isinstance(to, WorkerInfo):
            found = self.workers.get(to.id)
            return found if found == to else self._unknown(to)
        if isinstance(to, str):
            found = self.names.get(to) if self.members is None else self.members.named(to)
            return found or self._unknown(to)
        if isinstance(to, int) and not isinstance(to, bool):
            return self.workers.get(to) or self._unknown(to)
        raise ValueError(f"Cannot get WorkerInfo from name {to} (expected a name, an id or a WorkerInfo)")

    def _unknown(self, to):
        raise RuntimeError(
            f"Unknown destination worker: could not find destination {to} (expected one of {', '.join(sorted(self.names))})"
        )

    def _device_of(self, worker):
        """For a message to this worker: where each tensor on a GPU goes."""
        device_map = getattr(self.options, "device_maps", {}).get(worker.name, {})

        def device_of(tensor):
            if worker.id == self.rank:
                return tensor.device
            found = device_map.get(tensor.device)
            if found is None:
                raise RuntimeError(
                    f"TensorPipe RPC backend only supports CPU tensors by default, please move your tensors to CPU before "
                    f"sending them over RPC, or call `set_device_map` on `TensorPipeRpcBackendOptions` to explicitly "
                    f"configure device mapping. Request to worker {worker.name} has a tensor on {tensor.device} (expected "
                    f"a map of that device)"
                )
            return found

        return device_of

    # ---- sending -----------------------------------------------------------------------------------------------------

    def call(self, to, func, args=(), kwargs=None, timeout=None, kind=CALL, reference=None, wait=False, span=None):
        """Sends a call and returns its Answer. kind REMOTE: `reference` (references.Used) gets the value. wait: the
        caller will wait for it, so this thread reads what comes from there right away. span: the call is profiled."""
        worker = to if isinstance(to, WorkerInfo) else self.worker(to)
        limit = self.timeout if timeout is None else timeout
        what = getattr(func, "__qualname__", None) or getattr(func, "__name__", None) or type(func).__name__
        plain = kind == CALL and type(func) is _Op and worker.id != self.rank and span is None
        packed = _C._op_pack(func, args, kwargs) if plain else None
        if packed is None:
            asked = (span.asked(),) if span is not None else ()
            payload = _pickling.dumps_call((func, args, kwargs, *asked), _reference_type(), self._device_of(worker))

        def send(number, wait):
            if packed is not None:
                return self._deliver(worker.id, OPCALL, number, *packed, False, wait, limit)
            return self._post(worker.id, kind, number, payload, reference=reference, wait=wait, limit=limit)

        counted = int(packed is None and kind != REQUEST)  # by shutdown: who runs it counts it, too
        number = reference.id | _REMOTE if kind == REMOTE else self.unique()
        return self._ask(worker, number, what, limit, counted, wait, send, span)

    def in_context(self):
        """Whether this thread records what it sends, for distributed autograd."""
        return bool(_autograd().current())

    def fetch(self, state, timeout):
        """Asks the owner of a reference for its value. Not in an autograd context."""
        limit = self.timeout if timeout is None else timeout

        def send(number, wait):
            return self._deliver(state.owner, FETCH, number, _ID.pack(state.id), [], False, wait, limit)

        return self._ask(self.workers[state.owner], self.unique(), "to_here", limit, 1, True, send)

    def _ask(self, worker, number, what, limit, counted, wait, send, span=None):
        """The Answer of the call that send(number, seconds to wait) sends."""
        answer = Answer(self, worker.id, number, what, limit)
        answer.span = span
        self.answers[answer.number] = answer
        error = self.gone.get(worker.id)
        if error is None and self.closing:
            error = RuntimeError("rpc: the agent is shutting down (expected calls before shutdown)")
        if error is not None:
            return self._fail(answer, error)
        if counted:
            self._count("calls")
        if limit and answer.until < self.alarm - _SLICE:
            self.alarm = 0.0
            self.pipes.wake()
        try:
            mails = send(answer.number, min(_SLICE, limit or _SLICE) if wait else None)
        except BaseException as error:  # it was not sent
            self._count("calls", -counted)
            if isinstance(error, _C.PeerFailed):
                return self._fail(answer, error)
            if isinstance(error, _C.CommTimeout) and answer.left() <= 0:
                self._expire(answer)
                return answer
            self.answers.pop(answer.number, None)
            raise
        if mails:
            self._sort_aside(mails)
        return answer

    def request(self, to, function, *args):
        """Runs a function of the package at a worker, at once and outside of any autograd context."""
        return self.call(self.workers[to], function, args, timeout=0, kind=REQUEST)

    def _fail(self, answer, error):
        self._complete(answer.number, None, error)
        return answer

    def _complete(self, number, value, error):
        answer = self.answers.pop(number, None)
        if answer is None:
            self._count("late_answers")
            return
        if answer.span is not None:
            value = answer.span.end(value)
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(value)

    def _post(self, to, kind, number, payload, given=False, reference=None, wait=None, limit=0):
        """Sends a message that a user's call has made. wait: reads the next message from there, for so many seconds at most,
        and returns it."""
        data, tensors, references = payload
        del payload
        context, message, flags = 0, 0, ()
        if kind != REQUEST:
            found = _autograd().outgoing(tensors, to) if _autograd().current() else None
            if found is not None:
                context, message, flags = found
        if to == self.rank:
            host = all(tensor.device.type == "cpu" for tensor in tensors)
            tensors = self.pipes.copy(tensors) if host else [tensor.detach().clone() for tensor in tensors]
            self._arrive(kind, number, data, tensors, references, (context, message, flags), reference)
            return None
        rows = self.references.lend(references, to)
        head = _HEAD.pack(context, message, len(flags), len(rows)) + bytes(flags)
        if kind == REMOTE:
            rows.insert(0, (to, reference.id, reference.fork))
            head = _HEAD.pack(context, message, len(flags), len(rows)) + bytes(flags)
        head += b"".join(_REFERENCE.pack(*row) for row in rows)
        try:
            return self._deliver(to, kind, number, head + data, tensors, given, wait, limit)
        except BaseException:
            self.references.take_back(rows)
            if context:
                _autograd().undo(context, message)
            raise

    def _deliver(self, to, kind, number, data, tensors, given, wait, limit):
        if self.members is not None:
            self.workers[to]  # it must have been met
        if wait is None:
            return self.pipes.send(to, kind, number, data, tensors, given, limit)
        return self.pipes.exchange(to, kind, number, data, tensors, given, limit, wait)

    def put(self, to, kind, data, number=0):
        """Puts a message of the protocol into the outbox."""
        self.outbox.append((to, kind, number, data))

    def flush(self):
        """Sends what is in the outbox, in order. If another thread does so, it is left to that one: a thread that waited
        for it would not read."""
        while self.outbox and self.outbox_lock.acquire(blocking=False):
            try:
                while self.outbox:
                    to, kind, number, data = self.outbox.popleft()
                    if to in self.workers:
                        self._send_surely(to, kind, number, data)
            finally:
                self.outbox_lock.release()

    def _send_surely(self, to, kind, number, data):
        """Once more if there was no memory or the connection broke, since others count on it; a DROP only helps, and waits
        for nobody. Raises nothing."""
        failure = None
        for _ in range(3):
            if to in self.gone or self.closing:
                return
            try:
                self.pipes.send(to, kind, number, data, [], False, _SLICE if kind == DROP else 0)
                return
            except _C.PeerFailed:
                return
            except Exception as error:
                failure = error
                if kind == DROP:
                    return
        logging.getLogger("pydist.rpc").error("rpc: a message of %s is lost", self.me.name, exc_info=failure)

    # ---- receiving ---------------------------------------------------------------------------------------------------

    def _sort(self, mail):
        """Does what must happen in order, and then the rest. Returns a job that is to be run, or None."""
        sender, kind, number, data, tensors = mail
        del mail
        if kind == ANSWER and data == _PLAIN and len(tensors) == 1:
            self._complete(number, tensors[0], None)
            return None
        if kind == GONE:
            self._mark_gone(sender, data.decode(errors="replace"))
            return None
        if not isinstance(data, bytes):
            if kind < OPCALL:
                self.pipes.resume(sender)
            return self._lose(sender, kind, number, data)
        if kind >= OPCALL:  # it has met this thread and not the pipes' own, or they could not answer it
            return _Job(kind, sender, number, data, tensors, (), 0)
        try:
            if kind <= ERROR:
                found = self._open(sender, kind, number, data, tensors)
            elif kind == FETCH:
                found = _Job(kind, sender, number, b"", (), (), 0, self.references.entry(*_ID.unpack(data)))
                self._count("handled")
            else:
                found = None
                self._control(sender, kind, number, data)
        except Exception as failure:
            found, kind = self._lose(sender, kind, number, failure), CALL
        finally:
            self.pipes.resume(sender)
        if found is None or kind <= REMOTE or kind == FETCH:
            return found
        self._take_answer(kind, number, *found)
        return None

    def _lose(self, sender, kind, number, error):
        """A message could not be taken, or makes no sense to this worker, which lives on: who waits for it hears of it."""
        if kind in (ANSWER, ERROR):
            self._complete(number, None, error)
        elif kind in (CALL, REQUEST, REMOTE, FETCH, OPCALL):
            if kind in (CALL, REMOTE, FETCH):
                self._count("handled")
            if kind == REMOTE:  # others may have the reference, and wait
                value = number ^ _REMOTE
                self.references.create(value, value + 1, sender).future.set_exception(error)
            return _Job(CALL if kind in (REMOTE, FETCH) else kind, sender, number, error, (), (), 0)
        else:
            logging.getLogger("pydist.rpc").error("rpc: a message to %s is lost", self.me.name, exc_info=error)
        return None

    def _sort_all(self, mails):
        """The same for messages that came together: all but the last are plain answers."""
        for mail in mails[:-1]:
            try:
                self._sort(mail)
            except Exception:  # the program has set the future itself
                logging.getLogger("pydist.rpc").exception("rpc: an answer to %s was not taken", self.me.name)
        return self._sort(mails.pop())

    def _sort_aside(self, mails):
        """The same in a thread that does not run jobs."""
        job = self._sort_all(mails)
        if job is not None:
            self._queue(job)
        elif self.outbox:
            self.pipes.wake()

    def _queue(self, job):
        """Leaves a job to another thread."""
        with self.lock:
            self.todo.append(job)
        self.pipes.wake()

    def _open(self, sender, kind, number, data, tensors):
        context, message, nflags, nrows = _HEAD.unpack_from(data)
        at = _HEAD.size
        flags = data[at : at + nflags]
        at += nflags
        rows = [_REFERENCE.unpack_from(data, at + i * _REFERENCE.size) for i in range(nrows)]
        body = data[at + nrows * _REFERENCE.size :]
        reference = None
        if kind == REMOTE:
            reference = self.references.create(rows[0][1], rows[0][2], sender)
            rows = rows[1:]
        try:
            references = self.references.receive(rows, sender) if rows else []
            if context:
                tensors = _autograd().incoming(context, message, tensors, flags, sender)
        except Exception as failure:
            if reference is not None:
                reference.future.set_exception(failure)
            raise
        if kind <= REMOTE:
            if kind != REQUEST:
                self._count("handled")
            return _Job(kind, sender, number, body, tensors, references, context, reference)
        return body, tensors, references

    def _arrive(self, kind, number, data, tensors, references, autograd, reference):
        """A message to oneself."""
        context, message, flags = autograd
        if context:
            tensors = _autograd().incoming(context, message, tensors, flags, self.rank)
        if kind <= REMOTE:
            if kind != REQUEST:
                self._count("handled")
            self._queue(_Job(kind, self.rank, number, data, tensors, references, context, reference))
        else:
            self._take_answer(kind, number, data, tensors, references)

    def _take_answer(self, kind, number, body, tensors, references):
        value = error = None
        try:
            value = _pickling.loads(body, tensors, references)
            if kind == ERROR:
                error = unpack_error(*value)
        except Exception as failure:
            error = failure
        self._complete(number, value, error)

    def _control(self, sender, kind, number, data):
        if kind == DROP:
            with self.lock:
                if any(job.sender == sender and job.number == number for job in self.todo):
                    self.dropped.add((sender, number))
        elif kind in (FORK, FORK_OK, CHILD_OK, DELETE, FLUSHED):
            self.references.control(sender, kind, data)

    # ---- waiting -----------------------------------------------------------------------------------------------------

    def wait_for(self, answer):
        """Waits until a call is answered or its time is over."""
        answer.waiter = threading.get_ident()
        try:
            with self.blocked():
                while not answer._done:
                    left = answer.left()
                    if left <= 0:
                        return self._expire(answer)
                    mails = self.pipes.receive_from(answer.to, min(left, _SLICE)) if answer.to != self.rank else False
                    if mails is False:
                        with answer._changed:
                            if not answer._done:
                                answer._changed.wait(min(left, _SLICE))
                    elif mails:
                        self._sort_aside(mails)
            self.pipes.nudge()
        except BaseException as error:
            if not answer._done:  # Ctrl-C, or the agent has shut down
                self._give_up(answer, error)
            raise

    @contextlib.contextmanager
    def blocked(self):
        """This thread waits: its call does not count among those that run."""
        counted = getattr(_here, "counted", None) is self
        if counted:
            with self.lock:
                self.running -= 1
            _here.counted = None
            if self.todo:
                self.pipes.wake()
        try:
            yield
        finally:
            if counted:
                with self.lock:
                    self.running += 1
                _here.counted = self

    def _give_up(self, answer, error):
        if self.answers.pop(answer.number, None) is None:
            return
        if answer.span is not None:
            answer.span.end(None)
        if answer.to != self.rank and not self.closing:
            self.put(answer.to, DROP, b"", answer.number)
            with contextlib.suppress(Exception):
                self.pipes.wake()
        if not answer._done:
            answer.set_exception(
                error if isinstance(error, Exception) else RuntimeError(f"rpc: {error!r} ended the wait")
            )

    def _expire(self, answer):
        worker = self.workers[answer.to]
        self._give_up(
            answer,
            RpcTimeout(
                f"RPC ran for more than set timeout ({round(answer.limit * 1000)} ms) and will now be marked with an error: "
                f"{answer.what} at {worker.name} (rank {worker.id}), called by {self.me.name}; that worker is alive "
                f"(expected an answer within {answer.limit:g} s)"
            ),
        )

    def _look_at_limits(self):
        now = time.monotonic()
        if now < self.alarm:
            return self.alarm - now
        with self.lock:
            late = [answer for answer in list(self.answers.values()) if answer.until and answer.until <= now]
            soon = min((a.until for a in list(self.answers.values()) if a.until and a.until > now), default=now + _IDLE)
            self.alarm = min(soon, now + _IDLE)
        for answer in late:
            self._expire(answer)
        return max(self.alarm - now, 0.0)

    # ---- the pool ----------------------------------------------------------------------------------------------------

    def _spawn(self):
        with self.lock:
            if self.closing or len(self.threads) >= 16 * self._limit() + _SPARE:
                return False
            thread = threading.Thread(target=self._serve, name=f"pydist rpc {self.me.name}")
            self.threads.add(thread)
            self.idle += 1  # it will be in a moment; else several would be started in its place
        try:
            thread.start()
        except RuntimeError:  # the machine has no more
            with self.lock:
                self.threads.discard(thread)
                self.idle -= 1
            return False
        return True

    def _limit(self):
        return getattr(self.options, "num_worker_threads", 16)

    def _serve(self):
        """What a thread of the pool does all its life. It ends where calls that waited have left more than are needed."""
        _here.pool = self
        while not self.closing:
            try:
                if not self._serve_once() and self._is_spare():
                    return
            except Exception:
                if not self.closing:  # the pool lives on
                    logging.getLogger("pydist.rpc").exception("rpc: a message to %s made no sense", self.me.name)
                    time.sleep(_SLICE)
        with self.lock:
            self.idle -= 1
            self.threads.discard(threading.current_thread())

    def _is_spare(self):
        with self.lock:
            spare = self.idle > self._limit() and not (self.todo or self.outbox or self.closing)
            if spare:
                self.idle -= 1
                self.threads.discard(threading.current_thread())
            return spare

    def _serve_once(self):
        """False: nothing has come."""
        job = self._take_job()
        if job is None:
            mails = self.pipes.receive(self._look_at_limits())
            job = self._sort_all(mails) if mails else None
            if job is not None and not self._may_run(job):
                with self.lock:
                    self.todo.append(job)
                job = None
        if job is None and not self.outbox:
            return bool(mails)
        room = self._leave_idle()
        try:
            self.flush()
            if job is not None and not room and job.kind in (CALL, REMOTE):
                job = self._refuse(job)
            if job is not None:
                self._run(job)
        finally:
            job = None
            with self.lock:
                self.idle += 1
        return True

    def _leave_idle(self):
        """False: no other thread is ready to receive, and there may be no more of them."""
        with self.lock:
            self.idle -= 1
            last = self.idle == 0
        self.pipes.nudge()
        return not last or self._spawn() or self.closing

    def _refuse(self, job):
        """Answers a call with an error, since the last thread would begin to run it, and then nobody could receive."""
        with self.lock:
            self.running -= 1
        runs, waits = list(self.runs.values()), [a for a in list(self.answers.values()) if a.waiter is not None]
        waits = [f"{answer.what} at {self.workers[answer.to].name}" for answer in waits]
        self.answer(job, [], RuntimeError(
            f"rpc: {self.me.name} has {len(self.threads)} threads, and all of them run calls ({common(run.what for run in runs)}) "
            f"or wait in them ({common(waits)}) (expected fewer calls inside of calls, or more num_worker_threads)"
        ))  # fmt: skip

    def _may_run(self, job):
        if job.kind == REQUEST:
            return True
        with self.lock:
            if self.running >= self._limit():
                return False
            self.running += 1
        return True

    def _take_job(self):
        if not self.todo:
            return None
        with self.lock:
            for i, job in enumerate(self.todo):
                if (job.sender, job.number) in self.dropped:
                    self.dropped.discard((job.sender, job.number))
                    del self.todo[i]
                    return None
                if job.kind == REQUEST or self.running < self._limit():
                    self.running += job.kind != REQUEST
                    del self.todo[i]
                    return job
        return None

    def _run(self, job):
        counts = job.kind != REQUEST
        _here.counted = self if counts else None
        me = threading.current_thread()
        try:
            self._execute(job)
        finally:
            self.runs.pop(me, None)
            _here.counted = None
            if counts:
                with self.lock:
                    self.running -= 1

    def _execute(self, job):
        """Unpickles the call, runs it, and answers."""
        if job.kind == OPRESULT:
            tensors, job.tensors = job.tensors, ()
            self._respond(job, ANSWER, (b"", tensors, []))
            return
        if job.kind == FETCH:
            job.reference.future._when_done(lambda future: self._answer_with(job, future))
            return
        context = _autograd().entered(job.context) if job.context else contextlib.nullcontext()
        value = fn = args = kwargs = None
        with context:
            try:
                if isinstance(job.data, Exception):
                    raise job.data
                if job.kind == OPCALL:
                    fn, args, kwargs = _C._op_run, (job.data, job.tensors), None
                else:
                    fn, args, kwargs, *asked = _unpickled(job)
                    if asked:
                        job.record = _record(self.rank, *asked[0])
                references, job.data, job.tensors, job.references = job.references, None, (), ()
                for reference in references:
                    self._confirm(reference)
                name = getattr(fn, "__qualname__", str(fn))
                self.runs[threading.current_thread()] = Run(name, time.monotonic(), job.sender, job.number)
                waits = _waits_for_future(fn, args)
                with job.record or contextlib.nullcontext():
                    value = fn(*args, **(kwargs or {}))
                if waits and not isinstance(value, Future):
                    raise RuntimeError(
                        f"Functions decorated with @rpc.async_function must return a torch.futures.Future object, but got "
                        f"{type(value)} (expected a Future of {getattr(fn, '__qualname__', fn)})"
                    )
            except BaseException as error:
                if type(error) is TypeError and (job.kind == OPCALL or type(fn) is _Op):
                    error = RuntimeError(
                        f"Overloaded torch operator invoked from Python failed to match any schema: {error}"
                    )
                fn = args = kwargs = None
                self.answer(job, [], error)
                return
            fn = args = kwargs = None
            if waits:
                self._count("async_calls")
                value._when_done(lambda future: self._answer_async(job, future))
                return
            holder, value = [value], None
            self.answer(job, holder, None)

    def _confirm(self, rref):
        """Waits until the owner counts this copy of a reference."""
        confirmed = getattr(rref._state, "confirmed", None)
        if confirmed is None or confirmed.is_set():
            return
        with self.blocked():
            while not confirmed.wait(_SLICE) and rref._state.owner not in self.gone and not self.closing:
                pass

    def _answer_async(self, job, future):
        self._count("async_calls", -1)
        self._answer_with(job, future)

    def _answer_with(self, job, future):
        context = _autograd().entered(job.context) if job.context else contextlib.nullcontext()
        with context:
            error = future.exception()
            self.answer(job, [] if error is not None else [future.value()], error)

    def answer(self, job, holder, error):
        """Answers a call with an error, or with the value that is taken out of the list `holder`. So nobody else has that,
        and its memory may go back."""
        value = None if error is not None else holder.pop()
        if job.kind == REMOTE:
            if error is not None:
                error = error if isinstance(error, Exception) else RuntimeError(shown(error))
                job.reference.future.set_exception(error)
            else:
                job.reference.future.set_result(value)
            value = None
        payload = None
        worker = self.workers[job.sender]
        kind = ANSWER if error is None else ERROR
        try:
            if error is None:
                value = value if job.record is None else job.record.report(value)
                payload = _pickling.dumps(value, _reference_type(), self._device_of(worker))
        except Exception as failure:
            kind, error = ERROR, failure
        del value
        if error is not None:
            payload = pack_error(self.me, error), [], []
        self._respond(job, kind, payload)

    def _respond(self, job, kind, payload):
        """Sends an answer, or an error in its place if there was no memory or the connection broke."""
        for _ in range(2):
            try:
                return self._post(job.sender, kind, job.number, payload, given=True)
            except _C.PeerFailed:
                return None
            except Exception as failure:
                kind, payload = ERROR, (pack_error(self.me, failure), [], [])

    # ---- deaths and the end ------------------------------------------------------------------------------------------

    def _mark_gone(self, rank, text):
        if self.closing:
            return
        if self.members is not None:
            self.members.look()  # so that all of them hear of it from this worker, too
        everybody = rank == self.rank
        for one in [r for r in self.workers if r != self.rank] if everybody else [rank]:
            if one in self.gone or one not in self.workers:  # in an open world: one that was refused
                continue
            lost = f"{self.workers[one].name} (rank {one}) cannot be reached any more" if everybody else None
            error = _C.PeerFailed(f"{lost or f'{self.workers[one].name} (rank {one}) is gone'}: {text}")
            error.rank = one
            self.gone[one] = error
            if self.members is not None and not everybody:  # else there is no place where others could be found
                self.members.forget(one)
            for answer in [a for a in list(self.answers.values()) if a.to == one]:
                self._fail(answer, error)
            self.references.lose(one)
            for callback in list(self.on_gone):
                callback(one)

    def close(self, timeout):
        """Ends the pool and the pipes. Calls that are under way fail; one that goes on in a program's function is left to
        itself."""
        with self.lock:
            self.closing = True
        for callback in self.leaving:
            callback()
        self.pipes.stop()
        ended = RuntimeError(f"rpc: {self.me.name} has shut down (expected calls to end before shutdown)")
        for number in list(self.answers):
            self._complete(number, None, ended)
        threads = [thread for thread in list(self.threads) if thread is not threading.current_thread()]
        until = time.monotonic() + _STUCK
        for thread in threads:
            while thread.is_alive() and (thread not in self.runs or time.monotonic() < until):
                self.pipes.wake()
                thread.join(_SLICE)
        _C._report_also(None)
        self.references.clear()
        for last in (*[False] * 200, True):  # threads of the program that wait for an answer leave in a moment
            try:
                return self.pipes.close(timeout)
            except RuntimeError as error:
                if last or type(error) is not RuntimeError:
                    raise
                time.sleep(_SLICE / 2)


def common(names):
    """The most common of them in words: "3 x f, 2 x g"."""
    return ", ".join(f"{n} x {name}" for name, n in collections.Counter(names).most_common(5)) or "none"


def _unpickled(job):
    """(function, args, kwargs, ...) of a call."""
    try:
        return _pickling.loads(job.data, job.tensors, job.references)
    except AttributeError as error:
        raise RuntimeError(
            f"{error}. Default RPC pickler does not serialize function code: ensure that functions and classes are defined "
            "on both caller and callee modules (expected the caller's here)"
        ) from error


def _waits_for_future(fn, args):
    """Whether the function answers later: it or the method that it calls is marked by async_execution."""
    marked = getattr(fn, "_is_proxy_call", None)
    if marked is not None:
        return marked(*args)
    return hasattr(fn, "_wrapped_async_rpc_function")


def _gil_wait():
    """Seconds that a thread waits for the GIL at this time, on average over some tries."""
    tries, begin = 16, time.perf_counter()
    for _ in range(tries):
        time.sleep(0)  # gives it up and takes it again
    return (time.perf_counter() - begin) / tries


def _record(rank, shapes, memory):
    from pydist.distributed.rpc._spans import Record

    return Record(rank, shapes, memory)


def _reference_type():
    from pydist.distributed.rpc.rref import RRef

    return RRef
