"""CUDA graphs: work that is written down once and then launched as a whole, without the host's part of each op."""

from pydist import _C, cuda


class _Pool:
    """Memory that graphs write to whenever they are launched; nobody else's until the last of them is gone."""

    def __init__(self, index):
        self.index, self.number = index, 0  # 0: the first capture makes it

    def __del__(self):
        if self.number:
            _C.cuda_pool_free(self.index, self.number)


def graph_pool_handle():
    """A pool for `graph(g, pool=handle)`, for graphs that are launched in the order in which they were captured, one after
    the other: their temporary tensors share memory then. RuntimeError without a device."""
    return _Pool(cuda._index("graph_pool_handle"))


class CUDAGraph:
    """What `graph` writes down; `replay()` does it again.

    Everything in a replay is as it was in the capture but the contents of tensors: addresses, shapes, and numbers that the host
    gives to a launch, a learning rate or the keys of random numbers. So write new inputs into the tensors that were used
    (`copy_`), run the optimizer's step outside (it is one launch), and dropout repeats its mask. What reads a result on
    the host (`item()`, cross_entropy's labels) cannot be captured and raises RuntimeError.

    Collectives over several ranks can be captured, by all of them in the same order (NCCL's; nobody may destroy the group
    while a graph holds some); then all launch the same graphs in the same order.

    Run the same work a few times before, in a stream of its own: libraries are opened and algorithms chosen then.

    >>> g = pydist.cuda.CUDAGraph()                   # doctest: +SKIP
    >>> with pydist.cuda.graph(g):                    # doctest: +SKIP
    ...     y = model(x)
    >>> x.copy_(batch); g.replay(); print(y)          # doctest: +SKIP
    """

    def __init__(self, keep_graph=False):
        self._graph = self._pool = None
        self._index = cuda._index("CUDAGraph")
        if not cuda._real():
            raise RuntimeError("CUDAGraph: pretended GPUs have no graphs (expected a CUDA device)")

    def capture_begin(self, pool=None, capture_error_mode="global"):
        """Work of the current stream, which must not be the default one, is written down from now on."""
        if self._graph is not None:
            raise RuntimeError("CUDAGraph.capture_begin: the graph has been captured already (expected reset() before)")
        self._index = cuda.current_device()
        self._pool = _Pool(self._index) if pool is None else pool
        self._pool.number = _C.cuda_capture_begin(self._index, self._pool.number)

    def capture_end(self):
        self._graph = _C.cuda_capture_end(self._index)

    def replay(self):
        """Launches it in the current stream."""
        if self._graph is None:
            raise RuntimeError("CUDAGraph.replay: nothing has been captured (expected `with pydist.cuda.graph(g)` before)")
        _C.cuda_graph_launch(self._graph, cuda.current_stream(self._index).cuda_stream)

    def pool(self):
        """Where its tensors lie, for `graph(other, pool=...)`."""
        return self._pool

    def reset(self):
        """Forgets what was captured. Tensors that it made must not be used any more."""
        if self._graph is not None:
            cuda.synchronize(self._index)
            _C.cuda_graph_free(self._graph)
        self._graph = self._pool = None

    def __del__(self):
        if getattr(self, "_graph", None) is not None:
            self.reset()


class graph:
    """`with graph(g):` captures the work inside in `g`, in a stream of its own (or `stream`)."""

    def __init__(self, cuda_graph, pool=None, stream=None, capture_error_mode="global"):
        self._graph, self._with = cuda_graph, pool
        self._stream = cuda.Stream() if stream is None else stream

    def __enter__(self):
        cuda.synchronize()
        self._stream.wait_stream(cuda.current_stream())
        self._stream.__enter__()
        try:
            self._graph.capture_begin(self._with)
        except BaseException:
            self._stream.__exit__()
            raise

    def __exit__(self, kind, *error):
        try:
            self._graph.capture_end()
        except RuntimeError:
            if kind is None:  # else what happened inside says more
                raise
        finally:
            self._stream.__exit__()
        cuda.current_stream().wait_stream(self._stream)
