"""PowerSGD (Vogels et al., 2019): gradients travel as products of two thin matrices.

For a gradient M [n, m] (its first size by all others) and rank r, with Q [m, r] from the step before (warm start):

    P = mean over ranks of M Q, made orthonormal;  Q = mean over ranks of M^T P;  the mean of M over ranks is about P Q^T

So (n + m) r numbers travel instead of n m. The error of the approximation is added to the next gradient (error
feedback). Vectors, and tensors for which this would save too little (min_compression_rate), are averaged without
compression.

>>> from pydist import nn
>>> from pydist.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powerSGD
>>> model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
>>> state = powerSGD.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=10)
>>> model.register_comm_hook(state, powerSGD.powerSGD_hook)
"""

import math

import pydist
from pydist.distributed._group.process_group import current
from pydist.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

__all__ = ["PowerSGDState", "batched_powerSGD_hook", "powerSGD_hook"]


class PowerSGDState:
    """The state that PowerSGD keeps between steps, on each rank.

    process_group: None for the default group. matrix_approximation_rank: r. start_powerSGD_iter: how many steps use
    plain averaging; at least 2 with error feedback or warm start, because PyTorch's first step has other buckets.
    min_compression_rate: compress if (n + m) r times this rate is less than n m. orthogonalization_epsilon: added to a
    column's length before the division by it. random_seed: seed of the first Q, the same on all ranks.
    compression_stats_logging_frequency and batch_tensors_with_same_shape are accepted and ignored. Raises ValueError if
    a number is out of its range.
    """

    def __init__(
        self,
        process_group,
        matrix_approximation_rank=1,
        start_powerSGD_iter=1000,
        min_compression_rate=2,
        use_error_feedback=True,
        warm_start=True,
        orthogonalization_epsilon=0,
        random_seed=0,
        compression_stats_logging_frequency=10000,
        batch_tensors_with_same_shape=False,
    ):
        if matrix_approximation_rank < 1:
            raise ValueError(
                f"PowerSGDState: matrix_approximation_rank is {matrix_approximation_rank} (expected more than 0)"
            )
        if (use_error_feedback or warm_start) and start_powerSGD_iter <= 1:
            raise ValueError(
                f"PowerSGDState: start_powerSGD_iter is {start_powerSGD_iter} (expected more than 1 with error feedback or "
                "warm start)"
            )
        self.process_group = process_group
        self.matrix_approximation_rank = matrix_approximation_rank
        self.start_powerSGD_iter = start_powerSGD_iter
        self.min_compression_rate = min_compression_rate
        self.use_error_feedback, self.warm_start = use_error_feedback, warm_start
        self.orthogonalization_epsilon = orthogonalization_epsilon
        self.rng = pydist.Generator().manual_seed(random_seed)
        self.error_dict, self.q_memory_dict = {}, {}
        self.iter = 0
        self.total_numel_before_compression = self.total_numel_after_compression = 0

    def maybe_increase_iter(self, bucket):
        """Counts a step when its last bucket comes."""
        if bucket.is_last():
            self.iter += 1

    def compression_stats(self):
        """(rate, elements before, elements after), over all steps so far."""
        before, after = self.total_numel_before_compression, self.total_numel_after_compression
        return before / after if after else 0, before, after

    def __getstate__(self):
        return {name: value for name, value in self.__dict__.items() if name not in ("process_group", "rng")} | {
            "rng_state": self.rng.get_state()
        }

    def __setstate__(self, state):
        rng_state = state.pop("rng_state")
        self.__dict__.update(state)
        self.process_group = None
        self.rng = pydist.Generator()
        self.rng.set_state(rng_state)


def _orthonormal(matrix, epsilon):
    """Gram-Schmidt on the columns, in place. A column that depends linearly on earlier ones becomes zero."""
    columns = [matrix[:, i] for i in range(matrix.shape[1])]
    for i, column in enumerate(columns):
        before = column.norm()
        for earlier in columns[:i]:
            column.sub_(earlier * (earlier * column).sum())
        length = column.norm() + epsilon
        column.copy_(pydist.where(length > 1e-6 * before, column / length, 0.0))


