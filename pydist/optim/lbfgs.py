"""Limited-memory BFGS."""

import math
from collections import namedtuple

from pydist import _C
from pydist._grad_mode import no_grad
from pydist.optim._fused import check_options
from pydist.optim.optimizer import Optimizer

_Point = namedtuple("_Point", ("t", "loss", "grad", "slope"))  # at p + t * direction; slope = grad . direction


def _lowest_of_cubic(a, b, low=None, high=None):
    """The minimum, within [low, high] (default: between the points), of the cubic through two points with their
    slopes."""
    if low is None:
        low, high = sorted((a.t, b.t))
    a, b = sorted((a, b), key=lambda point: point.t)
    if not all(map(math.isfinite, (a.loss, b.loss, a.slope, b.slope))) or a.t == b.t:
        return (low + high) / 2
    d = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.t - b.t)
    square = d * d - a.slope * b.slope
    if square < 0:
        return (low + high) / 2
    root = math.sqrt(square)
    below = b.slope - a.slope + 2 * root
    return min(max(b.t - (b.t - a.t) * (b.slope + root - d) / below, low), high) if below else (low + high) / 2


class _WolfeSearch:
    """A step that meets the strong Wolfe conditions (Nocedal and Wright, algorithms 3.5 and 3.6, with cubic steps):
    loss(t) <= loss(0) + c1 t slope(0) and |slope(t)| <= c2 |slope(0)|."""

    def __init__(self, at, start, largest, tolerance, budget, c1=1e-4, c2=0.9):
        self.at, self.start, self.budget = at, start, budget
        self.least = tolerance / largest if largest else math.inf  # a bracket this short changes no parameter
        self.c1, self.c2 = c1, c2
        self.evaluations = 0

    def try_at(self, t):
        self.evaluations += 1
        return self.at(t)

    def rises(self, point):
        return point.loss > self.start.loss + self.c1 * point.t * self.start.slope

    def is_flat(self, point):
        return abs(point.slope) <= -self.c2 * self.start.slope

    def run(self, t):
        """Returns the point found."""
        previous, point = self.start, self.try_at(t)
        for number in range(self.budget):
            if self.rises(point) or (number > 1 and point.loss >= previous.loss):
                return self.zoom([previous, point], number)
            if self.is_flat(point):
                return point
            if point.slope >= 0:
                return self.zoom([previous, point], number)
            low, high = point.t + 0.01 * (point.t - previous.t), 10 * point.t
            previous, point = point, self.try_at(_lowest_of_cubic(previous, point, low, high))
        return self.start if self.start.loss <= point.loss else point

    def zoom(self, ends, number):
        """Shortens the bracket until its lower end meets the conditions."""
        stalled = False
        low, high = (0, 1) if ends[0].loss <= ends[1].loss else (1, 0)
        while number < self.budget and abs(ends[1].t - ends[0].t) >= self.least:
            t = _lowest_of_cubic(*ends)
            first, last = sorted(end.t for end in ends)
            margin = 0.1 * (last - first)
            near = min(last - t, t - first) < margin
            if near and (stalled or t >= last or t <= first):
                t = last - margin if abs(t - last) < abs(t - first) else first + margin
                near = False
            stalled = near
            point = self.try_at(t)
            number += 1
            if self.rises(point) or point.loss >= ends[low].loss:
                ends[high] = point
                low, high = (0, 1) if ends[0].loss <= ends[1].loss else (1, 0)
                continue
            if self.is_flat(point):
                return point
            if point.slope * (ends[high].t - ends[low].t) >= 0:
                ends[high] = ends[low]
            ends[low] = point
        return ends[low]


