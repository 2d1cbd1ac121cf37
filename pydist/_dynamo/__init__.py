"""PyTorch's tracing compiler, accepted: nothing is traced. Settings can be written."""

from pydist._dynamo import config  # noqa: F401
from pydist.compiler import allow_in_graph, disable, is_compiling, reset  # noqa: F401
