"""TPUStrategy, which says that there are no TPUs."""

__all__ = ["TPUStrategy"]


class TPUStrategy:
    """Raises NotImplementedError: there is no TPU backend."""

    def __init__(self, *args, **kwargs):
        raise NotImplementedError("TPUStrategy: no TPU backend; MirroredStrategy runs on CPUs and GPUs")
