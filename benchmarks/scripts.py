"""`python benchmarks/scripts.py REPOS DATA [--list public.json]`: real scripts under torch and under pydist.

REPOS holds checked-out repositories as <owner>+<name>, DATA the data folder. Each script runs in a fresh copy of its
repository, once for each peer and with the same limit of time, its standard input a terminal; nothing is fetched. The
table says whether it ran to the end or to the limit, the loss, accuracy or score that it printed on the last line that
both peers reached, how many times faster pydist was (with ~: by lines printed until the limit) and, where it failed,
what was missing first. `!` marks numbers that are a quarter or more apart over the lines before: look there. The last
lines count what ran and give the reason for each script that did not.
"""

import argparse
import fcntl
import gzip
import json
import math
import os
import pickle
import pty
import re
import shlex
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tarfile
import tempfile
import termios
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from pydist.compat import environment

METRIC = re.compile(
    r"(?P<name>[\w ./-]{0,24}\b(?:loss|acc(?:uracy)?|error|cost|perplexity|ppl|reward|score|elbo|bpc)\w*)"
    r"[^\w\n-]{0,12}(?:\w+[=:]\s*)?(?P<value>-?\d+\.?\d*(?:e[-+]?\d+)?)",
    re.IGNORECASE,
)
MISSING = re.compile(r"(?:pydist has no (?:module )?|no attribute |cannot import name )'?([\w.]+)")
PRETENDED = 2  # GPUs
CIFAR10, CIFAR100 = {"data": [["data", "@torchvision"]]}, {"data": [["data", "@cifar100"]]}
RENTAINHE = "{py} distributed.py --ip 127.0.0.1 --local_rank"
# What the list leaves out and scripts ask for: arguments and ranks as their READMEs have them, data where they would
# download it.
COMPLETED = {
    "pytorch/examples/distributed/ddp/example.py": {"nproc": 2},
    "pytorch/examples/distributed/ddp-tutorial-series/single_gpu.py": {"args": "3 2"},
    "pytorch/examples/distributed/ddp-tutorial-series/multigpu.py": {"args": "3 2"},
    "pytorch/examples/distributed/tensor_parallelism/tensor_parallel_example.py": {"nproc": 2},
    "The-AI-Summer/pytorch-ddp/train_1gpu.py": CIFAR10,
    "The-AI-Summer/pytorch-ddp/train_dp.py": CIFAR10,
    "kuangliu/pytorch-cifar/main.py": CIFAR10,
    "y0ast/pytorch-snippets/minimal_cifar/train_cifar.py": {"data": [["data/CIFAR10", "@torchvision"]]},
    "rentainhe/pytorch-distributed-training/dataparallel.py": CIFAR100,
    "rentainhe/pytorch-distributed-training/distributed.py": {
        **CIFAR100,
        "cmd": f'sh -c "{RENTAINHE} 0 & {RENTAINHE} 1; wait"',
    },  # fmt: skip
}


