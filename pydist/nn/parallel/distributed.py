"""DistributedDataParallel: replicas of a module whose gradients are averaged over the ranks during backward."""

from contextlib import contextmanager

import pydist
from pydist import _C
from pydist._replay import in_python
from pydist.distributed import member
from pydist.distributed._group.logical import current as logical_now
from pydist.distributed._group.process_group import current
from pydist.distributed._ops.agreement import check_agreement, check_replicas
from pydist.distributed.algorithms.ddp_comm_hooks import default_hooks
from pydist.distributed.algorithms.ddp_comm_hooks._bucket import PythonHook
from pydist.distributed.algorithms.join import Join, Joinable
from pydist.nn.modules.module import Module
from pydist.nn.modules.sync_batchnorm import SyncBatchNorm
from pydist.nn.parallel._compress import Sign, TopK
from pydist.nn.parallel._join import BACKWARD, BUFFERS, FORWARD, Follower, MEAN, REDUCES
from pydist.nn.parallel._step_buffers import StepBuffers, take_from

_MIB = 1 << 20
_OF_THE_GROUP = ("process_group", "reducer", "_reduced_at_wrap", "_comm_hook", "_follower", "_logical")  # not copied
_ROUNDED = {"fp16": pydist.float16, "bf16": pydist.bfloat16}  # hooks that work with logical shards, too
_BUILTIN = {"fp16_compress": "fp16", "bf16_compress": "bf16"}  # PyTorch's names of hooks in C


def _refuse_what_is_not_here(device_ids, delayed, hooked, mixed_precision, caps):
    """Raises an error for arguments that would change results or placement and that this version does not support."""
    if device_ids is not None and len(device_ids) > 1:
        raise ValueError(f"DistributedDataParallel: device_ids is {device_ids} (expected one device per rank, or None)")
    if (delayed is None) != (hooked is None):
        raise ValueError(
            "DistributedDataParallel: got only one of delay_all_reduce_named_params and param_to_hook_all_reduce "
            "(expected both or neither)"
        )
    unknown = {"mixed_precision": mixed_precision, "bucket_cap_mb_list": caps}
    for name, value in unknown.items():
        if value is not None:
            raise NotImplementedError(f"DistributedDataParallel: {name} is not supported (expected None)")


def _group_of(process_group, mesh):
    if mesh is None:
        return process_group
    if process_group is not None:
        raise RuntimeError("DistributedDataParallel: cannot specify both process_group and device_mesh (expected one)")
    if mesh.ndim != 1:
        raise RuntimeError(
            f"DistributedDataParallel: {mesh!r} has {mesh.ndim} dimensions (expected 1: take a part of it, as mesh['dp'])"
        )
    return mesh.get_group()


def _is_on_gpu(named):
    return named[0][1].is_cuda and not _C.pretended_cuda()


