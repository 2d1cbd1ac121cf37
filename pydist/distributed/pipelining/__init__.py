"""Pipeline parallelism: a model in stages, microbatches that go through them, and schedules that say who does what when.

PyTorch's names (torch.distributed.pipelining). Ours besides: `simulate`, `tables`, `StageFailed`, and `timeline` of a
schedule.
"""

from pydist.distributed.pipelining import microbatch, tables
from pydist.distributed.pipelining._messages import StageFailed
from pydist.distributed.pipelining.schedules import (
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)
from pydist.distributed.pipelining.simulation import Simulation, simulate
from pydist.distributed.pipelining.split import Pipe, SplitPoint, pipe_split, pipeline
from pydist.distributed.pipelining.stage import PipelineStage, build_stage

__all__ = [
    "Pipe",
    "PipelineStage",
    "Schedule1F1B",
    "ScheduleDualPipeV",
    "ScheduleGPipe",
    "ScheduleInterleaved1F1B",
    "ScheduleInterleavedZeroBubble",
    "ScheduleLoopedBFS",
    "ScheduleZBVZeroBubble",
    "Simulation",
    "SplitPoint",
    "StageFailed",
    "build_stage",
    "microbatch",
    "pipe_split",
    "pipeline",
    "simulate",
    "tables",
]
