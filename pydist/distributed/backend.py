"""Backend names: what PyTorch's scripts ask for, and what serves it here."""

from pydist import _C


class Backend(str):
    """A backend's name in lower case; the constants are the names that PyTorch knows, and NATIVE.

    NATIVE is the engine's own. GLOO is accepted and means it too, for CPU tensors in PyTorch's scripts.

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


_HERE = (Backend.NATIVE, Backend.GLOO)
_REASONS = {
    Backend.NCCL: "needs a GPU build",
    Backend.MPI: "comes in a later version; under mpirun too the native backend serves",
}


def is_backend_available(backend):
    """Whether init_process_group takes this name: "native" and "gloo"."""
    return str(backend).lower() in _HERE


def is_gloo_available():
    """True: the name is served by the native backend."""
    return True


def is_nccl_available():
    """False on this build."""
    return False


def is_mpi_available():
    """False on this build."""
    return False


def checked(backend):
    """The Backend that was asked for: None, a name, or names by device such as "cpu:gloo,cuda:nccl".

    ValueError for a name that is unknown, RuntimeError for one that this build cannot serve.
    """
    asked = Backend(Backend.NATIVE if backend is None else backend)
    for part in asked.split(","):
        device, _, name = part.strip().rpartition(":")
        if name in _HERE and device in ("", "cpu"):
            continue
        if name == Backend.NCCL and device == "cuda":  # for tensors that this build cannot make
            continue
        if name == Backend.NCCL and device:
            raise ValueError(f"init_process_group: backend {backend!r}: nccl is for cuda, not for {device}")
        if device not in ("", "cpu"):
            raise ValueError(f"init_process_group: backend {backend!r}: device {device!r} (expected cpu, or cuda:nccl)")
        if name in _REASONS:
            raise RuntimeError(
                f"init_process_group: backend {name!r} {_REASONS[name]} (expected 'native', 'gloo' or None for CPUs)"
            )
        raise ValueError(f"init_process_group: backend {backend!r} is not there (expected {_HERE} or None)")
    return asked


def say_what_serves(backend, rank):
    """One line of log on rank 0 where the name is not the one of what serves it."""
    if rank == 0 and Backend.GLOO in backend:
        _C._log(1, f"init_process_group: backend '{backend}': the native backend serves as gloo")
