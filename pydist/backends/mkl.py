"""MKL: not used. oneDNN does what it would."""


def is_available():
    """False."""
    return False
