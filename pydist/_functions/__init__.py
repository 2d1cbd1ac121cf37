"""Functions of tensors that are made of other ops, and the names under which PyTorch has them: as functions of pydist,
as methods of Tensor, or both. What they are made of gives the gradients.

The files of _LATER are imported when one of their names is first used: until then a method is a stand-in."""

from importlib import import_module

from pydist._C import Tensor
from pydist._functions import elementwise, indexing, products, reduce, shape
from pydist._functions._register import NAMES

globals().update(NAMES)
__all__ = list(NAMES)

_LATER = {  # file: functions that are methods too, functions, methods
    "elements": (
        (
            "copysign deg2rad float_power fmax fmin frexp gcd heaviside hypot is_conj "
            "is_neg isneginf isposinf isreal lcm ldexp logaddexp2 logit nextafter positive rad2deg "
            "resolve_conj resolve_neg sgn signbit sinc xlogy"
        ),
        "",
        (
            "bitwise_not_ conj_physical_ copysign_ cumsum_ deg2rad_ eq_ float_power_ gcd_ ge_ greater_ greater_equal_ gt_ "
            "heaviside_ hypot_ lcm_ ldexp_ le_ less_ less_equal_ logical_and_ logical_not_ logical_or_ logical_xor_ "
            "logit_ lt_ ne_ nextafter_ not_equal_ rad2deg_ sgn_ sinc_ xlogy_"
        ),
    ),
    "decompositions": (
        "cholesky cholesky_inverse cholesky_solve det inverse logdet matrix_exp pinverse qr slogdet svd",
        "",
        "",
    ),
    "special": (
        "digamma erfc erfinv i0 lgamma mvlgamma",
        "polygamma",
        "digamma_ erfc_ erfinv_ i0_ lgamma_ polygamma",
    ),
    "matrices": (
        "addbmm cross kron matrix_power vdot",
        "cdist chain_matmul vander",
        "addbmm_",
    ),
    "random": (
        "bernoulli",
        "normal poisson",
        "bernoulli_ cauchy_ exponential_ geometric_ log_normal_ normal_ uniform_",
    ),
    "rearrange": (
        (
            "adjoint as_strided_scatter diag_embed diagflat diagonal_scatter dsplit hsplit rot90 select_scatter "
            "slice_scatter split_with_sizes unsafe_chunk unsafe_split vsplit"
        ),
        ("atleast_1d atleast_2d atleast_3d block_diag broadcast_shapes cartesian_prod column_stack dstack row_stack t"),
        (
            "as_strided_ resize resize_ resize_as_ set_ squeeze_ sum_to_size swapaxes_ swapdims_ t_ transpose_ "
            "unfold unsqueeze_"
        ),
    ),
    "select": (
        (
            "argwhere histc histogram index_reduce kthvalue masked_scatter mode msort put scatter_reduce take "
            "unique_consecutive"
        ),
        "bucketize combinations index_put_ isin searchsorted tril_indices triu_indices unravel_index",
        "index_reduce_ masked_scatter_ put_ scatter_reduce_ where",
    ),
    "statistics": (
        (
            "corrcoef cov cummax cummin cumprod diff dist logcumsumexp nanmean nanmedian nanquantile nansum "
            "quantile renorm trapezoid"
        ),
        "cumulative_trapezoid trapz",
        "cumprod_ renorm_",
    ),
}
LATER = {name: file for file, (both, functions, _) in _LATER.items() for name in f"{both} {functions}".split()}


def __getattr__(name):
    if name not in LATER:
        raise AttributeError(f"module 'pydist._functions' has no attribute '{name}'")
    import_module(f"pydist._functions.{LATER[name]}")
    return NAMES[name]


def _stand_in(file, name):
    def first(self, *args, **kwargs):
        import_module(f"pydist._functions.{file}")  # puts the method in this one's place
        return getattr(self, name)(*args, **kwargs)

    first.__name__, first.__doc__ = name, f"{name}: in pydist._functions.{file}, which the first call imports."
    setattr(Tensor, name, first)


for _file, (_both, _, _methods) in _LATER.items():
    for _name in f"{_both} {_methods}".split():
        _stand_in(_file, _name)
