"""SummaryWriter: scalars, text, histograms and images of a run."""

import io
import os
import socket
import time

import numpy as np

from pydist import _C
from pydist.utils.tensorboard import records


def _array(values):
    return values.detach().numpy() if isinstance(values, _C.Tensor) else np.asarray(values)


def _number(value):
    value = _array(value)
    if value.size != 1:
        raise ValueError(f"add_scalar: {value.size} elements (expected 1)")
    return float(value.reshape(()))


class FileWriter:
    """One event file in `log_dir`; records reach the disk at flush(), at close() and every `flush_secs` seconds."""

    def __init__(self, log_dir, max_queue=10, flush_secs=120, filename_suffix=""):
        os.makedirs(log_dir, exist_ok=True)
        self.log_dir, self.every = log_dir, flush_secs
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
        self._file = None
        for number in range(1 << 20):  # another writer of this second and process has a file of its own
            try:
                self._file = open(os.path.join(log_dir, f"{name}.{number}{filename_suffix}"), "xb")
                break
            except FileExistsError:
                continue
        self._flushed = time.time()
        self._write(records.event(time.time(), 0, version="brain.Event:2"))

    def get_logdir(self):
        return self.log_dir

    def _write(self, message):
        self._file.write(records.record(message))

    def add_summary(self, summary, global_step=None, walltime=None):
        now = time.time()
        self._write(records.event(now if walltime is None else walltime, global_step or 0, summary=summary))
        if now - self._flushed > self.every:
            self.flush()

    def flush(self):
        self._file.flush()
        self._flushed = time.time()

    def close(self):
        self._file.close()


class SummaryWriter:
    """Writes what a run reports into `log_dir` (default: runs/<date>_<host><comment>), for TensorBoard to show.

    Every method takes a tag, a value, `global_step` and `walltime`. Values may be tensors, arrays or numbers. Raises
    ValueError for values that have not the form asked for; close() is called at the end of a with statement.

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
        self._writer_of(self.log_dir)  # what cannot be written says so here

    @property
    def file_writer(self):
        """The run's own event file. What is added after close() goes into a new one."""
        return self._writer_of(self.log_dir)

    def get_logdir(self):
        return self.log_dir

    def _writer_of(self, folder):
        if folder not in self.all_writers:
            self.all_writers[folder] = FileWriter(folder, *self._options)
        return self.all_writers[folder]

    def add_scalar(self, tag, scalar_value, global_step=None, walltime=None, new_style=False, double_precision=False):
        """A number."""
        self.file_writer.add_summary(records.scalar(tag, _number(scalar_value)), global_step, walltime)

    def add_scalars(self, main_tag, tag_scalar_dict, global_step=None, walltime=None):
        """Several numbers in one diagram: each in a run of its own, log_dir/main_tag_tag."""
        for tag, number in tag_scalar_dict.items():
            folder = os.path.join(self.log_dir, f"{main_tag.replace('/', '_')}_{tag}")
            self._writer_of(folder).add_summary(records.scalar(main_tag, _number(number)), global_step, walltime)

    def add_text(self, tag, text_string, global_step=None, walltime=None):
        """A text, in Markdown."""
        summary = records.text(f"{tag}/text_summary", [text_string])
        self.file_writer.add_summary(summary, global_step, walltime)

    def add_histogram(self, tag, values, global_step=None, bins="tensorflow", walltime=None, max_bins=None):
        """How values are distributed. bins: "tensorflow" (1e-12 to 1e20 and their negatives, 10% apart), a number, edges,
        or a rule of numpy.histogram."""
        flat = _array(values).astype(np.float64).reshape(-1)
        if flat.size == 0:
            raise ValueError("add_histogram: no values")
        if not np.isfinite(flat).all():
            raise ValueError("add_histogram: values that are not finite")
        if isinstance(bins, str) and bins == "tensorflow":
            bins = _edges()
        counts, edges = np.histogram(flat, bins=bins)
        if max_bins is not None and len(counts) > max_bins:
            counts, edges = np.histogram(flat, bins=max_bins)
        if counts.sum() == 0:
            raise ValueError("add_histogram: no value lies within the bins")
        used = np.flatnonzero(counts)
        first, last = max(used[0] - 1, -1), used[-1]  # an empty bucket first: the next one begins at its limit
        limits = edges[first + 1 : last + 2].tolist()
        heights = [0.0, *counts[first + 1 : last + 1].tolist()]
        moments = (float(flat.min()), float(flat.max()), flat.size, float(flat.sum()), float((flat * flat).sum()))
        self.file_writer.add_summary(records.histogram(tag, *moments, limits, heights), global_step, walltime)

    def add_image(self, tag, img_tensor, global_step=None, walltime=None, dataformats="CHW"):
        """An image [3 or 1, H, W] of numbers in [0, 1] or bytes; dataformats names another order. Needs Pillow."""
        picture = _array(img_tensor)
        if len(dataformats) != picture.ndim or set(dataformats) - set("CHW"):
            raise ValueError(f"add_image: {dataformats!r} for {picture.ndim} dims")
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
        """Images [N, C, H, W] side by side."""
        batch = _array(img_tensor).transpose([dataformats.index(letter) for letter in "NCHW"])
        self.add_image(tag, np.concatenate(list(batch), axis=2), global_step, walltime)

    def add_figure(self, tag, figure, global_step=None, close=True, walltime=None):
        """A figure of matplotlib's, drawn."""
        figure.canvas.draw()
        self.add_image(tag, np.asarray(figure.canvas.buffer_rgba())[..., :3], global_step, walltime, "HWC")
        if close:
            from matplotlib import pyplot

            pyplot.close(figure)

    def add_hparams(self, hparam_dict, metric_dict, hparam_domain_discrete=None, run_name=None, global_step=None):
        """The options of a run and what came of them, as a text and scalars in a run of their own."""
        folder = os.path.join(self.log_dir, run_name or str(time.time()))
        table = "\n".join(f"| {name} | {value} |" for name, value in hparam_dict.items())
        writer = self._writer_of(folder)
        writer.add_summary(
            records.text("hparams/text_summary", [f"| option | value |\n|---|---|\n{table}"]), global_step
        )
        for name, value in metric_dict.items():
            writer.add_summary(records.scalar(name, _number(value)), global_step)

    def add_graph(self, model, input_to_model=None, verbose=False, use_strict_trace=True):
        """The model's modules as text: there is no graph of a program that runs as it is."""
        self.add_text("model", f"```\n{model!r}\n```")

    def flush(self):
        for writer in self.all_writers.values():
            writer.flush()

    def close(self):
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
