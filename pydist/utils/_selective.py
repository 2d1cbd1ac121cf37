"""Selective activation checkpointing: a policy says which ops' results are kept and need not be computed again."""

import enum
from collections import defaultdict

from pydist import _C
from pydist.ops import OpOverload, _of_call


class CheckpointPolicy(enum.Enum):
    """What becomes of an op's result: kept (SAVE), or dropped and computed again in backward (RECOMPUTE). CPU_OFFLOAD
    keeps it in the host's memory. MUST and PREFER mean the same here."""

    MUST_SAVE = 0
    PREFER_SAVE = 1
    MUST_RECOMPUTE = 2
    PREFER_RECOMPUTE = 3
    MUST_CPU_OFFLOAD = 4
    PREFER_CPU_OFFLOAD = 5


_SAVE = (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)
_OFFLOAD = (CheckpointPolicy.MUST_CPU_OFFLOAD, CheckpointPolicy.PREFER_CPU_OFFLOAD)


class SelectiveCheckpointContext:
    """The first argument of a policy. op_output: the op's result, or a tuple of results. is_recompute is False: the
    policy is asked in forward alone."""

    def __init__(self, *, is_recompute, op_output=None):
        self.is_recompute, self.op_output = is_recompute, op_output


def _copied(t, device):
    return _C.empty_like(t, device=device).copy_(t)  # with the same strides, as the op gives its results these, too


class _Kept:
    """A result that the policy keeps."""

    def __init__(self, tensor, offload):
        self.device, self.version = tensor.device, None if offload else tensor._version
        self.tensor = _copied(tensor.detach(), "cpu") if offload else tensor.detach()

    def get(self, op, may_change):
        if self.version is not None and self.tensor._version != self.version and not may_change:
            raise RuntimeError(
                f"checkpoint: the result of {op} of shape {list(self.tensor.shape)}, which the policy keeps, was changed "
                f"in place: it is at version {self.tensor._version} (expected {self.version}, or "
                "allow_cache_entry_mutation=True)"
            )
        return self.tensor if self.tensor.device == self.device else _copied(self.tensor, self.device)


_AGAIN, _USED = "computed again", "used"  # what stands for results that are not kept, and no longer


class _Selecting:
    """A context in which `_heard` hears of each op with a kernel."""

    def __enter__(self):
        self._calls = defaultdict(int)  # how many calls of each op there were
        self._before = _C._set_selecting(self._heard)

    def __exit__(self, *error):
        _C._set_selecting(self._before)

    def _number(self, name):
        self._calls[name] += 1
        return name, self._calls[name]


class _Forward(_Selecting):
    def __init__(self, policy, kept):
        self._policy, self._kept = policy, kept

    def _heard(self, name, visible, inputs, results):
        if results is None:
            return
        seen = results[: visible or len(results)]
        context = SelectiveCheckpointContext(is_recompute=False, op_output=seen[0] if len(seen) == 1 else seen)
        op = _of_call(name, inputs)
        policy = self._policy(context, op, *inputs)
        if isinstance(policy, bool):
            policy = CheckpointPolicy.MUST_SAVE if policy else CheckpointPolicy.PREFER_RECOMPUTE
        if not isinstance(policy, CheckpointPolicy):
            raise TypeError(f"checkpoint: the policy returned {policy!r} for {op} (expected a CheckpointPolicy)")
        keeps = policy in _SAVE or policy in _OFFLOAD
        self._kept[self._number(name)] = [_Kept(t, policy in _OFFLOAD) for t in results] if keeps else _AGAIN


class _Again(_Selecting):
    def __init__(self, kept, may_change):
        self._kept, self._may_change = kept, may_change

    def _heard(self, name, visible, inputs, results):
        if results is not None:
            return None
        number, op = self._number(name), _of_call(name, inputs)
        kept = self._kept.get(number)
        if kept is None:
            raise RuntimeError(
                f"checkpoint: when the function runs again it calls {op} {number[1]} times (expected "
                f"{number[1] - 1} calls, as in forward)"
            )
        if kept is _USED:
            raise RuntimeError(
                f"checkpoint: what the policy kept of {op} has been used by a backward (expected one backward through a "
                "selective checkpoint)"
            )
        if kept is _AGAIN:
            return None
        self._kept[number] = _USED
        return tuple(t.get(op, self._may_change) for t in kept)


def create_selective_checkpoint_contexts(policy_fn_or_list, allow_cache_entry_mutation=False):
    """The two contexts of a checkpoint that keeps the results of some ops, so that backward does not compute these again.
    It is for `context_fn` of checkpoint with use_reentrant=False; each call of the checkpoint needs a pair of its own.

    policy_fn_or_list: a function policy(context, op, *args) that returns a CheckpointPolicy (or True for MUST_SAVE,
    False for PREFER_RECOMPUTE), or a list of ops to keep. It is asked in forward, after each op that computes something:
    views, in-place ops and `out=` are always done again. `op` is one of pydist.ops.aten, compared with `==` or `in`;
    context.op_output is its result, args are its tensors (None for one that is not given); numbers are not passed. Ops
    are those of the engine: a linear layer is aten.addmm with a bias and aten.mm without one, attention is one op.

    What is kept takes memory from forward to backward, and is used once: a second backward raises RuntimeError. So does
    a kept result that was changed in place, unless allow_cache_entry_mutation. Raises TypeError for other policies,
    ValueError for a list with anything but ops.

    >>> import functools
    >>> import pydist
    >>> from pydist.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
    >>> keep = functools.partial(create_selective_checkpoint_contexts, [pydist.ops.aten.mm.default])
    >>> w = pydist.eye(2).requires_grad_()
    >>> checkpoint(lambda w: (w @ w).exp().sum(), w, use_reentrant=False, context_fn=keep).backward()  # one product less
    >>> w.grad
    tensor([[5.4366, 2.0000],
            [2.0000, 5.4366]])
    """
    if isinstance(policy_fn_or_list, list):
        for op in policy_fn_or_list:
            if not isinstance(op, OpOverload):
                raise ValueError(
                    f"create_selective_checkpoint_contexts: got {op!r} in the list (expected ops such as "
                    "pydist.ops.aten.mm.default)"
                )

        def policy(context, op, *args):
            saved = op in policy_fn_or_list
            return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE
    elif callable(policy_fn_or_list):
        policy = policy_fn_or_list
    else:
        raise TypeError(
            f"create_selective_checkpoint_contexts: got {type(policy_fn_or_list).__name__} (expected a policy function or "
            "a list of ops)"
        )
    kept = {}
    return _Forward(policy, kept), _Again(kept, allow_cache_entry_mutation)
