"""Contexts of distributed autograd: what one worker keeps of a block `with context()`.

A context is known by its id on every worker to which a call carried it. Each worker keeps its own part: the nodes where
the graph leaves for other workers and comes in from them, the gradients of its own leaves, and the workers to which it
has handed the context on. When the block ends, the news follows these hands, and every worker drops its part.
"""

import threading
from array import array
from itertools import count

from pydist import _C
from pydist.futures import Future, collect_all

_BITS = 48  # of an id, for the number; above them stands the worker that made it
_ENDED = 4096  # ids of ended contexts that a worker remembers, against messages that were on their way

# Flags of a tensor in a message: it carries no gradient; it does, and the trail follows the flags; it does, and where
# its graph leads is not known. A trail is the ids of all messages to which the graph of a message leads, on all workers.
NONE, KNOWN, UNKNOWN = 0, 1, 2
_TRAIL = 256  # ids in a trail at most

_here = threading.local()  # .context: this thread's, or None; .turning: the pass that this thread works for, or None
_making = threading.Lock()


def worker():
    """The Worker of this process. Raises RuntimeError where init_rpc has not been called."""
    from pydist.distributed.rpc import _agent

    agent = _agent.current()
    mine = getattr(agent, "autograd", None)
    if mine is None:
        with _making:
            mine = getattr(agent, "autograd", None)
            if mine is None:
                mine = agent.autograd = Worker(agent)
    return mine


def of_thread():
    """This thread's context, or None."""
    context = getattr(_here, "context", None)
    return context if context is not None and not context.ended else None


def missing(context_id):
    """The error for a context that is not here."""
    return RuntimeError(
        f"Could not find autograd context with id: {context_id} (expected the id that `with context()` gave, while its "
        "block runs, on a worker that takes part in it)"
    )


class Worker:
    """All contexts that the worker of one agent knows."""

    def __init__(self, agent):
        self.agent, self.id = agent, agent.me.id
        self.contexts = {}  # by id
        self._ended = {}  # ids, in the order in which they ended
        self._lock = threading.Lock()
        self._numbers = count(1)
        agent.leaving.append(self.leave)
        agent.on_gone.append(self.died)

    def new_id(self):
        """An id that no other context, message or pass of the job has."""
        return (self.id << _BITS) + next(self._numbers)

    def new_context(self):
        context = DistAutogradContext(self, self.new_id())
        self.contexts[context.id] = context
        return context

    def get(self, context_id):
        context = self.contexts.get(context_id)
        if context is None:
            raise missing(context_id)
        return context

    def meet(self, context_id):
        """The context that came with a message, which is made if it is new here. None if it has ended."""
        context = self.contexts.get(context_id)
        if context is None and context_id >> _BITS != self.id:
            with self._lock:
                context = self.contexts.get(context_id)
                if context is None and context_id not in self._ended:
                    context = self.contexts[context_id] = DistAutogradContext(self, context_id)
        return context

    def release(self, context_id, teller=None):
        """Ends the context here and where this worker has handed it on. teller: the worker that brought the news."""
        with self._lock:
            context = self.contexts.pop(context_id, None)
            self._ended[context_id] = None
            if len(self._ended) > _ENDED:
                del self._ended[next(iter(self._ended))]
        if context is None:
            return
        for rank in context.end(missing(context_id)) - {teller, context_id >> _BITS}:
            told = self.tell(rank, _release, context_id, self.id)
            told.add_done_callback(lambda told: told.exception() and self._tell_all(context_id))

    def _tell_all(self, context_id):
        """One of those that should pass the news of a context's end on is dead, so nobody knows whom it has told."""
        for rank in set(self.agent.workers) - {self.id}:
            self.tell(rank, _release, context_id, self.id)

    def tell(self, rank, function, *args):
        """A request that may fail: the other worker has died or left. Its future."""
        try:
            return self.agent.request(rank, function, *args)
        except Exception as error:
            failed = Future()
            failed.set_exception(error)
            return failed

    def died(self, rank):
        """Ends the contexts that a dead worker began, and fails the passes that it has led."""
        error = _C.PeerFailed(f"backward: worker {rank} has died, which led the pass (expected it to live)")
        for context in list(self.contexts.values()):
            current = context.current
            if context.id >> _BITS == rank:
                self.release(context.id)
            elif current is not None and current.root == rank:
                context.refuse(current.id)
                current.fail(error)

    def leave(self):
        """The agent shuts down."""
        with self._lock:
            contexts, self.contexts = self.contexts, {}
        for context in contexts.values():
            context.end(missing(context.id))


def _release(context_id, teller):
    worker().release(context_id, teller)


