"""The schedules: each has its table and does a step by it (tables.py says what the tables are, _step.py does the step)."""

import re
from hashlib import blake2b

from pydist import _C
from pydist._grad_mode import no_grad
from pydist._notes import note
from pydist.distributed._ops.agreement import check_agreement
from pydist.distributed._ops.objects import all_gather_object
from pydist.distributed.pipelining import tables
from pydist.distributed.pipelining._actions import K, _Action, _ComputationType, parts_of  # noqa: F401
from pydist.distributed.pipelining._arena import Room
from pydist.distributed.pipelining._step import Step
from pydist.distributed.pipelining._ties import Tie
from pydist.distributed.pipelining.microbatch import merge_chunks, split_args_kwargs_into_chunks, split_tensor
from pydist.distributed.pipelining.simulation import Simulation
from pydist.distributed.pipelining.stage import PipelineStage

__all__ = [
    "PipelineScheduleMulti",
    "PipelineScheduleSingle",
    "Schedule1F1B",
    "ScheduleDualPipeV",
    "ScheduleGPipe",
    "ScheduleInterleaved1F1B",
    "ScheduleInterleavedZeroBubble",
    "ScheduleLoopedBFS",
    "ScheduleZBVZeroBubble",
    "get_schedule_class",
]


# The kinds of actions by PyTorch's names.
FORWARD = F = K.FORWARD
BACKWARD_INPUT = I = K.BACKWARD_INPUT
BACKWARD_WEIGHT = W = K.BACKWARD_WEIGHT
FULL_BACKWARD = B = K.FULL_BACKWARD
UNSHARD, RESHARD, REDUCE_GRAD, OVERLAP_F_B = K.UNSHARD, K.RESHARD, K.REDUCE_GRAD, K.OVERLAP_F_B
SEND_F, RECV_F, SEND_B, RECV_B = K.SEND_F, K.RECV_F, K.SEND_B, K.RECV_B


def _checked_stages(name, stages):
    if not isinstance(stages, (list, tuple)) or not stages or not all(isinstance(s, PipelineStage) for s in stages):
        raise TypeError(f"{name}: stages is {stages!r} (expected a list with at least one PipelineStage)")
    first = stages[0]
    for stage in stages[1:]:
        if stage.num_stages != first.num_stages or stage.group is not first.group:
            raise ValueError(f"{name}: {stage} and {first} differ in num_stages or group (expected the same)")
    return list(stages)


def _rows_text(table):
    return [" ".join(map(str, table[rank])) for rank in range(len(table))]


