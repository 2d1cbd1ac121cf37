"""BERT-mini (4 layers, 4 heads, 256 wide) that classifies texts of 64 tokens, AdamW."""

from functools import partial

BEST = {"torch": {"fused": True}}
LAYERS, HEADS, WIDTH, TOKENS, VOCABULARY = 4, 4, 256, 64, 30522


def make(lib, best, batch):
    nn = lib.nn
    F = nn.functional

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.dropout = nn.Dropout(0.1)

        def forward(self, x):
            n, t, _ = x.shape
            q, k, v = (p.view(n, t, HEADS, WIDTH // HEADS).transpose(1, 2) for p in self.qkv(x).split(WIDTH, 2))
            y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).contiguous().view(n, t, WIDTH)
            x = self.norm1(x + self.dropout(self.out(y)))
            return self.norm2(x + self.dropout(self.fc2(F.gelu(self.fc1(x)))))

    class BERT(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
            self.norm, self.dropout = nn.LayerNorm(WIDTH), nn.Dropout(0.1)
            self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
            self.pool, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)

        def forward(self, x, t):
            h = self.dropout(self.norm(self.words(x) + self.places(lib.arange(x.shape[1]))))
            for layer in self.layers:
                h = layer(h)
            return F.cross_entropy(self.head(lib.tanh(self.pool(h[:, 0]))), t)

    batch = lib.randint(0, VOCABULARY, (batch, TOKENS)), lib.randint(0, 2, (batch,))
    return BERT(), batch, partial(lib.optim.AdamW, lr=3e-4, **best)
