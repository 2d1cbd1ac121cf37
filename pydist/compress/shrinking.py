"""shrink: removes channels and neurons for good.

A module is traced (pydist.fx) and run once on an example. Then each dimension of channels is followed through the graph: who
makes it, who reads it, and which dimensions have to stay alike, since their tensors are added. Channels that belong together
are a Group; all tensors of a group lose the same places.
"""

import inspect
from collections import Counter
from math import prod

import pydist
from pydist import fx, nn
from pydist.fx.passes.shape_prop import ShapeProp
from pydist.models._parts import check_tokens
from pydist.nn.modules.normalization import add_norm

_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_SAME = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardsigmoid,
    nn.Hardtanh, nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Softsign, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d,
    nn.Dropout3d, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d,
    nn.AdaptiveMaxPool3d, nn.Upsample, nn.ZeroPad2d,
)  # fmt: skip
_SAME_NAMES = set(
    "relu relu_ relu6 leaky_relu elu selu celu gelu silu mish hardswish hardsigmoid hardtanh sigmoid tanh softplus dropout dropout2d "
    "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d "
    "adaptive_max_pool2d interpolate contiguous clone float half bfloat16 to neg abs".split()
)
_PAIRS = set("add iadd sub isub mul imul truediv itruediv add_ sub_ mul_ div div_ maximum minimum".split())


class Group:
    """Channels that are removed together. tensors: [(module, its path, name of a parameter or buffer, dim, offset in channels,
    elements of a channel)]; why: what keeps the group as it is, or ""."""

    def __init__(self, size):
        self.size, self.tensors, self.why, self._into = size, [], "", None

    def root(self):
        """The group into which this one was joined."""
        while self._into is not None:
            self = self._into
        return self

    def join(self, other):
        """Makes two groups one."""
        a, b = self.root(), other.root()
        if a is not b:
            a.tensors += b.tensors
            a.why = a.why or b.why
            b._into = a

    def freeze(self, why):
        """Says that nothing of the group may go."""
        root = self.root()
        root.why = root.why or why

    def __repr__(self):
        makers = [f"{path}.{name}" for _, path, name, dim, *_ in self.tensors if dim == 0 and name == "weight"]
        return f"{self.size} channels of {', '.join(makers) or 'the input'}"


class _Channels:
    """The channels of a value: entries [(group, elements of a channel)] along dim 1, or along the last one."""

    def __init__(self, entries, last):
        self.entries, self.last = entries, last


class _Tracer(fx.Tracer):
    """Attention stays one call: its parts cannot be removed one by one."""

    def is_leaf_module(self, m, module_qualified_name):
        return type(m).__name__.endswith("Attention") or super().is_leaf_module(m, module_qualified_name)


