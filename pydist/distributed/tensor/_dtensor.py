"""DTensor: a tensor that is spread over the ranks of a mesh; each rank has a part of it."""

import math

from pydist import _C
from pydist._grad_mode import no_grad
from pydist.distributed.tensor._indexing import indexed, put, set_indexed
from pydist.distributed.tensor._moves import convert, move_to
from pydist.distributed.tensor._plan import plan
from pydist.distributed.tensor._spec import Spec, checked_mesh, checked_placements, spec_of
from pydist.distributed.tensor.placement_types import Partial, Replicate

_DRAWS = "bernoulli_ cauchy_ exponential_ geometric_ log_normal_ normal_ random_ uniform_".split()
_IN_PLACE = ("as_strided_ fill_diagonal_ resize_ resize_as_ set_ squeeze_ swapaxes_ swapdims_ t_ to_sparse transpose_ "
             "unsqueeze_").split()  # fmt: skip
_OF_VALUES = "__array__ __dlpack__ data_ptr numpy storage untyped_storage".split()


def make(local, spec, requires_grad=False, cls=None):
    """A leaf, a DTensor or a `cls`, over the memory of a plain tensor."""
    made = _C.Tensor._make_subclass(cls or DTensor, local.detach(), requires_grad)
    _C.set_spread(made, spec)
    return made


