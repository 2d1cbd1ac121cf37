"""Local steps, and an average of the models from time to time."""

import warnings

from pydist.optim.optimizer import Optimizer

__all__ = ["PostLocalSGDOptimizer"]


class PostLocalSGDOptimizer(Optimizer):
    """Makes the steps of `optim`, and after each calls `averager.average_parameters`, which brings the ranks' models together
    from time to time. Groups and state are those of `optim`.

    >>> import pydist
    >>> from pydist.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    >>> local = pydist.optim.SGD(pydist.nn.Linear(2, 1).parameters(), lr=0.1)
    >>> optimizer = PostLocalSGDOptimizer(local, PeriodicModelAverager(period=4, warmup_steps=100))
    >>> optimizer.step()
    >>> optimizer.state_dict()["step"]
    1
    """

    def __init__(self, optim, averager):
        self._make_private()
        self.optim, self.averager = optim, averager

    @property
    def param_groups(self):
        return self.optim.param_groups

    @property
    def state(self):
        return self.optim.state

    @property
    def defaults(self):
        return self.optim.defaults

    def __repr__(self):
        return repr(self.optim)

    def state_dict(self):
        """That of `optim`, and "step": how many steps the averager has counted."""
        return {**self.optim.state_dict(), "step": self.averager.step}

    def load_state_dict(self, state_dict):
        """Takes the state, and the averager's step; without one the averager begins at 0, with a warning."""
        self.optim.load_state_dict(state_dict)
        if "step" not in state_dict:
            warnings.warn(
                "Loaded state dict does not contain a step counter for an averager: it is 0 now", stacklevel=2
            )
        self.averager.step = state_dict.get("step", 0)

    def step(self):
        """One step of `optim`, and an average if it is time."""
        self.optim.step()
        self.averager.average_parameters(self.param_groups)

    def zero_grad(self, set_to_none=True):
        """That of `optim`."""
        self.optim.zero_grad(set_to_none)

    def add_param_group(self, param_group):
        """That of `optim`."""
        self.optim.add_param_group(param_group)
