"""pydist: a distributed-training engine in C with PyTorch's names.

>>> import pydist
>>> x = pydist.tensor([1.0, 2.0, 3.0], requires_grad=True)
>>> (x * x).sum().backward()
>>> x.grad.tolist()
[2.0, 4.0, 6.0]

Importing this package opens no socket, starts no thread and does not import NumPy; submodules load on first use.
"""

import os as _os
from math import e, inf, nan, pi

# Idle OpenMP threads would spin for some 15 ms by default and starve loader threads and other ranks; 10000 rounds are about
# 0.5 ms. libgomp reads this when the engine loads it, so it does not stay in the environment.
_spins = not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & _os.environ.keys()
if _spins:
    _os.environ["GOMP_SPINCOUNT"] = "10000"
try:
    from pydist._C import *  # first: if the extension is not built, this import says so

    # isort: split
    from pydist import _C
finally:
    if _spins:
        del _os.environ["GOMP_SPINCOUNT"]

from pydist import _functions, _index, _legacy
from pydist._functions import *
from pydist._grad_mode import enable_grad, inference_mode, no_grad, set_grad_enabled
from pydist._nvidia import folders as _nvidia_folders
from pydist._onednn import candidates as _onednn_candidates

__version__ = "0.1.0"

newaxis = None

_SUBMODULES = frozenset(
    "_VF _dynamo _inductor accelerator amp autograd backends compat compiler cpu cuda data distribute distributed distributions export "
    "fft func fx hub jit linalg models mps multiprocessing nn onnx ops optim profiler random return_types safetensors "
    "serialization signal sparse special testing utils version vision xpu".split()
)
_FROM = {  # name -> the submodule that defines it, imported at first use
    "compile": "compiler",
    "vmap": "func",
    "seed": "random",
    "load": "serialization",
    "save": "serialization",
    **{name: file for file, names in _index.FROM.items() for name in names.split()},
    "_assert": "_settings",
    **dict.fromkeys("SymFloat SymInt".split(), "_symbolic"),
    **dict.fromkeys("layout sparse_coo strided".split(), "_layout"),
    "autocast": "amp.autocast_mode",
    **dict.fromkeys(
        (
            "clear_autocast_cache get_autocast_cpu_dtype get_autocast_dtype get_autocast_gpu_dtype is_autocast_available "
            "is_autocast_cache_enabled is_autocast_cpu_enabled is_autocast_enabled set_autocast_cache_enabled "
            "set_autocast_dtype set_autocast_enabled"
        ).split(),
        "amp.autocast_mode",
    ),
    "set_default_tensor_type": "_legacy",
    "set_printoptions": "_tensor",
    "sparse_coo_tensor": "sparse",
    "spmm": "sparse",
    **dict.fromkeys(_functions.LATER, "_functions"),
    **dict.fromkeys(
        (
            "adaptive_max_pool1d bilinear celu celu_ channel_shuffle conv1d conv3d conv_transpose1d conv_transpose3d "
            "cosine_embedding_loss cosine_similarity ctc_loss hardshrink hinge_embedding_loss instance_norm "
            "margin_ranking_loss max_pool1d max_pool2d max_pool3d pairwise_distance pdist pixel_shuffle pixel_unshuffle "
            "poisson_nll_loss prelu rrelu rrelu_ selu selu_ threshold threshold_ triplet_margin_loss"
        ).split(),
        "nn.functional",
    ),
    **dict.fromkeys(_legacy._DTYPES, "_legacy"),
}


def __getattr__(name):
    from importlib import import_module

    if name in _SUBMODULES:
        return import_module(f"pydist.{name}")
    if name.startswith("_foreach_"):
        return getattr(import_module("pydist._foreach"), name)
    if name in _FROM:
        found = globals()[name] = getattr(import_module(f"pydist.{_FROM[name]}"), name)  # later uses find the name here
        return found
    raise AttributeError(f"module 'pydist' has no attribute '{name}'")


def __dir__():
    return sorted({*globals(), *_SUBMODULES, *_FROM})


_C.onednn_paths(_onednn_candidates())
_C.nvidia_paths(_nvidia_folders())
