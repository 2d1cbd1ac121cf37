"""DistributedSampler: which rank sees which items."""

from itertools import chain

from pydist import _C
from pydist.utils.data._order import is_asked, permutation
from pydist.utils.data.sampler import Sampler


class DistributedSampler(Sampler):
    """Rank r of W takes items r, r + W, r + 2W, ... of an order that all ranks share.

    The order is the permutation of (seed + epoch) (shuffle) or 0, 1, ..., then made divisible by W: repeated from its
    head, or cut (drop_last). With `pad=False` nothing is repeated: ranks may get one item more or less, as an
    evaluation wants it. The epoch goes up by itself whenever a DataLoader starts over; `set_epoch` names it instead.
    With PYDIST_COMPAT_STRICT=1 in the environment the lists are PyTorch's, and the epoch is set by `set_epoch` alone.

    `num_replicas` and `rank` default to the process group's; raises ValueError for a rank outside it.

    >>> import pydist
    >>> [list(pydist.utils.data.DistributedSampler(range(5), 2, rank, shuffle=False)) for rank in (0, 1)]
    [[0, 2, 4], [1, 3, 0]]
    """

    def __init__(self, dataset, num_replicas=None, rank=None, shuffle=True, seed=0, drop_last=False, *, pad=True):
        if num_replicas is None or rank is None:
            from pydist import distributed

            num_replicas = distributed.get_world_size() if num_replicas is None else num_replicas
            rank = distributed.get_rank() if rank is None else rank
        if not 0 <= rank < num_replicas:
            raise ValueError(f"Invalid rank {rank}, rank should be in the interval [0, {num_replicas - 1}]")
        self.dataset = dataset
        self.num_replicas = num_replicas
        self.rank = rank
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.pad = pad
        self.epoch = 0
        self._epoch_is_fresh = True

    @property
    def total_size(self):
        """Length of the shared order after padding or cutting."""
        size, ranks = len(self.dataset), self.num_replicas
        if self.drop_last:
            return size // ranks * ranks
        return -(-size // ranks) * ranks if self.pad else size

    @property
    def num_samples(self):
        return len(range(self.rank, self.total_size, self.num_replicas))

    def __iter__(self):
        size, total = len(self.dataset), self.total_size
        if self.shuffle:
            order = permutation(size, _C.Generator().manual_seed(self.seed + self.epoch))
        else:
            order = range(size)
        mine = order[self.rank : total : self.num_replicas]
        repeated = range(self.rank, total, self.num_replicas)[len(mine) :]
        return chain(mine, [order[i % size] for i in repeated])

    def __len__(self):
        return self.num_samples

    def set_epoch(self, epoch):
        """The epoch of the next order. All ranks must set the same one."""
        self.epoch = epoch
        self._epoch_is_fresh = True

    def state_dict(self):
        return {"epoch": self.epoch, "seed": self.seed}

    def load_state_dict(self, state_dict):
        self.seed = state_dict["seed"]
        self.set_epoch(state_dict["epoch"])

    def start_epoch(self):
        """Called by DataLoader before it iterates: goes to the next epoch unless this one has not been used yet."""
        if not self._epoch_is_fresh and not is_asked():
            self.epoch += 1
        self._epoch_is_fresh = False
