"""Arguments that are wrong: one clear error, and the store is as before."""

import re

import pytest

import pydist
from pydist import CommMismatch, distributed, nn, optim
from pydist.distributed import ps
from pydist.testing import RankFailed, run_ranks

MESSAGES = [
    (lambda: ps.create("dist_snyc"), ValueError, "expected one of local, .*dist_sync"),
    (lambda: ps.create(3), TypeError, "name is int"),
    (lambda: ps.create("local", reduce="avg"), ValueError, 'reduce is \'avg\' .expected "sum" or "mean"'),
    (lambda: ps.create("local", nan="ignore"), ValueError, 'nan is \'ignore\''),
    (lambda: ps.create("local", on_death="die"), ValueError, "on_death is 'die'"),
    (lambda: ps.create("dist_async", max_staleness=-1), ValueError, "max_staleness is -1"),
    (lambda: ps.create("dist_async", max_staleness=1.5), ValueError, "max_staleness is 1.5"),
    (lambda: ps.create("dist_async", max_staleness="inf"), ValueError, "max_staleness is 'inf'"),
    (lambda: ps.create("dist_async", max_staleness=True), ValueError, "max_staleness is True"),
    (lambda: ps.create("dist_sync", max_staleness=3), ValueError, "expected dist_async"),
    (lambda: ps.create("dist_async", staleness_lr="half"), ValueError, "staleness_lr is 'half'"),
]  # fmt: skip


@pytest.mark.parametrize("make, error, says", MESSAGES, ids=[m[2][:30] for m in MESSAGES])
def test_create(make, error, says):
    with pytest.raises(error, match=says):
        make()


@pytest.fixture
def kv():
    store = ps.create("local")
    store.init(["a", "b"], [pydist.ones(2, 3), pydist.zeros(4)])
    return store


CALLS = [
    (lambda kv: kv.push("c", pydist.ones(2)), KeyError, "push: key 'c' has no value"),
    (lambda kv: kv.pull("c"), KeyError, "pull: key 'c' has no value"),
    (lambda kv: kv.push(1, pydist.ones(2)), TypeError, "key 1 in a store of str keys"),
    (lambda kv: kv.push(["a", 1], [pydist.ones(2, 3)] * 2), TypeError, "key 1 in a store of str keys"),
    (lambda kv: kv.push(True, pydist.ones(2)), TypeError, "a key is bool"),
    (lambda kv: kv.push(None, pydist.ones(2)), TypeError, "a key is NoneType"),
    (lambda kv: kv.init("a", pydist.ones(2)), ValueError, "key 'a' has a value already"),
    (lambda kv: kv.init("c", [1.0]), TypeError, "the value of key 'c' is float"),
    (lambda kv: kv.init("c", None), TypeError, "the value of key 'c' is NoneType"),
    (lambda kv: kv.init("c" * 2000, pydist.ones(1)), ValueError, "a key of 2000 bytes"),
    (lambda kv: kv.push(["a", "b"], [pydist.ones(2, 3)]), ValueError, "2 keys and 1 values"),
    (lambda kv: kv.push(["a", "b"], pydist.ones(2)), ValueError, "2 keys and Tensor"),
    (lambda kv: kv.push("a", []), ValueError, "key 'a' has an empty list"),
    (lambda kv: kv.push("a", None), TypeError, "gradient.*NoneType|NoneType"),
    (lambda kv: kv.push("a", pydist.ones(3, 2)), ValueError, r"gradient 0 is float32 of shape .*3, 2.* \(expected float32 of"),
    (lambda kv: kv.push("a", pydist.ones(2, 3).double()), ValueError, "gradient 0 is float64"),
    (lambda kv: kv.push(["a", "a"], [pydist.ones(2, 3)] * 2), ValueError, "key 'a' is there twice"),
    (lambda kv: kv.pull("a", pydist.ones(2, 3).double()), ValueError, "output 0 is float64"),
    (lambda kv: kv.pull("a", pydist.ones(3).expand(2, 3)), ValueError, "share memory"),
    (lambda kv: kv.set_optimizer("sdg"), ValueError, "expected one of sgd, nag, adam"),
    (lambda kv: kv.set_optimizer("sgd", lr=0.1), ValueError, "sgd has no option 'lr' .expected one of .*learning_rate"),
    (lambda kv: kv.set_optimizer(optim.LBFGS([pydist.ones(1, requires_grad=True)])), TypeError, "got LBFGS .expected one of SGD"),
    (lambda kv: kv.set_optimizer(3), TypeError, "got int"),
    (lambda kv: kv.set_updater(3), TypeError, "got int .expected a function"),
    (lambda kv: kv.set_gradient_compression("2bit"), TypeError, "got str"),
    (lambda kv: kv.set_gradient_compression({"type": "3bit"}), ValueError, "type is '3bit'"),
    (lambda kv: kv.set_gradient_compression({"type": "2bit", "threshold": 0}), ValueError, "threshold is 0"),
    (lambda kv: kv.save_optimizer_states("x"), RuntimeError, "has no optimizer"),
    (lambda kv: kv.is_capable("wings"), ValueError, "got 'wings'"),
    (lambda kv: kv.metrics("xml"), ValueError, "format is 'xml'"),
    (lambda kv: kv.clock(-1), ValueError, "n is -1"),
]  # fmt: skip