class DTensor(_C.Tensor):
    """A tensor that is spread over the ranks of a DeviceMesh. Each rank has a part: `placements` says for each dimension
    of the mesh whether the ranks along it have different parts (Shard), the same (Replicate), or summands (Partial).

    `distribute_tensor` and `DTensor.from_local` make them; parameters of `fully_shard` are such. shape, size(), numel()
    and stride() are the whole tensor's. Ops take DTensors of one mesh, numbers, and plain tensors without dimensions; each
    rank computes its part. Where parts do not fit together, operands are moved, by as few bytes as will do; all ranks of
    the mesh call an op together. An op that knows nothing of parts has its operands gathered, with a warning; with
    PYDIST_DTENSOR=strict it raises NotImplementedError. In-place ops keep placements, and raise RuntimeError where they
    cannot. Random fills and dropout give each element the value that it would have in the whole tensor, if the ranks have
    drawn equally often. Gradients lie as the tensors do; where ranks have summands, each has the whole gradient.

    >>> import pydist
    >>> from pydist.distributed.tensor import Shard, distribute_tensor, init_device_mesh
    >>> mesh = init_device_mesh("cpu", (1,))
    >>> x = distribute_tensor(pydist.arange(6.0).view(3, 2), mesh, [Shard(0)])
    >>> x.shape, x.to_local().shape, (x * 2).full_tensor().sum().item()
    (pydist.Size([3, 2]), pydist.Size([3, 2]), 30.0)
    """

    def __new__(cls, local_tensor, spec, *, requires_grad=False):
        if not isinstance(spec, Spec) or not isinstance(local_tensor, _C.Tensor):
            raise TypeError(
                f"DTensor: got {type(local_tensor).__name__} and {type(spec).__name__} (expected a plain tensor and the _spec "
                "of a DTensor; DTensor.from_local and distribute_tensor make DTensors)"
            )
        return make(local_tensor, spec, requires_grad, cls)

    @property
    def _spec(self):
        return _C.spread_of(self)

    @property
    def device_mesh(self):
        """The mesh."""
        return self._spec.mesh

    @property
    def placements(self):
        """A placement for each dimension of the mesh."""
        return self._spec.placements

    @property
    def _local_tensor(self):
        return _C.local_part(self.detach())

    # ---- the whole's geometry

    @property
    def shape(self):
        """The sizes of the whole tensor."""
        return _C.spread_of(self).size

    def size(self, dim=None):
        """The sizes of the whole tensor, or one of them."""
        return self.shape if dim is None else self.shape[dim]

    def numel(self):
        """The number of elements of the whole tensor."""
        return math.prod(self._spec.shape)

    nelement = numel

    def stride(self, dim=None):
        """The strides of the whole tensor, or one of them, if it lay in one place as this rank's part does: with its
        dimensions in the order of the part's strides."""
        strides = strides_like(self._local_tensor.stride(), self._spec.shape)
        return strides if dim is None else strides[dim]

    @property
    def nbytes(self):
        """The bytes of the whole tensor."""
        return self.numel() * self.dtype.itemsize

    def __len__(self):
        if not self.dim():
            raise TypeError("len() of a 0-d tensor (expected at least one dimension)")
        return self.shape[0]

    def __contains__(self, value):
        return bool((self == value).any())

    def view_as(self, other):
        """A view with the sizes of `other`."""
        return self.view(other.shape)

    def reshape_as(self, other):
        """This tensor with the sizes of `other`."""
        return self.reshape(other.shape)

    def expand_as(self, other):
        """This tensor broadcast to the sizes of `other`."""
        return self.expand(other.shape)

    def is_same_size(self, other):
        """Whether `other` has these sizes."""
        return self.shape == other.shape

    def new_empty(self, *size, **options):
        """A DTensor of these sizes, uninitialised: placed as this tensor if the sizes are its own, else with a copy on each
        rank. new_zeros, new_ones and new_full likewise."""
        return self._new("new_empty", size, options)

    def new_zeros(self, *size, **options):
        """See new_empty."""
        return self._new("new_zeros", size, options)

    def new_ones(self, *size, **options):
        """See new_empty."""
        return self._new("new_ones", size, options)

    def new_full(self, size, fill_value, **options):
        """See new_empty."""
        return self._new("new_full", (size,), options, fill_value)

    def _new(self, name, size, options, *values):
        spec, shape = self._spec, tuple(_C.empty(0, device="meta").new_empty(*size).shape)
        places = spec.placements if shape == spec.shape and not spec.combined else spec.everywhere.placements
        spec = spec_of(spec.mesh, places, shape)
        local = getattr(self._local_tensor, name)(spec.local_shape(), *values, **options)
        return make(local, spec, local.requires_grad)

    def equal(self, other):
        """Whether `other` has the same sizes and elements; True on ranks outside the mesh, which have none."""
        return self._spec.outside or super().equal(other)

    # ---- indexing

    def __getitem__(self, key):
        return indexed(self, key)

    def __iter__(self):
        if not self.dim():
            raise TypeError("iteration over a DTensor without dimensions (expected at least one)")
        return (self[i] for i in range(len(self)))

    def __setitem__(self, key, value):
        set_indexed(self, key, value)

    def index_put_(self, indices, values, accumulate=False):
        """As Tensor.index_put_. Cost: the whole is gathered."""
        return self.copy_(put(self, indices, values, accumulate))

    # ---- gradients

    def backward(self, gradient=None, retain_graph=None, create_graph=False, inputs=None):
        """As Tensor.backward. All ranks of the mesh call it. `gradient`: a DTensor, which is moved to where this tensor's
        gradient lies."""
        of, spec = self._spec, self._spec.gradient()
        if gradient is None:
            if self.numel() != 1:
                raise RuntimeError(
                    f"backward: the DTensor has shape {list(self.shape)} (expected one element, or gradient=)"
                )
            cut = any(place.is_shard() for place in spec.placements)
            if cut or spec.combined or of.shares > 1:  # else the engine takes 1
                gradient = of.seeded(_C.ones(spec.local_shape(), dtype=self.dtype, device=self.device))
            if spec.combined:
                gradient = _C.as_part(gradient, spec.everywhere).redistribute(placements=spec.placements)._local_tensor
        elif isinstance(gradient, DTensor):
            gradient = of.seeded(gradient.redistribute(placements=spec.placements)._local_tensor)
        return super().backward(gradient, retain_graph, create_graph, inputs)

    def register_hook(self, hook):
        """As Tensor.register_hook; the hook gets and returns DTensors."""
        of, spec = self._spec, self._spec.gradient()

        def on_parts(grad):
            if _C.spread_of(grad) is None:
                grad = _C.as_part(grad, spec)
            result = hook(grad * of.shares if of.shares > 1 else grad)
            if isinstance(result, DTensor):
                result = of.seeded(_C.local_part(result.redistribute(placements=spec.placements)))
            return result

        return super().register_hook(on_parts)

    # ---- between parts and wholes

    @staticmethod
    def from_local(
        local_tensor,
        device_mesh=None,
        placements=None,
        *,
        run_check=False,
        shape=None,
        stride=None,
        grad_placements=None,
    ):
        """The DTensor of which each rank has `local_tensor`. `placements` (default: Replicate()). `shape`: of the whole;
        without it parts are taken to be equal in size. run_check: replicas get the values of the first rank.
        `grad_placements`: how the gradient that comes back is to lie (default: as the tensor; Partial as Replicate).
        `stride` is accepted: the parts say the order of the dimensions. Gradients flow to local_tensor.

        >>> import pydist
        >>> from pydist.distributed.tensor import DTensor, Shard, init_device_mesh
        >>> DTensor.from_local(pydist.ones(2), init_device_mesh("cpu", (1,)), [Shard(0)]).shape
        pydist.Size([2])
        """
        if not isinstance(local_tensor, _C.Tensor) or isinstance(local_tensor, DTensor):
            raise TypeError(f"from_local: local_tensor is {type(local_tensor).__name__} (expected a plain Tensor)")
        mesh = checked_mesh(device_mesh, "from_local")
        placements = checked_placements(placements, mesh, local_tensor.dim(), "from_local")
        if shape is None:
            shape = list(local_tensor.shape)
            for place, ranks in zip(placements, mesh.shape, strict=True):
                if place.is_shard():
                    shape[place.dim] *= ranks
        spec = spec_of(mesh, placements, shape)
        if not spec.outside and tuple(local_tensor.shape) != spec.local_shape():
            raise ValueError(
                f"from_local: this rank's part has shape {list(local_tensor.shape)} (expected {list(spec.local_shape())} of "
                f"the whole's {list(shape)} with {placements}: give `shape` for parts of different sizes)"
            )
        if spec.outside:
            local_tensor = local_tensor.new_empty(spec.local_shape())
        elif run_check:
            local_tensor = local_tensor.clone()
            for dim, place in enumerate(placements):
                if place.is_replicate():
                    _broadcast(local_tensor, mesh.get_group(dim), 0)
        if grad_placements is not None:
            wanted = checked_placements(grad_placements, mesh, local_tensor.dim(), "from_local")
            return _C.spread_move(local_tensor, convert(spec, spec.placements, wanted), spec)
        return _C.as_part(local_tensor, spec)

    def to_local(self, *, grad_placements=None):
        """This rank's part as a plain tensor over the same memory. Gradients flow back; `grad_placements` says how the
        gradient of the result lies (default: as the tensor itself). Of a rank outside the mesh: no elements."""
        spec = self._spec
        if spec.outside:
            return _C.local_part(self).reshape(0)
        if grad_placements is None and not spec.shared and spec.shares == 1:
            return _C.local_part(self)
        given = tuple(Replicate() if place.is_partial() else place for place in spec.placements)
        if grad_placements is not None:
            given = checked_placements(grad_placements, self.device_mesh, self.dim(), "to_local")
        return _C.spread_move(self, convert(spec, given, spec.placements, spec.shared, True), None)

    def redistribute(
        self, device_mesh=None, placements=None, *, async_op=False, forward_dtype=None, backward_dtype=None
    ):
        """The same tensor with other placements. All ranks of the mesh call it. Gradients flow back. Cost, for each
        dimension of the mesh that changes: nothing for a part of what is there (Replicate to Shard or Partial), an
        all_gather for Shard to Replicate, an all_to_all for one Shard to another, a reduce_scatter for Partial to Shard, an
        all_reduce for Partial to Replicate. `async_op` is accepted. The tensor is cast to `forward_dtype` before, its
        gradient to `backward_dtype`. Raises ValueError for another mesh."""
        spec = _C.spread_of(self)
        if placements is None:
            raise RuntimeError("redistribute: placements is None (expected a placement for each dimension of the mesh)")
        if device_mesh is not None and device_mesh is not spec.mesh and device_mesh != spec.mesh:
            raise ValueError(f"redistribute: device_mesh is {device_mesh!r} (expected the tensor's, {spec.mesh!r})")
        if forward_dtype is not None or backward_dtype is not None:
            return _cast(self, forward_dtype, backward_dtype).redistribute(placements=placements)
        found = spec.moves.get((placements, 0)) if type(placements) is tuple else None
        if found is None:
            found = move_to(spec, checked_placements(placements, spec.mesh, self.dim(), "redistribute"), 0)
        if found[1] is spec:
            return self
        return _C.spread_move(self, *found)

    def full_tensor(self, *, grad_placements=None):
        """The whole tensor, plain, on every rank. All ranks call it. Gradients flow back; `grad_placements` as in
        to_local. Cost: as redistribute."""
        whole = self.redistribute(placements=[Replicate()] * self.device_mesh.ndim)
        return whole.to_local(grad_placements=grad_placements)

    def _gathered(self):
        with no_grad():
            return self.detach().full_tensor()

    def item(self):
        """The value of a tensor with one element. All ranks call it if the tensor is sharded."""
        return self._gathered().item()

    def tolist(self):
        """The elements of the whole. All ranks call it if the tensor is sharded."""
        return self._gathered().tolist()

    def __bool__(self):
        return bool(self._gathered())

    def __float__(self):
        return float(self._gathered())

    def __int__(self):
        return int(self._gathered())

    # ---- writing

    def copy_(self, src, non_blocking=False):
        """Copies src into this tensor: a DTensor of the same placements, or the whole as a plain tensor, which has the
        same values on all ranks."""
        if isinstance(src, _C.Tensor) and not isinstance(src, DTensor) and src.dim():
            if src.shape != self.shape:
                raise RuntimeError(
                    f"copy_: src has shape {list(src.shape)} (expected {list(self.shape)}, that of the whole tensor)"
                )
            src = _C.as_part(src, self._spec.everywhere)
        return super().copy_(src, non_blocking)

    # ---- texts, copies, files

    def __repr__(self):
        return f"DTensor(local_tensor={self._local_tensor!r}, device_mesh={self.device_mesh!r}, placements={self.placements})"

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            copied = _C.local_part(self.detach()).clone()
            memo[id(self)] = make(copied, self._spec, self.requires_grad, type(self))
        return memo[id(self)]

    def __reduce_ex__(self, protocol):
        local = _C.local_part(self.detach())
        return make, (local, self._spec, self.requires_grad, type(self))

    def __create_chunk_list__(self):
        """For checkpoints: where this rank's part lies in the whole."""
        from pydist.distributed.checkpoint.metadata import ChunkStorageMetadata

        if self._spec.combined:
            raise ValueError(
                f"checkpoint: a DTensor has the placements {self.placements}: the ranks have summands (expected "
                "redistribute() to Shard or Replicate before)"
            )
        ranges = self._spec.ranges()
        offsets, sizes = _C.Size([a for a, _ in ranges]), _C.Size([b - a for a, b in ranges])
        return [ChunkStorageMetadata(offsets=offsets, sizes=sizes)]


