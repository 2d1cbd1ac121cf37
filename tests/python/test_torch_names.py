"""Small modules that libraries over PyTorch import: windows, result types, _VF, and names whose use is refused."""

import pickle

import pytest

import pydist

WINDOWS = {
    "bartlett": {}, "blackman": {}, "cosine": {}, "exponential": {"tau": 2.5}, "gaussian": {"std": 1.5}, "hamming": {},
    "general_cosine": {"a": [0.4, 0.3, 0.2, 0.1]}, "general_hamming": {"alpha": 0.6}, "hann": {}, "kaiser": {"beta": 8.6},
    "nuttall": {},
}  # fmt: skip


@pytest.mark.parametrize("name", WINDOWS)
def test_windows(torch, name):
    theirs, ours = getattr(torch.signal.windows, name), getattr(pydist.signal.windows, name)
    for n in (0, 1, 2, 3, 8, 33):
        for sym in (True, False):
            want = theirs(n, sym=sym, dtype=torch.float64, **WINDOWS[name])
            got = ours(n, sym=sym, dtype=pydist.float64, **WINDOWS[name])
            assert got.shape == tuple(want.shape)
            assert n == 0 or (got - pydist.from_numpy(want.numpy())).abs().max() < 1e-14, (n, sym)
    assert ours(4, **WINDOWS[name]).dtype is pydist.float32
    assert ours(4, requires_grad=True, **WINDOWS[name]).requires_grad
    for wrong in ({"M": -1}, {"M": 4, "dtype": pydist.float16}, {"M": 2.5}):
        with pytest.raises(ValueError, match=name):
            ours(**wrong, **WINDOWS[name])


def test_windows_refuse():
    windows = pydist.signal.windows
    for call in (
        lambda: windows.kaiser(4, beta=-1),
        lambda: windows.gaussian(4, std=0),
        lambda: windows.exponential(4, tau=0),
        lambda: windows.exponential(4, center=1.0),
        lambda: windows.general_cosine(4, a=[]),
    ):
        with pytest.raises(ValueError, match="expected"):
            call()
    assert windows.exponential(4, center=1.0, sym=False)[1] == 1


DTYPES = ["complex32", "float8_e4m3fn", "float8_e5m2"]


@pytest.mark.parametrize("name", DTYPES)
def test_a_dtype_that_only_has_a_name(torch, name):
    ours, theirs = getattr(pydist, name), getattr(torch, name)
    assert repr(ours) == f"pydist.{name}" and pickle.loads(pickle.dumps(ours)) is ours and {ours: 1}[ours] == 1
    for about in ("itemsize", "is_floating_point", "is_complex"):
        assert getattr(ours, about) == getattr(theirs, about)
    assert str(ours.to_real()).split(".")[1] == str(theirs.to_real()).split(".")[1]
    for use in (
        lambda: pydist.zeros(2, dtype=ours),
        lambda: pydist.ones(2).to(ours),
        lambda: pydist.ones(2).view(ours),
        lambda: pydist.tensor([1.0], dtype=ours),
        lambda: pydist.ones(2).sum(dtype=ours),
        lambda: pydist.set_default_dtype(ours),
        lambda: pydist.nn.Linear(2, 2, dtype=ours),
        lambda: pydist.promote_types(ours, pydist.float32),
    ):
        with pytest.raises(pydist.DTypeError, match=f"pydist.{name}, in which pydist does not compute"):
            use()


def test_channels_last_3d(torch):
    x = pydist.randn(2, 3, 4, 5, 6)
    want = torch.empty(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d).stride()
    last = pydist.channels_last_3d
    made = [x.contiguous(memory_format=last), x.to(memory_format=last), x.clone(memory_format=last)]
    for y in made:
        assert y.stride() == want and y.equal(x) and y.is_contiguous(memory_format=last)
        assert not y.is_contiguous() and not y.is_contiguous(memory_format=pydist.channels_last)
        assert y.contiguous(memory_format=last) is y and y.contiguous().stride() == x.stride()
    assert pydist.empty_like(x, memory_format=last).stride() == want
    layer = pydist.nn.Conv3d(3, 2, 2)
    assert layer(made[0]).equal(layer(x))
    norm = pydist.nn.BatchNorm3d(3)
    assert norm(made[0]).equal(norm(x))
    for shape in ((2, 3, 4, 5), (2, 3)):
        with pytest.raises(RuntimeError, match="channels_last_3d"):
            pydist.ones(shape).contiguous(memory_format=last)
        with pytest.raises(RuntimeError, match="channels_last_3d"):
            pydist.empty_like(pydist.ones(shape), memory_format=last)


