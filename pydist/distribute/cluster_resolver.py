"""Who takes part in a job, with the names of tf.distribute.cluster_resolver: from TF_CONFIG, from Slurm, or as given.

Everything that is wrong in a description raises ValueError, which names the field, before any socket opens.

>>> from pydist.distribute.cluster_resolver import ClusterSpec
>>> ClusterSpec({"chief": ["10.0.0.1:2222"], "worker": ["10.0.0.2:2222"]}).ranks()
[('chief', 0), ('worker', 0)]
"""

import json
import os
import re
import warnings

from pydist import _C
from pydist.distribute._near import missing_name

__all__ = [
    "ClusterResolver",
    "ClusterSpec",
    "SimpleClusterResolver",
    "SlurmClusterResolver",
    "TFConfigClusterResolver",
    "UnionResolver",
]

JOBS = ("chief", "worker", "ps", "evaluator")
_PORT_MAX = 65535


def _check_address(field, address):
    """Raises ValueError unless `address` is "host:port" with a port that can be reached."""
    if not isinstance(address, str):
        raise ValueError(f"{field}: address is {address!r} (expected a text such as 'host:2222')")
    host, colon, port = address.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()):
        raise ValueError(f"{field}: address {address!r} has no port (expected 'host:port')")
    if not 1 <= int(port) <= _PORT_MAX:
        raise ValueError(f"{field}: address {address!r} has port {port} (expected 1 to {_PORT_MAX})")


class ClusterSpec:
    """The addresses of a job's tasks: {"worker": ["host:port", ...], ...}. The jobs are chief, worker, ps and
    evaluator. `field`: the name in messages."""

    def __init__(self, cluster, field="ClusterSpec"):
        if isinstance(cluster, ClusterSpec):
            cluster = cluster.as_dict()
        if not isinstance(cluster, dict):
            raise ValueError(f"{field} is {type(cluster).__name__} (expected jobs with lists of addresses)")
        self._jobs, where = {}, {}
        for job, addresses in cluster.items():
            here = f"{field}: {job}"
            if job not in JOBS:
                raise ValueError(f"{field}: {job!r} is an unknown type of task (expected {', '.join(JOBS)})")
            if not isinstance(addresses, (list, tuple)):
                raise ValueError(f"{here} is {addresses!r} (expected a list of addresses)")
            for index, address in enumerate(addresses):
                _check_address(f"{here}[{index}]", address)
                if address in where:
                    raise ValueError(
                        f"{here}[{index}]: address {address!r} is that of {where[address]}, too (expected once)"
                    )
                where[address] = f"{job}[{index}]"
            if addresses:
                self._jobs[job] = list(addresses)
        if len(self._jobs.get("chief", ())) > 1:
            raise ValueError(f"{field}: chief has {len(self._jobs['chief'])} addresses (expected one)")

    @property
    def jobs(self):
        """The names of the jobs."""
        return list(self._jobs)

    def as_dict(self):
        """{job: its addresses}."""
        return {job: list(addresses) for job, addresses in self._jobs.items()}

    def _addresses(self, job_name):
        if job_name not in self._jobs:
            raise ValueError(f"ClusterSpec: no job {job_name!r} (expected one of {self.jobs})")
        return self._jobs[job_name]

    def num_tasks(self, job_name):
        """How many tasks a job has."""
        return len(self._addresses(job_name))

    def task_indices(self, job_name):
        """The numbers of a job's tasks."""
        return list(range(self.num_tasks(job_name)))

    def job_tasks(self, job_name):
        """The addresses of a job's tasks."""
        return list(self._addresses(job_name))

    def task_address(self, job_name, task_index):
        """The address of one task."""
        addresses = self._addresses(job_name)
        if not 0 <= task_index < len(addresses):
            raise ValueError(f"ClusterSpec: {job_name} has no task {task_index} (expected 0 to {len(addresses) - 1})")
        return addresses[task_index]

    def ranks(self):
        """The tasks that train, as (job, index) by rank: the chief, then the workers."""
        return [(job, index) for job in ("chief", "worker") for index in range(len(self._jobs.get(job, ())))]

    def __bool__(self):
        return bool(self._jobs)

    def __eq__(self, other):
        return isinstance(other, ClusterSpec) and self._jobs == other._jobs

    def __repr__(self):
        return f"ClusterSpec({self._jobs})"


