"""ONNX export, which pydist does not have. Scripts can import this module; using a name of it raises AttributeError."""


def __getattr__(name):
    raise AttributeError(f"pydist has no onnx.{name}: export to ONNX is not supported", name=name)
