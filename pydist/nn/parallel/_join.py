"""DistributedDataParallel and sharded models under Join: active ranks announce what an iteration does, so that ranks
without data can follow.

Before each of its collectives an active rank sends (what, how) to all ranks. A rank without data sends NOTHING, sees
what the others do and does its part. So several forwards before a backward, no_sync and evaluation need no special
rules. A rank without data also has to step its shards of a sharded model: clips and steps are announced, too.
"""

import weakref

import pydist
from pydist.distributed._ops.objects import all_gather_object
from pydist.distributed.algorithms.join import Join, JoinHook, Joinable
from pydist.nn.utils import clip_grad
from pydist.optim.optimizer import optimizers_of, options_of

NOTHING, FORWARD, MEAN, BACKWARD, CLIP, STEP = range(6)
_NAMES = ("nothing", "a forward", "global_mean", "a backward", "clip_grad_norm_", "a step")
BUFFERS, REDUCES = 1, 2  # bits of a forward's `how`


def _exchange(group, what, how):
    """(the active ranks, what they do, the `how` of all ranks)."""
    rows = pydist.empty(group.size, 2, dtype=pydist.float64, device="cpu")
    group.all_gather(rows, pydist.tensor([[float(what), float(how)]], dtype=pydist.float64, device="cpu"))
    return _same([row[0] for row in rows.tolist()], [row[1] for row in rows.tolist()])


def _same(whats, hows):
    active = [rank for rank, what in enumerate(whats) if what != NOTHING]
    for rank in active:
        if whats[rank] != whats[active[0]]:
            does, other = (_NAMES[int(whats[r])] for r in (active[0], rank))
            raise RuntimeError(f"join: rank {active[0]} does {does}, rank {rank} does {other} (expected the same)")
    return active, int(whats[active[0]]) if active else NOTHING, hows


class Follower(JoinHook):
    """Both sides of the announcements, for one DistributedDataParallel in one Join."""

    def __init__(self, ddp, by_all):
        self.ddp, self.by_all = ddp, by_all
        self.open = False  # inside an iteration whose beginning was announced to Join

    def announce(self, what, how):
        """Announces what an active rank does. Returns (the active ranks, the `how` of all ranks)."""
        if not self.open:
            Join.notify_join_context(self.ddp)
        active, _, hows = _exchange(self.ddp.process_group, what, how)
        self.open = what == MEAN or what == FORWARD and how & REDUCES != 0
        if what == BACKWARD:
            self._divide_by(active)
        return active, hows

    def divisor(self, active):
        """The number by which the gradients of the next backward are divided."""
        return self.ddp.process_group.size if self.by_all else len(active)

    def _divide_by(self, active):
        self.ddp.reducer.set_divisor(self.divisor(active))

    def main_hook(self):
        """Follows one iteration of the active ranks."""
        while True:
            active, what, hows = _exchange(self.ddp.process_group, NOTHING, 0)
            if what == FORWARD:
                if int(hows[active[0]]) & BUFFERS:
                    self.ddp._sync_buffers(active[0])
                if int(hows[active[0]]) & REDUCES:
                    continue
            elif what == BACKWARD:
                self._divide_by(active)
                self.ddp.reducer.shadow()
            elif what == MEAN:
                continue
            return

    def finish(self):
        """Called when this rank leaves: an iteration that it has begun may go on elsewhere."""
        if self.open:
            self.open = False
            self.main_hook()

    def post_hook(self, is_last_joiner):
        """Takes parameters and buffers from the lowest rank among the last ones."""
        ddp = self.ddp
        ddp.reducer.set_divisor(ddp.process_group.size)
        ddp._follower = None
        last, _, _ = _exchange(ddp.process_group, FORWARD if is_last_joiner else NOTHING, 0)
        if len(last) < ddp.process_group.size:
            ddp._take_from(last[0], [p for _, p in ddp._kept(ddp.module.named_parameters())])
            ddp._sync_buffers(last[0])


