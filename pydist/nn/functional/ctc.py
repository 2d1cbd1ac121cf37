"""Connectionist temporal classification."""

import math

from pydist import _C
from pydist._autocast import in_float32
from pydist.nn.functional.loss import reduction_of

_NEVER = -1e30  # stands for log(0): -inf has no gradient


@in_float32
def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, reduction="mean", zero_infinity=False):
    """-log of the probability of targets, summed over all alignments with log_probs[T, N, C] (or [T, C]). `blank` is
    the class between labels (Graves et al., 2006). targets: [N, S], or all labels in one row. reduction "mean" divides
    by target_lengths. The loss of an impossible target is infinite, or 0 with zero_infinity."""
    reduction = reduction_of(None, None, reduction)
    single = log_probs.dim() == 2
    if single:
        log_probs, targets = log_probs.unsqueeze(1), targets.reshape(1, -1)
    if log_probs.dim() != 3 or not 0 <= blank < log_probs.shape[2]:
        raise RuntimeError(
            f"ctc_loss: log_probs has shape {tuple(log_probs.shape)}, blank is {blank} (expected [T, N, C], a class)"
        )
    times, count, _ = log_probs.shape
    lengths = (t if isinstance(t, _C.Tensor) else _C.tensor(t, device="cpu") for t in (input_lengths, target_lengths))
    steps, sizes = (t.reshape(-1).tolist() for t in lengths)
    if len(steps) != count or len(sizes) != count or max(steps, default=0) > times:
        raise RuntimeError(
            f"ctc_loss: {len(steps)} input_lengths up to {max(steps, default=0)}, {len(sizes)} target_lengths for {count} rows of {times}"
        )
    longest = max(sizes, default=0)
    flat, at, rows = targets.tolist(), 0, []
    for n, size in enumerate(sizes):
        row = flat[n][:size] if targets.dim() == 2 else flat[at : at + size]
        at += size
        if len(row) != size:
            raise RuntimeError(f"ctc_loss: target_lengths {sizes} for targets of shape {tuple(targets.shape)}")
        rows.append([label for x in row + [blank] * (longest - size) for label in (blank, x)] + [blank])
    labels = _C.tensor(rows, dtype=_C.int64, device=log_probs.device)  # [N, 2 S + 1]: labels with blanks around them
    width = 2 * longest + 1
    skips = _C.zeros(
        count, width, dtype=_C.bool, device=log_probs.device
    )  # whether a label may follow the one before it without a blank
    if width > 2:
        skips = _C.cat([skips[:, :2], labels[:, 2:] != labels[:, :-2]], 1)  # every other label is a blank
    emitted = log_probs.gather(2, labels.unsqueeze(0).expand(times, count, width))
    impossible = _C.full((count, width), _NEVER, dtype=log_probs.dtype, device=log_probs.device)
    first = _C.arange(width, device=log_probs.device).unsqueeze(0) < 2
    alpha = _C.where(first, emitted[0], impossible)
    ends = []
    for t in range(times):
        if t:
            one = _C.constant_pad_nd(alpha, (1, 0), _NEVER)[:, :width]
            two = _C.where(skips, _C.constant_pad_nd(alpha, (2, 0), _NEVER)[:, :width], impossible)
            alpha = _C.logaddexp(_C.logaddexp(alpha, one), two) + emitted[t]
        ends.append(alpha)
    table = _C.stack(ends)  # [T, N, 2 S + 1]
    losses = []
    for n in range(count):
        last = table[steps[n] - 1, n] if steps[n] else impossible[n]
        end = last[2 * sizes[n]]
        losses.append(-_C.logaddexp(end, last[2 * sizes[n] - 1]) if sizes[n] else -end)
    each = _C.stack(losses) if losses else _C.zeros(0, dtype=log_probs.dtype, device=log_probs.device)
    each = each.masked_fill(each.detach() > -_NEVER / 2, 0.0 if zero_infinity else math.inf)
    if reduction == "mean":
        return (each / _C.tensor([max(size, 1) for size in sizes], dtype=each.dtype, device=each.device)).mean()
    return each.sum() if reduction == "sum" else each.squeeze(0) if single else each
