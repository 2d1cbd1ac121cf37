"""Trees of lists, tuples, named tuples, dictionaries, deques and registered classes, whose leaves are all other objects.

>>> from pydist.utils._pytree import tree_flatten, tree_map
>>> leaves, spec = tree_flatten({"a": [1, 2], "b": 3})
>>> leaves, spec.unflatten([4, 5, 6])
([1, 2, 3], {'a': [4, 5], 'b': 6})
>>> tree_map(lambda x: x * 2, (1, [2]))
(2, [4])
"""

from collections import OrderedDict, defaultdict, deque, namedtuple
from typing import Any, NamedTuple

from pydist import _C

PyTree = Context = Any


# Where a child stands in its parent.


class _Key:
    """A step of a path. Keys are equal if their types and values are."""

    __slots__ = ()

    def __eq__(self, other):
        return type(self) is type(other) and self._value() == other._value()

    def __hash__(self):
        return hash((type(self), self._value()))

    def _value(self):
        return getattr(self, self.__slots__[0])

    def __repr__(self):
        return f"{type(self).__name__}({self.__slots__[0]}={self._value()!r})"


class SequenceKey(_Key):
    """The number of an item of a list, tuple or deque."""

    __slots__ = ("idx",)

    def __init__(self, idx):
        self.idx = idx

    def __str__(self):
        return f"[{self.idx!r}]"

    def get(self, sequence):
        """The item."""
        return sequence[self.idx]


class MappingKey(_Key):
    """The key of an item of a dictionary."""

    __slots__ = ("key",)

    def __init__(self, key):
        self.key = key

    def __str__(self):
        return f"[{self.key!r}]"

    def get(self, mapping):
        """The item."""
        return mapping[self.key]


class GetAttrKey(_Key):
    """The name of an attribute: a field of a named tuple."""

    __slots__ = ("name",)

    def __init__(self, name):
        self.name = name

    def __str__(self):
        return f".{self.name}"

    def get(self, obj):
        """The attribute."""
        return getattr(obj, self.name)


def keystr(kp):
    """The path as text.

    >>> from pydist.utils._pytree import keystr, tree_flatten_with_path
    >>> [(keystr(path), leaf) for path, leaf in tree_flatten_with_path({"a": [1, 2]})[0]]
    [("['a'][0]", 1), ("['a'][1]", 2)]
    """
    return "".join(map(str, kp))


def key_get(obj, kp):
    """The object at the path."""
    for key in kp:
        obj = key.get(obj)
    return obj


# What has children.


class NodeDef(NamedTuple):
    """How the objects of one class are taken apart and made."""

    type: type
    flatten_fn: Any  # (children, context) of an object
    unflatten_fn: Any  # the object with these children
    flatten_with_keys_fn: Any  # ([(key, child)], context) of an object; None: paths need it


SUPPORTED_NODES = {}


def register_pytree_node(
    cls,
    flatten_fn,
    unflatten_fn,
    *,
    serialized_type_name=None,
    to_dumpable_context=None,
    from_dumpable_context=None,
    flatten_with_keys_fn=None,
):
    """Makes objects of exactly this class nodes of trees: flatten_fn(object) is (children, context), and
    unflatten_fn(children, context) is the object. flatten_with_keys_fn(object) is ([(key, child)], context), which paths
    need. The arguments about text are accepted and change nothing. Raises ValueError for a class that is registered.

    >>> from pydist.utils._pytree import register_pytree_node, tree_map
    >>> class Pair:
    ...     def __init__(self, a, b):
    ...         self.a, self.b = a, b
    >>> register_pytree_node(Pair, lambda p: ([p.a, p.b], None), lambda ab, context: Pair(*ab))
    >>> tree_map(lambda x: x + 1, Pair(1, 2)).b
    3
    """
    if cls in SUPPORTED_NODES:
        raise ValueError(f"register_pytree_node: {cls} is registered already (expected each class once)")
    SUPPORTED_NODES[cls] = NodeDef(cls, flatten_fn, unflatten_fn, flatten_with_keys_fn)


