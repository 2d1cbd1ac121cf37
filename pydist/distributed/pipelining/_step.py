"""One step of a pipeline on one rank: its row of the table, done in order."""

import os
import struct
import time
import traceback

from pydist import _C
from pydist._C import DistError
from pydist._notes import note
from pydist.distributed._group.process_group import get_rank
from pydist.distributed.pipelining._actions import COMPUTE, K
from pydist.distributed.pipelining._messages import Messages, StageFailed
from pydist.utils._pytree import tree_map

_LAST = (K.FULL_BACKWARD, K.BACKWARD_WEIGHT)  # after which a microbatch has given its gradients
_RECEIVES = (K.RECV_F, K.RECV_B)
_NOTHING = (0, 0, 0)  # the words at the end of a step that has failed
_AHEAD = 2  # receives that are posted before they are due
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_WORDS = {K.FORWARD: "forward", K.FULL_BACKWARD: "backward", K.BACKWARD_INPUT: "backward of inputs",
          K.BACKWARD_WEIGHT: "backward of parameters"}  # fmt: skip


def seed_of(base, stage, microbatch):
    """Where the random numbers of a stage's forward begin: whatever the schedule is, a microbatch draws the same ones."""
    return ((base * 1_000_003 + stage) * 1_000_003 + microbatch) % (1 << 63)


