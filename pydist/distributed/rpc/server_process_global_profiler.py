"""A profiler of all that a worker does for others, entered by calls from outside."""

from collections import defaultdict

from pydist.autograd.profiler_legacy import profile
from pydist.profiler.events import EventList
from pydist.profiler.session import Recording

__all__ = ["_server_process_global_profile"]


class _server_process_global_profile(profile):
    """Records what all threads of this process do. Several may run at a time, one inside the other or not.

    `process_global_function_events`: a list of events for each thread that has done something.

    >>> import pydist
    >>> from pydist.distributed import rpc
    >>> rpc.init_rpc("server", rank=0, world_size=1)
    >>> with rpc._server_process_global_profile() as prof:
    ...     y = rpc.rpc_sync("server", pydist.add, (pydist.ones(2), 1))
    >>> any(e.name == "aten::add" for events in prof.process_global_function_events for e in events)
    True
    >>> rpc.shutdown()
    """

    def __init__(self, enabled=True, *, use_cuda=False, record_shapes=False, profile_memory=False, with_flops=False,
                 max_events=1_000_000):  # fmt: skip
        super().__init__(enabled, use_cuda=use_cuda)
        self._recording = Recording(record_shapes=record_shapes, profile_memory=profile_memory, with_flops=with_flops,
                                    max_events=max_events, alone=False, aten=True)  # fmt: skip

    @property
    def process_global_function_events(self):
        """The events of each thread, an EventList for each."""
        threads = defaultdict(EventList)
        for e in self.function_events or ():
            threads[e.thread].append(e)
        return list(threads.values())
