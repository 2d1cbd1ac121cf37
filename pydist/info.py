"""`python -m pydist.info`: what this build is and what it uses on this machine, for bug reports."""

import os
import platform
import subprocess
import sys
from pathlib import Path
from shutil import which

from pydist import _C, __version__
from pydist._nvidia import NCCL_WHEEL, nccl_version_text
from pydist._onednn import candidates
from pydist.distributed import is_mpi_available


def _instruction_sets():
    return ("portable", "avx2", "avx512") if platform.machine().lower() in ("x86_64", "amd64") else ("portable",)


def _library(name):
    from ctypes.util import find_library

    return find_library(name)


def _found(what, where):
    return f"{what}: {where or 'not here'}"


def _network():
    try:
        return ", ".join(f"{name} {address}" for name, address in _C.interfaces()) or "loopback alone"
    except ValueError as error:
        return str(error)


def _sizes():
    """The sizes of the package and of the engine in it, in MB."""
    files = [
        path for path in Path(_C.__file__).parent.rglob("*") if path.is_file() and path.parent.name != "__pycache__"
    ]
    sizes = [sum(path.stat().st_size for path in some) / 1e6 for some in (files, [Path(_C.__file__)])]
    return "{:.1f} MB installed, {:.1f} MB of them the engine".format(*sizes)


def _import_ms(times=3):
    """Processor time of `import pydist` in ms, the least of a few runs."""
    code = "import time; t = time.process_time(); import pydist; print(time.process_time() - t)"
    command, above = [sys.executable, "-c", code], Path(_C.__file__).parents[1]
    taken = [
        subprocess.run(command, capture_output=True, text=True, check=True, cwd=above).stdout for _ in range(times)
    ]
    return 1000 * min(map(float, taken))


def lines():
    """The report, line by line."""
    yield f"pydist {__version__}, Python {platform.python_version()}, {platform.platform()}"
    yield f"size: {_sizes()}; import: {_import_ms():.0f} ms"
    yield f"compiler: {_C.compiler()}"
    yield f"instruction set: {_C.isa()} of {', '.join(_instruction_sets())} on {platform.machine()}"
    yield f"threads: {_C.get_num_threads()} of {len(os.sched_getaffinity(0))} cores"
    version = _C.onednn_version()
    yield f"oneDNN: {version or 'not there (portable kernels); looked for ' + ', '.join(candidates())}"
    cuda = f"{_C.cuda_built()}, {_C.cuda_count()} devices {_C.cuda_why()}" if _C.cuda_built() else "not in this build"
    yield f"CUDA: {cuda} ({_found('driver', _library('cuda'))}, {_found('nvcc', which('nvcc'))})"
    version = _C.nccl_version()
    yield "NCCL: " + (
        f"{nccl_version_text(version)} ({_C.nccl_where()})" if version else f"not here (pip install {NCCL_WHEEL})"
    )
    libraries = {"cuBLASLt": _C.cublaslt_version(), "cuDNN": _C.cudnn_version()} if _C.cuda_built() else {}
    for name, (version, why) in libraries.items():
        yield f"{name}: {version or why}"
    missing = [name for name, (version, _) in libraries.items() if not version] + ["oneDNN"] * (not _C.onednn_version())
    for what, (cpu, gpu) in _C.backends().items():
        order = " or ".join(
            f"{', '.join(name + ' (not here)' * (name in missing) for name in names)} on {device}"
            for device, names in (("CPUs", cpu), ("GPUs", gpu))
            if device == "CPUs" or _C.cuda_built()
        )
        yield f"{what}: the first that takes them of {order}"
    built = "in this build" if is_mpi_available() else "not in this build"
    yield f"MPI: {built} ({_found('mpirun', which('mpirun'))}, {_found('mpicc', which('mpicc'))})"
    yield f"network: {_network()}"
    yield "environment (PYDIST_... variables, their values here, what they mean):"
    for name, value, text in _C.flags():
        yield f"  {name}={value}  {text}"


if __name__ == "__main__":
    print("\n".join(lines()))
