"""Workers of rpc as threads of this process: an agent that has what pydist.distributed.autograd asks for, and calls that
carry contexts as those of pydist.distributed.rpc do. It can reorder, delay and lose requests, and workers can die."""

import random
import threading
import time

import pydist
from pydist.distributed import PeerFailed
from pydist.distributed.autograd import _contexts, _messages
from pydist.futures import Future

_here = threading.local()  # .agent: the worker that this thread belongs to


class Info:
    def __init__(self, rank):
        self.id, self.name = rank, f"worker{rank}"


class Agent:
    def __init__(self, world, rank):
        self.world, self.rank, self.me = world, rank, Info(rank)
        self.leaving, self.on_gone, self.alive = [], [], True

    @property
    def workers(self):
        return {agent.rank: agent.me for agent in self.world.agents}

    def request(self, rank, function, *args):
        return self.world.send(self, self.world.agents[rank], function, args)

    def _give_up(self, future, error):
        settle(future, error=error)


class World:
    """`with World(n) as world:` this thread is worker 0. delay: each request waits up to so many seconds, so they overtake
    each other."""

    def __init__(self, size, delay=0.0):
        self.agents = [Agent(self, rank) for rank in range(size)]
        self.requests, self.delay, self._random = [], delay, random.Random(7)
        self._threads, self._waiting = [], []

    def __enter__(self):
        self._worker, _contexts.worker = _contexts.worker, worker
        _here.agent = self.agents[0]
        return self

    def __exit__(self, *_):
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a request hangs"
        for agent in self.agents:
            for leave in agent.leaving:
                leave()
        _contexts.worker = self._worker
        del _here.agent

    def start(self, agent, body):
        def run():
            _here.agent = agent
            body()

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def send(self, sender, receiver, function, args):
        future, args = Future(), copied(args)
        self.requests.append((sender.rank, receiver.rank, function.__name__))
        self._waiting.append((sender, receiver, future))

        def run():
            if self.delay:
                time.sleep(self._random.random() * self.delay)
            if not receiver.alive:
                return settle(future, error=dead(receiver))
            try:
                result = function(*args)
            except BaseException as error:
                return settle(future, error=error)
            if not isinstance(result, Future):
                return settle(future, copied(result))

            def answer(done):
                error = done.exception()
                settle(future, None if error else copied(done.value()), error)

            result.add_done_callback(lambda done: self.start(receiver, lambda: answer(done)))  # as a message of its own

        self.start(receiver, run)
        return future

    def kill(self, rank):
        """What waits for this worker fails, and so does what will be sent to it."""
        agent = self.agents[rank]
        agent.alive = False
        for sender, receiver, future in self._waiting:
            if receiver is agent:
                settle(future, error=dead(agent))
        for other in self.agents:
            if other.alive and getattr(other, "autograd", None):
                self.start(other, lambda other=other: [callback(rank) for callback in other.on_gone])

    def quiet(self):
        """Waits until no request is under way."""
        for thread in self._threads:
            thread.join(60)
        self._threads, self._waiting = [], []


def dead(agent):
    error = PeerFailed(f"worker{agent.rank} has died")
    error.rank = agent.rank
    return error


def settle(future, value=None, error=None):
    try:
        future.set_result(value) if error is None else future.set_exception(error)
    except RuntimeError as twice:
        assert "done already" in str(twice)


def worker():
    agent = getattr(_here, "agent", None)
    if agent is None:
        raise RuntimeError("no agent (expected init_rpc)")
    if not hasattr(agent, "autograd"):
        with _contexts._making:
            if not hasattr(agent, "autograd"):
                agent.autograd = _contexts.Worker(agent)
    return agent.autograd


def rank():
    return _here.agent.rank


def tensors_of(value):
    if isinstance(value, pydist.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for item in value for t in tensors_of(item)] if isinstance(value, (list, tuple)) else []


def copied(value, tensors=None):
    """The value with copies of its tensors, or with those that the iterator gives."""
    if isinstance(value, pydist.Tensor):
        return value.detach().clone() if tensors is None else next(tensors)
    if isinstance(value, dict):
        return {key: copied(item, tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(copied(item, tensors) for item in value)
    return value


def _carry(value, to):
    """Sends a value: what travels."""
    return copied(value), _messages.outgoing(tensors_of(value), to), _here.agent.rank


def _unpack(value, carried, sender):
    if carried is None:
        return value
    context_id, message, flags = carried
    return copied(value, iter(_messages.incoming(context_id, message, tensors_of(value), flags, sender)))


def _run_call(function, args, carried, sender):
    args = _unpack(args, carried, sender)
    with _messages.entered(carried[0] if carried else 0):
        return _carry(function(*args), sender)


def call_async(to, function, *args):
    """rpc_async."""
    args, carried, me = _carry(args, to)
    future = Future()
    world, receiver = _here.agent.world, _here.agent.world.agents[to]

    def run():
        if not receiver.alive:
            return settle(future, error=dead(receiver))
        try:
            settle(future, _run_call(function, args, carried, me))
        except BaseException as error:
            settle(future, error=error)

    world._waiting.append((_here.agent, receiver, future))
    world.start(receiver, run)
    return future


def call(to, function, *args):
    """rpc_sync."""
    return _unpack(*call_async(to, function, *args).wait())
