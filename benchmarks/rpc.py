"""`python -m benchmarks.rpc [case ...]`: remote calls beside torch's tensorpipe agent, on one host.

The processes of both libraries run one program (programs/rpc_rank.py) and live until the end. In each round one library
measures a case while the other's processes sleep, and then the other does. A figure is the median of the rounds'
medians, p99 is of all calls, and a ratio is the median of the rounds' ratios, pydist's time over torch's: less is better. `busy`
is `add_1k` while the callee's main thread computes. `step` trains two layers of which the other process has one, with
distributed autograd and DistributedOptimizer.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from multiprocessing import Pipe
from pathlib import Path

from benchmarks.harness import PROGRAMS, ROOT
from benchmarks.paired import installed
from benchmarks.report import duration, machine

CASES = {  # title, order, what pydist's median has to be at most of torch's, and its p99
    "echo_1k": ("Python function returns its tensor of 1 KiB", ("echo", 1 << 10, 500), 0.5, 0.7),
    "echo_1m": ("the same of 1 MiB", ("echo", 1 << 20, 60), 0.5, 0.7),
    "echo_64m": ("the same of 64 MiB", ("echo", 64 << 20, 3), 0.6, None),
    "add_1k": ("rpc_sync(to, add, ...) of 1 KiB", ("add", 1 << 10, 500), 0.35, 0.7),
    "async_echo": ("64 calls outstanding, Python function, 1 KiB", ("outstanding", "echo", 1 << 10, 10), 1 / 3, None),
    "async_add": ("64 calls outstanding, add, 1 KiB", ("outstanding", "add", 1 << 10, 10), 1 / 6, None),
    "to_here": ("to_here of 1 MiB", ("to_here", 1 << 20, 60), 0.5, 0.7),
    "busy": ("add of 1 KiB, callee's main thread in a Python loop", ("busy", 1 << 10, 40), None, None),
    "step": ("training step of a split MLP, 256 wide, batch 64", ("step", 256, 64, 40), 0.5, None),
    "cycle": ("init_rpc and shutdown of 8 workers", None, 0.5, None),
}
WORKERS = 8  # of the case "cycle"
BUSY = 2  # pydist's median of "busy" over that of "add_1k", at most
SECONDS = 120  # for an order


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Ranks:
    """Processes of one library, one for each rank, that run a program and do what they are asked for. `within`: for each
    rank the words before its command (hosts.py)."""

    def __init__(self, lib, world, program="rpc_rank.py", within=None, **variables):
        self.lib, self.world = lib, world
        self.log = tempfile.TemporaryFile("w+")
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **variables}
        self.connections, self.processes = [], []
        for rank in range(world):
            ours, theirs = Pipe()
            command = [
                *(within[rank] if within else ()),
                sys.executable,
                str(PROGRAMS / program),
                lib,
                str(theirs.fileno()),
            ]
            self.processes.append(
                subprocess.Popen(command, env=env, stdout=self.log, stderr=self.log, pass_fds=[theirs.fileno()])
            )
            theirs.close()
            self.connections.append(ours)

    def answer(self, rank, order):
        connection = self.connections[rank]
        try:
            state, value = connection.recv() if connection.poll(SECONDS) else ("failed", "it hangs")
        except (EOFError, ConnectionError):
            state, value = "failed", "it ended"
        if state == "failed":
            self.log.seek(0)
            raise RuntimeError(f"{self.lib}, rank {rank}: {order}: {value}\n{self.log.read()[-4000:]}")
        return value

    def ask(self, rank, *order):
        self.connections[rank].send(order)
        return self.answer(rank, order)

    def ask_all(self, *order, numbered=False):
        """The answers of all ranks; `numbered`: each gets (method, its rank, world, *arguments)."""
        method, *rest = order
        for rank, connection in enumerate(self.connections):
            connection.send((method, rank, self.world, *rest) if numbered else order)
        return [self.answer(rank, order) for rank in range(self.world)]

    def close(self):
        for connection in self.connections:
            connection.close()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.log.close()


class Peer:
    """One library: two ranks that call each other, and as many as "cycle" needs."""

    def __init__(self, lib, cases):
        self.lib = lib
        self.pair = self.many = None
        if set(cases) - {"cycle"}:
            self.pair = Ranks(lib, 2)
            self.pair.ask_all("init", free_port(), numbered=True)
        if "cycle" in cases:
            self.many = Ranks(lib, WORKERS)
            self.many.ask_all("cycle", free_port(), numbered=True)  # what a process does only once

    def measure(self, case):
        """Samples in seconds."""
        order = CASES[case][1]
        if case == "cycle":
            return [max(self.many.ask_all("cycle", free_port(), numbered=True))]
        if case == "busy":
            self.pair.connections[1].send(("spin",))
        seconds = self.pair.ask(0, *order)
        if case == "busy":
            self.pair.answer(1, "spin")
        return seconds

    def end(self):
        if self.pair:
            self.pair.ask_all("shutdown")

    def close(self):
        for ranks in filter(None, (self.pair, self.many)):
            ranks.close()


def p99(seconds):
    return sorted(seconds)[int(len(seconds) * 0.99)]


def verdict(ratio, bar):
    return f"{ratio:6.2f}" + (f" (wanted: {bar:.2f}{'' if ratio <= bar else ', missed'})" if bar else "")


def show(case, samples, idle):
    """Prints one case; `samples`: {library: [seconds of each call] of each round}; `idle`: medians of add_1k."""
    title, _, bar, tail_bar = CASES[case]
    print(f"{case}: {title}")
    medians = {lib: [statistics.median(seconds) for seconds in rounds] for lib, rounds in samples.items()}
    tails = {lib: p99([s for seconds in rounds for s in seconds]) for lib, rounds in samples.items()}
    result = {"case": case, "title": title, "bar": bar}
    for lib, middle in medians.items():
        mine = statistics.median(middle)
        result[lib] = {"median": mine, "p99": tails[lib], "rounds": middle}
        line = f"  {lib:7} {duration(mine):>9}"
        if case.startswith("async"):
            line += f"  {1 / mine:10,.0f} calls/s"
        if tail_bar or case == "busy":
            line += f"  p99 {duration(tails[lib]):>9}"
        if case == "busy" and lib in idle:
            times = mine / idle[lib]
            line += f"  {times:.2f} times idle" + (f" (wanted: {BUSY})" if lib == "pydist" else "")
        print(line)
    if len(medians) == 2:
        result["ratio"] = statistics.median(a / b for a, b in zip(medians["pydist"], medians["torch"]))
        line = f"  ratio {verdict(result['ratio'], bar)}"
        if tail_bar:
            result["p99_ratio"] = tails["pydist"] / tails["torch"]
            line += f", of p99 {verdict(result['p99_ratio'], tail_bar)}"
        print(line)
    sys.stdout.flush()
    return result


def run(cases, libs, rounds):
    """The results of the cases."""
    peers, results, idle = [], [], {}
    try:
        for lib in libs:
            peers.append(Peer(lib, cases))
        for case in cases:
            samples = {lib: [] for lib in libs}
            for _ in range(rounds):
                for peer in peers:
                    samples[peer.lib].append(peer.measure(case))
            results.append(show(case, samples, idle))
            if case == "add_1k":
                idle = {lib: results[-1][lib]["median"] for lib in libs}
        for peer in peers:
            peer.end()
    finally:
        for peer in peers:
            peer.close()
    return results


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rpc", description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="case", help=f"of {', '.join(CASES)}; default: all")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--frameworks", default="pydist,torch", help="of pydist, torch")
    parser.add_argument("--json", metavar="FILE", help="the results as data")
    args = parser.parse_args()
    unknown = set(args.cases) - CASES.keys()
    if unknown:
        parser.error(f"no case {', '.join(sorted(unknown))} (expected {', '.join(CASES)})")
    libs = [lib for lib in args.frameworks.split(",") if installed(lib)]
    if not libs or set(libs) - {"pydist", "torch"}:
        parser.error(f"--frameworks {args.frameworks} (expected pydist, torch or both, installed)")
    results = run([case for case in CASES if case in (args.cases or CASES)], libs, args.rounds)
    if args.json:
        data = {"machine": machine(), "rounds": args.rounds, "results": results}
        Path(args.json).write_text(json.dumps(data, indent=1))


if __name__ == "__main__":
    main()