def _line_of(error):
    """The program's line that raised."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_ROOT + os.sep)] or frames
    return f" ({os.path.basename(own[-1].filename)}:{own[-1].lineno})" if own else ""


class Step:
    """What one step needs. row: this rank's actions, with messages. arg_mbs, kwarg_mbs, targets: by microbatch."""

    def __init__(self, schedule, row, arg_mbs, kwarg_mbs, targets, loss_kwargs, return_outputs):
        self.schedule, self.row = schedule, row
        self.arg_mbs, self.kwarg_mbs, self.targets = arg_mbs, kwarg_mbs, targets
        self.loss_kwargs, self.return_outputs = loss_kwargs or {}, return_outputs
        self.stages = {stage.stage_index: stage for stage in schedule._stages}
        first = schedule._stages[0]
        self.rank = first.group_rank
        self.owner = schedule.stage_index_to_group_rank
        self.messages = Messages(first.group, self.owner, schedule._n_microbatches, first.device, schedule._room)
        self.outputs, self.losses, self.spans = {}, {}, []
        self.counts = {}  # of the losses, where they divide the gradients
        self._box = {}  # (stage, microbatch, forward) -> what has come for it
        self._base = None

    # ---- the loop

    def run(self):
        """Does the row. What one rank raises ends all ranks."""
        receives = [action for action in self.row if action.computation_type in _RECEIVES]
        last = {action.stage_index: n for n, action in enumerate(self.row) if action.computation_type in _LAST}
        aside = self._set_aside() if last and self.schedule.counts else None
        ties = self.schedule._ties if last else []
        for tie in ties:
            tie.begin()
        posted, past, state = 0, 0, self._draw()
        undo = [stage.keep_gradients() for stage in self.stages.values() if last]
        ended = False
        try:
            for n, action in enumerate(self.row):
                try:
                    for receive in receives[posted : past + _AHEAD]:
                        self._post(receive)
                        posted += 1
                    past += action.computation_type in _RECEIVES
                    begin = time.perf_counter()
                    if last.get(action.stage_index) == n:
                        self.stages[action.stage_index].reduce_gradients_next()
                    _DO[action.computation_type](self, action.stage_index, action.microbatch_index)
                except BaseException as error:  # Ctrl-C, too: the others do not wait for this rank
                    self.fail(error, n)
                if action.computation_type in COMPUTE:
                    self.spans.append((action, begin, time.perf_counter()))
            self._end(ties, aside)
            ended = True
        finally:
            if not ended:  # what was put aside is the gradient again
                self.schedule._room.drop()
                for p, before in [pair for tie in ties for pair in tie.aside] + (aside or []):
                    p.grad = before
            self.messages.close()
            for stage in self.stages.values():
                stage.clear_runtime_states()
            for put_back in undo:
                put_back()
            if state is not None:
                _C.set_rng_state(state)
                _C._rng_shard(get_rank())

    def _set_aside(self):
        """[(parameter, its gradient so far), ...]: the step makes new ones, which are divided at its end."""
        own = {id(p): p for stage in self.stages.values() for p in stage.parameters()}
        aside = [(p, None if p.grad is None else p.grad.clone()) for p in own.values()]
        for p, _ in aside:
            p.grad = None
        return aside

    def _end(self, ties, aside):
        try:
            self.messages.finish()
            for tie in ties:
                tie.end(self.schedule._stages[0].group)
            last, room = max(self.owner), self.schedule._room
            words = self.together(None, *room.words(), *_words_of(0.0 if aside is None else self._count(last)))
            room.settle(words)
            count = _number_of(words[self.owner[last]][2:])
            for p, before in aside or ():
                if p.grad is not None and count:
                    p.grad.detach().div_(count)
                if before is not None:
                    p.grad = before if p.grad is None else p.grad.detach().add_(before)
        except DistError as error:
            note(error, f"in a pipeline's step, at its end on rank {self.rank}")
            raise

    def _count(self, last):
        """The count of the last stage's losses, if it is here: the mean of all replicas' counts, as gradients are means."""
        if last not in self.stages:
            return 0.0
        total = _C.tensor([float(sum(self.counts.values()))], dtype=_C.float64)
        for group in self.stages[last].replicas():
            group.all_reduce(total, "avg")
        return total.item()

    def _draw(self):
        """Draws where the step's random numbers begin. Returns the generator's state after that."""
        if not self.schedule._has_backward:
            return None
        self._base = int(_C.randint(0, 1 << 62, (1,), dtype=_C.int64).item())
        _C._rng_shard(self.schedule._stages[0].group.ranks[0])  # dropout's stream: one for all stages of a replica
        return _C.get_rng_state()

    # ---- actions

    def _forward(self, s, mb):
        stage, args, kwargs = self.stages[s], self.arg_mbs[mb], self.kwarg_mbs[mb]
        if not stage.is_first:
            args = self._box.pop((s, mb, True))
        if self._base is not None:
            _C.manual_seed(seed_of(self._base, s, mb))
        result = stage.forward_one_chunk(mb, args, kwargs)
        if stage.is_last:
            self._take_result(stage, mb, result)
        elif s + 1 in self.stages:
            self._box[s + 1, mb, True] = [
                t if t is None else t.detach().requires_grad_(t.requires_grad) for t in result
            ]
        else:
            self._box[s, mb, "F"] = result

    def _take_result(self, stage, mb, result):
        """What the last stage does with its result."""
        schedule = self.schedule
        if self.return_outputs:
            self.outputs[mb] = _detached(result)
        if schedule._loss_fn is None:
            return
        if self.targets is None:
            if not schedule._has_backward:
                return
            raise ValueError("step: target is None (expected one, since the schedule has a loss_fn)")
        loss = given = schedule._loss_fn(result, self.targets[mb], **self.loss_kwargs)
        if schedule.counts:
            loss, self.counts[mb] = _counted(given)
        if not isinstance(loss, _C.Tensor) or loss.numel() != 1:
            got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, _C.Tensor) else type(loss).__name__
            raise ValueError(f"step: loss_fn returned {got} (expected a tensor of one element)")
        self.losses[mb] = (loss.detach(), given[1]) if schedule.counts else loss.detach()
        if schedule._has_backward:
            stage.take_loss(mb, loss, 1 / schedule._n_microbatches if schedule.scale_grads is True else 1.0)

    def _backward(self, s, mb, full=True):
        stage = self.stages[s]
        grads = None if stage.is_last else self._box.pop((s, mb, False))
        of_inputs = stage.backward_one_chunk(mb, grads, full)
        if stage.is_first:
            return
        if s - 1 in self.stages:
            self._box[s - 1, mb, False] = of_inputs
        else:
            self._box[s, mb, "B"] = of_inputs

    def _backward_input(self, s, mb):
        self._backward(s, mb, False)

    def _backward_weight(self, s, mb):
        self.stages[s].backward_weight_one_chunk(mb)

    def _send_forward(self, s, mb):
        self.messages.send(self._box.pop((s, mb, "F")), s + 1, mb, True)

    def _send_backward(self, s, mb):
        self.messages.send(self._box.pop((s, mb, "B")), s - 1, mb, False)

    def _receive_forward(self, s, mb):
        found = self.messages.receive(s, mb, True, s - 1)
        if not self.schedule._has_backward:
            found = [t if t is None else t.requires_grad_(False) for t in found]
        self._box[s, mb, True] = found

    def _receive_backward(self, s, mb):
        self._box[s, mb, False] = self.messages.receive(s, mb, False, s + 1)

    def _post(self, action):
        forward = action.computation_type is K.RECV_F
        s = action.stage_index
        self.messages.post(s, action.microbatch_index, forward, s - 1 if forward else s + 1)

    def _nothing(self, *_):
        pass

    # ---- failures

    def fail(self, error, n):
        """Raises the error of the row's place n, after it has told all ranks that wait for this one, and taken what they
        still send. So the messages of the next step are not mixed with those of this one."""
        action = self.row[n]
        if isinstance(error, DistError):
            note(error, f"in a pipeline's step: {_where(action)} ({action}), on rank {self.rank}")
            raise error
        failure = error if isinstance(error, StageFailed) else self.failure(error, action)
        rest = self.row[n:]
        for other in rest:
            s, mb = other.stage_index, other.microbatch_index
            if other.computation_type is K.SEND_F:
                self.messages.send_failure(failure, s + 1, mb, True)
            elif other.computation_type is K.SEND_B:
                self.messages.send_failure(failure, s - 1, mb, False)
        for other in rest:
            if other.computation_type in _RECEIVES and not (other is action and failure is error):
                self._drop(other)
        try:
            self.messages.finish()
            self.together(failure, *_NOTHING)
        except DistError as died:
            note(
                died, f"in a pipeline's step: {_where(action)} ({action}), on rank {self.rank}, after an error: {error}"
            )
            raise
        raise error

    def together(self, failure, *words):
        """Waits for all ranks. Returns the words of each, in lists. Raises the StageFailed of a rank that has failed, unless
        this one has itself: no rank may go on to its optimizer if its part is done."""
        group = self.schedule._stages[0].group
        text = b"" if failure is None else failure.args[0].encode()
        mine = [0, 0, 0, 0] if failure is None else [len(text), failure.rank, failure.stage, failure.microbatch]
        all_of = _C.empty((4 + len(words)) * group.size, dtype=_C.int64)
        group.all_gather(all_of, _C.tensor([*mine, *words], dtype=_C.int64))
        found = all_of.view(group.size, -1).tolist()
        failed = [rank for rank in range(group.size) if found[rank][0]]
        if failed:
            size, *where = found[failed[0]][:4]
            said = _C.tensor(list(text), dtype=_C.uint8) if group.rank == failed[0] else _C.zeros(size, dtype=_C.uint8)
            group.broadcast(said, failed[0])
            if failure is None:
                raise StageFailed(bytes(said.tolist()).decode(), *where)
        return [row[4:] for row in found]

    def _drop(self, action):
        forward = action.computation_type is K.RECV_F
        s = action.stage_index
        try:
            self.messages.receive(s, action.microbatch_index, forward, s - 1 if forward else s + 1)
        except StageFailed:
            pass

    def failure(self, error, action=None):
        """What the other ranks hear of an error."""
        said = "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()[0] + _line_of(error)
        if action is None:
            return StageFailed(f"step: rank {self.rank} raised before its first action: {said}", self.rank)
        s, mb, where = action.stage_index, action.microbatch_index, _where(action)
        note(error, f"in a pipeline's step: {where} ({action}), on rank {self.rank}")
        return StageFailed(f"step: {where}, on rank {self.rank}: {said}", self.rank, s, mb)


