"""S8: other frameworks are not available for Keras, even where they are installed or pydist stands in for them."""


def _hide_frameworks(module):
    class Hidden(module.LazyModule):
        """A module that Keras must not import."""

        def initialize(self):
            raise ImportError(f"{self.name} is not used by Keras over pydist")

    for attribute in ("tensorflow", "gfile", "tensorflow_io", "jax", "torch_xla"):
        setattr(module, attribute, Hidden(getattr(module, attribute).name))


SEAMS = {"keras.src.utils.module_utils": _hide_frameworks}
