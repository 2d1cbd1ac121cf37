"""Optimizers. A store in one process and a Trainer call their formulas here, on tensors; a distributed store has the
same optimizers as rules of pydist.distributed.ps."""

import io
import math
import warnings

import numpy as np

import pydist
from pydist.compat.mxnet._base import absent
from pydist.compat.mxnet.ndarray.ndarray import NDArray, zeros
from pydist.distributed.ps._rules import Named


class Optimizer:
    """A base class: a subclass has create_state(index, weight) and update(index, weight, grad, state).

    param_dict: {index: gluon.Parameter}, whose lr_mult and wd_mult count. The optimizers here say in `own` which
    arguments they have and in `kept` how many arrays they keep for a weight, and their `_step` changes tensors.
    """

    opt_registry = {}
    own, kept, lazy_update, named = {}, 0, False, None

    def __init__(self, *args, rescale_grad=1.0, param_idx2name=None, wd=0.0, clip_gradient=None, learning_rate=None,
                 lr_scheduler=None, begin_num_update=0, multi_precision=False, param_dict=None, **kwargs):  # fmt: skip
        own = {**self.own, **dict(zip(self.own, args)), **kwargs}
        if set(own) - set(self.own):
            raise TypeError(
                f"{type(self).__name__}: got {sorted(set(own) - set(self.own))} (expected of {sorted(self.own)})"
            )
        default = own.pop("learning_rate", 0.01)
        vars(self).update(own)
        self.rescale_grad, self.wd, self.clip_gradient, self.lr_scheduler = (
            rescale_grad,
            wd,
            clip_gradient,
            lr_scheduler,
        )
        if lr_scheduler is not None and learning_rate is not None:
            if lr_scheduler.base_lr != learning_rate:
                warnings.warn(
                    f"Optimizer: learning_rate {learning_rate} replaces the scheduler's base_lr", stacklevel=3
                )
            lr_scheduler.base_lr = learning_rate
        self.lr = default if learning_rate is None else learning_rate
        self.begin_num_update = self.num_update = begin_num_update
        self.multi_precision, self.idx2name, self.param_dict = multi_precision, param_idx2name or {}, param_dict or {}
        self._all_counts = {0: {}}
        self._index_update_count = self._all_counts[0]
        self.set_lr_mult({})
        self.set_wd_mult({})

    @staticmethod
    def register(klass):
        """A class decorator: create() finds it under its name in small letters."""
        Optimizer.opt_registry[klass.__name__.lower()] = klass
        return klass

    @staticmethod
    def create_optimizer(name, **kwargs):
        """An optimizer of a name. Raises ValueError for one that is not known."""
        if name.lower() not in Optimizer.opt_registry:
            raise ValueError(f"optimizer: got {name!r} (expected one of {', '.join(sorted(Optimizer.opt_registry))})")
        return Optimizer.opt_registry[name.lower()](**kwargs)

    @property
    def learning_rate(self):
        """The learning rate of the next update."""
        return self.lr_scheduler(self.num_update) if self.lr_scheduler is not None else self.lr

    def set_learning_rate(self, lr):
        """Changes the learning rate. Raises UserWarning if a scheduler sets it."""
        if self.lr_scheduler is not None:
            raise UserWarning("Optimizer: set_learning_rate beside a scheduler (expected no lr_scheduler)")
        self.lr = lr

    def set_lr_mult(self, args_lr_mult):
        """Factors of the learning rate by name or index."""
        self.lr_mult = dict(args_lr_mult)

    def set_wd_mult(self, args_wd_mult):
        """Factors of the weight decay by name or index; 0 for names that do not end with _weight or _gamma."""
        none = {name: 0.0 for name in self.idx2name.values() if not name.endswith(("_weight", "_gamma"))}
        self.wd_mult = {**none, **args_wd_mult}

    def _mult(self, index, kind):
        given = getattr(self, kind)
        if index in self.param_dict:
            return getattr(self.param_dict[index], kind)
        return given.get(index, given.get(self.idx2name.get(index), 1.0))

    def _get_lr(self, index):
        return self.learning_rate * self._mult(index, "lr_mult")

    def _get_wd(self, index):
        return self.wd * self._mult(index, "wd_mult")

    def _set_current_context(self, device_id):
        self._index_update_count = self._all_counts.setdefault(device_id, {})

    def _update_count(self, index):
        for each in index if isinstance(index, (list, tuple)) else [index]:
            self._index_update_count[each] = count = self._index_update_count.get(each, self.begin_num_update) + 1
            self.num_update = max(count, self.num_update)

    def create_state(self, index, weight):
        """What the optimizer remembers of a weight: None, an array or a tuple."""
        made = tuple(zeros(weight.shape, weight.context, weight.dtype, weight.stype) for _ in range(self.kept))
        return made if self.kept > 1 else made[0] if made else None

    def _wide(self, weight):
        return self.multi_precision and weight.dtype == np.float16

    def create_state_multi_precision(self, index, weight):
        """create_state(), and a float32 copy of a float16 weight."""
        if not self._wide(weight):
            return self.create_state(index, weight)
        master = weight.astype(np.float32)
        return self.create_state(index, master), master

    def update(self, index, weight, grad, state):
        """Changes a weight, or a list of them."""
        if isinstance(index, (list, tuple)):
            for each in zip(index, weight, grad, state):
                self.update(*each)
            return
        self._update_count(index)
        states = [state] if isinstance(state, NDArray) else list(state or ())
        tensors, slope = [t._t.detach() for t in (weight, *states)], grad._t.detach()
        with pydist.no_grad():
            if not (self.lazy_update and grad.stype == "row_sparse"):
                self._step(index, slope, *tensors)
                return
            rows = grad.indices._t  # only rows that have a gradient
            parts = [t[rows] for t in tensors]
            self._step(index, slope[rows], *parts)
            for t, part in zip(tensors, parts):
                t[rows] = part

    def update_multi_precision(self, index, weight, grad, state):
        """update(), in float32 where create_state_multi_precision() made a copy."""
        if isinstance(index, (list, tuple)):
            for each in zip(index, weight, grad, state):
                self.update_multi_precision(*each)
        elif self._wide(weight):
            inner, master = state
            self.update(index, master, grad.astype(np.float32).tostype(grad.stype), inner)
            weight._t.detach().copy_(master._t)
        else:
            self.update(index, weight, grad, state)

    def _slope(self, index, g, w=None):
        """The gradient, scaled, with weight decay if there is w, then clipped."""
        g = g * self.rescale_grad if w is None else g * self.rescale_grad + self._get_wd(index) * w
        return pydist.clamp(g, -self.clip_gradient, self.clip_gradient) if self.clip_gradient else g

    def rule(self, is_half):
        """The same as a rule of pydist.distributed.ps. is_half(key): whether a key's value is float16. Raises
        NotImplementedError if there is no such rule."""
        if self.named is None:
            known = [kind.__name__ for kind in Optimizer.opt_registry.values() if kind.named]
            raise absent(f"{type(self).__name__} on a distributed store", f"one of {', '.join(known)}")
        name, *pairs = self.named.split()
        if (name in ("adagrad", "adadelta") and self.wd) or getattr(self, "clip_weights", None):  # rules differ there
            raise absent(f"{type(self).__name__} with wd or clip_weights on a distributed store", "neither of them")
        options = {ours: getattr(self, theirs) for theirs, ours in (pair.split("=") for pair in pairs)}
        chosen = _Rule(name, **options, learning_rate=self.learning_rate, wd=self.wd, rescale_grad=self.rescale_grad,
                       clip_gradient=self.clip_gradient)  # fmt: skip
        chosen.is_wide = lambda key: self.multi_precision and name != "test" and is_half(key)
        chosen.lr_mult, chosen.wd_mult = _Mults(self, "lr_mult"), _Mults(self, "wd_mult")
        return chosen


