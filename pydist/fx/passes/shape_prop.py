"""ShapeProp: notes shapes and dtypes of all tensors in a graph."""

from typing import NamedTuple

import pydist
from pydist.fx.interpreter import Interpreter
from pydist.fx.node import map_aggregate

__all__ = ["ShapeProp", "TensorMetadata"]


class TensorMetadata(NamedTuple):
    """What is noted of a tensor."""

    shape: object
    dtype: object
    requires_grad: bool
    stride: tuple
    memory_format: object
    is_quantized: bool
    qparams: dict


def _of(tensor):
    formats = [pydist.contiguous_format] + [pydist.channels_last] * (tensor.dim() == 4)
    found = next((f for f in formats if tensor.is_contiguous(memory_format=f)), None)
    return TensorMetadata(tensor.shape, tensor.dtype, tensor.requires_grad, tensor.stride(), found, False, {})


class ShapeProp(Interpreter):
    """Runs a GraphModule on example inputs: `ShapeProp(traced).propagate(x)`. Each node gets meta["tensor_meta"] (a
    TensorMetadata, or containers of them) where it has tensors, and meta["type"].

    >>> import pydist
    >>> from pydist import fx, nn
    >>> from pydist.fx.passes.shape_prop import ShapeProp
    >>> traced = fx.symbolic_trace(nn.Sequential(nn.Linear(3, 2), nn.ReLU()))
    >>> _ = ShapeProp(traced).propagate(pydist.ones(5, 3))
    >>> [(node.name, tuple(node.meta["tensor_meta"].shape)) for node in traced.graph.nodes]
    [('input_1', (5, 3)), ('_0', (5, 2)), ('_1', (5, 2)), ('output', (5, 2))]
    """

    def run_node(self, n):
        """The value of a node, noted."""
        result, found = super().run_node(n), []

        def note(x):
            if isinstance(x, pydist.Tensor):
                found.append(x)
                return _of(x)
            return x

        meta = map_aggregate(result, note)
        if found:
            n.meta["tensor_meta"] = meta
        n.meta["type"] = type(result)
        return result

    def propagate(self, *args):
        """Runs it for these inputs. Returns the result."""
        return super().run(*args)
