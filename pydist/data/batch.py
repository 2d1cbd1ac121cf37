"""Steps that make batches."""

from pydist.data.spec import INFINITE, TensorSpec
from pydist.data.step import Step


class Batch(Step):
    """Batches of `size` elements. `part`: (rank, ranks): of each batch the rows of this rank only; the plan is the same."""

    def __init__(self, step, size, drop, part=None):
        self.inputs, self.size, self.drop, self.part = (step,), size, drop, part

    def count_of(self, n):
        return n if n == INFINITE else n // self.size if self.drop else -(-n // self.size)

    def members(self, i):
        """The numbers of the elements of batch i."""
        n, begin = self.input.count(), i * self.size
        end = begin + self.size if n == INFINITE else min(n, begin + self.size)
        if self.part is None:
            return range(begin, end)
        rank, ranks = self.part
        rows = end - begin
        return range(begin + rows * rank // ranks, begin + rows * (rank + 1) // ranks)

    def get(self, i, run):
        members = self.members(i)
        if members:
            return self.input.rows(members, run)
        begin = i * self.size  # a part without rows has their shapes
        return [leaf[:0] for leaf in self.input.rows(range(begin, begin + 1), run)]

    def specs(self):
        size = self.size if self.drop and self.part is None else None
        return batched(self.input.specs(), size)

    def detail(self):
        return (self.size, self.drop)


def batched(specs, size):
    """The specs of batches."""
    return [one if one is None or one.shape is None else TensorSpec((size, *one.shape), one.dtype) for one in specs]


class PaddedBatch(Batch):
    """Batches of elements that are filled up to equal shapes."""

    name = "padded_batch"

    def __init__(self, step, size, padding, drop):
        super().__init__(step, size, drop)
        self.padding = padding

    def get(self, i, run):
        return self.padding.stack([self.input.get(k, run) for k in self.members(i)])

    def specs(self):
        return self.padding.specs(self.input.specs(), self.size if self.drop else None)

    def detail(self):
        return (self.size, self.drop, *self.padding.detail())