class _Rule(Named):
    """A rule that keeps float32 copies of float16 values only."""

    def rule(self, key):
        return super().rule(key)._replace(wide=self.is_wide(key))


class _Mults(dict):
    """An optimizer's factors by key, as they are at the moment."""

    def __init__(self, optimizer, kind):
        super().__init__()
        self._of = optimizer, kind

    def get(self, key, default=1.0):
        return self._of[0]._mult(key, self._of[1])


register, create = Optimizer.register, Optimizer.create_optimizer


@register
class SGD(Optimizer):
    """m = momentum * m - lr * (g + wd * w), w += m. lazy_update: of a row_sparse gradient only rows that it has."""

    own, named = {"momentum": 0.0, "lazy_update": True}, "sgd momentum=momentum"
    kept = property(lambda self: int(self.momentum != 0))

    def _step(self, index, g, w, m=None):
        lr = self._get_lr(index)
        g = self._slope(index, g) + self._get_wd(index) * w
        if m is None:
            w.sub_(g, alpha=lr)
        else:
            w.add_(m.mul_(self.momentum).sub_(g, alpha=lr))


@register
class NAG(SGD):
    """SGD with Nesterov's momentum."""

    own, named = {"momentum": 0.0}, "nag momentum=momentum"

    def _step(self, index, g, w, m=None):
        if m is None:
            super()._step(index, g, w)
            return
        lr = self._get_lr(index)
        g = self._slope(index, g) + self._get_wd(index) * w
        m.mul_(self.momentum).sub_(g, alpha=lr)
        w.add_(m, alpha=self.momentum).sub_(g, alpha=lr)


