"""PyTorch's code generator, which is not used. Settings can be written."""

from pydist._inductor import config
