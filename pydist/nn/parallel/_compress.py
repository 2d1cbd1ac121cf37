"""The hooks topk and sign of csrc/parallel/compress.h on a GPU: the same formulas, made of ops. Nothing in them waits
for the device."""

import math

import pydist


class _Box:
    """What a hook keeps for one bucket."""

    def __init__(self, buffer, rows):
        self.buffer, self.pieces = buffer, [(at, at + n) for _, at, n in rows if n]
        # gradient plus residual; between steps only the residual
        self.value = pydist.zeros(buffer.numel(), device=buffer.device)


class _Compressed:
    """A hook for the reducer whose message has the same number of bytes on every rank."""

    def __init__(self, reducer, group):
        self.group = group
        self.boxes = [_Box(reducer.bucket(b)[0], rows) for b, rows in enumerate(reducer.bucket_layout())]

    def start(self, b):
        box = self.boxes[b]
        box.value += box.buffer
        message = self.packed(box)
        everybody = pydist.empty(self.group.size, *message.shape, dtype=message.dtype, device=message.device)
        return message, everybody, self.group.all_gather(everybody, message, True)

    def finish(self, b, pending):
        _, everybody, work = pending
        work.wait()
        box = self.boxes[b]
        total = pydist.zeros(box.buffer.numel(), device=box.buffer.device)
        for message in everybody:  # in the order of ranks, so that all ranks have the same bits
            self.add(box, message, total)
        box.buffer.copy_(total)


class TopK(_Compressed):
    """The message: k positions (int32), then the bits of k values (float32)."""

    def __init__(self, reducer, group, ratio):
        if not 0 < ratio <= 1:
            raise ValueError(f"topk: ratio is {ratio} (expected more than 0 and at most 1)")
        super().__init__(reducer, group)
        self.ratio, most = ratio, max(box.buffer.numel() for box in self.boxes)
        if most >= 1 << 31:
            raise ValueError(f"topk: the largest bucket has {most} elements (expected at most {(1 << 31) - 1})")

    def packed(self, box):
        """The message for a gradient."""
        k = math.ceil(self.ratio * sum(end - at for at, end in box.pieces))
        places = box.value.abs().argsort(descending=True, stable=True)[
            :k
        ]  # of equal elements the first one; NaN is the largest
        sent = box.value[places]
        box.value.index_fill_(0, places, 0.0)
        return pydist.cat([places.to(pydist.int32), sent.view(pydist.int32)])

    def add(self, box, message, total):
        """Adds a rank's message to the sum."""
        places, sent = message.view(2, -1)
        total.index_add_(0, places, sent.view(pydist.float32) / self.group.size)


class Sign(_Compressed):
    """The message: a float32 for each piece, then one bit for each element (1: negative), filled up to whole
    float32s."""

    def packed(self, box):
        """The message for a gradient."""
        below = box.value < 0
        scales = [box.value[at:end].abs().mean(dtype=pydist.float64).to(pydist.float32) for at, end in box.pieces]
        for (at, end), scale in zip(box.pieces, scales):
            box.value[at:end] -= pydist.where(below[at:end], -scale, scale)
        bits = pydist.zeros(-(-below.numel() // 32) * 32, dtype=pydist.uint8, device=below.device)
        bits[: below.numel()] = below
        bits = (bits.view(-1, 8) << self.shifts(below)).sum(1).to(pydist.uint8)
        return pydist.cat([pydist.stack(scales).view(pydist.uint8), bits])

    def add(self, box, message, total):
        """Adds a rank's message to the sum."""
        scales = message[: 4 * len(box.pieces)].view(pydist.float32) / self.group.size
        below = (message[4 * len(box.pieces) :].unsqueeze(1) >> self.shifts(message) & 1).reshape(-1).to(pydist.bool)
        for (at, end), scale in zip(box.pieces, scales):
            total[at:end] += pydist.where(below[at:end], -scale, scale)

    def shifts(self, like):
        """The shifts that select each bit of a word."""
        return pydist.arange(8, dtype=pydist.uint8, device=like.device)
