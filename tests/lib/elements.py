"""Elements of pipelines as Python's lists and numbers."""


def plain(value):
    """A nested value of tensors."""
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return items(value) if hasattr(value, "_node") else value.tolist()


def items(dataset):
    """All elements of a data set."""
    return [plain(x) for x in dataset]
