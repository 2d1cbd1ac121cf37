"""Models."""

from pydist.compat.mxnet.gluon.model_zoo import vision
from pydist.compat.mxnet.gluon.model_zoo.vision import get_model
