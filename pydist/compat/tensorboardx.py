"""The module that `import tensorboardX` returns if that package is not installed: its names for our writer."""

import json
import time

from pydist.utils import tensorboard
from pydist.utils.tensorboard import FileWriter

__all__ = ["FileWriter", "SummaryWriter"]


class _Nowhere:
    """Stands for an event file and writes nothing."""

    def add_summary(self, summary, global_step=None, walltime=None):
        pass

    def flush(self):
        pass

    close = flush


class SummaryWriter(tensorboard.SummaryWriter):
    """Our writer with the arguments in tensorboardX's order. `write_to_disk=False` writes no file."""

    def __init__(
        self,
        logdir=None,
        comment="",
        purge_step=None,
        max_queue=10,
        flush_secs=120,
        filename_suffix="",
        write_to_disk=True,
        log_dir=None,
        **kwargs,
    ):
        self._write_to_disk, self.scalar_dict = write_to_disk, {}
        super().__init__(logdir or log_dir, comment, purge_step, max_queue, flush_secs, filename_suffix)
        self.logdir = self.log_dir

    def _writer_of(self, folder):
        return super()._writer_of(folder) if self._write_to_disk else _Nowhere()

    def add_scalars(self, main_tag, tag_scalar_dict, global_step=None, walltime=None):
        super().add_scalars(main_tag, tag_scalar_dict, global_step, walltime)
        for tag, number in tag_scalar_dict.items():
            rows = self.scalar_dict.setdefault(f"{self.log_dir}/{main_tag}/{tag}", [])
            rows.append([time.time() if walltime is None else walltime, global_step, float(number)])

    def export_scalars_to_json(self, path):
        """Writes everything that add_scalars got, as {folder/main tag/tag: [[time, step, number], ...]}."""
        with open(path, "w", encoding="utf-8") as file:
            json.dump(self.scalar_dict, file)
        self.scalar_dict = {}

    def add_hparams(self, hparam_dict, metric_dict, name=None, global_step=None):
        super().add_hparams(hparam_dict, metric_dict, run_name=name, global_step=global_step)
