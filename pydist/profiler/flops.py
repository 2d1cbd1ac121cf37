"""Floating-point operations of products, by the shapes of results and inputs; a multiplication and an addition are two.

Each op that has a formula is counted where its kernel runs, so what is composed of them has none of its own. Attention
counts all pairs, also those that causality leaves out."""

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
    """Five products where forward has two: the scores anew, and the gradients of scores, query, key and value."""
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
    """The operations of one event itself, 0 where it has no formula."""
    formula = (BACKWARD if kind == "backward" else OPS).get(name)
    return formula(results, inputs) if formula else 0
