"""Transformer layers (Vaswani et al., 2017)."""

import copy
import math

from pydist import _C
from pydist.nn import functional as F
from pydist.nn import init
from pydist.nn.modules.attention import MultiheadAttention
from pydist.nn.modules.container import ModuleList
from pydist.nn.modules.dropout import Dropout
from pydist.nn.modules.linear import Linear
from pydist.nn.modules.module import Module
from pydist.nn.modules.normalization import LayerNorm, add_norm


def _clones(module, count):
    return ModuleList([copy.deepcopy(module) for _ in range(count)])


def _activation(which):
    if not isinstance(which, str):
        return which
    if which not in ("relu", "gelu"):
        raise RuntimeError(f"activation should be relu/gelu, not {which} (expected 'relu', 'gelu' or a function)")
    return getattr(F, which)


class _Layer(Module):
    """The common part of encoder and decoder layers: `_attentions` by name, a feed-forward block, and a norm and
    dropout for each."""

    def __init__(
        self,
        d_model,
        nhead,
        dim_feedforward=2048,
        dropout=0.1,
        activation=F.relu,
        layer_norm_eps=1e-5,
        batch_first=False,
        norm_first=False,
        bias=True,
        device=None,
        dtype=None,
    ):
        super().__init__()
        made = {"device": device, "dtype": dtype}
        for name in self._attentions:
            setattr(
                self,
                name,
                MultiheadAttention(d_model, nhead, dropout=dropout, bias=bias, batch_first=batch_first, **made),
            )
        self.linear1 = Linear(d_model, dim_feedforward, bias=bias, **made)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias=bias, **made)
        self.norm_first = norm_first
        for k in range(1, len(self._attentions) + 2):
            setattr(self, f"norm{k}", LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **made))
        for k in range(1, len(self._attentions) + 2):
            setattr(self, f"dropout{k}", Dropout(dropout))
        self.activation = _activation(activation)

    def _through(self, x, *blocks):
        """x + dropout(block(x)) for one block after the other. The norm is applied to each block's input, or to each
        sum."""
        n = self.norm1(x) if self.norm_first else x
        for k, block in enumerate(blocks, 1):
            y = getattr(self, f"dropout{k}")(block(n))
            if not self.norm_first:
                x = n = add_norm(getattr(self, f"norm{k}"), x, y)[1]
            elif k < len(blocks):
                x, n = add_norm(getattr(self, f"norm{k + 1}"), x, y)
            else:
                x = x + y
        return x

    def _feed_forward(self, x):
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class TransformerEncoderLayer(_Layer):
    """y = norm2(z + ff(z)) with z = norm1(x + attention(x)) and ff = linear2(activation(linear1)). norm_first: the
    norms come before the blocks. x[L, N, d_model] (batch_first: N first)."""

    _attentions = ("self_attn",)

    def forward(self, src, src_mask=None, src_key_padding_mask=None, is_causal=False):
        def attend(x):
            return self.self_attn(
                x,
                x,
                x,
                attn_mask=src_mask,
                key_padding_mask=src_key_padding_mask,
                need_weights=False,
                is_causal=is_causal,
            )[0]

        return self._through(src, attend, self._feed_forward)


class TransformerDecoderLayer(_Layer):
    """An encoder layer with attention to `memory`, the encoder's result, between its two blocks."""

    _attentions = ("self_attn", "multihead_attn")

    def forward(
        self,
        tgt,
        memory,
        tgt_mask=None,
        memory_mask=None,
        tgt_key_padding_mask=None,
        memory_key_padding_mask=None,
        tgt_is_causal=False,
        memory_is_causal=False,
    ):
        def attend(x):
            return self.self_attn(
                x,
                x,
                x,
                attn_mask=tgt_mask,
                key_padding_mask=tgt_key_padding_mask,
                is_causal=tgt_is_causal,
                need_weights=False,
            )[0]

        def look(x):
            return self.multihead_attn(
                x,
                memory,
                memory,
                attn_mask=memory_mask,
                key_padding_mask=memory_key_padding_mask,
                is_causal=memory_is_causal,
                need_weights=False,
            )[0]

        return self._through(tgt, attend, look, self._feed_forward)


class _Stack(Module):
    def __init__(self, layer, num_layers, norm=None):
        super().__init__()
        self.layers = _clones(layer, num_layers)
        self.num_layers = num_layers
        self.norm = norm

    def _finished(self, x):
        return x if self.norm is None else self.norm(x)


