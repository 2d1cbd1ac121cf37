"""A training step that happens on all ranks or on none, also where ranks die in it."""

from pydist import _C
from pydist._grad_mode import no_grad
from pydist.distributed._group.process_group import current
from pydist.distributed._ops.objects import all_gather_object, broadcast_object_list
from pydist.distributed.recovery.shrink import shrink_group
from pydist.nn.modules.module import Module
from pydist.nn.parallel.distributed import DistributedDataParallel


class _Journal:
    """What a step writes before the optimizer does: buffers and the random counter."""

    def __init__(self, models):
        self.places = {(id(m._buffers), name): (m._buffers, name) for model in models for m in model.modules()
                       for name in m._buffers}  # fmt: skip
        self.kept = {}  # by place: (the buffer, a copy)

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


def set_random(state):
    """Seed and counter of `state`, in this rank's own stream."""
    seed, counter, _ = state
    _C.set_rng_state((seed, counter, _C._rng_key()[2]))


class Transaction:
    """Makes each training step happen on all ranks that live, or on none of them, also where ranks die in it.

    `objects` are all that training changes and that has state_dict() and load_state_dict(): modules, optimizers,
    schedulers. The body of the loop is one step, from zero_grad() to what follows optimizer.step(). Usually it runs
    once. Where ranks die, in it or since the last one, the survivors form the default group anew without them
    (shrink_group). If one of them has made the step already, the others take its state, and the step counts;
    else buffers and the random counter become what they were, gradients None, and the body runs again for the same
    batch. Either way all survivors have the bits of a step that everybody did or nobody began.

        step = dist.Transaction(model, optimizer)
        for x, y in loader:
            for attempt in step:
                with attempt:
                    optimizer.zero_grad()
                    loss_fn(model(x), y).backward()
                    optimizer.step()

    Only PeerFailed is caught. Survivors keep their batches; what the dead rank had of this epoch is not made up for, and
    samplers know the new number of ranks once they are made anew. A step counts as made on a rank once a parameter has
    changed: with several optimizers, give each its own loop. In an attempt that nobody fails in, it costs a copy of the
    buffers and, where parameters are on a GPU, that backward returns once their gradients are there. Start with `pydist.run --on-failure=keep`: the launcher otherwise ends the survivors.

    `steps`: how many were made. Raises TypeError for objects without state_dict; NotImplementedError where the group
    cannot be made anew (see shrink_group), or where a DistributedDataParallel uses other than the default group.

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

    def __init__(self, *objects):
        for item in objects:
            if not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
                raise TypeError(f"Transaction: {type(item).__name__} (expected objects with state_dict)")
        self.steps = 0
        self._objects = objects
        models = [item for item in objects if isinstance(item, Module)]
        self._params = [p for model in models for p in model.parameters()]
        self._replicas = [m for model in models for m in model.modules() if isinstance(m, DistributedDataParallel)]
        for replica in self._replicas:
            if replica.process_group is not current():
                raise NotImplementedError("Transaction: a module in a group of its own (expected the default group)")
        self._journal = _Journal(models)
        self._running = False

    def __iter__(self):
        before = self.steps
        while self.steps == before:
            self._entered = False
            yield self
            if not self._entered:
                raise RuntimeError("Transaction: an attempt without `with attempt:` (expected it in the loop's body)")

    def __enter__(self):
        if self._running:
            raise RuntimeError("Transaction: an attempt within another one (expected one at a time)")
        if any(replica._join_config.enable for replica in self._replicas):
            raise NotImplementedError("Transaction: within join, whose ranks do not all make the same steps")
        self._entered = True
        self._journal.begin()
        self._versions = [p._version for p in self._params]
        self._running = True
        self._wait(True)
        return self

    def _wait(self, on):
        """Whether a GPU's gradients are there when backward returns: only then may the step begin."""
        for replica in self._replicas:
            replica.reducer.waits = on

    def __exit__(self, kind, error, trace):
        self._running = False
        self._wait(False)
        if kind is None:
            self.steps += 1
        elif issubclass(kind, _C.PeerFailed):
            self._recover()
            return True
        return False

    def _recover(self):
        if [p._version for p in self._params] != self._versions:
            self.steps += 1
        else:
            self._journal.undo()
        for item in self._objects:
            if hasattr(item, "zero_grad"):
                item.zero_grad(set_to_none=True)
        while True:
            try:
                shrink_group()
                self._agree()
            except _C.PeerFailed:  # another one, meanwhile
                continue
            return

    def _agree(self):
        """The survivors in the new group: all get to the newest step that one of them has made."""
        rows = [None] * current().size
        all_gather_object(rows, self.steps)
        newest = max(rows)
        if min(rows) < newest:
            state = [[item.state_dict() for item in self._objects], _C._rng_key()]
            broadcast_object_list(state, group_src=rows.index(newest))
            if self.steps < newest:
                for item, values in zip(self._objects, state[0]):
                    item.load_state_dict(values)
                set_random(state[1])
                self.steps = newest
        for replica in self._replicas:
            replica._join_group()
