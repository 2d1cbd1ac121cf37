"""SummaryWriter: scalars, text, histograms and images of a run."""

import io
import os
import socket
import time

import numpy as np

from pydist import _C
from pydist.utils.tensorboard import records


def _array(values):
    return values.detach().cpu().numpy() if isinstance(values, _C.Tensor) else np.asarray(values)


def _number(value):
    value = _array(value)
    if value.size != 1:
        raise ValueError(f"add_scalar: the value has {value.size} elements (expected 1)")
    return float(value.reshape(()))


class FileWriter:
    """One event file in `log_dir`. Records reach the disk at flush(), at close() and every `flush_secs` seconds."""

    def __init__(self, log_dir, max_queue=10, flush_secs=120, filename_suffix=""):
        os.makedirs(log_dir, exist_ok=True)
        self.log_dir, self.every = log_dir, flush_secs
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
        self._file = None
        for number in range(1 << 20):  # another writer of the same second and process gets another file
            try:
                self._file = open(os.path.join(log_dir, f"{name}.{number}{filename_suffix}"), "xb")
                break
            except FileExistsError:
                continue
        self._flushed = time.time()
        self._write(records.event(time.time(), 0, version="brain.Event:2"))

    def get_logdir(self):
        """The folder of the event file."""
        return self.log_dir

    def _write(self, message):
        self._file.write(records.record(message))

    def add_summary(self, summary, global_step=None, walltime=None):
        """Writes an encoded Summary as an event."""
        now = time.time()
        self._write(records.event(now if walltime is None else walltime, global_step or 0, summary=summary))
        if now - self._flushed > self.every:
            self.flush()

    def flush(self):
        """Writes all events to the disk."""
        self._file.flush()
        self._flushed = time.time()

    def close(self):
        """Writes all events to the disk and closes the file."""
        self._file.close()


