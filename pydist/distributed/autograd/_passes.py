"""One backward over several workers.

The root opens a run of the engine (csrc/autograd/engine.h) from its roots and looks which received tensors the run
reaches. It asks their senders to discover what they have sent: each opens a run of its own, goes on from the nodes of
these messages, asks further senders, and answers with all workers that take part. What nobody reaches is never
discovered, so nobody waits for its gradient. A message also says to which other messages its graph leads, unless these are
many. Where the root knows all of them that way, this round is left out: each worker hears what to discover together with
the next question.

Then the root turns its run. Gradients of received tensors go to their senders, which feed their runs with them, in any
order; the engine adds them in a fixed one. With its first gradient the root asks each worker to say when its run is
done, which is when all its nodes have run. The pass is over when all have said so.

The gradients of leaves are kept in the pass and added to the context at the end. An error anywhere reaches the root,
which tells all workers to give up; they put the context's gradients back to what they were.
"""

import threading

from pydist import _C
from pydist._notes import note
from pydist.distributed.autograd import _contexts
from pydist.distributed.autograd._contexts import messages_behind, sender_of, wait_for
from pydist.futures import Future, collect_all


class Pass:
    """What one worker does in a pass. At most one thread turns the run; others leave gradients for it. how: (whether the
    graph is kept, whether each message that a worker of the pass has sent in the context must take part)."""

    def __init__(self, context, pass_id, root, how, roots=()):
        self.context, self.id, self.root, self.how = context, pass_id, root, how
        retain, self._every_send = how
        self.over = Future()  # the run is done, and what it has sent has arrived
        self.asked = set()  # the workers that this one has told of the pass
        self._unstarted = {}  # of the root: worker -> messages to discover, until it has been asked for its end
        self.done = []  # futures of these ends
        self.aborts = []  # what the root hears from workers that give up
        self._discovered = set()  # messages of this worker
        self._sums = {}  # gradients by leaf
        self._lock = threading.Lock()
        self._arrived = []  # (message, gradients) that have not been fed yet
        self._unanswered = 0  # gradients that were sent and are not known to have arrived
        self._ready = self._turning = self._closed = self._settled = False
        self._error = None
        self._lent = None  # leaves of DistributedDataParallel, with the .grad that they had before
        self._run = _C._run_open(roots, [None] * len(roots), self._sums.__setitem__, retain)

    @property
    def _me(self):
        return self.context.worker.id

    def _request(self, rank, function, *args):
        of_pass = self.id, self.context.id, self.root, self.how
        return self.context.worker.agent.request(rank, function, *of_pass, *args)

    # ---- who takes part

    def discover(self, messages=()):
        """Goes on from these messages of this worker. A future of the set of all workers that this leads to."""
        return self._ask(self.expect(messages))

    def find_workers(self):
        """Discovers from the roots."""
        elsewhere = self.expect()
        behind = messages_behind([received for of in elsewhere.values() for received in of])
        if behind is None:
            others = dict.fromkeys(self._ask(elsewhere).wait() - {self._me}, ())
        else:
            others = {}
            for message in sorted(behind):
                others.setdefault(sender_of(message), []).append(message)
            self.expect(others.pop(self._me, ()))
        self.check_sends()
        self._unstarted = others
        self.asked.update(others)
        self.start(set(others) - set(elsewhere))  # deliver() asks the rest

    def expect(self, messages=()):
        """There will be gradients of these messages of this worker. {worker: what was received from it} on the way on."""
        with self._lock:
            if self._error is not None:
                raise self._error
            try:
                elsewhere = self._reach(messages)
            except Exception as error:
                raise self._named(error) from None
            self._ready = True
        return elsewhere

    def _ask(self, elsewhere):
        self.asked.update(elsewhere)
        asked = [
            self._request(rank, _discover, [received.message for received in of]) for rank, of in elsewhere.items()
        ]
        return collect_all(asked).then(lambda them: {self._me}.union(*[future.value() for future in them.value()]))

    def _reach(self, messages):
        """What this worker has sent to itself is followed at once."""
        elsewhere = {}
        while True:
            for message in messages:
                if message not in self._discovered:
                    _C._run_discover(self._run, self._sent(message))
                    self._discovered.add(message)
            messages = []
            for received in _C._run_reached(self._run):
                if received.context_id != self.context.id:
                    raise RuntimeError(
                        f"backward: a tensor that worker {received.sender} sent in autograd context "
                        f"{received.context_id} is used in context {self.context.id} (expected one that was received "
                        "in the same context)"
                    )
                if received.sender == self._me:
                    messages.append(received.message)
                else:
                    elsewhere.setdefault(received.sender, []).append(received)
            if not messages:
                return elsewhere

    def check_sends(self):
        """Called when all messages of this worker that take part are known."""
        if not self._every_send:
            return
        for message, to in self.context.sent():
            if message not in self._discovered:
                raise self._named(RuntimeError(
                    f"backward: message {message}, which worker {self._me} sent to worker {to} in autograd context "
                    f"{self.context.id}, does not lead to the roots (expected mode 'smart', or to use what was sent)"
                ))  # fmt: skip

    def _sent(self, message):
        node = self.context.sends.get(message)
        if node is None:
            raise RuntimeError(
                f"backward: worker {self._me} does not know message {message} of autograd context {self.context.id} "
                "(expected the context to be alive where the tensors came from)"
            )
        return node

    # ---- gradients

    def turn(self):
        """Runs all nodes whose gradients are there, and those that become ready, unless another thread does."""
        with self._lock:
            if self._turning or self._closed or not self._ready:
                return
            self._turning = True
        outer, _contexts._here.turning = getattr(_contexts._here, "turning", None), self
        done = turned = False
        try:
            while True:
                with self._lock:
                    arrived, self._arrived = self._arrived, []
                    if self._error is not None or (turned and not arrived):
                        self._turning = False
                        self._closed = close = done or self._error is not None
                        break
                done, turned = self._feed_and_turn(arrived), True
        finally:
            _contexts._here.turning = outer
        if close:
            self._close()

    def _feed_and_turn(self, arrived):
        """Whether the run is done."""
        try:
            if self._lent is None:
                self._lent = [(leaf, _taken(leaf)) for leaf in _C._run_owned(self._run)]
            for message, grads in arrived:
                node = self._sent(message)
                for i, grad in enumerate(grads):
                    _C._run_feed(self._run, node, grad, i)
            return _C._run_turn(self._run)
        except BaseException as error:
            self.fail(self._named(error))
            return False

    def deliver(self, received, grads):
        """Sends the gradients of received tensors to where these came from."""
        to = received.sender
        if to == self._me:
            return self.take(received.message, grads)
        with self._lock:
            messages = self._unstarted.pop(to, None)
            self._unanswered += messages is None
        if messages is not None:
            self._start(to, messages, received.message, grads)
        else:
            self._request(to, _gradients, received.message, grads).add_done_callback(self._answered)

    def start(self, ranks=None):
        """The root asks these workers, or all, to say when they are done, unless deliver() has done it."""
        for rank in list(self.asked if ranks is None else ranks):
            with self._lock:
                messages = self._unstarted.pop(rank, None)
            if messages is not None:
                self._start(rank, messages)

    def _start(self, rank, messages, *first):
        asked = self._request(rank, _start, messages, *first)
        self.done.append(asked)
        asked.add_done_callback(lambda future: future.exception() and self.fail(future.exception()))
        if self._error is not None:  # abort() may have come before this one was among them
            self.context.worker.agent._give_up(asked, self._error)

    def take(self, message, grads):
        """Gradients of what this worker has sent are here; turn() uses them."""
        with self._lock:
            if not self._closed:
                self._arrived.append((message, grads))

    def _answered(self, future):
        with self._lock:
            self._unanswered -= 1
        if (error := future.exception()) is not None:
            self.fail(error)
        else:
            self._settle()

    # ---- the end

    def _close(self):
        """The run has ended; no thread is in it."""
        try:
            run, self._run = self._run, None
            _C._run_close(run, self._error is not None)
        except BaseException as error:  # of what DistributedDataParallel does at the end
            self.fail(self._named(error))
        sums, self._sums, self._arrived = self._sums, None, []
        for leaf, before in self._lent or ():
            if leaf.grad is not None:
                sums[leaf] = leaf.grad.clone()
            leaf.grad = before
        if self._error is None:
            self.context.add(self.id, sums)
        self._settle()

    def _settle(self):
        """Says that the pass is over here: after an error at once, although a thread may be in its last turn."""
        with self._lock:
            if self._settled or (self._error is None and (self._unanswered or not self._closed)):
                return
            self._settled = True
        if self._error is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(self._error)

    def fail(self, error):
        """The pass ends with this error here, and if this is the root, everywhere, also after its own part."""
        with self._lock:
            if self._error is not None or (self._settled and self._me != self.root):
                return
            self._error = error
            close = not (self._turning or self._closed)
            self._closed |= close
        if self._me == self.root:
            self.abort()
        if close:
            self._close()
        self._settle()

    def abort(self):
        """Tells those that this worker has told of the pass that it has failed. Futures of their answers."""
        tell = self.context.worker.tell
        self.aborts += [tell(rank, _abort, self.id, self.context.id) for rank in sorted(self.asked - {self.root})]
        for future in self.done:  # whoever computes answers later; nobody waits for that
            self.context.worker.agent._give_up(future, self._error)
        return self.aborts

    def _named(self, error):
        """The error, which also says on which worker it was raised. PyTorch's texts begin with that."""
        if not self.asked and self._me == self.root:
            return error
        where = f"Error on Node {self._me}"
        if type(error) in (Exception, RuntimeError):
            return RuntimeError(f"{where}: {error}").with_traceback(error.__traceback__)
        note(error, f"{where}, in a pass of distributed autograd that worker {self.root} leads")
        return error


