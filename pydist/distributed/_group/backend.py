"""Backend names: the ones that PyTorch's scripts ask for, and what serves each of them here."""

import os

from pydist import _C


class Backend(str):
    """A backend's name in lower case. The constants are the names that PyTorch knows, and NATIVE.

    NATIVE is this engine's own backend. GLOO is accepted because PyTorch's scripts ask for it, and means the native
    backend, too. Whatever the name, tensors on a GPU go through NCCL, which the first collective on such a tensor
    opens.

    >>> from pydist.distributed import Backend
    >>> Backend("GLOO") == Backend.GLOO == "gloo"
    True
    """

    UNDEFINED = "undefined"
    NATIVE = "native"
    GLOO = "gloo"
    NCCL = "nccl"
    MPI = "mpi"
    UCC = "ucc"
    XCCL = "xccl"

    backend_list = [UNDEFINED, NATIVE, GLOO, NCCL, MPI, UCC, XCCL]

    def __new__(cls, name):
        if not isinstance(name, str):
            raise ValueError(f"Backend: {name!r} (expected a name such as 'native' or 'gloo')")
        return super().__new__(cls, name.lower())


default = Backend.NATIVE  # where init_process_group is told none; pydist.verify chooses another one
_HERE = (Backend.NATIVE, Backend.GLOO)
_REASONS = {
    Backend.MPI: "needs a pydist that was built with mpicc; the native backend also works under mpirun",
}
MPI_LIBRARY = os.path.join(os.path.dirname(_C.__file__), "_mpi.so")  # exists if mpicc was found when pydist was built


def is_backend_available(backend):
    """Whether a backend of this name can be used: "native" and "gloo" always, "mpi" if pydist was built with MPI,
    "nccl" if NCCL's library is installed."""
    name = str(backend).lower()
    return (
        name in _HERE or (name == Backend.MPI and is_mpi_available()) or (name == Backend.NCCL and is_nccl_available())
    )


def is_gloo_available():
    """True: the native backend serves this name."""
    return True


def is_nccl_available():
    """Whether NCCL's library, 2.27 or newer, is installed (pip install nvidia-nccl-cu13). This call opens it. Also true
    with pretended GPUs (see `pydist.cuda`): the native backend then serves as nccl."""
    return _C.pretended_cuda() > 0 or _C.nccl_version() > 0


def _need_nccl(op):
    """Raises RuntimeError if no tensor could go through NCCL."""
    if _C.pretended_cuda():
        return
    if not _C.cuda_count():
        raise RuntimeError(f"{op}: there is no CUDA device: {_C.cuda_why()} (expected 'gloo' or None for CPUs)")
    _C.nccl_check(op)


def get_default_backend_for_device(device):
    """PyTorch's name of the backend for a device: "gloo" for CPUs, "nccl" for CUDA. Raises ValueError for any other
    device.

    >>> import pydist
    >>> pydist.distributed.get_default_backend_for_device("cpu")
    'gloo'
    """
    kind = _C.device(device).type
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"Default backend not registered for device : {device}")
    return Backend.GLOO if kind == "cpu" else Backend.NCCL


def is_mpi_available():
    """Whether pydist was built with an MPI."""
    return os.path.exists(MPI_LIBRARY)


def serves_by_mpi(backend):
    """Whether CPU tensors of this (checked) backend go through MPI."""
    return any(part.strip() in (Backend.MPI, f"cpu:{Backend.MPI}") for part in backend.split(","))


def checked(backend):
    """The Backend for an argument of init_process_group: None, a name, or names by device such as "cpu:gloo,cuda:nccl".

    Raises ValueError for an unknown name, RuntimeError for a name that this build cannot serve.
    """
    asked = Backend(default if backend is None else backend)
    for part in asked.split(","):
        device, _, name = part.strip().rpartition(":")
        if name == Backend.NCCL and not device:
            _need_nccl(f"init_process_group: backend {backend!r}")
        if name == Backend.NCCL and device in ("", "cuda"):  # CPUs are named, too: a GPU may be used later or never
            continue
        if name == Backend.NCCL:
            raise ValueError(
                f"init_process_group: backend {backend!r}: nccl is for cuda, got device {device!r} (expected cuda:nccl)"
            )
        if device not in ("", "cpu"):
            raise ValueError(f"init_process_group: backend {backend!r}: device {device!r} (expected cpu, or cuda:nccl)")
        if is_backend_available(name):
            continue
        if name in _REASONS:
            raise RuntimeError(
                f"init_process_group: backend {name!r} {_REASONS[name]} (expected 'native', 'gloo' or None for CPUs)"
            )
        raise ValueError(f"init_process_group: unknown backend {backend!r} (expected one of {_HERE}, or None)")
    return asked


def say_what_serves(backend, rank):
    """Logs one line on rank 0 if another backend serves than the one that was named."""
    if rank == 0 and Backend.GLOO in backend:
        _C._log(1, f"init_process_group: backend '{backend}': the native backend serves as gloo")
