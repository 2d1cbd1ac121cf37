"""What the bits of a computation depend on, besides its inputs."""

import platform

from pydist import _C, __version__

_FLAGS = ("ONEDNN", "WINOGRAD", "ISA", "CUDA_TUNE", "CUBLASLT", "CUDNN")  # PYDIST_... variables that change bits


def fingerprint():
    """(name, value) of all of it, as text: equal on two machines if the same inputs give the same bits on CPUs."""
    flags = {name.removeprefix("PYDIST_"): value for name, value, _ in _C.flags()}
    rows = {
        "pydist": __version__,
        "compiler": _C.compiler(),
        "machine": platform.machine(),
        "instruction set (PYDIST_ISA)": _C.isa(),
        "oneDNN": _C.onednn_version() or "none",
        **{f"PYDIST_{name}": flags.get(name, "") for name in _FLAGS if name != "ISA"},
    }
    return list(rows.items())


def fingerprint_of_gpu():
    """The same of this thread's current GPU and its libraries."""
    name, major, minor = _C.cuda_properties(_C.cuda_current())[:3]
    libraries = {"cuBLASLt": _C.cublaslt_version()[0], "cuDNN": _C.cudnn_version()[0]}
    return [
        ("GPU", f"{name} ({major}.{minor})"),
        ("CUDA kernels", _C.cuda_built()),
        *((library, str(version)) for library, version in libraries.items()),
    ]
