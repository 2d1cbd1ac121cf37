"""Recurrent networks as functions of their weights, by PyTorch's names: what nn.LSTM and nn.GRU compute.

>>> import pydist
>>> layer = pydist.nn.GRU(3, 5)
>>> x, h = pydist.ones(7, 2, 3), pydist.zeros(1, 2, 5)
>>> out, last = pydist._VF.gru(x, h, list(layer.parameters()), True, 1, 0.0, True, False, False)
>>> out.equal(layer(x, h)[0])
True
"""

from pydist.nn.modules.rnn import run_layers

__all__ = ["gru", "lstm", "rnn_relu", "rnn_tanh"]


def _weights(name, params, has_biases, count, projected):
    """A dictionary of weights for each layer and direction, from the flat list."""
    kinds = ["weight_ih", "weight_hh", *(["bias_ih", "bias_hh"] if has_biases else [])]
    kinds += ["weight_hr"] if projected else []
    if len(params) != count * len(kinds):
        raise RuntimeError(
            f"{name}: got {len(params)} weights (expected {count * len(kinds)}: {', '.join(kinds)} each)"
        )
    return [dict(zip(kinds, params[k : k + len(kinds)])) for k in range(0, len(params), len(kinds))]


def _run(name, mode, args):
    states, count = args[1], len(args[2:])
    if count != 7:
        raise TypeError(
            f"{name}: got {count + 2} arguments (expected input, hx, params, has_biases, num_layers, dropout, train, "
            "bidirectional, batch_first, or data, batch_sizes, hx, params, ... without batch_first)"
        )
    if hasattr(states, "dtype") and states.dim() == 1:  # (data, batch_sizes, hx, params, ..., bidirectional)
        x, sizes, states, params, has_biases, layers, dropout, train, bidirectional = args
        sizes, shape, batch_first = sizes.tolist(), None, False
    else:
        x, states, params, has_biases, layers, dropout, train, bidirectional, batch_first = args
        batched = x.dim() == 3
        x = x if batched else x.unsqueeze(1)
        x = x.transpose(0, 1) if batch_first and batched else x
        steps, batch, inputs = shape = tuple(x.shape)
        x, sizes = x.reshape(steps * batch, inputs), [batch] * steps
    states = list(states) if mode == "LSTM" else [states]
    if shape and not batched:
        states = [state.unsqueeze(1) for state in states]
    projected = mode == "LSTM" and states[0].shape[-1] != states[1].shape[-1]
    weights = _weights(name, list(params), has_biases, layers * (2 if bidirectional else 1), projected)
    out, last = run_layers(mode, x, sizes, states, weights, bidirectional, dropout, train)
    if shape:
        out = out.reshape(steps, batch, out.shape[1])
        out = out.transpose(0, 1) if batch_first and batched else out
        out, last = (out, last) if batched else (out.squeeze(1), [state.squeeze(1) for state in last])
    return out, *last


def lstm(*args):
    """(output, h, c) of an LSTM: lstm(input, (h, c), params, has_biases, num_layers, dropout, train, bidirectional,
    batch_first), or, for packed sequences, lstm(data, batch_sizes, (h, c), params, ..., bidirectional). params: the
    weights of each layer and direction as nn.LSTM lists them."""
    return _run("lstm", "LSTM", args)


def gru(*args):
    """(output, h) of a GRU: gru(input, h, params, has_biases, num_layers, dropout, train, bidirectional, batch_first), or,
    for packed sequences, gru(data, batch_sizes, h, params, ..., bidirectional)."""
    return _run("gru", "GRU", args)


def rnn_tanh(*args):
    """(output, h) of an RNN with tanh; the arguments are gru's."""
    return _run("rnn_tanh", "RNN_TANH", args)


def rnn_relu(*args):
    """(output, h) of an RNN with relu; the arguments are gru's."""
    return _run("rnn_relu", "RNN_RELU", args)
