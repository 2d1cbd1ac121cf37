"""What the server does with a gradient: an optimizer as the numbers of a rule in C (csrc/ps/rule.h)."""

from collections import namedtuple

from pydist import optim

# flags and numbers in the order of csrc/ps/rule.c; wide: 16-bit values have a float32 copy that is stepped
Rule = namedtuple("Rule", "name numbers flags clip wide lr")


def _sgd(group):
    numbers = group["momentum"], group["dampening"], group["weight_decay"]
    return "sgd", numbers, (group["nesterov"], group["maximize"], False)


def _adam(group):
    flags = group["amsgrad"], group["decoupled_weight_decay"], group["maximize"], False
    return "adam", (*group["betas"], group["eps"], group["weight_decay"]), flags


def _adadelta(group):
    return "adadelta", (group["rho"], group["eps"], group["weight_decay"]), (group["maximize"],)


def _rmsprop(group):
    numbers = group["alpha"], group["eps"], group["weight_decay"], group["momentum"]
    return "rmsprop", numbers, (group["centered"], group["maximize"], False)


def _adagrad(group):
    if group.get("initial_accumulator_value"):
        raise ValueError(
            "set_optimizer: Adagrad with initial_accumulator_value (expected 0: the server's sums begin at 0)"
        )
    return "adagrad", (group["lr_decay"], group["eps"], group["weight_decay"]), (group["maximize"], False)


def _moments(nesterov):
    def rule(group):
        numbers = *group["betas"], group["eps"], group["weight_decay"], group.get("momentum_decay", 0.0)
        return "moments", numbers, (nesterov, group["decoupled_weight_decay"], group["maximize"])

    return rule


def _adamax(group):
    return "adamax", (*group["betas"], group["eps"], group["weight_decay"]), (group["maximize"], False)


def _lion(group):
    return "lion", (*group["betas"], group["weight_decay"]), (group["maximize"],)


_OF_CLASS = {
    optim.SGD: _sgd,
    optim.Adam: _adam,
    optim.AdamW: _adam,
    optim.Adadelta: _adadelta,
    optim.RMSprop: _rmsprop,
    optim.Adagrad: _adagrad,
    optim.NAdam: _moments(True),
    optim.RAdam: _moments(False),
    optim.Adamax: _adamax,
    optim.Lion: _lion,
}


def of_group(optimizer, group):
    """The Rule of one parameter group of a pydist optimizer. Raises TypeError for an optimizer that no rule does."""
    rule = _OF_CLASS.get(type(optimizer))
    if rule is None:
        known = ", ".join(kind.__name__ for kind in _OF_CLASS)
        raise TypeError(f"set_optimizer: got {type(optimizer).__name__} (expected one of {known}, or a name)")
    if group.get("stochastic_rounding"):
        raise ValueError("set_optimizer: stochastic_rounding on the server (expected multi_precision)")
    return Rule(*rule(group), 0.0, bool(group.get("multi_precision")), float(group["lr"]))


