"""DistributedSampler: which rank gets which items."""

from itertools import chain

from pydist import _C
from pydist.utils.data._order import is_asked, permutation
from pydist.utils.data.sampler import Sampler


def at(order, numbers):
    """The items of an order at a range of places, as a list. Behind its end the order begins again."""
    if numbers.stop <= len(order):
        return list(order[numbers.start : numbers.stop : numbers.step])
    return [order[i % len(order)] for i in numbers]


class DistributedSampler(Sampler):
    """Rank r of W takes items r, r + W, r + 2W, ... of an order that all ranks share.

    The order is a permutation drawn from seed + epoch (shuffle), or 0, 1, .... Its length is made divisible by W: its
    head is repeated, or (drop_last) its end is cut. With `pad=False` nothing is repeated: some ranks get one item more
    than others, which is right for an evaluation. The epoch increases whenever a DataLoader starts over; `set_epoch`
    sets it. With PYDIST_COMPAT_STRICT=1 in the environment the lists are PyTorch's, and only `set_epoch` changes the
    epoch.

    `num_replicas` and `rank` default to those of the process group. With logical shards (distributed.shards) the
    replicas are these shards: `of_shard(v)` has the items of one, and a loop over the sampler, as in an evaluation, gives
    those of all shards of this rank. Raises ValueError for a rank out of range.

    >>> import pydist
    >>> [list(pydist.utils.data.DistributedSampler(range(5), 2, rank, shuffle=False)) for rank in (0, 1)]
    [[0, 2, 4], [1, 3, 0]]
    """

    def __init__(self, dataset, num_replicas=None, rank=None, shuffle=True, seed=0, drop_last=False, *, pad=True):
        self.is_by_shard = False
        if num_replicas is None or rank is None:
            from pydist import distributed

            self.is_by_shard = num_replicas is rank is None and distributed.get_logical_shards() is not None
            num_replicas = distributed.get_world_size() if num_replicas is None else num_replicas
            rank = distributed.get_rank() if rank is None else rank
        if self.is_by_shard:
            num_replicas, rank = distributed.get_logical_shards(), 0
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
        """The length of the shared order after padding or cutting."""
        size, ranks = len(self.dataset), self.num_replicas
        if self.drop_last:
            return size // ranks * ranks
        return -(-size // ranks) * ranks if self.pad else size

    @property
    def num_samples(self):
        """The number of items of this rank."""
        return sum(len(range(replica, self.total_size, self.num_replicas)) for replica in self._replicas())

    def _replicas(self):
        """The replicas that this rank is: itself, or its logical shards."""
        if not self.is_by_shard:
            return [self.rank]
        from pydist.distributed._group.logical import current

        if current() is None:
            raise RuntimeError(
                "DistributedSampler: the logical shards that it was made for are gone (expected a sampler made after "
                "init_process_group)"
            )
        return current().mine()

    def order(self):
        """The order of this epoch, which all replicas share."""
        size = len(self.dataset)
        if self.shuffle:
            return permutation(size, _C.Generator().manual_seed(self.seed + self.epoch))
        return range(size)

    def of_shard(self, shard, first=0, end=None, order=None):
        """Items first to end - 1 of a replica, as a list. `order`: what order() has returned, to draw it once."""
        numbers = range(shard, self.total_size, self.num_replicas)[first:end]
        return at(self.order() if order is None else order, numbers)

    def __iter__(self):
        order = self.order()
        return chain.from_iterable(self._items(replica, order) for replica in self._replicas())

    def _items(self, replica, order):
        mine = order[replica : self.total_size : self.num_replicas]
        repeated = range(replica, self.total_size, self.num_replicas)[len(mine) :]
        return chain(mine, [order[i % len(self.dataset)] for i in repeated])

    def __len__(self):
        return self.num_samples

    def set_epoch(self, epoch):
        """Sets the epoch of the next order. All ranks must set the same one."""
        self.epoch = epoch
        self._epoch_is_fresh = True

    def state_dict(self):
        """The epoch and the seed."""
        return {"epoch": self.epoch, "seed": self.seed}

    def load_state_dict(self, state_dict):
        """Takes the state that state_dict() returned."""
        self.seed = state_dict["seed"]
        self.set_epoch(state_dict["epoch"])

    def start_epoch(self):
        """DataLoader calls this before it iterates. Goes to the next epoch, unless the present one has not been used
        yet."""
        if not self._epoch_is_fresh and not is_asked():
            self.epoch += 1
        self._epoch_is_fresh = False


class UnevenSampler(Sampler):
    """Batches for ranks of different speeds, in plain data-parallel training: each rank takes its share of the rows of each
    global batch. Give it to a DataLoader as `batch_sampler`.

    batch_size: rows of all ranks together. shares: a number for each rank, at least 1, such as rows a second. All ranks
    make the same number of steps; in the last one, which may be shorter, a rank may have no row, and so an empty batch.
    `DistributedDataParallel.global_mean` makes the loss of batches of different sizes exact. The other arguments are
    those of DistributedSampler. Raises ValueError for shares below 1, a rank out of range, and a batch_size below 1.

    >>> import pydist
    >>> [list(pydist.utils.data.UnevenSampler(range(8), 4, [3, 1], rank, shuffle=False)) for rank in (0, 1)]
    [[[0, 1, 2], [4, 5, 6]], [[3], [7]]]
    """

    def __init__(self, dataset, batch_size, shares, rank=None, shuffle=True, seed=0, drop_last=False):
        if rank is None:
            from pydist import distributed

            rank = distributed.get_rank()
        shares = list(shares)
        if not shares or min(shares) < 1:
            raise ValueError(f"UnevenSampler: shares is {shares} (expected a number for each rank, at least 1)")
        if not 0 <= rank < len(shares):
            raise ValueError(f"UnevenSampler: rank {rank} has no share (expected 0 to {len(shares) - 1})")
        if batch_size < 1:
            raise ValueError(f"UnevenSampler: batch_size is {batch_size} (expected at least 1)")
        self.batch_size, self.shares, self.rank, self.drop_last = batch_size, shares, rank, drop_last
        self.rows = DistributedSampler(dataset, 1, 0, shuffle, seed, pad=False)

    def _part(self, count):
        """Where this rank's rows of a batch of `count` rows begin and end."""
        total, before = sum(self.shares), sum(self.shares[: self.rank])
        return count * before // total, count * (before + self.shares[self.rank]) // total

    def __iter__(self):
        order = self.rows.order()
        for begin in range(0, len(self) * self.batch_size, self.batch_size):
            batch = order[begin : begin + self.batch_size]
            low, high = self._part(len(batch))
            yield list(batch[low:high])

    def __len__(self):
        size = len(self.rows.dataset)
        return (size + (0 if self.drop_last else self.batch_size - 1)) // self.batch_size

    @property
    def epoch(self):
        """The number of the next order."""
        return self.rows.epoch

    def set_epoch(self, epoch):
        """Sets the epoch of the next order. All ranks must set the same one."""
        self.rows.set_epoch(epoch)

    def start_epoch(self):
        """DataLoader calls this before it iterates. Goes to the next epoch, unless the present one has not been used
        yet."""
        self.rows.start_epoch()
