"""Styles: how the parameters of a module are shared out over the ranks, and where its inputs and outputs lie."""

from abc import ABC, abstractmethod

from pydist import _C, nn
from pydist.distributed.tensor._dtensor import DTensor, distribute_tensor
from pydist.distributed.tensor._moves import as_part_once, gather_shared
from pydist.distributed.tensor._spec import checked_placements, spec_of
from pydist.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

__all__ = (
    "ColwiseParallel ParallelStyle PrepareModuleInput PrepareModuleInputOutput PrepareModuleOutput RowwiseParallel "
    "SequenceParallel"
).split()


class ParallelStyle(ABC):
    """A style for parallelize_module. A subclass defines `_apply(module, device_mesh)`, which changes the module in place
    and returns it; `src_data_rank` says whose values its parameters take (see distribute_tensor)."""

    src_data_rank = 0

    @abstractmethod
    def _apply(self, module, device_mesh):
        """Makes the module parallel over the mesh, and returns it."""


# ---- parts and wholes


def _as_given(t, mesh, place, op, sizes=None):
    """A DTensor as it is; a plain tensor as this rank's part of one that lies as `place` says. `sizes`: the size of a
    dimension of the whole, where ranks may have parts of different sizes. The DTensor of a tensor that was asked for
    before is the same one, so that layers that share an input share its messages."""
    if isinstance(t, DTensor):
        return t
    if not isinstance(t, _C.Tensor):
        raise TypeError(f"{op}: an input with a layout is {type(t).__name__} (expected a Tensor)")
    (place,) = checked_placements([place], mesh, t.dim(), op)
    shape = list(t.shape)
    if isinstance(place, Shard):
        whole = (sizes or {}).get(place.dim - t.dim(), shape[place.dim] * mesh.size())
        shape[place.dim] = whole
    spec = spec_of(mesh, (place,), shape)
    if tuple(t.shape) != spec.local_shape():
        raise ValueError(
            f"{op}: this rank's part has shape {list(t.shape)} (expected {list(spec.local_shape())} of the whole's {shape} "
            f"with {place})"
        )
    return as_part_once(t, spec)


def _moved(t, place):
    return t if place is None else t.redistribute(placements=[place])


def _for_parts(t, place):
    """Moved, for layers that compute different parts of their results of it."""
    return gather_shared(t) if isinstance(place, Replicate) else _moved(t, place)


def _result(t, local):
    return t.to_local() if local else t


def _distributed(module, mesh, places, source):
    """Makes DTensors of the module's own parameters: places[name], or Replicate()."""
    for name, param in module._parameters.items():
        if param is None:
            continue
        if isinstance(param, DTensor):
            raise ValueError(
                f"parallelize_module: {name} of {type(module).__name__} is a DTensor already, {param.placements} (expected "
                "one style with parameters for each module)"
            )
        spread = distribute_tensor(param.detach(), mesh, [places.get(name, Replicate())], src_data_rank=source)
        module._parameters[name] = nn.Parameter(spread, param.requires_grad)


def _last(place, block):
    """A Shard of the last dimension cuts between blocks of the module."""
    return Shard(place.dim, block) if isinstance(place, Shard) and place.dim == -1 and place.block == 1 else place


def _checked_block(style, block):
    if block is not None and (not isinstance(block, int) or isinstance(block, bool) or block < 1):
        raise ValueError(f"{style}: block is {block!r} (expected a positive int, or None)")
    return block or 1


def _checked_layout(style, name, place, default):
    if place is None:
        return default
    if not isinstance(place, Placement):
        raise TypeError(f"{style}: {name} is {place!r} (expected a Placement, such as Shard(1))")
    return place


