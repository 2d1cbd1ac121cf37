"""The models against torch's own layers with the same weights, and against formulas."""

import numpy as np
import pytest

import pydist
from pydist import models


def tokens(vocabulary, *shape):
    return np.random.default_rng(0).integers(0, vocabulary, shape)


def copy_linear(torch, to, *of):
    """The weights of pydist's linear layers, one below the other, into a torch layer's."""
    with torch.no_grad():
        to.weight.copy_(torch.cat([torch.tensor(layer.weight.detach().numpy()) for layer in of]))
        to.bias.copy_(torch.cat([torch.tensor(layer.bias.detach().numpy()) for layer in of]))


def copy_attention(torch, to, q, k, v, out):
    with torch.no_grad():
        to.in_proj_weight.copy_(torch.cat([torch.tensor(p.weight.detach().numpy()) for p in (q, k, v)]))
        to.in_proj_bias.copy_(torch.cat([torch.tensor(p.bias.detach().numpy()) for p in (q, k, v)]))
    copy_linear(torch, to.out_proj, out)


def close(ours, theirs, bound=2e-5):
    ours, theirs = ours.detach().numpy(), theirs.detach().numpy()
    assert ours.shape == theirs.shape and np.abs(ours - theirs).max() <= bound * np.abs(theirs).max()


def scrambled(model):
    """All parameters away from their initial zeros and ones."""
    with pydist.no_grad():
        for p in model.parameters():
            p.add_(pydist.randn_like(p) * 0.1)
    return model.eval()


def embed(torch, model, words, places, ids):
    weight = {name: torch.tensor(p.detach().numpy()) for name, p in model.named_parameters()}
    return weight[words][torch.tensor(ids)] + weight[places][: ids.shape[1]]


def test_gpt():
    torch = pytest.importorskip("torch")
    pydist.manual_seed(0)
    model = scrambled(models.GPT(models.GPTConfig(vocab_size=11, block_size=9, n_layer=2, n_head=2, n_embd=8)))
    ids = tokens(11, 3, 7)
    x = embed(torch, model, "transformer.wte.weight", "transformer.wpe.weight", ids)
    causal = torch.nn.Transformer.generate_square_subsequent_mask(7)
    for block in model.transformer["h"]:
        layer = torch.nn.TransformerEncoderLayer(
            8, 2, 32, 0.0, lambda t: torch.nn.functional.gelu(t, approximate="tanh"), batch_first=True, norm_first=True
        )
        w = block.attn.c_attn
        with torch.no_grad():
            layer.self_attn.in_proj_weight.copy_(torch.tensor(w.weight.detach().numpy()))
            layer.self_attn.in_proj_bias.copy_(torch.tensor(w.bias.detach().numpy()))
        copy_linear(torch, layer.self_attn.out_proj, block.attn.c_proj)
        for to, of in ((layer.linear1, block.mlp.c_fc), (layer.linear2, block.mlp.c_proj), (layer.norm1, block.ln_1),
                       (layer.norm2, block.ln_2)):  # fmt: skip
            copy_linear(torch, to, of)
        x = layer.eval()(x, causal)
    norm = torch.nn.LayerNorm(8)
    copy_linear(torch, norm, model.transformer["ln_f"])
    want = norm(x) @ torch.tensor(model.lm_head.weight.detach().numpy()).T
    close(model(pydist.tensor(ids)), want)
    targets = np.where(tokens(2, 3, 7) == 1, ids, -1)
    loss = torch.nn.functional.cross_entropy(want.flatten(0, 1), torch.tensor(targets).flatten(), ignore_index=-1)
    close(model.loss(pydist.tensor(ids), pydist.tensor(targets)), loss)


