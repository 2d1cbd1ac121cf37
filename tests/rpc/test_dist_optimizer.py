"""Optimizers over workers and ranks: the bits of a local optimizer."""

import gc
import os
import signal
import threading
import time

import pytest

import pydist
from pydist import optim
from pydist.distributed import PeerFailed, autograd, rpc
from pydist.distributed.optim import (
    DistributedAdam,
    DistributedOptimizer,
    DistributedSGD,
    as_functional_optim,
    functional,
    register_functional_optim,
)
from pydist.testing import run_ranks

RULES = {
    "Adagrad": dict(lr=0.05),
    "Adam": dict(lr=1e-2, amsgrad=True),
    "AdamW": dict(lr=0.05, amsgrad=True),
    "SGD": dict(lr=1e-3, momentum=0.9, weight_decay=0.1, nesterov=True),
    "Adadelta": dict(rho=0.95),
    "RMSprop": dict(lr=0.05, momentum=0.1),
    "Adamax": dict(lr=0.05),
    "Rprop": dict(lr=0.05),
}
STEPS = 5


def make(rank, requires_grad=True):
    generator = pydist.Generator().manual_seed(rank)
    return [pydist.randn(7, 3, generator=generator, requires_grad=requires_grad), pydist.ones(3, requires_grad=True)]


def value(params, step):
    weight, bias = params
    return ((weight * weight * (step + 1) + bias).tanh() * weight).sum()


def bits(tensors):
    return [t.detach().numpy().tobytes() for t in tensors]


def local(rule, owners=3):
    """The parameters after steps of one optimizer."""
    params = [make(rank) for rank in range(owners)]
    optimizer = getattr(optim, rule)([p for of in params for p in of], **RULES[rule])
    for step in range(STEPS):
        optimizer.zero_grad()
        sum(value(of, step) for of in params).backward()
        optimizer.step()
    return [bits(of) for of in params]


# ---- one worker


@pytest.fixture
def alone():
    rpc.init_rpc("worker0", rank=0, world_size=1)
    yield
    gc.collect()
    stats = rpc.stats()
    rpc.shutdown()
    assert stats["owner_rrefs"] == 0 and not autograd._contexts._making.locked()


def references(params):
    return [rpc.RRef(p) for p in params]


def test_grad_stays_as_it_is(alone):
    weight, bias = make(0)
    unused = pydist.ones(2, requires_grad=True)
    weight.grad = kept = pydist.full_like(weight, 7)
    optimizer = DistributedOptimizer(optim.SGD, references([weight, bias, unused]), lr=0.5)
    with autograd.context() as context_id:
        autograd.backward(context_id, [(weight * 2).sum() + bias.sum()])
        before = weight.detach().clone()
        optimizer.step(context_id)
        optimizer.step(context_id)  # the context's gradients are still there
    assert weight.grad is kept and bias.grad is None and unused.tolist() == [1, 1]
    assert pydist.equal(weight.detach(), before - 1 - 1) and bias.tolist() == [0, 0, 0]


def test_what_requires_no_gradient_is_left_alone(alone):
    weight, bias = make(0, requires_grad=False)
    before = bits([weight])
    optimizer = DistributedOptimizer(optim.RMSprop, references([weight, bias]), lr=0.05)
    with autograd.context() as context_id:
        autograd.backward(context_id, [(weight * bias).sum()])
        optimizer.step(context_id)
    assert bits([weight]) == before and bias.tolist() != [1, 1, 1]


class Failing(optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {})

    def step(self, closure=None):
        raise ValueError("Error running optimizer.")


class FailingOnConstructor(optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {})
        raise ValueError("Error creating optimizer.")


