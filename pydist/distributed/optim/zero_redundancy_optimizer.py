"""An optimizer whose state is spread over the ranks."""

__all__ = ["ZeroRedundancyOptimizer"]


def _none(name, why, instead):
    raise NotImplementedError(f"distributed.optim.{name}: {why} (expected {instead})")


class ZeroRedundancyOptimizer:
    """An optimizer whose state is spread over the ranks. pydist never makes one."""

    def __init__(self, params, optimizer_class, process_group=None, parameters_as_bucket_view=False, **options):
        _none(
            "ZeroRedundancyOptimizer", "pydist does not spread an optimizer's state yet", "the optimizer on each rank"
        )
