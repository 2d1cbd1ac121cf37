"""Pruning by a schedule, in the steps of an optimizer."""

import zlib

import pydist
from pydist import _C
from pydist import distributed as dist
from pydist.nn.utils import prune


def masked(values, mask, count):
    """A mask in which the `count` elements of the smallest absolute value are 0, those that `mask` has pruned first."""
    importance = values.abs().masked_fill(mask == 0, -1).reshape(-1)
    found = pydist.ones_like(mask, memory_format=pydist.contiguous_format)
    if count:
        found.view(-1)[importance.topk(count, largest=False).indices] = 0
    return found


def share_of_zeros(masks):
    """The share of elements that masks prune."""
    return sum(int((mask == 0).sum()) for mask in masks) / sum(mask.numel() for mask in masks)


class Pruner:
    """Prunes parameters, [(module, name), ...], to the share that a schedule gives: the elements of the smallest absolute
    value, of each parameter for itself, or with across=True of all together. `attach(optimizer)` does so after its steps.

    A parameter becomes `NAME_orig`, with a mask, as by nn.utils.prune; `finish()` makes the zeros permanent. What was pruned
    stays pruned as long as the share grows. On several ranks all make a Pruner; each time masks change they are compared,
    and CommMismatch is raised where ranks differ. state_dict() has the number of steps; the masks are buffers of the modules.

    >>> import pydist
    >>> from pydist import compress, nn, optim
    >>> net = nn.Sequential(nn.Linear(8, 10), nn.ReLU(), nn.Linear(10, 1))
    >>> optimizer = optim.SGD(net.parameters(), lr=0.1)
    >>> pruner = compress.Pruner([(net[0], "weight")], compress.PolynomialDecay(0.0, 0.75, 0, 4, frequency=2))
    >>> _ = pruner.attach(optimizer)
    >>> for step in range(4):
    ...     optimizer.zero_grad()
    ...     net(pydist.randn(5, 8)).square().mean().backward()
    ...     optimizer.step()
    >>> pruner.sparsity(), int((pruner.finish()[0][0].weight == 0).sum())
    (0.75, 60)
    """

    def __init__(self, parameters, schedule, *, across=False):
        self.parameters, self.schedule, self.across, self.steps = list(parameters), schedule, bool(across), 0
        if not self.parameters:
            raise ValueError("Pruner: got no parameters (expected pairs of a module and a name)")
        for module, name in self.parameters:
            if not hasattr(module, name + "_mask"):
                prune.identity(module, name)

    def attach(self, optimizer):
        """Calls step() after each step of the optimizer. Returns a handle with remove()."""
        return optimizer.register_step_post_hook(lambda *_: self.step())

    def step(self):
        """Counts a step, and prunes if the schedule says so. Returns whether it did."""
        self.steps += 1
        if not self.schedule.is_due(self.steps):
            return False
        self._prune(self.schedule.sparsity(self.steps))
        return True

    @pydist.no_grad()
    def _prune(self, share):
        parts = [(getattr(m, f"{name}_orig"), getattr(m, f"{name}_mask")) for m, name in self.parameters]
        if self.across:
            values, mask = (pydist.cat([part.reshape(-1) for part in column]) for column in zip(*parts, strict=True))
            found = masked(values, mask, round(share * mask.numel()))
            found = [
                part.view(mask.shape)
                for part, (_, mask) in zip(found.split([m.numel() for _, m in parts]), parts, strict=True)
            ]
        else:
            found = [masked(values, mask, round(share * mask.numel())) for values, mask in parts]
        self._compare(found)
        for (module, name), (values, mask), new in zip(self.parameters, parts, found, strict=True):
            mask.copy_(new)
            setattr(module, name, mask * values)

    def _compare(self, masks):
        """Raises CommMismatch unless all ranks have these masks."""
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return
        sums = [None] * dist.get_world_size()
        own = 0
        for mask in masks:
            own = zlib.crc32(memoryview(mask.bool().cpu().contiguous()), own)
        dist.all_gather_object(sums, own)
        other = next((rank for rank, value in enumerate(sums) if value != sums[0]), None)
        if other is not None:
            raise _C.CommMismatch(
                f"Pruner: after step {self.steps} ranks 0 and {other} prune different elements (expected equal parameters on all "
                "ranks, as DistributedDataParallel keeps them)"
            )

    def sparsity(self):
        """The share of elements that are pruned now."""
        return share_of_zeros([getattr(module, f"{name}_mask") for module, name in self.parameters])

    def finish(self):
        """Makes the zeros permanent: the parameters have their old names again. Returns their list."""
        for module, name in self.parameters:
            prune.remove(module, name)
        return self.parameters

    def state_dict(self):
        """{"steps"}: how many steps were counted."""
        return {"steps": self.steps}

    def load_state_dict(self, state_dict):
        """Goes on after that many steps."""
        self.steps = int(state_dict["steps"])
