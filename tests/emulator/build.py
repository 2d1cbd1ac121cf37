"""`python tests/emulator/build.py FILE` builds csrc/cuda for the CPU: the kernels of the GPU as plain C++ over this folder's
cuda_runtime.h. With PYDIST_CUDA_LIBRARY=FILE pydist then has two devices cuda:0 and cuda:1, slow, but the same launches and
threads: `PYDIST_CUDA_LIBRARY=FILE pytest tests/gpu`; with PYDIST_CUBLASLT=FILE and PYDIST_CUDNN=FILE
products and convolutions go the way of NVIDIA's libraries (libraries.cpp) instead of our own kernels. For tests; needs a C++ compiler (CXX)."""

import os
import platform
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parents[1]
FLAGS = (
    "-x c++ -std=c++17 -O1 -U_FORTIFY_SOURCE -fPIC -fvisibility=hidden -ffp-contract=off -fno-exceptions -fno-rtti "
    "-fno-threadsafe-statics -Wall -Wextra -Werror"
).split()


def build(target, traced=False):
    """Makes the library; traced: with trace.cpp. Raises CalledProcessError where a source does not compile."""
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    fma = ["-mfma"] if platform.machine() == "x86_64" and " fma " in Path("/proc/cpuinfo").read_text() else []
    kernels = sorted((TOP / "csrc/cuda").glob("*.cu"))
    others = [source for source in sorted(HERE.glob("*.cpp")) if traced or source.stem != "trace"]
    with tempfile.TemporaryDirectory() as folder:

        def compile_one(source):
            made = str(Path(folder, source.name + ".o"))
            calls = ["-fsanitize=thread"] if traced and source in kernels and source.stem != "library" else []
            command = [*compiler, *FLAGS, *fma, *calls, f"-I{HERE}", f"-I{TOP / 'csrc'}", "-c", str(source), "-o", made]
            subprocess.run(command, check=True)
            return made

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compile_one, [*kernels, *others]))
        subprocess.run([*compiler, "-shared", *objects, "-o", str(target)], check=True)


if __name__ == "__main__":
    build(sys.argv[-1], traced="--traced" in sys.argv[1:-1])
