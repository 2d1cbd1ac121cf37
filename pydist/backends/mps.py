"""Apple's GPUs: not there."""


def is_available():
    return False


def is_built():
    return False