def test_bert():
    torch = pytest.importorskip("torch")
    pydist.manual_seed(0)
    sizes = models.BERTConfig(
        vocab_size=11, max_position_embeddings=9, num_hidden_layers=2, num_attention_heads=2, hidden_size=8
    )
    model = scrambled(models.BERT(sizes))
    ids = tokens(11, 3, 7)
    mask = np.arange(7) < np.array([[7], [4], [1]])
    x = embed(torch, model, "word_embeddings.weight", "position_embeddings.weight", ids)
    x = x + torch.tensor(model.token_type_embeddings.weight.detach().numpy())[0]
    norm = torch.nn.LayerNorm(8, eps=1e-12)
    copy_linear(torch, norm, model.embeddings_norm)
    x = norm(x)
    for block in model.layers:
        layer = torch.nn.TransformerEncoderLayer(8, 2, 32, 0.0, "gelu", layer_norm_eps=1e-12, batch_first=True)
        a = block.attention
        copy_attention(torch, layer.self_attn, a.query, a.key, a.value, a.output)
        for to, of in ((layer.linear1, block.intermediate), (layer.linear2, block.output),
                       (layer.norm1, block.attention_norm), (layer.norm2, block.output_norm)):  # fmt: skip
            copy_linear(torch, to, of)
        layer.train()  # torch's fused path in eval fills padding with zeros
        x = layer(x, src_key_padding_mask=torch.tensor(~mask))
    hidden, pooled = model(pydist.tensor(ids), pydist.tensor(mask.astype(np.int64)))
    for i, length in enumerate((7, 4, 1)):
        close(hidden[i, :length], x[i, :length])
    pooler = torch.nn.Linear(8, 8)
    copy_linear(torch, pooler, model.pooler)
    close(pooled, pooler(x[:, 0]).tanh())


