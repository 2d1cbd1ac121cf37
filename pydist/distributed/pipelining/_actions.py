"""What a rank does in a pipeline, one action at a time, and the text of an action: `0F0`, `1I3`, `2SEND_F1`."""

import re
from enum import Enum
from functools import lru_cache
from typing import NamedTuple


class _ComputationType(str, Enum):
    """F: forward. B: the whole backward. I: the gradients of a stage's inputs. W: those of its parameters."""

    FORWARD = "F"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    FULL_BACKWARD = "B"
    UNSHARD = "UNSHARD"
    RESHARD = "RESHARD"
    REDUCE_GRAD = "REDUCE_GRAD"
    SEND_F = "SEND_F"
    RECV_F = "RECV_F"
    SEND_B = "SEND_B"
    RECV_B = "RECV_B"
    OVERLAP_F_B = "OVERLAP_F_B"

    @staticmethod
    def from_str(action):
        """The kind with this name."""
        try:
            return _ComputationType(action)
        except ValueError:
            raise ValueError(
                f"pipelining: the kind of action is {action!r} (expected one of {', '.join(k.value for k in _ComputationType)})"
            ) from None


K = _ComputationType
COMPUTE = (K.FORWARD, K.BACKWARD_INPUT, K.BACKWARD_WEIGHT, K.FULL_BACKWARD)
BACKWARD = (K.BACKWARD_INPUT, K.FULL_BACKWARD)  # which need the gradients of the next stage
OF_STAGE = (K.UNSHARD, K.RESHARD, K.REDUCE_GRAD)  # without a microbatch
_TEXT = re.compile(r"(\d+)(UNSHARD|RESHARD|REDUCE_GRAD|SEND_F|RECV_F|SEND_B|RECV_B|F|I|B|W)(\d*)")


class _Action(NamedTuple):
    """One action. An OVERLAP_F_B is a pair of others, which are done in turn; it has no stage of its own (-1)."""

    stage_index: int
    computation_type: _ComputationType
    microbatch_index: int | None = None
    sub_actions: tuple | None = None

    def __str__(self):
        if self.sub_actions is not None:
            return f"({';'.join(map(str, self.sub_actions))}){self.computation_type.value}"
        number = "" if self.microbatch_index is None else self.microbatch_index
        return f"{self.stage_index}{self.computation_type.value}{number}"

    __repr__ = __str__

    @property
    def is_compute_op(self):
        """Whether it is an F, I, W, B, or a pair of these."""
        return self.computation_type in COMPUTE or self.computation_type is K.OVERLAP_F_B

    @staticmethod
    def from_str(action_string):
        """The action that the text stands for; None for an empty text.

        >>> from pydist.distributed.pipelining.schedules import _Action
        >>> _Action.from_str("1I3").microbatch_index
        3
        """
        return _parsed(action_string.strip())


def _refused(text):
    return ValueError(
        f"pipelining: the action is {text!r} (expected [stage][kind][microbatch] such as 0F0, 1UNSHARD or "
        "(0F1;1B0)OVERLAP_F_B)"
    )


@lru_cache(1 << 16)
def _parsed(text):
    if not text:
        return None
    if text.startswith("("):
        inner, closed, kind = text[1:].partition(")")
        parts = tuple(_parsed(part.strip()) for part in inner.split(";"))
        if (
            not closed
            or kind != K.OVERLAP_F_B.value
            or not all(part and part.computation_type in COMPUTE for part in parts)
        ):
            raise _refused(text)
        return _Action(-1, K.OVERLAP_F_B, None, parts)
    match = _TEXT.fullmatch(text)
    if not match or (match[2] in [kind.value for kind in OF_STAGE]) != (not match[3]):
        raise _refused(text)
    return _Action(int(match[1]), K(match[2]), int(match[3]) if match[3] else None)


def parts_of(action):
    """The actions that this one consists of: itself, but for an OVERLAP_F_B."""
    return action.sub_actions if action.sub_actions is not None else (action,)