class Sources:
    """Where a script's data comes from: paths in the data folder, or a folder made once in `made`."""

    def __init__(self, data, made):
        self.data, self.made = Path(data).resolve(), Path(made)

    def __call__(self, source):
        if not source.startswith("@"):
            return self.data / source
        folder = self.made / source[1:]
        if not folder.exists():
            folder.mkdir(parents=True)
            getattr(self, source[1:])(folder)
        return folder

    def torchvision(self, folder):
        for name, ours in (("MNIST", "mnist"), ("FashionMNIST", "fashion-mnist")):
            (folder / name / "raw").mkdir(parents=True)
            for path in (self.data / ours).glob("*.gz"):
                shutil.copy(path, folder / name / "raw")
                (folder / name / "raw" / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
        self.batches(folder / "cifar-10-batches-py", "labels", lambda name: name)

    def batches(self, folder, labels, renamed):
        folder.mkdir()
        for path in (self.data / "cifar-10").glob("*.bin.gz"):
            rows = np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8).reshape(-1, 3073)
            entry = {"data": rows[:, 1:], labels: rows[:, 0].tolist()}
            (folder / renamed(path.name.partition(".")[0])).write_bytes(pickle.dumps(entry))

    def cifar100(self, folder):
        """CIFAR-10's images and ten classes in the files of CIFAR-100, which the data folder lacks."""
        batches = folder / "cifar-100-python"
        self.batches(batches, "fine_labels", lambda name: "test" if name.startswith("test") else "train")
        names = [f"class {i}" for i in range(100)]
        (batches / "meta").write_bytes(pickle.dumps({"fine_label_names": names}))

    def wikitext(self, folder):
        text = self.data / "text"
        shutil.copy(text / "wikitext-2-valid.txt", folder / "train.txt")
        lines = (text / "wikitext-2-test.txt").read_text(encoding="utf-8").splitlines(keepends=True)
        for name, part in (("valid", lines[: len(lines) // 2]), ("test", lines[len(lines) // 2 :])):
            (folder / f"{name}.txt").write_text("".join(part), encoding="utf-8")

    def cora(self, folder):
        with tarfile.open(self.data / "cora/cora.tgz") as archive:
            archive.extractall(folder, filter="data")
        for path in (folder / "cora").iterdir():
            path.rename(folder / path.name)


def prepare(script, repository, sources, work):
    """A copy of the repository in `work` with the script's data in it."""
    shutil.copytree(repository, work, ignore=shutil.ignore_patterns(".git"))
    for destination, source in script.get("data", ()):
        to, source = work / destination, sources(source)
        to.parent.mkdir(parents=True, exist_ok=True)
        if source.is_file():
            to.unlink(missing_ok=True)
            shutil.copyfile(source, to)  # not the mode: the source may be read-only
        else:
            shutil.copytree(source, to, dirs_exist_ok=True, copy_function=shutil.copyfile)


def pretends(script):
    return "--cpu-as-cuda" in script.get("note", "")


def command(script, peer, work):
    """The command line for sh."""
    python, entry = shlex.quote(sys.executable), shlex.quote(str(work / script.get("entry", "")))
    if "cmd" in script:
        return script["cmd"].format(py=python)
    if "nproc" in script:
        start = "-m pydist.run --compat" if peer == "pydist" else "-m torch.distributed.run --standalone"
        start += f" --nproc-per-node {script['nproc']}"
    else:
        start = "-m pydist.compat" if peer == "pydist" else ""
    if peer == "pydist" and pretends(script):
        start += f" --cpu-as-cuda {PRETENDED}"
    return f"{python} {start} {entry} {script.get('args', '')}"


def run(line, cwd, env, limit):
    """(exit status or None at the limit, seconds, output). All that it started is ended."""
    ours, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    with tempfile.TemporaryFile() as out, open(ours), open(terminal):
        begin = time.perf_counter()
        child = subprocess.Popen(
            ["sh", "-c", line],
            cwd=cwd,
            env=env,
            stdin=terminal,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = child.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
        finally:  # also where this program is ended meanwhile
            seconds = time.perf_counter() - begin
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        out.seek(0)
        return status, seconds, out.read().decode("utf-8", "replace")


def metrics(text):
    """[(name, value)] of what looks like "loss 0.12" in a text."""
    return [(found["name"].strip(" .-/")[-16:], float(found["value"])) for found in METRIC.finditer(text)]


def compared(results):
    """{peer: "name value" of the last line that all peers reached, "" without one}, and whether the means over the last
    quarter of the lines that they share are a quarter or more apart."""
    lists = [result["metrics"] for result in results.values()]
    shared = min((len(one) for one in lists if one), default=0)
    last = {peer: "%s %g" % one[shared - 1] if one else "" for peer, one in zip(results, lists)}
    if len(lists) < 2 or not all(lists):
        return last, False
    name, tail = lists[0][shared - 1][0], slice(shared - 1 - shared // 4, shared)
    ours, theirs = (statistics.fmean([v for n, v in one[tail] if n == name] or [math.nan]) for one in lists)
    return last, abs(ours - theirs) > 0.25 * max(abs(ours), abs(theirs))


def reason(text):
    """What was missing first, or the error's last line."""
    errors = [line for line in text.splitlines() if re.match(r"(?:\[\d+\] )?(?:E +)?[\w.]*(?:Error|Exception)\b", line)]
    if not errors:
        return "\n".join(text.splitlines()[-1:])[:100]
    named = next((found[1] for line in errors if (found := MISSING.search(line))), "")
    return f"{named}: {errors[0]}"[:140] if named else errors[-1][:140]


def attempt(script, peer, folder, sources, limit, keep):
    """{"how": "end", "limit" or "failed", seconds, metrics, reason}."""
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary) / "repository"
        prepare(script, folder / script["repo"].replace("/", "+"), sources, work)
        env = {**os.environ, "PYTHONUNBUFFERED": "1", "MPLBACKEND": "Agg", "TQDM_DISABLE": "1", **script.get("env", {})}
        if peer == "pydist":
            env = environment({**env, **({"PYDIST_CPU_AS_CUDA": str(PRETENDED)} if pretends(script) else {})})
        cwd = work / script.get("cwd", "")
        for line in script.get("pre", ()):
            status, _, text = run(line.format(py=shlex.quote(sys.executable)), cwd, env, limit)
            if status:
                return {"how": "failed", "seconds": 0.0, "metrics": [], "reason": f"before: {reason(text)}"}
        status, seconds, text = run(command(script, peer, work), cwd, env, limit)
    if keep:
        Path(keep).mkdir(parents=True, exist_ok=True)
        (Path(keep) / f"{script['id'].replace('/', '+')}.{peer}.txt").write_text(text)
    broken = "Traceback (most recent call last)" in text
    how = ("failed" if broken else "limit") if status is None else "failed" if status else "end"
    return {"how": how, "seconds": seconds, "metrics": metrics(text), "reason": reason(text)}


def ratio(ours, theirs):
    """How many times faster pydist was, as text."""
    if ours["how"] == theirs["how"] == "end":
        return f"{theirs['seconds'] / ours['seconds']:.2f}"
    lines = [len(ours["metrics"]), len(theirs["metrics"])]
    if "failed" not in (ours["how"], theirs["how"]) and min(lines) > 2:
        return f"~{lines[0] / ours['seconds'] / (lines[1] / theirs['seconds']):.2f}"
    return "-"


def row(script, results):
    """A line of the table."""
    last, apart = compared(results)
    cells = [f"{script['id'][-52:]:52}{'!' if apart else ' '}"]
    for peer, result in results.items():
        cells.append(f"{result['how']:6} {result['seconds']:6.1f}s {last[peer][:26]:26}")
    cells.append(f"{ratio(*results.values()):>6}" if len(results) == 2 else "")
    ours = results.get("pydist")
    return "  ".join([*cells, ours["reason"] if ours and ours["how"] == "failed" else ""]).rstrip()


def needs(script):
    """The packages that it needs and this Python lacks."""
    return [name for name in script.get("pip", "").split() if not find_spec(name.replace("-", "_"))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("repositories", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--list", type=Path, help="the scripts (default: ../scripts/public.json beside the data)")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for each run")
    parser.add_argument("--only", default="", help="scripts whose id has this text")
    parser.add_argument("--peer", choices=("both", "pydist", "torch"), default="both")
    parser.add_argument("--keep", help="a folder for what the scripts printed")
    args = parser.parse_args()
    peers = ["pydist", "torch"] if args.peer == "both" else [args.peer]
    if "torch" in peers and not find_spec("torch"):
        peers.remove("torch")
    listed = json.loads((args.list or args.data.resolve().parent / "scripts/public.json").read_text())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    ran, reasons = 0, {}
    with tempfile.TemporaryDirectory() as made:
        sources = Sources(args.data, made)
        for script in (script for script in listed if args.only in script["id"]):
            script = {**script, **COMPLETED.get(script["id"], {})}
            entry = args.repositories / script["repo"].replace("/", "+") / script["entry"]
            lacking = needs(script)
            if lacking or not entry.exists():
                reasons[script["id"]] = f"not tried: {'no ' + ', '.join(lacking) if lacking else f'no {entry}'}"
                print(f"{script['id'][-52:]:52}  {reasons[script['id']]}")
                continue
            results = {}
            for peer in peers:
                results[peer] = attempt(script, peer, args.repositories, sources, args.limit, args.keep)
            print(row(script, results), flush=True)
            ours = results[peers[0]]
            if ours["how"] == "failed":
                reasons[script["id"]] = ours["reason"]
            else:
                ran += 1
    print(f"{ran} of {ran + len(reasons)} ran to the end or to the limit under {peers[0]}")
    for name, why in reasons.items():
        print(f"  {name}: {why}")


if __name__ == "__main__":
    main()
