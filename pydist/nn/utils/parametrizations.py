"""Weight and spectral normalisation as parametrizations."""

from pydist import _C
from pydist._grad_mode import no_grad
from pydist.nn.functional import normalize
from pydist.nn.modules.module import Module
from pydist.nn.utils.norms import as_rows, dim_of, norm_except_dim, power_iteration
from pydist.nn.utils.parametrize import register_parametrization


class _WeightNorm(Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = -1 if dim is None else dim

    def forward(self, g, v):
        return v * (g / norm_except_dim(v, self.dim))

    def right_inverse(self, weight):
        return norm_except_dim(weight, self.dim), weight.clone()


def weight_norm(module, name="weight", dim=0):
    """weight = g * v / |v| (Salimans and Kingma, 2016). g and v are parametrizations.<name>.original0 and original1.
    Norms are over all dims except `dim` (None: one norm). Returns the module."""
    return register_parametrization(module, name, _WeightNorm(dim), unsafe=True)


class _SpectralNorm(Module):
    def __init__(self, weight, steps, dim, eps):
        super().__init__()
        if steps <= 0:
            raise ValueError(f"Expected n_power_iterations to be positive, but got n_power_iterations={steps}")
        self.dim, self.eps, self.n_power_iterations = dim % max(weight.dim(), 1), eps, steps
        if weight.dim() > 1:
            with no_grad():
                matrix = as_rows(weight, self.dim)
                u, v = (
                    normalize(_C.randn(n, dtype=weight.dtype, device=weight.device), dim=0, eps=eps)
                    for n in matrix.shape
                )
                self.register_buffer("_u", u)
                self.register_buffer("_v", v)
                power_iteration(matrix, u, v, 15, eps)

    def forward(self, weight):
        if weight.dim() == 1:
            return normalize(weight, dim=0, eps=self.eps)
        matrix = as_rows(weight, self.dim)
        if self.training:
            power_iteration(matrix.detach(), self._u, self._v, self.n_power_iterations, self.eps)
        u, v = self._u.clone(), self._v.clone()
        return weight / (u @ (matrix @ v))

    def right_inverse(self, value):
        return value


def spectral_norm(module, name="weight", n_power_iterations=1, eps=1e-12, dim=None):
    """weight = original / its largest singular value, found by power iteration at each use in training (Miyato et al.,
    2018). A vector is divided by its norm. Returns the module."""
    weight = getattr(module, name)
    made = _SpectralNorm(weight, n_power_iterations, dim_of(module, dim), eps)
    return register_parametrization(module, name, made)
