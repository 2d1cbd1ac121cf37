"""Pipeline parallelism: a model in stages, microbatches that go through them, and schedules that say who does what when.

PyTorch's names (torch.distributed.pipelining). Ours besides: `simulate`, `tables`, and `timeline` of a schedule.
"""

from pydist.distributed.pipelining import tables
from pydist.distributed.pipelining.simulation import Simulation, simulate

__all__ = ["Simulation", "simulate", "tables"]