def test_what_is_wrong(alone):
    weight, bias = params = make(0)
    with pytest.raises(TypeError, match=r"parameter 0 is Tensor .expected RRef.*DistributedOptimizer.optimizer"):
        DistributedOptimizer(optim.SGD, params, lr=0.1)
    with pytest.raises(TypeError, match="parameter 0 is NoneType"):
        DistributedOptimizer(optim.SGD, None, lr=0.1)
    with pytest.raises(ValueError, match="got an empty parameter list"):
        DistributedOptimizer(optim.SGD, [], lr=0.1)
    for no_optimizer in (pydist.nn.Linear, "SGD", lambda params: None):
        with pytest.raises(TypeError, match="is no optimizer"):
            DistributedOptimizer(no_optimizer, references(params))
    with pytest.raises(TypeError, match="parameter 1 of this worker is str"):
        DistributedOptimizer(optim.SGD, references([weight, "text"]), lr=0.1)
    with pytest.raises(ValueError, match="can't optimize a non-leaf Tensor"):
        DistributedOptimizer(optim.SGD, references([weight * 2]), lr=0.1)
    with pytest.raises(ValueError, match="Error creating optimizer."):
        DistributedOptimizer(FailingOnConstructor, references(params))
    with pytest.raises(TypeError, match="speed"):
        DistributedOptimizer(optim.SGD, references(params), speed=1)
    with pytest.raises(TypeError, match="got 1 options with an optimizer"):
        DistributedOptimizer(optim.SGD(params, lr=0.1), lr=0.1)
    with pytest.raises(TypeError, match="got a process group with references"):
        DistributedSGD(references(params), lr=0.1, process_group=pydist.distributed.group.WORLD)
    optimizer = DistributedOptimizer(Failing, references(params))
    with pytest.raises(AttributeError, match="param_groups"):
        optimizer.param_groups
    with pytest.raises(RuntimeError, match="Could not find autograd context with id: 100"):
        optimizer.step(100)
    kept = weight.grad = pydist.zeros_like(weight)
    with autograd.context() as context_id:
        autograd.backward(context_id, [(weight * bias).sum()])
        with pytest.raises(ValueError, match="Error running optimizer."):
            optimizer.step(context_id)
        assert weight.grad is kept
        DistributedOptimizer(optim.SGD, references(params), lr=0.1).step(context_id)
    assert bias.tolist() != [1, 1, 1]


def test_optimizers_that_share_a_parameter_take_turns(alone):
    """Others do not wait for them."""
    shared, other, apart = (pydist.ones(1, requires_grad=True) for _ in range(3))
    inside, leave, order = threading.Event(), threading.Event(), []

    class Waits(optim.SGD):
        def step(self, closure=None):
            order.append("first begins")
            inside.set()
            assert leave.wait(10)
            order.append("first ends")
            return super().step()

    class Notes(optim.SGD):
        def step(self, closure=None):
            order.append("second")
            return super().step()

    first = DistributedOptimizer(Waits, references([shared]), lr=1.0)
    second = DistributedOptimizer(Notes, references([other, shared]), lr=1.0)
    third = DistributedOptimizer(Notes, references([apart]), lr=1.0)
    with autograd.context() as context_id:
        autograd.backward(context_id, [(shared + other + apart).sum()])
        threads = [threading.Thread(target=optimizer.step, args=(context_id,)) for optimizer in (first, second)]
        threads[0].start()
        assert inside.wait(10)
        threads[1].start()
        third.step(context_id)
        time.sleep(0.05)
        assert order == ["first begins", "second"] and apart.tolist() == [0]
        leave.set()
        for thread in threads:
            thread.join()
    assert order == ["first begins", "second", "first ends", "second"]
    assert (shared.tolist(), other.tolist()) == ([-1], [0])


def test_a_registered_functional_optimizer(alone):
    class Sign:
        def __init__(self, params, lr=1.0, _allow_empty_param_list=False):
            self.params, self.lr = params, lr

        def step(self, gradients):
            for param, grad in zip(self.params, gradients):
                if grad is not None:
                    param.data.sub_(grad.sign() * self.lr)

    try:
        register_functional_optim("sign of the test", Sign)
        register_functional_optim("sign of the test", None)  # there is one already
        weight, unused = pydist.ones(2, requires_grad=True), pydist.ones(1, requires_grad=True)
        optimizer = DistributedOptimizer("sign of the test", references([weight, unused]), lr=0.25)
        with autograd.context() as context_id:
            autograd.backward(context_id, [(weight * pydist.tensor([3.0, -3.0])).sum()])
            optimizer.step(context_id)
        assert weight.tolist() == [0.75, 1.25] and unused.tolist() == [1]
    finally:
        functional.functional_optim_map.pop("sign of the test")


