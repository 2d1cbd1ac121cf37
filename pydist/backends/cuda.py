"""Settings of what runs on GPUs."""

from contextlib import contextmanager

from pydist import _C


class _Matmul:
    """`allow_tf32`: float32 products on a GPU by tensor cores, which round the factors to 10 bits of fraction (False: in float32).
    float16 and bfloat16 are summed in float32 whatever the others say."""

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
        """Remembered: there is one attention, which needs no memory for the scores."""
        _attention[kind] = bool(enabled)

    def is_enabled():
        """What the switch was set to."""
        return _attention[kind]

    return enable, is_enabled


enable_flash_sdp, flash_sdp_enabled = _switches("flash")
enable_mem_efficient_sdp, mem_efficient_sdp_enabled = _switches("mem_efficient")
enable_math_sdp, math_sdp_enabled = _switches("math")
enable_cudnn_sdp, cudnn_sdp_enabled = _switches("cudnn")


@contextmanager
def sdp_kernel(enable_flash=True, enable_math=True, enable_mem_efficient=True, enable_cudnn=True):
    """The switches, within a block."""
    before = dict(_attention)
    _attention.update(flash=enable_flash, math=enable_math, mem_efficient=enable_mem_efficient, cudnn=enable_cudnn)
    try:
        yield
    finally:
        _attention.update(before)


def is_built():
    """Whether this build of pydist has kernels for GPUs."""
    return bool(_C.cuda_built())
