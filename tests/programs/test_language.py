"""Language models next to torch's: from the same weights, on the same text, the same loss after many steps."""

import copy
import os

import numpy as np

import pydist

STEPS = 200 if "FULL_LONG" in os.environ else 25


def words(data_folder, known=2000):
    """wikitext-2's validation and test texts as numbers, rare words as 0."""
    folder = data_folder("text")
    text = [(folder / f"wikitext-2-{part}.txt").read_text("utf-8").split() for part in ("valid", "test")]
    counts = {}
    for word in text[0]:
        counts[word] = counts.get(word, 0) + 1
    number = {word: i for i, word in enumerate(sorted(counts, key=lambda w: (-counts[w], w))[: known - 1], 1)}
    return [np.array([number.get(word, 0) for word in part]) for part in text]


def pair(torch, make):
    torch.manual_seed(0)
    theirs = make(torch)
    ours = make(pydist)
    ours.load_state_dict({k: pydist.from_numpy(v.detach().numpy().copy()) for k, v in theirs.state_dict().items()})
    return ours, theirs


def losses_of(lib, net, batches, lr):
    """The loss of each step; then that of the last batch, not trained on."""
    optimizer, losses = lib.optim.Adam(net.parameters(), lr=lr), []
    *batches, last = [[lib.tensor(part) for part in batch] for batch in batches]
    for *inputs, target in batches:
        optimizer.zero_grad()
        loss = lib.nn.functional.cross_entropy(net(*inputs).flatten(0, 1), target.flatten())
        loss.backward()
        lib.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    with lib.no_grad():
        *inputs, target = last
        return losses, lib.nn.functional.cross_entropy(net(*inputs).flatten(0, 1), target.flatten()).item()


def nudged(torch, net, eps):
    """A copy whose weights are some eps apart, relatively."""
    copied, generator = copy.deepcopy(net), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in copied.parameters():
            p.mul_(1 + eps * torch.randn(p.shape, generator=generator))
    return copied


def compare(torch, make, batches, lr):
    """Within 1 %; after many steps, within what torch's own losses move by when its first weights are a rounding apart."""
    ours, theirs = pair(torch, make)
    others = [nudged(torch, theirs, eps) for eps in ((1e-7, 1e-6) if STEPS > 25 else ())]
    (mine, end), (want, torch_end), *near = (
        losses_of(pydist, ours, batches, lr),
        *(losses_of(torch, net, batches, lr) for net in (theirs, *others)),
    )
    assert np.abs(np.array(mine[:5]) / want[:5] - 1).max() < 1e-5
    trained = max([0.01, *(abs(np.mean(losses[-10:]) / np.mean(want[-10:]) - 1) for losses, _ in near)])
    held_out = max([0.01, *(abs(other / torch_end - 1) for _, other in near)])
    print(
        f"loss {np.mean(mine[-10:]):.4f}, torch {np.mean(want[-10:]):.4f} (moves by {trained:.1%}); held out {end:.4f}, {torch_end:.4f} ({held_out:.1%})"
    )
    assert abs(np.mean(mine[-10:]) / np.mean(want[-10:]) - 1) < trained and abs(end / torch_end - 1) < held_out
    assert np.mean(mine[-10:]) < 0.9 * mine[0]


def test_lstm_language_model(torch, data_folder):
    def make(lib):
        class Model(lib.nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding = lib.nn.Embedding(2000, 64)
                self.lstm = lib.nn.LSTM(64, 96, 2, batch_first=True)
                self.out = lib.nn.Linear(96, 2000)

            def forward(self, x):
                return self.out(self.lstm(self.embedding(x))[0])

        return Model()

    train, test = words(data_folder)
    columns = train[: len(train) // 16 * 16].reshape(16, -1)
    starts = [20 * i for i in range(STEPS)]
    batches = [(columns[:, s : s + 20], columns[:, s + 1 : s + 21]) for s in starts]
    compare(torch, make, [*batches, (test[None, :2000], test[None, 1:2001])], 5e-3)


def test_encoder_decoder(torch, data_folder):
    """Names are written backwards."""

    def make(lib):
        class Model(lib.nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding, self.places = lib.nn.Embedding(28, 32), lib.nn.Embedding(16, 32)
                self.transformer = lib.nn.Transformer(32, 4, 2, 2, 64, dropout=0.0, batch_first=True)
                self.out = lib.nn.Linear(32, 28)

            def embed(self, x):
                return self.embedding(x) + self.places(lib.arange(x.shape[1]))

            def forward(self, source, target):
                mask = lib.nn.Transformer.generate_square_subsequent_mask(target.shape[1])
                padding = source == 0
                y = self.transformer(
                    self.embed(source), self.embed(target), tgt_mask=mask, src_key_padding_mask=padding,
                    memory_key_padding_mask=padding,
                )  # fmt: skip
                return self.out(y)

        return Model()

    names = (data_folder("text") / "names.txt").read_text().split()
    names = [name for name in np.random.default_rng(0).permutation(names) if len(name) <= 12]
    source, target = np.zeros((len(names), 12), np.int64), np.zeros((len(names), 13), np.int64)
    for i, name in enumerate(names):
        numbers = [ord(c) - 96 for c in name]
        source[i, : len(name)], target[i, : len(name) + 1] = numbers, [27, *reversed(numbers)]
    batches = [
        (source[i : i + 32], target[i : i + 32, :-1], target[i : i + 32, 1:]) for i in range(0, 32 * STEPS + 32, 32)
    ]
    compare(torch, make, batches, 3e-3)