class Named:
    """An optimizer by MXNet's name and MXNet's arguments: `lr_mult` and `wd_mult` are numbers by key.

    sgd with momentum, adam, rmsprop and adamax follow MXNet's formulas, in which eps and the learning rate stand elsewhere
    than in PyTorch's: m = momentum * m - lr * g, p += m; p -= lr * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + eps).
    The others are pydist.optim's.
    """

    # name -> (default learning rate, defaults, how the rule is made from a namespace of these and wd)
    KNOWN = {
        "sgd": (0.01, {"momentum": 0.0, "lazy_update": True},
                lambda a: ("sgd", (a["momentum"], 0.0, a["wd"]), (False, False, bool(a["momentum"])))),
        "nag": (0.1, {"momentum": 0.9},
                lambda a: ("sgd", (a["momentum"], 0.0, a["wd"]), (bool(a["momentum"]), False, False))),
        "adam": (0.001, {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "lazy_update": True},
                 lambda a: ("adam", (a["beta1"], a["beta2"], a["epsilon"], a["wd"]), (False, False, False, True))),
        "adamw": (0.001, {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-6},
                  lambda a: ("adam", (a["beta1"], a["beta2"], a["epsilon"], a["wd"]), (False, True, False, False))),
        "adagrad": (0.01, {"epsilon": 1e-6},
                    lambda a: ("adagrad", (0.0, a["epsilon"], a["wd"]), (False, False))),
        "rmsprop": (0.001, {"rho": 0.9, "momentum": 0.9, "epsilon": 1e-8, "centered": False},
                    lambda a: ("rmsprop", (a["rho"], a["epsilon"], a["wd"], a["momentum"] if a["centered"] else 0.0),
                               (bool(a["centered"]), False, not a["centered"]))),
        "adadelta": (1.0, {"rho": 0.9, "epsilon": 1e-5},
                     lambda a: ("adadelta", (a["rho"], a["epsilon"], a["wd"]), (False,))),
        "adamax": (0.002, {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
                   lambda a: ("adamax", (a["beta1"], a["beta2"], a["epsilon"], a["wd"]), (False, True))),
        "nadam": (0.001, {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "schedule_decay": 0.004},
                  lambda a: ("moments", (a["beta1"], a["beta2"], a["epsilon"], a["wd"], a["schedule_decay"]),
                             (True, False, False))),
        "lion": (1e-4, {"beta1": 0.9, "beta2": 0.99}, lambda a: ("lion", (a["beta1"], a["beta2"], a["wd"]), (False,))),
        "ftrl": (0.1, {"lamda1": 0.01, "beta": 1.0}, lambda a: ("ftrl", (a["lamda1"], a["beta"], a["wd"]), ())),
        "test": (1.0, {}, lambda a: ("add", (), ())),
    }  # fmt: skip
    COMMON = {"wd": 0.0, "rescale_grad": 1.0, "clip_gradient": None, "multi_precision": False, "lr_scheduler": None}

    def __init__(self, name, **options):
        name = str(name).lower()
        if name not in self.KNOWN:
            raise ValueError(f"set_optimizer: got the optimizer '{name}' (expected one of {', '.join(self.KNOWN)})")
        lr, defaults, self._make = self.KNOWN[name]
        self.name, self.lr = name, options.pop("learning_rate", None)
        self.lr_mult, self.wd_mult = dict(options.pop("lr_mult", {})), dict(options.pop("wd_mult", {}))
        unknown = sorted(set(options) - {*defaults, *self.COMMON})
        if unknown:
            wanted = ", ".join(sorted({*defaults, *self.COMMON, "learning_rate", "lr_mult", "wd_mult"}))
            raise ValueError(f"set_optimizer: {name} has no option '{unknown[0]}' (expected one of {wanted})")
        self.options = {**self.COMMON, **defaults, **options}
        self.lr_scheduler = self.options.pop("lr_scheduler")
        if self.lr is None:
            self.lr = getattr(self.lr_scheduler, "base_lr", lr)
        self.rescale_grad = float(self.options.pop("rescale_grad"))

    def rule(self, key):
        """The Rule of a key."""
        options = dict(self.options)
        clip, wide = options.pop("clip_gradient"), bool(options.pop("multi_precision"))
        if clip is not None and clip < 0:
            clip = None
        options["wd"] *= self.wd_mult.get(key, 1.0)
        numbers = self._make(options)
        return Rule(*numbers, float(clip or 0.0), wide, float(self.lr) * self.lr_mult.get(key, 1.0))


class Grouped:
    """A pydist optimizer whose parameter groups hold for the keys in `groups` (key -> number); others: the first."""

    rescale_grad, lr_scheduler = 1.0, None

    def __init__(self, optimizer, groups=None, multi_precision=False):
        self.optimizer, self._groups, self._wide = optimizer, groups or {}, multi_precision

    @property
    def lr(self):
        return float(self.optimizer.param_groups[0]["lr"])

    def rule(self, key):
        rule = of_group(self.optimizer, self.optimizer.param_groups[self._groups.get(key, 0)])
        return rule._replace(wide=True) if self._wide else rule


def read(optimizer, **options):
    """What set_optimizer() takes: a name with options, a pydist optimizer, a Named or a Grouped."""
    if isinstance(optimizer, (Named, Grouped)):
        return optimizer
    if isinstance(optimizer, str):
        return Named(optimizer, **options)
    if options:
        raise ValueError(f"set_optimizer: options {sorted(options)} beside an optimizer (expected them in its groups)")
    of_group(optimizer, optimizer.param_groups[0] if isinstance(optimizer, optim.Optimizer) else {})
    return Grouped(optimizer)