def _of_sequence(kind, make, context=lambda sequence: None):
    register_pytree_node(
        kind,
        lambda sequence: (list(sequence), context(sequence)),
        make,
        flatten_with_keys_fn=lambda sequence: (
            [(SequenceKey(i), child) for i, child in enumerate(sequence)],
            context(sequence),
        ),
    )


def _of_mapping(kind, make, context=list):
    register_pytree_node(
        kind,
        lambda mapping: (list(mapping.values()), context(mapping)),
        make,
        flatten_with_keys_fn=lambda mapping: (
            [(MappingKey(key), child) for key, child in mapping.items()],
            context(mapping),
        ),
    )


_of_sequence(tuple, lambda children, context: tuple(children))
_of_sequence(list, lambda children, context: list(children))
_of_mapping(dict, lambda children, keys: dict(zip(keys, children)))
register_pytree_node(
    namedtuple,
    lambda fields: (list(fields), type(fields)),
    lambda children, kind: kind(*children),
    flatten_with_keys_fn=lambda fields: (
        [(GetAttrKey(name), child) for name, child in zip(fields._fields, fields)],
        type(fields),
    ),
)
_of_mapping(OrderedDict, lambda children, keys: OrderedDict(zip(keys, children)))
_of_mapping(
    defaultdict,
    lambda children, context: defaultdict(context[0], zip(context[1], children)),
    lambda mapping: [mapping.default_factory, list(mapping)],
)
_of_sequence(deque, lambda children, most: deque(children, most), lambda items: items.maxlen)
_of_sequence(_C.Size, lambda children, context: _C.Size(tuple(children)))


def _of_results(kind):
    """Makes the results of an op with several, as (values, indices), a node."""
    register_pytree_node(
        kind,
        lambda results: (list(results), None),
        lambda children, context: kind(children),
        flatten_with_keys_fn=lambda results: (
            [(GetAttrKey(name), child) for name, child in zip(kind.__match_args__, results)],
            None,
        ),
    )


for _op in vars(_C).values():
    if isinstance(_op, type(_C.add)) and _op.result is not None:
        _of_results(_op.result)


def _get_node_type(tree):
    """The class under which SUPPORTED_NODES may have the object: `namedtuple` for those of named tuples."""
    kind = type(tree)
    return namedtuple if issubclass(kind, tuple) and hasattr(kind, "_fields") else kind


def _node(tree, is_leaf):
    """The NodeDef of an object, or None for a leaf."""
    return None if is_leaf is not None and is_leaf(tree) else SUPPORTED_NODES.get(_get_node_type(tree))


class TreeSpec:
    """The structure around the leaves: `type` (None: a leaf), `context` (what the type's constructor needs besides the
    children's values), the children's structures, and the numbers of leaves, nodes and children."""

    __slots__ = ("type", "context", "children_specs", "num_leaves", "num_nodes", "num_children")

    def __init__(self, type=None, context=None, children_specs=()):
        self.type, self.context, self.children_specs = type, context, list(children_specs)
        self.num_children = len(self.children_specs)
        self.num_leaves = 1 if type is None else sum(child.num_leaves for child in self.children_specs)
        self.num_nodes = 1 + sum(child.num_nodes for child in self.children_specs)

    def is_leaf(self):
        """Whether this is a leaf."""
        return self.type is None

    def children(self):
        """The structures of the children."""
        return list(self.children_specs)

    def child(self, index):
        """The structure of one child."""
        return self.children_specs[index]

    def __eq__(self, other):
        if not isinstance(other, TreeSpec):
            return NotImplemented
        return (self.type, self.context, self.children_specs) == (other.type, other.context, other.children_specs)

    def __hash__(self):
        return hash((self.type, self.num_leaves, self.num_nodes))

    def __repr__(self):
        return "*" if self.type is None else f"TreeSpec({self.type.__name__}, {self.context}, {self.children_specs})"

    def flatten_up_to(self, tree):
        """What stands in the tree where this structure has leaves. Raises ValueError for another structure."""
        return self._beside("flatten_up_to", tree, [])

    def _beside(self, name, tree, found):
        if self.type is None:
            found.append(tree)
            return found
        kind = _get_node_type(tree)
        if kind is not self.type:
            raise ValueError(f"{name}: got {type(tree).__name__} (expected {self.type.__name__})")
        children, context = SUPPORTED_NODES[kind].flatten_fn(tree)
        if kind in (dict, OrderedDict, defaultdict):
            keys = self.context[1] if kind is defaultdict else self.context
            if set(tree) != set(keys):
                raise ValueError(f"{name}: got the keys {list(tree)} (expected {list(keys)})")
            children = [tree[key] for key in keys]
        elif context != self.context or len(children) != self.num_children:
            raise ValueError(
                f"{name}: got {kind.__name__} with {len(children)} children and context {context} "
                f"(expected {self.num_children} and {self.context})"
            )
        for spec, child in zip(self.children_specs, children):
            spec._beside(name, child, found)
        return found

    def unflatten(self, leaves):
        """The tree with these leaves. Raises ValueError for another number of leaves."""
        leaves = list(leaves)
        if len(leaves) != self.num_leaves:
            raise ValueError(f"tree_unflatten: got {len(leaves)} leaves (expected {self.num_leaves})")
        return self._made(iter(leaves))

    def _made(self, leaves):
        if self.type is None:
            return next(leaves)
        children = [child._made(leaves) for child in self.children_specs]
        return SUPPORTED_NODES[self.type].unflatten_fn(children, self.context)


