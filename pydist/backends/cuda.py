"""Settings of computation on GPUs."""

from contextlib import contextmanager

from pydist import _C


class _Matmul:
    """`allow_tf32`: tensor cores compute float32 products on a GPU, which rounds the factors to 10 bits of fraction
    (False: float32 throughout). float16 and bfloat16 are always summed in float32, whatever the other settings are."""

    allow_fp16_reduced_precision_reduction = allow_bf16_reduced_precision_reduction = True

    @property
    def allow_tf32(self):
        return _C.gpu_settings()[0]

    @allow_tf32.setter
    def allow_tf32(self, allowed):
        _C.gpu_settings(bool(allowed), *_C.gpu_settings()[1:])


matmul = _Matmul()


_attention = {"flash": True, "mem_efficient": True, "math": True, "cudnn": True}


def _switches(kind):
    def enable(enabled):
        """The value is stored and changes nothing: pydist has one attention kernel, which needs no memory for the
        scores."""
        _attention[kind] = bool(enabled)

    def is_enabled():
        """The stored value; it changes nothing."""
        return _attention[kind]

    return enable, is_enabled


enable_flash_sdp, flash_sdp_enabled = _switches("flash")
enable_mem_efficient_sdp, mem_efficient_sdp_enabled = _switches("mem_efficient")
enable_math_sdp, math_sdp_enabled = _switches("math")
enable_cudnn_sdp, cudnn_sdp_enabled = _switches("cudnn")


@contextmanager
def sdp_kernel(enable_flash=True, enable_math=True, enable_mem_efficient=True, enable_cudnn=True):
    """Sets the switches inside a block."""
    before = dict(_attention)
    _attention.update(flash=enable_flash, math=enable_math, mem_efficient=enable_mem_efficient, cudnn=enable_cudnn)
    try:
        yield
    finally:
        _attention.update(before)


class SDPAParams:
    """The arguments of one attention, as PyTorch's checks of its kernels take them."""

    def __init__(self, query, key, value, attn_mask, dropout, is_causal, enable_gqa=False):
        self.query, self.key, self.value, self.attn_mask = query, key, value, attn_mask
        self.dropout, self.is_causal, self.enable_gqa = dropout, is_causal, enable_gqa


def can_use_flash_attention(params, debug=False):
    """False: none of PyTorch's kernels is here. pydist has one attention kernel, which needs no memory for the scores."""
    return False


can_use_efficient_attention = can_use_cudnn_attention = can_use_flash_attention


def is_built():
    """Whether this build of pydist has kernels for GPUs."""
    return bool(_C.cuda_built())