class _PipelineSchedule:
    """What all schedules have: a table, and steps by it."""

    def __init__(
        self,
        stages,
        n_microbatches,
        loss_fn=None,
        args_chunk_spec=None,
        kwargs_chunk_spec=None,
        output_merge_spec=None,
        scale_grads=True,
        backward_requires_autograd=True,
        defer_pp_recv=False,
    ):
        name = type(self).__name__
        if not backward_requires_autograd:
            raise NotImplementedError(f"{name}: backward_requires_autograd is False (expected True)")
        self._stages = _checked_stages(name, stages)
        if not isinstance(n_microbatches, int) or isinstance(n_microbatches, bool) or n_microbatches < 1:
            raise ValueError(f"{name}: n_microbatches is {n_microbatches!r} (expected a number of 1 or more)")
        if loss_fn is not None and not callable(loss_fn):
            raise TypeError(f"{name}: loss_fn is {type(loss_fn).__name__} (expected a function of output and target)")
        if not isinstance(scale_grads, bool) and scale_grads != "count":
            raise ValueError(f"{name}: scale_grads is {scale_grads!r} (expected True, False or 'count')")
        for what, spec in (("args_chunk_spec", args_chunk_spec), ("kwargs_chunk_spec", kwargs_chunk_spec)):
            if spec is not None and not isinstance(spec, (tuple, list, dict)):
                raise TypeError(f"{name}: {what} is {spec!r} (expected None, or specs in a tuple or a dict)")
        self._n_microbatches, self._loss_fn, self.scale_grads = n_microbatches, loss_fn, scale_grads
        self._args_chunk_spec, self._kwargs_chunk_spec = args_chunk_spec, kwargs_chunk_spec
        self._output_merge_spec = output_merge_spec
        self._has_backward = loss_fn is not None
        self._num_stages, self.pp_group_size = self._stages[0].num_stages, self._stages[0].group_size
        self._spans, self._lowered, self._hashes, self._ties = None, {}, {}, []
        self._room = Room(self._stages[0].group)
        self._untied = self._stages[0].ties  # of the model that `pipeline` has cut
        self._set_table(self._table())

    @property
    def counts(self):
        """Whether loss_fn returns sums and counts."""
        return self.scale_grads == "count"

    def _table(self):
        """The table of this class."""
        raise NotImplementedError(f"{type(self).__name__}: this class has no table (expected one of its kin)")

    def _per_rank(self, exactly=None):
        """Stages on each rank. Raises if they do not divide."""
        name, n, p = type(self).__name__, self._num_stages, self.pp_group_size
        if n % p or (exactly and n != exactly * p):
            wanted = f"{exactly} on each rank" if exactly else "as many on each rank"
            raise ValueError(f"{name}: num_stages is {n} for {p} ranks (expected {wanted})")
        return n // p

    def _set_table(self, table, lowered=False):
        name, rank = type(self).__name__, self._stages[0].group_rank
        if len(table) != self.pp_group_size:
            raise ValueError(
                f"{name}: the table has {len(table)} rows (expected one for each of {self.pp_group_size} ranks)"
            )
        owner = tables.check(table, self._num_stages, self._n_microbatches, backward=self._has_backward)
        mine, own = [s for s in sorted(owner) if owner[s] == rank], sorted(s.stage_index for s in self._stages)
        if mine != own:
            raise ValueError(f"{name}: rank {rank} was given stages {own} (expected {mine}, by the table)")
        self.pipeline_order, self.stage_index_to_group_rank = table, owner
        self._lowered.clear()
        self._hashes.clear()
        if lowered:
            self._lowered[True] = {r: [a for cell in row if cell for a in parts_of(cell)] for r, row in table.items()}

    @property
    def pipeline_order_with_comms(self):
        """The table with its messages: what `step` does."""
        return self._with_messages(True)

    def _check_table(self):
        if self.pipeline_order is None:
            raise RuntimeError(f"{type(self).__name__}: there is no table yet (expected _load_csv before)")

    def _with_messages(self, backward):
        self._check_table()
        if backward not in self._lowered:
            kinds = (K.FORWARD,) if not backward else tuple(K)
            rows = tables.flat(self.pipeline_order)
            rows = [[a for _, a in row if a.computation_type in kinds and a.is_compute_op] for row in rows]
            self._lowered[backward] = tables.lower(rows)
        return self._lowered[backward]

    def _agree(self, step, failure):
        """All ranks do the same: each calls step, or each eval, of the same table."""
        group, mode = self._stages[0].group, int(self._has_backward)
        if mode not in self._hashes:
            text = "\n".join(self._lines(self._has_backward)).encode()
            self._hashes[mode] = int.from_bytes(blake2b(text, digest_size=7).digest(), "big")
        try:
            found = step.together(failure, self._hashes[mode])
        except _C.DistError as error:
            note(error, f"at the beginning of a pipeline's step, on rank {step.rank}")
            raise
        if len({words[0] for words in found}) > 1:
            check_agreement("pipeline: line", self._lines(self._has_backward), group)

    def _lines(self, backward):
        return [
            f"{self._n_microbatches} microbatches",
            "step with backward" if backward else "eval, or no loss_fn",
            f"scale_grads={self.scale_grads!r}",
            *_rows_text(self._with_messages(backward)),
        ]

    def step(
        self, *args, target=None, losses=None, return_outputs=True, loss_kwargs=None, arg_mbs=None, kwarg_mbs=None,
        target_mbs=None, **kwargs,
    ):  # fmt: skip
        """Does one step with a whole batch: splits it, and does forward and backward of all microbatches. All ranks call it.

        args, kwargs: of the model. Only the first stage reads args; a rank without it may give none. kwargs go to each
        of the rank's stages. target: for loss_fn, on the rank with the last stage, split along dimension 0. arg_mbs, kwarg_mbs,
        target_mbs: instead of these, lists with the arguments (tuples, dicts) and targets of each microbatch. losses: a list
        that gets the loss of each microbatch there. Returns the merged result of the last stage on its rank, else None;
        also with return_outputs=False. Gradients are added to those that are there; with scale_grads=True they are divided by the
        number of microbatches. With scale_grads="count" loss_fn returns a pair, a sum and the count of what is in it, such as
        tokens that are not padding: gradients are those of the sum of all sums over the sum of all counts, also where
        DistributedDataParallel or fully_shard has replicas of the stages, and losses gets the pairs. Without any count they
        are those of the sums. The result and the losses have no history.

        What a stage raises is raised on its rank; all others raise `StageFailed`, which names the stage, the microbatch
        and the line. If a rank dies, all raise PeerFailed.
        """
        if self._has_backward and not _C.is_grad_enabled():
            raise RuntimeError("step: gradients are disabled (expected eval() under no_grad)")
        return self._step(args, kwargs, target, losses, return_outputs, loss_kwargs, (arg_mbs, kwarg_mbs, target_mbs))

    def eval(self, *args, target=None, losses=None, arg_mbs=None, kwarg_mbs=None, target_mbs=None, **kwargs):
        """Does the forwards of a step only, without gradients. Returns what `step` does."""
        had, self._has_backward = self._has_backward, False
        try:
            with no_grad():
                return self._step(args, kwargs, target, losses, True, None, (arg_mbs, kwarg_mbs, target_mbs))
        finally:
            self._has_backward = had

    def _step(self, args, kwargs, target, losses, return_outputs, loss_kwargs, microbatches):
        if self.pipeline_order is None:
            raise RuntimeError(
                f"{type(self).__name__}: there is no table yet (expected _load_csv before the first step)"
            )
        for stage in self._stages:
            stage.has_backward = self._has_backward
            stage.clear_runtime_states()
        while self._untied:
            self.tie_weights(*self._untied[0])
            self._untied = self._untied[1:]
        row = self._with_messages(self._has_backward)[self._stages[0].group_rank]
        step = Step(self, row, None, None, None, loss_kwargs, return_outputs)
        try:
            if losses is not None and not isinstance(losses, list):
                raise TypeError(f"step: losses is {type(losses).__name__} (expected a list)")
            step.arg_mbs, step.kwarg_mbs = self._split_inputs(args, kwargs)
            step.targets = self._split_target(target)
            for what, given in zip(("arg_mbs", "kwarg_mbs", "targets"), microbatches, strict=True):
                if given is not None:
                    setattr(step, what, self._checked_microbatches(what, given))
        except Exception as error:
            self._agree(step, step.failure(error))
            raise
        self._agree(step, None)
        step.run()
        self._spans = step.spans
        if not any(stage.is_last for stage in self._stages):
            return None
        if losses is not None:
            losses[:] = [step.losses[mb] for mb in sorted(step.losses)]
        outputs = [step.outputs[mb] for mb in sorted(step.outputs)]
        return merge_chunks(outputs, self._output_merge_spec) if outputs else None

    def _checked_microbatches(self, what, given):
        if not isinstance(given, (list, tuple)) or len(given) != self._n_microbatches:
            got = f"{len(given)} of them" if isinstance(given, (list, tuple)) else type(given).__name__
            raise ValueError(
                f"step: {what}: got {got} (expected a list with one for each of {self._n_microbatches} microbatches)"
            )
        return list(given)

    def _split_inputs(self, args, kwargs):
        m = self._n_microbatches
        first = any(stage.is_first for stage in self._stages)
        args = args if first else ()
        return split_args_kwargs_into_chunks(args, kwargs, m, self._args_chunk_spec if args else None,
                                             self._kwargs_chunk_spec if kwargs else None)  # fmt: skip

    def _split_target(self, target):
        if target is None or not any(stage.is_last for stage in self._stages):
            return None
        if not isinstance(target, _C.Tensor):
            parts, _ = split_args_kwargs_into_chunks((target,), None, self._n_microbatches)
            return [part[0] for part in parts]
        return split_tensor("step: target", target, None, self._n_microbatches)

    def tie_weights(self, stage, name, other_stage, other_name):
        """Ties a parameter of one stage to one of another: `step` gives both the sum of their gradients, so that the same
        optimizer keeps them equal. All ranks call it, before the first step. Raises ValueError if the values differ.

        name, other_name: as in the stage's module. Parameters that fully_shard has sharded cannot be tied.
        """
        self._check_table()
        ends, words = [], []
        for index, path in ((stage, name), (other_stage, other_name)):
            if index not in self.stage_index_to_group_rank:
                raise ValueError(f"tie_weights: stage {index!r} (expected 0 to {self._num_stages - 1})")
            own = [s.submod for s in self._stages if s.stage_index == index]
            own = [m.module if hasattr(m, "reduce_in_next_backward") else m for m in own]  # DistributedDataParallel
            p = own[0].get_parameter(path) if own else None
            if p is not None and _C.spread_of(p) is not None:
                raise NotImplementedError(
                    f"tie_weights: {path} of stage {index} is sharded (expected a whole parameter)"
                )
            ends.append((self.stage_index_to_group_rank[index], p))
            words.append(0 if p is None else _C.hash_tensors([p.detach().cpu().contiguous()])[0] >> 1)
        group = self._stages[0].group
        found = _C.empty(2 * group.size, dtype=_C.int64)
        group.all_gather(found, _C.tensor(words, dtype=_C.int64))
        found = found.view(-1, 2).tolist()
        if found[ends[0][0]][0] != found[ends[1][0]][1]:
            raise ValueError(
                f"tie_weights: {name} of stage {stage} and {other_name} of stage {other_stage} have different values (expected "
                "the same bits)"
            )
        self._ties.append(Tie(len(self._ties), ends))

    def gradients(self):
        """A list of the gradients of this rank's stages, of a tied weight on one rank only: with `get_total_norm(...,
        group=)`, the norm of all stages' gradients is that of one process. Its 2-norm depends neither on the stages nor on how
        gradients are sharded.

        >>> import pydist
        >>> from pydist import distributed as dist, nn
        >>> from pydist.distributed.pipelining import PipelineStage, ScheduleGPipe
        >>> def work(rank):
        ...     layer = nn.Linear(1, 1, bias=False)
        ...     layer.weight.grad = pydist.tensor([[3.0 + rank]])
        ...     schedule = ScheduleGPipe(PipelineStage(layer, rank, 2, "cpu"), 2, nn.functional.mse_loss)
        ...     norm = nn.utils.get_total_norm(schedule.gradients(), group=dist.group.WORLD)
        ...     nn.utils.clip_grads_with_norm_(layer.parameters(), 1.0, norm)
        ...     return norm.item(), layer.weight.grad
        >>> pydist.testing.run_ranks(2, work)
        [(5.0, tensor([[0.6000]])), (5.0, tensor([[0.8000]]))]
        """
        copies = {id(tie.copy) for tie in self._ties}
        own = {id(p): p for stage in self._stages for p in stage.parameters()}
        return [p.grad for key, p in own.items() if p.grad is not None and key not in copies]

    def timeline(self):
        """How long the actions of the last step took, by the ranks' clocks: a `Simulation`, to be laid beside `simulate`. All
        ranks call it. On several hosts the clocks have to agree."""
        if self._spans is None:
            raise RuntimeError("timeline: there was no step yet (expected one before)")
        group, found = self._stages[0].group, [None] * self.pp_group_size
        spans = [(str(action), begin, end) for action, begin, end in self._spans]
        all_gather_object(found, spans, group=group)
        return Simulation([[(_Action.from_str(text), begin, end) for text, begin, end in row] for row in found])


