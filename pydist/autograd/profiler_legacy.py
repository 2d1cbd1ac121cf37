"""The profiler of one thread, as in PyTorch's `torch.autograd.profiler_legacy`: with PyTorch's names of ops, and with the
calls that the thread makes to other workers.

>>> import pydist
>>> from pydist.autograd import profiler_legacy
>>> with profiler_legacy.profile() as prof:
...     y = pydist.ones(3).exp() * 2
>>> [e.name for e in prof.function_events]
['aten::exp', 'aten::mul']
"""

import warnings

from pydist.autograd import profiler
from pydist.profiler.session import Recording
from pydist.profiler.trace import write

__all__ = ["profile"]


class profile(profiler.profile):
    """Records what this thread does inside the context. Several threads may be profiled at a time.

    Calls to other workers (pydist.distributed.rpc) are events such as "rpc_sync#aten::add(worker0 -> worker1)", and what
    the other worker does for them follows as "<the call>#remote_op: aten::add", with `is_remote` and `node_id`, the
    worker's id. Without such a profiler they cost nothing.
    """

    def __init__(self, enabled=True, *, use_cuda=False, record_shapes=False, with_flops=False, profile_memory=False,
                 with_stack=False, with_modules=False, max_events=1_000_000):  # fmt: skip
        if use_cuda or with_stack:
            warnings.warn(
                "profile: a profiler of one thread records neither GPUs nor stacks (see pydist.profiler.profile)",
                stacklevel=2,
            )
        self.enabled = enabled
        self._recording = Recording(record_shapes=record_shapes, profile_memory=profile_memory, with_flops=with_flops,
                                    max_events=max_events, calls=True, alone=False, this_thread=True, aten=True)  # fmt: skip

    def export_chrome_trace(self, path):
        """Writes a list of the events for chrome://tracing or Perfetto."""
        write(path, self._recording.take("export_chrome_trace"), self._recording.began, bare=True)
