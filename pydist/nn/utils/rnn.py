"""Sequences of different lengths: padded to one tensor, or packed without padding."""

from collections import namedtuple

from pydist import _C

_Fields = namedtuple("PackedSequence", "data batch_sizes sorted_indices unsorted_indices")


class PackedSequence(_Fields):
    """Sequences without padding, longest first. `data` holds step after step; step t has the batch_sizes[t] sequences
    that are long enough. pack_padded_sequence and pack_sequence make it."""

    __slots__ = ()

    def __new__(cls, data, batch_sizes=None, sorted_indices=None, unsorted_indices=None):
        if unsorted_indices is None and sorted_indices is not None:
            unsorted_indices = invert_permutation(sorted_indices)
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    def to(self, *args, **kwargs):
        """The same sequences on another device or in another dtype."""
        data = self.data.to(*args, **kwargs)
        order, back = (t if t is None else t.to(data.device) for t in (self.sorted_indices, self.unsorted_indices))
        return self._replace(data=data, sorted_indices=order, unsorted_indices=back)

    def cpu(self):
        """The same sequences on the CPU."""
        return self.to("cpu")

    def cuda(self, device="cuda"):
        """The same sequences on a CUDA device."""
        return self.to(device)

    def double(self):
        """The same sequences in float64."""
        return self.to(_C.float64)

    def float(self):
        """The same sequences in float32."""
        return self.to(_C.float32)

    @property
    def is_cuda(self):
        """Whether the data are on a CUDA device."""
        return self.data.is_cuda


def invert_permutation(permutation):
    """The inverse: inverse[permutation[i]] = i. None for None."""
    return None if permutation is None else permutation.argsort()


def pack_padded_sequence(input, lengths, batch_first=False, enforce_sorted=True):
    """Packs input [T, B, *] ([B, T, *] with batch_first), in which sequence b has lengths[b] steps. `enforce_sorted`:
    the lengths are in descending order already; otherwise they are sorted here, and unpacking restores the order.
    Raises ValueError or RuntimeError.

    >>> import pydist
    >>> from pydist.nn.utils.rnn import pack_padded_sequence
    >>> packed = pack_padded_sequence(pydist.tensor([[1, 2, 3], [4, 5, 0]]), [3, 2], batch_first=True)
    >>> packed.data.tolist(), packed.batch_sizes.tolist()
    ([1, 4, 2, 5, 3], [2, 2, 1])
    """
    lengths = lengths.tolist() if isinstance(lengths, _C.Tensor) else [int(n) for n in lengths]
    x = input.transpose(0, 1) if batch_first else input
    if len(lengths) != x.shape[1]:
        raise RuntimeError(f"pack_padded_sequence: got {len(lengths)} lengths (expected {x.shape[1]}, the batch size)")
    if not lengths or min(lengths) <= 0 or max(lengths) > x.shape[0]:
        raise RuntimeError(f"pack_padded_sequence: lengths {lengths} (expected 1 to {x.shape[0]} each)")
    order = None
    if not enforce_sorted:
        order = _C.tensor(sorted(range(len(lengths)), key=lambda b: -lengths[b]), device=input.device)
        x = x.index_select(1, order)
        lengths = sorted(lengths, reverse=True)
    elif any(a < b for a, b in zip(lengths, lengths[1:])):
        raise RuntimeError(
            "pack_padded_sequence: lengths are not sorted (expected descending order, or enforce_sorted=False)"
        )
    sizes = [sum(n > t for n in lengths) for t in range(lengths[0])]
    data = _C.cat([x[t, :size] for t, size in enumerate(sizes)])
    return PackedSequence(data, _C.tensor(sizes, dtype=_C.int64, device="cpu"), order, None)


def pad_packed_sequence(sequence, batch_first=False, padding_value=0.0, total_length=None):
    """(padded [T, B, *], lengths): the inverse of pack_padded_sequence. T is total_length, or the length of the longest
    sequence."""
    data, sizes, _, unsorted = sequence
    sizes = sizes.tolist()
    steps, batch = len(sizes), sizes[0]
    if total_length is not None and total_length < steps:
        raise ValueError(f"pad_packed_sequence: total_length {total_length} (expected {steps} or more)")
    begin, rows = 0, []
    for size in sizes:
        step = data[begin : begin + size]
        begin += size
        if size < batch:
            rest = _C.full((batch - size, *data.shape[1:]), padding_value, dtype=data.dtype, device=data.device)
            step = _C.cat([step, rest])
        rows.append(step)
    for _ in range((total_length or steps) - steps):
        rows.append(_C.full((batch, *data.shape[1:]), padding_value, dtype=data.dtype, device=data.device))
    padded = _C.stack(rows, 1 if batch_first else 0)
    lengths = _C.tensor([sum(size > b for size in sizes) for b in range(batch)], dtype=_C.int64, device="cpu")
    if unsorted is not None:
        padded = padded.index_select(0 if batch_first else 1, unsorted)
        lengths = lengths[unsorted.cpu()]
    return padded, lengths


def pad_sequence(sequences, batch_first=False, padding_value=0.0, padding_side="right"):
    """Stacks tensors [T_b, *] to [T, B, *] ([B, T, *] with batch_first) and fills up with padding_value."""
    if padding_side not in ("left", "right"):
        raise ValueError(f"pad_sequence: padding_side {padding_side!r} (expected 'left' or 'right')")
    sequences = list(sequences)
    if not sequences:
        raise RuntimeError("pad_sequence: sequences is empty (expected at least one tensor)")
    steps = max(s.shape[0] for s in sequences)
    rows = []
    for s in sequences:
        rest = _C.full((steps - s.shape[0], *s.shape[1:]), padding_value, dtype=s.dtype, device=s.device)
        rows.append(_C.cat([rest, s] if padding_side == "left" else [s, rest]))
    return _C.stack(rows, 0 if batch_first else 1)


def unpad_sequence(padded_sequences, lengths, batch_first=False):
    """The list of tensors that pad_sequence joined."""
    x = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    lengths = lengths.tolist() if isinstance(lengths, _C.Tensor) else lengths
    return [x[b, :n] for b, n in enumerate(lengths)]


def pack_sequence(sequences, enforce_sorted=True):
    """Packs a list of tensors [T_b, *]."""
    return pack_padded_sequence(pad_sequence(sequences), [s.shape[0] for s in sequences], enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences):
    """The list of tensors that pack_sequence packed."""
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)