class PipelineScheduleSingle(_PipelineSchedule):
    """A schedule with one stage on each rank."""

    def __init__(
        self,
        stage,
        n_microbatches,
        loss_fn=None,
        args_chunk_spec=None,
        kwargs_chunk_spec=None,
        output_merge_spec=None,
        scale_grads=True,
    ):
        super().__init__(
            [stage], n_microbatches, loss_fn, args_chunk_spec, kwargs_chunk_spec, output_merge_spec, scale_grads
        )
        self._stage = stage


class PipelineScheduleMulti(_PipelineSchedule):
    """A schedule with several stages on each rank. backward_requires_autograd: True, as backwards are the engine's.
    defer_pp_recv is accepted: receives never wait before they are due."""


class _PipelineScheduleRuntime(PipelineScheduleMulti):
    """A schedule by a table of one's own: after the constructor, `_load_csv` reads it. Any rank may have any stages."""

    def _table(self):
        return None

    def _set_table(self, table, lowered=False):
        if table is None:
            self.pipeline_order = self.stage_index_to_group_rank = None
        else:
            super()._set_table(table, lowered)

    def _load_csv(self, filename, format="compute_only"):
        """Takes the table of a file, of computations only, or with its messages."""
        if format not in ("compute_only", "compute_comms"):
            raise ValueError(f"_load_csv: format is {format!r} (expected 'compute_only' or 'compute_comms')")
        table = tables.load_csv(filename)
        if format == "compute_only":
            tables.lower(table)  # which refuses messages
        self._set_table(table, format == "compute_comms")

    def _dump_csv(self, filename, format="compute_comms"):
        """Writes the table to a file."""
        if format not in ("compute_only", "compute_comms"):
            raise ValueError(f"_dump_csv: format is {format!r} (expected 'compute_only' or 'compute_comms')")
        tables.dump_csv(self.pipeline_order if format == "compute_only" else self.pipeline_order_with_comms, filename)


