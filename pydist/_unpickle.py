"""Reads pickles of unknown origin without running what they say: `unpickle`, and the objects that such a file may
make."""

import pickle
from collections import Counter, OrderedDict

from pydist import _C


class Maker:
    """What a pickle may make besides plain containers, numbers and text. `_C.unpickle` asks it, and nothing else makes,
    calls or changes objects: a call needs a name that `find` has returned, a state or items need a type that the Maker
    knows.

    length: the pickle's length in bytes. It bounds what calls copy, because a call may be shorter than what it copies.
    """

    def __init__(self, length):
        self.left = 10_000 + 4 * length
        plain = {"set": set, "frozenset": frozenset, "complex": self.complex, "bytearray": self.bytearray}
        self.modules = {
            "builtins": plain,
            "__builtin__": plain,
            "collections": {"OrderedDict": OrderedDict, "Counter": self.counter},
            "_codecs": {"encode": self.encode},
        }
        self.numpy = None

    def spend(self, count):
        """Called before something of so many items or bytes is copied. Raises UnpicklingError if that is more than the
        file's length."""
        self.left -= count
        if self.left < 0:
            raise pickle.UnpicklingError("the file makes copies that are larger than the file")

    # The methods that _C.unpickle calls.

    def find(self, module, name):
        """The meaning of a name in a file: a value, or a function to call. Raises UnpicklingError for other names."""
        found = self.modules.get(module, {}).get(name)
        if found is None and self.numpy is None and module.partition(".")[0] == "numpy":
            from pydist._numpy_pickle import Arrays

            self.numpy = Arrays(self.spend)
            self.modules.update(self.numpy.modules)
            return self.find(module, name)
        if found is None:
            raise pickle.UnpicklingError(
                f"the file names {module}.{name}, which is not among the names that are safe to make"
            )
        return found

    def new(self, kind, args, names):
        """An object by its class's __new__."""
        raise pickle.UnpicklingError(
            f"a new object of {type(kind).__name__}, which is not a class that is safe to make"
        )

    def build(self, made, state):
        """The object that replaces `made` when the file gives it a state: the same object, or another one."""
        if type(made) is OrderedDict:
            if type(state) is not dict:
                raise pickle.UnpicklingError("attributes of an OrderedDict (expected a dict)")
            self.spend(len(state))
            if not all(type(name) is str and not hasattr(OrderedDict, name) for name in state):
                raise pickle.UnpicklingError("attributes of an OrderedDict (expected names that it lacks)")
            vars(made).update(state)
            return made
        if self.numpy is not None and self.numpy.takes_state(made):
            return self.numpy.build(made, state)
        raise pickle.UnpicklingError(f"a state for a {type(made).__name__}, to which a file may not give one")

    def append(self, made, items):
        """Appends items to an object that is not a list."""
        raise pickle.UnpicklingError(f"items for a {type(made).__name__} (expected a list)")

    def set(self, made, items):
        """Sets items (a list of keys and values in turn) of an object that is neither a dict nor an OrderedDict."""
        if type(made) is not Counter:
            raise pickle.UnpicklingError(f"items for a {type(made).__name__} (expected a dict)")
        made.update(zip(items[::2], items[1::2], strict=True))

    def persistent(self, saved):
        """An object outside the pickle."""
        raise pickle.UnpicklingError("a reference to an object outside the pickle")

    # Functions that files may call. No error shows an object of the file: it may be small in the file and endless as text.

    def counter(self, counts=None):
        """collections.Counter."""
        if counts is None:
            return Counter()
        if type(counts) is not dict:
            raise pickle.UnpicklingError("a Counter of an object that is not a dict")
        self.spend(len(counts))
        return Counter(counts)

    def encode(self, text, encoding="utf-8"):
        """_codecs.encode: bytes from text."""
        if encoding not in ("latin1", "utf-8"):
            raise pickle.UnpicklingError("bytes in an unknown encoding (expected latin1 or utf-8)")
        self.spend(len(text))
        return text.encode(encoding)

    def complex(self, real, imag=0.0):
        """complex(real, imag)."""
        if not all(type(part) in (int, float) for part in (real, imag)):
            raise pickle.UnpicklingError("a complex number whose parts are not numbers")
        return complex(real, imag)

    def bytearray(self, data=b"", encoding=None):
        """bytearray of bytes, or of text with its encoding."""
        if type(data) not in (bytes, str):
            raise pickle.UnpicklingError("a bytearray whose content is not bytes or text")
        self.spend(len(data))
        return bytearray(self.encode(data, encoding.replace("-1", "1")) if encoding else data)


def unpickle(data, maker=None, encoding="utf-8"):
    """The object of a pickle. May raise any exception except those that end a program. Nothing that the file says is
    run."""
    return _C.unpickle(data, maker or Maker(len(data)), encoding)[0]