class DistAutogradContext:
    """One worker's part of a context. Programs use its id alone; the methods are for tests and for a look inside."""

    def __init__(self, worker, context_id):
        self.worker, self.id = worker, context_id
        self.lock = threading.Lock()
        self.sends, self.recvs = {}, {}  # nodes by message
        self._receivers = {}  # of the messages that were sent
        self.known = set()  # workers to which it was handed on
        self.grads = {}  # by leaf
        self.current = None  # the pass under way
        self.ended = False
        self._refused = set()  # passes that have failed
        self._before = (0, {})  # the last pass that added to grads, and what they were before

    def _context_id(self):
        """The id."""
        return self.id

    def _send_functions(self):
        """{message: the node of the tensors that this worker sent in it}."""
        with self.lock:
            return dict(self.sends)

    def _recv_functions(self):
        """{message: the node of the tensors that this worker received in it}."""
        with self.lock:
            return dict(self.recvs)

    def _known_worker_ids(self):
        """The ids of the workers to which this worker has sent messages in this context."""
        with self.lock:
            return set(self.known)

    def __repr__(self):
        return f"<autograd context {self.id} on worker {self.worker.id}>"

    # ---- messages

    def send(self, tensors, to):
        """Notes what is about to be sent: (id, message, flags), or None if the context has ended."""
        wanted = [t for t in tensors if t.requires_grad] if _C.is_grad_enabled() else ()
        if not wanted:
            node, message, flags = None, 0, bytes(len(tensors))
        else:
            node, behind = _C._rpc_send(wanted)
            trail = _trail_of(behind)
            flag = UNKNOWN if trail is None else KNOWN
            message, flags = self.worker.new_id(), bytes([flag if t.requires_grad else NONE for t in tensors])
            flags += trail or b""
        with self.lock:
            if self.ended:
                return None
            if to != self.worker.id:
                self.known.add(to)
            if node is not None:
                self.sends[message], self._receivers[message] = node, to
        return self.id, message, flags

    def receive(self, message, tensors, flags, sender):
        """Gives the flagged ones of received tensors their history."""
        flagged = [t for t, flag in zip(tensors, flags) if flag]
        trail = flags[len(tensors) :] if KNOWN in flags[: len(tensors)] else None
        node = _C._rpc_recv(flagged, Received(self.id, message, sender, trail))
        with self.lock:
            if not self.ended:
                self.recvs[message] = node

    def sent(self):
        """The messages that this worker has sent: a list of (message, worker)."""
        with self.lock:
            return [(message, self._receivers[message]) for message in self.sends]

    def unsend(self, message):
        with self.lock:
            self.sends.pop(message, None)
            self._receivers.pop(message, None)

    # ---- passes

    def begin(self, new, root, make):
        """The pass with the id `new`, which make() makes if it is new here. Raises where it cannot begin."""
        with self.lock:
            if self.ended:
                raise missing(self.id)
            if new in self._refused:
                raise RuntimeError("backward: this pass has failed already (expected no more messages of it)")
            if self.current is None:
                self.current = make()
            if self.current.id != new:
                raise RuntimeError(
                    f"backward: worker {root} begins a pass in autograd context {self.id} while one of worker "
                    f"{self.current.root} runs in it (expected one at a time, or a context for each)"
                )
            return self.current

    def taking_part(self, pass_id):
        """The pass under way, which must be this one."""
        current = self.current
        if current is None or current.id != pass_id:
            raise missing(self.id) if self.ended else RuntimeError("backward: the pass has failed")
        return current

    def leave(self, pass_):
        """The pass is over here, and everybody who asks for it has asked."""
        with self.lock:
            if self.current is pass_:
                self.current = None

    def refuse(self, pass_id):
        """The pass has failed somewhere: the gradients are as they were before it. Returns it if it is under way."""
        with self.lock:
            self._refused.add(pass_id)
            if self._before[0] == pass_id:
                self.grads, self._before = self._before[1], (0, {})
            current = self.current
            if current is None or current.id != pass_id:
                return None
            self.current = None
            return current

    def add(self, pass_id, sums):
        """The gradients that a pass has computed here."""
        with self.lock:
            if self.ended or pass_id in self._refused:
                return
            self._before = (pass_id, self.grads)
            grads = dict(self.grads)
            for leaf, grad in sums.items():
                old = grads.get(leaf)
                grads[leaf] = grad if old is None else old + grad
            self.grads = grads

    def end(self, error):
        """Drops everything; a pass that runs raises `error`. Returns the workers to which the context was handed on."""
        with self.lock:
            known, current = self.known, self.current
            held = self.sends, self.recvs, self.grads, self._before
            self.sends, self.recvs, self.known, self.grads, self._before = {}, {}, set(), {}, (0, {})
            self._receivers = {}
            self.current, self.ended = None, True
        if current is not None:
            current.fail(error)
        del held  # without the lock, since graphs that are freed may call back
        return known


class Received:
    """What a node of received tensors calls with their gradients: the pass sends them to where the tensors are from."""

    __slots__ = ("context_id", "message", "sender", "trail")

    def __init__(self, context_id, message, sender, trail):
        self.context_id, self.message, self.sender, self.trail = context_id, message, sender, trail

    def __call__(self, *grads):
        turning = getattr(_here, "turning", None)
        if turning is None:
            raise RuntimeError(
                f"backward: the graph goes on at worker {self.sender}, from which a tensor was received (expected "
                "distributed.autograd.backward(context_id, roots) in the place of backward())"
            )
        turning.deliver(self, grads)


def messages_behind(received):
    """The ids of these messages and of all to which they lead; None: not known."""
    ids = set()
    for one in received:
        if one.trail is None:
            return None
        ids.add(one.message)
        ids.update(array("Q", one.trail))
    return ids


def sender_of(message):
    """The worker that has sent it."""
    return message >> _BITS


def _trail_of(behind):
    """The trail of a message whose tensors lead to what was received here; None: not known."""
    ids = None if behind is None else messages_behind(behind)
    return None if ids is None or len(ids) > _TRAIL else array("Q", sorted(ids)).tobytes()


def wait_for(futures):
    """Waits for all; raises none of their errors."""
    collect_all(futures).wait()
