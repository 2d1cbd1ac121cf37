"""Results as a table, a JSON file and a plot. A result is a dictionary: see benchmarks/README.md."""

import json
import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version


def machine():
    """What the figures belong to."""
    model = next(
        (line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    versions = {}
    for name in ("torch", "jax", "tensorflow", "numpy"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            pass
    return {"cpu": model, "cores": len(os.sched_getaffinity(0)), "python": platform.python_version(), "versions": versions,
            "date": time.strftime("%Y-%m-%d %H:%M")}  # fmt: skip


def duration(seconds):
    for unit, size in (("s", 1), ("ms", 1e3), ("us", 1e6)):
        if seconds * size >= 1 or unit == "us":
            return f"{seconds * size:.3g} {unit}"


def print_workload(results):
    """One workload's peers, the fastest peer's ratio last."""
    first = results[0]
    print(f"\n{first['name']}, {first['dtype']}, {first['ranks']} x {first['threads']} threads"
          f"  ({first['repeats']} repeats, {first['discarded']} discarded)")  # fmt: skip
    for r in results:
        line = f"  {r['framework']:14} {duration(r['median']):>9} +- {duration(r['iqr']):>8}  {r['ratio']:5.2f}x"
        line += f"  {r['flops'] / r['median'] / 1e9:6.0f} GFLOP/s ({r['share']:4.0%})" if r["flops"] else ""
        print(line + f"  peak {r['peak'] / 2**20:7.1f} MiB  {r['hash']}")
    if len(results) > 1:
        best = min(results[1:], key=lambda r: r["median"])
        print(f"  best peer: {best['framework']}, {best['ratio']:.2f} times pydist's time")
    if not first["same"]:
        print(f"  BITS DIFFER: {first['hashes']}")


def print_ops(results, peer):
    """A line for each op and size, and how many of them are slower than `peer`."""
    print(f"\n{'op':38} {'elements':>9} {'pydist':>9} {peer:>9}  ratio     GB/s")
    for r in sorted(results, key=lambda r: r["ratio"]):
        print(
            f"{r['name']:38} {r['size']:9} {duration(r['median']):>9} {duration(r['peer']):>9}  {r['ratio']:5.2f}x  {r['rate'] / 1e9:6.1f} ({r['share']:4.0%})"
        )
    over = [r for r in results if r["ratio"] < 1 / 1.1]
    print(f"{1 - len(over) / len(results):.1%} of {len(results)} cases take at most 1.1 of {peer}'s time, "
          f"the slowest {1 / min(r['ratio'] for r in results):.2f}; over 1.1: {', '.join(f'''{r['name']} {r['size']}''' for r in over) or 'none'}")  # fmt: skip


def write(path, settings, limits, results):
    with open(path, "w") as file:
        json.dump({"machine": machine(), "settings": settings, "limits": limits, "results": results}, file, indent=1)
    print(f"\nwritten: {path}")


def plot(path, results):
    """Bars of time over pydist's, for each peer of each workload; needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cases = list(dict.fromkeys((r["name"], r["dtype"], r["ranks"]) for r in results))
    names = list(dict.fromkeys(r["framework"] for r in results))
    figure, axes = pyplot.subplots(figsize=(8, 1 + 0.25 * len(cases) * len(names)), layout="constrained")
    for k, name in enumerate(names):
        mine = {(r["name"], r["dtype"], r["ranks"]): r for r in results if r["framework"] == name}
        places = [i + (k - (len(names) - 1) / 2) * 0.8 / len(names) for i, case in enumerate(cases) if case in mine]
        axes.barh(places, [mine[case]["ratio"] for case in cases if case in mine], 0.8 / len(names), label=name)
    axes.set_yticks(
        range(len(cases)), [f"{name}\n{dtype}, {ranks} rank{'s'[: ranks > 1]}" for name, dtype, ranks in cases]
    )
    axes.invert_yaxis()
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("time of a training step over pydist's (more is slower)")
    axes.legend()
    figure.savefig(path, dpi=150)
    print(f"written: {path}")
