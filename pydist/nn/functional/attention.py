"""Attention."""

from pydist import _C

__all__ = ["scaled_dot_product_attention"]


def scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False
):
    """softmax(query @ keyᵀ · scale + attn_mask) @ value, without the scores of all pairs in memory where dropout_p is 0.

    query [..., H, T, E], key [..., H, S, E], value [..., H, S, Ev], of one floating dtype; returns [..., H, T, Ev], laid
    out so that `y.transpose(1, 2)` is contiguous. attn_mask: broadcast to [..., H, T, S]; bool (True: the key may be
    seen; a query that may see none gets zeros) or of query's dtype, added to the scores. is_causal: query i sees keys
    j <= i, in place of a mask. dropout_p: of the probabilities, as they are used, whether in training or not. scale:
    1 / sqrt(E) by default. enable_gqa: key and value may have fewer heads, each serving H / Hkv neighbouring query heads.
    DTypeError, ShapeError, ValueError for what does not fit. Dao et al., arXiv 2205.14135.

    >>> import pydist
    >>> q = pydist.eye(4).reshape(1, 1, 4, 4)
    >>> y = pydist.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    >>> y[0, 0, 0]
    tensor([1., 0., 0., 0.])
    """
    return _C.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
