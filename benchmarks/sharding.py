"""`python -m benchmarks.sharding {speed,alone,hosts,memory,bits,construct,step,norms,pages} [options]`: sharded training,
beside torch.

speed: tokens per second of a GPT that fully_shard has sharded, beside DistributedDataParallel and torch's fully_shard over
gloo, each rank with one thread. The forms' processes live until the end and train in turns; a ratio is the median of the
rounds' ratios of tokens per second: more is better.

alone: the seconds of a step with fully_shard in a world of one over those without it, each the mean of `--processes`
processes, since their steps differ by more than what is asked; +- its standard error. They train in turns, in random order.

hosts: the same as speed on two hosts, which are network namespaces of this machine (root only), over tcp: DistributedDataParallel,
fully_shard over all ranks, whose parameters are gathered, and fully_shard on a mesh with shards inside of a host and
replicas between hosts. --ranks are those of both hosts. The hashes of the parameters in the end have to be equal.

memory: the highest sum over the ranks of what they have in memory (Pss: what W ranks map counts 1/W in each), less the
level after the import, divided by the number of ranks. `bound`: 16 P / W bytes for parameters, gradients and AdamW's
states, the gradient slots (the embedding and three blocks), and what forward keeps, which one process without sharding
shows.

bits: a hash of the parameters after `--steps` steps of DistributedDataParallel, ZeRO-1, fully_shard, in common memory and
gathered, and FullyShardedDataParallel, with each of `--optimizers`.

step: the seconds of the optimizer's step alone, with the copies of parameters: ZeRO-1 over DistributedDataParallel, the
forms in turns.

norms: the seconds of the exact sum of squares of `--elements` floats over those of reading them, by `sum()`, in turns.

construct: the highest memory of all ranks together while a model that begins on meta is sharded and filled, over that of
its parameters; and the memory files in which these lie, which exist once. Nothing else may use memory files meanwhile.

pages: the seconds of a product and of a sum that read a weight in private memory, in shared memory, which pydist puts into
huge pages, and in shared memory of small pages.
"""

import argparse
import itertools
import random
import statistics

from benchmarks.hosts import Hosts
from benchmarks.paired import installed
from benchmarks.report import machine
from benchmarks.rpc import Ranks, free_port

PROGRAM = "sharded_rank.py"
FORMS = {  # name: library, form, variables, 16 bits
    "without sharding": ("pydist", "plain", {}, False),
    "DistributedDataParallel": ("pydist", "ddp", {}, False),
    "ZeroRedundancyOptimizer": ("pydist", "zero1", {}, False),
    "fully_shard": ("pydist", "fully_shard", {}, False),
    "fully_shard, replicas": ("pydist", "hsdp", {}, False),
    "fully_shard, gathered": ("pydist", "fully_shard", {"PYDIST_FSDP": "private"}, False),
    "FullyShardedDataParallel": ("pydist", "fsdp1", {}, False),
    "fully_shard, bfloat16": ("pydist", "fully_shard", {}, True),
    "torch, DistributedDataParallel": ("torch", "ddp", {}, False),
    "torch, fully_shard": ("torch", "fully_shard", {}, False),
}
MIB = 1 << 20
MOST = {"step": 0.7, "norms": 1.5, "alone": 1.01}  # of the ratios of these cases, for 2 ranks