def strides_like(strides, shape):
    """Strides of a dense tensor of this shape whose dimensions are in the order of the given strides; 0 where these are."""
    found, step = [0] * len(shape), 1
    for dim in sorted((d for d, n in enumerate(strides) if n), key=lambda d: (strides[d], -d)):
        found[dim], step = step, step * max(1, shape[dim])
    return tuple(found)


def _broadcast(tensor, group, source):
    tensor = tensor.detach()
    group.broadcast(_C.view_as_real(tensor) if tensor.is_complex() else tensor, source)


def _cast(tensor, forward_dtype, backward_dtype):
    if forward_dtype is not None:
        tensor = tensor.to(forward_dtype)
    if backward_dtype is not None:
        tensor = tensor.view_as(tensor)
        tensor.register_hook(lambda grad: grad.to(backward_dtype).to(grad.dtype))
    return tensor


def _draw(name):
    plain = getattr(_C.Tensor, name)

    def method(self, *args, **kwargs):
        if self._spec.outside:
            return self
        whole = _C.empty(self.shape, dtype=self.dtype, device=self.device)
        with no_grad():
            plain(whole, *args, **kwargs)
        return self.copy_(whole)

    method.__name__, method.__doc__ = name, f"`Tensor.{name}` of the whole, of which each rank takes its part."
    return method