def LeafSpec():
    """The structure of a leaf."""
    return TreeSpec()


# Functions of trees.


def tree_is_leaf(tree, is_leaf=None):
    """Whether the object is a leaf."""
    return _node(tree, is_leaf) is None


def tree_flatten(tree, is_leaf=None):
    """(leaves, TreeSpec). `is_leaf(object)` may say that further objects are leaves."""
    leaves = []
    return leaves, _spec(tree, is_leaf, leaves)


def _spec(tree, is_leaf, leaves):
    node = _node(tree, is_leaf)
    if node is None:
        leaves.append(tree)
        return TreeSpec()
    children, context = node.flatten_fn(tree)
    return TreeSpec(node.type, context, [_spec(child, is_leaf, leaves) for child in children])


def tree_flatten_with_path(tree, is_leaf=None):
    """([(path, leaf)], TreeSpec), where a path is a tuple of SequenceKey, MappingKey and GetAttrKey.

    >>> from pydist.utils._pytree import tree_flatten_with_path
    >>> tree_flatten_with_path({"a": [7]})[0]
    [((MappingKey(key='a'), SequenceKey(idx=0)), 7)]
    """
    found = []
    _find_with_path(tree, (), is_leaf, found)
    return found, tree_structure(tree, is_leaf)


def _find_with_path(tree, path, is_leaf, found):
    node = _node(tree, is_leaf)
    if node is None:
        found.append((path, tree))
        return
    if node.flatten_with_keys_fn is None:
        raise ValueError(
            f"tree_flatten_with_path: {node.type.__name__} has no flatten_with_keys_fn (expected it from "
            "register_pytree_node)"
        )
    for key, child in node.flatten_with_keys_fn(tree)[0]:
        _find_with_path(child, (*path, key), is_leaf, found)


def tree_leaves_with_path(tree, is_leaf=None):
    """[(path, leaf)]"""
    return tree_flatten_with_path(tree, is_leaf)[0]


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
    """The tree of func(leaf, what stands there in each of rests). `rests` have at least the structure of tree."""
    leaves, spec = tree_flatten(tree, is_leaf)
    return spec.unflatten(map(func, leaves, *(spec._beside("tree_map", rest, []) for rest in rests)))


def tree_map_with_path(func, tree, *rests, is_leaf=None):
    """The tree of func(path, leaf, what stands there in each of rests)."""
    found, spec = tree_flatten_with_path(tree, is_leaf)
    paths, leaves = [path for path, _ in found], [leaf for _, leaf in found]
    return spec.unflatten(map(func, paths, leaves, *(spec._beside("tree_map_with_path", rest, []) for rest in rests)))


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
