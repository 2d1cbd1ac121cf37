"""S11: LSTM and GRU run in C where their activations are tanh and sigmoid, also with masks. Keras' PyTorch backend steps
through time in Python on a CPU, and for every layer with a mask."""

from pydist import _C
from pydist.nn import functional as F


def _standard(activation, recurrent_activation):
    from keras.src import activations, ops

    tanh, sigmoid = (activations.tanh, _C.tanh, ops.tanh), (activations.sigmoid, _C.sigmoid, ops.sigmoid)
    return activation in tanh and recurrent_activation in sigmoid


def _run(kind, inputs, states, mask, kernel, weight, biases, return_sequences, go_backwards):
    """(last output, outputs, last states) in Keras' form. inputs [B, T, I]; kernel [I, gates H]; weight [gates H, H]; biases:
    of the input and of the state. Backwards, outputs stand in the order in which they are computed."""
    own = inputs.dtype
    wide = _C.float64 if own is _C.float64 else _C.float32  # in which C computes
    x = F.linear(inputs.transpose(0, 1).contiguous(), kernel.t(), biases[0]).to(wide)
    given = [t if t is None else t.to(wide).contiguous() for t in (*states, weight, biases[1])]
    if kind == "gru":
        given.insert(1, None)
    mask = mask if mask is None else mask.to(_C.bool).transpose(0, 1).contiguous()
    outputs, cell = F.recurrent(x, *given, kind, go_backwards, mask)
    last = outputs[0 if go_backwards else -1]
    states = [state.to(own) for state in ((last, cell) if kind == "lstm" else (last,))]
    if mask is not None:  # as in Keras, steps before the first one that is made give 0
        steps = mask.flip(0) if go_backwards else mask
        begun = steps.cumsum(0) > 0
        begun = (begun.flip(0) if go_backwards else begun).unsqueeze(2)
        outputs = outputs.where(begun, 0.0)
        last = outputs[0 if go_backwards else -1]
    if not return_sequences:
        return last.to(own), last.to(own).unsqueeze(1), states
    outputs = (outputs.flip(0) if go_backwards else outputs).transpose(0, 1)
    return last.to(own), outputs.to(own), states


def _turned(z_r_h):
    """Keras' order of a GRU's gates, along the first dimension, in PyTorch's."""
    z, r, h = z_r_h.chunk(3, 0)
    return _C.cat([r, z, h], 0)


def _run_in_c(module):
    their_lstm, their_gru, convert = module.lstm, module.gru, module.convert_to_tensor

    def lstm(
        inputs, initial_state_h, initial_state_c, mask, kernel, recurrent_kernel, bias, activation, recurrent_activation,
        return_sequences=False, go_backwards=False, unroll=False, **options,
    ):  # fmt: skip
        states = initial_state_h, initial_state_c
        if not _standard(activation, recurrent_activation) or not options.get("batch_first", True):
            return their_lstm(
                inputs, *states, mask, kernel, recurrent_kernel, bias, activation, recurrent_activation, return_sequences,
                go_backwards, unroll, **options,
            )  # fmt: skip
        kernel, weight = convert(kernel), convert(recurrent_kernel)
        inputs, *states = (convert(t).to(kernel.dtype) for t in (inputs, *states))
        biases = None if bias is None else convert(bias), None
        return _run("lstm", inputs, states, mask, kernel, weight.t(), biases, return_sequences, go_backwards)

    def gru(
        inputs, initial_state, mask, kernel, recurrent_kernel, bias, activation, recurrent_activation, return_sequences=False,
        go_backwards=False, unroll=False, reset_after=True,
    ):  # fmt: skip
        if not _standard(activation, recurrent_activation) or not reset_after:
            return their_gru(
                inputs, initial_state, mask, kernel, recurrent_kernel, bias, activation, recurrent_activation, return_sequences,
                go_backwards, unroll, reset_after,
            )  # fmt: skip
        kernel, weight = convert(kernel), convert(recurrent_kernel)
        inputs, state = (convert(t).to(kernel.dtype) for t in (inputs, initial_state))
        biases = (None, None) if bias is None else [_turned(b) for b in convert(bias)]
        kernel, weight = _turned(kernel.t()).t(), _turned(weight.t())
        return _run("gru", inputs, [state], mask, kernel, weight, biases, return_sequences, go_backwards)

    module.lstm, module.gru = lstm, gru


def _zeros_for_masked(name):
    def change(module):
        """backend.lstm and backend.gru do not hear of zero_output_for_mask."""
        cls = getattr(module, name)
        theirs = cls.inner_loop

        def inner_loop(self, sequences, initial_state, mask, training=False):
            if mask is not None and self.zero_output_for_mask:
                return super(cls, self).inner_loop(sequences, initial_state, mask, training)
            return theirs(self, sequences, initial_state, mask, training)

        cls.inner_loop = inner_loop

    return change


SEAMS = {
    "keras.src.backend.torch.rnn": _run_in_c,
    "keras.src.layers.rnn.lstm": _zeros_for_masked("LSTM"),
    "keras.src.layers.rnn.gru": _zeros_for_masked("GRU"),
}
