"""A layer whose weights are an EmbeddingTable."""

import pydist
from pydist import autograd
from pydist.nn import functional as F
from pydist.nn.modules.module import Module


class _Lookup(autograd.Function):
    @staticmethod
    def forward(ctx, anchor, layer, ids):
        ctx.layer, ctx.ids = layer, ids
        return layer.table.lookup(ids)

    @staticmethod
    def backward(ctx, grad):
        ctx.layer._found.append((ctx.ids.reshape(-1), grad.reshape(-1, ctx.layer.table.dim)))
        return None, None, None


class PSEmbedding(Module):
    """Looks ids up in a `distributed.ps.EmbeddingTable`. backward() keeps the gradients, and step() pushes them.

    pooling None: [*] -> [*, dim], as `nn.Embedding`. "sum", "mean", "max": as `nn.EmbeddingBag`, with ids of shape [bags, n], or
    of shape [n] and `offsets`.

    >>> import pydist
    >>> from pydist.distributed import ps
    >>> layer = ps.PSEmbedding(ps.EmbeddingTable("t", 1000, 2, optimizer="sgd", init="zeros", learning_rate=1.0))
    >>> layer(pydist.tensor([3, 5, 3])).sum().backward()
    >>> layer.step()
    >>> layer.table.lookup(pydist.tensor([3, 4, 5])).tolist()
    [[-2.0, -2.0], [0.0, 0.0], [-1.0, -1.0]]
    """

    def __init__(self, table, pooling=None):
        super().__init__()
        if pooling not in (None, "sum", "mean", "max"):
            raise ValueError(f'PSEmbedding: pooling is {pooling!r} (expected None, "sum", "mean" or "max")')
        self.table, self.pooling, self._found = table, pooling, []
        # not a parameter: it only makes the result need a gradient
        self._anchor = pydist.zeros((), device="cpu", requires_grad=True)

    def forward(self, ids, offsets=None):
        ids = self.table._ids("PSEmbedding", ids)
        rows = _Lookup.apply(self._anchor, self, ids)
        if self.pooling is None:
            return rows
        places = pydist.arange(ids.numel(), device="cpu").reshape(ids.shape)
        return F.embedding_bag(places, rows.reshape(-1, self.table.dim), offsets, mode=self.pooling)

    def step(self, rescale=1.0):
        """Pushes the gradients of all calls since the last step, also if there are none."""
        found, self._found = self._found, []
        if found:
            ids, grads = (pydist.cat(parts) for parts in zip(*found))
        else:
            ids = pydist.empty(0, dtype=pydist.int64, device="cpu")
            grads = pydist.empty(0, self.table.dim, device="cpu")
        self.table.push(ids, grads, rescale)

    def extra_repr(self):
        return f"{self.table!r}, pooling={self.pooling!r}"
