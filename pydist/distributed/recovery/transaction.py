"""A training step that happens on all ranks or on none, even if ranks die during it."""

import weakref

from pydist import _C
from pydist._grad_mode import no_grad
from pydist.distributed import member
from pydist.distributed._group import process_group
from pydist.distributed.recovery.shrink import shrink_group


class _Journal:
    """What a step changes before the optimizer does: buffers and the random counter."""

    def __init__(self, modules):
        self.places = {(id(m._buffers), name): (m._buffers, name) for m in modules for name in m._buffers}
        self.kept = {}  # by address: (the buffer, a copy)

    @no_grad()
    def begin(self):
        self.random = _C._rng_key()
        for place, (register, name) in self.places.items():
            buffer = register.get(name)
            kept, copy = self.kept.get(place, (None, None))
            if buffer is None or buffer is not kept or buffer.shape != copy.shape:
                self.kept[place] = buffer, None if buffer is None else buffer.clone()
            else:
                copy.copy_(buffer)

    @no_grad()
    def undo(self):
        set_random(self.random)
        for place, (register, name) in self.places.items():
            buffer, copy = self.kept[place]
            if buffer is not None:
                buffer.data.copy_(copy)
            register[name] = buffer


def weak_gate(transaction):
    """A hook of an optimizer that waits at the gate of the attempt under way, if it is one of logical shards."""
    known = weakref.ref(transaction)

    def wait(optimizer, args, kwargs):
        attempt = getattr(known(), "_running", None)
        if hasattr(attempt, "pass_gate"):
            attempt.pass_gate()

    return wait


def set_random(state):
    """Takes the seed and counter of `state`, but keeps this rank's own stream."""
    seed, counter, _ = state
    _C.set_rng_state((seed, counter, _C._rng_key()[2]))


