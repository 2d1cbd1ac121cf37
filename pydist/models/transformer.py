"""The Transformer (Vaswani et al., arXiv 1706.03762): an encoder, and a decoder that reads the encoder's result."""

import math
from dataclasses import dataclass

import pydist
from pydist import nn
from pydist.models._parts import check_sizes, check_tokens, from_heads, to_heads
from pydist.nn import functional as F
from pydist.nn.modules.normalization import add_norm


@dataclass
class TransformerConfig:
    """Sizes of a Transformer. The defaults are those of the paper's base model, with one vocabulary."""

    vocab_size: int = 37000
    max_length: int = 512
    encoder_layers: int = 6
    decoder_layers: int = 6
    heads: int = 8
    width: int = 512
    hidden: int = 2048
    dropout: float = 0.1

    def __post_init__(self):
        check_sizes(self, ("width", "heads"))


def positions(length, width):
    """sin and cos of position / 10000^(2i / width), interleaved: [length, width]."""
    rates = pydist.exp(pydist.arange(0, width, 2).float() * (-math.log(10000.0) / width))
    angles = pydist.outer(pydist.arange(length).float(), rates)
    return pydist.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :width]


class Attention(nn.Module):
    """Attention of x to memory, or causally to itself."""

    def __init__(self, config):
        super().__init__()
        self.heads, self.dropout = config.heads, config.dropout
        self.query, self.key, self.value, self.output = (nn.Linear(config.width, config.width) for _ in range(4))

    def forward(self, x, memory, mask=None, causal=False):
        q, k, v = self.query(x), self.key(memory), self.value(memory)
        q, k, v = (to_heads(part, self.heads) for part in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, mask, self.dropout if self.training else 0.0, causal)
        return self.output(from_heads(y))


class Layer(nn.Module):
    """A layer of the encoder, or (with memory) of the decoder. The norm follows each sum, as in the paper."""

    def __init__(self, config, decodes):
        super().__init__()
        self.attention = Attention(config)
        self.cross = Attention(config) if decodes else None
        self.up, self.down = nn.Linear(config.width, config.hidden), nn.Linear(config.hidden, config.width)
        self.norms = nn.ModuleList([nn.LayerNorm(config.width) for _ in range(3 if decodes else 2)])
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x, mask=None, memory=None):
        own = None if self.cross else mask
        x = add_norm(self.norms[0], x, self.dropout(self.attention(x, x, own, causal=self.cross is not None)))[1]
        if self.cross:
            x = add_norm(self.norms[1], x, self.dropout(self.cross(x, memory, mask)))[1]
        return add_norm(self.norms[-1], x, self.dropout(self.down(self.up(x).relu())))[1]


class Transformer(nn.Module):
    """model(source [N, S], target [N, T], source_mask=None) returns logits [N, T, vocab_size] for the token after each
    target token. source_mask [N, S]: True, or 1, for tokens. model.generate(source, begin, count, source_mask)
    generates a target, with the most probable token each time. Embeddings and the last layer share their weights.

    >>> import pydist
    >>> from pydist.models import Transformer, TransformerConfig
    >>> model = Transformer(TransformerConfig(10, 8, encoder_layers=1, decoder_layers=1, heads=2, width=8, hidden=16))
    >>> model(pydist.tensor([[1, 2, 3]]), pydist.tensor([[0, 4]])).shape
    pydist.Size([1, 2, 10])
    """

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.encoder = nn.ModuleList([Layer(config, False) for _ in range(config.encoder_layers)])
        self.decoder = nn.ModuleList([Layer(config, True) for _ in range(config.decoder_layers)])
        self.dropout = nn.Dropout(config.dropout)
        self.register_buffer("positions", positions(config.max_length, config.width), persistent=False)
        for p in self.parameters():
            if p.ndim == 2:
                nn.init.xavier_uniform_(p)
        nn.init.normal_(self.embedding.weight, 0.0, config.width**-0.5)

    def _embed(self, tokens):
        check_tokens("Transformer", tokens, self.config.max_length)
        x = self.embedding(tokens) * math.sqrt(self.config.width)
        return self.dropout(x + self.positions[: tokens.shape[1]])

    def encode(self, source, source_mask=None):
        """The encoder's result for source [N, S]."""
        mask = None if source_mask is None else source_mask.bool()[:, None, None, :]
        x = self._embed(source)
        for layer in self.encoder:
            x = layer(x, mask)
        return x, mask

    def decode(self, target, memory, mask=None):
        """The logits for target [N, T], given the encoder's result `memory`."""
        x = self._embed(target)
        for layer in self.decoder:
            x = layer(x, mask, memory)
        return F.linear(x, self.embedding.weight)

    def forward(self, source, target, source_mask=None):
        return self.decode(target, *self.encode(source, source_mask))

    @pydist.no_grad()
    def generate(self, source, begin, count, source_mask=None):
        """A target of `count` tokens after `begin`, each the most probable one."""
        was_training = self.training
        self.eval()
        memory, mask = self.encode(source, source_mask)
        target = pydist.full((source.shape[0], 1), begin, dtype=pydist.int64, device=source.device)
        for _ in range(count):
            target = pydist.cat([target, self.decode(target, memory, mask)[:, -1].argmax(-1, keepdim=True)], 1)
        self.train(was_training)
        return target[:, 1:]
