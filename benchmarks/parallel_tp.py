"""`python -m benchmarks.parallel_tp [options]`: tensor parallel training of a LLaMA of debug size on two ranks of one thread,
beside one process with two threads, and beside torch's tensor parallel over gloo.

All processes live until the end and train in turns. A ratio is the median of the rounds' ratios of steps a second, pydist's
tensor parallel over the other: more is better. The bars of the default cases are printed beside; a busy machine moves
figures, so nothing fails.
"""

import argparse
import statistics

from benchmarks.paired import installed
from benchmarks.report import machine
from benchmarks.rpc import Ranks, free_port

FORMS = {  # name: library, ranks, threads, form
    "pydist, TP": ("pydist", 2, 1, "tp"),
    "pydist, TP and SP": ("pydist", 2, 1, "sp"),
    "pydist, one process": ("pydist", 1, 2, "plain"),
    "torch, TP": ("torch", 2, 1, "tp"),
    "torch, TP and SP": ("torch", 2, 1, "sp"),
}
BARS = {
    (8, 256): {"pydist, one process": 0.85, "torch, TP": 1.3},
    (1, 64): {"torch, TP": 3.0},
}


def case(args, texts, length):
    names, peers, rounds = [n for n in FORMS if installed(FORMS[n][0])], {}, []
    try:
        for name in names:
            lib, world, threads, form = FORMS[name]
            peers[name] = Ranks(lib, world, "tp_rank.py", OMP_NUM_THREADS=str(threads))
            peers[name].ask_all("init", free_port(), threads, numbered=True)
            peers[name].ask_all("make", form, texts, length)
        losses = {name: ranks.ask_all("loss")[0] for name, ranks in peers.items()}
        for ranks in peers.values():
            ranks.ask_all("steps", 3)
        for _ in range(args.rounds):
            rounds.append({n: statistics.median(max(t) for t in zip(*p.ask_all("steps", args.steps), strict=True))
                           for n, p in peers.items()})  # fmt: skip
    finally:
        for ranks in peers.values():
            ranks.close()
    ours = [losses[name] for name in names if name.startswith("pydist")]
    assert max(ours) - min(ours) < 1e-3, losses  # other forms of the same computation
    print(f"B {texts}, T {length}")
    for name in names:
        seconds = statistics.median(r[name] for r in rounds)
        ratio = statistics.median(r[name] / r["pydist, TP"] for r in rounds)
        bar = BARS.get((texts, length), {}).get(name)
        text = "" if name == "pydist, TP" else f", pydist, TP: {ratio:5.2f} x" + (f" (bar {bar})" if bar else "")
        print(f"  {name:20} {seconds * 1e3:8.1f} ms, {texts * length / seconds:8.0f} tokens/s{text}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5, help="of each round")
    parser.add_argument("--cases", default="8x256,1x64", help="texts x tokens")
    args = parser.parse_args()
    print(machine())
    for one in args.cases.split(","):
        case(args, *map(int, one.split("x")))


if __name__ == "__main__":
    main()