class ScheduleGPipe(PipelineScheduleSingle):
    """All forwards, then all backwards."""

    def _table(self):
        self._per_rank(1)
        return tables.gpipe(self.pp_group_size, self._n_microbatches)


class _ScheduleForwardOnly(ScheduleGPipe):
    """Forwards only."""

    def __init__(self, stage, n_microbatches, loss_fn=None, *args, **kwargs):
        if loss_fn is not None:
            raise RuntimeError("_ScheduleForwardOnly: loss_fn was given (expected None: there is no backward)")
        super().__init__(stage, n_microbatches, None, *args, **kwargs)


class Schedule1F1B(PipelineScheduleSingle):
    """Forward and backward in turn: a rank keeps as few microbatches as the ranks behind it."""

    def _table(self):
        self._per_rank(1)
        return tables.one_f_one_b(self.pp_group_size, self._n_microbatches)


class ScheduleLoopedBFS(_PipelineScheduleRuntime):
    """All microbatches through a rank's first stage, then through its second one. Its arguments have PyTorch's order, in which
    chunk specs are missing; they may be given by name."""

    def __init__(
        self,
        stages,
        n_microbatches,
        loss_fn=None,
        output_merge_spec=None,
        scale_grads=True,
        backward_requires_autograd=True,
        defer_pp_recv=False,
        *,
        args_chunk_spec=None,
        kwargs_chunk_spec=None,
    ):
        super().__init__(
            stages, n_microbatches, loss_fn, args_chunk_spec, kwargs_chunk_spec, output_merge_spec, scale_grads,
            backward_requires_autograd, defer_pp_recv,
        )  # fmt: skip

    def _table(self):
        return tables.looped_bfs(self.pp_group_size, self._per_rank(), self._n_microbatches)


