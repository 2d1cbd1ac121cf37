"""`python benchmarks/scripts.py REPOS DATA [--list public.json]`: real scripts under torch and under pydist.

REPOS holds checked-out repositories as <owner>+<name>, DATA the data folder. Each script runs in a fresh copy of its
repository, once for each peer and with the same limit of time; nothing is fetched. The table says whether it ran to the
end or to the limit, the last loss, accuracy or score that it printed, how many times faster pydist was (with ~: by lines
printed until the limit) and, where it failed, what was missing first.
"""

import argparse
import gzip
import json
import os
import pickle
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from pydist.compat import environment  # noqa: E402

METRIC = re.compile(
    r"(?P<name>[\w ./-]{0,24}\b(?:loss|acc(?:uracy)?|error|cost|perplexity|ppl|reward|score|elbo|bpc)\w*)"
    r"[^\w\n-]{0,12}(?:\w+[=:]\s*)?(?P<value>-?\d+\.?\d*(?:e[-+]?\d+)?)",
    re.IGNORECASE,
)
MISSING = re.compile(r"(?:pydist has no (?:module )?|no attribute |cannot import name )'?([\w.]+)")
PRETENDED = 2  # GPUs


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
        batches = folder / "cifar-10-batches-py"
        batches.mkdir()
        for path in (self.data / "cifar-10").glob("*.bin.gz"):
            rows = np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8).reshape(-1, 3073)
            entry = {"data": rows[:, 1:], "labels": rows[:, 0].tolist()}
            (batches / path.name.partition(".")[0]).write_bytes(pickle.dumps(entry))

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


def command(script, peer, work):
    """(command line for sh, cwd, whether it is compat that runs it)."""
    python, entry = shlex.quote(sys.executable), shlex.quote(str(work / script.get("entry", "")))
    if "cmd" in script:
        return script["cmd"].format(py=python)
    if "nproc" in script:
        start = "-m pydist.run --compat" if peer == "pydist" else "-m torch.distributed.run --standalone"
        start += f" --nproc-per-node {script['nproc']}"
    else:
        start = "-m pydist.compat" if peer == "pydist" else ""
        if peer == "pydist" and "--cpu-as-cuda" in script.get("note", ""):
            start += f" --cpu-as-cuda {PRETENDED}"
    return f"{python} {start} {entry} {script.get('args', '')}"


def run(line, cwd, env, limit):
    """(exit status or None at the limit, seconds, output). All that it started is ended."""
    with tempfile.TemporaryFile() as out:
        begin = time.perf_counter()
        child = subprocess.Popen(
            ["sh", "-c", line], cwd=cwd, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = child.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
        seconds = time.perf_counter() - begin
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()
        out.seek(0)
        return status, seconds, out.read().decode("utf-8", "replace")


def metric(text):
    """The last "loss 0.12" of a text, or ""."""
    found = None
    for found in METRIC.finditer(text):
        pass
    return f"{found['name'].strip()[-16:]} {found['value']}" if found else ""


def reason(text):
    """What was missing first, or the error's last line."""
    errors = [line for line in text.splitlines() if re.match(r"(?:\[\d+\] )?(?:E +)?[\w.]*(?:Error|Exception)\b", line)]
    if not errors:
        return "\n".join(text.splitlines()[-1:])[:100]
    named = next((found[1] for line in errors if (found := MISSING.search(line))), "")
    return f"{named}: {errors[0]}"[:140] if named else errors[-1][:140]


def attempt(script, peer, folder, sources, limit, keep):
    """{"how": "end", "limit" or "failed", seconds, metric, lines, reason}."""
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary) / "repository"
        prepare(script, folder / script["repo"].replace("/", "+"), sources, work)
        env = {**os.environ, "PYTHONUNBUFFERED": "1", "MPLBACKEND": "Agg", "TQDM_DISABLE": "1", **script.get("env", {})}
        env = environment(env) if peer == "pydist" else env
        cwd = work / script.get("cwd", "")
        for line in script.get("pre", ()):
            status, _, text = run(line.format(py=shlex.quote(sys.executable)), cwd, env, limit)
            if status:
                return {"how": "failed", "seconds": 0.0, "metric": "", "lines": 0, "reason": f"before: {reason(text)}"}
        status, seconds, text = run(command(script, peer, work), cwd, env, limit)
    if keep:
        Path(keep).mkdir(parents=True, exist_ok=True)
        (Path(keep) / f"{script['id'].replace('/', '+')}.{peer}.txt").write_text(text)
    broken = "Traceback (most recent call last)" in text
    how = ("failed" if broken else "limit") if status is None else "failed" if status else "end"
    lines = len(METRIC.findall(text))
    return {"how": how, "seconds": seconds, "metric": metric(text), "lines": lines, "reason": reason(text)}


def ratio(ours, theirs):
    """How many times faster pydist was, as text."""
    if ours["how"] == theirs["how"] == "end":
        return f"{theirs['seconds'] / ours['seconds']:.2f}"
    if "failed" not in (ours["how"], theirs["how"]) and min(ours["lines"], theirs["lines"]) > 2:
        return f"~{ours['lines'] / ours['seconds'] / (theirs['lines'] / theirs['seconds']):.2f}"
    return "-"


def row(script, results):
    """A line of the table."""
    cells = [f"{script['id'][-52:]:52}"]
    for result in results.values():
        cells.append(f"{result['how']:6} {result['seconds']:6.1f}s {result['metric'][:26]:26}")
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
    good = tried = 0
    with tempfile.TemporaryDirectory() as made:
        sources = Sources(args.data, made)
        for script in (script for script in listed if args.only in script["id"]):
            entry = args.repositories / script["repo"].replace("/", "+") / script["entry"]
            lacking = needs(script)
            if lacking or not entry.exists():
                print(f"{script['id'][-52:]:52}  not tried: {'no ' + ', '.join(lacking) if lacking else 'not there'}")
                continue
            results = {}
            for peer in peers:
                results[peer] = attempt(script, peer, args.repositories, sources, args.limit, args.keep)
            print(row(script, results), flush=True)
            tried += 1
            good += results[peers[0]]["how"] != "failed"
    print(f"{len(listed)} listed, {tried} tried, {good} ran to the end or to the limit under {peers[0]}")


if __name__ == "__main__":
    main()
