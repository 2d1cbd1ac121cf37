"""Event files for TensorBoard, written by hand: no other package is needed."""

from pydist.utils.tensorboard.writer import FileWriter, SummaryWriter

__all__ = ["FileWriter", "SummaryWriter"]