class _Wise(ParallelStyle):
    """Of a Linear or an Embedding, cut along the output (columns) or the input (rows)."""

    def __init__(self, *, input_layouts=None, output_layouts=None, use_local_output=True, block=None):
        style = type(self).__name__
        self.block = _checked_block(style, block)
        given, out = self._defaults
        self.input_layouts = (_checked_layout(style, "input_layouts", input_layouts, given),)
        self.output_layouts = (_checked_layout(style, "output_layouts", output_layouts, out),)
        self.use_local_output = use_local_output

    def _kind(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            return isinstance(module, nn.Linear)
        raise NotImplementedError(
            f"{type(self).__name__}: got {type(module).__name__} (expected a Linear or an Embedding; SequenceParallel is "
            "for norms and dropout)"
        )

    def __repr__(self):
        block = f", block={self.block}" if self.block > 1 else ""
        return (
            f"{type(self).__name__}(input_layouts={self.input_layouts[0]}, output_layouts={self.output_layouts[0]}, "
            f"use_local_output={self.use_local_output}{block})"
        )

    def _hook(self, module, mesh, sizes, wanted, finish):
        """`sizes`: of dimensions of the input; `wanted`: where the input has to lie; finish(output, mesh)."""
        name, given = type(self).__name__, self.input_layouts[0]

        def before(module, inputs):
            return (_for_parts(_as_given(inputs[0], mesh, given, name, sizes), wanted), *inputs[1:])

        def after(module, inputs, output):
            return _result(finish(output, mesh), self.use_local_output)

        module.register_forward_pre_hook(before)
        module.register_forward_hook(after)
        return module


class ColwiseParallel(_Wise):
    """Shares the outputs of a Linear out: each rank has rows of the weight, and columns of the result. Of an Embedding each
    rank has columns.

    `input_layouts`: where a plain input lies (default: Replicate()); it is moved to Replicate(). `output_layouts`: where
    the result is to lie (default: Shard(-1)). use_local_output: the result is this rank's part, a plain tensor; else a
    DTensor. `block`: cuts fall between blocks of so many outputs (the features of an attention head, say), so no block
    is cut, and some ranks may have a block more. If there are fewer blocks than ranks, each rank gets one whole block,
    and several ranks get the same: the parameters are replicated, their gradients are summed once, and the result is a
    whole of as many blocks as ranks. The number of blocks must divide the number of ranks then.

    >>> from pydist.distributed.tensor.parallel import ColwiseParallel
    >>> ColwiseParallel(block=64)
    ColwiseParallel(input_layouts=R, output_layouts=S(-1), use_local_output=True, block=64)
    """

    _defaults = Replicate(), Shard(-1)

    def _apply(self, module, device_mesh):
        linear = self._kind(module)
        size = module.out_features if linear else module.embedding_dim
        blocks, ranks = -(-size // self.block), device_mesh.size()
        if size % self.block:
            raise ValueError(
                f"ColwiseParallel: {type(module).__name__} has {size} outputs (expected blocks of {self.block})"
            )
        if self.block > 1 and blocks < ranks:
            if ranks % blocks:
                raise ValueError(
                    f"ColwiseParallel: got {blocks} blocks of {self.block} for {ranks} ranks (expected as many blocks as "
                    "ranks at least, or a number of blocks that divides the number of ranks)"
                )
            _distributed(module, device_mesh, {}, self.src_data_rank)
            return self._hook(module, device_mesh, None, Replicate(), self._one_block)
        cut = Shard(0, self.block)
        places = {"weight": cut, "bias": cut} if linear else {"weight": Shard(1, self.block)}
        _distributed(module, device_mesh, places, self.src_data_rank)
        return self._hook(module, device_mesh, None, Replicate(), self._columns)

    def _columns(self, output, mesh):
        return _moved(output, _last(self.output_layouts[0], self.block))

    def _one_block(self, output, mesh):
        """This rank's block of the output, which each rank has; ranks share the blocks out in order."""
        blocks = output.shape[-1] // self.block
        mine = mesh.get_local_rank() * blocks // mesh.size()
        part = output.to_local(grad_placements=[Partial()]).narrow(-1, mine * self.block, self.block)
        shape = (*output.shape[:-1], mesh.size() * self.block)
        spec = spec_of(mesh, (Shard(output.dim() - 1, self.block),), shape)
        return _moved(_C.as_part(part, spec), _last(self.output_layouts[0], self.block))


class RowwiseParallel(_Wise):
    """Shares the inputs of a Linear out: each rank has columns of the weight, and a summand of the result. Of an Embedding
    each rank has rows, and the embeddings of some ids.

    `input_layouts`: where a plain input lies (default: Shard(-1); of an Embedding give Replicate()); it is moved to where
    it has to be. `output_layouts`: where the result is to lie (default: Replicate(), an all_reduce; Shard(1): a
    reduce_scatter along the sequence). use_local_output: the result is this rank's part, a plain tensor; else a DTensor.
    `block`: cuts fall between blocks of so many inputs, as the columns of the layer before.
    """

    _defaults = Shard(-1), Replicate()

    def _apply(self, module, device_mesh):
        linear = self._kind(module)
        size = module.in_features if linear else module.num_embeddings
        if size % self.block and linear:
            raise ValueError(
                f"RowwiseParallel: {type(module).__name__} has {size} inputs (expected blocks of {self.block})"
            )
        places = {"weight": Shard(1 if linear else 0, self.block)}
        _distributed(module, device_mesh, places, self.src_data_rank)
        given = self.input_layouts[0]
        if not linear:
            return self._hook(module, device_mesh, None, Replicate(), self._rows)
        self.input_layouts = (_last(given, self.block),)
        return self._hook(module, device_mesh, {-1: size}, Shard(-1, self.block), self._rows)

    def _rows(self, output, mesh):
        return _moved(output, self.output_layouts[0])


class SequenceParallel(ParallelStyle):
    """Of a LayerNorm, an RMSNorm or a Dropout: each rank has a part of the sequence. The parameters are replicated.

    A plain input is this rank's part, along `sequence_dim`; a DTensor is moved there. use_local_output: the result is a
    plain tensor, this rank's part.
    """

    def __init__(self, *, sequence_dim=1, use_local_output=False):
        self.sequence_sharding, self.use_local_output = (Shard(sequence_dim),), use_local_output

    def __repr__(self):
        dim = self.sequence_sharding[0].dim
        return f"SequenceParallel(sequence_dim={dim}, use_local_output={self.use_local_output})"

    def _apply(self, module, device_mesh):
        place = self.sequence_sharding[0]
        _distributed(module, device_mesh, {}, self.src_data_rank)

        def before(module, inputs):
            return (_moved(_as_given(inputs[0], device_mesh, place, "SequenceParallel"), place), *inputs[1:])

        def after(module, inputs, output):
            return _result(output, self.use_local_output)

        module.register_forward_pre_hook(before)
        module.register_forward_hook(after)
        return module


# ---- inputs and outputs of other modules


def _listed(style, name, layouts):
    layouts = (layouts,) if layouts is None or isinstance(layouts, Placement) else tuple(layouts)
    for place in layouts:
        _checked_layout(style, name, place, None)
    return layouts


def _same_length(style, what, layouts, desired):
    if len(layouts) != len(desired):
        raise ValueError(
            f"{style}: got {len(layouts)} {what}_layouts and {len(desired)} desired_{what}_layouts (expected equally many)"
        )


class PrepareModuleInput(ParallelStyle):
    """Brings the inputs of a module to where they are wanted.

    `input_layouts`: a placement for each positional input, where a plain tensor lies; None: the input stays as it is.
    `desired_input_layouts`: where each is to lie. input_kwarg_layouts, desired_input_kwarg_layouts: the same for named
    inputs. use_local_output: the module gets plain tensors, this rank's parts; else DTensors.
    """

    def __init__(
        self,
        *,
        input_layouts=None,
        desired_input_layouts=None,
        input_kwarg_layouts=None,
        desired_input_kwarg_layouts=None,
        use_local_output=False,
    ):
        style = "PrepareModuleInput"
        self.input_layouts = None if input_layouts is None else _listed(style, "input_layouts", input_layouts)
        self.desired_input_layouts = (
            None if desired_input_layouts is None else _listed(style, "desired_input_layouts", desired_input_layouts)
        )
        if self.input_layouts is not None:
            _same_length(style, "input", self.input_layouts, self.desired_input_layouts or ())
        self.input_kwarg_layouts = dict(input_kwarg_layouts or {})
        self.desired_input_kwarg_layouts = dict(desired_input_kwarg_layouts or {})
        if self.input_kwarg_layouts.keys() != self.desired_input_kwarg_layouts.keys():
            raise ValueError(
                f"{style}: got input_kwarg_layouts of {sorted(self.input_kwarg_layouts)} and desired_input_kwarg_layouts of "
                f"{sorted(self.desired_input_kwarg_layouts)} (expected the same names)"
            )
        self.use_local_output = use_local_output

    def __repr__(self):
        return (
            f"PrepareModuleInput(input_layouts={self.input_layouts}, desired_input_layouts={self.desired_input_layouts}, "
            f"input_kwarg_layouts={self.input_kwarg_layouts}, desired_input_kwarg_layouts="
            f"{self.desired_input_kwarg_layouts}, use_local_output={self.use_local_output})"
        )

    def _one(self, value, place, wanted, mesh):
        if place is None:
            return value
        given, local = _as_given(value, mesh, place, "PrepareModuleInput"), self.use_local_output
        return _moved(given, wanted).to_local() if local else _for_parts(given, wanted)

    def _apply(self, module, device_mesh):
        def before(module, inputs, named):
            if self.input_layouts is not None:
                if len(inputs) != len(self.input_layouts):
                    raise ValueError(
                        f"PrepareModuleInput: {type(module).__name__} got {len(inputs)} inputs (expected "
                        f"{len(self.input_layouts)}, one for each of input_layouts)"
                    )
                places = zip(inputs, self.input_layouts, self.desired_input_layouts, strict=True)
                inputs = tuple(self._one(value, place, wanted, device_mesh) for value, place, wanted in places)
            wanted = self.desired_input_kwarg_layouts
            named = {
                name: self._one(value, self.input_kwarg_layouts.get(name), wanted.get(name), device_mesh)
                for name, value in named.items()
            }
            return inputs, named

        module.register_forward_pre_hook(before, with_kwargs=True)
        return module


class PrepareModuleOutput(ParallelStyle):
    """Brings the outputs of a module to where they are wanted.

    `output_layouts`: a placement for each output, where a plain tensor lies; None: the output stays as it is.
    `desired_output_layouts`: where each is to lie. use_local_output: the results are plain tensors, this rank's parts;
    else DTensors.
    """

    def __init__(self, *, output_layouts, desired_output_layouts, use_local_output=True):
        style = "PrepareModuleOutput"
        self.output_layouts = _listed(style, "output_layouts", output_layouts)
        self.desired_output_layouts = _listed(style, "desired_output_layouts", desired_output_layouts)
        _same_length(style, "output", self.output_layouts, self.desired_output_layouts)
        self.use_local_output = use_local_output

    def __repr__(self):
        return (
            f"PrepareModuleOutput(output_layouts={self.output_layouts}, desired_output_layouts="
            f"{self.desired_output_layouts}, use_local_output={self.use_local_output})"
        )

    def _one(self, value, place, wanted, mesh):
        if place is None:
            return value
        return _result(_moved(_as_given(value, mesh, place, "PrepareModuleOutput"), wanted), self.use_local_output)

    def _apply(self, module, device_mesh):
        def after(module, inputs, outputs):
            given = outputs if isinstance(outputs, tuple) else (outputs,)
            if len(given) != len(self.output_layouts):
                raise ValueError(
                    f"PrepareModuleOutput: {type(module).__name__} has {len(given)} outputs (expected "
                    f"{len(self.output_layouts)}, one for each of output_layouts)"
                )
            places = zip(given, self.output_layouts, self.desired_output_layouts, strict=True)
            made = tuple(self._one(value, place, wanted, device_mesh) for value, place, wanted in places)
            return made if len(made) > 1 else made[0]

        module.register_forward_hook(after)
        return module


class PrepareModuleInputOutput(ParallelStyle):
    """PrepareModuleInput and PrepareModuleOutput of one module; use_local_input is the former's use_local_output."""

    def __init__(
        self,
        *,
        input_layouts=None,
        desired_input_layouts=None,
        input_kwarg_layouts=None,
        desired_input_kwarg_layouts=None,
        use_local_input=False,
        output_layouts,
        desired_output_layouts,
        use_local_output=True,
    ):
        self.prepare_module_input = PrepareModuleInput(
            input_layouts=input_layouts,
            desired_input_layouts=desired_input_layouts,
            input_kwarg_layouts=input_kwarg_layouts,
            desired_input_kwarg_layouts=desired_input_kwarg_layouts,
            use_local_output=use_local_input,
        )
        self.prepare_module_output = PrepareModuleOutput(
            output_layouts=output_layouts,
            desired_output_layouts=desired_output_layouts,
            use_local_output=use_local_output,
        )

    def __repr__(self):
        return f"PrepareModuleInputOutput({self.prepare_module_input}, {self.prepare_module_output})"

    def _apply(self, module, device_mesh):
        self.prepare_module_input._apply(module, device_mesh)
        return self.prepare_module_output._apply(module, device_mesh)
