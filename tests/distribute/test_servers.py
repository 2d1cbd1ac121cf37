"""Parameter servers as tasks of one process: closures on workers, lost workers and servers, partitioners."""

import threading
import time

import pytest

import pydist
from pydist import distribute
from pydist.distribute import runner
from pydist.distribute.cluster_resolver import SimpleClusterResolver
from pydist.distribute.coordinator import ClusterCoordinator, experimental_get_current_worker_index
from pydist.distribute.experimental import partitioners


@pytest.fixture
def cluster():
    """(ParameterServerStrategy of two workers and two servers, {(job, index): Server})."""
    spec = runner.create_cluster_spec(workers=2, ps=2)
    servers = {(job, i): distribute.Server(spec, job, i) for job in ("worker", "ps") for i in range(2)}
    yield distribute.ParameterServerStrategy(SimpleClusterResolver(spec)), servers
    for server in servers.values():
        server.stop()


def test_functions_run_on_the_workers_at_the_same_time(cluster):
    coordinator = ClusterCoordinator(cluster[0])
    both = threading.Barrier(2)

    def work(x, offset=0):
        both.wait(10)  # ends only if two of them run
        return {"x": x + offset, "worker": experimental_get_current_worker_index()}

    results = [coordinator.schedule(work, (pydist.tensor(float(i)),), {"offset": 10}) for i in range(4)]
    coordinator.join()
    assert coordinator.done()
    found = coordinator.fetch({"all": results})["all"]
    assert [float(one["x"]) for one in found] == [10, 11, 12, 13]
    assert {one["worker"] for one in found} == {0, 1}
    assert results[0].get()["x"].item() == 10


def test_each_worker_has_its_own_data(cluster):
    strategy = cluster[0]
    coordinator = ClusterCoordinator(strategy)

    def dataset_fn():
        return strategy.distribute_datasets_from_function(
            lambda context: [(context.input_pipeline_id, i) for i in range(100)]
        )

    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
    both = threading.Barrier(2)  # each worker makes its own

    def take(iterator, first):
        if first:
            both.wait(10)
        return next(iterator)

    results = [coordinator.schedule(take, (iterator, k < 2)) for k in range(20)]
    seen = coordinator.fetch(results)
    for worker in (0, 1):
        assert any(index == worker for index, i in seen)
        mine = [i for index, i in seen if index == worker]
        assert sorted(mine) == list(range(len(mine)))
    with pytest.raises(TypeError, match="outside a function of schedule"):
        next(iterator)
    whole = iter(coordinator.create_per_worker_dataset([7, 8]))
    assert coordinator.schedule(next, (whole,)).fetch() == 7


def test_an_error_comes_with_the_next_call(cluster):
    coordinator = ClusterCoordinator(cluster[0])
    wait = threading.Event()

    def fails():
        wait.wait(10)
        raise KeyError("it")

    first = [coordinator.schedule(fails) for _ in range(2)]
    given_up = [coordinator.schedule(lambda: 1) for _ in range(3)]
    wait.set()
    with pytest.raises(KeyError):
        coordinator.join()
    assert coordinator.schedule(lambda: 5).fetch() == 5  # the error has been said
    for result in (*first, *given_up):
        with pytest.raises(KeyError):
            result.fetch()


def test_a_lost_worker(cluster):
    """Its closure runs again on the other one; without a worker nothing hangs."""
    strategy, servers = cluster
    coordinator = ClusterCoordinator(strategy)
    runs, go_on = [], threading.Event()

    def work():
        runs.append(experimental_get_current_worker_index())
        if len(runs) == 1:
            servers["worker", runs[0]].stop()
            go_on.wait(10)
        return runs[-1]

    result = coordinator.schedule(work)
    while not runs:
        time.sleep(0.001)
    go_on.set()
    assert result.fetch() == 1 - runs[0] and len(runs) == 2
    servers["worker", 1 - runs[0]].stop()
    with pytest.raises(pydist.PeerFailed, match=r"schedule: no worker is left of worker 0 \(127.0.0.1:\d+\), worker 1"):
        coordinator.schedule(work)
    with pytest.raises(pydist.PeerFailed, match="no worker is left"):
        coordinator.join()


def test_what_is_refused(cluster):
    strategy, servers = cluster
    spec = strategy.cluster_resolver.cluster_spec()
    with pytest.raises(ValueError, match=r"Server: worker 0 \(\S+\) runs in this process already"):
        distribute.Server(spec, "worker", 0)
    with pytest.raises(ValueError, match="ParameterServerStrategy: the cluster has no ps"):
        distribute.ParameterServerStrategy(SimpleClusterResolver({"worker": spec.job_tasks("worker")}))
    with pytest.raises(NotImplementedError, match=r"ps 1 \(127.0.0.1:1\) is no task of this process"):
        other = {"worker": spec.job_tasks("worker"), "ps": [spec.job_tasks("ps")[0], "127.0.0.1:1"]}
        distribute.ParameterServerStrategy(SimpleClusterResolver(other))
    with pytest.raises(ValueError, match="strategy is MirroredStrategy"):
        ClusterCoordinator(distribute.MirroredStrategy())
    with pytest.raises(TypeError, match="fn is int"):
        ClusterCoordinator(strategy).schedule(3)
    assert servers["ps", 0].target.startswith("grpc://") and servers["ps", 0].runs


def test_partitioners_as_tensorflow():
    """The numbers are TensorFlow 2.21's."""
    shapes = [8, 4], [2, 4], [1], [100, 3], [7], [24], [25], [9, 4], [40, 1], [3, 100]
    expected = {
        partitioners.FixedShardsPartitioner(3): [3, 2, 1, 3, 3, 3, 3, 3, 3, 3],
        partitioners.MinSizePartitioner(min_shard_bytes=64, max_shards=9): [2, 1, 1, 9, 1, 2, 2, 3, 3, 3],
        partitioners.MaxSizePartitioner(max_shard_bytes=64): [2, 1, 1, 20, 1, 2, 2, 3, 3, 3],
        partitioners.MaxSizePartitioner(max_shard_bytes=64, max_shards=2): [2, 1, 1, 2, 1, 2, 2, 2, 2, 2],
    }
    for partitioner, parts in expected.items():
        assert [partitioner(shape, pydist.float32) for shape in shapes] == [
            [part, *[1] * (len(shape) - 1)] for part, shape in zip(parts, shapes)
        ]
    with pytest.raises(ValueError, match="no dimensions"):
        partitioner((), pydist.float32)
    with pytest.raises(ValueError, match="num_shards is 0"):
        partitioners.FixedShardsPartitioner(0)
