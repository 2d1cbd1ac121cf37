"""Runs the programs of a case in turn, round after round, and prints ratios with both numbers.

A program measures itself and prints seconds as its last line. Rounds are interleaved so that a slow minute of the
machine hits all peers; a short loop of plain Python before each run (the probe) says how slow it was.
"""

import os
import statistics
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
ROOT = PROGRAMS.parent.parent


def program(name, *args):
    return [sys.executable, str(PROGRAMS / f"{name}.py"), *map(str, args)]


class Case:
    """`peers` maps names to commands, pydist's first; `needs` maps a peer to modules without which it is left out; `work`
    is the least that any program has to do, ("bytes", n), for the share of the machine's limit."""

    def __init__(self, name, unit, peers, needs=None, work=None):
        self.name, self.unit, self.work = name, unit, work
        self.peers = {
            peer: command for peer, command in peers.items() if all(map(find_spec, (needs or {}).get(peer, ())))
        }


def probe():
    begin = time.perf_counter()
    sum(range(300_000))
    return time.perf_counter() - begin


def measure(command, root=ROOT):
    """(seconds that the program printed, seconds of the probe, what it printed as "note: ..."), with root's pydist."""
    spin = min(probe() for _ in range(3))
    path = os.pathsep.join(filter(None, (str(root), str(ROOT), os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "PYTHONPATH": path, "BENCHMARK_START": repr(time.time())}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    notes = [line.partition("note: ")[2] for line in done.stdout.splitlines() if "note: " in line]
    return float(done.stdout.split()[-1]), spin, notes


def run(case, rounds):
    """Prints one line per peer: its best and median, how many times pydist's best it is, and its share of the limit."""
    scale = {"s": 1, "ms": 1e3, "us": 1e6, "ns": 1e9}[case.unit]
    samples, spins, limits, notes = {peer: [] for peer in case.peers}, [], [], {}
    for _ in range(rounds):
        for peer, command in case.peers.items():
            seconds, spin, notes[peer] = measure(command)
            samples[peer].append(seconds * scale)
            spins.append(spin)
        if case.work:
            limits.append(measure(program("limit", *case.work))[0] * scale)
    ours = min(next(iter(samples.values())))
    print(f"{case.name}  (probe: worst {max(spins) / min(spins):.2f} times the best)")
    for peer, values in samples.items():
        best = min(values)
        line = f"  {peer:24} {best:10.3f} {case.unit}  median {statistics.median(values):10.3f}  {best / ours:8.2f}x"
        print(line + (f"  {min(limits) / best:6.1%} of the limit" if limits else ""))
        for note in notes[peer]:
            print(f"    {note}")
    if limits:
        print(f"  {'limit':24} {min(limits):10.3f} {case.unit}  {case.work[1] / 1e6:.3g} million {case.work[0]}")
    sys.stdout.flush()