class LBFGS(Optimizer):
    """p += t * d, where d is minus the gradient times an estimate of the inverse Hessian from the last `history_size`
    steps (Nocedal, 1980). t is lr, or found by a line search that evaluates the loss (line_search_fn="strong_wolfe").

    `step(closure)` makes up to `max_iter` such steps with at most `max_eval` (default: max_iter * 5 // 4) evaluations
    of `closure`, which clears the gradients, computes the loss, calls backward and returns the loss. step returns the
    first loss. It ends early if no gradient is larger than `tolerance_grad`, or if nothing changes by more than
    `tolerance_change`. There is only one group. Raises ValueError for several groups and for options out of range,
    RuntimeError for another line search.

    >>> import pydist
    >>> p = pydist.tensor([3.0, -2.0], requires_grad=True)
    >>> optimizer = pydist.optim.LBFGS([p], line_search_fn="strong_wolfe")
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = (p * p * pydist.tensor([1.0, 10.0])).sum()
    ...     loss.backward()
    ...     return loss
    >>> optimizer.step(closure).item()
    49.0
    >>> bool(p.detach().abs().max() < 1e-4)
    True
    """

    def __init__(
        self,
        params,
        lr=1,
        max_iter=20,
        max_eval=None,
        tolerance_grad=1e-7,
        tolerance_change=1e-9,
        history_size=100,
        line_search_fn=None,
    ):
        check_options(("learning rate", lr))
        if line_search_fn not in (None, "strong_wolfe"):
            raise RuntimeError(f"LBFGS: line_search_fn is {line_search_fn!r} (expected None or 'strong_wolfe')")
        defaults = dict(
            lr=lr,
            max_iter=max_iter,
            max_eval=max_iter * 5 // 4 if max_eval is None else max_eval,
            tolerance_grad=tolerance_grad,
            tolerance_change=tolerance_change,
            history_size=history_size,
            line_search_fn=line_search_fn,
        )
        super().__init__(params, defaults)
        if len(self.param_groups) != 1:
            raise ValueError("LBFGS doesn't support per-parameter options (expected one parameter group)")

    def _gradient(self):
        params = self.param_groups[0]["params"]
        grads = [_C.zeros_like(p) if p.grad is None else p.grad for p in params]
        return _C.cat([grad.reshape(-1) for grad in grads])

    def _move(self, t, direction):
        at = 0
        for param in self.param_groups[0]["params"]:
            param.add_(direction[at : at + param.numel()].view(param.shape), alpha=t)
            at += param.numel()

    def _searched(self, closure, t, direction, loss, grad, slope, evaluations):
        """The point that the search finds, starting at the parameters. The parameters stay where they are."""
        group = self.param_groups[0]
        before = [param.clone() for param in group["params"]]

        def at(t):
            self._move(t, direction)
            loss, grad = float(self._evaluate(closure)), self._gradient()
            for param, value in zip(group["params"], before):
                param.copy_(value)
            return _Point(t, loss, grad, grad.dot(direction).item())

        largest, start = direction.abs().max().item(), _Point(0, loss, grad, slope)
        search = _WolfeSearch(at, start, largest, group["tolerance_change"], evaluations)
        return search.run(t), search.evaluations

    @staticmethod
    def _direction(state, grad, history):
        """Minus the estimate of the inverse Hessian times the gradient. The last step is added to the estimate
        first."""
        if state["n_iter"] == 1:
            state.update(old_dirs=[], old_stps=[], ro=[], H_diag=1)
            return -grad
        change, step = grad - state["prev_flat_grad"], state["d"] * state["t"]
        product = change.dot(step).item()
        if product > 1e-10:
            for name, value in (("old_dirs", change), ("old_stps", step), ("ro", 1.0 / product)):
                state[name] = [*state[name], value][-history:]
            state["H_diag"] = product / change.dot(change).item()
        pairs = list(zip(state["old_dirs"], state["old_stps"], state["ro"]))
        direction, factors = -grad, []
        for change, step, ro in reversed(pairs):
            factors.append(step.dot(direction).item() * ro)
            direction.add_(change, alpha=-factors[-1])
        direction.mul_(state["H_diag"])
        for (change, step, ro), factor in zip(pairs, reversed(factors)):
            direction.add_(step, alpha=factor - change.dot(direction).item() * ro)
        return direction

    @no_grad()
    def step(self, closure):
        """Makes up to max_iter steps. Returns the loss of the first evaluation, as `closure` returned it."""
        group = self.param_groups[0]
        state = self.state[group["params"][0]]  # the state of all parameters, kept under the first one
        state.setdefault("func_evals", 0)
        state.setdefault("n_iter", 0)
        first = self._evaluate(closure)
        state["func_evals"] += 1
        self._iterate(closure, group, state, float(first), self._gradient())
        return first

    def _iterate(self, closure, group, state, loss, grad):
        lr, tolerance, evaluations = float(group["lr"]), group["tolerance_change"], 1
        if grad.abs().max().item() <= group["tolerance_grad"]:
            return
        for number in range(1, group["max_iter"] + 1):
            state["n_iter"] += 1
            direction = self._direction(state, grad, group["history_size"])
            t = lr * min(1.0, 1.0 / grad.abs().sum().item()) if state["n_iter"] == 1 else lr
            state.update(d=direction, t=t, prev_flat_grad=grad, prev_loss=loss)
            before, slope, used = loss, grad.dot(direction).item(), 0
            if slope > -tolerance:
                return
            if group["line_search_fn"]:
                budget = group["max_eval"] - evaluations
                point, used = self._searched(closure, t, direction, loss, grad, slope, budget)
                t, loss, grad = point.t, point.loss, point.grad
            self._move(t, direction)
            state["t"] = t
            if not group["line_search_fn"] and number < group["max_iter"]:
                loss, grad, used = float(self._evaluate(closure)), self._gradient(), 1
            evaluations += used
            state["func_evals"] += used
            small = grad.abs().max().item() <= group["tolerance_grad"]
            still = direction.abs().max().item() * abs(t) <= tolerance or abs(loss - before) < tolerance
            if evaluations >= group["max_eval"] or small or still:
                return