class SummaryWriter:
    """Writes the results of a run into `log_dir` (default: runs/<date>_<host><comment>), for TensorBoard.

    Every method takes a tag, a value, `global_step` and `walltime`. Values may be tensors, arrays or numbers. Raises
    ValueError for values in the wrong form. The end of a with statement calls close().

    >>> import tempfile
    >>> from pydist.utils.tensorboard import SummaryWriter
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with SummaryWriter(folder) as writer:
    ...         for step in range(3):
    ...             writer.add_scalar("loss", 1 / (step + 1), step)
    ...     len(list(__import__("os").scandir(folder)))
    1
    """

    def __init__(self, log_dir=None, comment="", purge_step=None, max_queue=10, flush_secs=120, filename_suffix=""):
        if not log_dir:
            log_dir = os.path.join("runs", time.strftime("%b%d_%H-%M-%S_") + socket.gethostname() + comment)
        self.log_dir = os.fspath(log_dir)
        self._options = (max_queue, flush_secs, filename_suffix)
        self.all_writers = {}
        self._writer_of(self.log_dir)  # a folder that cannot be written raises its error here

    @property
    def file_writer(self):
        """The run's own event file. Records that are added after close() go into a new file."""
        return self._writer_of(self.log_dir)

    def get_logdir(self):
        """The folder of the run."""
        return self.log_dir

    def _writer_of(self, folder):
        if folder not in self.all_writers:
            self.all_writers[folder] = FileWriter(folder, *self._options)
        return self.all_writers[folder]

    def add_scalar(self, tag, scalar_value, global_step=None, walltime=None, new_style=False, double_precision=False):
        """Writes a number."""
        self.file_writer.add_summary(records.scalar(tag, _number(scalar_value)), global_step, walltime)

    def add_scalars(self, main_tag, tag_scalar_dict, global_step=None, walltime=None):
        """Writes several numbers for one diagram, each in its own run, log_dir/main_tag_tag."""
        for tag, number in tag_scalar_dict.items():
            folder = os.path.join(self.log_dir, f"{main_tag.replace('/', '_')}_{tag}")
            self._writer_of(folder).add_summary(records.scalar(main_tag, _number(number)), global_step, walltime)

    def add_text(self, tag, text_string, global_step=None, walltime=None):
        """Writes a text in Markdown."""
        summary = records.text(f"{tag}/text_summary", [text_string])
        self.file_writer.add_summary(summary, global_step, walltime)

    def add_histogram(self, tag, values, global_step=None, bins="tensorflow", walltime=None, max_bins=None):
        """Writes the distribution of values. bins: "tensorflow" (1e-12 to 1e20 and their negatives, 10% apart), a
        number, edges, or a rule of numpy.histogram."""
        flat = _array(values).astype(np.float64).reshape(-1)
        if flat.size == 0:
            raise ValueError("add_histogram: values is empty (expected at least one value)")
        if not np.isfinite(flat).all():
            raise ValueError("add_histogram: a value is inf or NaN (expected finite values)")
        if isinstance(bins, str) and bins == "tensorflow":
            bins = _edges()
        counts, edges = np.histogram(flat, bins=bins)
        if max_bins is not None and len(counts) > max_bins:
            counts, edges = np.histogram(flat, bins=max_bins)
        if counts.sum() == 0:
            raise ValueError("add_histogram: all values are outside the bins (expected at least one inside)")
        used = np.flatnonzero(counts)
        first, last = max(used[0] - 1, -1), used[-1]  # an empty bucket first: its limit is where the next one begins
        limits = edges[first + 1 : last + 2].tolist()
        heights = [0.0, *counts[first + 1 : last + 1].tolist()]
        moments = (float(flat.min()), float(flat.max()), flat.size, float(flat.sum()), float((flat * flat).sum()))
        self.file_writer.add_summary(records.histogram(tag, *moments, limits, heights), global_step, walltime)

    def add_image(self, tag, img_tensor, global_step=None, walltime=None, dataformats="CHW"):
        """Writes an image [3 or 1, H, W] of numbers in [0, 1] or of bytes. dataformats names another order. Needs
        Pillow."""
        picture = _array(img_tensor)
        if len(dataformats) != picture.ndim or set(dataformats) - set("CHW"):
            raise ValueError(
                f"add_image: dataformats is {dataformats!r}, but the image has {picture.ndim} dims (expected one "
                "letter per dim)"
            )
        if picture.ndim == 2:
            picture, dataformats = picture[..., None], f"{dataformats}C"
        picture = picture.transpose([dataformats.index(letter) for letter in "HWC"])
        if picture.dtype != np.uint8:
            picture = (picture * 255.0).clip(0, 255).astype(np.uint8)
        if picture.shape[2] == 1:
            picture = picture.repeat(3, axis=2)
        from pydist.vision._pillow import pillow

        out = io.BytesIO()
        pillow().fromarray(np.ascontiguousarray(picture)).save(out, "PNG")
        self.file_writer.add_summary(records.image(tag, *picture.shape, out.getvalue()), global_step, walltime)

    def add_images(self, tag, img_tensor, global_step=None, walltime=None, dataformats="NCHW"):
        """Writes images [N, C, H, W] side by side."""
        batch = _array(img_tensor).transpose([dataformats.index(letter) for letter in "NCHW"])
        self.add_image(tag, np.concatenate(list(batch), axis=2), global_step, walltime)

    def add_figure(self, tag, figure, global_step=None, close=True, walltime=None):
        """Writes a figure of matplotlib as an image."""
        figure.canvas.draw()
        self.add_image(tag, np.asarray(figure.canvas.buffer_rgba())[..., :3], global_step, walltime, "HWC")
        if close:
            from matplotlib import pyplot

            pyplot.close(figure)

    def add_hparams(self, hparam_dict, metric_dict, hparam_domain_discrete=None, run_name=None, global_step=None):
        """Writes the options of a run and its results, as a text and as scalars in their own run."""
        folder = os.path.join(self.log_dir, run_name or str(time.time()))
        table = "\n".join(f"| {name} | {value} |" for name, value in hparam_dict.items())
        writer = self._writer_of(folder)
        writer.add_summary(
            records.text("hparams/text_summary", [f"| option | value |\n|---|---|\n{table}"]), global_step
        )
        for name, value in metric_dict.items():
            writer.add_summary(records.scalar(name, _number(value)), global_step)

    def add_graph(self, model, input_to_model=None, verbose=False, use_strict_trace=True):
        """Writes the model's modules as text: pydist programs have no graph."""
        self.add_text("model", f"```\n{model!r}\n```")

    def flush(self):
        """Writes all records to the disk."""
        for writer in self.all_writers.values():
            writer.flush()

    def close(self):
        """Writes all records to the disk and closes the files."""
        for writer in self.all_writers.values():
            writer.close()
        self.all_writers.clear()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


def _edges():
    powers = 1e-12 * 1.1 ** np.arange(int(np.ceil(np.log(1e32) / np.log(1.1))))
    return np.concatenate((-powers[::-1], [0.0], powers))