class _Follower:
    """The channels of each node's value; None where they are not known and nothing of them is removed."""

    def __init__(self, model, example):
        tracer = _Tracer(autowrap_functions=(check_tokens, add_norm))
        example = example if isinstance(example, tuple) else (example,)
        others = list(inspect.signature(model.forward).parameters.values())[len(example) :]
        defaults = {p.name: p.default for p in others if p.default is not p.empty}  # inputs that the example leaves out
        self.traced = fx.GraphModule(model, tracer.trace(model, defaults))
        training = model.training
        with pydist.no_grad():
            ShapeProp(self.traced.eval()).propagate(*example)
        self.traced.train(training)
        self.groups, self.channels = [], {}
        self._names = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
        self._calls = Counter(node.target for node in self.traced.graph.nodes if node.op == "call_module")
        for node in self.traced.graph.nodes:
            self.channels[node] = self._of(node)

    def _shape(self, node):
        meta = node.meta.get("tensor_meta")
        return tuple(meta.shape) if hasattr(meta, "shape") else None

    def _new(self, size):
        group = Group(size)
        self.groups.append(group)
        return group

    def _freeze(self, nodes, why):
        for node in nodes:
            found = self.channels.get(node)
            for group, _ in found.entries if found else ():
                group.freeze(why)

    def _other(self, node):
        """Something that is not known: all that goes in stays as it is, and so does what comes out."""
        what = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", node.target)
        self._freeze(node.all_input_nodes, f"{what} ({node.name}) reads it")

    def _of(self, node):
        if node.op in ("placeholder", "get_attr"):
            return None
        if node.op == "output":
            return self._freeze(node.all_input_nodes, "it is a result")
        if node.op == "call_module":
            return self._of_module(node, self.traced.get_submodule(node.target), node.target)
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if self._shape(node) is None and name in ("size", "dim", "getattr"):
            return None
        inputs = [n for n in node.all_input_nodes if self._shape(n) is not None]
        known = self.channels.get(inputs[0]) if inputs else None
        if name in _PAIRS and inputs:
            return self._of_pair(node, inputs)
        if name in ("cat", "concat") and isinstance(node.args[0], (list, tuple)):
            return self._of_cat(node, node.args[0])
        if known is None or len(inputs) > 1:
            return self._other(node)
        if name in _SAME_NAMES and self._alike(inputs[0], node, known):
            return known
        if name in ("flatten", "view", "reshape") and self._is_flat(node, inputs[0], known):
            return self._flattened(inputs[0], known)
        if name in ("mean", "amax") and self._is_over_places(node, inputs[0], known):
            return _Channels(known.entries, len(self._shape(node)) == 2 or known.last)
        return self._other(node)

    def _alike(self, a, b, known):
        """Whether two values have their channels at the same place."""
        x, y = self._shape(a), self._shape(b)
        return y is not None and len(x) == len(y) and x[-1 if known.last else 1] == y[-1 if known.last else 1]

    @staticmethod
    def _dim(node, default):
        return node.kwargs.get("dim", node.kwargs.get("axis", node.args[1] if len(node.args) > 1 else default))

    def _is_flat(self, node, source, known):
        before, after = self._shape(source), self._shape(node)
        flat = after is not None and len(after) == 2 and len(before) >= 2 and after == (before[0], prod(before[1:]))
        return flat and (not known.last or len(before) == 2)

    def _flattened(self, source, known):
        places = prod(self._shape(source)[2:])
        return _Channels([(group, each * places) for group, each in known.entries], True)

    def _is_over_places(self, node, source, known):
        before, dims = self._shape(source), self._dim(node, None)
        dims = {d % len(before) for d in ([dims] if isinstance(dims, int) else dims or ())}
        return bool(dims) and not dims & {0, len(before) - 1 if known.last else 1}

    def _of_cat(self, node, parts):
        found, dim, dims = [self.channels.get(n) for n in parts], self._dim(node, 0), len(self._shape(node))
        last = next((f.last for f in found if f is not None), None)
        if last is None or any(f is not None and f.last != last for f in found):
            return self._other(node)
        if not isinstance(dim, int) or dim % dims != (dims - 1 if last else 1):
            return self._other(node)
        entries = []
        for part, known in zip(parts, found, strict=True):
            if known is None:  # it stays, and takes its place
                known = _Channels([(self._new(self._shape(part)[dim]), 1)], last)
                known.entries[0][0].freeze("it is not followed")
            entries += known.entries
        return _Channels(entries, last)

    def _of_pair(self, node, inputs):
        a = self.channels.get(inputs[0])
        if len(inputs) == 1:  # and a number
            return a if a is not None and self._alike(inputs[0], node, a) else self._other(node)
        b = self.channels.get(inputs[1])
        alike = a is not None and b is not None and len(inputs) == 2 and a.last == b.last
        if not alike or len(self._shape(inputs[0])) != len(self._shape(inputs[1])):
            return self._other(node)
        if [(g.size, each) for g, each in a.entries] != [(g.size, each) for g, each in b.entries]:
            return self._other(node)
        for (x, _), (y, _) in zip(a.entries, b.entries, strict=True):
            x.join(y)
        return a

    # Modules.

    def _reads(self, entries, module, path, name, dim):
        """Notes that a tensor has these channels along `dim`."""
        offset, shared = 0, self._names[id(getattr(module, name))] > 1
        for group, each in entries:
            if shared:
                group.freeze(f"{path}.{name} is another module's, too")
            group.root().tensors.append((module, path, name, dim, offset, each))
            offset += group.size * each

    def _of_module(self, node, module, path):
        source = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
        shape, known = self._shape(source) if source else None, self.channels.get(source)
        own = [name for name in ("weight", "bias") if isinstance(getattr(module, name, None), pydist.Tensor)]
        if any(name not in module._parameters for name in own):  # pruned, or made by a parametrization
            return self._other(node)
        if shape is None or self._calls[path] > 1 and list(module.parameters()):
            return self._other(node)
        if type(module) is nn.Linear and (known is None or known.last):
            return self._of_product(known, module, path, module.out_features, True)
        if type(module) in _CONVS and module.groups == 1 and (known is None or not known.last):
            return self._of_product(known, module, path, module.out_channels, False)
        if known is None:
            return self._other(node)
        if isinstance(module, _SAME):
            return known if self._alike(source, node, known) else self._other(node)
        if isinstance(module, nn.Flatten) and self._is_flat(node, source, known):
            return self._flattened(source, known)
        if isinstance(module, _NORMS):
            each_alone = not known.last or len(shape) == 2
        else:  # a depthwise convolution
            each_alone = (
                type(module) in _CONVS and module.groups == module.in_channels == module.out_channels and not known.last
            )
        if not each_alone:
            return self._other(node)
        for name in ("weight", "bias", "running_mean", "running_var"):
            if getattr(module, name, None) is not None:
                self._reads(known.entries, module, path, name, 0)
        return known

    def _of_product(self, known, module, path, size, last):
        if known is not None:
            self._reads(known.entries, module, path, "weight", 1)
        made = [(self._new(size), 1)]
        self._reads(made, module, path, "weight", 0)
        if module.bias is not None:
            self._reads(made, module, path, "bias", 0)
        return _Channels(made, last)


