"""tf.errors: the classes that TensorFlow's programs catch. Under `import tensorflow`, pydist's own errors are among
them."""

from pydist import _C
from pydist.tensorflow._names import lacking as _lacking


class OpError(Exception):
    """The base of the errors of operations."""

    __slots__ = ()

    @property
    def message(self):
        """The text."""
        return str(self.args[-1]) if self.args else ""

    @property
    def node_def(self):
        """None: there is no graph."""
        return None

    op = node_def

    def __str__(self):
        return self.message


def _error(name, doc):
    return type(name, (OpError,), {"__slots__": (), "__doc__": doc, "__module__": __name__})


AbortedError = _error("AbortedError", "An operation was ended, such as one in which another rank died.")
AlreadyExistsError = _error("AlreadyExistsError", "A file or other thing exists already.")
CancelledError = _error("CancelledError", "An operation was cancelled.")
DataLossError = _error("DataLossError", "Data cannot be read or are damaged.")
DeadlineExceededError = _error("DeadlineExceededError", "An operation took too long.")
FailedPreconditionError = _error("FailedPreconditionError", "The system is not in the state that an operation needs.")
InternalError = _error("InternalError", "An invariant does not hold.")
InvalidArgumentError = _error("InvalidArgumentError", "An argument of an operation is wrong, such as a shape.")
NotFoundError = _error("NotFoundError", "A file or other thing is missing.")
OutOfRangeError = _error("OutOfRangeError", "The end of the data.")
PermissionDeniedError = _error("PermissionDeniedError", "The caller may not do this.")
ResourceExhaustedError = _error("ResourceExhaustedError", "Memory or another resource is used up.")
UnauthenticatedError = _error("UnauthenticatedError", "The caller did not prove who it is.")
UnavailableError = _error("UnavailableError", "A service, such as another rank, is not there.")
UnimplementedError = _error("UnimplementedError", "This does not exist.")
UnknownError = _error("UnknownError", "Something else.")


def _install():
    """Makes pydist's errors TensorFlow's, too: `except tf.errors.InvalidArgumentError` catches a wrong shape."""
    for ours, theirs in (
        (_C.ShapeError, InvalidArgumentError),
        (_C.DTypeError, InvalidArgumentError),
        (_C.DimError, InvalidArgumentError),
        (_C.ArgumentError, InvalidArgumentError),
        (_C.PositionError, InvalidArgumentError),
        (_C.DataError, DataLossError),
        (_C.OutOfMemoryError, ResourceExhaustedError),
        (_C.PeerFailed, UnavailableError),
        (_C.CommTimeout, DeadlineExceededError),
        (_C.CommMismatch, InvalidArgumentError),
    ):
        if theirs not in ours.__mro__:
            ours.__bases__ = (*ours.__bases__, theirs)


__getattr__ = _lacking(__name__)