@pytest.mark.parametrize("call, error, says", CALLS, ids=[c[2][:40] for c in CALLS])
def test_calls(kv, call, error, says):
    with pytest.raises(error, match=says):
        call(kv)
    assert [v.tolist() for v in kv.pull(["a", "b"])] == [[[1.0] * 3] * 2, [0.0] * 4]
    kv.push("a", pydist.full((2, 3), 5.0))
    assert kv.pull("a").tolist() == [[5.0] * 3] * 2


def test_an_optimizer_that_comes_late_or_twice(kv):
    kv.set_optimizer("sgd")
    with pytest.raises(RuntimeError, match="key 'a' has an optimizer, sgd"):
        kv.set_optimizer("adam")
    late = ps.create("local")
    late.init(0, pydist.ones(1))
    late.push(0, pydist.ones(1))
    with pytest.raises(RuntimeError, match="key '0' has been pushed to"):
        late.set_optimizer("sgd")


def test_an_updater_that_raises(kv):
    def updater(key, gradient, value):
        raise ZeroDivisionError(f"no update of {key}")

    kv.set_updater(updater)
    with pytest.raises(ZeroDivisionError, match="no update of a"):
        kv.push("a", pydist.ones(2, 3))
    kv.set_updater(lambda key, gradient, value: value.add_(gradient))
    with pytest.raises(ValueError, match=r"gradient of key 'a' is \(2,\)"):
        kv.push("a", pydist.ones(2))
    kv.push("a", pydist.ones(2, 3))
    assert kv.pull("a").tolist() == [[2.0] * 3] * 2


def test_compression_of_other_dtypes():
    kv = ps.create("local")
    kv.init(0, pydist.ones(2).double())
    kv.set_gradient_compression({"type": "2bit"})
    with pytest.raises(TypeError, match="2bit compression of .*float64"):
        kv.push(0, pydist.ones(2).double())


def with_other_shapes(rank):
    kv = ps.create("dist_sync")
    kv.init("w", pydist.ones(2 + rank))


def test_ranks_with_other_shapes():
    with pytest.raises(RankFailed) as e:
        run_ranks(2, with_other_shapes)
    assert isinstance(e.value.__cause__, CommMismatch)
    assert re.search(r"key 'w' is float32 of shape .*3.* on rank 1 and float32 of shape .*2.* on rank 0", str(e.value))


def with_other_options(rank):
    ps.create("dist_async", max_staleness=1 + rank)


def test_ranks_with_other_options():
    with pytest.raises(RankFailed, match="options of rank 1 differ"):
        run_ranks(2, with_other_options)


