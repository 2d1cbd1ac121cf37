"""Attention."""

import math

from pydist import _C, _sdpa
from pydist.nn.functional.activation import softmax
from pydist.nn.functional.drop import dropout

__all__ = ["multi_head_attention_forward", "scaled_dot_product_attention"]


def scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False
):
    """softmax(query @ keyᵀ · scale + attn_mask) @ value. With dropout_p = 0 the scores of all pairs are never all in
    memory.

    query [..., H, T, E], key [..., H, S, E], value [..., H, S, Ev], of one floating dtype. Returns [..., H, T, Ev],
    whose memory order makes `y.transpose(1, 2)` contiguous. attn_mask is broadcast to [..., H, T, S]: bool (True: the
    query sees the key; a query that sees no key gets zeros), or of query's dtype and added to the scores. is_causal:
    query i sees only keys j <= i, of those that the mask lets it see. dropout_p: dropout of the probabilities, also outside training. scale:
    1 / sqrt(E) by default. enable_gqa: key and value may have fewer heads, Hkv; each serves H / Hkv neighbouring query
    heads. Raises DTypeError, ShapeError or ValueError for arguments that do not fit. Dao et al., arXiv 2205.14135.

    >>> import pydist
    >>> q = pydist.eye(4).reshape(1, 1, 4, 4)
    >>> y = pydist.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    >>> y[0, 0, 0]
    tensor([1., 0., 0., 0.])
    """
    if is_causal and attn_mask is not None:
        later = _C.ones(query.shape[-2], key.shape[-2], dtype=_C.bool, device=query.device).triu(1)
        attn_mask = attn_mask & ~later if attn_mask.dtype is _C.bool else _C.where(later, -math.inf, attn_mask)
        is_causal = False
    return _sdpa.attend(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _projected(query, key, value, in_proj_weight, in_proj_bias):
    """query, key and value, multiplied by their thirds of in_proj_weight."""
    biases = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
    if query is key and key is value:
        return _C.linear(query, in_proj_weight, in_proj_bias).chunk(3, -1)
    return tuple(_C.linear(x, w, b) for x, w, b in zip((query, key, value), in_proj_weight.chunk(3), biases))


def _as_scores(mask, dtype):
    """A mask that is added to the scores: bool becomes -inf where it is True."""
    if mask is None or mask.dtype is not _C.bool:
        return mask
    return _C.zeros(*mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -math.inf)


def multi_head_attention_forward(
    query,
    key,
    value,
    embed_dim_to_check,
    num_heads,
    in_proj_weight,
    in_proj_bias,
    bias_k,
    bias_v,
    add_zero_attn,
    dropout_p,
    out_proj_weight,
    out_proj_bias,
    training=True,
    key_padding_mask=None,
    need_weights=True,
    attn_mask=None,
    use_separate_proj_weight=False,
    q_proj_weight=None,
    k_proj_weight=None,
    v_proj_weight=None,
    static_k=None,
    static_v=None,
    average_attn_weights=True,
    is_causal=False,
):
    """Attention with `num_heads` heads over query[L, N, E], key[S, N, E], value[S, N, E] (or all without N). Returns
    (result, weights or None). See nn.MultiheadAttention."""
    if query.dim() not in (2, 3) or key.dim() != query.dim() or value.dim() != query.dim():
        raise RuntimeError(
            f"multi_head_attention: got {query.dim()}, {key.dim()} and {value.dim()} dimensions (expected all 2 or "
            "all 3)"
        )
    batched = query.dim() == 3
    if not batched:
        same = key is query and value is query
        query, key, value = (t.unsqueeze(1) for t in (query, key, value))
        key, value = (query, query) if same else (key, value)
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    length, count, width = query.shape
    if width != embed_dim_to_check or width % num_heads:
        raise RuntimeError(
            f"multi_head_attention: query is {width} wide (expected {embed_dim_to_check}, divisible by {num_heads} heads)"
        )
    if key.shape[:2] != value.shape[:2]:
        raise RuntimeError(
            f"multi_head_attention: key {tuple(key.shape)}, value {tuple(value.shape)} (expected as many)"
        )
    if is_causal and attn_mask is None:
        raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
    if use_separate_proj_weight:
        biases = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
        weights = (q_proj_weight, k_proj_weight, v_proj_weight)
        q, k, v = (_C.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases))
    else:
        q, k, v = _projected(query, key, value, in_proj_weight, in_proj_bias)
    more = 0
    if bias_k is not None:
        k, v = (_C.cat([t, b.expand(1, count, -1)]) for t, b in ((k, bias_k), (v, bias_v)))
        more += 1
    head = width // num_heads
    q = q.reshape(length, count, num_heads, head).permute(1, 2, 0, 3)

    def heads(t, given):
        if given is not None:
            return given.reshape(count, num_heads, -1, head)
        return t.reshape(t.shape[0], count, num_heads, head).permute(1, 2, 0, 3)

    k, v = heads(k, static_k), heads(v, static_v)
    if add_zero_attn:
        zero = _C.zeros(count, num_heads, 1, head, dtype=k.dtype, device=k.device)
        k, v = _C.cat([k, zero], 2), _C.cat([v, zero], 2)
        more += 1
    source = k.shape[2]
    mask = _as_scores(attn_mask, q.dtype)
    if mask is not None:
        want = (length, source - more)
        if tuple(mask.shape) not in (want, (count * num_heads, *want)):
            raise RuntimeError(
                f"multi_head_attention: attn_mask is {tuple(mask.shape)} (expected {want} or {(count * num_heads, *want)})"
            )
        mask = mask.reshape(count, num_heads, *want) if mask.dim() == 3 else mask
        mask = _C.constant_pad_nd(mask, (0, more)) if more else mask
    padding = _as_scores(key_padding_mask, q.dtype)
    if padding is not None:
        if tuple(padding.shape) != (count, source - more):
            shape = tuple(key_padding_mask.shape)
            raise RuntimeError(f"multi_head_attention: key_padding_mask is {shape} (expected {(count, source - more)})")
        padding = (_C.constant_pad_nd(padding, (0, more)) if more else padding).reshape(count, 1, 1, source)
        mask = padding if mask is None else mask + padding
    dropped, weights = dropout_p if training else 0.0, None
    if need_weights:
        _sdpa.check_whole("multi_head_attention", "need_weights is True")
        scores = (q / math.sqrt(head)) @ k.transpose(-2, -1)
        weights = dropout(softmax(scores if mask is None else scores + mask, -1), dropped)
        out = weights @ v
        weights = weights.mean(1) if average_attn_weights else weights
        weights = weights if batched else weights.squeeze(0)
    else:
        out = scaled_dot_product_attention(q, k, v, mask, dropped)
    out = _C.linear(out.permute(2, 0, 1, 3).reshape(length, count, width), out_proj_weight, out_proj_bias)
    return (out if batched else out.squeeze(1)), weights