class DistributedDataParallel(Module, Joinable):
    """Wraps `module`: after backward each parameter's .grad is the mean over all ranks, with the same bits on all of
    them.

    At construction the ranks compare names, shapes and dtypes of all parameters and buffers. If they differ, every rank
    raises RuntimeError, which names the first difference and the rank. Then all take rank 0's values (init_sync).
    Gradients are views of buckets of `bucket_cap_mb` MiB (default 25; then the first bucket has 1 MiB). Each bucket is
    reduced as soon as it is full. A parameter that a backward does not reach counts as zero on that rank, and one
    warning names it; a parameter that no rank reached keeps its .grad. A parameter may be frozen later. With
    `broadcast_buffers` (or its new name `forward_sync_buffers`), a forward that follows a synchronised one starts from
    rank 0's values of the buffers that existed at construction.

    `check_replicas_every`=N: before every N-th step the ranks compare a 64-bit hash of each parameter. If one differs,
    all raise RuntimeError, which names it and the first rank that differs (distributed.check_replicas). 0: never. In a
    world of one the wrapper only calls the module. Raises RuntimeError if no parameter requires a gradient.

    With logical shards (`distributed.shards`) .grad is the mean over all shards after the loop over a step, with the
    same bits for any number of ranks. `logical_shards`: None for the number that init_process_group was told; another
    number raises ValueError. A rank with one shard may also use a plain loop, without random numbers in the model.
    Forwards that are recorded then raise RuntimeError outside of a shard on ranks with another number of shards.

    These arguments of PyTorch are accepted and change nothing, because what they ask for is true anyway or has no
    meaning on CPUs: device_ids (at most one), output_device, dim, find_unused_parameters, check_reduction,
    gradient_as_bucket_view, static_graph, delay_all_reduce_named_params with param_to_hook_all_reduce (all gradients
    are ready at the end of backward), skip_all_reduce_unused_params, batched_grad_copy. mixed_precision and
    bucket_cap_mb_list raise NotImplementedError. `device_mesh` (of one dimension) gives the group in the place of
    process_group. Parameters may be DTensors over another dimension of the mesh (tensor parallel): the ranks of the group
    average their parts.

    Cost: a backward all-reduces the bytes of all gradients.

    >>> import pydist
    >>> model = pydist.nn.parallel.DistributedDataParallel(pydist.nn.Linear(2, 1))
    >>> model(pydist.ones(3, 2)).sum().backward()
    >>> list(model.state_dict())
    ['module.weight', 'module.bias']
    """

    def __init__(
        self,
        module,
        device_ids=None,
        output_device=None,
        dim=0,
        broadcast_buffers=None,
        init_sync=True,
        process_group=None,
        bucket_cap_mb=None,
        find_unused_parameters=False,
        check_reduction=False,
        gradient_as_bucket_view=False,
        static_graph=False,
        delay_all_reduce_named_params=None,
        param_to_hook_all_reduce=None,
        mixed_precision=None,
        device_mesh=None,
        skip_all_reduce_unused_params=False,
        bucket_cap_mb_list=None,
        batched_grad_copy=False,
        forward_sync_buffers=None,
        *,
        check_replicas_every=0,
        logical_shards=None,
    ):
        super().__init__()
        if not isinstance(module, Module):
            raise TypeError(f"DistributedDataParallel: module is {type(module).__name__} (expected a Module)")
        _refuse_what_is_not_here(
            device_ids, delay_all_reduce_named_params, param_to_hook_all_reduce, mixed_precision, bucket_cap_mb_list
        )  # fmt: skip
        cap = 25 * _MIB if bucket_cap_mb is None else int(bucket_cap_mb * _MIB)
        if cap < 1:
            raise ValueError(f"DistributedDataParallel: bucket_cap_mb is {bucket_cap_mb} (expected at least one byte)")
        self.module = module
        self.training = module.training
        self.process_group = current(_group_of(process_group, device_mesh))
        self.device_ids, self.output_device, self.dim = device_ids, output_device, dim
        self.find_unused_parameters, self.static_graph = find_unused_parameters, static_graph
        self.gradient_as_bucket_view = True
        self.check_replicas_every, self._steps_to_check = int(check_replicas_every), int(check_replicas_every)
        given = [flag for flag in (forward_sync_buffers, broadcast_buffers) if flag is not None]
        self.broadcast_buffers = given[0] if given else True
        self.require_forward_param_sync = True  # whether the next forward starts from rank 0's buffers
        self.parameters_to_ignore = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        self._bucket_bytes = cap, _MIB if bucket_cap_mb is None else cap
        self._set_logical(logical_shards)
        if not self._reduced():
            raise RuntimeError(
                "DistributedDataParallel is not needed when a module doesn't have any parameters that require a "
                "gradient."
            )
        self._check_same_module()
        kept = {id(buffer) for _, buffer in self._kept(module.named_buffers())}
        self._buffers_at = [  # (register, name), as a buffer may be replaced; to find all again costs more than to send
            (owner._buffers, name)
            for owner in module.modules()
            for name, buffer in owner._buffers.items()
            if id(buffer) in kept
        ]
        self._step_buffers = StepBuffers()
        if init_sync:
            self._take_from(0, [p for _, p in self._kept(module.named_parameters())])
            self._sync_buffers()
        self._make_reducer()
        member.register(self, self.process_group)

    def _kept(self, named):
        return [(name, tensor) for name, tensor in named if name not in self.parameters_to_ignore]

    def _reduced(self):
        return [(name, p) for name, p in self._kept(self.module.named_parameters()) if p.requires_grad]

    def _set_logical(self, asked):
        """Takes the logical shards of the default group, if this module is in it."""
        logical = logical_now()
        if asked is not None and asked != (logical.shards if logical else None):
            raise ValueError(
                f"DistributedDataParallel: logical_shards is {asked} (expected the number that init_process_group was "
                f"told, {logical.shards if logical else None})"
            )
        self._logical = logical if logical is not None and self.process_group is current() else None
        if self._logical is not None and any(isinstance(m, SyncBatchNorm) for m in self.module.modules()):
            raise NotImplementedError(
                "DistributedDataParallel: SyncBatchNorm beside logical shards, whose rows it would mix (expected "
                "BatchNorm)"
            )

    @property
    def runs_shards(self):
        """Whether the gradient of a step is the mean over logical shards."""
        return self._logical is not None

    def _make_reducer(self):
        names, params = zip(*self._reduced())
        blocks = self._logical.blocks() if self.runs_shards else None
        self.reducer = _C.Reducer(list(params), list(names), self.process_group, *self._bucket_bytes, blocks)
        self._reduced_at_wrap = list(zip(names, params))
        self._comm_hook = self._follower = None

    def _check_same_module(self):
        for kind in ("parameter", "buffer"):
            named = self._kept(getattr(self.module, f"named_{kind}s")())
            lines = [f"{name} {t.dtype} {list(t.shape)}{'' if t.requires_grad else ' frozen'}" for name, t in named]
            check_agreement(f"DistributedDataParallel: {kind}", lines, self.process_group)
        if self.process_group is current():
            said = f"logical_shards={self._logical.shards if self.runs_shards else None}"
            check_agreement("DistributedDataParallel: setting", [said], self.process_group)
        if self.runs_shards:
            from pydist.distributed._group import numerics

            found = numerics.fingerprint() + (numerics.fingerprint_of_gpu() if _is_on_gpu(self._reduced()) else [])
            lines = [f"{name}: {value}" for name, value in found]
            check_agreement("DistributedDataParallel: the ranks' arithmetic", lines, self.process_group)

    def _take_from(self, rank, tensors):
        take_from(self.process_group, rank, tensors)

    def _sync_buffers(self, rank=0):
        self._take_from(rank, self._buffers_now())

    # ---- logical shards (distributed.shards)

    def _buffers_now(self):
        found = (register.get(name) for register, name in self._buffers_at)
        return [buffer for buffer in found if buffer is not None]

    def open_shard(self, at):
        """This rank begins its logical shard number `at`."""
        self._step_buffers.open(at, self._buffers_now())
        self.reducer.open_shard(at)

    def last_backward(self):
        """The next backward of the shard is its last one."""
        self.reducer.last_backward()

    def close_shard(self, number):
        """The logical shard `number` has ended."""
        self.reducer.close_shard()
        if (hashes := self.reducer.hashes) is not None:
            self.hashes_of_shard = {name: bits for (name, _), bits in zip(self._reduced_at_wrap, hashes) if bits}
        self._step_buffers.close(number, self._buffers_now())

    def end_step(self, owner):
        """All logical shards of this rank have ended. `owner`: the rank that ran shard 0."""
        if not self.reducer.shards:
            self.reducer.close_shard()
        self._step_buffers.end(self.process_group.rank == owner, self._buffers_now())
        self._sync_buffers(owner)

    def _forward_of_shard(self, args, kwargs):
        _C._program_refuse("it runs logical shards")
        if self._logical.open is None and _C.is_grad_enabled():
            if self.reducer.shards != 1:
                raise RuntimeError(
                    f"DistributedDataParallel: a forward outside of a logical shard on a rank with {self.reducer.shards} of "
                    f"{self._logical.shards} (expected `for step in dist.shards(loader):` and `for shard in step:` around "
                    "it)"
                )
            self._open_only_shard()
        return self.module(*args, **kwargs)

    def _open_only_shard(self):
        """In a plain loop on a rank with one shard: a forward begins it, or goes on with it after no_sync."""
        if self.reducer.is_closed:
            if any(p.grad is not None for _, p in self._reduced_at_wrap):
                raise RuntimeError(
                    "DistributedDataParallel: a parameter has a gradient already (expected zero_grad() before the forward: "
                    "with logical shards, the micro-batches of a step accumulate in no_sync or in a shard)"
                )
            self._sync_buffers(self._logical.blocks().owner(0))
            self.reducer.open_shard(0)
        if self.reducer.sync:
            self.reducer.last_backward()

    def forward(self, *args, **kwargs):
        if self.runs_shards:
            return self._forward_of_shard(args, kwargs)
        self._before_forward()
        return self.module(*args, **kwargs)

    @in_python
    def _before_forward(self):
        buffers = self.broadcast_buffers and self.require_forward_param_sync and self.process_group.size > 1
        self.require_forward_param_sync = reduces = self.reducer.sync and _C.is_grad_enabled()
        first = 0
        if self._join_config.enable:
            active, _ = self._follower.announce(FORWARD, BUFFERS * buffers + REDUCES * reduces)
            first = active[0]
        if buffers:
            self._sync_buffers(first)
        if reduces:
            self._check_replicas_now_and_then()
            self.reducer.prepare()

    @property
    def require_backward_grad_sync(self):
        """Whether backward reduces gradients. False: gradients add up on their own rank, as in no_sync."""
        return self.reducer.sync

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, on):
        self.reducer.sync = on

    @contextmanager
    def no_sync(self):
        """Inside this block gradients only add up on their own rank. The first backward after it reduces the sum. Both
        forward and backward have to be inside.

        >>> import pydist
        >>> model = pydist.nn.parallel.DistributedDataParallel(pydist.nn.Linear(1, 1))
        >>> with model.no_sync():
        ...     model(pydist.ones(1, 1)).sum().backward()
        >>> model(pydist.ones(1, 1)).sum().backward()
        >>> model.module.bias.grad.tolist()
        [2.0]
        """
        if self.runs_shards and self._logical.open is not None:
            raise RuntimeError(
                "no_sync: inside a logical shard, whose micro-batches accumulate anyway (expected no no_sync)"
            )
        before, self.reducer.sync = self.reducer.sync, False
        try:
            yield
        finally:
            self.reducer.sync = before

    def replica_groups(self):
        """The groups over which gradients become means."""
        return [self.process_group]

    def reduce_in_next_backward(self):
        """The next backward reduces the gradients that have added up so far, without a forward before it. Pipelines call
        it before the last backward of a step."""
        self.reducer.sync = True
        self._before_forward()

    def _check_replicas_now_and_then(self):
        if not self.check_replicas_every or self.process_group.size == 1:
            return
        if self._steps_to_check == 0:
            check_replicas(dict(self._reduced_at_wrap), self.process_group)
            self._steps_to_check = self.check_replicas_every
        self._steps_to_check -= 1

    # ---- uneven inputs

    def join(self, divide_by_initial_world_size=True, enable=True, throw_on_early_termination=False):
        """A context for a loop in which ranks may have different numbers of batches (distributed.algorithms.join.Join
        for this module only). A rank that leaves the loop takes part in the others' backwards with zero gradients until
        all are done. Then it takes parameters and buffers from the lowest of the ranks that were last.

        Sums of gradients are divided by the number of all ranks; with divide_by_initial_world_size=False by the number
        of ranks that still have data, which gives a mean of the ranks' means. For the exact mean over all samples, also
        with batches of different sizes, see global_mean. Optimizers of ranks that ran out of data did not step, so
        their states (momenta) are older: take the last rank's state before training goes on. SyncBatchNorm and your own
        collectives do not work inside. Raises ValueError for divide_by_initial_world_size=False with a communication
        hook, which divides by itself.

        >>> import pydist
        >>> model = pydist.nn.parallel.DistributedDataParallel(pydist.nn.Linear(2, 1))
        >>> with model.join():
        ...     for batch in [pydist.ones(3, 2)] * 2:
        ...         model(batch).sum().backward()
        """
        return Join(
            [self], enable, throw_on_early_termination, divide_by_initial_world_size=divide_by_initial_world_size
        )

    def join_hook(self, divide_by_initial_world_size=True, **_):
        """The JoinHook of this module. Join calls this."""
        if not divide_by_initial_world_size and self._comm_hook is not None:
            raise ValueError(
                "join: divide_by_initial_world_size is False beside a communication hook, which divides by itself "
                "(expected True)"
            )
        self._follower = Follower(self, divide_by_initial_world_size)
        self.reducer.set_begin(self._announce_backward)
        return self._follower

    def _announce_backward(self):
        if self._join_config.enable:
            self._follower.announce(BACKWARD, 0)

    @property
    def join_device(self):
        """The device of the module."""
        return pydist.device("cpu")

    @property
    def join_process_group(self):
        """The process group of the module."""
        return self.process_group

    def global_mean(self, loss_sum, count):
        """A loss whose reduced gradients are those of (sum of all ranks' loss_sum) / (sum of all ranks' count),
        whatever each rank's count is. The count may be of samples, or of tokens that are not masked. Costs one small
        message.

        loss_sum: a tensor, the sum of the losses of this rank's samples. count: a number, at least 0; if it is 0 on all
        ranks the result is zero. The result is loss_sum * W / total, so its mean over ranks is the global mean; call
        backward on it. Works in no_sync (each part counts with its own total), with hooks, and in join. Every rank
        calls it.

        >>> import pydist
        >>> model = pydist.nn.parallel.DistributedDataParallel(pydist.nn.Linear(2, 1))
        >>> losses = model(pydist.ones(3, 2)).square()
        >>> model.global_mean(losses.sum(), len(losses)).backward()
        """
        count = float(count)
        if not 0 <= count < float("inf"):
            raise ValueError(f"global_mean: count is {count} (expected a finite number, 0 or more)")
        divisor = self.process_group.size
        if self._join_config.enable:
            active, counts = self._follower.announce(MEAN, count)
            total, divisor = sum(counts), self._follower.divisor(active)
        else:
            message = pydist.tensor([count], dtype=pydist.float64, device="cpu")
            self.process_group.all_reduce(message)
            total = message.item()
        return loss_sum * (divisor / total if total else 0.0)

    # ---- measurements

    def logging_data(self):
        """Milliseconds of the reduced steps on this rank, as a dict: "steps"; "bytes" of gradients per step; "last" and
        "mean". The last two have "forward" (from the call to the first gradient, including the loss), "backward" (its
        computation), "communication" (spent by backward's thread on messages while gradients came), "wait" (for
        messages after the last gradient) and "exposed": the sum of these two, by which communication made the step
        longer. In a world of one, steps is 0.

        >>> import pydist
        >>> model = pydist.nn.parallel.DistributedDataParallel(pydist.nn.Linear(2, 1))
        >>> model.logging_data()["last"]["exposed"]
        0.0
        """
        times = self.reducer.times()

        def figures(prefix, steps):
            forward, backward, inside, waited = (
                times[prefix + name] / (max(steps, 1) * 1e6) for name in ("forward", "backward", "inside", "waited")
            )
            return {
                "forward": forward,
                "backward": backward - inside - waited,
                "communication": inside,
                "wait": waited,
                "exposed": inside + waited,
            }

        steps = times["steps"]
        return {"steps": steps, "bytes": times["bytes"], "last": figures("", 1), "mean": figures("sum_", steps)}

    # ---- communication hooks

    def register_comm_hook(self, state, hook):
        """Sets a hook that replaces the averaging of each bucket: hook(state, GradBucket) returns a Future of a tensor.
        Call it once, before training. The hook divides by the number of ranks itself. With error feedback, set
        gradients to zero before each reduced backward. In a world of one the hook is not called. Raises TypeError if
        hook is not callable, RuntimeError if there is a hook already.

        >>> import pydist
        >>> from pydist.distributed.algorithms.ddp_comm_hooks import default_hooks
        >>> model = pydist.nn.parallel.DistributedDataParallel(pydist.nn.Linear(2, 1))
        >>> model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        """
        if not callable(hook):
            raise TypeError(f"register_comm_hook: hook is {type(hook).__name__} (expected a function)")
        builtin = default_hooks.in_c(hook) if state in (None, self.process_group) else None
        if self.runs_shards and builtin in _ROUNDED:
            self._round_shards(builtin)
            return
        self._hook_is_free("register_comm_hook")
        half = builtin if self._on_gpu() else None
        if half is not None:
            self.reducer.set_builtin_hook(half)
        elif self.process_group.size > 1:
            self.reducer.set_hook(PythonHook(self.reducer, [p for _, p in self._reduced_at_wrap], state, hook))
        self._comm_hook = "register_comm_hook", state, hook

    def _round_shards(self, name):
        self.reducer.round_shards(_ROUNDED[name])
        self._comm_hook = "register_builtin_comm_hook", name

    def _on_gpu(self):
        return _is_on_gpu(self._reduced_at_wrap)

    def _hook_is_free(self, op):
        if self.runs_shards:
            raise NotImplementedError(
                f"{op}: a communication hook with logical shards (expected fp16, bf16 or none: the sums of others depend on "
                "the number of ranks)"
            )
        if self._comm_hook is not None:
            raise RuntimeError(f"{op}: a hook is registered already (expected one hook, before the first step)")

    def register_builtin_comm_hook(self, name, ratio=0.01):
        """Sets a hook in C. "fp16" and "bf16" round every element and sum in float32; NCCL divides, rounds and sums in
        16 bits. "topk" sends the share `ratio` of a bucket's elements, the largest ones, with their positions. "sign"
        sends one bit per element and the mean size of each parameter's gradient. topk and sign add what they did not
        send to the next gradient of the bucket (error feedback), and are Python on a GPU. "powersgd" is powerSGD_hook
        with its defaults, also in Python. Every rank has to call this. Raises ValueError for another name or ratio,
        RuntimeError if there is a hook already.

        >>> import pydist
        >>> model = pydist.nn.parallel.DistributedDataParallel(pydist.nn.Linear(2, 1))
        >>> model.register_builtin_comm_hook("topk", ratio=0.1)
        """
        name = _BUILTIN.get(name, name)
        if self.runs_shards and name in _ROUNDED:
            self._round_shards(name)
            return
        self._hook_is_free("register_builtin_comm_hook")
        if name == "powersgd":
            from pydist.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

            group = None if self.process_group is current() else self.process_group
            self.register_comm_hook(PowerSGDState(group), powerSGD_hook)
            return
        if name in ("topk", "sign") and self._on_gpu() and self.process_group.size > 1:
            made = (
                TopK(self.reducer, self.process_group, ratio)
                if name == "topk"
                else Sign(self.reducer, self.process_group)
            )
            self.reducer.set_hook(made)
        elif name != "allreduce":
            self.reducer.set_builtin_hook(name, ratio)
        self._comm_hook = "register_builtin_comm_hook", name, ratio

    def _set_static_graph(self):
        """PyTorch's older way to say static_graph=True."""
        self.static_graph = True

    def _register_builtin_comm_hook(self, comm_hook_type):
        """The same with PyTorch's name and its BuiltinCommHookType.ALLREDUCE or FP16_COMPRESS."""
        self.register_builtin_comm_hook(comm_hook_type)

    # ---- as a member of its group (distributed.member)

    def settle(self, on):
        """Sets whether backward waits until its gradients on a GPU are complete."""
        if on and self._join_config.enable:
            raise NotImplementedError(
                "DistributedDataParallel: settle within join, whose ranks do not all make the same steps"
            )
        self.reducer.waits = on

    def rejoin(self, group):
        """Goes on in `group`, which has replaced the old group: with new buckets and the same hook, whose error
        feedback in C begins at zero."""
        hook = self._comm_hook
        self.reducer = None  # frees the gradients' places in the old buckets
        self.process_group = group
        self.require_forward_param_sync = True
        self._make_reducer()
        if hook is not None:
            getattr(self, hook[0])(*hook[1:])

    def __getstate__(self):
        return {name: value for name, value in self.__dict__.items() if name not in _OF_THE_GROUP}

    def __setstate__(self, state):
        """A copied or unpickled wrapper joins the default group. All ranks have to make it."""
        self.__dict__.update(state)
        self.process_group = current()
        self._set_logical(None)
        self._make_reducer()
        member.register(self, self.process_group)