def _taken(leaf):
    """A copy of the leaf's .grad, which is then None. DistributedDataParallel averages in a place of its own."""
    before = None if leaf.grad is None else leaf.grad.clone()
    leaf.grad = None
    return before


def run(context, roots, how):
    """A pass from these roots, which are results of this worker."""
    me = context.worker
    current = _pass(me.new_id(), context.id, me.id, how, roots)
    try:
        current.find_workers()
        current.turn()
        current.start()
        wait_for(current.done)
        if current._error is not None:  # perhaps of a worker that has failed after this one was done
            raise current._error
        current.over.wait()
    except BaseException as error:
        current.fail(error)
        context.refuse(current.id)
        wait_for(current.aborts)
        raise
    finally:
        context.leave(current)


def _pass(pass_id, context_id, root, how, roots=()):
    """This worker's part of the pass, which begins if it is new here."""
    context = _contexts.worker().get(context_id)
    return context.begin(pass_id, root, lambda: Pass(context, pass_id, root, how, roots))


# What workers ask of each other. Where one returns a future, the other hears its value.


def _answers_later(function):
    function._wrapped_async_rpc_function = function
    return function


@_answers_later
def _discover(pass_id, context_id, root, how, messages):
    return _pass(pass_id, context_id, root, how).discover(messages)


@_answers_later
def _start(pass_id, context_id, root, how, messages, *first):
    current = _pass(pass_id, context_id, root, how)
    current.over.add_done_callback(lambda _: current.context.leave(current))
    if messages:
        current.expect(messages)
    current.check_sends()
    if first:
        current.take(*first)
    current.turn()
    return current.over


def _gradients(pass_id, context_id, root, how, message, grads):
    current = _pass(pass_id, context_id, root, how)
    current.take(message, grads)
    current.turn()


@_answers_later
def _abort(pass_id, context_id):
    context = _contexts.worker().contexts.get(context_id)
    current = context and context.refuse(pass_id)
    told = []
    if current is not None and current.root != context.worker.id:
        current.fail(RuntimeError("backward: the pass has failed on another worker"))
        told = current.abort()
    return collect_all(told).then(lambda _: None)
