"""Pruning by a schedule in Keras' fit."""

import pydist
from pydist import keras
from pydist.compress.pruner import masked, share_of_zeros


class PruningCallback(keras.callbacks.Callback):
    """Prunes the kernels of a Keras model by a schedule: after each batch, the elements of the smallest absolute value.

    variables: which; default: all trainable variables named "kernel", of two dimensions or more. After each batch the pruned
    elements are 0; the model that `fit` leaves has them as plain zeros.

        model.fit(x, y, callbacks=[compress.PruningCallback(compress.PolynomialDecay(0.0, 0.8, 0, 1000))])
    """

    def __init__(self, schedule, variables=None):
        super().__init__()
        self.schedule, self.steps = schedule, 0
        self.variables, self._masks = None if variables is None else list(variables), None

    def on_train_begin(self, logs=None):
        """Finds the variables."""
        if self.variables is None:
            self.variables = [v for v in self.model.trainable_variables if v.name == "kernel" and len(v.shape) > 1]
        if not self.variables:
            raise ValueError("PruningCallback: the model has no variables named 'kernel' (expected variables=)")
        if self._masks is None:
            self._masks = [pydist.ones_like(v.value.detach()) for v in self.variables]

    @pydist.no_grad()
    def on_train_batch_end(self, batch, logs=None):
        """Counts a step, prunes if the schedule says so, and keeps pruned elements at 0."""
        self.steps += 1
        for i, variable in enumerate(self.variables):
            values = variable.value.detach()
            if self.schedule.is_due(self.steps):
                count = round(self.schedule.sparsity(self.steps) * values.numel())
                self._masks[i] = masked(values, self._masks[i], count)
            variable.assign(values * self._masks[i])

    def sparsity(self):
        """The share of elements that are pruned now."""
        return share_of_zeros(self._masks)