class ShardedFollower(JoinHook):
    """Both sides of the announcements, for one sharded model in one Join. Forwards of its ranks are not announced: they
    wait for nobody's forward."""

    def __init__(self, module, by_all):
        self.module, self.by_all = weakref.proxy(module), by_all
        self.state = module._fsdp
        self.model = self.state.model or self.state.begin(module)
        self.params = [param for state in self.model.states if state.unit for param in state.shards()]
        self.optimizers = optimizers_of(self.params)
        self.handles = [one.register_step_pre_hook(self._before_step) for one in self.optimizers]
        self.announced = False  # the backward that is under way
        self.stepped = []  # optimizers that have stepped since the last backward: their gradients are used up
        clip_grad.watching.append(weakref.WeakMethod(self._before_clip, clip_grad.watching.remove))
        self.model.begun, self.model.ended = self._before_backward, self._after_backward

    # ---- a rank with data

    def _announce(self, what, how=None):
        if self.module._join_config.enable:
            Join.notify_join_context(self.module)
            self._exchange(what, how)

    def _exchange(self, what, how):
        rows = [None] * self.state.group.size
        all_gather_object(rows, (what, how), group=self.state.group)
        active, what, hows = _same(*zip(*rows, strict=True))
        if what == BACKWARD and not self.by_all:
            self._divide_by(len(active))
        return what, hows[active[0]] if active else None

    def _divide_by(self, count):
        for state in self.model.states:
            state.divisor = float(count)
            state.push()

    def _before_backward(self):
        if not self.announced:
            self.announced = True
            self.stepped.clear()
            self._announce(BACKWARD, any(state.unit and state.syncs for state in self.model.states))

    def _after_backward(self):
        self.announced = False

    def _before_clip(self, params, max_norm, norm_type):
        if any(param is own for param in params for own in self.params):
            self._announce(CLIP, (float(max_norm), float(norm_type)))

    def _before_step(self, optimizer, args, kwargs):
        number = next(k for k, one in enumerate(self.optimizers) if one is optimizer)
        self._announce(STEP, (number, _options(optimizer)))
        self.stepped.append(optimizer)

    # ---- a rank without data

    def finish(self):
        """Called when this rank leaves: from now on it gives what it has summed up, or zeros."""
        for optimizer in self.stepped:
            optimizer.zero_grad()

    def main_hook(self):
        """Follows one announcement of the active ranks."""
        what, how = self._exchange(NOTHING, None)
        if what == BACKWARD:
            self.module.set_requires_gradient_sync(how)
            self.model.engine.shadow()
        elif what == CLIP:
            clip_grad.clip_grad_norm_(self.params, *how)
        elif what == STEP:
            number, options = how
            optimizer = self.optimizers[number]
            _take_options(optimizer, options)
            optimizer.step()
            optimizer.zero_grad()

    def post_hook(self, is_last_joiner):
        """Takes the options of optimizers from the last ranks. Shards are up to date on all ranks."""
        _, options = self._exchange(*(STEP, [*map(_options, self.optimizers)]) if is_last_joiner else (NOTHING, None))
        for optimizer, given in zip(self.optimizers, options, strict=True):
            _take_options(optimizer, given)
        self.close()

    def close(self):
        """Ends the announcements."""
        for handle in self.handles:
            handle.remove()
        self.model.begun = self.model.ended = None
        if not self.by_all:
            self._divide_by(0)


def _options(optimizer):
    return [*map(options_of, optimizer.param_groups)]


def _take_options(optimizer, options):
    for group, given in zip(optimizer.param_groups, options, strict=True):
        group.update(given)


class JoinsSharded:
    """What a module of fully_shard has for Join."""

    joins_alone = True
    _join_config = Joinable._join_config

    def join_hook(self, divide_by_initial_world_size=True, **_):
        """The JoinHook of this module. Join calls this."""
        state = self._fsdp
        below = {state.replicas for state in (m._fsdp for m in self.modules() if isinstance(m, JoinsSharded))}
        kinds = {m._fsdp.unit.kind for m in self.modules() if isinstance(m, JoinsSharded) and m._fsdp.unit}
        if "gathered" in kinds:
            raise NotImplementedError(
                "join: the ranks gather this model's wholes, in forwards, too (expected common memory: the ranks of one "
                "host, without PYDIST_FSDP=private)"
            )
        if state.model is not None and state.model.states[0] is not state:
            raise ValueError("join: the module is a part of a sharded model (expected the outermost module)")
        if below != {None}:
            raise NotImplementedError(
                "join: the model has replicas (expected a 1-D mesh; DistributedDataParallel for NO_SHARD)"
            )
        if not divide_by_initial_world_size and state.divisor:
            raise ValueError(
                "join: divide_by_initial_world_size is False beside set_gradient_divide_factor (expected True)"
            )
        follower = self.__dict__.pop("_follower", None)
        if follower is not None:
            follower.close()
        self.__dict__["_follower"] = ShardedFollower(self, divide_by_initial_world_size)
        return self.__dict__["_follower"]

    @property
    def join_device(self):
        """The device of the module."""
        return pydist.device("cpu")

    @property
    def join_process_group(self):
        """The group over which the module is sharded."""
        return self._fsdp.group


Joinable.register(JoinsSharded)
