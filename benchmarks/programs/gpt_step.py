"""One training step of a GPT (pre-norm blocks, tied embeddings, AdamW): nano, baby or 124M, as nanoGPT names its sizes."""

import sys
from importlib import import_module

from timing import best

lib = import_module(sys.argv[1])
size, kind = sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else "default"
nn, optim = import_module(f"{lib.__name__}.nn"), import_module(f"{lib.__name__}.optim")
F = nn.functional

# layers, heads, width, tokens of a text, texts, vocabulary
SIZES = {"nano": (4, 4, 128, 64, 12, 65), "baby": (6, 6, 384, 256, 8, 65), "124M": (12, 12, 768, 64, 4, 50304)}
LAYERS, HEADS, WIDTH, TOKENS, BATCH, VOCABULARY = SIZES[size]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = (p.view(n, t, HEADS, c // HEADS).transpose(1, 2) for p in self.attn(self.ln1(x)).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).contiguous().view(n, t, c))
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.tokens.weight = self.head.weight

    def forward(self, x, t):
        h = self.tokens(x) + self.places(lib.arange(x.shape[1]))
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.head(self.norm(h)).view(-1, VOCABULARY), t.view(-1))


lib.set_num_threads(int(sys.argv[4]) if len(sys.argv) > 4 else 2)
lib.manual_seed(0)
net = GPT()
optimizer = optim.AdamW(net.parameters(), lr=3e-4, **({} if kind == "default" else {kind: True}))
x, t = (lib.randint(0, VOCABULARY, (BATCH, TOKENS)) for _ in range(2))


def step():
    optimizer.zero_grad()
    loss = net(x, t)
    loss.backward()
    optimizer.step()


print(best(step, 8 if size == "nano" else 1, 10 if size == "nano" else 4))
