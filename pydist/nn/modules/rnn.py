"""Recurrent layers: Elman's RNN, LSTM (Hochreiter and Schmidhuber, 1997), GRU (Cho et al., 2014), and their cells."""

import math

from pydist import _C
from pydist.nn import functional as F
from pydist.nn import init
from pydist.nn.modules.module import Module
from pydist.nn.parameter import Parameter
from pydist.nn.utils.rnn import PackedSequence

# One step: the new state from the input's part of the gates [B, G H], the state (h, or (h, c)) and the hidden weights.


def _rnn_step(activation):
    def step(gates, state, w_hh, b_hh):
        return (activation(gates + F.linear(state[0], w_hh, b_hh)),)

    return step


def _lstm_step(gates, state, w_hh, b_hh, w_hr=None):
    h, c = state
    i, f, g, o = (gates + F.linear(h, w_hh, b_hh)).chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    return (h if w_hr is None else F.linear(h, w_hr)), c


def _gru_step(gates, state, w_hh, b_hh):
    (h,) = state
    r, z, n = gates.chunk(3, 1)
    hr, hz, hn = F.linear(h, w_hh, b_hh).chunk(3, 1)
    z = (z + hz).sigmoid()
    n = (n + (r + hr).sigmoid() * hn).tanh()
    return (n + z * (h - n),)


_STEPS = {
    "RNN_TANH": _rnn_step(_C.tanh),
    "RNN_RELU": _rnn_step(F.relu),
    "LSTM": _lstm_step,
    "GRU": _gru_step,
}
_GATES = {"RNN_TANH": 1, "RNN_RELU": 1, "LSTM": 4, "GRU": 3}


def _kernel_dtype(sizes, tensors):
    """The dtype in which F.recurrent computes, or None if it cannot. It needs sequences of one length; 16 bits, also
    those of autocast, compute in float32."""
    wide = {_C.float64 if t.dtype is _C.float64 else _C.float32 for t in tensors if t is not None}
    return wide.pop() if len(wide) == 1 and sizes[0] == sizes[-1] else None


def _direction(mode, x, sizes, state, weights, reverse):
    """One layer in one direction. x [sum of sizes, G H]: the input's part of the gates, step after step; step t has
    sizes[t] rows. state: tensors [B, .]. Returns (outputs [sum of sizes, .], the last state of every row)."""
    step = _STEPS[mode]
    dtype = _kernel_dtype(sizes, [x, *state, *weights]) if len(weights) == 2 else None
    if dtype:
        own = state[0].dtype
        x, *given = [t if t is None else t.to(dtype).contiguous() for t in (x, *state, *weights)]
        *given, w_hh, b_hh = given
        h, c = given if mode == "LSTM" else (given[0], None)
        x = x.reshape(len(sizes), sizes[0], x.shape[1])
        out, c = F.recurrent(x, h, c, w_hh, b_hh, mode.lower(), reverse)
        out, c = out.to(own), c.to(own)
        last = out[0 if reverse else -1]
        return out.reshape(len(sizes) * sizes[0], out.shape[2]), (last, c) if mode == "LSTM" else (last,)
    begins = [0]
    for size in sizes:
        begins.append(begins[-1] + size)
    order = range(len(sizes))
    whole, outputs, ended = state, [None] * len(sizes), []
    state = tuple(s[: sizes[-1]] for s in whole) if reverse else whole
    for t in reversed(order) if reverse else order:
        size, have = sizes[t], state[0].shape[0]
        if have < size:  # backwards: longer sequences start here, with their first state
            state = tuple(_C.cat([s, w[have:size]]) for s, w in zip(state, whole))
        elif have > size:  # forwards: shorter ones have ended
            ended.append(tuple(s[size:] for s in state))
            state = tuple(s[:size] for s in state)
        state = step(x[begins[t] : begins[t + 1]], state, *weights)
        outputs[t] = state[0]
    if ended:
        state = tuple(_C.cat([parts[-1], *parts[-2::-1]]) for parts in zip(*ended, state))
    return _C.cat(outputs), state