def _refuse(name, wanted):
    def method(self, *args, **kwargs):
        raise NotImplementedError(f"{name}: got a DTensor (expected {wanted})")

    method.__name__ = name
    return method


for _name in _DRAWS:
    if hasattr(_C.Tensor, _name):
        setattr(DTensor, _name, _draw(_name))
for _name in _OF_VALUES:
    setattr(DTensor, _name, _refuse(_name, "to_local() or full_tensor() first, whose memory is in one place"))
for _name in _IN_PLACE:
    setattr(DTensor, _name, _refuse(_name, "an op that makes a new DTensor, or to_local() or full_tensor() first"))
_C.set_part_class(DTensor)
_C.set_spread_planner(plan)


def distribute_tensor(tensor, device_mesh=None, placements=None, *, src_data_rank=0):
    """A DTensor leaf with the values of `tensor` on the rank `src_data_rank` of each line of the mesh, as `placements`
    say (default: Replicate(); Partial: one rank has the values, the others 0). src_data_rank=None: each rank takes its part of its own tensor, and nothing is sent. All
    ranks of the mesh call it. A tensor on meta stays there. Cost: a broadcast for each dimension of the mesh.

    >>> import pydist
    >>> from pydist.distributed.tensor import Replicate, distribute_tensor, init_device_mesh
    >>> distribute_tensor(pydist.ones(2), init_device_mesh("cpu", (1,)), [Replicate()]).full_tensor().tolist()
    [1.0, 1.0]
    """
    mesh = checked_mesh(device_mesh, "distribute_tensor")
    if isinstance(tensor, DTensor):
        if tensor.device_mesh != mesh:
            raise ValueError(f"distribute_tensor: the tensor is spread over {tensor.device_mesh!r} (expected {mesh!r})")
        return tensor.redistribute(placements=placements or [Replicate()] * mesh.ndim)
    if not isinstance(tensor, _C.Tensor):
        raise TypeError(f"distribute_tensor: tensor is {type(tensor).__name__} (expected a Tensor)")
    if not tensor.is_leaf:
        raise RuntimeError("distribute_tensor: the tensor is no leaf (expected a leaf, such as detach())")
    placements = checked_placements(placements, mesh, tensor.dim(), "distribute_tensor")
    if any(isinstance(p, Partial) for p in placements):
        whole = [Replicate() if isinstance(p, Partial) else p for p in placements]
        made = distribute_tensor(tensor.detach(), mesh, whole, src_data_rank=src_data_rank)
        return made.redistribute(placements=placements).detach().requires_grad_(tensor.requires_grad)
    spec, local = spec_of(mesh, placements, tensor.shape), tensor.detach()
    if spec.outside:
        return make(local.new_empty(spec.local_shape()), spec, tensor.requires_grad)
    if src_data_rank is not None and not local.is_meta and mesh.size() > 1:
        local = local.clone()
        for dim in range(mesh.ndim):
            if mesh.size(dim) > 1:
                _broadcast(local, mesh.get_group(dim), src_data_rank)
    part = spec.part_of(local)
    return make(part.clone() if part is not local or part._base is not None else part, spec, tensor.requires_grad)