def _compress(state, bucket, matrices, plain, tensors):
    """The future of the bucket's buffer. When it is done, the views `matrices` and `plain` of it hold their means."""
    group, buffer, index = current(state.process_group), bucket.buffer(), bucket.index()
    rank = state.matrix_approximation_rank
    if state.use_error_feedback:
        if index in state.error_dict:
            buffer.add_(state.error_dict[index])
        meant = buffer.clone()
    key = [(index, k, tuple(m.shape)) for k, m in enumerate(matrices)]
    ranks = [min(*m.shape, rank) for m in matrices]
    for name, matrix, r in zip(key, matrices, ranks):
        if name not in state.q_memory_dict or not state.warm_start:
            drawn = pydist.randn(matrix.shape[1], r, generator=state.rng, dtype=matrix.dtype, device="cpu")
            state.q_memory_dict[name] = drawn.to(matrix.device)
        _orthonormal(state.q_memory_dict[name], state.orthogonalization_epsilon)
    together = pydist.cat([t.reshape(-1) for t in plain]).div_(group.size) if plain else None
    plain_work = group.all_reduce(together, "sum", True) if plain else None
    ps = [m @ state.q_memory_dict[name] for name, m in zip(key, matrices)]
    flat_p = pydist.cat([p.reshape(-1) for p in ps]) if ps else buffer[:0].clone()
    p_future = group.all_reduce(flat_p, "sum", True).get_future()
    state.total_numel_before_compression += sum(t.numel() for t in tensors)
    state.total_numel_after_compression += sum(t.numel() for t in plain)
    state.total_numel_after_compression += sum(sum(m.shape) * r for m, r in zip(matrices, ranks))

    def finish(future):
        future.value()
        if plain_work is not None:
            plain_work.wait()
            _unpack(together, plain)
        _unpack(flat_p, ps)
        qs = []
        for p, matrix in zip(ps, matrices):
            _orthonormal(p, state.orthogonalization_epsilon)
            qs.append(matrix.t() @ p)
        if qs:
            flat_q = pydist.cat([q.reshape(-1) for q in qs])
            group.all_reduce(flat_q)
            _unpack(flat_q.div_(group.size), qs)
        for name, p, q, matrix in zip(key, ps, qs, matrices):
            state.q_memory_dict[name] = q
            matrix.copy_(p @ q.t())
        if state.use_error_feedback:
            state.error_dict[index] = _without(meant.sub_(buffer), plain, buffer)
        state.maybe_increase_iter(bucket)
        return buffer

    return p_future.then(finish)


def _unpack(flat, tensors):
    at = 0
    for tensor in tensors:
        tensor.copy_(flat[at : at + tensor.numel()].view(*tensor.shape))
        at += tensor.numel()


def _without(error, plain, buffer):
    """Sets the error of tensors that travelled uncompressed to zero."""
    size = buffer.dtype.itemsize
    for tensor in plain:
        at = (tensor.data_ptr() - buffer.data_ptr()) // size
        error[at : at + tensor.numel()].zero_()
    return error


def powerSGD_hook(state, bucket):
    """Compresses each gradient by itself. Best compression rate for large matrices."""
    if state.iter < state.start_powerSGD_iter:
        state.maybe_increase_iter(bucket)
        return allreduce_hook(state.process_group, bucket)
    matrices, plain = [], []
    for tensor in bucket.gradients():
        matrix = tensor.dim() > 1 and tensor.numel() and tensor.is_contiguous()
        view = tensor.view(tensor.shape[0], -1) if matrix else None
        rate = state.matrix_approximation_rank * state.min_compression_rate
        if view is not None and sum(view.shape) * rate < view.numel():
            matrices.append(view)
        else:
            plain.append(tensor)
    return _compress(state, bucket, matrices, plain, bucket.gradients())


def batched_powerSGD_hook(state, bucket):
    """Compresses the whole bucket as one square matrix: fewer operations, but a worse approximation."""
    if state.iter < state.start_powerSGD_iter:
        state.maybe_increase_iter(bucket)
        return allreduce_hook(state.process_group, bucket)
    flat = bucket.buffer()
    side = math.isqrt(max(flat.numel() - 1, 0)) + 1
    square = pydist.zeros(side * side, dtype=flat.dtype, device=flat.device)
    square[: flat.numel()].copy_(flat)
    padded = _Padded(bucket, square)
    whole = square.view(side, side)
    return _compress(state, padded, [whole], [], [whole]).then(
        lambda future: flat.copy_(future.value()[: flat.numel()])
    )


class _Padded:
    """A bucket whose buffer is padded to the square."""

    def __init__(self, bucket, square):
        self.index, self.is_last = bucket.index, bucket.is_last
        self.buffer = lambda: square