@register
class Adam(Optimizer):
    """w -= lr * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + epsilon)."""

    own = {"learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "lazy_update": True}
    kept, named = 2, "adam beta1=beta1 beta2=beta2 epsilon=epsilon"

    def _means(self, index, g, w, m, v):
        g = self._slope(index, g, w)
        m.mul_(self.beta1).add_(g, alpha=1 - self.beta1)
        v.mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
        return g

    def _step(self, index, g, w, m, v):
        t = self._index_update_count[index]
        self._means(index, g, w, m, v)
        lr = self._get_lr(index) * math.sqrt(1 - self.beta2**t) / (1 - self.beta1**t)
        w.addcdiv_(m, v.sqrt().add_(self.epsilon), value=-lr)


@register
class AdaGrad(Optimizer):
    """h += g^2, w -= lr * (g / sqrt(h + eps) + wd * w)."""

    own, kept, lazy_update, named = {"eps": 1e-7}, 1, True, "adagrad eps=epsilon"

    def _step(self, index, g, w, h):
        g = self._slope(index, g)
        h.addcmul_(g, g)
        w.sub_(g / (h + self.eps).sqrt() + self._get_wd(index) * w, alpha=self._get_lr(index))


@register
class RMSProp(Optimizer):
    """n = gamma1 * n + (1 - gamma1) * g^2, w -= lr * g / sqrt(n + epsilon); centered: Graves' form, momentum gamma2."""

    own = {
        "learning_rate": 0.001,
        "gamma1": 0.9,
        "gamma2": 0.9,
        "epsilon": 1e-8,
        "centered": False,
        "clip_weights": None,
    }
    named = "rmsprop gamma1=rho gamma2=momentum epsilon=epsilon centered=centered"

    def create_state(self, index, weight):
        """Means of squares; centered: of gradients and the last step, too."""
        return tuple(zeros(weight.shape, weight.context, weight.dtype) for _ in range(3 if self.centered else 1))

    def _step(self, index, g, w, n, mean=None, delta=None):
        lr, g = self._get_lr(index), self._slope(index, g, w)
        n.mul_(self.gamma1).addcmul_(g, g, value=1 - self.gamma1)
        if mean is None:
            w.sub_(g / (n + self.epsilon).sqrt(), alpha=lr)
        else:
            mean.mul_(self.gamma1).add_(g, alpha=1 - self.gamma1)
            w.add_(delta.mul_(self.gamma2).sub_(g / (n - mean * mean + self.epsilon).sqrt(), alpha=lr))
        if self.clip_weights:
            w.clamp_(-self.clip_weights, self.clip_weights)


@register
class AdaDelta(Optimizer):
    """w -= sqrt(d + epsilon) / sqrt(a + epsilon) * g + wd * w, with means a of g^2 and d of the squared steps."""

    own, kept, named = {"rho": 0.90, "epsilon": 1e-5}, 2, "adadelta rho=rho epsilon=epsilon"
    learning_rate = property(lambda self: 1.0, doc="1: MXNet's AdaDelta has none.")

    def _step(self, index, g, w, a, d):
        g = self._slope(index, g)
        a.mul_(self.rho).addcmul_(g, g, value=1 - self.rho)
        step = ((d + self.epsilon) / (a + self.epsilon)).sqrt() * g
        d.mul_(self.rho).addcmul_(step, step, value=1 - self.rho)
        w.sub_(step + self._get_wd(index) * w)


@register
class Ftrl(Optimizer):
    """Follow the regularized leader: w = 0 where |z| <= lamda1."""

    own = {"lamda1": 0.01, "learning_rate": 0.1, "beta": 1, "lazy_update": True}
    kept, named = 2, "ftrl lamda1=lamda1 beta=beta"

    def _step(self, index, g, w, z, n):
        lr, g, before = self._get_lr(index), self._slope(index, g), n.sqrt()
        n.addcmul_(g, g)
        z.add_(g - (n.sqrt() - before) * w / lr)
        new = (pydist.sign(z) * self.lamda1 - z) / ((self.beta + n.sqrt()) / lr + self._get_wd(index))
        w.copy_(new * (z.abs() > self.lamda1).to(w.dtype))


@register
class Adamax(Optimizer):
    """Adam with the largest gradient, w -= lr / (1 - beta1^t) * m / u."""

    own = {"learning_rate": 0.002, "beta1": 0.9, "beta2": 0.999}
    kept, named = 2, "adamax beta1=beta1 beta2=beta2"

    def _step(self, index, g, w, m, u):
        g = self._slope(index, g, w)
        m.mul_(self.beta1).add_(g, alpha=1 - self.beta1)
        u.copy_(pydist.maximum(u * self.beta2, g.abs()))
        w.addcdiv_(m, u, value=-self._get_lr(index) / (1 - self.beta1 ** self._index_update_count[index]))


@register
class Nadam(Adam):
    """Adam with Nesterov's momentum, whose schedule all weights of the optimizer share, as in MXNet."""

    own = {**Adam.own, "lazy_update": False, "schedule_decay": 0.004}
    named, m_schedule = "nadam beta1=beta1 beta2=beta2 epsilon=epsilon schedule_decay=schedule_decay", 1.0

    def _step(self, index, g, w, m, v):
        t = self._index_update_count[index]
        now, then = (self.beta1 * (1 - 0.5 * 0.96 ** (s * self.schedule_decay)) for s in (t, t + 1))
        self.m_schedule *= now
        g = self._means(index, g, w, m, v)
        mean = g * ((1 - now) / (1 - self.m_schedule)) + m * (then / (1 - self.m_schedule * then))
        w.addcdiv_(mean, (v / (1 - self.beta2**t)).sqrt().add_(self.epsilon), value=-self._get_lr(index))


@register
class Test(Optimizer):
    """w += rescale_grad * g."""

    kept, named = 1, "test"

    def _step(self, index, g, w, copy):
        copy.copy_(w.add_(g, alpha=self.rescale_grad))


class Updater:
    """Updates weights by key, and keeps each one's state."""

    def __init__(self, optimizer):
        self.optimizer, self.states = optimizer, {}

    def __call__(self, index, grad, weight):
        for key, g, w in zip(index, grad, weight) if isinstance(index, (list, tuple)) else [(index, grad, weight)]:
            self.optimizer._set_current_context(w.context.device_id)
            if key not in self.states:
                self.states[key] = self.optimizer.create_state_multi_precision(key, w)
            self.optimizer.update_multi_precision(key, w, g, self.states[key])

    def get_states(self, dump_optimizer=False):
        """The states as bytes, with the optimizer's counters; dump_optimizer: and its learning rate."""
        names = ["num_update", "_all_counts", *(["lr", "m_schedule"] if dump_optimizer else [])]
        optimizer = {name: getattr(self.optimizer, name) for name in names if hasattr(self.optimizer, name)}
        file = io.BytesIO()
        plain = _mapped(self.states, lambda each: each._t.detach() if isinstance(each, NDArray) else each)
        pydist.save({"format": "pydist.mxnet states 1", "states": plain, "optimizer": optimizer}, file)
        return file.getvalue()

    def set_states(self, states):
        """Takes what get_states() gave."""
        content = pydist.load(io.BytesIO(states))
        self.states = _mapped(
            content["states"], lambda each: NDArray(each) if isinstance(each, pydist.Tensor) else each
        )
        vars(self.optimizer).update(content["optimizer"])
        self.optimizer._set_current_context(0)


def _mapped(states, fn):
    if isinstance(states, dict):
        return {key: _mapped(each, fn) for key, each in states.items()}
    return tuple(_mapped(each, fn) for each in states) if isinstance(states, tuple) else fn(states)


def get_updater(optimizer):
    """A function updater(key, gradient, weight) for a store."""
    return Updater(optimizer)
