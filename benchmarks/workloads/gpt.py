"""A GPT: pre-norm blocks, tied embeddings, AdamW."""

from functools import partial

BEST = {"torch": {"fused": True}}
# layers, heads, width, tokens of a text, texts, vocabulary; as nanoGPT names its sizes
SIZES = {"nano": (4, 4, 128, 64, 12, 65), "baby": (6, 6, 384, 256, 8, 65), "124M": (12, 12, 768, 64, 4, 50304),
         "355M": (24, 16, 1024, 64, 4, 50304),
         "124M-1024": (12, 12, 768, 1024, 32, 50304)}  # fmt: skip


def gpt(lib, size):
    """A module: tokens and next tokens, both (texts, tokens), to the loss."""
    nn = lib.nn
    F = nn.functional
    layers, heads, width, tokens, _, vocabulary = SIZES[size]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            n, t, c = x.shape
            q, k, v = (p.view(n, t, heads, c // heads).transpose(1, 2) for p in self.attn(self.ln1(x)).split(c, 2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(y.transpose(1, 2).contiguous().view(n, t, c))
            return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)
            self.blocks = nn.ModuleList([Block() for _ in range(layers)])
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, vocabulary, bias=False)
            self.tokens.weight = self.head.weight

        def forward(self, x, t):
            h = self.tokens(x) + self.places(lib.arange(x.shape[1], device=x.device))
            for block in self.blocks:
                h = block(h)
            return F.cross_entropy(self.head(self.norm(h)).view(-1, vocabulary), t.view(-1))

    return GPT()


def make(lib, best, size):
    _, _, _, tokens, texts, vocabulary = SIZES[size]
    batch = tuple(lib.randint(0, vocabulary, (texts, tokens)) for _ in range(2))
    return gpt(lib, size), batch, partial(lib.optim.AdamW, lr=3e-4, **best)
