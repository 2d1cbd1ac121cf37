"""Where what is imported at first use stands. Written by tools/index.py."""

LATER = {  # file of pydist/_functions: functions, methods
    "decompositions": (
        (
            "cholesky cholesky_inverse cholesky_solve det inverse logdet lu lu_solve lu_unpack matrix_exp pinverse qr "
            "slogdet svd"
        ),
        "cholesky cholesky_inverse cholesky_solve det inverse logdet lu lu_solve matrix_exp pinverse qr slogdet svd",
    ),
    "elements": (
        (
            "copysign deg2rad float_power fmax fmin frexp gcd heaviside hypot is_conj is_neg isneginf isposinf isreal "
            "lcm ldexp logaddexp2 logit nextafter positive rad2deg resolve_conj resolve_neg sgn signbit sinc xlogy"
        ),
        (
            "bitwise_not_ conj_physical_ copysign copysign_ cumsum_ deg2rad deg2rad_ eq_ float_power float_power_ "
            "fmax fmin frexp gcd gcd_ ge_ greater_ greater_equal_ gt_ heaviside heaviside_ hypot hypot_ is_conj "
            "is_neg isneginf isposinf isreal lcm lcm_ ldexp ldexp_ le_ less_ less_equal_ logaddexp2 logical_and_ "
            "logical_not_ logical_or_ logical_xor_ logit logit_ lt_ ne_ nextafter nextafter_ not_equal_ positive "
            "rad2deg rad2deg_ resolve_conj resolve_neg sgn sgn_ signbit sinc sinc_ xlogy xlogy_"
        ),
    ),
    "matrices": (
        "addbmm cdist chain_matmul cross kron matrix_power vander vdot",
        "addbmm addbmm_ cross kron matrix_power vdot",
    ),
    "random": (
        "bernoulli normal poisson",
        "bernoulli bernoulli_ cauchy_ exponential_ geometric_ log_normal_ normal_ uniform_",
    ),
    "rearrange": (
        (
            "adjoint as_strided_scatter atleast_1d atleast_2d atleast_3d block_diag broadcast_shapes cartesian_prod "
            "column_stack diag_embed diagflat diagonal_scatter dsplit dstack hsplit rot90 row_stack select_scatter "
            "slice_scatter split_with_sizes t unfold_copy unsafe_chunk unsafe_split vsplit"
        ),
        (
            "adjoint as_strided_ as_strided_scatter diag_embed diagflat diagonal_scatter dsplit hsplit resize resize_ "
            "resize_as_ rot90 select_scatter set_ slice_scatter split_with_sizes squeeze_ sum_to_size swapaxes_ "
            "swapdims_ t_ transpose_ unfold unsafe_chunk unsafe_split unsqueeze_ vsplit"
        ),
    ),
    "select": (
        (
            "argwhere bucketize combinations histc histogram index_put_ index_reduce isin kthvalue masked_scatter "
            "mode msort put searchsorted take tril_indices triu_indices unique_consecutive unravel_index"
        ),
        (
            "argwhere histc histogram index_reduce index_reduce_ kthvalue masked_scatter masked_scatter_ mode msort "
            "put put_ take unique_consecutive where"
        ),
    ),
    "special": (
        "digamma erfc erfinv i0 lgamma mvlgamma polygamma",
        "digamma digamma_ erfc erfc_ erfinv erfinv_ i0 i0_ lgamma lgamma_ mvlgamma polygamma",
    ),
    "spectra": (
        "istft stft",
        "istft stft",
    ),
    "statistics": (
        (
            "corrcoef cov cummax cummin cumprod cumulative_trapezoid diff dist logcumsumexp nanmean nanmedian "
            "nanquantile nansum quantile renorm trapezoid trapz"
        ),
        (
            "corrcoef cov cummax cummin cumprod cumprod_ diff dist logcumsumexp nanmean nanmedian nanquantile nansum "
            "quantile renorm renorm_ trapezoid"
        ),
    ),
}
FROM = {  # file of pydist: functions and classes
    "_dtypes": "can_cast finfo iinfo",
    "_make": (
        "asarray blackman_window empty_strided eye full_like hamming_window hann_window is_inference is_nonzero "
        "linspace logspace numel rand_like randint_like randn_like range scalar_tensor"
    ),
    "_settings": (
        "are_deterministic_algorithms_enabled get_default_device get_float32_matmul_precision get_num_interop_threads "
        "is_complex is_deterministic_algorithms_warn_only_enabled is_floating_point is_storage is_tensor "
        "set_default_device set_float32_matmul_precision set_flush_denormal set_num_interop_threads typename "
        "use_deterministic_algorithms"
    ),
}
