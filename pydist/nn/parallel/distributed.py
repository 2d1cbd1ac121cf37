"""DistributedDataParallel: replicas of a module whose gradients are averaged over the ranks during backward."""

from contextlib import contextmanager

from pydist import _C
from pydist._grad_mode import no_grad
from pydist.distributed.collectives import broadcast
from pydist.distributed.process_group import current
from pydist.nn.modules.module import Module
from pydist.nn.parallel._agreement import check_agreement

_MIB = 1 << 20


class DistributedDataParallel(Module):
    """Wraps `module`: backward leaves in each parameter's .grad the mean over all ranks.

    At construction the ranks compare names, shapes and dtypes of all parameters and buffers (RuntimeError on every rank
    naming the first that differs) and take rank 0's values (init_sync). Gradients are views of buckets of
    `bucket_cap_mb` MiB (25; then the first has 1 MiB), each reduced as soon as it is full. Parameters that a forward
    pass does not use are handled at no cost; `find_unused_parameters`, `gradient_as_bucket_view` and `static_graph` are
    accepted and mean nothing here. With `broadcast_buffers` every forward pass starts from rank 0's buffers.

    In a world of one it only calls the module.

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
        broadcast_buffers=True,
        init_sync=True,
        process_group=None,
        bucket_cap_mb=None,
        find_unused_parameters=False,
        check_reduction=False,
        gradient_as_bucket_view=False,
        static_graph=False,
    ):
        super().__init__()
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not named:
            raise RuntimeError(
                "DistributedDataParallel is not needed when a module doesn't have any parameters that require a "
                "gradient."
            )
        self.module = module
        self.process_group = current(process_group)
        self.broadcast_buffers = broadcast_buffers
        self.training = module.training
        self._check_same_module()
        if init_sync:
            self._take_from_first([*module.parameters(), *module.buffers()])
        cap = 25 * _MIB if bucket_cap_mb is None else int(bucket_cap_mb * _MIB)
        first = _MIB if bucket_cap_mb is None else cap
        names, params = zip(*named)
        self.reducer = _C.Reducer(list(params), list(names), self.process_group, cap, first)

    def _check_same_module(self):
        lines = [f"{name} {p.dtype} {list(p.shape)}" for name, p in self.module.named_parameters()]
        check_agreement("DistributedDataParallel: parameter", lines, self.process_group)
        lines = [f"{name} {b.dtype} {list(b.shape)}" for name, b in self.module.named_buffers()]
        check_agreement("DistributedDataParallel: buffer", lines, self.process_group)

    def _take_from_first(self, tensors):
        with no_grad():
            for tensor in tensors:
                broadcast(tensor.detach(), 0, self.process_group)

    def forward(self, *args, **kwargs):
        if self.reducer.sync:
            if self.broadcast_buffers:
                self._take_from_first(self.module.buffers())
            if _C.is_grad_enabled():
                self.reducer.prepare()
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self):
        """Inside, gradients only add up on their own rank; the first backward after it reduces the sum. Forward and
        backward have to stand inside."""
        before, self.reducer.sync = self.reducer.sync, False
        try:
            yield
        finally:
            self.reducer.sync = before
