"""What `import mxnet as mx` gives under `python -m pydist.compat`: MXNet 1.x's names over pydist.

Arrays (`nd`), `autograd`, `gluon`, stores (`kv`) and optimizers are thin maps onto pydist and pydist.distributed.ps.
There are no symbols, no Module, no mx.np and no readers of MXNet's binary files: each says so where it is used.
"""

from pydist.compat.mxnet import (
    autograd,
    base,
    context,
    gluon,
    initializer,
    kvstore,
    lr_scheduler,
    metric,
    ndarray,
    optimizer,
    random,
    test_utils,
)
from pydist.compat.mxnet._base import Context, MXNetError, absent, current_context
from pydist.compat.mxnet.context import cpu, cpu_pinned, gpu, num_gpus

nd, kv, init, rnd = ndarray, kvstore, initializer, random

_ABSENT = {
    **dict.fromkeys("sym symbol mod module model executor viz visualization callback".split(), "gluon"),
    **dict.fromkeys("np npx numpy numpy_extension".split(), "mx.nd"),
    **dict.fromkeys("io image recordio img".split(), "gluon.data"),
    **dict.fromkeys(
        "rnn contrib operator rtc engine profiler monitor mon runtime library AttrScope attribute name amp".split()
    ),
    **dict.fromkeys("subgraph onnx util libinfo kvstore_server".split()),
}


def __getattr__(name):
    if name in _ABSENT:
        raise absent(f"mx.{name}", _ABSENT[name])
    raise AttributeError(f"pydist has no mxnet.{name}")
