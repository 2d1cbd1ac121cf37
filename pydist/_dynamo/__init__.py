"""PyTorch's tracing compiler, accepted: nothing is traced. Settings can be written."""

from pydist._dynamo import config
from pydist.compiler import allow_in_graph, disable, is_compiling, reset
