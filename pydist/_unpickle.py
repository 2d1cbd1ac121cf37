"""Pickles that somebody else wrote, read without running what they say: `unpickle`, and what such a file may make."""

import pickle
from collections import Counter, OrderedDict

from pydist import _C


class Maker:
    """What a pickle may make beyond plain containers, numbers and text. `_C.unpickle` asks it, and nobody else makes,
    calls or changes anything: a call needs a name that `find` has given, a state or items the type of what was made.

    length: the pickle's, in bytes. What calls copy is bounded by it, since one call is shorter than what it may copy.
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
        """Before something of so many items or bytes is copied."""
        self.left -= count
        if self.left < 0:
            raise pickle.UnpicklingError("it copies more than the file's length")

    # What _C.unpickle asks.

    def find(self, module, name):
        """What a file means by a name: a value, or something to call. Raises UnpicklingError for other names."""
        found = self.modules.get(module, {}).get(name)
        if found is None and self.numpy is None and module.partition(".")[0] == "numpy":
            from pydist._numpy_pickle import Arrays

            self.numpy = Arrays(self.spend)
            self.modules.update(self.numpy.modules)
            return self.find(module, name)
        if found is None:
            raise pickle.UnpicklingError(f"the file names {module}.{name}, which is not among what is safe to make")
        return found

    def new(self, kind, args, names):
        """An object by its class's __new__."""
        raise pickle.UnpicklingError(f"a new object of {type(kind).__name__}, which is no class that is safe to make")

    def build(self, made, state):
        """What takes the place of `made` when the file gives it a state: the same object, or another one."""
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
        raise pickle.UnpicklingError(f"a state for a {type(made).__name__}, which takes none from a file")

    def append(self, made, items):
        """Items at the end of what is no list."""
        raise pickle.UnpicklingError(f"items for a {type(made).__name__} (expected a list)")

    def set(self, made, items):
        """Items, a list of keys and values in turn, for what is neither dict nor OrderedDict."""
        if type(made) is not Counter:
            raise pickle.UnpicklingError(f"items for a {type(made).__name__} (expected a dict)")
        made.update(zip(items[::2], items[1::2], strict=True))

    def persistent(self, saved):
        """An object outside the pickle."""
        raise pickle.UnpicklingError("an object outside the pickle")

    # What files may call. No text here shows what the file says: that may be small there and endless when written out.

    def counter(self, counts=None):
        if counts is None:
            return Counter()
        if type(counts) is not dict:
            raise pickle.UnpicklingError("a Counter of no dict")
        self.spend(len(counts))
        return Counter(counts)

    def encode(self, text, encoding="utf-8"):
        if encoding not in ("latin1", "utf-8"):
            raise pickle.UnpicklingError("bytes in an encoding that is neither latin1 nor utf-8")
        self.spend(len(text))
        return text.encode(encoding)

    def complex(self, real, imag=0.0):
        if not all(type(part) in (int, float) for part in (real, imag)):
            raise pickle.UnpicklingError("a complex number of no numbers")
        return complex(real, imag)

    def bytearray(self, data=b"", encoding=None):
        if type(data) not in (bytes, str):
            raise pickle.UnpicklingError("a bytearray without content")
        self.spend(len(data))
        return bytearray(self.encode(data, encoding.replace("-1", "1")) if encoding else data)


def unpickle(data, maker=None, encoding="utf-8"):
    """The object of a pickle. Errors: anything but what ends a program; nothing of what the file says is run."""
    return _C.unpickle(data, maker or Maker(len(data)), encoding)[0]
