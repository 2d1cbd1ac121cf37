"""ONNX export, which pydist does not have: scripts that import this module run, and fail where they use it."""


def __getattr__(name):
    raise AttributeError(f"pydist has no onnx.{name}: export to ONNX is not supported", name=name)
