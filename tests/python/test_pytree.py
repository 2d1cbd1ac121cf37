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