def test_transformer():
    torch = pytest.importorskip("torch")
    pydist.manual_seed(0)
    sizes = models.TransformerConfig(11, 9, encoder_layers=2, decoder_layers=2, heads=2, width=8, hidden=16)
    model = scrambled(models.Transformer(sizes))
    theirs = torch.nn.Transformer(8, 2, 2, 2, 16, 0.0, batch_first=True)
    theirs.encoder.norm = theirs.decoder.norm = None
    for ours, layer in zip([*model.encoder, *model.decoder], [*theirs.encoder.layers, *theirs.decoder.layers]):
        pairs = [(ours.attention, layer.self_attn)] + ([(ours.cross, layer.multihead_attn)] if ours.cross else [])
        for a, to in pairs:
            copy_attention(torch, to, a.query, a.key, a.value, a.output)
        norms = [layer.norm1, layer.norm2] + ([layer.norm3] if ours.cross else [])
        for to, of in [(layer.linear1, ours.up), (layer.linear2, ours.down), *zip(norms, ours.norms)]:
            copy_linear(torch, to, of)
    table = torch.tensor(model.embedding.weight.detach().numpy())
    waves = list(enumerate([np.sin, np.cos] * 4))
    place = np.array([[f(p / 10000 ** (2 * (i // 2) / 8)) for i, f in waves] for p in range(9)])

    def embedded(ids):
        return table[torch.tensor(ids)] * 8**0.5 + torch.tensor(place[: ids.shape[1]]).float()

    source, target = tokens(11, 3, 6), tokens(11, 3, 5)
    mask = np.arange(6) < np.array([[6], [3], [1]])
    padding, causal = torch.tensor(~mask), torch.nn.Transformer.generate_square_subsequent_mask(5).isinf()
    x = theirs(embedded(source), embedded(target), tgt_mask=causal, src_key_padding_mask=padding,
               memory_key_padding_mask=padding)  # fmt: skip
    close(model(*map(pydist.tensor, (source, target, mask))), x @ table.T)


def test_llama():
    """One block against the formulas in fp64."""
    pydist.manual_seed(0)
    sizes = models.LLaMAConfig(vocab_size=11, max_seq_len=9, n_layers=1, n_heads=4, n_kv_heads=2, dim=16)
    model = scrambled(models.LLaMA(sizes))
    w = {name: p.detach().numpy().astype(np.float64) for name, p in model.named_parameters()}
    ids = tokens(11, 2, 6)

    def norm(x, name):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w[name]

    def turn(x):  # pairs as complex numbers
        pairs = x[..., :2] + 1j * x[..., 2:]
        pairs = pairs * np.exp(1j * np.arange(6)[:, None] / 10000.0 ** (np.arange(2) / 2))
        return np.concatenate([pairs.real, pairs.imag], -1)

    x = w["model.embed_tokens.weight"][ids]
    h, own = norm(x, "model.layers.0.input_layernorm.weight"), "model.layers.0.self_attn."
    q, k, v = ((h @ w[f"{own}{name}_proj.weight"].T).reshape(2, 6, -1, 4).swapaxes(1, 2) for name in "qkv")
    q, k, v = turn(q), np.repeat(turn(k), 2, 1), np.repeat(v, 2, 1)
    scores = np.where(np.tri(6, dtype=bool), q @ k.swapaxes(2, 3) / 2, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    y = (p / p.sum(-1, keepdims=True) @ v).swapaxes(1, 2).reshape(2, 6, 16)
    x = x + y @ w[f"{own}o_proj.weight"].T
    h, own = norm(x, "model.layers.0.post_attention_layernorm.weight"), "model.layers.0.mlp."
    gate = h @ w[f"{own}gate_proj.weight"].T
    x = x + (gate / (1 + np.exp(-gate)) * (h @ w[f"{own}up_proj.weight"].T)) @ w[f"{own}down_proj.weight"].T
    want = norm(x, "model.norm.weight") @ w["lm_head.weight"].T
    got = model(pydist.tensor(ids)).detach().numpy()
    assert np.abs(got - want).max() <= 2e-5 * np.abs(want).max()


def small_gpt(**sizes):
    sizes = {"vocab_size": 7, "block_size": 6, "n_layer": 1, "n_head": 2, "n_embd": 8, **sizes}
    return models.GPT(models.GPTConfig(**sizes))


def test_generation():
    pydist.manual_seed(0)
    model = small_gpt(dropout=0.5)
    begin = pydist.tensor([[1, 2], [3, 4]])
    likeliest = model.generate(begin, 9, temperature=0)  # longer than a block
    assert likeliest.shape == (2, 11) and (likeliest[:, :2] == begin).all() and model.training
    assert (likeliest == model.generate(begin, 9, top_k=1)).all()
    drawn = model.generate(begin.repeat(50, 1), 1)[:, 2]
    assert len(set(drawn.tolist())) == 7 and 0 <= drawn.min().item() and drawn.max().item() < 7
    assert (model.transformer["wte"].weight is model.lm_head.weight) and "lm_head.weight" in model.state_dict()


def test_a_transformer_learns_to_copy():
    pydist.manual_seed(0)
    model = models.Transformer(
        models.TransformerConfig(8, 8, encoder_layers=1, decoder_layers=1, heads=2, width=32, hidden=32, dropout=0.0)
    )
    optimizer = pydist.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(250):
        source = pydist.randint(1, 8, (32, 4))
        target = pydist.cat([pydist.zeros(32, 1, dtype=pydist.int64), source[:, :-1]], 1)
        loss = pydist.nn.functional.cross_entropy(model(source, target).flatten(0, 1), source.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    source = pydist.randint(1, 8, (64, 4))
    assert (model.generate(source, 0, 4) == source).float().mean().item() > 0.95


@pytest.mark.parametrize("make, text", [
    (lambda: small_gpt(n_embd=9), "multiple of n_head"),
    (lambda: small_gpt(n_layer=0), "at least 1"),
    (lambda: models.LLaMAConfig(n_heads=4, n_kv_heads=3, dim=16), "multiple of n_kv_heads"),
    (lambda: models.LLaMAConfig(n_heads=4, n_kv_heads=4, dim=12), "even"),
    (lambda: small_gpt()(pydist.zeros(1, 7, dtype=pydist.int64)), "at most 6"),
    (lambda: small_gpt()(pydist.zeros(7, dtype=pydist.int64)), r"\[N, T\]"),
])  # fmt: skip
def test_bad_input(make, text):
    with pytest.raises(ValueError, match=text):
        make()
