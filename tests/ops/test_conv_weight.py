"""Weight gradients of bf16 convolutions, channels last (csrc/kernels/cpu/conv_weight.c where AVX512-BF16 is), next to
double precision, which goes another way."""

import numpy as np
import pytest

import pydist
import pydist.nn.functional as F

# images, channels in and out, height, width, window, stride, padding, dilation: one pixel; an odd number; several
# blocks; windows of one place, of more than fit a unit, beyond the image; more channels than a unit has
SHAPES = [
    (1, 32, 32, 1, 1, (1, 1), 1, 0, 1),
    (3, 32, 64, 7, 9, (3, 3), 1, 1, 1),
    (9, 64, 32, 13, 11, (3, 3), 2, 1, 1),
    (2, 32, 160, 20, 31, (1, 1), 2, 0, 1),
    (5, 64, 288, 6, 5, (3, 2), 1, (2, 0), (1, 2)),
    (2, 32, 32, 16, 16, (5, 7), (2, 3), 4, 2),
    (40, 96, 32, 4, 4, (3, 3), 1, 1, 1),
]  # fmt: skip


def gradient(shape, dtype, w_format):
    """As an array of double, of numbers that bfloat16 has."""
    images, inputs, outputs, height, width, window, stride, padding, dilation = shape
    random = np.random.default_rng(0)

    def values(*size):
        return pydist.tensor(random.integers(-64, 65, size) / 64).to(dtype).to(memory_format=pydist.channels_last)

    w = values(outputs, inputs, *window).to(memory_format=w_format).requires_grad_()
    y = F.conv2d(values(images, inputs, height, width), w, None, stride, padding, dilation)
    y.backward(values(*y.shape))
    return w.grad.double().numpy()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("w_format", [pydist.contiguous_format, pydist.channels_last], ids=str)
def test_is_the_gradient(shape, w_format):
    want, got = gradient(shape, pydist.float64, w_format), gradient(shape, pydist.bfloat16, w_format)
    assert np.abs(got - want).max() <= 2**-8 * np.abs(want).max()  # the rounding of the result alone


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_threads_give_the_same_bits(shape):
    threads, found = pydist.get_num_threads(), []
    try:
        for n in (1, 2, 3, 16):
            pydist.set_num_threads(n)
            found.append(gradient(shape, pydist.bfloat16, pydist.channels_last))
    finally:
        pydist.set_num_threads(threads)
    assert all((other == found[0]).all() for other in found)


def test_nothing_in_nothing_out():
    x = pydist.ones(0, 32, 8, 8, dtype=pydist.bfloat16)
    w = pydist.ones(32, 32, 3, 3, dtype=pydist.bfloat16, requires_grad=True)
    F.conv2d(x.to(memory_format=pydist.channels_last), w).sum().backward()
    assert (w.grad == 0).all()
