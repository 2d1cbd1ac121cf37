"""MKL, which pydist does not use: oneDNN takes its place."""


def is_available():
    """False: pydist does not use MKL."""
    return False
