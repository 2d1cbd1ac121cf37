"""Who takes part in a job: TF_CONFIG, Slurm, given clusters; and the runner of tasks."""

import json
import os
import re
import socket
import subprocess
import sys
import time

import pytest

from pydist import CommTimeout, _C, distribute
from pydist.distribute import cluster_resolver, runner
from pydist.distribute.cluster_resolver import (
    ClusterSpec,
    SimpleClusterResolver,
    SlurmClusterResolver,
    TFConfigClusterResolver,
    UnionResolver,
)

TWO = {"worker": ["127.0.0.1:2222", "127.0.0.1:2223"]}


def config(cluster=None, task=None):
    return json.dumps({"cluster": TWO if cluster is None else cluster, "task": task or {"type": "worker", "index": 0}})


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)


MISTAKES = {
    "{": "TF_CONFIG is no JSON",
    "[1]": "TF_CONFIG is list",
    '{"task": {"type": "worker", "index": 0}}': "TF_CONFIG has no cluster",
    '{"cluster": {"worker": ["a:1"]}}': "TF_CONFIG has no task",
    config([1]): "TF_CONFIG: cluster is list",
    config({"worker": "a:1"}): "TF_CONFIG: cluster: worker is 'a:1'",
    config({"boss": ["a:1"]}): "TF_CONFIG: cluster: 'boss' is an unknown type",
    config({"worker": ["a"]}): "TF_CONFIG: cluster: worker.0.: address 'a' has no port",
    config({"worker": [7]}): "TF_CONFIG: cluster: worker.0.: address is 7",
    config({"worker": ["a:1", "b:0"]}): "worker.1.: address 'b:0' has port 0",
    config({"worker": ["a:70000"]}): "has port 70000",
    config({"worker": ["a:1", "a:1"]}): "worker.1.: address 'a:1' is that of worker.0., too",
    config({"chief": ["a:1", "b:1"]}): "chief has 2 addresses",
    config(task=["worker", 0]): "TF_CONFIG: task is",
    config(task={"type": "worker"}): "TF_CONFIG: task is",
    config(task={"type": "boss", "index": 0}): "TF_CONFIG: task: type is 'boss', an unknown type",
    config(task={"type": "chief", "index": 0}): "type is 'chief', which the cluster does not have",
    config(task={"type": "worker", "index": 2}): "TF_CONFIG: task: index is 2, but the cluster has 2 worker",
    config(task={"type": "worker", "index": -1}): "TF_CONFIG: task: index is -1",
    config(task={"type": "worker", "index": True}): "TF_CONFIG: task: index is True",
    config({"worker": ["203.0.113.5:2222", "127.0.0.1:2223"]}): "this task is at 203.0.113.5:2222, which is no",
    config({**TWO, "ps": ["127.0.0.1:2"]}, {"type": "ps", "index": 0}): "ps 0 trains nothing",
}  # fmt: skip


