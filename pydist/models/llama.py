"""LLaMA (Touvron et al., arXiv 2302.13971, 2307.09288): RMSNorm (1910.07467), rotary positions (2104.09864), SwiGLU
(2002.05202) and grouped key heads (2305.13245)."""

from dataclasses import dataclass

import pydist
from pydist import nn
from pydist.models._parts import check_sizes, check_tokens, from_heads, generate, next_token_loss, to_heads_of
from pydist.nn import functional as F
from pydist.nn.modules.normalization import add_norm


@dataclass
class LLaMAConfig:
    """Sizes of a LLaMA. hidden_dim None: 8/3 of dim, rounded up to a multiple of 32."""

    vocab_size: int = 32000
    max_seq_len: int = 2048
    n_layers: int = 12
    n_heads: int = 12
    n_kv_heads: int = 4
    dim: int = 768
    hidden_dim: int | None = None
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0

    def __post_init__(self):
        if self.hidden_dim is None:
            self.hidden_dim = (8 * self.dim // 3 + 31) // 32 * 32
        check_sizes(self, ("dim", "n_heads"), ("n_heads", "n_kv_heads"))
        if self.dim // self.n_heads % 2:
            raise ValueError(f"LLaMAConfig: heads have {self.dim // self.n_heads} features (expected an even number)")


def rotations(width, length, theta=10000.0):
    """(cos, sin) of position * theta^(-2i / width), each [length, width / 2]."""
    angles = pydist.outer(pydist.arange(length).float(), theta ** (-pydist.arange(0, width, 2).float() / width))
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    """x [N, H, T, E] with the pairs (i, i + E / 2) rotated by the angles of their positions, [T, E / 2]."""
    a, b = x.chunk(2, dim=-1)
    return pydist.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Attention(nn.Module):
    """Causal attention with rotary positions. Several query heads share one key head."""

    def __init__(self, config):
        super().__init__()
        self.width = width = config.dim // config.n_heads
        self.q_proj = nn.Linear(config.dim, config.n_heads * width, bias=False)
        self.k_proj = nn.Linear(config.dim, config.n_kv_heads * width, bias=False)
        self.v_proj = nn.Linear(config.dim, config.n_kv_heads * width, bias=False)
        self.o_proj = nn.Linear(config.n_heads * width, config.dim, bias=False)

    def forward(self, x, cos, sin):
        q = rotate(to_heads_of(self.q_proj(x), self.width), cos, sin)
        k = rotate(to_heads_of(self.k_proj(x), self.width), cos, sin)
        v = to_heads_of(self.v_proj(x), self.width)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(from_heads(y))


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config.dim, config.hidden_dim, bias=False)
        self.up_proj = nn.Linear(config.dim, config.hidden_dim, bias=False)
        self.down_proj = nn.Linear(config.hidden_dim, config.dim, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """Attention and a feed-forward block, each with a norm before it. Takes the stream x and a branch y that is not
    added yet; returns the same of its own end. So each sum is made with the norm that follows it."""

    def __init__(self, config):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x, y, cos, sin):
        norm = self.input_layernorm
        x, n = (x, norm(x)) if y is None else add_norm(norm, x, y, low_precision=True)
        x, n = add_norm(self.post_attention_layernorm, x, self.self_attn(n, cos, sin), low_precision=True)
        return x, self.mlp(n)


class LLaMA(nn.Module):
    """Predicts the next token, with the same calls as GPT. Parameters have the names of LLaMA's checkpoints in the
    transformers library, with rotary pairs as there (i and i + E / 2).

    >>> import pydist
    >>> from pydist.models import LLaMA, LLaMAConfig
    >>> model = LLaMA(LLaMAConfig(vocab_size=10, max_seq_len=8, n_layers=1, n_heads=4, n_kv_heads=2, dim=16))
    >>> model.loss(pydist.tensor([[1, 2, 3]]), pydist.tensor([[2, 3, -1]])).ndim
    0
    """

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.model = nn.ModuleDict(
            {
                "embed_tokens": nn.Embedding(config.vocab_size, config.dim),
                "layers": nn.ModuleList([Block(config) for _ in range(config.n_layers)]),
                "norm": nn.RMSNorm(config.dim, eps=config.norm_eps),
            }
        )
        self.lm_head = nn.Linear(config.dim, config.vocab_size, bias=False)
        for p in self.parameters():
            if p.ndim == 2:
                nn.init.normal_(p, 0.0, 0.02)
        cos, sin = rotations(config.dim // config.n_heads, config.max_seq_len, config.rope_theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, tokens):
        check_tokens("LLaMA", tokens, self.config.max_seq_len)
        x, y, length = self.model["embed_tokens"](tokens), None, tokens.shape[1]
        for block in self.model["layers"]:
            x, y = block(x, y, self.cos[:length], self.sin[:length])
        return self.lm_head(add_norm(self.model["norm"], x, y, low_precision=True)[1])

    def loss(self, tokens, targets):
        """The mean cross entropy of targets [N, T] (-1: left out)."""
        return next_token_loss(self(tokens), targets)

    def generate(self, tokens, count, temperature=1.0, top_k=None):
        """tokens [N, T] with `count` more tokens, drawn as in sampling with this temperature; top_k: only from the
        top_k most probable ones. temperature 0 takes the most probable token."""
        return generate(self, tokens, count, self.config.max_seq_len, temperature, top_k)