def check_task(field, cluster, task_type, task_id):
    """The index of this task as an int. Raises ValueError if the cluster has no such task."""
    if task_type not in JOBS:
        raise ValueError(f"{field}: type is {task_type!r}, an unknown type of task (expected {', '.join(JOBS)})")
    if isinstance(task_id, bool) or not re.fullmatch(r"\d+", str(task_id)):
        raise ValueError(f"{field}: index is {task_id!r} (expected a number)")
    count = len(cluster.as_dict().get(task_type, ()))
    if task_type == "evaluator" and not count:
        return int(task_id)  # an evaluator need not stand in the cluster
    if not count:
        raise ValueError(
            f"{field}: type is {task_type!r}, which the cluster does not have (expected one of {cluster.jobs})"
        )
    if int(task_id) >= count:
        raise ValueError(
            f"{field}: index is {task_id}, but the cluster has {count} {task_type} (expected 0 to {count - 1})"
        )
    return int(task_id)


def read_tf_config(text):
    """(ClusterSpec, type, index) of the text of TF_CONFIG. An empty one gives (an empty spec, None, None)."""
    try:
        config = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise ValueError(f"TF_CONFIG is no JSON: {error} (expected an object with cluster and task)") from None
    if not isinstance(config, dict):
        raise ValueError(f"TF_CONFIG is {type(config).__name__} (expected an object with cluster and task)")
    if not config:
        return ClusterSpec({}), None, None
    if "cluster" not in config:
        raise ValueError("TF_CONFIG has no cluster (expected cluster and task)")
    if "task" not in config:
        raise ValueError("TF_CONFIG has no task (expected cluster and task)")
    cluster, task = ClusterSpec(config["cluster"], "TF_CONFIG: cluster"), config["task"]
    if not isinstance(task, dict) or "type" not in task or "index" not in task:
        raise ValueError(f"TF_CONFIG: task is {task!r} (expected an object with type and index)")
    return cluster, task["type"], check_task("TF_CONFIG: task", cluster, task["type"], task["index"])


def split_address(address):
    """(host without brackets, port)."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _is_here(host):
    """Whether an address is one of this machine's."""
    return host.startswith("127.") or host in ("::1", "0.0.0.0", "::") or host in {a for _, a in _C.interfaces()}


