"""`python -m benchmarks.sharding {speed,memory,bits,construct} [options]`: sharded training on one host, beside torch.

speed: tokens per second of a GPT that fully_shard has sharded, beside DistributedDataParallel and torch's fully_shard over
gloo, each rank with one thread. The forms' processes live until the end and train in turns; a ratio is the median of the
rounds' ratios of tokens per second: more is better.

memory: the highest sum over the ranks of what they have in memory (Pss: what W ranks map counts 1/W in each), less the
level after the import, divided by the number of ranks. `bound`: 16 P / W bytes for parameters, gradients and AdamW's
states, the gradient slots (the embedding and three blocks), and what forward keeps, which one process without sharding
shows.

bits: a hash of the parameters after 20 steps of DistributedDataParallel, ZeRO-1, fully_shard, in common memory and
gathered, and FullyShardedDataParallel.

construct: the highest memory of all ranks together while a model that begins on meta is sharded and filled, over that of
its parameters.
"""

import argparse
import statistics

from benchmarks.paired import installed
from benchmarks.report import machine
from benchmarks.rpc import Ranks, free_port

PROGRAM = "sharded_rank.py"
FORMS = {  # name: library, form, variables, 16 bits
    "DistributedDataParallel": ("pydist", "ddp", {}, False),
    "ZeroRedundancyOptimizer": ("pydist", "zero1", {}, False),
    "fully_shard": ("pydist", "fully_shard", {}, False),
    "fully_shard, gathered": ("pydist", "fully_shard", {"PYDIST_FSDP": "private"}, False),
    "FullyShardedDataParallel": ("pydist", "fsdp1", {}, False),
    "fully_shard, bfloat16": ("pydist", "fully_shard", {}, True),
    "torch, DistributedDataParallel": ("torch", "ddp", {}, False),
    "torch, fully_shard": ("torch", "fully_shard", {}, False),
}
MIB = 1 << 20


def peer(name, world, args, model=True):
    lib, form, variables, low = FORMS[name]
    ranks = Ranks(lib, world, PROGRAM, **variables)
    try:
        ranks.ask_all("init", free_port(), numbered=True)
        if model:
            ranks.parameters = ranks.ask_all("make", form, args.model, args.batch, args.length, low)[0]
    except BaseException:
        ranks.close()
        raise
    return ranks


def wanted(args, names):
    """Of a list of forms, those that the arguments do not leave out and whose library is there."""
    return [name for name in names if (args.forms is None or name in args.forms.split("; "))
            and (FORMS[name][0] == "pydist" or installed("torch"))]  # fmt: skip


def speed(args):
    names = wanted(
        args, ["DistributedDataParallel", "fully_shard", "fully_shard, gathered", "torch, DistributedDataParallel",
               "torch, fully_shard"]
    )  # fmt: skip
    for world in args.ranks:
        peers = {name: peer(name, world, args) for name in names}
        try:
            for ranks in peers.values():
                ranks.ask_all("steps", 2)
            rounds = []
            for _ in range(args.rounds):
                rounds.append({n: statistics.median(max(t) for t in zip(*p.ask_all("steps", args.steps), strict=True))
                               for n, p in peers.items()})  # fmt: skip
        finally:
            for ranks in peers.values():
                ranks.close()
        print(f"{args.model}, {world} ranks of 1 thread, batch {args.batch} x {args.length}")
        for name in names:
            seconds = statistics.median(r[name] for r in rounds)
            ratios = [f"{statistics.median(r[other] / r[name] for r in rounds):5.2f} x {other}" for other in names
                      if other != name and ("Distributed" in other or "torch" in other)]  # fmt: skip
            print(f"  {name:32} {args.batch * args.length / seconds:8.0f} tokens/s  {', '.join(ratios)}")


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
    for world in args.ranks:
        found = {}
        for name in names:
            ranks = peer(name, world, args)
            try:
                ranks.ask_all("steps", args.steps)
                found[name] = ranks.ask_all("bits")[0]
            finally:
                ranks.close()
        equal &= len(set(found.values())) == 1
        print(
            f"{args.model}, {world} ranks, {args.steps} steps: {found if len(set(found.values())) > 1 else found[names[0]]}"
        )
    print("same bits" if equal else "DIFFERENT BITS")
    return 0 if equal else 1


def construct(args):
    for world in args.ranks:
        ranks = peer("fully_shard", world, args, model=False)
        try:
            found = ranks.ask_all("construct", args.model, args.length)
        finally:
            ranks.close()
        highest, parameters = sum(bytes_ for bytes_, _ in found), found[0][1]
        print(
            f"{args.model}, {world} ranks: {highest / MIB:.0f} MiB in all, {highest / (4 * parameters):.3f} of the parameters"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "memory", "bits", "construct"])
    parser.add_argument("--model", default="nano", help="a size of workloads/gpt.py: nano, baby, 124M")
    parser.add_argument("--ranks", default="2", type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--batch", default=12, type=int, help="texts of all ranks together")
    parser.add_argument("--length", default=64, type=int, help="tokens of a text")
    parser.add_argument("--steps", default=10, type=int)
    parser.add_argument("--rounds", default=5, type=int)
    parser.add_argument("--forms", metavar="FORM; FORM", help=f"only these of: {'; '.join(FORMS)}")
    args = parser.parse_args()
    print(machine())
    return {"speed": speed, "memory": memory, "bits": bits, "construct": construct}[args.what](args)


if __name__ == "__main__":
    raise SystemExit(main())
