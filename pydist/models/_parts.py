"""Shared parts of the models: heads, sampling, and checks of the input."""

import pydist
from pydist.nn import functional as F


def to_heads(x, heads):
    """[N, T, heads * E] as [N, heads, T, E]."""
    return to_heads_of(x, x.shape[2] // heads)


def to_heads_of(x, width):
    """[N, T, heads * width] as [N, heads, T, width]: of all heads, or of those that a rank has."""
    n, t, features = x.shape
    return x.view(n, t, features // width, width).transpose(1, 2)


def from_heads(x):
    """[N, heads, T, E] as [N, T, heads * E]."""
    return x.transpose(1, 2).flatten(2)


def check_sizes(config, *divided):
    """Raises ValueError if a size is less than 1, or if the first of a pair is not a multiple of the second."""
    for name, value in vars(config).items():
        if isinstance(value, int) and not isinstance(value, bool) and value < 1:
            raise ValueError(f"{type(config).__name__}: {name} is {value} (expected at least 1)")
    for whole, part in divided:
        if getattr(config, whole) % getattr(config, part):
            raise ValueError(
                f"{type(config).__name__}: {whole} is {getattr(config, whole)} (expected a multiple of {part}, "
                f"{getattr(config, part)})"
            )


def check_tokens(name, tokens, longest):
    """Raises ShapeError unless tokens is [N, T] with T at most `longest`."""
    if tokens.ndim != 2 or tokens.shape[1] > longest:
        got = list(tokens.shape)
        raise pydist.ShapeError(f"{name}: tokens have shape {got} (expected [N, T], T at most {longest})")


def next_token_loss(logits, targets):
    """The mean cross entropy of logits [N, T, V] and targets [N, T], without targets of -1."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


@pydist.no_grad()
def generate(model, tokens, count, context, temperature=1.0, top_k=None):
    """tokens [N, T] with `count` more tokens, each drawn from softmax(logits / temperature), or from its top_k largest.
    temperature 0 takes the largest."""
    was_training = model.training
    model.eval()
    for _ in range(count):
        logits = model(tokens[:, -context:])[:, -1]
        if temperature == 0:
            following = logits.argmax(-1, keepdim=True)
        else:
            if top_k is not None:
                least = logits.topk(min(top_k, logits.shape[-1]), -1).values[:, -1:]
                logits = logits.masked_fill(logits < least, float("-inf"))
            following = pydist.multinomial((logits / temperature).softmax(-1), 1)
        tokens = pydist.cat([tokens, following], 1)
    model.train(was_training)
    return tokens