def _importance(group, kind):
    """How much each channel of a group matters: sums over the tensors that make it."""
    total = pydist.zeros(group.size, dtype=pydist.float64)
    for module, _, name, dim, offset, each in group.tensors:
        is_norm = isinstance(module, _NORMS)
        if dim != 0 or name != "weight" or is_norm != (kind == "bn"):
            continue
        rows = getattr(module, name).detach().cpu().double().narrow(0, offset, group.size * each)
        rows = rows.reshape(group.size, -1)
        total += rows.abs().sum(1) if kind != "l2" else rows.square().sum(1)
    return total


class Plan:
    """What shrink removes: `removed`, [(Group, kept channels)], and `left`, [(Group, why)]. print() shows it;
    state_dict() is {"PATH.NAME": {dim: kept indices}}, which load_plan makes into a plan again.

    apply(model) removes it; mask(model) sets it to zero instead, which gives the same results; shrink_optimizer(optimizer)
    removes the places of what an optimizer keeps, such as momenta.
    """

    def __init__(self, kept, removed=(), left=()):
        self._kept, self.removed, self.left = kept, list(removed), list(left)
        self._changed = []  # (parameter, {dim: kept})

    def state_dict(self):
        """{"PATH.NAME": {dim: kept indices}}."""
        return {path: {dim: list(kept) for dim, kept in dims.items()} for path, dims in self._kept.items()}

    @pydist.no_grad()
    def mask(self, model):
        """Sets to zero what would be removed: rows that make a channel, and norms' weights and biases."""
        for path, dims in self._kept.items():
            module, name = _owner(model, path)
            if 0 in dims and name in ("weight", "bias"):
                value = getattr(module, name)
                gone = pydist.ones(value.shape[0], dtype=pydist.bool, device=value.device)
                gone[pydist.tensor(dims[0], dtype=pydist.int64, device=value.device)] = False
                value[gone] = 0

    @pydist.no_grad()
    def apply(self, model):
        """Removes the channels from a model. Parameters stay the same objects, with less data."""
        for path, dims in self._kept.items():
            module, name = _owner(model, path)
            value = getattr(module, name)
            if isinstance(value, nn.Parameter):
                value.grad = None
                value.data = _selected(value, dims)
                self._changed.append((value, dims))
            else:
                setattr(module, name, _selected(value, dims))
        for path in self._kept:
            _set_sizes(_owner(model, path)[0])
        return model

    @pydist.no_grad()
    def shrink_optimizer(self, optimizer):
        """Removes from an optimizer's state what apply() has removed from its parameters."""
        for parameter, dims in self._changed:
            state = optimizer.state.get(parameter, {})
            for value in state.values():
                if (
                    isinstance(value, pydist.Tensor)
                    and value.dim() == parameter.dim()
                    and value.shape != parameter.shape
                ):
                    value.data = _selected(value, dims)  # the same object: the optimizer keeps lists of them

    def __repr__(self):
        lines = [f"{group!r}: {len(kept)} stay" for group, kept in self.removed]
        lines += [f"{group!r}: all stay, as {why}" for group, why in self.left if group.tensors]
        return "\n".join(lines)


