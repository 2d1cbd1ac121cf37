"""What a communication hook receives and returns."""

from pydist.futures import Future


class BuiltinCommHookType:
    """The hooks that DistributedDataParallel._register_builtin_comm_hook takes."""

    ALLREDUCE = "allreduce"
    FP16_COMPRESS = "fp16_compress"


class GradBucket:
    """The gradients of some parameters in one flat tensor, one after the other. Alignment may leave gaps, which are
    zero."""

    def __init__(self, index, buffer, gradients, parameters, is_last):
        self._index, self._buffer, self._gradients = index, buffer, gradients
        self._parameters, self._is_last = parameters, is_last

    def index(self):
        """The bucket's number. Buckets are numbered from 0 in the order in which they are reduced."""
        return self._index

    def buffer(self):
        """The flat tensor with this rank's gradients, neither summed nor divided."""
        return self._buffer

    def gradients(self):
        """Views of the buffer, one for each parameter."""
        return list(self._gradients)

    def parameters(self):
        """The parameters, in the order of gradients()."""
        return list(self._parameters)

    def is_last(self):
        """Whether this is the last bucket of the backward."""
        return self._is_last

    def set_buffer(self, tensor):
        """Replaces buffer() by `tensor`, of the same shape. For hooks that wrap another hook."""
        if tensor.shape != self._buffer.shape:
            raise ValueError(
                f"set_buffer: got a tensor of shape {list(tensor.shape)} (expected {list(self._buffer.shape)})"
            )
        self._buffer = tensor


class PythonHook:
    """What the reducer calls for a Python hook: hook(state, GradBucket) returns a Future, whose value goes into the
    bucket."""

    def __init__(self, reducer, params, state, hook):
        self.state, self.hook = state, hook
        self.buckets = []
        for b, rows in enumerate(reducer.bucket_layout()):
            self.buckets.append((*reducer.bucket(b), [params[row[0]] for row in rows]))

    def start(self, b):
        """Calls the hook for bucket b. Returns its Future."""
        buffer, gradients, params = self.buckets[b]
        bucket = GradBucket(b, buffer, gradients, params, b == len(self.buckets) - 1)
        future = self.hook(self.state, bucket)
        if not isinstance(future, Future):
            raise TypeError(f"comm hook: the hook returned {type(future).__name__} (expected a Future of a tensor)")
        return future

    def finish(self, b, future):
        """Waits for the Future and copies its value into bucket b."""
        result = future.wait()
        if isinstance(result, (list, tuple)) and len(result) == 1:
            result = result[0]
        buffer = self.buckets[b][0]
        if getattr(result, "numel", None) is None or result.numel() != buffer.numel():
            what = type(result).__name__ if getattr(result, "shape", None) is None else list(result.shape)
            raise ValueError(
                f"comm hook: the future's value is {what} (expected a tensor of {buffer.numel()} elements)"
            )
        if result.data_ptr() != buffer.data_ptr() or result.dtype != buffer.dtype:
            buffer.copy_(result.reshape(-1))