def _where(action):
    """An action in words."""
    said = _WORDS.get(action.computation_type, "messages")
    return f"stage {action.stage_index}, microbatch {action.microbatch_index}, {said}"


def _counted(given):
    """The sum and the count, a number, that a loss_fn has returned."""
    if not isinstance(given, tuple) or len(given) != 2:
        raise ValueError(
            f"step: loss_fn returned {type(given).__name__} (expected a pair, sum and count, for scale_grads='count')"
        )
    loss, count = given
    count = float(count.detach() if isinstance(count, _C.Tensor) else count)
    if not 0 <= count < float("inf"):
        raise ValueError(f"step: loss_fn returned the count {count} (expected a number of 0 or more)")
    return loss, count


def _words_of(number):
    return struct.unpack("<q", struct.pack("<d", number))


def _number_of(words):
    return struct.unpack("<d", struct.pack("<q", *words))[0]


def _detached(result):
    return tree_map(lambda t: t.detach() if isinstance(t, _C.Tensor) else t, result)


_DO = {
    K.FORWARD: Step._forward,
    K.FULL_BACKWARD: Step._backward,
    K.BACKWARD_INPUT: Step._backward_input,
    K.BACKWARD_WEIGHT: Step._backward_weight,
    K.SEND_F: Step._send_forward,
    K.SEND_B: Step._send_backward,
    K.RECV_F: Step._receive_forward,
    K.RECV_B: Step._receive_backward,
    K.REDUCE_GRAD: Step._nothing,  # the last backward has reduced
    K.UNSHARD: Step._nothing,
    K.RESHARD: Step._nothing,
}
