"""Short-time Fourier transforms, beside sums in NumPy and beside PyTorch."""

import itertools

import numpy as np
import pytest

import pydist


def frames_of(x, n_fft, hop, window):
    """sum_k window[k] x[t hop + k] exp(-2 pi i f k / n_fft) by its definition."""
    k = np.arange(n_fft)
    waves = np.exp(-2j * np.pi * np.outer(k, k) / n_fft)
    starts = range(0, len(x) - n_fft + 1, hop)
    return np.stack([waves @ (window * x[start : start + n_fft]) for start in starts], 1)


@pytest.mark.parametrize("n_fft, hop, length", [(8, 2, 8), (9, 4, 6), (6, 5, 3)])
def test_stft_is_its_sum(n_fft, hop, length):
    x = pydist.randn(30, dtype=pydist.float64)
    window = pydist.hann_window(length, dtype=pydist.float64) + 0.1
    left = (n_fft - length) // 2
    whole = np.pad(window.numpy(), (left, n_fft - length - left))
    want = frames_of(x.numpy(), n_fft, hop, whole)
    kept = {"window": window, "center": False, "return_complex": True}
    np.testing.assert_allclose(pydist.stft(x, n_fft, hop, length, onesided=False, **kept).numpy(), want, atol=1e-12)
    half = pydist.stft(x, n_fft, hop, length, normalized=True, **kept).numpy()
    np.testing.assert_allclose(half, want[: n_fft // 2 + 1] / np.sqrt(n_fft), atol=1e-12)
    around = np.pad(x.numpy(), n_fft // 2, mode="reflect")
    centred = pydist.stft(x, n_fft, hop, length, **{**kept, "center": True}, onesided=False)
    np.testing.assert_allclose(centred.numpy(), frames_of(around, n_fft, hop, whole), atol=1e-12)


@pytest.mark.parametrize("complex", [False, True])
def test_istft_brings_the_signal_back(complex):
    x = pydist.randn(2, 40, dtype=pydist.complex128 if complex else pydist.float64)
    window = pydist.hann_window(8, dtype=pydist.float64) + 0.1
    spectrum = pydist.stft(x, 8, 3, window=window, return_complex=True)
    back = pydist.istft(spectrum, 8, 3, window=window, return_complex=complex, onesided=not complex, length=40)
    np.testing.assert_allclose(back.numpy()[:, :39], x.numpy()[:, :39], atol=1e-12)
    longer = pydist.istft(spectrum, 8, 3, window=window, return_complex=complex, onesided=not complex, length=60)
    assert longer.shape == (2, 60) and not longer[:, 50:].abs().any()


def test_gradients():
    x = pydist.randn(2, 20, dtype=pydist.float64, requires_grad=True)
    window = pydist.hann_window(6, dtype=pydist.float64) + 0.1

    def both(x):
        spectrum = pydist.stft(x, 6, 2, window=window, return_complex=True)
        return pydist.view_as_real(spectrum), pydist.istft(spectrum, 6, 2, window=window)

    assert pydist.autograd.gradcheck(both, (x,))


@pytest.mark.parametrize(
    "text, call",
    [
        ("return_complex is not given", lambda x: pydist.stft(x, 8)),
        ("hop_length 0", lambda x: pydist.stft(x, 8, 0, return_complex=True)),
        ("win_length 9", lambda x: pydist.stft(x, 8, 2, 9, return_complex=True)),
        (r"window is \(5,\)", lambda x: pydist.stft(x, 8, window=x[:5], return_complex=True)),
        ("20 samples, n_fft is 32", lambda x: pydist.stft(x, 32, center=False, return_complex=True)),
        ("onesided is True", lambda x: pydist.stft(x.to(pydist.complex64), 8, onesided=True)),
        ("align_to_window", lambda x: pydist.stft(x, 8, return_complex=True, align_to_window=True)),
        (r"shape \[5, T\]", lambda x: pydist.istft(x, 8)),
        ("in no frame", lambda x: pydist.istft(pydist.stft(x, 8, 8, 4, return_complex=True), 8, 8, 4)),
        ("no frames", lambda x: pydist.istft(pydist.zeros(5, 0, dtype=pydist.complex64), 8)),
    ],
)
def test_errors(text, call):
    with pytest.raises(RuntimeError, match=text):
        call(pydist.ones(20))


def test_as_torch():
    torch = pytest.importorskip("torch")
    rows = itertools.product(
        [False, True], [8, 9], [None, 3], [None, 6], [False, True], [False, True], ["reflect", "constant"]
    )
    for complex, n_fft, hop, length, center, normalized, mode in rows:
        x = torch.randn(2, 50, dtype=torch.complex64 if complex else torch.float32)
        window = torch.hann_window(length or n_fft) + 0.1
        shape = {"hop_length": hop, "win_length": length, "center": center, "normalized": normalized}
        theirs = torch.stft(x, n_fft, window=window, pad_mode=mode, return_complex=True, **shape)
        given = pydist.from_numpy(x.numpy()), n_fft
        ours = pydist.stft(
            *given, window=pydist.from_numpy(window.numpy()), pad_mode=mode, return_complex=True, **shape
        )
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), atol=1e-5)
        back = {**shape, "onesided": not complex, "return_complex": complex}
        if not center and length:
            continue  # the first sample is in no frame
        theirs = torch.istft(theirs, n_fft, window=window, **back)
        ours = pydist.istft(ours, n_fft, window=pydist.from_numpy(window.numpy()), **back)
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), atol=1e-5)