def with_a_value_that_fails(rank):
    """Rank 0's error reaches the ranks that wait for its value."""
    kv = ps.create("dist_sync")
    kv.set_optimizer("ftrl")
    try:
        kv.init("w", pydist.ones(3, dtype=pydist.float16 if rank == 0 else pydist.float32))
    except Exception as error:
        return type(error), str(error)
    return None


def test_the_error_of_rank_0_is_everybodys():
    (kind, mine), (other, yours) = run_ranks(2, with_a_value_that_fails)
    assert kind is other and mine == yours and "ftrl of float16 values" in mine


def without_an_optimizer(rank):
    kv = ps.create("dist_async")
    kv.init("w", pydist.ones(3))
    with pytest.raises(RuntimeError, match="key 'w' has no optimizer"):
        kv.push("w", pydist.ones(3))
    with pytest.raises(NotImplementedError, match="dist_async with 2 workers"):
        kv.set_updater(print)


def test_asynchronous_pushes_need_an_optimizer():
    run_ranks(2, without_an_optimizer)


def after_the_end(rank):
    kv = ps.create("dist_sync")
    kv.init("w", pydist.ones(3))
    kv.barrier()
    value = kv.value("w")
    distributed.destroy_process_group()
    for call in (lambda: kv.push("w", pydist.ones(3)), lambda: kv.pull("w"), kv.clock):
        with pytest.raises(pydist.DistError):
            call()
    return value.tolist()


def test_after_the_end_of_the_group():
    assert run_ranks(2, after_the_end, processes=True) == [[1.0] * 3] * 2


def alone_in_a_round(rank):
    """One worker pushes and the other leaves: the first one hears of it."""
    kv = ps.create("dist_sync")
    kv.init("w", pydist.ones(3))
    kv.barrier()
    if rank == 0:
        kv.push("w", pydist.ones(3))
        with pytest.raises(distributed.PeerFailed, match="for rank 1, which has left after 0 pushes"):
            kv.pull("w")


def test_a_worker_that_ends_early_is_named():
    run_ranks(2, alone_in_a_round, processes=True)


def too_slow(rank):
    kv = ps.create("dist_sync", group=distributed.new_group(timeout=0.3))
    kv.init("w", pydist.ones(3))
    if rank == 0:
        kv.push("w", pydist.ones(3))
        with pytest.raises(distributed.CommTimeout, match="pull: rank 0 waited 0.* s in round 1 of key 'w' for rank 1"):
            kv.pull("w")
    distributed.barrier()


def test_a_wait_that_takes_too_long():
    run_ranks(2, too_slow)


TRAINERS = [
    (lambda m: ps.Trainer([], "sgd"), ValueError, "no parameter needs a gradient"),
    (lambda m: ps.Trainer([1.0], "sgd"), TypeError, "parameter 'param0' is float"),
    (lambda m: ps.Trainer(m.parameters(), "sgd", {"lr": 1}), ValueError, "sgd has no option 'lr'"),
    (lambda m: ps.Trainer(m.parameters(), optim.SGD(m.parameters()), {"wd": 1}), ValueError, r"options \['wd'\] beside"),
    (lambda m: ps.Trainer(m.parameters(), "sgd", kvstore=ps.create(), reduce="mean"), ValueError, "beside a KVStore"),
    (lambda m: ps.Trainer(m.parameters(), "sgd").step(0), ValueError, "batch_size is 0"),
    (lambda m: ps.Trainer(m.parameters(), "sgd").step(1), ValueError, "parameter 'param0' has no gradient"),
    (lambda m: ps.Trainer(m.parameters(), "sgd").update(1), RuntimeError, "expected update_on_kvstore=False"),
]  # fmt: skip


@pytest.mark.parametrize("make, error, says", TRAINERS, ids=[t[2][:30] for t in TRAINERS])
def test_trainers(make, error, says):
    with pytest.raises(error, match=says):
        make(nn.Linear(2, 2))
