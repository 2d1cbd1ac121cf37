"""What TensorFlow itself gives: `python record.py`, where TensorFlow is installed, writes recorded.jsonl (the results
of the lines of cases_*.txt) and programs/*.out (what the programs print)."""

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
RECORDED = HERE / "recorded.jsonl"


def lines():
    """All cases: expressions."""
    for path in sorted(HERE.glob("cases_*.txt")):
        yield from (line for line in path.read_text().splitlines() if line and not line.startswith("#"))


def programs():
    """All programs."""
    return sorted((HERE / "programs").glob("*.py"))


def number(value):
    """A number or string as what JSON can hold."""
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    return {"bytes": value.decode("latin1")} if isinstance(value, bytes) else value


def described(dtype, array):
    """An array as what JSON can hold."""
    flat = array.reshape(-1).tolist() if hasattr(array, "reshape") else [array]
    return {"dtype": dtype, "shape": list(getattr(array, "shape", ())), "values": [number(v) for v in flat]}


def plain(value):
    """A result as what JSON can hold."""
    if isinstance(value, dict):
        return {"dict": {str(key): plain(part) for key, part in value.items()}}
    if isinstance(value, (list, tuple)):
        return {"list": [plain(part) for part in value]}
    if hasattr(value, "numpy"):
        return described(value.dtype.name, value.numpy())
    return described(f"numpy {value.dtype}", value) if hasattr(value, "ndim") else number(value)


def run(line, tf, np):
    """The result of a case."""
    return plain(eval(line, {"tf": tf, "np": np}))


def main():
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import numpy as np
    import tensorflow as tf

    with open(RECORDED, "w") as file:
        for line in lines():
            try:
                file.write(json.dumps([line, run(line, tf, np)]) + "\n")
            except Exception as error:
                print(f"{line}: {type(error).__name__}: {error}")
    for path in programs():
        with open(path.with_suffix(".out"), "w") as file:
            subprocess.run([sys.executable, path], stdout=file, check=True)


if __name__ == "__main__":
    main()
