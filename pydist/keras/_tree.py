"""S1: nested structures are taken apart by optree, as in Keras' other backends. Its C++ is much faster than pytree."""


def _use_optree(module):
    from keras.src.tree import optree_impl

    vars(module).update({name: value for name, value in vars(optree_impl).items() if not name.startswith("_")})


SEAMS = {"keras.src.tree.torchtree_impl": _use_optree}
