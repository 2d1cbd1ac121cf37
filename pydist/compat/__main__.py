"""python -m pydist.compat [--check] (script.py | -m module) [arguments]"""

import argparse
import os
import runpy
import sys

from pydist.compat import environment, install
from pydist.compat.check import report


def main():
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m pydist.compat", description="Runs a script that imports torch with pydist instead."
    )
    parser.add_argument("--check", action="store_true", help="list what the script needs that pydist lacks")
    parser.add_argument("--cpu-as-cuda", type=int, metavar="N", help="pretend N GPUs: cuda and nccl mean the CPU")
    parser.add_argument("-m", dest="module", action="store_true", help="the script is a module's name")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    if args.check:
        sys.exit(report([args.script, *args.arguments]))
    os.environ.update(environment())
    install()
    if args.cpu_as_cuda:
        from pydist.cuda import pretend

        pretend(args.cpu_as_cuda)
    sys.argv = [args.script, *args.arguments]
    if args.module:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(args.script, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(args.script)))
        runpy.run_path(args.script, run_name="__main__")


if __name__ == "__main__":
    main()
