"""Short-time Fourier transforms."""

from pydist import _C, fft
from pydist._C import Tensor
from pydist._functions._register import both
from pydist.nn.functional import pad


def _described(input):
    return f"{input.dtype} of shape {tuple(input.shape)}" if isinstance(input, Tensor) else type(input).__name__


def _window(name, input, n_fft, hop_length, win_length, window):
    """hop_length, win_length, and `window` or ones in the middle of n_fft samples, on input's device."""
    hop = n_fft // 4 if hop_length is None else hop_length
    length = n_fft if win_length is None else win_length
    if n_fft < 1 or hop < 1 or not 0 < length <= n_fft:
        raise RuntimeError(
            f"{name}: n_fft is {n_fft}, hop_length {hop}, win_length {length} (expected at least 1, and a win_length of at most "
            "n_fft)"
        )
    if window is None:
        dtype = input.dtype.to_real() if input.is_complex() else input.dtype
        window = _C.ones(length, dtype=dtype, device=input.device)
    elif not isinstance(window, Tensor) or window.shape != (length,):
        got = tuple(window.shape) if isinstance(window, Tensor) else type(window).__name__
        raise RuntimeError(f"{name}: window is {got} (expected a tensor of shape {(length,)})")
    if length < n_fft:
        left = (n_fft - length) // 2
        window = window.new_zeros(n_fft).slice_scatter(window, 0, left, left + length)
    return hop, length, window.to(input.device)


def _padded(x, n, mode):
    """x with n more samples at both ends of its rows."""
    parts = _C.view_as_real(x).movedim(-1, 1) if x.is_complex() else x.unsqueeze(1)
    parts = pad(parts, (n, n), mode=mode)
    return _C.view_as_complex(parts.movedim(1, -1).contiguous()) if x.is_complex() else parts.squeeze(1)


@both
def stft(
    input,
    n_fft,
    hop_length=None,
    win_length=None,
    window=None,
    center=True,
    pad_mode="reflect",
    normalized=False,
    onesided=None,
    return_complex=None,
    align_to_window=None,
):
    """out[..., f, t] = sum_k window[k] input[..., t hop_length + k] exp(-2 pi i f k / n_fft), for k from 0 to n_fft - 1.

    input: [samples] or [batch, samples], real or complex. hop_length: n_fft // 4 by default. window: win_length samples, ones by
    default, in the middle of n_fft. center: input gets n_fft // 2 samples on both sides by pad_mode, so frame t is
    around sample t hop_length. normalized: divided by sqrt(n_fft). onesided: only the n_fft // 2 + 1 frequencies of a
    real signal, which is the default for real input and window. return_complex=False: a real tensor with a last dimension
    of 2; complex signals need no choice. align_to_window, without center: frames of win_length samples.

    >>> import pydist
    >>> pydist.stft(pydist.ones(8), 4, center=False, return_complex=True).abs()[:, 0]
    tensor([4., 0., 0.])
    """
    is_signal = isinstance(input, Tensor) and (input.is_floating_point() or input.is_complex())
    if not is_signal or input.dim() not in (1, 2):
        raise RuntimeError(
            f"stft: input is {_described(input)} (expected real or complex numbers of 1 or 2 dimensions)"
        )
    hop, length, window = _window("stft", input, n_fft, hop_length, win_length, window)
    whole = input.is_complex() or window.is_complex()
    if return_complex is None and not whole:
        raise RuntimeError("stft: return_complex is not given for a real input (expected True or False)")
    if onesided and whole:
        raise RuntimeError("stft: onesided is True for a complex input or window (expected False)")
    if align_to_window is not None and center:
        raise RuntimeError("stft: align_to_window is given with center=True (expected center=False)")
    x = input if input.dim() == 2 else input.unsqueeze(0)
    if center:
        x = _padded(x, n_fft // 2, pad_mode)
    elif align_to_window:
        left = (n_fft - length) // 2
        x = _C.cat([x.new_zeros(x.shape[0], left), x, x.new_zeros(x.shape[0], n_fft - length - left)], 1)
    if x.shape[1] < n_fft:
        raise RuntimeError(f"stft: input has {x.shape[1]} samples, n_fft is {n_fft} (expected at least as many)")
    frames = x.unfold(1, n_fft, hop) * window
    norm = "ortho" if normalized else "backward"
    half = onesided or onesided is None and not whole
    out = (fft.rfft if half else fft.fft)(frames, norm=norm).transpose(1, 2)
    out = out if input.dim() == 2 else out.squeeze(0)
    return out if return_complex or return_complex is None else _C.view_as_real(out)


def _added_up(frames, hop):
    """The sum of frames[..., t, k] at t hop + k."""
    steps, size = frames.shape[-2:]
    total = (steps - 1) * hop + size
    at = (_C.arange(steps, device=frames.device).unsqueeze(1) * hop + _C.arange(size, device=frames.device)).reshape(-1)
    return frames.new_zeros(*frames.shape[:-2], total).index_add(-1, at, frames.flatten(-2))


@both
def istft(
    input,
    n_fft,
    hop_length=None,
    win_length=None,
    window=None,
    center=True,
    normalized=False,
    onesided=None,
    length=None,
    return_complex=False,
):
    """The signal that stft transforms into input[..., f, t] with the same arguments, and the one with the least squared
    distance if there is none (Griffin and Lim, 1984): the frames' inverse transforms times the window, added up, over the
    sum of the windows' squares. `length`: so many samples, with zeros behind the last frame.

    >>> import pydist
    >>> x = pydist.arange(8.0)
    >>> spectrum = pydist.stft(x, 4, window=pydist.hann_window(4), return_complex=True)
    >>> pydist.istft(spectrum, 4, window=pydist.hann_window(4), length=8)
    tensor([0., 1., 2., 3., 4., 5., 6., 7.])
    """
    half = not return_complex if onesided is None else onesided
    bins = n_fft // 2 + 1 if half else n_fft
    if not isinstance(input, Tensor) or not input.is_complex() or input.dim() not in (2, 3) or input.shape[-2] != bins:
        raise RuntimeError(
            f"istft: input is {_described(input)} (expected complex numbers of shape [{bins}, T] or [N, {bins}, T])"
        )
    if half and return_complex:
        raise RuntimeError("istft: onesided and return_complex are True (expected one of them)")
    if not input.shape[-1]:
        raise RuntimeError("istft: input has no frames (expected at least one)")
    hop, _, window = _window("istft", input, n_fft, hop_length, win_length, window)
    norm = "ortho" if normalized else "backward"
    frames = input.transpose(-1, -2)
    frames = fft.irfft(frames, n_fft, norm=norm) if half else fft.ifft(frames, norm=norm)
    frames = frames if half or return_complex else frames.real
    signal = _added_up(frames * window, hop)
    weight = _added_up(window.abs().square().expand(input.shape[-1], n_fft), hop)
    begin = n_fft // 2 if center else 0
    end = signal.shape[-1] - begin if length is None else min(begin + length, signal.shape[-1])
    signal, weight = signal[..., begin:end], weight[begin:end]
    if weight.numel() and weight.min().item() < 1e-11:
        raise RuntimeError("istft: a sample is in no frame, or the windows are 0 there (expected windows that overlap)")
    signal = signal / weight
    if length is not None and signal.shape[-1] < length:
        signal = _C.cat([signal, signal.new_zeros(*signal.shape[:-1], length - signal.shape[-1])], -1)
    return signal
