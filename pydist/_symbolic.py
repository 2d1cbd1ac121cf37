"""The numbers that stand for unknown sizes in PyTorch's traced programs. pydist traces nothing, so none of them exists."""


class SymInt:
    """The type of unknown sizes: isinstance(size, pydist.SymInt) is False for every size."""

    def __init__(self, node):
        raise TypeError(
            f"{type(self).__name__}: pydist traces no programs, so its sizes are numbers (expected int or float)"
        )


class SymFloat(SymInt):
    """The type of unknown floats: isinstance(x, pydist.SymFloat) is False for every number."""
