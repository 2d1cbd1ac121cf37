"""A training script whose ranks die at given points, and what its survivors have to say, computed here again."""

import pydist

QUIET = ((), None)
SCRIPT = """
import os, signal, sys, threading
import pydist
from pydist import distributed as dist, nn, optim

me, plan, size = int(os.environ["RANK"]), eval(sys.argv[1]), int(sys.argv[2])
victim, moment = int(sys.argv[3]), float(sys.argv[4])
place = None

def die(here):
    if here == place:
        os.kill(os.getpid(), signal.SIGKILL)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = (nn.Parameter(pydist.zeros(size, dtype=pydist.float64)) for _ in range(2))
        self.register_buffer("seen", pydist.zeros(1, dtype=pydist.float64))

    def forward(self, x):
        self.seen += x
        die("forward")
        return (self.a * x + self.b * x * 2).sum()

dist.init_process_group()
pydist.manual_seed(1)
net = Net()
model = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=1e-6)
net.b.register_hook(lambda grad: die("bucket"))
optimizer = optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
step = dist.Transaction(model, optimizer)
log = []
for number, (victims, where) in enumerate(plan):
    for attempt in step:
        with attempt:
            place = where if me in victims else None
            split = where == "split" and dist.get_world_size() > 1
            draw = pydist.rand(1).item()
            die("before")
            optimizer.zero_grad()
            model(pydist.full((1,), 12.0 * me + number, dtype=pydist.float64)).backward()
            die("after backward")
            if where == "between" or split and dist.get_rank() > 0:
                die("between" if where == "between" else "split")
                dist.all_reduce(pydist.ones(1))
            optimizer.step()
            die("after step")
            if where == "late" or split and dist.get_rank() == 0:
                die("late" if where == "late" else "split")
                dist.all_reduce(pydist.ones(1))
    log.append((number, dist.get_world_size(), draw))
    if me == victim and number == 2:
        timer = threading.Timer(moment, os.kill, (os.getpid(), signal.SIGKILL))
        timer.daemon = True
        timer.start()

def only(tensor):
    value = tensor.detach()[0].item()
    assert (tensor == value).all()
    return value

state = [only(optimizer.state[p]["momentum_buffer"]) for p in (net.a, net.b)]
print(repr((me, step.steps, log, only(net.a), only(net.b), net.seen.item(), state)), flush=True)
if me == victim:
    timer.cancel()
"""
# the step in which it happens is made with the dead rank's part
COUNTS = ("after backward", "after step", "late", "split")
UNSEEN = ("after backward", "after step")  # until the next step
POINTS = ("before", "forward", "bucket", "between", *COUNTS)


def replay(plan, world):
    """By survivor: what its line has to say."""
    members, seen = list(range(world)), dict.fromkeys(range(world), 0.0)
    a = b = momentum_a = momentum_b = 0.0
    pydist.manual_seed(1)
    log = []
    for number, (victims, where) in enumerate(plan):
        after = [rank for rank in members if rank not in victims]
        split = where == "split"
        if where not in COUNTS or split and members[0] in victims:  # nobody who lives has made it
            members = after
        inputs = {rank: 12.0 * rank + number for rank in members}
        for momentum, factor in (("a", 1), ("b", 2)):
            gradient = sum(inputs.values()) * factor * (1 / len(members))
            if momentum == "a":
                momentum_a = 0.5 * momentum_a + gradient
                a -= 0.5 * momentum_a
            else:
                momentum_b = 0.5 * momentum_b + gradient
                b -= 0.5 * momentum_b
        first = seen[members[0]]
        seen = {rank: first + x for rank, x in inputs.items()}
        if split and members[0] in after:  # the first rank has, and the others take its state
            seen = dict.fromkeys(members, seen[members[0]])
        members = after
        log.append((number, len(inputs if where in UNSEEN else members), pydist.rand(1).item()))
    return {rank: (rank, len(plan), log, a, b, seen[rank], [momentum_a, momentum_b]) for rank in members}
