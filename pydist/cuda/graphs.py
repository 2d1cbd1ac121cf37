"""CUDA graphs: work that is captured once and then launched as a whole, without the host's part of each op."""

import gc

from pydist import _C, cuda
from pydist._grad_mode import enable_grad
from pydist.amp import autocast_mode
from pydist.autograd.function import Function, once_differentiable
from pydist.func import _flat
from pydist.utils._pytree import tree_map


class _Pool:
    """Memory that graphs write to whenever they are launched. Nothing else may use it until the last of them is
    deleted."""

    def __init__(self, index):
        self.index, self.number = index, 0  # 0: the first capture makes the pool
        self.streams = set()  # where its graphs have been launched

    def __del__(self):
        if self.number:
            _C.cuda_pool_free(self.index, self.number, tuple(self.streams))


def graph_pool_handle():
    """A pool for `graph(g, pool=handle)`, for graphs that are launched one after the other, in the order in which they
    were captured. Their temporary tensors share memory. Raises RuntimeError without a device."""
    return _Pool(cuda._index("graph_pool_handle"))


class CUDAGraph:
    """The work that `graph` captures; `replay()` does it again.

    In a replay everything is the same as in the capture except the contents of tensors: addresses, shapes, and numbers
    that the host passes to a launch. So write new inputs into the captured tensors (`copy_`), and keep a learning rate
    that changes in a tensor on the GPU. A whole step can be captured after one normal step, including that of the
    optimizer (capturable=True if it counts its steps) and of the GradScaler. Random numbers (dropout) go on with each
    replay, as without a graph; those of your own Generator repeat. Reads by the host (`item()`) and tensors of the CPU
    cannot be captured and raise RuntimeError.

    Collectives over several ranks (NCCL) can be captured by all of them in the same order; then all ranks launch the
    same graphs in the same order. Do not destroy the group while a graph holds its collectives.

    Run the same work a few times before, in another stream: then libraries are opened and algorithms chosen.

    >>> g = pydist.cuda.CUDAGraph()                   # doctest: +SKIP
    >>> with pydist.cuda.graph(g):                    # doctest: +SKIP
    ...     y = model(x)
    >>> x.copy_(batch); g.replay(); print(y)          # doctest: +SKIP
    """

    def __init__(self, keep_graph=False):
        self._graph = self._pool = self._past = None
        self._index = cuda._index("CUDAGraph")
        if not cuda._real():
            raise RuntimeError("CUDAGraph: pretended GPUs have no graphs (expected a CUDA device)")

    def capture_begin(self, pool=None, capture_error_mode="global", check_input_liveness=False, *, _forward=None):
        """Starts to capture the work of the current stream, which must not be the default one."""
        if self._graph is not None:
            raise RuntimeError("CUDAGraph.capture_begin: the graph has been captured already (expected reset() first)")
        self._index = cuda.current_device()
        if not isinstance(pool, (_Pool, type(None))):
            raise TypeError(
                f"CUDAGraph: pool is {type(pool).__name__} (expected graph_pool_handle() or a graph's pool())"
            )
        if pool is not None and pool.index != self._index:
            raise RuntimeError(f"CUDAGraph: the pool is of cuda:{pool.index} (expected one of cuda:{self._index})")
        self._pool = _Pool(self._index) if pool is None else pool
        self._key, self._drawn = _C._rng_key(), 0
        # What replays add to the keys of random numbers. The backward of a graph draws the forward's numbers again.
        self._past = _forward._past if _forward else _C.zeros((2,), dtype=_C.int64, device=f"cuda:{self._index}")
        self._follows = _forward is not None
        self._pool.number = _C.cuda_capture_begin(self._index, self._pool.number, self._past)

    def capture_end(self):
        """Ends the capture."""
        now = _C._rng_key()
        self._drawn = now[1] - self._key[1]
        if self._drawn:  # no random number has been drawn yet
            _C.set_rng_state(self._key)
        self._graph = _C.cuda_capture_end(self._index)

    def replay(self):
        """Launches the graph in the current stream."""
        if self._graph is None:
            raise RuntimeError(
                "CUDAGraph.replay: nothing has been captured (expected `with pydist.cuda.graph(g)` first)"
            )
        if self._drawn and not self._follows:
            seed, call, stream = _C._rng_key()
            for place, more in enumerate((seed - self._key[0], call - self._key[1])):
                self._past[place].fill_((more + 2**63) % 2**64 - 2**63)
            _C.set_rng_state((seed, call + self._drawn, stream))
        stream = cuda.current_stream(self._index).cuda_stream
        _C.cuda_graph_launch(self._graph, self._index, stream)
        self._pool.streams.add(stream)

    def pool(self):
        """The pool of the graph's tensors, for `graph(other, pool=...)`."""
        return self._pool

    def reset(self):
        """Drops the captured work. Tensors that it made must not be used any more."""
        if self._graph is not None:  # no waiting: another graph may be in its capture now
            for stream in self._pool.streams:
                _C.cuda_record(self._past, stream)
            _C.cuda_graph_free(self._graph)
        self._graph = self._pool = self._past = None

    def __del__(self):
        if getattr(self, "_graph", None) is not None:
            self.reset()


