"""Runs a function as every task of a cluster, one process for each, for tests of programs that read TF_CONFIG.

>>> from pydist.distribute import runner
>>> def work():
...     from pydist.distribute import MultiWorkerMirroredStrategy
...     return MultiWorkerMirroredStrategy().num_replicas_in_sync
>>> runner.run(work, runner.create_cluster_spec(workers=2)).return_value
[2, 2]
"""

import functools
import json
import os
import socket
import tempfile
from collections import namedtuple
from contextlib import ExitStack
from pathlib import Path

from pydist import _C
from pydist.distribute.cluster_resolver import ClusterSpec
from pydist.testing._ranks import RankFailed, _in_processes

__all__ = ["RunnerResult", "TaskFailed", "create_cluster_spec", "run"]

RunnerResult = namedtuple("RunnerResult", "return_value stdout")
RunnerResult.__doc__ = "What `run` returns: return_value, the results by task, and stdout, the lines of all tasks."


class TaskFailed(RankFailed):
    """A task of `run` failed: `task`, such as ("worker", 1), and `reason`, `details`, `__cause__` as of RankFailed."""

    def __init__(self, task, error):
        super().__init__(error.rank, error.world, error.reason, error.details)
        self.task = task
        self.args = (f"{task[0]} {task[1]}: {error}",)
        self.__cause__ = error.__cause__

    def __reduce__(self):
        return type(self), (self.task, RankFailed(self.rank, self.world, self.reason, self.details))


def create_cluster_spec(workers=1, chief=False, ps=0, evaluator=False):
    """A cluster of tasks of this machine, with free ports, as a dictionary."""
    counts = {"chief": int(chief), "worker": workers, "ps": ps, "evaluator": int(evaluator)}
    with ExitStack() as stack:

        def address():
            probe = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            return f"127.0.0.1:{probe.getsockname()[1]}"

        return {job: [address() for _ in range(count)] for job, count in counts.items() if count}


def _become_task(configs, folder, index, world):
    """How a task's process begins."""
    os.environ["TF_CONFIG"] = configs[index]
    _C.set_num_threads(max(1, _C.get_num_threads() // world))
    if folder is not None:
        with open(os.path.join(folder, str(index)), "wb", buffering=0) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)


def run(fn, cluster_spec, args=None, kwargs=None, return_output=False, timeout=60.0):
    """Calls fn(*args, **kwargs) in one process for each task of `cluster_spec`, with TF_CONFIG set.

    Returns a RunnerResult. Its return_value has the results in the order chief, workers, ps, evaluator. With
    return_output=True the tasks' output comes in its stdout as lines "[worker-0]: text"; else it goes where this
    process's output goes. `fn` and its arguments are sent by value. Raises TaskFailed for the task that failed first
    by itself, and ends the others; also if tasks have not returned after `timeout` seconds.
    """
    cluster = ClusterSpec(cluster_spec, "run: cluster_spec")
    jobs = cluster.as_dict()
    tasks = [(job, i) for job in ("chief", "worker", "ps", "evaluator") for i in range(len(jobs.get(job, ())))]
    if not tasks:
        raise ValueError(f"run: cluster_spec is {cluster_spec!r} (expected at least one task)")
    configs = [json.dumps({"cluster": jobs, "task": {"type": job, "index": i}}) for job, i in tasks]

    @functools.wraps(fn)
    def call(rank):
        return fn(*(args or ()), **(kwargs or {}))

    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory()) if return_output else None
        begin = functools.partial(_become_task, configs, folder)
        results, errors = _in_processes(len(tasks), call, (), float(timeout), False, begin)
        for rank, error in errors.items():
            raise TaskFailed(tasks[rank], error)
        lines = [
            f"[{job}-{i}]: {line}"
            for rank, (job, i) in enumerate(tasks if folder else ())
            for line in Path(folder, str(rank)).read_text(errors="replace").splitlines()
        ]
    return RunnerResult(results, lines)
