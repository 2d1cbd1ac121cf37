"""Weight and spectral normalisation as hooks that recompute `weight` before each forward (PyTorch's older form), and
the functions that both forms use."""

from pydist import _C
from pydist._grad_mode import no_grad
from pydist.nn.functional import normalize
from pydist.nn.parameter import Parameter


def norm_except_dim(v, dim):
    """The norm of v over all dims except one (over all dims if dim is -1). That dim stays, so that the result
    broadcasts."""
    if dim == -1:
        return (v * v).sum().sqrt()
    dims = [d for d in range(v.dim()) if d != dim % v.dim()]
    return (v * v).sum(dims, keepdim=True).sqrt() if dims else v.abs()


def as_rows(weight, dim):
    """A weight as a matrix whose rows are along `dim`."""
    if dim:
        weight = weight.transpose(0, dim)
    return weight.reshape(weight.shape[0], -1)


def power_iteration(matrix, u, v, steps, eps):
    """Moves u, then v, towards the singular vectors of the largest singular value, in place."""
    with no_grad():
        for _ in range(steps):
            u.copy_(normalize(matrix @ v, dim=0, eps=eps))
            v.copy_(normalize(matrix.t() @ u, dim=0, eps=eps))


def dim_of(module, dim):
    """The dim of the module's weight that counts its outputs."""
    return (1 if "ConvTranspose" in type(module).__name__ else 0) if dim is None else dim


class _Hook:
    """Before each forward: module.<name> = compute(module)."""

    makes = property(lambda self: self.name, doc="The attribute that each forward makes anew.")

    def __init__(self, name):
        self.name = name

    def __call__(self, module, inputs):
        setattr(module, self.name, self.compute(module))

    @classmethod
    def of(cls, module, name):
        hooks = module._forward_pre_hooks.items()
        return next((key for key, hook in hooks if type(hook) is cls and hook.name == name), None)

    def put(self, module):
        """Replaces the parameter. Returns it."""
        if self.of(module, self.name) is not None:
            raise RuntimeError(f"Cannot register two {self.what} hooks on the same parameter {self.name}")
        weight = module._parameters.get(self.name)
        if weight is None:
            raise ValueError(
                f"{self.what}: {type(module).__name__} has no parameter {self.name!r} (expected the name of one)"
            )
        del module._parameters[self.name]
        return weight

    @classmethod
    def remove(cls, module, name, parts):
        key = cls.of(module, name)
        if key is None:
            raise ValueError(f"{cls.what} of '{name}' not found in {module}")
        hook = module._forward_pre_hooks.pop(key)
        with no_grad():
            weight = hook.compute(module).detach().clone()
        for part in parts:
            delattr(module, f"{name}_{part}")
        if name in module.__dict__:
            del module.__dict__[name]
        module.register_parameter(name, Parameter(weight))
        return module


class _WeightNorm(_Hook):
    what = "weight_norm"

    def compute(self, module):
        g, v = getattr(module, f"{self.name}_g"), getattr(module, f"{self.name}_v")
        return v * (g / norm_except_dim(v, self.dim))


def weight_norm(module, name="weight", dim=0):
    """weight = g * v / |v|, with norms over all dims except `dim` (None: one norm). g and v are the parameters <name>_g
    and <name>_v and are trained instead of weight (Salimans and Kingma, 2016). Returns the module.

    >>> import pydist
    >>> net = pydist.nn.utils.weight_norm(pydist.nn.Linear(2, 3))
    >>> [(name, tuple(p.shape)) for name, p in net.named_parameters()]
    [('bias', (3,)), ('weight_g', (3, 1)), ('weight_v', (3, 2))]
    """
    hook = _WeightNorm(name)
    hook.dim = -1 if dim is None else dim
    weight = hook.put(module)
    with no_grad():
        module.register_parameter(f"{name}_g", Parameter(norm_except_dim(weight, hook.dim).detach().clone()))
        module.register_parameter(f"{name}_v", Parameter(weight.detach().clone()))
    setattr(module, name, hook.compute(module))
    module.register_forward_pre_hook(hook)
    return module


def remove_weight_norm(module, name="weight"):
    """Makes the weight a parameter again. Raises ValueError if weight_norm was not applied."""
    return _WeightNorm.remove(module, name, ("g", "v"))


class _SpectralNorm(_Hook):
    what = "spectral_norm"

    def compute(self, module, iterate=False):
        name = self.name
        weight, u, v = (getattr(module, f"{name}_{part}") for part in ("orig", "u", "v"))
        matrix = as_rows(weight, self.dim)
        if iterate:
            power_iteration(matrix.detach().t(), v, u, self.steps, self.eps)
            u, v = u.clone(), v.clone()  # backward needs these copies: the next forward changes the buffers
        return weight / (u @ (matrix @ v))

    def __call__(self, module, inputs):
        setattr(module, self.name, self.compute(module, module.training))


def spectral_norm(module, name="weight", n_power_iterations=1, eps=1e-12, dim=None):
    """weight = original / its largest singular value, found by `n_power_iterations` steps of power iteration at each
    forward in training (Miyato et al., 2018). The parameter is <name>_orig; <name>_u and <name>_v are buffers. `dim`:
    the dim of the weight that counts the rows (1 for transposed convolutions, otherwise 0). Returns the module."""
    if n_power_iterations <= 0:
        raise ValueError(f"Expected n_power_iterations to be positive, but got n_power_iterations={n_power_iterations}")
    hook = _SpectralNorm(name)
    hook.dim, hook.steps, hook.eps = dim_of(module, dim), n_power_iterations, eps
    weight = hook.put(module)
    with no_grad():
        rows, columns = as_rows(weight, hook.dim).shape
        u, v = (
            normalize(_C.randn(size, dtype=weight.dtype, device=weight.device), dim=0, eps=eps)
            for size in (rows, columns)
        )
    module.register_parameter(f"{name}_orig", weight)
    setattr(module, name, weight.detach())
    module.register_buffer(f"{name}_u", u)
    module.register_buffer(f"{name}_v", v)
    module.register_forward_pre_hook(hook)
    return module


def remove_spectral_norm(module, name="weight"):
    """Makes the weight a parameter again. Raises ValueError if spectral_norm was not applied."""
    return _SpectralNorm.remove(module, name, ("orig", "u", "v"))
