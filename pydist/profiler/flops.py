"""Floating-point operations of products, from the shapes of results and inputs. A multiplication and an addition are
two.

Each op with a formula is counted where its kernel runs, so ops that are composed of others have no formula. Attention
counts all pairs, also those that causality excludes.
"""

from math import prod


def _bmm(results, inputs):
    return 2 * prod(results[0]) * inputs[0][-1]


def _linear(results, inputs):
    return 2 * prod(inputs[0]) * inputs[1][0]


def _conv2d(results, inputs):
    return 2 * prod(results[0]) * prod(inputs[1][1:])


def _conv2d_grad_input(results, inputs):
    return 2 * prod(inputs[0]) * prod(inputs[1][1:])


def _conv2d_grad_weight(results, inputs):
    return 2 * prod(inputs[0]) * prod(results[0][1:])


def _attend(results, inputs):
    return 2 * inputs[1][2] * (prod(inputs[0]) + prod(results[0]))


def _attend_backward(results, inputs):
    """Five products (forward has two): the scores again, and the gradients of scores, query, key and value."""
    query, key = results[0], results[1]
    return 2 * key[2] * (3 * prod(query) + 2 * prod(inputs[0])) if query and key else 0


OPS = {
    "bmm": _bmm,
    "bmm_wide": _bmm,
    "linear": _linear,
    "conv2d": _conv2d,
    "conv2d_grad_input": _conv2d_grad_input,
    "conv2d_grad_weight": _conv2d_grad_weight,
    "attend": _attend,
}
BACKWARD = {"attend": _attend_backward}


def count(name, kind, results, inputs):
    """The operations of one event itself; 0 if it has no formula."""
    formula = (BACKWARD if kind == "backward" else OPS).get(name)
    return formula(results, inputs) if formula else 0