def run_layers(mode, x, sizes, states, weights, bidirectional, dropout, training):
    """All layers of a recurrent network: x [sum of sizes, I] -> (output, last states [layers * directions, B, .]).
    weights: a dictionary (weight_ih, weight_hh, perhaps bias_ih, bias_hh, weight_hr) for each layer and direction."""
    directions = 2 if bidirectional else 1
    last = []
    for first in range(0, len(weights), directions):
        outputs = []
        for d in range(directions):
            own = weights[first + d]
            gates = F.linear(x, own["weight_ih"], own.get("bias_ih"))
            hidden = [own["weight_hh"], own.get("bias_hh")]
            hidden += [own["weight_hr"]] if "weight_hr" in own else []
            out, end = _direction(mode, gates, sizes, tuple(s[first + d] for s in states), hidden, d == 1)
            outputs.append(out)
            last.append(end)
        x = _C.cat(outputs, 1) if directions == 2 else outputs[0]
        if dropout and first + directions < len(weights):
            x = F.dropout(x, dropout, training)
    return x, [_C.stack(list(parts)) for parts in zip(*last)]


class RNNBase(Module):
    """The common part of RNN, LSTM and GRU: parameters with PyTorch's names, layers, directions, packed sequences."""

    def __init__(
        self,
        mode,
        input_size,
        hidden_size,
        num_layers=1,
        bias=True,
        batch_first=False,
        dropout=0.0,
        bidirectional=False,
        proj_size=0,
        device=None,
        dtype=None,
    ):
        super().__init__()
        name = type(self).__name__
        if hidden_size <= 0 or num_layers <= 0:
            raise ValueError(
                f"{name}: hidden_size {hidden_size}, num_layers {num_layers} (expected both to be more than 0)"
            )
        if not 0 <= dropout <= 1:
            raise ValueError(f"{name}: dropout is {dropout} (expected 0 to 1)")
        if proj_size < 0 or proj_size >= hidden_size or proj_size and mode != "LSTM":
            raise ValueError(
                f"{name}: proj_size is {proj_size} (expected an LSTM and 0 to less than hidden_size {hidden_size})"
            )
        self.mode, self.input_size, self.hidden_size, self.num_layers = mode, input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout, self.bidirectional = bias, batch_first, float(dropout), bidirectional
        self.proj_size = proj_size
        directions, out = 2 if bidirectional else 1, proj_size or hidden_size
        self._names = []
        for layer in range(num_layers):
            inputs = input_size if layer == 0 else out * directions
            for suffix in ("", "_reverse")[:directions]:
                shapes = {"weight_ih": (inputs,), "weight_hh": (out,), "bias_ih": (), "bias_hh": ()}
                if not bias:
                    del shapes["bias_ih"], shapes["bias_hh"]
                names = {}
                for kind, rest in shapes.items():
                    names[kind] = f"{kind}_l{layer}{suffix}"
                    data = _C.empty(_GATES[mode] * hidden_size, *rest, device=device, dtype=dtype)
                    self.register_parameter(names[kind], Parameter(data))
                if proj_size:
                    names["weight_hr"] = f"weight_hr_l{layer}{suffix}"
                    data = _C.empty(proj_size, hidden_size, device=device, dtype=dtype)
                    self.register_parameter(names["weight_hr"], Parameter(data))
                self._names.append(names)
        self.reset_parameters()

    def reset_parameters(self):
        """Draws all weights again."""
        bound = 1 / math.sqrt(self.hidden_size)
        for weight in self.parameters():
            init.uniform_(weight, -bound, bound)

    @property
    def all_weights(self):
        """The weights of each layer and direction, as a list of lists."""
        return [[getattr(self, name) for name in names.values()] for names in self._names]

    @property
    def _flat_weights(self):
        """PyTorch's name of all_weights as one list."""
        return [weight for weights in self.all_weights for weight in weights]

    def flatten_parameters(self):
        """Does nothing: the weights are used where they are."""

    def _states(self, hx, batch, like, batched):
        """The first states as a list of tensors [layers * directions, B, .]."""
        count = self.num_layers * (2 if self.bidirectional else 1)
        sizes = [self.proj_size or self.hidden_size, self.hidden_size][: 2 if self.mode == "LSTM" else 1]
        if hx is None:
            return [_C.zeros(count, batch, size, dtype=like.dtype, device=like.device) for size in sizes]
        states = list(hx) if self.mode == "LSTM" else [hx]
        if len(states) != len(sizes):
            raise RuntimeError(f"{type(self).__name__}: {len(states)} hidden states (expected {len(sizes)})")
        for i, (state, size) in enumerate(zip(states, sizes)):
            want = (count, batch, size) if batched else (count, size)
            if tuple(state.shape) != want:
                raise RuntimeError(f"Expected hidden[{i}] size {want}, got {list(state.shape)}")
        return states if batched else [state.unsqueeze(1) for state in states]

    def _run(self, x, sizes, states):
        """x [sum of sizes, I] -> (output, last states [layers * directions, B, .])."""
        weights = [{kind: getattr(self, name) for kind, name in names.items()} for names in self._names]
        return run_layers(self.mode, x, sizes, states, weights, self.bidirectional, self.dropout, self.training)

    def _packed(self, input, hx):
        sizes = input.batch_sizes.tolist()
        states = self._states(hx, sizes[0], input.data, True)
        if input.sorted_indices is not None:
            states = [state.index_select(1, input.sorted_indices) for state in states]
        out, last = self._run(input.data, sizes, states)
        if input.unsorted_indices is not None:
            last = [state.index_select(1, input.unsorted_indices) for state in last]
        return PackedSequence(out, input.batch_sizes, input.sorted_indices, input.unsorted_indices), last

    def _plain(self, input, hx):
        if input.dim() not in (2, 3):
            raise ValueError(f"{type(self).__name__}: Expected input to be 2D or 3D, got {input.dim()}D instead")
        batched = input.dim() == 3
        x = input if batched else input.unsqueeze(1)
        if batched and self.batch_first:
            x = x.transpose(0, 1)
        steps, batch, size = x.shape
        if size != self.input_size:
            raise RuntimeError(f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {size}")
        if steps == 0:
            raise RuntimeError(f"{type(self).__name__}: Expected sequence length to be larger than 0")
        states = self._states(hx, batch, x, batched)
        out, last = self._run(x.reshape(steps * batch, size), [batch] * steps, states)
        out = out.reshape(steps, batch, out.shape[1])
        if batched:
            return (out.transpose(0, 1) if self.batch_first else out), last
        return out.squeeze(1), [state.squeeze(1) for state in last]

    def forward(self, input, hx=None):
        run = self._packed if isinstance(input, PackedSequence) else self._plain
        out, last = run(input, hx)
        return out, tuple(last) if self.mode == "LSTM" else last[0]

    def extra_repr(self):
        usual = {"num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0, "bidirectional": False}
        given = [f"{name}={getattr(self, name)}" for name, value in usual.items() if getattr(self, name) != value]
        projection = [f"proj_size={self.proj_size}"] if self.proj_size else []
        return ", ".join([f"{self.input_size}, {self.hidden_size}", *projection, *given])


class RNN(RNNBase):
    """h = tanh(W_ih x + b_ih + W_hh h + b_hh) for each step of x [T, B, I] ([B, T, I] with batch_first), in
    `num_layers` layers. `nonlinearity`: "tanh" or "relu". Returns (outputs [T, B, D H], last h [layers D, B, H]) with D
    directions.

    >>> import pydist
    >>> out, h = pydist.nn.RNN(3, 5, num_layers=2)(pydist.ones(7, 2, 3))
    >>> out.shape, h.shape
    (pydist.Size([7, 2, 5]), pydist.Size([2, 2, 5]))
    """

    def __init__(self, input_size, hidden_size, num_layers=1, nonlinearity="tanh", *args, **kwargs):
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"Unknown nonlinearity '{nonlinearity}'. Select from 'tanh' or 'relu'.")
        if "proj_size" in kwargs:
            raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")
        self.nonlinearity = nonlinearity
        super().__init__(f"RNN_{nonlinearity.upper()}", input_size, hidden_size, num_layers, *args, **kwargs)


class LSTM(RNNBase):
    """i, f, o = sigmoid(W x + U h + b), g = tanh(...), c = f c + i g, h = o tanh(c); with `proj_size` h is projected.

    Returns (outputs [T, B, D H], (last h, last c) [layers D, B, H]); the first states default to zeros.

    >>> import pydist
    >>> out, (h, c) = pydist.nn.LSTM(3, 5, bidirectional=True)(pydist.ones(7, 2, 3))
    >>> out.shape, h.shape, c.shape
    (pydist.Size([7, 2, 10]), pydist.Size([2, 2, 5]), pydist.Size([2, 2, 5]))
    """

    def __init__(self, *args, **kwargs):
        super().__init__("LSTM", *args, **kwargs)


class GRU(RNNBase):
    """r, z = sigmoid(W x + U h + b), n = tanh(W_n x + b_n + r (U_n h + b_hn)), h = (1 - z) n + z h.

    Returns (outputs [T, B, D H], last h [layers D, B, H]).

    >>> import pydist
    >>> pydist.nn.GRU(3, 5, batch_first=True)(pydist.ones(2, 7, 3))[0].shape
    pydist.Size([2, 7, 5])
    """

    def __init__(self, *args, **kwargs):
        if "proj_size" in kwargs:
            raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")
        super().__init__("GRU", *args, **kwargs)


class RNNCellBase(Module):
    """One step of a recurrent layer: weight_ih, weight_hh, bias_ih, bias_hh."""

    def __init__(self, mode, input_size, hidden_size, bias=True, device=None, dtype=None):
        super().__init__()
        self.mode, self.input_size, self.hidden_size, self.bias = mode, input_size, hidden_size, bias
        rows = _GATES[mode] * hidden_size
        shapes = {"weight_ih": (input_size,), "weight_hh": (hidden_size,), "bias_ih": (), "bias_hh": ()}
        for name, rest in shapes.items():
            made = Parameter(_C.empty(rows, *rest, device=device, dtype=dtype)) if bias or rest else None
            self.register_parameter(name, made)
        bound = 1 / math.sqrt(hidden_size) if hidden_size else 0
        for weight in self.parameters():
            init.uniform_(weight, -bound, bound)

    def _step(self, input, states):
        name = type(self).__name__
        if input.dim() not in (1, 2):
            raise ValueError(f"{name}: Expected input to be 1D or 2D, got {input.dim()}D instead")
        if input.shape[-1] != self.input_size:
            raise RuntimeError(f"{name}: input has size {input.shape[-1]} (expected {self.input_size})")
        x = input if input.dim() == 2 else input.unsqueeze(0)
        if states is None:
            states = [_C.zeros(x.shape[0], self.hidden_size, dtype=x.dtype, device=x.device)] * (
                2 if self.mode == "LSTM" else 1
            )
        else:
            states = [state if input.dim() == 2 else state.unsqueeze(0) for state in states]
        for state in states:
            if tuple(state.shape) != (x.shape[0], self.hidden_size):
                want = (x.shape[0], self.hidden_size)
                raise RuntimeError(f"{name}: a state has shape {list(state.shape)} (expected {list(want)})")
        gates = F.linear(x, self.weight_ih, self.bias_ih)
        new = _STEPS[self.mode](gates, tuple(states), self.weight_hh, self.bias_hh)
        return new if input.dim() == 2 else tuple(state.squeeze(0) for state in new)

    def extra_repr(self):
        bias = "" if self.bias else ", bias=False"
        kind = ", nonlinearity=relu" if self.mode == "RNN_RELU" else ""
        return f"{self.input_size}, {self.hidden_size}{bias}{kind}"


class RNNCell(RNNCellBase):
    """h' = tanh (or relu) of W_ih x + b_ih + W_hh h + b_hh, for x [B, I] and h [B, H]."""

    def __init__(self, input_size, hidden_size, bias=True, nonlinearity="tanh", device=None, dtype=None):
        if nonlinearity not in ("tanh", "relu"):
            raise RuntimeError(f"Unknown nonlinearity: {nonlinearity}")
        self.nonlinearity = nonlinearity
        super().__init__(f"RNN_{nonlinearity.upper()}", input_size, hidden_size, bias, device, dtype)

    def forward(self, input, hx=None):
        return self._step(input, None if hx is None else [hx])[0]


class LSTMCell(RNNCellBase):
    """(h', c') from x [B, I] and (h, c): one step of LSTM."""

    def __init__(self, input_size, hidden_size, bias=True, device=None, dtype=None):
        super().__init__("LSTM", input_size, hidden_size, bias, device, dtype)

    def forward(self, input, hx=None):
        return self._step(input, hx)


class GRUCell(RNNCellBase):
    """h' from x [B, I] and h [B, H]: one step of GRU."""

    def __init__(self, input_size, hidden_size, bias=True, device=None, dtype=None):
        super().__init__("GRU", input_size, hidden_size, bias, device, dtype)

    def forward(self, input, hx=None):
        return self._step(input, None if hx is None else [hx])[0]
