"""Variables that replicas change: those of Keras and of tf.Variable, besides the buffers of pydist's own modules.

A variable is an object with `_value` (its tensor), `trainable` and `aggregation`, like keras.Variable. After a run of all
replicas it has what its aggregation says: "sum" adds what the replicas have made of it, where all but the first one begin
at zero, so metrics count every row once; "only_first_replica" takes the first replica that has rows; otherwise it is the
mean over the replicas, by their rows, and integers are left as they are. An optimizer's variables change in its step only.
"""

import weakref

from pydist._grad_mode import no_grad
from pydist.distribute.context import here
from pydist.distribute.made import Made

__all__ = ["Round", "Variables", "assigned"]


class Variables(Made):
    """The variables that were made in a strategy's scope."""

    def __init__(self):
        super().__init__()
        self._optimizers = []
        # Those that replicas change, and may not go on one rank before another; and all there were, weakly.
        self._changing, self._state = [], []

    def add_optimizer(self, optimizer):
        """Adds an object with `variables` of its own."""
        self._optimizers.append(weakref.ref(optimizer))

    def add_missing(self, variables, optimizer=None):
        """Adds those that were made outside the scope."""
        known = set(map(id, self.all()))
        for v in variables:
            if id(v) not in known:
                self.add(v)
        if optimizer is not None and all(made() is not optimizer for made in self._optimizers):
            self.add_optimizer(optimizer)

    def with_values(self):
        """All that are left and have a value."""
        return [v for v in self.all() if v._value is not None]

    def begin(self):
        """From now on the variables are those that there are now, on all ranks."""
        owned = {id(v) for o in (made() for made in self._optimizers) if o is not None for v in o.variables}
        variables = self.with_values()
        self._state = list(map(weakref.ref, variables))
        self._changing = [v for v in variables if id(v) not in owned]

    def state(self):
        """The tensors of all variables there were at `begin`, in the same order on all ranks; None for one that is gone."""
        return [None if v is None else v._value for v in (made() for made in self._state)]

    def changed_by_replicas(self):
        """Those that a replica may change: neither an optimizer's nor trained, unless they say how they are combined. One
        that was made since `begin` is not among them: another rank may not have it."""
        return [v for v in self._changing if _is_combined(v)]


def _is_combined(v):
    return not v.trainable or v.aggregation != "none"


def assigned(variable, value):
    """Whether this thread is a replica that shares its process with others, and has taken the new value for itself."""
    replica = here.replica
    if replica is None or replica._member is None:
        return False
    replica.strategy._round.assign(replica._local, variable, value)
    return True


class Round:
    """One run of all replicas: what their variables are before, during and after it. Where a process has several replicas,
    each finds its own values when it gets the baton (replica.py)."""

    def __init__(self, strategy, share=None):
        self._strategy, self._share = strategy, share
        self._replicas, self._locals = strategy._mine, range(len(strategy._mine))
        self._apart = not strategy._is_single  # replicas are threads (replica.py), each with values of its own
        self._own = [{} for _ in self._locals]  # of several local replicas: {id: (variable, its data)}
        variables = strategy._variables_made.changed_by_replicas()
        self._sums = [v for v in variables if v.aggregation == "sum"]
        self._others = [v for v in variables if v.aggregation != "sum"]
        self._were = [(v._value, v._value._version) for v in self._others]
        self._kept = [v._value.data.clone() for v in self._others] if strategy._survival is not None else ()
        self._begin()

    @no_grad()
    def _begin(self):
        if self._apart:
            self._starts = [v._value.data for v in self._sums]
            for local in self._locals:
                if self._replicas[local]:
                    self._own[local] = {id(v): (v, v._value.new_zeros(v._value.shape)) for v in self._sums}
            return
        self._starts = [v._value.data.clone() for v in self._sums]
        for v in self._sums if self._replicas[0] else ():
            v._value.data.zero_()

    # Several replicas of this process.

    def enter(self, local):
        """Local replica `local` gets the baton. Its variables exchange the common data for its own."""
        for v, data in self._own[local].values():
            self._own[local][id(v)] = v, v._value.data
            v._value.data = data

    leave = enter  # it gives the baton back

    def assign(self, local, variable, value):
        """The replica that has the baton gives a variable a new value."""
        own, tensor = self._own[local], variable._value
        if id(variable) in own:
            tensor.data.copy_(value.detach())
        else:
            own[id(variable)] = variable, tensor.data
            tensor.data = value.detach().to(tensor.dtype, copy=True)

    # The end.

    @no_grad()
    def undo(self):
        """After a failed run: sums are as before, and all variables where survivors of a death repeat it."""
        for v, start in zip(self._sums, self._starts) if not self._apart else ():
            v._value.data.copy_(start)
        for v, kept in zip(self._others, self._kept):
            v._value.data.copy_(kept)

    @no_grad()
    def end(self):
        """Combines what all replicas have made. All ranks call it."""
        changed = self._changed()
        parts = [self._sum_parts(v, start) for v, start in zip(self._sums, self._starts)]
        parts += [self._mean_parts(v) for v in changed]
        totals = self._strategy._sums(parts)
        for v, total in zip([*self._sums, *changed], totals):
            if v._value.data_ptr() != total.data_ptr():
                v._value.data.copy_(total)

    def _changed(self):
        """The variables that are not sums and have changed, without those that all replicas have changed alike."""
        if not self._apart:
            changes = zip(self._others, self._were)
            found = [v for v, (tensor, version) in changes if v._value is not tensor or tensor._version != version]
        else:
            sums = set(map(id, self._sums))
            found = list({i: v for own in self._own for i, (v, _) in own.items() if i not in sums}.values())
        combined = [v for v in found if v.aggregation == "only_first_replica" or
                    v._value.is_floating_point() and _is_combined(v)]  # fmt: skip
        for v in found if len(combined) < len(found) and self._apart else ():
            v._value.data.copy_(self._values(v)[0])
        return combined

    def _values(self, v):
        """The variable's data by local replica."""
        if not self._apart:
            return [v._value.data]
        return [own[id(v)][1] if id(v) in own else v._value.data for own in self._own]

    def _sum_parts(self, v, start):
        """A replica without rows adds nothing, whatever it has computed."""
        values = self._values(v)
        for local in self._locals:
            if self._share is not None and not self._share.rows[local]:
                values[local] = start if self._replicas[local] == 0 else values[local].zero_()
        return values

    def _mean_parts(self, v):
        if v.aggregation == "only_first_replica":
            source = 0 if self._share is None else self._share.first
            weights = [float(replica == source) for replica in self._replicas]
        elif self._share is None:
            weights = [1 / self._strategy._count for _ in self._locals]
        else:
            weights = [rows / self._share.total for rows in self._share.rows]
        parts = zip(self._values(v), weights)
        return [part.clone() if w == 1 else part * w if w else part.new_zeros(part.shape) for part, w in parts]
