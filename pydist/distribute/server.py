"""Parameter servers as threads of one process: the tasks of a cluster, and the strategy whose variables they hold.

A variable lives in shards on the tasks of the job "ps". A function that a ClusterCoordinator runs on a worker (a closure)
reads copies of variables, which it takes when it first needs them, computes with them, and sends back what it assigns, and
its gradients: the optimizer steps on the servers' values. Workers do not wait for each other.
"""

import logging
import threading
from contextlib import ExitStack, contextmanager

from pydist import _C
from pydist._grad_mode import no_grad
from pydist.distribute.cluster_resolver import ClusterResolver, ClusterSpec, TFConfigClusterResolver, check_task
from pydist.distribute.context import here
from pydist.distribute.options import InputContext
from pydist.distribute.strategy import Strategy
from pydist.distribute.variables import Variables

__all__ = ["ParameterServerStrategy", "Server"]

_tasks = {}  # by address: the Servers that run in this process
_log = logging.getLogger("pydist.distribute")


class Server:
    """A task of a cluster, in this process: a worker, or a parameter server.

    >>> from pydist.distribute import Server, runner
    >>> cluster = runner.create_cluster_spec(workers=1, ps=1)
    >>> with Server(cluster, "ps", 0) as server:
    ...     server.target == f"grpc://{cluster['ps'][0]}"
    True
    """

    def __init__(self, server_or_cluster_def, job_name=None, task_index=None, protocol=None, config=None, start=True):
        given = server_or_cluster_def
        cluster = ClusterSpec(given.as_dict() if hasattr(given, "as_dict") else given, "Server: cluster")
        index = check_task("Server", cluster, job_name, 0 if task_index is None else task_index)
        self.server_def, self._protocol = cluster, protocol or "grpc"
        self.job, self.index, self.address = job_name, index, cluster.task_address(job_name, index)
        self.lock, self._ended = threading.RLock(), threading.Event()
        if start:
            self.start()

    def start(self):
        """Starts the task, if it does not run yet."""
        running = _tasks.setdefault(self.address, self)
        if running is not self:
            raise ValueError(f"Server: {self} runs in this process already (expected one Server for each task)")
        self._ended.clear()

    def stop(self):
        """Ends the task. Closures that a worker has not ended run again on another one; variables on a parameter server
        are lost."""
        if _tasks.get(self.address) is self:
            del _tasks[self.address]
        self._ended.set()

    @property
    def runs(self):
        """Whether the task runs."""
        return not self._ended.is_set()

    @property
    def target(self):
        """The address, with the protocol's name."""
        return f"{self._protocol}://{self.address}"

    def join(self):
        """Waits until the task is stopped."""
        self._ended.wait()

    @staticmethod
    def create_local_server(config=None, start=True):
        """A task in a cluster of its own."""
        from pydist.distribute.runner import create_cluster_spec

        return Server(create_cluster_spec(workers=1), "worker", 0, start=start)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.stop()

    def __str__(self):
        return f"{self.job} {self.index} ({self.address})"


class _Shard:
    """The rows first .. last - 1 of a variable, on a server."""

    __slots__ = ("first", "last", "server")

    def __init__(self, server, first, last):
        self.server, self.first, self.last = server, first, last

    @contextmanager
    def of(self, v):
        """The rows' memory, for this thread alone. Raises PeerFailed if the server is gone."""
        with self.server.lock:
            if not self.server.runs:
                raise _C.PeerFailed(f"{self.server} is gone, and with it rows {self.first} to {self.last} of {v.path}")
            data = v._value.data
            yield data[self.first : self.last] if data.dim() else data