class ScheduleInterleaved1F1B(_PipelineScheduleRuntime):
    """1F1B over several stages on each rank."""

    def _table(self):
        return tables.interleaved_1f1b(self.pp_group_size, self._per_rank(), self._n_microbatches)


class ScheduleInterleavedZeroBubble(_PipelineScheduleRuntime):
    """Interleaved 1F1B whose backwards are split, so that W fills the waiting."""

    def _table(self):
        return tables.interleaved_zero_bubble(self.pp_group_size, self._per_rank(), self._n_microbatches)


class ScheduleZBVZeroBubble(_PipelineScheduleRuntime):
    """Two stages on each rank in V form, with split backwards."""

    def _table(self):
        self._per_rank(2)
        return tables.zbv_zero_bubble(self.pp_group_size, self._n_microbatches)


class ScheduleDualPipeV(_PipelineScheduleRuntime):
    """Two stages on each rank in V form, with forward and backward of different microbatches in pairs."""

    def _table(self):
        self._per_rank(2)
        return tables.dualpipe_v(self.pp_group_size, self._n_microbatches)


_CLASSES = (
    Schedule1F1B,
    ScheduleInterleaved1F1B,
    ScheduleGPipe,
    ScheduleLoopedBFS,
    ScheduleInterleavedZeroBubble,
    PipelineScheduleSingle,
    PipelineScheduleMulti,
    ScheduleZBVZeroBubble,
    ScheduleDualPipeV,
)


def get_schedule_class(schedule_name):
    """The class of a name such as '1F1B', 'GPipe' or 'ZBVZeroBubble', in upper or lower case.

    >>> from pydist.distributed.pipelining.schedules import get_schedule_class
    >>> get_schedule_class("gpipe").__name__
    'ScheduleGPipe'
    """
    by_name = {re.sub("^Schedule", "", cls.__name__): cls for cls in _CLASSES}
    for name, cls in by_name.items():
        if isinstance(schedule_name, str) and name.lower() == schedule_name.lower():
            return cls
    raise ValueError(f"get_schedule_class: schedule_name is {schedule_name!r} (expected one of {', '.join(by_name)})")
