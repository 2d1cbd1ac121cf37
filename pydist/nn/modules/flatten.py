"""Flatten."""

from pydist.nn.modules.module import Module


class Flatten(Module):
    """Merges dims start_dim to end_dim into one.

    >>> import pydist
    >>> pydist.nn.Flatten()(pydist.ones(2, 3, 4)).shape
    pydist.Size([2, 12])
    """

    def __init__(self, start_dim=1, end_dim=-1):
        super().__init__()
        self.start_dim = start_dim
        self.end_dim = end_dim

    def forward(self, input):
        return input.flatten(self.start_dim, self.end_dim)

    def extra_repr(self):
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"