def peer(name, world, args, model=True, rule="AdamW", hosts=None):
    lib, form, variables, low = FORMS[name]
    within, where = None, ()
    if hosts is not None:
        local = world // hosts.count
        within = [hosts.command(rank // local) for rank in range(world)]
        where = (hosts.address(0), local)
        variables = {**variables, "PYDIST_INSECURE": "1"}  # the cables are this machine's own
    ranks = Ranks(lib, world, PROGRAM, within, **variables)
    try:
        ranks.ask_all("init", free_port(), *where, numbered=True)
        if model:
            ranks.parameters = ranks.ask_all("make", form, args.model, args.batch, args.length, low, rule)[0]
    except BaseException:
        ranks.close()
        raise
    return ranks


def wanted(args, names):
    """Of a list of forms, those that the arguments do not leave out and whose library is there."""
    return [name for name in names if (args.forms is None or name in args.forms.split("; "))
            and (FORMS[name][0] == "pydist" or installed("torch"))]  # fmt: skip


def train_in_turns(names, world, args, hosts=None):
    """({form: the median seconds of a step} of each round, the hash of the parameters of each form)."""
    peers = {}
    try:
        for name in names:
            peers[name] = peer(name, world, args, hosts=hosts)
        for ranks in peers.values():
            ranks.ask_all("steps", 2)
        rounds = []
        for _ in range(args.rounds):
            rounds.append({n: statistics.median(max(t) for t in zip(*p.ask_all("steps", args.steps), strict=True))
                           for n, p in peers.items()})  # fmt: skip
        return rounds, {name: p.ask_all("bits")[0] for name, p in peers.items() if p.lib == "pydist"}
    finally:
        for ranks in peers.values():
            ranks.close()


def show(names, rounds, args):
    for name in names:
        seconds = statistics.median(r[name] for r in rounds)
        ratios = [f"{statistics.median(r[other] / r[name] for r in rounds):5.2f} x {other}" for other in names
                  if other != name and ("Distributed" in other or "torch" in other)]  # fmt: skip
        print(f"  {name:32} {args.batch * args.length / seconds:8.0f} tokens/s  {', '.join(ratios)}")


def speed(args):
    names = wanted(
        args, ["DistributedDataParallel", "fully_shard", "fully_shard, gathered", "torch, DistributedDataParallel",
               "torch, fully_shard"]
    )  # fmt: skip
    for world in args.ranks:
        rounds, _ = train_in_turns(names, world, args)
        print(f"{args.model}, {world} ranks of 1 thread, batch {args.batch} x {args.length}")
        show(names, rounds, args)


def alone(args):
    names = ["without sharding", "fully_shard", "fully_shard", "without sharding"] * (args.processes // 2)
    peers = []
    try:
        for name in names:
            peers.append(peer(name, 1, args))
            peers[-1].ask_all("steps", 3)
        seconds = [[] for _ in peers]
        for _ in range(args.rounds):
            for k in random.sample(range(len(peers)), len(peers)):
                seconds[k] += peers[k].ask_all("steps", args.steps)[0]
    finally:
        for ranks in peers:
            ranks.close()
    each = {name: [statistics.median(s) for s, n in zip(seconds, names, strict=True) if n == name] for name in names}
    plain, sharded = (statistics.mean(each[name]) for name in names[:2])
    error = sum(statistics.variance(s) / len(s) for s in each.values()) ** 0.5 / plain
    print(
        f"{args.model}, a world of one, batch {args.batch} x {args.length}: {plain * 1e3:.2f} ms, with fully_shard "
        f"{sharded * 1e3:.2f} ms, {sharded / plain:.4f} +- {error:.4f}"
    )
    return 1 if sharded / plain - error > MOST["alone"] else 0


def hosts(args):
    names, equal = wanted(args, ["DistributedDataParallel", "fully_shard", "fully_shard, replicas"]), True
    with Hosts(2) as two:
        for world in args.ranks:
            rounds, found = train_in_turns(names, world, args, two)
            print(f"{args.model}, 2 hosts x {world // 2} ranks of 1 thread, batch {args.batch} x {args.length}")
            show(names, rounds, args)
            equal &= len(set(found.values())) == 1
            print("  same bits" if len(set(found.values())) == 1 else f"  DIFFERENT BITS: {found}")
    return 0 if equal else 1


def memory(args):
    names = wanted(args, ["fully_shard", "ZeroRedundancyOptimizer", "DistributedDataParallel", "fully_shard, bfloat16",
                          "torch, fully_shard"])  # fmt: skip
    one = Ranks("pydist", 1, PROGRAM)
    try:
        one.ask_all("init", free_port(), numbered=True)
        for world in args.ranks:
            parameters = one.ask_all("make", "plain", args.model, args.batch // world, args.length, False)[0]
            plain = max(one.ask_all("memory", args.steps))
            kept = plain - 16 * parameters
            print(f"{args.model}, {world} ranks: {parameters:,} parameters, forward keeps {kept / MIB:.0f} MiB")
            for name in names:
                ranks = peer(name, world, args)
                try:
                    each = sum(ranks.ask_all("memory", args.steps)) / world
                finally:
                    ranks.close()
                print(f"  {name:32} {each / MIB:8.0f} MiB a rank, {(each - kept) / parameters:5.2f} bytes a parameter "
                      "beside that")  # fmt: skip
    finally:
        one.close()


def bits(args):
    names = ["DistributedDataParallel", "ZeroRedundancyOptimizer", "fully_shard", "fully_shard, gathered",
             "FullyShardedDataParallel"]  # fmt: skip
    equal = True
    for world, rule in itertools.product(args.ranks, args.optimizers):
        found = {}
        for name in names:
            ranks = peer(name, world, args, rule=rule)
            try:
                ranks.ask_all("steps", args.steps)
                found[name] = ranks.ask_all("bits")[0]
            finally:
                ranks.close()
        equal &= len(set(found.values())) == 1
        print(
            f"{args.model}, {world} ranks, {args.steps} steps of {rule}: {found if len(set(found.values())) > 1 else found[names[0]]}"
        )
    print("same bits" if equal else "DIFFERENT BITS")
    return 0 if equal else 1


def highest_sum(samples):
    """The highest sum of what several ranks have seen, each as (time, bytes): at each time everyone's last bytes count."""
    now, most = [0] * len(samples), 0
    for _, rank, held in sorted((at, rank, held) for rank, seen in enumerate(samples) for at, held in seen):
        now[rank] = held
        most = max(most, sum(now))
    return most


def construct(args):
    for world in args.ranks:
        ranks = peer("fully_shard", world, args, model=False)
        try:
            found = ranks.ask_all("construct", args.model, args.length)
        finally:
            ranks.close()
        highest, once, parameters = highest_sum([f[0] for f in found]), found[0][1], 4 * found[0][2]
        print(
            f"{args.model}, {world} ranks: {highest / MIB:.0f} MiB in all, {highest / parameters:.3f} of the parameters; "
            f"the files in which these lie: {once / parameters:.3f}"
        )


def step(args):
    names = ["DistributedDataParallel", "ZeroRedundancyOptimizer"]
    worst = 0.0
    for world in args.ranks:
        peers = {name: peer(name, world, args) for name in names}
        try:
            rounds = []
            for _ in range(args.rounds + 1):
                rounds.append({n: statistics.median(max(t) for t in zip(*p.ask_all("updates", args.steps), strict=True))
                               for n, p in peers.items()})  # fmt: skip
        finally:
            for ranks in peers.values():
                ranks.close()
        del rounds[0]  # makes the states
        ratio = statistics.median(r[names[1]] / r[names[0]] for r in rounds)
        worst = max(worst, ratio * (world == 2))
        figures = ", ".join(f"{name} {statistics.median(r[name] for r in rounds) * 1e3:.1f} ms" for name in names)
        print(f"{args.model}, {world} ranks, step of AdamW: {figures}, {ratio:.2f} x")
    return 1 if worst > MOST["step"] else 0


def norms(args):
    one = Ranks("pydist", 1, PROGRAM)
    try:
        one.ask_all("init", free_port(), numbered=True)
        rounds = one.ask_all("norms", args.elements, 3 * args.rounds)[0]
    finally:
        one.close()
    exact, reading = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratio = statistics.median(a / b for a, b in rounds)
    print(
        f"{args.elements:,} floats, 1 thread: exact squares {exact * 1e3:.1f} ms, read {reading * 1e3:.1f} ms, {ratio:.2f} x"
    )
    return 1 if ratio > MOST["norms"] else 0


def pages(args):
    one = Ranks("pydist", 1, PROGRAM)
    try:
        one.ask_all("init", free_port(), numbered=True)
        found = one.ask_all("pages", 3 * args.rounds)[0]
    finally:
        one.close()
    for k, what in enumerate(("a product with a weight", "a sum of it")):
        base = found["private"][k]
        for name, seconds in found.items():
            ratio = statistics.median(a / b for a, b in zip(seconds[k], base, strict=True))
            print(f"{what} in {name} memory: {statistics.median(seconds[k]) * 1e3:.1f} ms, {ratio:.3f} x private")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "what", choices=["speed", "alone", "hosts", "memory", "bits", "construct", "step", "norms", "pages"]
    )
    parser.add_argument("--model", default="nano", help="a size of workloads/gpt.py: nano, baby, 124M, 355M")
    parser.add_argument("--ranks", default="2", type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--batch", default=12, type=int, help="texts of all ranks together")
    parser.add_argument("--length", default=64, type=int, help="tokens of a text")
    parser.add_argument("--steps", default=10, type=int)
    parser.add_argument("--rounds", default=5, type=int)
    parser.add_argument("--processes", default=32, type=int, help="for alone: of each form, an even number")
    parser.add_argument("--optimizers", default="AdamW,LAMB", type=lambda text: text.split(","), help="for bits")
    parser.add_argument("--forms", metavar="FORM; FORM", help=f"only these of: {'; '.join(FORMS)}")
    parser.add_argument("--elements", default=124_000_000, type=int, help="for norms")
    args = parser.parse_args()
    print(machine())
    cases = {
        "speed": speed,
        "alone": alone,
        "hosts": hosts,
        "pages": pages,
        "memory": memory,
        "bits": bits,
        "construct": construct,
        "step": step,
        "norms": norms,
    }
    return cases[args.what](args)


if __name__ == "__main__":
    raise SystemExit(main())
