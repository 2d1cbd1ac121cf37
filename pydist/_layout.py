"""Memory layouts of tensors, with PyTorch's names."""


class layout:
    """`strided`, or `sparse_coo` for tensors that store only their nonzero elements."""

    def __init__(self, name):
        self._name = name

    def __repr__(self):
        return f"pydist.{self._name}"

    def __reduce__(self):
        return self._name


strided, sparse_coo = layout("strided"), layout("sparse_coo")
