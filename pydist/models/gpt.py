"""GPT-2 (Radford et al., 2019): a decoder of pre-norm blocks with learned positions and tied embeddings."""

import math
from dataclasses import dataclass

import pydist
from pydist import nn
from pydist.models._parts import check_sizes, check_tokens, from_heads, generate, to_heads
from pydist.nn import functional as F
from pydist.nn.modules.normalization import add_norm


@dataclass
class GPTConfig:
    """Sizes of a GPT. The defaults are those of GPT-2 with 124 million parameters."""

    vocab_size: int = 50257
    block_size: int = 1024
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.1
    bias: bool = True

    def __post_init__(self):
        check_sizes(self, ("n_embd", "n_head"))


class SelfAttention(nn.Module):
    """Causal attention with several heads: each token sees itself and the tokens before it."""

    def __init__(self, config):
        super().__init__()
        self.heads, self.dropout = config.n_head, config.dropout
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.resid_dropout = nn.Dropout(config.dropout)

    def forward(self, x):
        q, k, v = (to_heads(part, self.heads) for part in self.c_attn(x).chunk(3, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True)
        return self.resid_dropout(self.c_proj(from_heads(y)))


class MLP(nn.Module):
    """Two layers with four times as many features between them, and GELU."""

    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x):
        return self.dropout(self.c_proj(F.gelu(self.c_fc(x), approximate="tanh")))


class Block(nn.Module):
    """Attention and a feed-forward block, each with a norm before it. Takes the stream x and a branch y that is not
    added yet; returns the same of its own end. So each sum is made with the norm that follows it."""

    def __init__(self, config):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.attn = SelfAttention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.mlp = MLP(config)

    def forward(self, x, y=None):
        x, n = (x, self.ln_1(x)) if y is None else add_norm(self.ln_1, x, y, low_precision=True)
        x, n = add_norm(self.ln_2, x, self.attn(n), low_precision=True)
        return x, self.mlp(n)


class GPT(nn.Module):
    """Predicts the next token. model(tokens [N, T]) returns logits [N, T, vocab_size]. model.loss(tokens, targets)
    returns their mean cross entropy, without targets of -1. model.generate(tokens, count) appends tokens. Raises
    ShapeError if T is larger than block_size.

    Parameters have the names of GPT-2's checkpoints. Linear layers are stored as in nn.Linear; those checkpoints store
    them transposed.

    >>> import pydist
    >>> from pydist.models import GPT, GPTConfig
    >>> model = GPT(GPTConfig(vocab_size=10, block_size=8, n_layer=1, n_head=2, n_embd=4))
    >>> model(pydist.tensor([[1, 2, 3]])).shape
    pydist.Size([1, 3, 10])
    >>> model.generate(pydist.tensor([[1]]), 4).shape
    pydist.Size([1, 5])
    """

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config.vocab_size, config.n_embd),
                "wpe": nn.Embedding(config.block_size, config.n_embd),
                "drop": nn.Dropout(config.dropout),
                "h": nn.ModuleList([Block(config) for _ in range(config.n_layer)]),
                "ln_f": nn.LayerNorm(config.n_embd, bias=config.bias),
            }
        )
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.transformer["wte"].weight = self.lm_head.weight
        for name, p in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(p)
            elif p.ndim == 2:  # layers that add to the residual stream start smaller, by the number of such layers
                adds = name.endswith("c_proj.weight")
                nn.init.normal_(p, 0.0, 0.02 / math.sqrt(2 * config.n_layer) if adds else 0.02)

    def _hidden(self, tokens):
        check_tokens("GPT", tokens, self.config.block_size)
        parts = self.transformer
        places = pydist.arange(tokens.shape[1], device=tokens.device)
        x, y = parts["drop"](parts["wte"](tokens) + parts["wpe"](places)), None
        for block in parts["h"]:
            x, y = block(x, y)
        return add_norm(parts["ln_f"], x, y, low_precision=True)[1]

    def forward(self, tokens):
        return self.lm_head(self._hidden(tokens))

    def loss(self, tokens, targets):
        """The mean cross entropy of targets [N, T] (-1: left out). All logits are never in memory together."""
        x, weight = self._hidden(tokens).flatten(0, 1), self.lm_head.weight
        return F.linear_cross_entropy(x, weight, targets.flatten(), ignore_index=-1)

    def generate(self, tokens, count, temperature=1.0, top_k=None):
        """tokens [N, T] with `count` more tokens, drawn as in sampling with this temperature; top_k: only from the
        top_k most probable ones. temperature 0 takes the most probable token."""
        return generate(self, tokens, count, self.config.block_size, temperature, top_k)
