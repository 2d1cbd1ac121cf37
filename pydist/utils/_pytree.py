"""Trees of lists, tuples, named tuples, dictionaries and deques, whose leaves are all other objects.

>>> from pydist.utils._pytree import tree_flatten, tree_map
>>> leaves, spec = tree_flatten({"a": [1, 2], "b": 3})
>>> leaves, spec.unflatten([4, 5, 6])
([1, 2, 3], {'a': [4, 5], 'b': 6})
>>> tree_map(lambda x: x * 2, (1, [2]))
(2, [4])
"""

from collections import OrderedDict, defaultdict, deque


class TreeSpec:
    """The structure around the leaves: `type` (None: a leaf), `context` (what the type's constructor needs besides the
    children's values) and `children_specs`."""

    __slots__ = ("type", "context", "children_specs", "num_leaves")

    def __init__(self, type=None, context=None, children_specs=()):
        self.type, self.context, self.children_specs = type, context, list(children_specs)
        self.num_leaves = 1 if type is None else sum(child.num_leaves for child in self.children_specs)

    def is_leaf(self):
        """Whether this is a leaf."""
        return self.type is None

    def __eq__(self, other):
        if not isinstance(other, TreeSpec):
            return NotImplemented
        return (self.type, self.context, self.children_specs) == (other.type, other.context, other.children_specs)

    def __repr__(self):
        return "*" if self.type is None else f"TreeSpec({self.type.__name__}, {self.context}, {self.children_specs})"

    def unflatten(self, leaves):
        """The tree with these leaves. Raises ValueError for another number of leaves."""
        leaves = list(leaves)
        if len(leaves) != self.num_leaves:
            raise ValueError(f"tree_unflatten: got {len(leaves)} leaves (expected {self.num_leaves})")
        return self._made(iter(leaves))

    def _made(self, leaves):
        if self.type is None:
            return next(leaves)
        values = [child._made(leaves) for child in self.children_specs]
        if self.type is defaultdict:
            return defaultdict(self.context[0], zip(self.context[1], values))
        if issubclass(self.type, dict):
            return self.type(zip(self.context, values))
        if self.type is deque:
            return deque(values, self.context)
        return self.type(*values) if hasattr(self.type, "_fields") else self.type(values)


def _parts(tree):
    """(type, context, children), or None for a leaf."""
    kind = type(tree)
    if kind is defaultdict:
        return kind, (tree.default_factory, list(tree)), tree.values()
    if kind in (dict, OrderedDict):
        return kind, list(tree), tree.values()
    if kind is deque:
        return kind, tree.maxlen, tree
    if kind in (list, tuple) or issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return kind, None, tree
    return None


def tree_flatten(tree, is_leaf=None):
    """(leaves, TreeSpec). `is_leaf(object)` may say that further objects are leaves."""
    leaves = []

    def spec(node):
        parts = None if is_leaf is not None and is_leaf(node) else _parts(node)
        if parts is None:
            leaves.append(node)
            return TreeSpec()
        kind, context, children = parts
        return TreeSpec(kind, context, [spec(child) for child in children])

    return leaves, spec(tree)


def tree_unflatten(leaves, treespec):
    """The tree of `treespec` with these leaves."""
    return treespec.unflatten(leaves)


def tree_leaves(tree, is_leaf=None):
    """The list of leaves, in order."""
    return tree_flatten(tree, is_leaf)[0]


def tree_iter(tree, is_leaf=None):
    """An iterator over the leaves."""
    return iter(tree_leaves(tree, is_leaf))


def tree_structure(tree, is_leaf=None):
    """The TreeSpec of a tree."""
    return tree_flatten(tree, is_leaf)[1]


def tree_map(func, tree, *rests, is_leaf=None):
    """The tree of func(leaf, leaves of rests). `rests` are trees with the same structure."""
    leaves, spec = tree_flatten(tree, is_leaf)
    others = []
    for rest in rests:
        more, same = tree_flatten(rest, is_leaf)
        if same != spec:
            raise ValueError(f"tree_map: got a tree with {same} (expected {spec})")
        others.append(more)
    return spec.unflatten(map(func, leaves, *others))


def tree_map_(func, tree, *rests, is_leaf=None):
    """Calls func(leaf, ...) for each leaf and returns the tree."""
    tree_map(func, tree, *rests, is_leaf=is_leaf)
    return tree


def _chosen(wanted):
    return (lambda x: isinstance(x, wanted)) if isinstance(wanted, (type, tuple)) else wanted


def tree_map_only(type_or_types_or_pred, func, tree, is_leaf=None):
    """The tree with func(leaf) for leaves of these types (or for which the predicate is true), and the other leaves as
    they are."""
    chosen = _chosen(type_or_types_or_pred)
    return tree_map(lambda x: func(x) if chosen(x) else x, tree, is_leaf=is_leaf)


def tree_all(pred, tree, is_leaf=None):
    """Whether pred is true for all leaves."""
    return all(map(pred, tree_leaves(tree, is_leaf)))


def tree_any(pred, tree, is_leaf=None):
    """Whether pred is true for at least one leaf."""
    return any(map(pred, tree_leaves(tree, is_leaf)))