def check_host(field, address):
    """Raises ValueError if `address` is a number that no interface of this machine has. A name that means another
    machine only warns: names of services and containers do."""
    import socket

    host, _ = split_address(address)
    is_number = bool(re.fullmatch(r"[\d.]+|[0-9a-fA-F:]*:[0-9a-fA-F:.]*", host))
    if is_number:
        if not _is_here(host):
            raise ValueError(
                f"{field}: this task is at {address}, which is no address of this machine (expected its own)"
            )
        return
    if host in ("localhost", socket.gethostname()):
        return
    try:
        found = {place[0] for *_, place in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise ValueError(f"{field}: {host!r} is unknown here: {error} (expected a name of this machine)") from None
    if not any(map(_is_here, found)):
        warnings.warn(
            f"{field}: {host} is {', '.join(sorted(found))}, which is no address of this machine", stacklevel=3
        )


def check_launcher(field, rank, world):
    """Raises ValueError if a launcher's variables say another rank or world."""
    for name, value in (("RANK", rank), ("WORLD_SIZE", world)):
        said = os.environ.get(name)
        if said is not None and said != str(value):
            raise ValueError(f"{field} says {name}={value}, but the launcher says {name}={said} (expected the same)")


class ClusterResolver:
    """What a strategy asks: cluster_spec(), task_type, task_id, master(), num_accelerators()."""

    environment, rpc_layer = "", None
    task_type = task_id = None

    def cluster_spec(self):
        """The ClusterSpec."""
        raise NotImplementedError

    def master(self, task_type=None, task_id=None, rpc_layer=None):
        """The address of a task (default: this one); empty if there is none."""
        task_type = self.task_type if task_type is None else task_type
        task_id = self.task_id if task_id is None else task_id
        if task_type is None or task_id is None or not self.cluster_spec():
            return ""
        address, layer = self.cluster_spec().task_address(task_type, task_id), rpc_layer or self.rpc_layer
        return f"{layer}://{address}" if layer else address

    def num_accelerators(self, task_type=None, task_id=None, config_proto=None):
        """{"GPU": how many this process sees}."""
        return {"GPU": 0 if _C.pretended_cuda() else _C.cuda_count()}


class SimpleClusterResolver(ClusterResolver):
    """A cluster as given."""

    def __init__(
        self,
        cluster_spec,
        master="",
        task_type=None,
        task_id=None,
        environment="",
        num_accelerators=None,
        rpc_layer=None,
    ):
        self._spec = ClusterSpec(cluster_spec)
        if task_type is not None:
            task_id = check_task("SimpleClusterResolver", self._spec, task_type, 0 if task_id is None else task_id)
        self._master, self._accelerators = master, num_accelerators
        self.task_type, self.task_id, self.environment, self.rpc_layer = task_type, task_id, environment, rpc_layer

    def cluster_spec(self):
        """The ClusterSpec as given."""
        return self._spec

    def master(self, task_type=None, task_id=None, rpc_layer=None):
        """The address of a task (default: `master` as given, else this one)."""
        if self._master and task_type is None:
            return self._master
        return super().master(task_type, task_id, rpc_layer)

    def num_accelerators(self, task_type=None, task_id=None, config_proto=None):
        """The dictionary as given, else the GPUs of this process."""
        return super().num_accelerators() if self._accelerators is None else dict(self._accelerators)


class TFConfigClusterResolver(ClusterResolver):
    """The cluster of the environment variable TF_CONFIG:

        {"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 0}}

    The ranks are the chief, then the workers. An evaluator is not in the world. Without TF_CONFIG the cluster is
    empty. Raises ValueError, which names the field.
    """

    def __init__(self, task_type=None, task_id=None, rpc_layer=None, environment=None):
        self._spec, own_type, own_id = read_tf_config(os.environ.get("TF_CONFIG", ""))
        self.task_type = own_type if task_type is None else task_type
        self.task_id = own_id if task_id is None else task_id
        if self.task_type is not None and self._spec:
            self.task_id = check_task("TF_CONFIG: task", self._spec, self.task_type, self.task_id or 0)
        self.rpc_layer, self.environment = rpc_layer, environment or ""

    def cluster_spec(self):
        """The ClusterSpec of TF_CONFIG."""
        return self._spec


def _expand_nodes(text):
    """["n03", "n04", "m"] of Slurm's "n[03-04],m"."""
    found = []
    for name, inside in re.findall(r"([^,\[\]]+)(?:\[([^\]]*)\])?", text):
        for part in inside.split(",") if inside else [None]:
            if part is None:
                found.append(name)
                continue
            first, _, last = part.partition("-")
            found += [f"{name}{n:0{len(first)}}" for n in range(int(first), int(last or first) + 1)]
    return found


def _expand_counts(text):
    """[2, 2, 1] of Slurm's "2(x2),1"."""
    parts = [re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part) for part in text.split(",")]
    if not all(parts):
        raise ValueError(f"SLURM_STEP_TASKS_PER_NODE={text!r} (expected numbers such as '2(x3),1')")
    return [int(part[1]) for part in parts for _ in range(int(part[2] or 1))]