@pytest.mark.parametrize("text", MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes_of_tf_config_name_the_field(text, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", text)
    monkeypatch.setattr(
        "pydist.distributed._group.process_group.init_at", lambda *a, **k: pytest.fail("a socket opens")
    )
    begin = time.monotonic()
    with pytest.raises(ValueError, match=MISTAKES[text]):
        distribute.MultiWorkerMirroredStrategy()
    assert time.monotonic() - begin < 1


@pytest.mark.parametrize("name, value", [("RANK", "1"), ("WORLD_SIZE", "3")])
def test_the_launcher_may_not_say_otherwise(name, value, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", config())
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"TF_CONFIG: task says {name}=.*launcher says {name}={value}"):
        distribute.MultiWorkerMirroredStrategy()


def test_a_missing_worker_is_named_at_the_limit(monkeypatch):
    cluster = runner.create_cluster_spec(workers=3)
    options = distribute.experimental.CommunicationOptions(timeout_seconds=0.3)
    for index, missing in ((0, (1, 2)), (2, (0,))):
        monkeypatch.setenv("TF_CONFIG", config(cluster, {"type": "worker", "index": index}))
        begin = time.monotonic()
        names = ", ".join(f"worker {i} ({cluster['worker'][i]})" for i in missing)
        with pytest.raises(CommTimeout, match=re.escape(f"{names} has not come")):
            distribute.MultiWorkerMirroredStrategy(communication_options=options)
        assert time.monotonic() - begin < 10


@pytest.mark.parametrize("index, text", [(0, "worker 0 (TAKEN): control: cannot listen on TAKEN: the port is taken"),
                                         (1, "worker 0 (TAKEN) has not come")])  # fmt: skip
def test_another_program_at_the_address(index, text):
    addresses = [address for _, address in _C.interfaces() if ":" not in address and not address.startswith("127.")]
    if not addresses:
        pytest.skip("no address but loopback")
    code = (
        "from pydist import distribute as d\n"
        "d.MultiWorkerMirroredStrategy(communication_options=d.experimental.CommunicationOptions(timeout_seconds=0.3))"
    )
    with socket.create_server((addresses[0], 0)) as other:
        taken = f"{addresses[0]}:{other.getsockname()[1]}"
        task = config({"worker": [taken, f"{addresses[0]}:1"]}, {"type": "worker", "index": index})
        env = {**os.environ, "TF_CONFIG": task, "PYDIST_INSECURE": "1"}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=60)
    assert text.replace("TAKEN", taken) in done.stderr, done.stderr


def test_chief_workers_and_evaluator(monkeypatch):
    cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"], "evaluator": ["e:1"]}
    assert ClusterSpec(cluster).ranks() == [("chief", 0), ("worker", 0), ("worker", 1)]
    monkeypatch.setenv("TF_CONFIG", config(cluster, {"type": "worker", "index": "1"}))
    resolver = TFConfigClusterResolver()
    assert (resolver.task_type, resolver.task_id, resolver.master()) == ("worker", 1, "c:1")
    assert resolver.master("chief", 0, "grpc") == "grpc://a:1"
    assert resolver.cluster_spec().as_dict() == cluster
    monkeypatch.setenv("TF_CONFIG", config(cluster, {"type": "evaluator", "index": 0}))
    assert distribute.MultiWorkerMirroredStrategy().num_replicas_in_sync == 1  # outside the world
    monkeypatch.setenv("TF_CONFIG", "")
    assert not TFConfigClusterResolver().cluster_spec()
    assert distribute.MultiWorkerMirroredStrategy().num_replicas_in_sync == 1


def test_simple_and_union():
    simple = SimpleClusterResolver({"worker": ["a:1", "b:1"]}, task_type="worker", task_id=1, rpc_layer="grpc")
    assert simple.master() == "grpc://b:1" and simple.cluster_spec().num_tasks("worker") == 2
    union = UnionResolver(simple, SimpleClusterResolver({"ps": ["c:1"]}))
    assert union.cluster_spec().as_dict() == {"worker": ["a:1", "b:1"], "ps": ["c:1"]}
    assert (union.task_type, union.task_id) == ("worker", 1)
    with pytest.raises(ValueError, match="UnionResolver: worker is"):
        UnionResolver(simple, SimpleClusterResolver({"worker": ["a:2"]}))
    with pytest.raises(ValueError, match="index is 2"):
        SimpleClusterResolver({"worker": ["a:1"]}, task_type="worker", task_id=2)
    with pytest.raises(ValueError, match="no task 5"):
        simple.cluster_spec().task_address("worker", 5)


def test_slurm(monkeypatch):
    for name in [name for name in os.environ if name.startswith("SLURM")]:
        monkeypatch.delenv(name)
    with pytest.raises(ValueError, match="SLURM_STEP_NODELIST is not set"):
        SlurmClusterResolver()
    step = {"STEP_NODELIST": "n[08-10],m", "STEP_TASKS_PER_NODE": "2(x3),1", "PROCID": "4", "STEP_NUM_TASKS": "7"}
    for name, value in step.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    resolver = SlurmClusterResolver()
    workers = "n08:8888 n08:8889 n09:8888 n09:8889 n10:8888 n10:8889 m:8888".split()
    assert resolver.cluster_spec().as_dict() == {"worker": workers}
    assert resolver.get_task_info() == ("worker", 4)
    assert SlurmClusterResolver({"ps": 3, "worker": 4}).get_task_info() == ("worker", 1)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    with pytest.raises(ValueError, match="SLURM_STEP_NUM_TASKS=8, but the nodes have 7"):
        SlurmClusterResolver()


def test_names_that_are_not_there():
    with pytest.raises(AttributeError, match="TPUClusterResolver.*no TPU backend"):
        _ = cluster_resolver.TPUClusterResolver
    with pytest.raises(AttributeError, match="near: SimpleClusterResolver"):
        _ = cluster_resolver.SimpleClusterResolvr
    with pytest.raises(AttributeError, match="near: MirroredStrategy"):
        _ = distribute.MirroredStrategi


def test_runner():
    def work(start, fails=None):
        from pydist import tensor

        print("here")
        strategy = distribute.MultiWorkerMirroredStrategy()
        rank = strategy.cluster_resolver.task_id
        if rank == fails:
            raise KeyError("it")
        total = strategy.reduce("SUM", tensor([start + rank]), axis=None)
        return strategy.cluster_resolver.task_type, rank, total.item()

    cluster = runner.create_cluster_spec(workers=2)
    done = runner.run(work, cluster, (10,), return_output=True)
    assert done.return_value == [("worker", 0, 21), ("worker", 1, 21)]
    assert sorted(done.stdout) == ["[worker-0]: here", "[worker-1]: here"]
    with pytest.raises(runner.TaskFailed, match="worker 1: .*KeyError") as caught:
        runner.run(work, cluster, (10,), {"fails": 1})
    assert caught.value.task == ("worker", 1) and isinstance(caught.value.__cause__, KeyError)
