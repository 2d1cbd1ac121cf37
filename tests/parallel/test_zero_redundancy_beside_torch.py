"""ZeroRedundancyOptimizer beside PyTorch's, over gloo: who owns which parameter, 20 steps in float64, and states that
each loads from the other."""

import pytest

from lib.processes import run_beside

PROGRAM = """
import json, sys
import {library} as torch
import {library}.distributed as dist
from {library} import nn
from {library}.distributed.optim import ZeroRedundancyOptimizer
from {library}.nn.parallel import DistributedDataParallel

LIBRARY = {library!r}
torch.set_num_threads(1)
if LIBRARY == "torch":
    dist.init_process_group("gloo")
else:
    dist.init_process_group()
    from pydist.distributed.algorithms.ddp_comm_hooks import ddp_zero_hook
    from pydist.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
rank, world = dist.get_rank(), dist.get_world_size()


def net():
    # sizes that no two parameters share, a tie, and numbers that need no random generator
    model = nn.Sequential(nn.Linear(7, 30), nn.Tanh(), nn.Linear(30, 30), nn.Tanh(), nn.Linear(30, 30), nn.Tanh(),
                          nn.Linear(30, 3)).double()
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.copy_(torch.sin(torch.arange(p.numel(), dtype=torch.float64) * (i + 1)).view_as(p) / 5)
    return model


def gradients(model, step):
    x = torch.cos(torch.arange(56, dtype=torch.float64) * (step + 1.5 * rank + 1)).view(8, 7)
    model(x).square().sum().backward()


def owners(zero):
    if LIBRARY == "pydist":
        return list(zero._owners)
    return [zero._param_to_rank[p] for group in zero.param_groups for p in group["params"]]


def flat(model):
    return [x for p in model.parameters() for x in p.detach().reshape(-1).tolist()]


def plain(state):
    # a state_dict() as JSON
    listed = lambda x: {{"tensor": x.tolist()}} if hasattr(x, "tolist") else x
    return {{
        "state": {{str(k): {{n: listed(x) for n, x in v.items()}} for k, v in state["state"].items()}},
        "param_groups": [{{n: x for n, x in g.items() if not callable(x)}} for g in state["param_groups"]],
    }}


def loaded(state):
    made = lambda x: torch.tensor(x["tensor"], dtype=torch.float64) if isinstance(x, dict) else x
    groups = [{{n: tuple(x) if n == "betas" else x for n, x in g.items()}} for g in state["param_groups"]]
    found = {{int(k): {{n: made(x) for n, x in v.items()}} for k, v in state["state"].items()}}
    return {{"state": found, "param_groups": groups}}


def run(way, kind, groups=2, start=None):
    # (owners, parameters after each 5th step, the state after the last one)
    model = DistributedDataParallel(net())
    params = list(model.parameters())
    if groups == 2:
        params = [{{"params": params[::2]}}, {{"params": params[1::2], "lr": 0.02, "weight_decay": 0.1}}]
    cls, options = {{"AdamW": (torch.optim.AdamW, dict(lr=0.01)),
                    "SGD": (torch.optim.SGD, dict(lr=0.003, momentum=0.9))}}[kind]
    overlaps = way.startswith("overlap")
    zero = ZeroRedundancyOptimizer(params, cls, parameters_as_bucket_view="view" in way, overlap_with_ddp=overlaps,
                                   **options)
    if overlaps:
        name = "hook_with_zero_step" + "_interleaved" * ("interleaved" in way)
        model.register_comm_hook(None, getattr(ddp_zero_hook, name)(allreduce_hook, model, zero))
    if start is not None:
        zero.load_state_dict(loaded(start))
    found = []
    for step in range(20):
        zero.zero_grad()
        gradients(model, step)
        zero.step()
        if step % 5 == 4:
            found.append(flat(model))
    zero.consolidate_state_dict(to=world - 1)
    state = [plain(zero.state_dict()) if rank == world - 1 else None]
    dist.broadcast_object_list(state, src=world - 1)
    return owners(zero), found, state[0]


runs = json.loads(sys.stdin.read())
results = [run(*row) for row in runs]
if rank == 0:
    print(json.dumps(results))
dist.destroy_process_group()
"""


def on_ranks(library, world, runs):
    return run_beside(PROGRAM.format(library=library), world, runs)


def near(a, b, limit=1e-9):
    """Whether two nested values agree; numbers up to `limit`, relative to the larger ones among them."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(near(a[key], b[key], limit) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(near(x, y, limit) for x, y in zip(a, b))
    if isinstance(a, float) or isinstance(b, float):
        return abs(a - b) <= limit * max(1.0, abs(a), abs(b))
    return a == b


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_torchs_owners_steps_and_states(world, torch):
    """PyTorch's overlap needs NCCL and begins two steps late, so its plain form is the reference of ours, too."""
    kinds = ("AdamW", "SGD")
    ours = on_ranks("pydist", world, [[way, kind] for way in ("lying", "view") for kind in kinds])
    theirs = on_ranks(
        "torch",
        world,
        [["lying", kind] for kind in kinds]
        + [["lying", kind, 2, ours[i][2]] for i, kind in enumerate(kinds)]  # goes on from our states
        + [["lying", "AdamW", 1]],
    )
    more = on_ranks(
        "pydist",
        world,
        [["view", kind, 2, theirs[i][2]] for i, kind in enumerate(kinds)]
        + [[way, "AdamW", 1] for way in ("overlap", "overlap view", "overlap interleaved")],
    )
    for i, (owners, params, state) in enumerate(ours):
        same = theirs[i % 2]
        assert owners == same[0] and set(owners) == set(range(world))
        assert near(params, same[1]) and near(state["state"], same[2]["state"])
        for group, other in zip(state["param_groups"], same[2]["param_groups"], strict=True):
            shared = group.keys() & other.keys()
            assert {"lr", "weight_decay", "params"} <= shared and all(near(group[n], other[n]) for n in shared)
    for a, b in zip(more[:2], theirs[2:4], strict=True):
        assert near(a[1], b[1]) and near(a[2]["state"], b[2]["state"]) and not near(a[1], ours[0][1])
    for owners, params, _ in more[2:]:
        assert owners == theirs[4][0] and near(params, theirs[4][1])
