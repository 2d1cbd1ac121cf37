"""S1: nested structures are taken apart by optree, as in Keras' other backends. Its C++ is much faster than pytree.

A tensor, a number or a word is seen to be no structure without a call of optree.
"""

import pydist
from pydist.nn.parameter import Parameter

_LEAVES = {pydist.Tensor, Parameter, bool, int, float, str, type(None)}


def _use_optree(module):
    from keras.src.tree import optree_impl

    vars(module).update({name: value for name, value in vars(optree_impl).items() if not name.startswith("_")})

    def is_nested(structure):
        return type(structure) not in _LEAVES and optree_impl.is_nested(structure)

    def flatten(structure):
        return [structure] if type(structure) in _LEAVES else optree_impl.flatten(structure)

    def map_structure(func, *structures, none_is_leaf=True):
        if len(structures) == 1 and type(structures[0]) in _LEAVES and structures[0] is not None:
            return func(structures[0])
        return optree_impl.map_structure(func, *structures, none_is_leaf=none_is_leaf)

    module.is_nested, module.flatten, module.map_structure = is_nested, flatten, map_structure


SEAMS = {"keras.src.tree.torchtree_impl": _use_optree}