# ---- three workers


class Owner:
    """What one worker has."""

    def __init__(self, rank):
        self.params = make(rank)

    def references(self):
        return references(self.params)

    def value(self, step):
        return value(self.params, step)

    def bits(self):
        return bits(self.params)


def all_rules(rank):
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=3)
    found = {}
    if rank == 0:
        for rule, options in RULES.items():
            owners = [rpc.remote(f"worker{to}", Owner, args=(to,)) for to in range(3)]
            params = [rref for owner in owners for rref in owner.rpc_sync().references()]
            optimizer = DistributedOptimizer(getattr(optim, rule), params, **options)
            for step in range(STEPS):
                with autograd.context() as context_id:
                    values = [owner.rpc_async().value(step) for owner in owners]
                    autograd.backward(context_id, [sum(future.wait() for future in values)])
                    optimizer.step(context_id)
            found[rule] = [owner.rpc_sync().bits() for owner in owners]
        try:
            DistributedOptimizer(Failing, params).step(context_id)
        except RuntimeError as error:
            found["ended context"] = str(error)
        with autograd.context() as context_id:
            autograd.backward(context_id, [owners[0].rpc_sync().value(0)])
            optimizer.step(context_id)  # no call has carried the context to the others
            try:
                DistributedOptimizer(Failing, params).step(context_id)
            except ValueError as error:
                found["errors"] = str(error), getattr(error, "__notes__", [])
        found["kept"] = [rpc.rpc_sync(f"worker{to}", kept) for to in range(3)]
        del optimizer, owners, params
        gc.collect()
        deadline = time.monotonic() + 10
        while any(rpc.rpc_sync(f"worker{to}", kept) for to in range(3)) and time.monotonic() < deadline:
            time.sleep(0.01)
        found["freed"] = [rpc.rpc_sync(f"worker{to}", kept) for to in range(3)]
    rpc.shutdown()
    return found


def kept():
    gc.collect()
    return rpc.stats()["owner_rrefs"]


@pytest.fixture(scope="module")
def processes():
    return run_ranks(3, all_rules, processes=True, timeout=300)[0]


@pytest.mark.parametrize("rule", RULES)
def test_three_owners_have_the_bits_of_one_optimizer(processes, rule):
    assert processes[rule] == local(rule)


def test_errors_of_owners(processes):
    text, notes = processes["errors"]
    assert "Error running optimizer." in text
    assert "\n".join([text, *notes]).count("also: ") == 2
    assert "Could not find autograd context" in processes["ended context"]


def test_owners_free_their_optimizers(processes):
    assert min(processes["kept"][1:]) >= 3 and processes["freed"] == [0, 0, 0]


def with_a_dead_owner(rank):
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=3)
    try:
        if rank == 0:
            owners = [rpc.remote(f"worker{to}", Owner, args=(to,)) for to in range(3)]
            params = [rref for owner in owners for rref in owner.rpc_sync().references()]
            optimizer = DistributedOptimizer(optim.SGD, params, lr=0.1)
            with autograd.context() as context_id:
                values = [owner.rpc_sync().value(0) for owner in owners]
                autograd.backward(context_id, [sum(values)])
                before = [owner.rpc_sync().bits() for owner in owners[:2]]
                rpc.rpc_async("worker2", os.kill, args=(rpc.rpc_sync("worker2", os.getpid), signal.SIGKILL))
                begin = time.monotonic()
                try:
                    optimizer.step(context_id)
                except PeerFailed as error:
                    took = time.monotonic() - begin
                    stepped = [owner.rpc_sync().bits() for owner in owners[:2]]
                    return error.rank, took, [a != b for a, b in zip(before, stepped)]
        return None
    finally:
        rpc.shutdown(timeout=30)  # the dead one counts as arrived


