"""Event files for TensorBoard, written without any other package."""

from pydist.utils.tensorboard.writer import FileWriter, SummaryWriter

__all__ = ["FileWriter", "SummaryWriter"]