class Transaction:
    """Makes each training step happen on all live ranks or on none of them, even if ranks die during it.

    `objects` are all objects that training changes and that have state_dict() and load_state_dict(): modules,
    optimizers, schedulers. The body of the loop is one step, from zero_grad() to what follows optimizer.step(). Usually
    it runs once. If ranks die, during the step or since the last one, the survivors make the default group anew without
    them (shrink_group). If one of the survivors has completed the step already, the others take its state, and the step
    counts. Otherwise the buffers and the random counter get their old values back, gradients become None, and the body
    runs again for the same batch. Either way all survivors have the bits of a step that every rank did or that no rank
    began.

        step = dist.Transaction(model, optimizer)
        for x, y in loader:
            for attempt in step:
                with attempt:
                    optimizer.zero_grad()
                    loss_fn(model(x), y).backward()
                    optimizer.step()

    Only PeerFailed is caught. Survivors keep their batches; the dead rank's remaining batches of this epoch are lost,
    and samplers use the new number of ranks only when they are made again. A rank has completed a step once a parameter
    has changed: with several optimizers, give each of them its own loop. An attempt without a failure costs a copy of
    the buffers; if parameters are on a GPU, backward also waits until their gradients are complete. Start with
    `pydist.run --on-failure=keep`: otherwise the launcher ends the survivors.

    All members of the old group go on in the new one: every DistributedDataParallel, every other Transaction, and every
    other registered object (distributed.member).

    `steps`: how many steps were made. Raises TypeError for objects without state_dict; NotImplementedError if the group
    cannot be made anew (see shrink_group), or if a module is a member of a group that is not the default group.

    >>> import pydist
    >>> from pydist import distributed as dist
    >>> model = pydist.nn.Linear(2, 1)
    >>> optimizer = pydist.optim.SGD(model.parameters(), lr=0.1)
    >>> step = dist.Transaction(model, optimizer)
    >>> for attempt in step:
    ...     with attempt:
    ...         model(pydist.ones(1, 2)).sum().backward()
    ...         optimizer.step()
    >>> step.steps
    1
    """

    def __init__(self, *objects, balance=False):
        for item in objects:
            if not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
                raise TypeError(
                    f"Transaction: {type(item).__name__} (expected an object with state_dict and load_state_dict)"
                )
        self.steps = 0
        self._objects = objects
        models = [item for item in objects if hasattr(item, "_buffers") and hasattr(item, "modules")]
        modules = [module for model in models for module in model.modules()]
        self._params = [p for model in models for p in model.parameters()]
        for module in modules:
            if member.group_of(module) not in (None, process_group._existing()):
                raise NotImplementedError(
                    f"Transaction: {type(module).__name__} is in a group of its own (expected the default group)"
                )
        self._journal = _Journal(modules)
        self._running = None  # the attempt under way
        self._balance = bool(balance)
        for item in objects:
            if hasattr(item, "register_step_pre_hook"):
                item.register_step_pre_hook(weak_gate(self))
        self._register()

    def _register(self):
        """Registers in the default group, if there is one. Without a group no other rank can die."""
        group = process_group._existing()
        if group is not None and member.group_of(self) is not group:
            member.register(self, group)
        return group

    def __iter__(self):
        before = self.steps
        while self.steps == before:
            self._entered = False
            yield self
            if not self._entered:
                raise RuntimeError(
                    "Transaction: an attempt without `with attempt:` (expected `with attempt:` around the loop's body)"
                )

    def __enter__(self):
        if self._running is not None:
            raise RuntimeError("Transaction: an attempt inside another attempt (expected one at a time)")
        self._entered = True
        self._versions = [p._version for p in self._params]
        self._begin_attempt(self)
        return self

    def _begin_attempt(self, attempt):
        self._journal.begin()
        self._settle(True)
        self._running = attempt

    def _end_attempt(self):
        self._running = None
        self._settle(False)

    def _settle(self, on):
        """Settles the members: with on=True a backward returns only when its gradients are complete, also on a GPU.
        Only then may the optimizer's step begin."""
        group = self._register()
        if group is not None:
            member.settle(on, group)

    def __exit__(self, kind, error, trace):
        self._end_attempt()
        if kind is None:
            self.steps += 1
        elif issubclass(kind, _C.PeerFailed):
            self._recover()
            return True
        return False

    def _recover(self):
        if [p._version for p in self._params] != self._versions:
            self.steps += 1
            self._drop_gradients()
        else:
            self._undo()
        group = process_group.current()
        while True:
            try:
                before, group = group, shrink_group()
                member.rejoin(before, group)
            except _C.PeerFailed:  # another rank died meanwhile
                continue
            return

    def _undo(self):
        """Gives back what an attempt has changed."""
        self._journal.undo()
        self._drop_gradients()

    def _drop_gradients(self):
        for item in self._objects:
            if hasattr(item, "zero_grad"):
                item.zero_grad(set_to_none=True)
            if hasattr(item, "_forget_step"):
                item._forget_step()

    # ---- steps of logical shards

    def over(self, loader, accumulate=1, count=None, overlap=True):
        """Attempts of the steps of one epoch over `loader`, whose arguments are those of distributed.shards. With them
        a death changes no bit: the survivors run the dead rank's logical shards, and the step has the result that it
        would have had.

            step = dist.Transaction(model, optimizer)
            for attempt in step.over(loader):
                with attempt:
                    optimizer.zero_grad()
                    for shard in attempt:
                        for x, y in shard:
                            loss_fn(model(x), y).backward()
                    optimizer.step()          # waits until all ranks have the gradient
                if attempt.made:              # False: the step will be tried again
                    scheduler.step()

        optimizer.step() is the last thing in the block that may wait for other ranks. `attempt.mean()` must be called
        before it. With several optimizers the first step waits. A step that GradScaler skips counts as made. With
        balance=True in the constructor the ranks' shares of the shards follow their speeds every 16 steps, which changes
        no bit either: see distributed.work_shares.
        """
        from pydist.distributed.recovery.attempts import attempts

        return attempts(self, loader, accumulate, count, overlap, self._balance)

    # ---- as a member (distributed.member): all survivors get to the newest step that one of them has made

    def settle(self, on):
        """Does nothing: everything that a Transaction starts has ended when its call returns."""

    def rejoin(self, group):
        """Does nothing: a Transaction keeps nothing that belongs to a group; rejoin has brought its state up to date
        already."""

    def state_dict(self):
        """What a rank that has made fewer steps loads: the objects' states, the random counter and `steps`."""
        return {
            "steps": self.steps,
            "objects": [item.state_dict() for item in self._objects],
            "random": _C._rng_key(),
        }

    def load_state_dict(self, state):
        """Loads a state_dict() of a Transaction with the same objects. This rank keeps its own random stream."""
        for item, values in zip(self._objects, state["objects"]):
            item.load_state_dict(values)
        set_random(state["random"])
        self.steps = state["steps"]