class _Placed(Variables):
    """Variables that are dealt out to servers."""

    def __init__(self, servers, partitioner):
        super().__init__()
        self._servers, self._partitioner, self._next, self._shards = servers, partitioner, 0, {}

    def add(self, variable):
        """Adds a variable and places its shards, one server after the other."""
        super().add(variable)
        shape = tuple(variable._value.shape)
        count = 1
        if self._partitioner is not None and shape and variable.trainable:
            count = self._partitioner(shape, variable._value.dtype)[0]
        rows = shape[0] if shape else 1
        edges = [rows * i // count for i in range(count + 1)]
        shards = []
        for first, last in zip(edges, edges[1:]):
            shards.append(_Shard(self._servers[self._next % len(self._servers)], first, last))
            self._next += 1
        object.__setattr__(variable, "_shards", shards)


class ParameterServerStrategy(Strategy):
    """Variables that are made in its scope live on the tasks "ps" of a cluster, whose tasks are Servers of this process.
    `variable_partitioner` says into how many shards (experimental.partitioners). A ClusterCoordinator runs functions on the
    workers."""

    def __init__(self, cluster_resolver, variable_partitioner=None):
        name = type(self).__name__
        resolver = TFConfigClusterResolver() if cluster_resolver is None else cluster_resolver
        if not isinstance(resolver, ClusterResolver):
            raise TypeError(f"{name}: cluster_resolver is {type(resolver).__name__} (expected a ClusterResolver)")
        jobs = resolver.cluster_spec().as_dict()
        for job in ("worker", "ps"):
            if not jobs.get(job):
                raise ValueError(f"{name}: the cluster has no {job} (expected at least one worker and one ps)")
        if jobs.get("evaluator"):
            _log.info("%s: the evaluator in the cluster takes no part in the training", name)
        self._workers, self._servers = (self._find(name, job, jobs[job]) for job in ("worker", "ps"))
        super().__init__(["CPU:0"], None, resolver)
        self._variables_made = _Placed(self._servers, variable_partitioner)

    @staticmethod
    def _find(name, job, addresses):
        """The Servers of a job."""
        for index, address in enumerate(addresses):
            if address not in _tasks:
                raise NotImplementedError(
                    f"{name}: {job} {index} ({address}) is no task of this process (expected distribute.Server(cluster, "
                    f"{job!r}, {index}) before; clusters of several processes are not there yet)"
                )
        return [_tasks[address] for address in addresses]

    def placement(self, variable):
        """Where a variable lives: (index of the ps, first row, last row + 1) of each shard."""
        return [(shard.server.index, shard.first, shard.last) for shard in variable._shards]

    def run(self, fn, args=(), kwargs=None, options=None):
        """fn(*args, **kwargs) here: on the worker whose closure calls this."""
        if here.replica is not None:
            raise RuntimeError(
                "strategy.run: called in a replica (expected outside the function that strategy.run calls)"
            )
        here.replica = self._context
        try:
            return fn(*args, **(kwargs or {}))
        finally:
            here.replica = None

    def distribute_datasets_from_function(self, dataset_fn, options=None):
        """What dataset_fn(InputContext) gives on this worker."""
        index = 0 if here.closure is None else here.closure.worker.index
        return dataset_fn(InputContext(len(self._workers), index, 1))

    def experimental_distribute_dataset(self, dataset, options=None):
        """The data set: each worker has its own passes over it."""
        return dataset

    # What closures read and send.

    @no_grad()
    def pull(self, v):
        """A copy of a variable."""
        parts = []
        for shard in v._shards:
            with shard.of(v) as rows:
                parts.append(rows.clone())
        value = parts[0] if len(parts) == 1 else _C.cat(parts)
        return type(v._value)(value, requires_grad=v.trainable and value.is_floating_point())

    @no_grad()
    def push(self, v, value, add=False):
        """Sets a variable, or adds to it."""
        value = value.detach()
        for shard in v._shards:
            part = value[shard.first : shard.last] if value.dim() else value
            with shard.of(v) as rows:
                rows.add_(part) if add else rows.copy_(part)

    @contextmanager
    def alone(self):
        """In this block no other thread reads or writes variables."""
        with ExitStack() as stack:
            for server in self._servers:
                stack.enter_context(server.lock)
                if not server.runs:
                    raise _C.PeerFailed(f"{server} is gone, and with it its variables")
            yield
