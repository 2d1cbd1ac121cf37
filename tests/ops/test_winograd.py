"""Convolutions of 3 x 3 by Winograd's minimal filtering (csrc/kernels/cpu/winograd.c), next to double precision, which
goes another way."""

import os
import subprocess
import sys

import numpy as np
import pytest

import pydist
import pydist.nn.functional as F

# images, channels in and out, height, width, padding: odd sizes, images smaller than a tile, units of several images,
# few tiles (one, up to 128) and more, channels that no panel of the products divides
SHAPES = [
    (4, 64, 64, 32, 32, 1),
    (3, 16, 48, 13, 17, 0),
    (3, 16, 48, 13, 17, 2),
    (5, 48, 16, 9, 11, (0, 1)),
    (32, 32, 16, 3, 3, 1),
    (70, 16, 32, 4, 4, 1),
    (2, 16, 16, 40, 20, (2, 0)),
    (80, 32, 32, 1, 1, 1),
    (1, 16, 32, 3, 600, 1),
    (1, 16, 16, 4, 4, 1),
    (3, 144, 80, 6, 5, 1),
    (8, 160, 144, 8, 8, 1),
    (9, 160, 144, 8, 8, 1),
]


def results(shape, dtype, x_format, w_format, bias=True):
    """y, gx, gw, gb as arrays of double, of the same numbers for each dtype (which bfloat16 has, too)."""
    images, inputs, outputs, height, width, padding = shape
    random = np.random.default_rng(0)

    def values(*size):
        return pydist.tensor(random.integers(-64, 65, size) / 64).to(dtype)

    x = values(images, inputs, height, width).to(memory_format=x_format).requires_grad_()
    w = values(outputs, inputs, 3, 3).to(memory_format=w_format).requires_grad_()
    b = values(outputs).requires_grad_() if bias else None
    y = F.conv2d(x, w, b, padding=padding)
    y.backward(values(*y.shape))
    return [t.detach().double().numpy() for t in (y, x.grad, w.grad, *([b.grad] if bias else []))]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "dtype, eps", [(pydist.float32, 2**-23), (pydist.bfloat16, 2**-8), (pydist.float16, 2**-11)], ids=str
)
def test_is_the_convolution(shape, dtype, eps):
    for x_format in (pydist.contiguous_format, pydist.channels_last):
        for w_format in (pydist.contiguous_format, pydist.channels_last):
            want = results(shape, pydist.float64, x_format, w_format)
            got = results(shape, dtype, x_format, w_format)
            for a, b in zip(got, want):
                assert np.abs(a - b).max() <= 10 * eps * np.abs(b).max()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_threads_and_runs_give_the_same_bits(shape):
    threads = pydist.get_num_threads()
    try:
        found = []
        for n in (1, 2, 3, 2):
            pydist.set_num_threads(n)
            found.append(results(shape, pydist.float32, pydist.contiguous_format, pydist.contiguous_format))
    finally:
        pydist.set_num_threads(threads)
    for other in found[1:]:
        assert all((a == b).all() for a, b in zip(found[0], other))


def test_is_what_runs_and_can_be_turned_off():
    """An infinite pixel makes the same results not finite; the transforms' differences turn infinities into NaN."""
    code = """if True:
        import pydist
        x = pydist.ones(4, 16, 16, 16)
        x[0, 0, 4, 4] = float("inf")
        y = pydist.nn.functional.conv2d(x, pydist.ones(16, 16, 3, 3), padding=1)
        print(int((~y.isfinite()).sum()) // 16, bool(y.isnan().any()))
    """
    for setting, want in (("1", ["9", "True"]), ("0", ["9", "False"])):
        environment = {**os.environ, "PYDIST_WINOGRAD": setting}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert done.stdout.split() == want, done.stderr


def test_an_image_of_zeros_and_empty_batches():
    w = pydist.randn(16, 16, 3, 3, requires_grad=True)
    assert not F.conv2d(pydist.zeros(8, 16, 8, 8), w, padding=1).any()
    empty = F.conv2d(pydist.zeros(0, 16, 8, 8), w, padding=1)
    assert empty.shape == (0, 16, 8, 8)
    empty.sum().backward()
    assert not w.grad.any()
