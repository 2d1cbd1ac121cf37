"""What was made in a strategy's scope. All ranks make the same things in the same order, but one rank may have garbage
that another one has collected already: they agree on what is left."""

import weakref

from pydist.distributed._ops.agreement import all_ranks_have

__all__ = ["Made"]

_TIDY = 4096  # after so many new things, those that are gone are forgotten


class Made:
    """Things by weak references, and how many there were: `count`."""

    def __init__(self):
        self._refs, self.count = {}, 0  # by number, in which all ranks agree

    def add(self, thing):
        """Adds a thing."""
        self._refs[self.count] = weakref.ref(thing)
        self.count += 1
        if self.count % _TIDY == 0:
            self._refs = {number: ref for number, ref in self._refs.items() if ref() is not None}

    def all(self):
        """All that are left."""
        return [thing for thing in (ref() for ref in self._refs.values()) if thing is not None]

    def __contains__(self, thing):
        return any(ref() is thing for ref in self._refs.values())

    def agree(self, group):
        """All that are left on all ranks; others are forgotten. All ranks call it. Cost: an all_gather of 8 bytes, and one of
        a byte for each thing there ever was."""
        left = {number: thing for number, ref in self._refs.items() if (thing := ref()) is not None}
        there = all_ranks_have(bytes(number in left for number in range(self.count)), group)
        self._refs = {number: self._refs[number] for number in left if there[number]}
        return [thing for number, thing in left.items() if there[number]]
