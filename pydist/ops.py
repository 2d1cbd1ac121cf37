"""Ops by PyTorch's namespaces and names: `ops.aten.mul(x, y)` and `ops.aten.mul.Tensor(x, y)` are `pydist.mul(x, y)`, and policies
of selective checkpoints compare `ops.aten.mm.default`.

An op has the name that PyTorch gives it; where PyTorch has several names or overloads for what is one op here, they are all
the same handle: each kernel of attention is `aten.scaled_dot_product_attention.default`, and so on. A handle can be called if
pydist has a function of that name. `profiler` has the functions with which programs record spans by hand.

>>> import pydist
>>> from pydist import ops
>>> ops.aten.mul.Tensor(pydist.tensor([1.0, 2.0]), pydist.tensor([3.0, 4.0]))
tensor([3., 8.])
>>> handle = ops.profiler._record_function_enter("forward", None)
>>> ops.profiler._record_function_exit(handle)
"""

from types import SimpleNamespace

import pydist
from pydist import _C
from pydist.profiler import record_function

# The op of the engine, where its name is not PyTorch's: PyTorch's names, the first of which is printed.
_NAMES = {
    "attend": "scaled_dot_product_attention _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention "
    "_scaled_dot_product_cudnn_attention _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_fused_attention_overrideable _scaled_dot_product_attention_math",
    "add_norm_rows": "add_layer_norm add_rms_norm",
    "argsort_last": "sort argsort",
    "bce_logits_terms": "binary_cross_entropy_with_logits",
    "bce_terms": "binary_cross_entropy",
    "batch_norm": "native_batch_norm batch_norm cudnn_batch_norm _native_batch_norm_legit",
    "bmm": "bmm baddbmm",
    "cast": "_to_copy",
    "conv2d": "convolution conv1d conv2d",
    "conv_transpose2d": "conv_transpose2d conv_transpose1d",
    "cross_entropy_rows": "cross_entropy_loss",
    "dropout_mask": "native_dropout dropout",
    "embedding_lookup": "embedding",
    "extreme": "max min",
    "gelu_erf": "gelu",
    "huber_terms": "huber_loss",
    "l1_terms": "l1_loss",
    "mse_terms": "mse_loss",
    "smooth_l1_terms": "smooth_l1_loss",
    "log_softmax": "_log_softmax log_softmax",
    "nll_rows": "nll_loss_forward nll_loss",
    "norm_groups": "native_group_norm group_norm",
    "norm_rows": "native_layer_norm layer_norm rms_norm _fused_rms_norm",
    "pool_max": "max_pool2d_with_indices max_pool2d max_pool1d",
    "pool_avg": "avg_pool2d avg_pool1d _adaptive_avg_pool2d",
    "running_sum": "cumsum",
    "softmax": "_softmax softmax",
    "topk_last": "topk",
    "where_same": "where",
}
_MM, _ADDMM = "mm", "addmm"  # the engine's linear and bmm by their inputs


class OpOverload:
    """An op, as policies get it."""

    def __init__(self, namespace, name):
        self.namespace, self._name = namespace, name

    def name(self):
        """namespace::name"""
        return f"{self.namespace}::{self._name}"

    def __call__(self, *args, **kwargs):
        function = getattr(pydist, self._name, None) if self.namespace == "aten" else None
        if not callable(function):
            raise NotImplementedError(
                f"{self}: a name that cannot be called (expected one that pydist has as a function)"
            )
        return function(*args, **kwargs)

    def __str__(self):
        return f"{self.namespace}.{self._name}.default"

    def __repr__(self):
        return f"<OpOverload(op='{self.namespace}.{self._name}', overload='default')>"

    def __reduce__(self):
        return _overload, (self.namespace, self._name)


def _overload(namespace, name):
    return getattr(globals()[namespace], name).default


class OpOverloadPacket:
    """The overloads of a name: `default`, and any other one, which is the same op here."""

    def __init__(self, op):
        self.default = op

    def __call__(self, *args, **kwargs):
        return self.default(*args, **kwargs)

    def __getattr__(self, overload):
        if overload.startswith("__"):
            raise AttributeError(overload)
        return self.default

    def __repr__(self):
        return f"<OpOverloadPacket(op='{self.default.namespace}.{self.default._name}')>"


class _Namespace:
    """The names of a namespace, each a packet."""

    def __init__(self, name, packets):
        self.__name__ = name
        vars(self).update(packets)

    def __getattr__(self, name):
        raise AttributeError(f"pydist.ops.{self.__name__} has no {name} (expected the name of an op, such as add)")


_ops = {}  # the engine's name -> OpOverload


def _aten():
    packets = {}
    for name in [*_NAMES, *(row[0] for row in _C.op_table())]:
        names = _NAMES.get(name, name).split()
        _ops.setdefault(name, OpOverload("aten", names[0]))
        for also in names:
            packets.setdefault(also, OpOverloadPacket(_ops[name]))
    for name in (_MM, _ADDMM):
        _ops[name] = OpOverload("aten", name)
        packets[name] = OpOverloadPacket(_ops[name])
    return _Namespace("aten", packets)


def _of_call(name, inputs):
    """The op of a call of the engine."""
    if name == "gelu_tanh":
        name = "gelu_erf"
    elif name == "linear":
        name = _MM if inputs[2] is None else _ADDMM
    elif name in ("bmm", "bmm_wide"):
        name = _MM if inputs[0].dim() == 2 else "bmm"
    return _ops[name]


# Collectives are no ops of the engine, so no policy is asked about them: the names are there for lists of scripts.
_COLLECTIVES = (
    "all_gather_into_tensor all_reduce all_to_all_single broadcast reduce_scatter_tensor wait_tensor "
    "all_gather_into_tensor_coalesced all_reduce_coalesced reduce_scatter_tensor_coalesced"
).split()


def _collectives(namespace):
    return _Namespace(namespace, {name: OpOverloadPacket(OpOverload(namespace, name)) for name in _COLLECTIVES})


aten, c10d = _aten(), _collectives("c10d")
c10d_functional, _c10d_functional = _collectives("c10d_functional"), _collectives("_c10d_functional")


# ---- spans by hand ---------------------------------------------------------------------------------------------------


def _enter(name, args=None):
    return record_function(name, args).__enter__()


def _exit(handle):
    handle.__exit__(None, None, None)


def _end_with(handle, future):
    return handle._call_end_callbacks_on_future(future)


profiler = SimpleNamespace(
    _record_function_enter=_enter,
    _record_function_enter_new=_enter,
    _record_function_exit=_exit,
    _call_end_callbacks_on_jit_fut=_end_with,
)