def test_result_types(torch):
    x = pydist.ones(2, 3)
    for name in ("max", "min", "sort", "topk", "median", "mode", "cummax", "kthvalue"):
        args = (1,) if name in ("topk", "kthvalue") else ()
        kind = getattr(pydist.return_types, name)
        assert type(getattr(pydist, name)(x, *args, dim=0)) is kind and hasattr(torch.return_types, name)
        leaves, spec = pydist.utils._pytree.tree_flatten(getattr(pydist, name)(x, *args, dim=0))
        assert len(leaves) == 2 and type(spec.unflatten(leaves)) is kind
    for wrong in ("add", "nothing", "_x"):
        with pytest.raises(AttributeError, match=wrong):
            getattr(pydist.return_types, wrong)


def test_numbers_of_traced_programs_do_not_exist():
    assert not isinstance(3, pydist.SymInt) and not isinstance(3.0, pydist.SymFloat)
    for kind in (pydist.SymInt, pydist.SymFloat):
        with pytest.raises(TypeError, match="traces no programs"):
            kind(3)
    assert issubclass(pydist.jit.TracerWarning, Warning)


def test_what_is_not_there_says_what_is():
    x, layer = pydist.ones(1), pydist.nn.Linear(1, 1)
    tensor, optim = pydist.distributed.tensor, pydist.distributed.optim
    assert not isinstance(x, optim.ZeroRedundancyOptimizer) and optim._get_in_backward_optimizers(layer) == []
    assert not isinstance(x, tensor.DTensor)
    assert tensor.Shard(1) == tensor.Shard(1) != tensor.Shard(0) and repr(tensor.Shard(0)) == "Shard(dim=0)"
    assert tensor.Shard(1).is_shard(1) and tensor.Replicate().is_replicate() and tensor.Partial().is_partial("sum")
    for call, there in (
        (lambda: pydist.export.export(layer, (x,)), "safetensors"),
        (lambda: pydist.export.load("x.pt2"), "pydist.load"),
        (lambda: pydist.export.ExportedProgram(), "safetensors"),
        (lambda: pydist.onnx.export(layer, (x,), "x.onnx"), "state_dict"),
        (
            lambda: optim._apply_optimizer_in_backward(pydist.optim.SGD, layer.parameters(), {"lr": 1}),
            "register_post_accumulate_grad_hook",
        ),
    ):
        with pytest.raises(NotImplementedError, match=there):
            call()
    assert not pydist.onnx.is_in_onnx_export()
    with pytest.raises(RuntimeError, match="xpu"):
        pydist.xpu.set_device(0)
    with pytest.raises(RuntimeError, match="xpu"):
        pydist.xpu.current_device()


def test_attention_of_others(torch):
    q = pydist.ones(1, 1, 2, 4)
    params = pydist.backends.cuda.SDPAParams(q, q, q, None, 0.0, False, False)
    assert params.query is q and not pydist.backends.cuda.can_use_flash_attention(params, False)
    assert hasattr(torch.backends.cuda, "can_use_efficient_attention")


def test_operations_of_two_numbers():
    """As in torch: the first number becomes a tensor without dimensions."""
    for result, value, dtype in (
        (pydist.add(1, 2), 3, pydist.int64),
        (pydist.mul(1.5, 2), 3.0, pydist.float32),
        (pydist.sub(True, 2), -1, pydist.int64),
        (pydist.div(1, 2), 0.5, pydist.float32),
        (pydist.add(1j, 2), 2 + 1j, pydist.complex64),
    ):
        assert result.item() == value and result.dtype == dtype and result.shape == ()
    assert pickle.loads(pickle.dumps(pydist.div)) is pydist.div