def test_a_dead_owner():
    rank, took, stepped = run_ranks(3, with_a_dead_owner, processes=True, return_exceptions=True)[0]
    assert rank == 2 and took < 1 and stepped == [True, True]


# ---- the short forms


def net():
    pydist.manual_seed(4)
    return pydist.nn.Sequential(pydist.nn.Linear(6, 12), pydist.nn.ReLU(), pydist.nn.Linear(12, 3))


def trained(rank, world, form, steps=4):
    """The bits of a model whose ranks have seen parts of a batch each."""
    model = net()
    wrapped = pydist.nn.parallel.DistributedDataParallel(model) if "ddp" in form else model
    if form.startswith("Distributed"):
        rule = dict(DistributedSGD=(DistributedSGD, 0.1), DistributedAdam=(DistributedAdam, 0.01))[form.split()[0]]
        optimizer = rule[0](wrapped.parameters(), lr=rule[1])
    else:
        name, lr = ("Adam", 0.01) if "Adam" in form else ("SGD", 0.1)
        optimizer = getattr(optim, name)(wrapped.parameters(), lr=lr)
        if "wrapped" in form:
            optimizer = DistributedOptimizer(optimizer)
    generator = pydist.Generator().manual_seed(1)
    for _ in range(steps):
        x = pydist.randn(4 * world, 6, generator=generator)[4 * rank : 4 * rank + 4]
        loss = (wrapped(x) ** 2).mean()
        if "plain" in form:
            optimizer.zero_grad()
        pydist.distributed.autograd.autograd_backward(loss)
        optimizer.step()
        assert "plain" in form or all(p.grad is None for p in model.parameters())
    return bits(model.parameters())


@pytest.mark.parametrize("rule", ["SGD", "Adam"])
@pytest.mark.parametrize("world", [1, 2])
def test_short_forms_have_the_bits_of_ddp(rule, world):
    wanted = run_ranks(world, trained, world, f"{rule} plain ddp")
    assert all(result == wanted[0] for result in wanted)
    for form in (f"{rule} wrapped", f"{rule} wrapped ddp", f"Distributed{rule}", f"Distributed{rule} ddp"):
        assert run_ranks(world, trained, world, form) == wanted, form


def test_what_ddp_has_averaged_is_not_sent_again():
    """With three ranks a second mean would round."""
    wanted = run_ranks(3, trained, 3, "SGD plain ddp")
    assert run_ranks(3, trained, 3, "SGD wrapped ddp") == wanted


def test_attributes_of_the_local_optimizer(alone):
    weight = pydist.ones(2, requires_grad=True)
    optimizer = DistributedOptimizer(optim.SGD([weight], lr=0.5))
    assert optimizer.param_groups[0]["lr"] == 0.5 and "param_groups" in optimizer.state_dict()
    with pytest.raises(TypeError, match="got a context with a local optimizer"):
        optimizer.step(3)


# ---- functional optimizers


@pytest.mark.parametrize("rule", RULES)
def test_functional_optimizers_have_the_bits_of_local_ones(rule):
    params, others = make(0), make(0)
    optimizer, given = (
        getattr(optim, rule)(params, **RULES[rule]),
        as_functional_optim(getattr(optim, rule), **RULES[rule]),
    )
    together = functional.functional_optim_map[getattr(optim, rule)](thirds := make(0), **RULES[rule])
    for step in range(STEPS):
        optimizer.zero_grad()
        value(params, step).backward()
        for param, other in zip(params, others):
            given.step_param(other, param.grad)
            assert other.grad is None
        together.step([param.grad for param in params])
        optimizer.step()
        given.step_param(others[0], None)
    assert bits(params) == bits(others) == bits(thirds)
    assert set(given.state) == set(others)
    with pytest.raises(ValueError, match="does not equal to the size of the parameters"):
        together.step([])


def test_functional_optimizers_that_are_not_there():
    with pytest.raises(ValueError, match=r"does not have a functional counterpart! .expected one of Adadelta, Adagrad"):
        as_functional_optim(optim.LBFGS)
    with pytest.raises(ValueError, match="empty parameter list"):
        functional.functional_optim_map[optim.SGD]([], lr=0.1)
