"""A softmax over many classes in which the frequent classes are cheap (Grave et al., 2017)."""

from collections import namedtuple

from pydist import _C
from pydist.nn import functional as F
from pydist.nn.modules.container import ModuleList, Sequential
from pydist.nn.modules.linear import Linear
from pydist.nn.modules.module import Module

_Result = namedtuple("ASMoutput", ["output", "loss"])


class AdaptiveLogSoftmaxWithLoss(Module):
    """Log-probabilities of n_classes classes, numbered from the most to the least frequent. A head has the classes
    before cutoffs[0] and one entry for each cluster. Cluster i has the classes from cutoffs[i] to cutoffs[i + 1], and a
    tail of two linear layers with in_features // div_value ** (i + 1) features between them.

        log p(c) = head(x)[c],  or  head(x)[entry of c's cluster] + tail(x)[c in the cluster]

    forward(x [N, in_features], target [N] int64) -> (output [N]: log p(target), loss: its negative mean); also
    [in_features] and a 0-d target. Only tails that have a target are computed. Raises ValueError unless cutoffs are
    increasing integers in [1, n_classes), RuntimeError for shapes or targets that do not fit.

    >>> import pydist
    >>> layer = pydist.nn.AdaptiveLogSoftmaxWithLoss(8, 20, cutoffs=[4, 10])
    >>> layer.log_prob(pydist.zeros(3, 8)).shape
    pydist.Size([3, 20])
    """

    def __init__(self, in_features, n_classes, cutoffs, div_value=4.0, head_bias=False, device=None, dtype=None):
        super().__init__()
        cutoffs, kind = list(cutoffs), {"device": device, "dtype": dtype}
        if not cutoffs:
            raise ValueError(f"cutoffs should be a sequence of length larger than 0, got {cutoffs}")
        whole = all(int(c) == c for c in cutoffs)
        if not whole or cutoffs != sorted(set(cutoffs)) or cutoffs[0] <= 0 or cutoffs[-1] > n_classes - 1:
            raise ValueError(
                "cutoffs should be a sequence of unique, positive integers sorted in an increasing order, where each "
                f"value is between 1 and n_classes-1 (got {cutoffs}, n_classes={n_classes})"
            )
        self.in_features = in_features
        self.n_classes = n_classes
        self.cutoffs = [*cutoffs, n_classes]
        self.div_value = div_value
        self.head_bias = head_bias
        self.shortlist_size = cutoffs[0]
        self.n_clusters = len(cutoffs)
        self.head_size = self.shortlist_size + self.n_clusters
        self.head = Linear(in_features, self.head_size, bias=head_bias, **kind)
        self.tail = ModuleList()
        for i, (lo, hi) in enumerate(zip(self.cutoffs, self.cutoffs[1:])):
            width = int(in_features // div_value ** (i + 1))
            layers = Linear(in_features, width, bias=False, **kind), Linear(width, hi - lo, bias=False, **kind)
            self.tail.append(Sequential(*layers))

    def reset_parameters(self):
        """Draws all weights again."""
        for linear in [self.head, *(layer for tail in self.tail for layer in tail)]:
            linear.reset_parameters()

    def forward(self, input_, target_):
        input, target = input_, target_
        if target.dim() > 1:
            raise RuntimeError("0D or 1D target tensor expected, multi-target not supported")
        if input.dim() != target.dim() + 1 or input.shape[:-1] != target.shape:
            raise RuntimeError(f"Input {tuple(input.shape)} and target {tuple(target.shape)} do not fit together")
        x, t = (input, target) if target.dim() else (input.unsqueeze(0), target.unsqueeze(0))
        if t.numel() and not bool(((t >= 0) & (t < self.n_classes)).all()):
            raise RuntimeError(
                f"Target values should be in [0, {self.n_classes - 1}], but values in range [{t.min().item()}, "
                f"{t.max().item()}] were found. "
            )
        column, rest = t, []
        for i, (lo, hi) in enumerate(zip(self.cutoffs, self.cutoffs[1:])):
            inside = (t >= lo) & (t < hi)
            rows = inside.nonzero(as_tuple=True)[0]
            if rows.numel():
                column = _C.where(inside, self.shortlist_size + i, column)
                within = F.log_softmax(self.tail[i](x.index_select(0, rows)), 1)
                rest.append((rows, within.gather(1, (t[rows] - lo).unsqueeze(1)).squeeze(1)))
        output = F.log_softmax(self.head(x), 1).gather(1, column.unsqueeze(1)).squeeze(1)
        for rows, more in rest:
            output = output.index_add(0, rows, more)
        output = output if target.dim() else output.squeeze(0)
        return _Result(output, (-output).mean())

    def log_prob(self, input):
        """log p(c) of all classes: [N, n_classes] for x [N, in_features]."""
        head = F.log_softmax(self.head(input), -1)
        parts = [head[..., : self.shortlist_size]]
        for i, tail in enumerate(self.tail):
            parts.append(F.log_softmax(tail(input), -1) + head[..., self.shortlist_size + i].unsqueeze(-1))
        return _C.cat(parts, -1)

    def predict(self, input):
        """The most probable class of each row: [N] int64."""
        return self.log_prob(input).argmax(-1)
