"""`python -m benchmarks.keras [case ...]`: steps of Keras' fit over pydist, beside Keras over torch and over TensorFlow.

Each peer is a process of its own, which sleeps while the others work. In a round each trains a few epochs, and its best
epoch counts; a ratio is the median of the rounds' ratios, of wall time and of processor time. The peers may live in other
environments: `--torch PYTHON`, `--tensorflow PYTHON`. On a busy machine only ratios mean something, and those of processor
time more than those of wall time.
"""

import argparse
import os
import statistics
import subprocess
import sys
from importlib.util import find_spec

from benchmarks.harness import PROGRAMS, ROOT

CASES = {  # steps of an epoch; what pydist's time may be: times Keras over torch, and over TensorFlow
    "mlp": ("784-128-10, batch 64", 100, 0.30, 0.75),
    "convnet": ("two convolutions, 28 x 28, batch 128", 10, 0.55, 0.75),
    "resnet18": ("ResNet-18 in its CIFAR form, batch 32", 2, 0.75, 0.85),
    "lstm": ("Embedding and LSTM, 128 wide, T 80, batch 32", 10, 0.25, 0.5),
}
OTHERS = {  # more bars: (this peer's time, that peer's, the case, the bar)
    "without replay": ("eager", "torch", "mlp", 0.55),
    "verbose=1": ("verbose", "pydist", "mlp", 1.05),
}


class Peer:
    def __init__(self, name, python, threads):
        backend = name if name in ("torch", "tensorflow") else "pydist"
        env = {**os.environ, "OMP_NUM_THREADS": str(threads), "TF_NUM_INTRAOP_THREADS": str(threads),
               "TF_NUM_INTEROP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}  # fmt: skip
        env |= {"PYTHONPATH": str(ROOT)} if backend == "pydist" else {"KERAS_BACKEND": backend}
        env |= {"PYDIST_REPLAY": "0"} if name == "eager" else {}
        command = [python, str(PROGRAMS / "keras_fit.py"), backend, str(threads)]
        self.name, self.verbose = name, int(name == "verbose")
        self.process = subprocess.Popen(
            command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def ask(self, case, steps, epochs):
        """Seconds of a step, and processor seconds; with no epochs, seconds of the first step."""
        self.process.stdin.write(f"{case} {steps} {epochs} {self.verbose}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name}: the process of the peer ended in {case} (expected an answer)")
        return [float(word) for word in line.split()]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def ratio(samples, mine, theirs, column):
    return statistics.median(a[column] / b[column] for a, b in zip(samples[mine], samples[theirs]))


def compare(case, peers, rounds, epochs):
    """Prints the times of a step and the ratios."""
    title, steps, *_ = CASES[case]
    for peer in peers:
        peer.ask(case, steps, 2)  # builds, records
    samples = {peer.name: [] for peer in peers}
    for _ in range(rounds):
        for peer in peers:
            samples[peer.name].append(peer.ask(case, steps, epochs))
    print(f"{case}: {title}")
    for name, found in samples.items():
        wall, cpu = (1e3 * statistics.median(column) for column in zip(*found))
        print(f"  {name:12} {wall:10.3f} ms  {cpu:10.3f} ms of processors")
    rows = [(name, "pydist", name, bar) for name, bar in zip(("torch", "tensorflow"), CASES[case][2:])]
    rows += [(name, a, b, bar) for name, (a, b, of, bar) in OTHERS.items() if of == case]
    for name, mine, theirs, bar in rows:
        if mine in samples and theirs in samples:
            found = [ratio(samples, mine, theirs, column) for column in (0, 1)]
            print(f"  {mine} over {theirs} ({name}): {found[0]:.2f}, of processors {found[1]:.2f} (wanted: {bar:g})")
    sys.stdout.flush()


def first_step(pythons, threads, rounds):
    """Prints how long the first step of the convnet takes in a new process, import excluded."""
    samples = {}
    for _ in range(rounds):
        for name, python in pythons.items():
            peer = Peer(name, python, threads)
            samples.setdefault(name, []).append(peer.ask("convnet", 1, 0))
            peer.close()
    print("first: the first step of the convnet, import excluded")
    for name, found in samples.items():
        line = f"  {name:12} {1e3 * statistics.median(row[0] for row in found):10.1f} ms"
        print(line + (f"  pydist's over it: {ratio(samples, 'pydist', name, 0):.2f}" if name != "pydist" else ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="case", help=f"of {', '.join(CASES)}, first; default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=4, help="of a peer in a round")
    parser.add_argument("--threads", type=int, default=2)
    for name in ("torch", "tensorflow"):
        here = sys.executable if find_spec(name) and find_spec("keras") else None
        parser.add_argument(f"--{name}", metavar="PYTHON", default=here, help="the interpreter that has it, and Keras")
    args = parser.parse_args()
    unknown = set(args.cases) - {*CASES, "first"}
    if unknown:
        parser.error(f"no case {', '.join(sorted(unknown))} (expected {', '.join(CASES)}, first)")
    theirs = {name: python for name, python in (("torch", args.torch), ("tensorflow", args.tensorflow)) if python}
    for case in args.cases or [*CASES, "first"]:
        if case == "first":
            first_step({"pydist": sys.executable, **theirs}, args.threads, args.rounds)
            continue
        ours = ("pydist", "eager", "verbose") if case == "mlp" else ("pydist",)
        peers = [
            Peer(name, python, args.threads)
            for name, python in {**dict.fromkeys(ours, sys.executable), **theirs}.items()
        ]
        try:
            compare(case, peers, args.rounds, args.epochs)
        finally:
            for peer in peers:
                peer.close()


if __name__ == "__main__":
    main()
