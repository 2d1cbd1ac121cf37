"""cuDNN: not there. The settings can be written, as scripts do, and mean nothing on the CPU."""

enabled = True
benchmark = False
deterministic = False  # pydist's kernels are
allow_tf32 = True


def is_available():
    return False


def version():
    return None
