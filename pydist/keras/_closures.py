"""Keras' variables in a function that a ClusterCoordinator runs on a worker: copies, which it takes when it needs them."""

from pydist.distribute import coordinator
from pydist.distribute.context import here


def apply(optimizer, plain, grads, variables):
    """An optimizer's step in such a function: on the servers' values."""
    scope = here.closure.copies
    with here.closure.strategy.alone(), scope.left():
        plain(optimizer, grads, variables)
    scope.forget()


def _take_copies(module):
    class Copies(module.StatelessScope):
        """The values that variables have in the function. Sums begin at zero there, and are added at its end."""

        def __init__(self, strategy):
            super().__init__(collect_losses=True, initialize_variables=False)
            self._strategy, self._sums, self._known = strategy, {}, {}

        def __enter__(self):
            here.closure.copies, here.closure.strategy = self, self._strategy
            return super().__enter__()

        def __exit__(self, *error):
            super().__exit__(*error)
            if error == (None, None, None):
                for v in self._sums.values():
                    self._strategy.push(v, self.state_mapping[id(v)], add=True)

        def get_current_value(self, variable):
            if id(variable) not in self.state_mapping and getattr(variable, "_shards", None):
                value = self._strategy.pull(variable)
                if variable.aggregation == "sum" and not variable.trainable:
                    value = value.detach().zero_()
                self.state_mapping[id(variable)] = value
                self._known[id(variable)] = variable
            return super().get_current_value(variable)

        def add_update(self, update):
            variable, value = update
            value = value.detach()
            super().add_update((variable, value))
            self._known[id(variable)] = variable
            if variable.aggregation == "sum" and not variable.trainable:
                self._sums[id(variable)] = variable
            elif getattr(variable, "_shards", None):
                self._strategy.push(variable, value)

        def left(self):
            """In this block variables have the servers' values."""
            return _Left(module, self)

        def forget(self):
            """The next read of a variable takes a new copy. Sums go on."""
            for key in [key for key in self.state_mapping if key not in self._sums]:
                del self.state_mapping[key]

    coordinator.closures.append(Copies)


class _Left:
    def __init__(self, module, scope):
        self._set, self._scope = module.global_state.set_global_attribute, scope

    def __enter__(self):
        self._set("stateless_scope", None)

    def __exit__(self, *error):
        self._set("stateless_scope", self._scope)


SEAMS = {"keras.src.backend.common.stateless_scope": _take_copies}