class graph:
    """`with graph(g):` captures the work inside the block into `g`, in a new stream (or `stream`). If the block raises,
    nothing has been captured."""

    def __init__(
        self, cuda_graph, pool=None, stream=None, capture_error_mode="global", enable_annotations=False,
        check_input_liveness=False, *, _forward=None,
    ):  # fmt: skip
        self._graph, self._with, self._forward = cuda_graph, pool, _forward
        self._stream = cuda.Stream() if stream is None else stream

    def __enter__(self):
        if self._stream.device_index != cuda.current_device():
            raise ValueError(
                f"graph: the stream is of {self._stream.device} (expected one of the current device, cuda:{cuda.current_device()})"
            )
        gc.collect()  # not in the middle of the capture
        cuda.synchronize()
        self._stream.wait_stream(cuda.current_stream())
        self._stream.__enter__()
        try:
            self._graph.capture_begin(self._with, _forward=self._forward)
        except BaseException:
            self._stream.__exit__()
            raise

    def __exit__(self, kind, *error):
        try:
            self._graph.capture_end()
        except RuntimeError:
            if kind is None:  # otherwise the error from inside the block says more
                raise
        finally:
            self._stream.__exit__()
        if kind is not None:
            self._graph.reset()
        cuda.current_stream().wait_stream(self._stream)


def make_graphed_callables(callables, sample_args, num_warmup_iters=3, allow_unused_input=False, pool=None):
    """Callables (functions or Modules; one, or a tuple) whose forward and backward are each launched as one graph.

    sample_args: for each callable a tuple of tensors like those of its later calls (shapes, dtypes, requires_grad); a
    single tuple for one callable. For a function the result is a new function. A Module is changed in place, and uses
    its graphs while its training mode is that of the capture. Autograd works through them. Call them in the order of
    the tuple, each backward before the next forward: graphs share their memory, and the next call overwrites results.
    allow_unused_input: inputs and parameters that the result does not depend on get no gradient; otherwise they raise
    RuntimeError.

    Raises RuntimeError for Modules with hooks or with buffers that require gradients, and while autocast keeps casts
    (use `cache_enabled=False`); TypeError for arguments that are not tensors.

    >>> model = pydist.cuda.make_graphed_callables(model, (x,))   # doctest: +SKIP
    >>> loss_of(model(batch), y).backward()                       # doctest: +SKIP
    """
    if autocast_mode.is_autocast_enabled("cuda") and autocast_mode.is_autocast_cache_enabled():
        raise RuntimeError("make_graphed_callables: autocast keeps casts between calls (expected cache_enabled=False)")
    single = not isinstance(callables, tuple)
    if single:
        callables, sample_args = (callables,), (sample_args,)
    if len(callables) != len(sample_args):
        raise ValueError(
            f"make_graphed_callables: got {len(callables)} callables and {len(sample_args)} sample_args (expected "
            "one per callable)"
        )
    parts = [_Part(f, args, allow_unused_input) for f, args in zip(callables, sample_args)]
    cuda.synchronize()
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with side:
        for part in parts:
            for _ in range(num_warmup_iters):
                part.backward(part.forward(), [_C.zeros_like])
    cuda.current_stream().wait_stream(side)
    pool = graph_pool_handle() if pool is None else pool
    for part in parts:
        part.capture_forward(pool)
    for part in reversed(parts):
        part.capture_backward(pool)
    made = tuple(part.callable() for part in parts)
    return made[0] if single else made