def _selected(value, dims):
    value = value.detach()
    for dim, kept in dims.items():
        value = value.index_select(dim, pydist.tensor(kept, dtype=pydist.int64, device=value.device))
    return value.contiguous()


def load_plan(state_dict):
    """The Plan of a state_dict()."""
    return Plan(
        {path: {int(dim): [int(i) for i in kept] for dim, kept in dims.items()} for path, dims in state_dict.items()}
    )


def _owner(model, path):
    way, _, name = path.rpartition(".")
    return model.get_submodule(way), name


def _set_sizes(module):
    """Makes a module's numbers right for its tensors."""
    if isinstance(module, _NORMS):
        module.num_features = (module.weight if module.weight is not None else module.running_mean).shape[0]
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, _CONVS):
        module.out_channels = module.weight.shape[0]
        if module.groups == 1:
            module.in_channels = module.weight.shape[1]
        else:
            module.in_channels = module.groups = module.out_channels


def shrink(model, example, amount, importance="l1", *, apply=True, only=None):
    """Removes a share of a model's channels, in place, and returns the Plan.

    example: an input (a tuple of inputs) for one run. amount: the share of each group of channels that goes, 0 or more and
    less than 1; one channel stays. importance: "l1" or "l2", the sum of absolute values or squares of the weights that make
    a channel, or "bn", the scale of the norm behind it. only: function(Group) that says which groups may lose channels.
    apply=False: nothing is removed yet.

    Channels are followed through convolutions (also depthwise), Linear, batch norms, elementwise functions, pooling, sums,
    concatenations and flattening. What reads or makes a dimension in another way keeps it whole, and print(plan) names it.
    Inputs and results keep their sizes. After that train some more. A model that cannot be traced raises TraceError.

    >>> import pydist
    >>> from pydist import compress, nn
    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 4, 2))
    >>> plan = compress.shrink(net, pydist.randn(1, 3, 4, 4), 0.5)
    >>> plan
    8 channels of 0.weight, 1.weight: 4 stay
    2 channels of 4.weight: all stay, as it is a result
    >>> net(pydist.randn(5, 3, 4, 4)).shape, net[4]
    (pydist.Size([5, 2]), Linear(in_features=16, out_features=2, bias=True))
    """
    if not 0 <= amount < 1:
        raise ValueError(f"shrink: amount is {amount!r} (expected 0 or more, and less than 1)")
    if importance not in ("l1", "l2", "bn"):
        raise ValueError(f"shrink: importance is {importance!r} (expected 'l1', 'l2' or 'bn')")
    follower, kept, removed, left, seen = _Follower(model, example), {}, [], [], set()
    for group in (g.root() for g in follower.groups):
        if id(group) in seen:
            continue
        seen.add(id(group))
        why = group.why or ("" if only is None or only(group) else "the program says so")
        count = min(group.size - 1, round(amount * group.size))
        if why or count <= 0:
            left.append((group, why or "there is too little of it"))
            continue
        scores = _importance(group, importance)
        if importance == "bn" and not scores.any():
            scores = _importance(group, "l1")
        channels = sorted(scores.topk(group.size - count).indices.tolist())
        removed.append((group, channels))
        for module, path, name, dim, offset, each in group.tensors:
            size = getattr(module, name).shape[dim]
            places = kept.setdefault(f"{path}.{name}", {}).setdefault(dim, set(range(size)))
            gone = set(range(group.size)) - set(channels)
            places -= {offset + channel * each + i for channel in gone for i in range(each)}
    plan = Plan(
        {path: {dim: sorted(places) for dim, places in dims.items()} for path, dims in kept.items()}, removed, left
    )
    if apply:
        plan.apply(model)
    return plan
