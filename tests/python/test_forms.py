"""Second forms of ops, old names, and modules that say what is not there."""

import importlib

import pytest

import pydist
from pydist import nn


def test_max_and_min_of_two_tensors():
    a, b = pydist.tensor([1.0, 5.0]), pydist.tensor([3.0, 2.0])
    assert pydist.max(a, b).tolist() == a.max(b).tolist() == pydist.max(a, other=b).tolist() == [3, 5]
    assert pydist.min(a, pydist.tensor(2.0)).tolist() == a.min(pydist.tensor(2.0)).tolist() == [1, 2]
    assert pydist.max(pydist.tensor(2), pydist.tensor(1)).item() == 2 and a.max().item() == 5
    values, indices = a.max(0)
    assert (values.item(), indices.item()) == (5, 1) and a.min(dim=0, keepdim=True)[0].shape == (1,)
    with pytest.raises(RuntimeError):
        pydist.max(a, pydist.ones(3))


def test_clone_takes_a_memory_format():
    x = pydist.rand(2, 3, 4, 4).contiguous(memory_format=pydist.channels_last)
    assert x.clone().stride() == x.stride() == x.clone(memory_format=pydist.preserve_format).stride()
    assert pydist.clone(x, memory_format=pydist.contiguous_format).is_contiguous()
    y = pydist.ones(2, requires_grad=True)
    pydist.clone(y, memory_format=pydist.preserve_format).sum().backward()
    assert y.grad.tolist() == [1, 1]


def test_old_names_of_init():
    w = pydist.empty(2, 2)
    with pytest.warns(FutureWarning, match="favor of `nn.init.constant_`"):
        assert nn.init.constant(w, 3.0) is w
    assert w.tolist() == [[3, 3], [3, 3]]
    assert pydist.randint_like(w, 3).max().item() < 3 and pydist.randint_like(w, 5, 6)[0, 0].item() == 5
    with pytest.raises(TypeError, match="high is missing"):
        pydist.randint_like(w)


def test_what_is_not_there_says_so():
    onnx = importlib.import_module("pydist.onnx")
    with pytest.raises(AttributeError, match="export to ONNX is not supported"):
        onnx.symbolic_helper
    assert not pydist.ones(1).is_xpu and not pydist.ones(1).is_mps and not pydist.ones(1).is_meta
    with pytest.raises(RuntimeError, match="no MPS device"):
        pydist.mps.synchronize()


def test_memory_formats_of_new_tensors():
    x = pydist.rand(2, 3, 4, 5).contiguous(memory_format=pydist.channels_last)
    for make in (pydist.zeros_like, pydist.ones_like, pydist.empty_like):
        assert make(x).stride() == make(x, memory_format=pydist.preserve_format).stride() == x.stride()
        assert make(x, memory_format=pydist.contiguous_format).is_contiguous()
        assert make(x.contiguous(), memory_format=pydist.channels_last).stride() == x.stride()
    assert pydist.rand_like(x, memory_format=pydist.preserve_format).shape == x.shape
    with pytest.raises(RuntimeError, match="got 1 dimensions .expected 4"):
        pydist.zeros_like(pydist.ones(2), memory_format=pydist.channels_last)
    with pytest.raises(TypeError, match="memory_format is int"):
        pydist.zeros_like(x, memory_format=3)
