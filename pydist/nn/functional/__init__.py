"""Functions of nn with PyTorch's signatures, over the engine's operations."""

from pydist.nn.functional.activation import *
from pydist.nn.functional.attention import *
from pydist.nn.functional.conv import *
from pydist.nn.functional.ctc import *
from pydist.nn.functional.distance import *
from pydist.nn.functional.drop import *
from pydist.nn.functional.fractional import *
from pydist.nn.functional.loss import *
from pydist.nn.functional.norm import *
from pydist.nn.functional.padding import *
from pydist.nn.functional.pooling import *
from pydist.nn.functional.recurrent import *
from pydist.nn.functional.sparse import *
from pydist.nn.functional.vision import *
