"""One stage of a pipeline: a part of the model, and what its microbatches leave for their backward."""

from pydist import _C
from pydist.autograd import backward
from pydist.distributed._group.process_group import for_call

__all__ = ["PipelineStage", "build_stage"]


def _as_tensors(what, result):
    """What a stage gives to the next one, as a list."""
    if isinstance(result, _C.Tensor):
        return [result]
    wrong = type(result).__name__
    if isinstance(result, (list, tuple)):
        others = [type(t).__name__ for t in result if t is not None and not isinstance(t, _C.Tensor)]
        if result and not others:
            return list(result)
        wrong = f"{wrong} with {others[0]}" if others else f"{wrong} without entries"
    raise TypeError(f"{what}: forward returned {wrong} (expected a Tensor, or a tuple of Tensors and None)")


class _Kept:
    """What a microbatch leaves behind its forward. late: what W has to do."""

    __slots__ = ("inputs", "late", "results")

    def __init__(self, inputs, results):
        self.inputs, self.results, self.late = inputs, results, None


class PipelineStage:
    """A stage: `submodule` is the part of the model between the stages before and behind it.

    The first stage gets the arguments of `step`, each other one what the stage before it returns: a Tensor, or a tuple of
    Tensors and None. Shapes and dtypes may differ with each microbatch; so input_args, output_args, input_grads and output_grads are
    not needed and only accepted, like get_mesh. What is kept of a microbatch is freed by its backward.

    device: where received tensors are made. group: None is the default group; ranks are counted in it. dw_builder: None, or a
    function that is called after the gradients of a stage's inputs are there, and returns a function that W calls: for
    modules that make gradients of parameters by themselves. With it the engine's own backward runs whole in I.
    """

    def __init__(
        self,
        submodule,
        stage_index,
        num_stages,
        device,
        input_args=None,
        output_args=None,
        output_grads=None,
        input_grads=None,
        group=None,
        dw_builder=None,
        get_mesh=None,
    ):
        for name, n in (("stage_index", stage_index), ("num_stages", num_stages)):
            if not isinstance(n, int) or isinstance(n, bool):
                raise TypeError(f"PipelineStage: {name} is {n!r} (expected an int)")
        if not 0 <= stage_index < num_stages:
            raise ValueError(
                f"PipelineStage: stage_index is {stage_index}, num_stages {num_stages} (expected 0 to num_stages - 1)"
            )
        if not callable(submodule):
            raise TypeError(f"PipelineStage: submodule is {type(submodule).__name__} (expected a Module)")
        self.submod, self.stage_index, self.num_stages = submodule, stage_index, num_stages
        self.device = _C.device("cpu") if device is None else _C.device(device)
        self.group, self.dw_builder = for_call(group), dw_builder
        self.group_rank, self.group_size = self.group.rank, self.group.size
        self.has_backward, self.ties = False, ()
        self._kept = {}  # microbatch -> _Kept

    @property
    def is_first(self):
        """Whether it is stage 0."""
        return self.stage_index == 0

    @property
    def is_last(self):
        """Whether no stage follows."""
        return self.stage_index == self.num_stages - 1

    def __repr__(self):
        return f"PipelineStage({self.stage_index} of {self.num_stages}, {type(self.submod).__name__})"

    @property
    def live(self):
        """The microbatches between F and the end of their backward."""
        return len(self._kept)

    def clear_runtime_states(self):
        """Drops what microbatches have left."""
        self._kept.clear()

    def _parallel_modules(self):
        """The modules of the stage that reduce gradients over other ranks: DistributedDataParallel and fully_shard."""
        modules = self.submod.modules() if hasattr(self.submod, "modules") else ()
        return [m for m in modules if hasattr(m, "set_requires_gradient_sync") or hasattr(m, "reduce_in_next_backward")]

    def parameters(self):
        """A list of the parameters."""
        return list(self.submod.parameters()) if hasattr(self.submod, "parameters") else []

    def replicas(self):
        """The groups over which the gradients of the stage become means."""
        modules = self._parallel_modules()
        return modules[0].replica_groups() if modules else []

    def keep_gradients(self):
        """From now on gradients add up on this rank only. Returns a function that puts back what was before."""
        undo = []
        for module in self._parallel_modules():
            if hasattr(module, "reduce_in_next_backward"):
                undo.append((setattr, module, "require_backward_grad_sync", module.require_backward_grad_sync))
                module.require_backward_grad_sync = False
            else:
                undo.append((type(module).set_requires_gradient_sync, module, True))
                module.set_requires_gradient_sync(False)
        return lambda: [function(*args) for function, *args in undo]

    def reduce_gradients_next(self):
        """The next backward reduces what has added up."""
        for module in self._parallel_modules():
            if hasattr(module, "reduce_in_next_backward"):
                module.reduce_in_next_backward()
            else:
                module.set_requires_gradient_sync(True)

    def forward_one_chunk(self, fwd_chunk_id, args, kwargs=None):
        """The stage's result for a microbatch."""
        result = self.submod(*args, **(kwargs or {}))
        results = None if self.is_last else _as_tensors(f"stage {self.stage_index}", result)
        if self.has_backward:
            self._kept[fwd_chunk_id] = _Kept([] if self.is_first else list(args), results)
        return result if self.is_last else results

    def take_loss(self, microbatch, loss, scale):
        """Gives the last stage the loss from which the microbatch's backward begins, and by what its gradients are
        multiplied."""
        self._kept[microbatch].results = [loss, _C.empty_like(loss.detach()).fill_(scale)]

    def backward_one_chunk(self, bwd_chunk_id, grads=None, full_backward=True):
        """The gradients of the stage's inputs, None for those that need none. grads: of its results, but for the last stage.
        full_backward=False: `backward_weight_one_chunk` makes those of the parameters."""
        kept = self._kept[bwd_chunk_id]
        if self.is_last:
            loss, scale = kept.results
            trained = [*self.parameters(), *(t for t in kept.inputs if t is not None)]
            if not loss.requires_grad and any(t.requires_grad for t in trained):
                raise RuntimeError("step: the loss has no history (expected one that depends on the stage's result)")
            pairs = [(loss, scale)] if loss.requires_grad else []  # all is frozen
        else:
            pairs = self._paired(bwd_chunk_id, kept.results, grads)
        pairs = [(t, g) for t, g in pairs if g is not None]
        kept.results = None
        wanted = [t for t in kept.inputs if t is not None and t.requires_grad]
        found = self._backward(kept, pairs, wanted, full_backward) if pairs else [None] * len(wanted)
        found = iter(found)
        of_inputs = [next(found) if t is not None and t.requires_grad else None for t in kept.inputs]
        kept.inputs = None
        if full_backward:
            del self._kept[bwd_chunk_id]
        return of_inputs

    def _paired(self, microbatch, results, grads):
        if len(results) != len(grads):
            raise ValueError(
                f"stage {self.stage_index}: got {len(grads)} gradients for {len(results)} results of microbatch {microbatch} "
                "(expected one for each)"
            )
        return [(t, g) for t, g in zip(results, grads, strict=True) if t is not None and t.requires_grad]

    def _backward(self, kept, pairs, wanted, full):
        roots, grads = [t for t, _ in pairs], [g for _, g in pairs]
        if self.dw_builder is None and not full:
            kept.late, found = _C._split_backward(roots, grads, wanted)
            return found
        backward(roots, grads)
        found = [t.grad for t in wanted]
        if self.dw_builder is not None:
            runner = self.dw_builder()
            if full:
                runner()
            else:
                kept.late = runner
        return found

    def backward_weight_one_chunk(self, bwd_chunk_id):
        """Makes the gradients of the parameters, after backward_one_chunk(..., full_backward=False)."""
        late = self._kept.pop(bwd_chunk_id).late
        if late is None:
            return
        if self.dw_builder is not None:
            late()
        else:
            _C._split_finish(late)


def build_stage(stage_module, stage_index, pipe_info, device, group=None):
    """A PipelineStage of a Pipe's module that has been changed or wrapped. pipe_info: from `Pipe.info`."""
    stage = PipelineStage(stage_module, stage_index, pipe_info.num_stages, device, group=group)
    stage.ties = pipe_info.ties
    return stage