class SlurmClusterResolver(ClusterResolver):
    """The cluster of a step of Slurm (srun), in the order of its processes. `jobs`: {job: how many tasks}; the
    default is workers only. Tasks of one node have ports from `port_base` on."""

    def __init__(
        self, jobs=None, port_base=8888, gpus_per_node=None, gpus_per_task=None, tasks_per_node=None, auto_set_gpu=True,
        rpc_layer=None,
    ):  # fmt: skip
        nodes = _expand_nodes(self._variable("SLURM_STEP_NODELIST"))
        counts = (
            _expand_counts(self._variable("SLURM_STEP_TASKS_PER_NODE")) if tasks_per_node is None else tasks_per_node
        )
        counts = [counts] * len(nodes) if isinstance(counts, int) else list(counts)
        places = [f"{node}:{port_base + i}" for node, count in zip(nodes, counts) for i in range(count)]
        rank, total = self._variable("SLURM_PROCID"), self._variable("SLURM_STEP_NUM_TASKS")
        if not total.isdigit() or len(places) != int(total):
            raise ValueError(
                f"SLURM_STEP_NUM_TASKS={total}, but the nodes have {len(places)} tasks (expected the same)"
            )
        if not rank.isdigit() or int(rank) >= len(places):
            raise ValueError(f"SLURM_PROCID={rank} (expected 0 to {len(places) - 1})")
        jobs = {"worker": len(places)} if jobs is None else dict(jobs)
        if sum(jobs.values()) != len(places):
            raise ValueError(f"SlurmClusterResolver: jobs {jobs} (expected {len(places)} tasks in all)")
        spec, at, self.rpc_layer = {}, 0, rpc_layer
        for job, count in jobs.items():
            spec[job] = places[at : at + count]
            if at <= int(rank) < at + count:
                self.task_type, self.task_id = job, int(rank) - at
            at += count
        self._spec = ClusterSpec(spec, "SlurmClusterResolver: jobs")

    @staticmethod
    def _variable(name):
        value = os.environ.get(name) or os.environ.get(name.replace("_STEP", ""))
        if not value:
            raise ValueError(f"SlurmClusterResolver: {name} is not set (expected a step of srun)")
        return value

    def cluster_spec(self):
        """The ClusterSpec of the step."""
        return self._spec

    def get_task_info(self):
        """(type, index) of this task."""
        return self.task_type, self.task_id


class UnionResolver(ClusterResolver):
    """The union of several resolvers. This task is that of the first one that has a task. Raises ValueError if two of
    them describe a job differently."""

    def __init__(self, *args, **kwargs):
        if not args or not all(isinstance(resolver, ClusterResolver) for resolver in args):
            raise TypeError(f"UnionResolver: got {args!r} (expected at least one ClusterResolver)")
        self._resolvers, merged = args, {}
        for resolver in args:
            for job, addresses in resolver.cluster_spec().as_dict().items():
                if merged.setdefault(job, addresses) != addresses:
                    raise ValueError(
                        f"UnionResolver: {job} is {merged[job]} and {addresses} (expected one description)"
                    )
        self._spec = ClusterSpec(merged, "UnionResolver")
        first = next((resolver for resolver in args if resolver.task_type is not None), args[0])
        self.task_type = kwargs.get("task_type", first.task_type)
        self.task_id = kwargs.get("task_id", first.task_id)
        self.rpc_layer = kwargs.get("rpc_layer", first.rpc_layer)
        self.environment = first.environment

    def cluster_spec(self):
        """The union of the cluster specs."""
        return self._spec

    def num_accelerators(self, task_type=None, task_id=None, config_proto=None):
        """What the first resolver says."""
        return self._resolvers[0].num_accelerators(task_type, task_id, config_proto)


_REFUSED = {
    "TPUClusterResolver": "there is no TPU backend",
    "GCEClusterResolver": "instance groups of a cloud are not asked (expected TF_CONFIG or the launcher)",
    "KubernetesClusterResolver": "Kubernetes is not asked (expected TF_CONFIG or the launcher)",
}


def __getattr__(name):
    if name in _REFUSED:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}': {_REFUSED[name]}")
    raise missing_name(__name__, name, __all__)
