"""Logical shards as the replicas of a strategy: as many as `shards` says, whoever runs them.

Each process runs its shards one after the other, as replicas in threads (replica.py). What they make is added in one order,
the tree over all shards (docs/internals/shards.md), so a training has the same bits on any number of devices and ranks."""

from pydist import _C
from pydist.distributed._group.logical import Logical, checked, current
from pydist.distributed.recovery.attempts import deal_by_speed

__all__ = ["ReplicaShards", "shards_of"]

_EVERY = 20  # steps between two looks at the ranks' speeds


class ReplicaShards(Logical):
    """The logical shards of one strategy. `measured`: shares follow the ranks' speeds."""

    def __init__(self, shards, measured):
        super().__init__(shards)
        self.measured, self._dealt_steps = measured, 0

    def check(self, name, replicas):
        """Raises ValueError where there are more replicas than shards."""
        if self.shards < replicas:
            raise ValueError(
                f"{name}: shards is {self.shards} (expected at least {replicas}, a shard for each replica)"
            )

    def deal(self, group):
        """(this rank's shards, the Blocks of all ranks or None where there is one rank)."""
        if group is None:
            return tuple(range(self.shards)), None
        blocks, mine = self.dealt()
        return tuple(mine), blocks

    def measure(self, now):
        """Counts a step, and looks at the ranks' speeds: now, or in every 20th step. Every rank calls it. Returns whether
        the shards are dealt out anew."""
        if not self.measured:
            return False
        self._dealt_steps += 1
        if not now and self._dealt_steps % _EVERY:
            return False
        return deal_by_speed(self, least=1)


class Numbers:
    """The random numbers of one run: those of a shard are drawn with a key of seed, step and shard, and those that follow
    with one of seed and step (docs/internals/shards.md). The generator's own counter knows the number of the step."""

    def __init__(self):
        self._before = _C.get_rng_state()
        self._seed, call, _ = _C._rng_key()
        self._step = call >> 33

    def begin(self, shard):
        """This thread goes on as a shard."""
        _C._rng_shard(0)  # the shard's number is in the state itself
        _C.set_rng_state((self._seed, (2 * self._step + 1) << 32, shard))

    def __enter__(self):
        return self

    def __exit__(self, kind, *error):
        """A run that has failed leaves the numbers as they were."""
        _C.set_rng_state((self._seed, (2 * self._step + 2) << 32, 0) if kind is None else self._before)


def shards_of(name, shards, shares):
    """The ReplicaShards that a strategy was asked for, or None. Those of the process group, if it has any, are the default."""
    given = current()
    if shares not in ("even", "measured"):
        raise ValueError(f"{name}: shares is {shares!r} (expected 'even' or 'measured')")
    if checked(name, shards, "shards") is None and given is not None:
        shards = given.shards
    if given is not None and shards != given.shards:
        raise ValueError(
            f"{name}: shards is {shards} (expected the number that init_process_group was told, {given.shards})"
        )
    if shards is None and shares == "measured":
        raise ValueError(
            f"{name}: shares is 'measured' without shards (expected shards=, the number of logical shards)"
        )
    return None if shards is None else ReplicaShards(shards, shares == "measured")
