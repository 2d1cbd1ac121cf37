"""pydist.utils._pytree: by hand, and next to torch.utils._pytree."""

from collections import OrderedDict, defaultdict, deque, namedtuple

import pytest

from pydist.utils import _pytree as pytree

Pair = namedtuple("Pair", "left right")


def tree():
    counts = defaultdict(list, {"b": [5], "a": (6,)})
    return [1, (2, {"y": 3, "x": None}), Pair(4, OrderedDict(z=7)), counts, deque([8, 9], maxlen=5), "text", []]


def test_there_and_back():
    leaves, spec = pytree.tree_flatten(tree())
    assert leaves == [1, 2, 3, None, 4, 7, 5, 6, 8, 9, "text"] and spec.num_leaves == len(leaves)
    back = pytree.tree_unflatten(leaves, spec)
    assert back == tree() and type(back[2]) is Pair and back[3].default_factory is list and back[4].maxlen == 5
    assert pytree.tree_structure(back) == spec != pytree.tree_structure([1])
    assert list(pytree.tree_iter(7)) == [7] and pytree.tree_structure(7).is_leaf()
    with pytest.raises(ValueError, match="tree_unflatten: got 1 leaves \\(expected 11\\)"):
        spec.unflatten([1])


def test_maps():
    assert pytree.tree_map(lambda x, y: x + y, {"a": [1, 2]}, {"a": [10, 20]}) == {"a": [11, 22]}
    with pytest.raises(ValueError, match="tree_map"):
        pytree.tree_map(lambda x, y: x, [1], (1,))
    assert pytree.tree_map_only(int, lambda x: -x, [1, "a", (2.0, 3)]) == [-1, "a", (2.0, -3)]
    assert pytree.tree_map_only(lambda x: x == 1, str, [1, 2]) == ["1", 2]
    assert pytree.tree_map(str, [(1, 2), 3], is_leaf=lambda x: isinstance(x, tuple)) == ["(1, 2)", "3"]
    seen = []
    same = [1, [2]]
    assert pytree.tree_map_(seen.append, same) is same and seen == [1, 2]
    assert pytree.tree_all(bool, [1, (2,)]) and pytree.tree_any(bool, [0, (2,)]) and not pytree.tree_any(bool, [0])


def test_next_to_torch(torch):
    theirs = pytest.importorskip("torch.utils._pytree")
    assert theirs.tree_flatten(tree())[0] == pytree.tree_flatten(tree())[0]
    assert theirs.tree_map(str, tree()) == pytree.tree_map(str, tree())


class Point:
    def __init__(self, x, y):
        self.x, self.y = x, y


def registered(tree, kind):
    """Point as a node of this module's trees."""
    tree.register_pytree_node(
        kind,
        lambda p: ([p.x, p.y], "xy"),
        lambda children, context: kind(*children),
        serialized_type_name="tests.Point",
        flatten_with_keys_fn=lambda p: ([(tree.GetAttrKey("x"), p.x), (tree.MappingKey("y"), p.y)], "xy"),
    )


def test_a_registered_class_and_paths(torch):
    theirs = pytest.importorskip("torch.utils._pytree")
    found = []
    for each in (pytree, theirs):
        kind = type("Point", (Point,), {})
        registered(each, kind)
        whole = {"a": [kind(1, (2,)), Pair(3, 4)], "b": OrderedDict(k=deque([5])), "c": None}
        paths, spec = each.tree_flatten_with_path(whole)
        assert each.key_get(whole["a"][1], paths[2][0][2:]) == 3
        made = each.tree_map(lambda x, y: (x, y), whole, whole)
        mapped = each.tree_map_with_path(lambda path, x: each.keystr(path), [1, {"k": 2}])
        found.append([
            [(each.keystr(path), leaf) for path, leaf in paths], made["a"][0].y, mapped,
            spec.num_leaves, spec.num_nodes, spec.num_children, spec.child(0).num_nodes, len(spec.children()),
            each._get_node_type(Pair(1, 2)) in each.SUPPORTED_NODES, each._get_node_type(3) in each.SUPPORTED_NODES,
            each._get_node_type(kind(1, 2)) in each.SUPPORTED_NODES, each.tree_is_leaf(3), repr(paths[0][0]),
            hash(each.SequenceKey(1)) == hash(each.SequenceKey(1)), each.MappingKey(1) == each.SequenceKey(1),
            spec.flatten_up_to(whole)[-1],
        ])  # fmt: skip
        with pytest.raises(ValueError):
            registered(each, kind)
        with pytest.raises(ValueError):
            spec.flatten_up_to([1, 2, 3])
    assert found[0] == found[1]


def test_leaves_beside_may_be_trees():
    assert pytree.tree_map(lambda x, y: y, {"a": 1, "b": 2}, {"b": [3], "a": (4, 5)}) == {"a": (4, 5), "b": [3]}
    for other in ({"a": 1}, {"a": 1, "c": 2}, [1, 2]):
        with pytest.raises(ValueError, match="tree_map: got"):
            pytree.tree_map(lambda x, y: y, {"a": 1, "b": 2}, other)
    with pytest.raises(ValueError, match="flatten_with_keys_fn"):
        kind = type("Bare", (Point,), {})
        pytree.register_pytree_node(kind, lambda p: ([p.x], None), lambda children, context: kind(*children, 0))
        pytree.tree_flatten_with_path([kind(1, 2)])
