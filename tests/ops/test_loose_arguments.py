"""Arguments that PyTorch takes besides the plain ones, as libraries over it give them."""

import numpy as np
import pytest

import pydist

F = pydist.nn.functional


def test_numbers_in_tensors():
    assert pydist.full((2,), pydist.tensor(3)).tolist() == [3, 3]
    assert pydist.full((1,), pydist.tensor(True)).dtype is pydist.bool
    assert pydist.full((1,), pydist.tensor([2.5], dtype=pydist.float64)).dtype is pydist.float32
    assert pydist.arange(pydist.tensor(1), pydist.tensor(7), pydist.tensor(2)).tolist() == [1, 3, 5]
    assert pydist.arange(pydist.tensor(2.0)).dtype is pydist.float32
    for wrong in (pydist.ones(2), pydist.ones(0)):
        with pytest.raises(TypeError, match="fill_value is pydist.Tensor"):
            pydist.full((2,), wrong)
        with pytest.raises(TypeError, match="arange"):
            pydist.arange(wrong)


@pytest.mark.parametrize("count", [4, 4.0, np.int64(4), pydist.tensor(4), pydist.tensor(4.0, dtype=pydist.bfloat16)])
def test_lengths_of_windows(count):
    assert pydist.signal.windows.hann(count).equal(pydist.signal.windows.hann(4))


@pytest.mark.parametrize("count", [-1, 2.5, float("nan"), float("inf"), "4", None, pydist.tensor([1, 2])])
def test_wrong_lengths_of_windows(count):
    with pytest.raises(ValueError, match="hann: M is .* an integer of at least 0"):
        pydist.signal.windows.hann(count)


@pytest.mark.parametrize("equation", ["ij,jk->ik", "ijk,lkj->il", "ij,j->i", "i,i->", "ij,kl->"])
@pytest.mark.parametrize(
    "types", [("int8", "int32"), ("uint8", "int8"), ("float16", "float32"), ("bool", "int16"), ("int32", "int32")]
)
def test_einsum_promotes(equation, types):
    shapes = [tuple(2 + "ijkl".index(c) for c in part) for part in equation.split("->")[0].split(",")]
    given = [pydist.randint(0, 2, shape).to(getattr(pydist, name)) for shape, name in zip(shapes, types)]
    result = pydist.einsum(equation, *given)
    assert result.dtype is pydist.promote_types(given[0].dtype, given[1].dtype)
    assert np.array_equal(result.numpy(), np.einsum(equation, *[g.to(pydist.int64).numpy() for g in given]))


def test_histogram_names_its_results():
    found = pydist.histogram(pydist.tensor([1.0, 2.0, 2.0]), 2)
    assert found.hist.tolist() == [1, 2] and found.bin_edges.tolist() == [1, 1.5, 2]


def test_covariances_of_whole_numbers():
    rows = pydist.tensor([[1, 2, 4], [3, 1, 2]], dtype=pydist.int32)
    np.testing.assert_allclose(pydist.cov(rows).numpy(), np.cov(rows.numpy()), rtol=1e-6)
    np.testing.assert_allclose(pydist.corrcoef(rows).numpy(), np.corrcoef(rows.numpy()), rtol=1e-6)


@pytest.mark.parametrize("ord", ["nuc", "fro"])
def test_a_norm_of_matrices_wants_two_dimensions(ord):
    with pytest.raises(RuntimeError, match="two dimensions"):
        pydist.linalg.norm(pydist.ones(2, 3), ord, 1)


@pytest.mark.parametrize("word, other", [("max", "amax"), ("min", "amin")])
def test_scatter_reduce_knows_both_words(word, other):
    given = pydist.zeros(4), 0, pydist.tensor([0, 1, 1, 2]), pydist.arange(4.0)
    for include in (False, True):
        made = [pydist.scatter_reduce(*given, how, include_self=include) for how in (word, other)]
        assert made[0].equal(made[1])


@pytest.mark.parametrize("shape", [(3, 5), (2, 1, 3, 5), (5,), (1, 1)])
def test_attention_with_a_mask_that_is_causal_too(shape):
    q, k = pydist.randn(2, 4, 3, 8), pydist.randn(2, 4, 5, 8)
    seen = pydist.ones(3, 5, dtype=pydist.bool).tril()
    added = pydist.randn(*shape)
    for mask, both in (
        (added > 0, (added > 0) & seen),
        (added, pydist.where(seen, added, pydist.tensor(-float("inf")))),
    ):
        made = F.scaled_dot_product_attention(q, k, k, mask, is_causal=True)
        np.testing.assert_allclose(made.numpy(), F.scaled_dot_product_attention(q, k, k, both).numpy(), atol=1e-6)


@pytest.mark.parametrize("late", [False, True])
def test_what_no_backward_reads_may_be_saved(late):
    class Double(pydist.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            x.requires_grad_(x.requires_grad or late)
            ctx.save_for_backward("not a tensor")
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    assert Double.apply(pydist.ones(2)).tolist() == [2, 2]
    with pytest.raises(TypeError, match="save_for_backward: an argument is str"):
        Double.apply(pydist.ones(2, requires_grad=True))
