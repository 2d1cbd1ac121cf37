"""The mlp, the cnn and the GPTs in JAX: one jitted function a step."""

import hashlib
import math

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.workloads import WORKLOADS
from benchmarks.workloads.gpt import SIZES


def _mlp(key, batch):
    k = jax.random.split(key, 3)
    params = {
        "w1": jax.random.normal(k[0], (784, 128)) / 28,
        "b1": jnp.zeros(128),
        "w2": jax.random.normal(k[1], (128, 10)) / 11,
        "b2": jnp.zeros(10),
    }

    def loss(p, key, x, t):
        return _cross_entropy(jax.nn.relu(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"], t)

    return params, loss, (jax.random.normal(k[2], (batch, 784)), jnp.arange(batch) % 10)


def _cross_entropy(logits, t):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits.astype(jnp.float32)), t[..., None], -1).mean()


def _dropout(key, x, p):
    return jnp.where(jax.random.bernoulli(key, 1 - p, x.shape), x / (1 - p), 0)


def _cnn(key, batch):
    k = jax.random.split(key, 5)

    def layer(key, *shape):
        return {"w": jax.random.normal(key, shape) / math.sqrt(math.prod(shape[:-1])), "b": jnp.zeros(shape[-1])}

    params = [layer(k[0], 3, 3, 1, 32), layer(k[1], 3, 3, 32, 64), layer(k[2], 9216, 128), layer(k[3], 128, 10)]

    def loss(p, key, x, t):
        first, second = jax.random.split(key)
        for conv in p[:2]:
            x = jax.nn.relu(
                jax.lax.conv_general_dilated(x, conv["w"], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
                + conv["b"]
            )
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = _dropout(first, x, 0.25).reshape(len(x), -1)
        x = _dropout(second, jax.nn.relu(x @ p[2]["w"] + p[2]["b"]), 0.5)
        return _cross_entropy(x @ p[3]["w"] + p[3]["b"], t)

    return params, loss, (jax.random.normal(k[4], (batch, 28, 28, 1)), jnp.arange(batch) % 10)


def _gpt(key, size):
    layers, heads, width, tokens, texts, vocabulary = SIZES[size]
    keys = iter(jax.random.split(key, 4 * layers + 3))

    def linear(rows, columns):
        return {"w": jax.random.normal(next(keys), (rows, columns)) * 0.02, "b": jnp.zeros(columns)}

    def norm_of():
        return {"g": jnp.ones(width), "b": jnp.zeros(width)}

    blocks = [{"ln1": norm_of(), "attn": linear(width, 3 * width), "proj": linear(width, width), "ln2": norm_of(),
               "fc1": linear(width, 4 * width), "fc2": linear(4 * width, width)} for _ in range(layers)]  # fmt: skip
    params = {"tokens": jax.random.normal(next(keys), (vocabulary, width)) * 0.02, "blocks": blocks, "norm": norm_of(),
              "places": jax.random.normal(next(keys), (tokens, width)) * 0.02}  # fmt: skip
    mask = jnp.tril(jnp.ones((tokens, tokens), bool))

    def norm(p, x):
        return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * p["g"] + p["b"]

    def apply(p, x):
        return x @ p["w"] + p["b"]

    def loss(p, key, x, t):
        h = p["tokens"][x] + p["places"]
        for b in p["blocks"]:
            q, k, v = (
                a.reshape(*a.shape[:2], heads, -1).swapaxes(1, 2)
                for a in jnp.split(apply(b["attn"], norm(b["ln1"], h)), 3, -1)
            )
            s = jnp.where(mask, q @ k.swapaxes(-1, -2) / math.sqrt(width // heads), -jnp.inf)
            h = h + apply(b["proj"], (jax.nn.softmax(s) @ v).swapaxes(1, 2).reshape(h.shape))
            h = h + apply(b["fc2"], jax.nn.gelu(apply(b["fc1"], norm(b["ln2"], h)), approximate=False))
        return _cross_entropy(norm(p["norm"], h) @ p["tokens"].T, t)

    data = jax.random.randint(next(keys), (2, texts, tokens), 0, vocabulary)
    return params, loss, (data[0], data[1])


def _adam(p, g, state, step, lr, decay):
    m, v = 0.9 * state[0] + 0.1 * g, 0.999 * state[1] + 0.001 * g * g
    scaled = (m / (1 - 0.9**step)) / (jnp.sqrt(v / (1 - 0.999**step)) + 1e-8)
    return p - lr * (scaled + decay * p), (m, v)


def _adadelta(p, g, state, step, lr, decay):
    square = 0.9 * state[0] + 0.1 * g * g
    delta = jnp.sqrt(state[1] + 1e-6) / jnp.sqrt(square + 1e-6) * g
    return p - lr * delta, (square, 0.9 * state[1] + 0.1 * delta * delta)


# file of the workload: (maker, optimizer, learning rate, weight decay)
FORMS = {"mlp": (_mlp, _adam, 1e-3, 0.0), "cnn": (_cnn, _adadelta, 1.0, 0.0), "gpt": (_gpt, _adam, 3e-4, 0.01)}


class Training:
    """As benchmarks.workloads.training has it."""

    def __init__(self, name):
        file, sizes = WORKLOADS[name]
        make, update, lr, decay = FORMS[file]
        self.params, loss, self.batch = make(jax.random.key(0), **sizes)
        self.states = [(jnp.zeros_like(p), jnp.zeros_like(p)) for p in jax.tree.leaves(self.params)]
        self.count = 0

        def step(params, states, count, x, t):
            grads = jax.grad(loss)(params, jax.random.fold_in(jax.random.key(1), count), x, t)
            leaves, tree = jax.tree.flatten(params)
            new = [update(p, g, s, count, lr, decay) for p, g, s in zip(leaves, jax.tree.leaves(grads), states)]
            return jax.tree.unflatten(tree, [p for p, _ in new]), [s for _, s in new]

        self.jitted = jax.jit(step, donate_argnums=(0, 1))

    def step(self):
        self.count += 1
        self.params, self.states = self.jitted(self.params, self.states, self.count, *self.batch)
        jax.block_until_ready(self.params)

    def hash(self):
        found = hashlib.sha256()
        for p in jax.tree.leaves(self.params):
            found.update(np.asarray(p).tobytes())
        return found.hexdigest()[:12]

    def flops(self):
        return 0
