"""A handle that removes a hook."""

from itertools import count
from weakref import ref

_ids = count()


class RemovableHandle:
    """Adds `hook` to an OrderedDict of hooks (prepend: as the first one). `remove()` removes it again.

    >>> from collections import OrderedDict
    >>> hooks = OrderedDict()
    >>> with RemovableHandle(hooks, print):
    ...     len(hooks)
    1
    >>> len(hooks)
    0
    """

    def __init__(self, hooks, hook, *, prepend=False):
        self.id = next(_ids)
        self._hooks = ref(hooks)
        hooks[self.id] = hook
        if prepend:
            hooks.move_to_end(self.id, last=False)

    def remove(self):
        """Removes the hook. A second call does nothing."""
        hooks = self._hooks()
        if hooks is not None:
            hooks.pop(self.id, None)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.remove()
