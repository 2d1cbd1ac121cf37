"""Second forms of ops: what the table's signature cannot say."""

from pydist import _C
from pydist._C import Tensor
from pydist._functions._register import both


def _or_elementwise(name, reduce, elementwise):
    """`reduce`, or `elementwise` where the second argument is a tensor."""

    def call(input, *args, **kwargs):
        other = args[0] if args else kwargs.get("other")
        if isinstance(other, Tensor):
            return elementwise(input, *args, **kwargs)
        return reduce(input, *args, **kwargs)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"{reduce.__doc__}\n\n{name}(input, other): the elementwise form, {elementwise.__name__}."
    return both(call)


_or_elementwise("max", _C.max, _C.maximum)
_or_elementwise("min", _C.min, _C.minimum)
_clone = _C.clone


@both
def clone(input, *, memory_format=None):
    """clone(input, *, memory_format=None)

    A copy of input with memory of its own, laid out like input, or in a memory_format."""
    copy = _clone(input)
    return copy if memory_format in (None, _C.preserve_format) else copy.contiguous(memory_format=memory_format)