class TransformerEncoder(_Stack):
    """`num_layers` copies of encoder_layer, one after the other, then `norm` if given. enable_nested_tensor and
    mask_check are accepted and change nothing."""

    def __init__(self, encoder_layer, num_layers, norm=None, enable_nested_tensor=True, mask_check=True):
        super().__init__(encoder_layer, num_layers, norm)
        self.enable_nested_tensor = enable_nested_tensor
        self.mask_check = mask_check

    def forward(self, src, mask=None, src_key_padding_mask=None, is_causal=None):
        for layer in self.layers:
            src = layer(
                src,
                src_mask=mask,
                src_key_padding_mask=src_key_padding_mask,
                is_causal=bool(is_causal and mask is not None),
            )
        return self._finished(src)


class TransformerDecoder(_Stack):
    """`num_layers` copies of decoder_layer, one after the other, then `norm` if given."""

    def __init__(self, decoder_layer, num_layers, norm=None):
        super().__init__(decoder_layer, num_layers, norm)

    def forward(
        self,
        tgt,
        memory,
        tgt_mask=None,
        memory_mask=None,
        tgt_key_padding_mask=None,
        memory_key_padding_mask=None,
        tgt_is_causal=None,
        memory_is_causal=False,
    ):
        for layer in self.layers:
            tgt = layer(
                tgt,
                memory,
                tgt_mask=tgt_mask,
                memory_mask=memory_mask,
                tgt_key_padding_mask=tgt_key_padding_mask,
                memory_key_padding_mask=memory_key_padding_mask,
                tgt_is_causal=bool(tgt_is_causal and tgt_mask is not None),
                memory_is_causal=memory_is_causal,
            )
        return self._finished(tgt)


class Transformer(Module):
    """y = decoder(tgt, encoder(src)): src[S, N, d_model], tgt[T, N, d_model] (batch_first: N first).

    >>> import pydist
    >>> model = pydist.nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    >>> model(pydist.zeros(3, 5, 8), pydist.zeros(3, 4, 8)).shape
    pydist.Size([3, 4, 8])
    """

    def __init__(
        self,
        d_model=512,
        nhead=8,
        num_encoder_layers=6,
        num_decoder_layers=6,
        dim_feedforward=2048,
        dropout=0.1,
        activation=F.relu,
        custom_encoder=None,
        custom_decoder=None,
        layer_norm_eps=1e-5,
        batch_first=False,
        norm_first=False,
        bias=True,
        device=None,
        dtype=None,
    ):
        super().__init__()
        made = {"device": device, "dtype": dtype}
        layer = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias)

        def norm():
            return LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **made)

        if custom_encoder is None:
            custom_encoder = TransformerEncoder(TransformerEncoderLayer(*layer, **made), num_encoder_layers, norm())
        if custom_decoder is None:
            custom_decoder = TransformerDecoder(TransformerDecoderLayer(*layer, **made), num_decoder_layers, norm())
        self.encoder = custom_encoder
        self.decoder = custom_decoder
        self._reset_parameters()
        self.d_model = d_model
        self.nhead = nhead
        self.batch_first = batch_first

    def forward(
        self,
        src,
        tgt,
        src_mask=None,
        tgt_mask=None,
        memory_mask=None,
        src_key_padding_mask=None,
        tgt_key_padding_mask=None,
        memory_key_padding_mask=None,
        src_is_causal=None,
        tgt_is_causal=None,
        memory_is_causal=False,
    ):
        if src.dim() == 3 and src.shape[0 if self.batch_first else 1] != tgt.shape[0 if self.batch_first else 1]:
            raise RuntimeError("the batch number of src and tgt must be equal")
        if src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            raise RuntimeError("the feature number of src and tgt must be equal to d_model")
        memory = self.encoder(src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal)
        return self.decoder(
            tgt,
            memory,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            tgt_is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
        )

    @staticmethod
    def generate_square_subsequent_mask(sz, device=None, dtype=None):
        """[sz, sz]: 0 where column j <= row i, -inf elsewhere."""
        return _C.full((sz, sz), -math.inf, dtype=dtype, device=device).triu(1)

    def _reset_parameters(self):
        for p in self.parameters():
            if p.dim() > 1:
                init.xavier_uniform_(p)