def distribute_module(module, device_mesh=None, partition_fn=None, input_fn=None, output_fn=None):
    """Makes DTensors of a module's parameters and buffers. `partition_fn(name, module, mesh)` may do so for each module
    of the tree; what it leaves becomes Replicate(). `input_fn(module, inputs, mesh)` and `output_fn(module, outputs,
    mesh)` run before and after forward. Returns the module. Raises RuntimeError for a module that it was called with
    before."""
    mesh = checked_mesh(device_mesh, "distribute_module")
    if getattr(module, "_distribute_module_applied", False):
        raise RuntimeError("distribute_module: the module is distributed already (expected one call for each module)")
    module._distribute_module_applied = True
    for name, below in module.named_modules():
        if partition_fn is not None:
            partition_fn(name, below, mesh)
        for register in (below._parameters, below._buffers):
            for key, tensor in register.items():
                if tensor is not None and not isinstance(tensor, DTensor):
                    spread = distribute_tensor(tensor.detach(), mesh, None)
                    register[key] = (
                        type(tensor)(spread, tensor.requires_grad) if register is below._parameters else spread
                    )
    if input_fn is not None:
        module.register_forward_pre_hook(lambda module, inputs: input_fn(module, inputs, mesh))
    if output_fn is not None:
        module.register_forward_hook(lambda module, inputs, outputs: output_fn(module, outputs, mesh))
    return module


def _created(op, size, mesh, placements, dtype, requires_grad, draw):
    shape = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    mesh = checked_mesh(mesh, op)
    placements = checked_placements(placements, mesh, len(shape), op)
    spec = spec_of(mesh, placements, shape)
    local = _C.empty(spec.local_shape(), dtype=dtype, device=mesh.device_type)
    made = make(local, spec)
    if spec.combined:  # Partial: the same values in each part would not be those of the whole
        draw(whole := _C.empty(shape, dtype=dtype, device=mesh.device_type))
        made.copy_(whole)
    else:
        draw(made)
    return made.requires_grad_(requires_grad)


def _creation(op, draw, text):
    def function(*size, dtype=None, layout=None, requires_grad=False, device_mesh=None, placements=None):
        return _created(op, size, device_mesh, placements, dtype, requires_grad, draw)

    function.__name__ = function.__qualname__ = op
    function.__doc__ = f"A DTensor of these sizes on a mesh: {text}"
    return function


zeros = _creation("zeros", lambda t: t.zero_(), "zeros.")
ones = _creation("ones", lambda t: t.fill_(1), "ones.")
empty = _creation("empty", lambda t: t, "uninitialised.")
rand = _creation("rand", lambda t: t.uniform_(), "uniform in [0, 1), the values that the whole would have.")
randn = _creation("randn", lambda t: t.normal_(), "normal, the values that the whole would have.")


def full(size, fill_value, *, dtype=None, layout=None, requires_grad=False, device_mesh=None, placements=None):
    """A DTensor of these sizes on a mesh: every element is fill_value."""
    return _created("full", (size,), device_mesh, placements, dtype, requires_grad, lambda t: t.fill_(fill_value))
