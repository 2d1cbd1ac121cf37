"""A LLaMA of debug size over PyTorch's names, and its tensor parallel plan: 6 layers, 256 wide, 8 heads, 4 key heads."""

SIZES = {"debug": (6, 256, 8, 4, 2000)}  # layers, features, heads, key heads, vocabulary


def llama(lib, size="debug", length=256):
    """A module whose forward(tokens) returns logits."""
    nn, F = lib.nn, lib.nn.functional
    layers, dim, heads, kv_heads, vocabulary = SIZES[size]
    width, hidden = dim // heads, (8 * dim // 3 + 31) // 32 * 32

    def rotate(x, cos, sin):
        a, b = x.chunk(2, dim=-1)
        return lib.cat([a * cos - b * sin, b * cos + a * sin], -1)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.wq, self.wo = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
            self.wk, self.wv = (nn.Linear(dim, kv_heads * width, bias=False) for _ in range(2))

        def forward(self, x, cos, sin):
            n, t = x.shape[:2]
            q, k, v = (f(x).view(n, t, -1, width).transpose(1, 2) for f in (self.wq, self.wk, self.wv))
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return self.wo(y.transpose(1, 2).reshape(n, t, -1))

    class FeedForward(nn.Module):
        def __init__(self):
            super().__init__()
            self.w1, self.w3 = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
            self.w2 = nn.Linear(hidden, dim, bias=False)

        def forward(self, x):
            return self.w2(F.silu(self.w1(x)) * self.w3(x))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention_norm, self.ffn_norm = nn.RMSNorm(dim, eps=1e-5), nn.RMSNorm(dim, eps=1e-5)
            self.attention, self.feed_forward = Attention(), FeedForward()

        def forward(self, x, cos, sin):
            x = x + self.attention(self.attention_norm(x), cos, sin)
            return x + self.feed_forward(self.ffn_norm(x))

    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok_embeddings = nn.Embedding(vocabulary, dim)
            self.layers = nn.ModuleList([Block() for _ in range(layers)])
            self.norm, self.output = nn.RMSNorm(dim, eps=1e-5), nn.Linear(dim, vocabulary, bias=False)
            steps = lib.arange(0, width, 2).float() / width
            angles = lib.outer(lib.arange(length).float(), 10000.0**-steps)
            self.register_buffer("cos", angles.cos(), persistent=False)
            self.register_buffer("sin", angles.sin(), persistent=False)

        def forward(self, tokens):
            x, t = self.tok_embeddings(tokens), tokens.shape[1]
            for layer in self.layers:
                x = layer(x, self.cos[:t], self.sin[:t])
            return self.output(self.norm(x))

    return Llama()


def plan(tensor, parallel, sequence):
    """The plan of PyTorch's tutorial. `tensor`, `parallel`: the modules distributed.tensor and distributed.tensor.parallel."""
    R, S, cols, rows = tensor.Replicate(), tensor.Shard, parallel.ColwiseParallel, parallel.RowwiseParallel
    place = S(1) if sequence else R
    back = {"output_layouts": place, "use_local_output": not sequence}
    found = {
        "tok_embeddings": rows(input_layouts=R, **back),
        "output": cols(input_layouts=place, output_layouts=S(-1), use_local_output=False),
        "layers.*.attention": parallel.PrepareModuleInput(
            input_layouts=(place, None, None), desired_input_layouts=(R, None, None)
        ),
        "layers.*.attention.w[qkv]": cols(),
        "layers.*.attention.wo": rows(**back),
        "layers.*.feed_forward": parallel.PrepareModuleInput(input_layouts=(place,), desired_input_layouts=(R,)),
        "layers.*.feed_forward.w[13]": cols(),
        "layers.*.feed_forward.w2": rows(**back),
    }
    if sequence:
        found.update({"norm": parallel.SequenceParallel(), "layers.*.*_norm": parallel.SequenceParallel()})
    return found
