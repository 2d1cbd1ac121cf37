"""How parameters get from the ranks that own them to all other ranks, for ZeroRedundancyOptimizer.

A section is a set of parameters that travel at the same time. Every parameter travels from where it lies (Lying), or the
parameters of each owner lie end to end in one tensor in symmetric memory (Flats), which the other ranks copy at once.
"""

from itertools import pairwise

from pydist import _C
from pydist._grad_mode import no_grad
from pydist.distributed import symmetric_memory

_SMALL = 32 << 10  # bytes of a parameter up to which its owner packs it: below that a message costs more than its bytes
_ALIGNED = 64  # bytes, a cache line, on which each parameter of a flat tensor begins


def flat_of(param):
    """All elements of a parameter as a vector over the same memory."""
    whole = param.detach()
    if whole.is_complex():
        whole = _C.view_as_real(whole)
    if whole.is_contiguous():
        return whole.view(-1)
    return whole.as_strided((whole.numel(),), (1,), whole.storage_offset())


def is_dense(param):
    """Whether the elements of a parameter fill a piece of memory without gaps, in any order of the dimensions."""
    end = 1
    for stride, size in sorted(zip(param.stride(), param.shape)):
        if size == 1:
            continue
        if stride != end:
            return not param.numel()
        end *= size
    return True


def _by_kind(params, numbers):
    """The numbers in lists, one for each device and dtype."""
    kinds = {}
    for i in numbers:
        kinds.setdefault((params[i].device, params[i].dtype), []).append(i)
    return kinds.values()


def _rounds(queues):
    """Cuts the ranks' queues of (number, elements) so that in each round all ranks give equally much, while they have
    something. A round has (number, first, last) by rank, or None for a rank that has given everything."""
    queues = [[(i, 0, n) for i, n in queue] for queue in queues]
    while any(queues):
        step = min(queue[0][2] - queue[0][1] for queue in queues if queue)
        row = []
        for queue in queues:
            if not queue:
                row.append(None)
                continue
            i, first, end = queue[0]
            row.append((i, first, first + step))
            queue[:1] = [(i, first + step, end)] if first + step < end else []
        yield row


class Lying:
    """Sends parameters from where they lie. Small ones are packed."""

    def __init__(self, params, owners, group):
        self.params, self.owners, self.group = params, owners, group
        self._plans = {}  # by section: (the numbers that travel, a plan for each kind)

    def _plan(self, numbers):
        plan = []
        for kind in _by_kind(self.params, numbers):
            small, large = ([[] for _ in range(self.group.size)] for _ in range(2))
            for i in kind:
                flat = flat_of(self.params[i])
                n = flat.numel()
                if n:
                    (small if n * flat.dtype.itemsize <= _SMALL else large)[self.owners[i]].append((i, n))
            plan.append((kind[0], small, list(_rounds(large))))
        return plan

    @no_grad()
    def send(self, section, numbers):
        """Sends the parameters with these numbers. `section` names the call: plans of its last call are used again."""
        if self._plans.get(section, (None,))[0] != numbers:
            self._plans[section] = numbers, self._plan(numbers)
        for like, small, rounds in self._plans[section][1]:
            if any(small):
                self._send_packed(flat_of(self.params[like]), small)
            for row in rounds:
                self._send_round(flat_of(self.params[like]), row)

    def _send_round(self, like, row):
        parts = [like[:0] if cut is None else flat_of(self.params[cut[0]])[cut[1] : cut[2]] for cut in row]
        self.group.all_gather(parts, parts[self.group.rank], apart=True)

    def _send_packed(self, like, small):
        rank, parts = self.group.rank, []
        for r, own in enumerate(small):
            if r == rank and own:
                parts.append(_C.cat([flat_of(self.params[i]) for i, _ in own]))
            else:
                parts.append(like.new_empty(sum(n for _, n in own)))
        self.group.all_gather(parts, parts[rank], apart=True)
        for r, own in enumerate(small):
            if r != rank and own:
                for (i, _), part in zip(own, parts[r].split([n for _, n in own])):
                    flat_of(self.params[i]).copy_(part)


class _Home:
    """The place of a parameter in a flat tensor."""

    def __init__(self, param, flat, at):
        self.view = flat.as_strided(param.shape, param.stride(), at)
        self.address = self.view.data_ptr()

    def take(self, param, name):
        """Moves the parameter here, unless it is here: at first, and after somebody gave it other memory."""
        if param.data_ptr() == self.address:
            return
        if param.dtype != self.view.dtype or param.device != self.view.device or param.shape != self.view.shape:
            raise RuntimeError(
                f"ZeroRedundancyOptimizer: {name} has become {param.dtype} {list(param.shape)} on {param.device} (expected "
                f"{self.view.dtype} {list(self.view.shape)} on {self.view.device}, as it was when the optimizer was made)"
            )
        self.view.copy_(param.detach())
        param.data = self.view


class Flats:
    """Makes parameters views of flat tensors, one for each kind and owner, in which those of a section follow each
    other. Collective. It makes these tensors one after the other, so that no second copy of all parameters is needed."""

    @no_grad()
    def __init__(self, params, owners, group, names, sections):
        self.params, self.group, self.names = params, group, names
        self.homes = {}  # by number
        self._parts = [[] for _ in sections]  # by section: for each kind the parts of all ranks
        for kind in _by_kind(params, [i for section in sections for i in section]):
            like, kind = params[kind[0]], set(kind)
            owned = [[[i for i in s if i in kind and owners[i] == r] for s in sections] for r in range(group.size)]
            for rows, row in zip(self._parts, zip(*(self._make(like, numbers) for numbers in owned))):
                if any(part.numel() for part in row):
                    rows.append(row)

    def _make(self, like, sections):
        """Makes the flat tensor of one owner and moves its parameters there. Returns the part of each section."""
        unit = max(1, _ALIGNED // like.dtype.itemsize)
        at, places, edges = 0, [], [0]
        for section in sections:
            for i in section:
                places.append((i, at))
                at += -(-self.params[i].numel() // unit) * unit
            edges.append(at)
        if like.is_cuda:
            flat = like.new_zeros(at)
        else:
            flat = symmetric_memory.empty(at, dtype=like.dtype, device=like.device, group=self.group)
        for i, place in places:
            self.homes[i] = _Home(self.params[i], flat, place)
            self.homes[i].take(self.params[i], self.names[i])
        _C.trim()  # gives the memory that they have left back to the system
        return [flat[first:end] for first, end in pairwise(edges)]

    @no_grad()
    def take_home(self):
        """Moves parameters back that somebody gave other memory, such as load_state_dict(assign=True)."""
        for i, home in self.homes.items():
            home.take(self.params[i], self.names[i])

    @no_grad()
    def send(self, section):
        """Sends all parameters of the section with that number."""
        for row in self._parts[section]:
            parts = [flat_of(part) for part in row]
            self.group.all_gather(parts, parts[self.group.rank], apart=True)
