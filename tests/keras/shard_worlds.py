"""Trains an MLP and a convnet with logical shards in one world and prints the sha256 of all their variables: 50 steps of Adam
on 1,000 rows in batches of 64. test_fit.py runs it in several worlds.

    python shard_worlds.py 1 2 4        # so many replicas in this process, one after the other
    python -m pydist.run --nproc-per-node 2 shard_worlds.py ranks
    python shard_worlds.py workers      # two workers with TF_CONFIG
    python -m pydist.run --nproc-per-node 2 shard_worlds.py slowed   # rank 1 takes twice the time; also prints speeds
"""

import hashlib
import statistics
import sys
import time

import numpy as np

from pydist import distribute, keras
from pydist import distributed as dist
from pydist.distribute import runner

layers = keras.layers
SHARDS = 4


class Pause(layers.Layer):
    """A layer of a rank that is slow."""

    seconds = 0.0

    def call(self, x):
        time.sleep(self.seconds if str(x.device) != "meta" else 0)
        return x


def mlp():
    return [layers.Dense(32, "relu"), layers.Dropout(0.2), layers.Dense(4)]


def convnet():
    return [layers.Reshape((3, 4, 1)), layers.Conv2D(4, 3), layers.BatchNormalization(), layers.ReLU(), layers.Flatten(),
            layers.Dropout(0.2), layers.Dense(4)]  # fmt: skip


class Times(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.ends = []

    def on_train_batch_end(self, batch, logs=None):
        self.ends.append(time.perf_counter())


def train(strategy, make, epochs=3):
    """(the model's hash, the median time of the last steps)"""
    keras.utils.set_random_seed(5)
    x = np.random.default_rng(0).standard_normal((1000, 12)).astype("float32")
    y = np.argmax(x[:, :4], 1)
    with strategy.scope():
        model, times = keras.Sequential([keras.Input((12,)), Pause(), *make()]), Times()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-2), loss, metrics=["accuracy"])
    model.fit(x, y, batch_size=64, epochs=epochs, verbose=0, callbacks=[times])
    model.fit(x[:128], y[:128], batch_size=64, verbose=0)
    found = hashlib.sha256()
    for v in [*model.variables, *model.optimizer.variables]:
        found.update(v.numpy().tobytes())
    assert model.optimizer.iterations.numpy() == 16 * epochs + 2
    return found.hexdigest(), statistics.median(np.diff(times.ends[-9:]))


def show(strategy):
    for make in (mlp, convnet):
        print(make.__name__, train(strategy, make)[0], flush=True)


def worker():
    strategy = distribute.MultiWorkerMirroredStrategy(shards=SHARDS)
    return [(make.__name__, train(strategy, make)[0]) for make in (mlp, convnet)]


def slow_down(seconds):
    Pause.seconds = seconds * (1 + dist.get_rank())


def slowed():
    slow_down(0.002)
    show(distribute.MirroredStrategy(shards=SHARDS, shares="measured"))
    slow_down(0.03)
    found = {}
    for shares in ((5, 3), (6, 2), "measured"):
        strategy = distribute.MirroredStrategy(shards=8, shares="measured" if shares == "measured" else "even")
        if shares != "measured":
            strategy._logical.shares = shares
            strategy._deal_out()
        found[shares] = train(strategy, mlp, epochs=2)[1]
        if dist.get_rank() == 0:
            said = f"{len(strategy._next[0])} of 8 shards on rank 0, {1e3 * found[shares]:.1f} ms a step"
            print(f"shares {shares}: {said}", flush=True)
    ideal = min(seconds for shares, seconds in found.items() if shares != "measured")
    if dist.get_rank() == 0:
        print(f"speed {ideal / found['measured']:.3f} of the best split's", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "workers":
        for lines in runner.run(worker, runner.create_cluster_spec(workers=2), timeout=300).return_value:
            print(*(" ".join(line) for line in lines), sep="\n")
    elif sys.argv[1] == "ranks":
        show(distribute.MirroredStrategy(shards=SHARDS))
    elif sys.argv[1] == "slowed":
        slowed()
    else:
        for count in map(int, sys.argv[1:]):
            show(distribute.MirroredStrategy([f"CPU:{i}" for i in range(count)], shards=SHARDS))