class _Part:
    """One callable: its graphs, and the tensors that they read and write."""

    def __init__(self, f, args, allow_unused):
        self.f, self.allow_unused = f, allow_unused
        self.is_module = hasattr(f, "named_parameters")
        if self.is_module:
            hooks = (f._backward_hooks, f._forward_hooks, f._forward_pre_hooks)
            if any(map(len, hooks)):
                raise RuntimeError(
                    "make_graphed_callables: the Module has hooks (expected none; register them afterwards)"
                )
            if any(b.requires_grad for b in f.buffers()):
                raise RuntimeError(
                    "make_graphed_callables: a buffer requires gradients (expected only parameters that do)"
                )
        self.args = args
        self.inputs = _flat(args)[0]
        for x in self.inputs:
            if not isinstance(x, _C.Tensor):
                raise TypeError(f"make_graphed_callables: sample_args hold {type(x).__name__} (expected only tensors)")
        self.own = len(self.inputs)
        self.inputs += f.parameters() if self.is_module else ()
        self.wanted = [x for x in self.inputs if x.requires_grad]
        self.graphs = CUDAGraph(), CUDAGraph()

    def forward(self):
        with enable_grad():
            self.result = self.f(*self.args)
        return [y for y in _flat(self.result)[0] if isinstance(y, _C.Tensor)]

    def backward(self, outputs, grads):
        """The gradients of all tensors that require one. `grads`: the gradients of outputs, or a function that makes
        one like an output."""
        from pydist import autograd

        ends = [y for y in outputs if y.requires_grad]
        if not ends or not self.wanted:
            return []
        grads = [grads[0](y) for y in ends] if callable(grads[0]) else grads
        return autograd.grad(ends, self.wanted, grads, allow_unused=self.allow_unused)

    def capture_forward(self, pool):
        with graph(self.graphs[0], pool=pool):
            self.outputs = self.forward()

    def capture_backward(self, pool):
        self.grad_outputs = [_C.zeros_like(y) for y in self.outputs if y.requires_grad]
        self.grads = []
        if self.grad_outputs and self.wanted:
            with graph(self.graphs[1], pool=pool, _forward=self.graphs[0]):
                self.grads = self.backward(self.outputs, self.grad_outputs)
        self.outputs = [y.detach() for y in self.outputs]
        self.result = tree_map(lambda y: y.detach() if isinstance(y, _C.Tensor) else y, self.result)

    def callable(self):
        part = self
        places = iter(part.grads)
        grads = [next(places) if x.requires_grad and part.grads else None for x in part.inputs]
        ending = [i for i, y in enumerate(part.outputs) if y.is_floating_point() or y.is_complex()][
            : len(part.grad_outputs)
        ]

        class Graphed(Function):
            @staticmethod
            def forward(ctx, *inputs):
                for kept, given in zip(part.inputs[: part.own], inputs):
                    if kept.data_ptr() != given.data_ptr():
                        kept.copy_(given)
                part.graphs[0].replay()
                return tuple(y.detach() for y in part.outputs)

            @staticmethod
            @once_differentiable
            def backward(ctx, *grad_outputs):
                for kept, i in zip(part.grad_outputs, ending):
                    if grad_outputs[i] is None:
                        kept.zero_()
                    elif kept.data_ptr() != grad_outputs[i].data_ptr():
                        kept.copy_(grad_outputs[i])
                part.graphs[1].replay()
                return tuple(None if g is None else g.detach() for g in grads)

        def graphed(*args):
            given = _flat(args)[0]
            if len(given) != part.own:
                raise TypeError(f"a graphed callable got {len(given)} tensors (expected {part.own}, as in sample_args)")
            outputs = iter(Graphed.apply(*given, *part.inputs[part.own :]))
            return tree_map(lambda y: next(outputs) if isinstance(y, _C.Tensor) else y, part.result)

        if not part.is_module:
            return graphed
        module, training, plain = part.f, part.f.training, part.f.forward
        module.forward = lambda *args: (graphed if module.training == training else plain)(*args)
        return module
