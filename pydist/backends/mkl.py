"""MKL: not used. oneDNN does what it would."""


def is_available():
    return False
