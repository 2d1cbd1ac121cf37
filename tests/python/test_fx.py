"""pydist.fx: graphs of programs, which are changed, printed, copied and run with equal bits; names of nodes as torch gives them."""

import copy
import inspect
import math
import operator
import pickle
import subprocess
import sys
import threading
import time

import pytest

import pydist
from lib.package import COMPARED, installed
from lib.ranks import LONG
from pydist import fx, nn
from pydist.fx.passes.shape_prop import ShapeProp
from pydist.nn import functional
from pydist.nn.functional import leaky_relu
from pydist.vision import models

fx.wrap("len")
fx.wrap("by_number")


def by_number(x, n):
    return x * n if n > 2 else x


@fx.wrap
def decorated(x, by):
    return x + by if by else x


class Block(nn.Module):
    """Modules in modules, a parameter, a buffer, a plain tensor and all kinds of steps."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.weight = nn.Parameter(pydist.ones(4, 1, 1))
        self.register_buffer("shift", pydist.ones(1))
        self.plain = pydist.full((1,), 2.0)
        self.layers = nn.ModuleDict({"a b": nn.Sequential(nn.ReLU(), nn.Conv2d(4, 4, 1))})

    def forward(self, x, scale=2.0, *, bias=None):
        y = functional.relu(self.norm(self.conv(x))) * self.weight + self.shift - self.plain
        y = functional.max_pool2d(leaky_relu(self.layers["a b"](y), 0.1), 2).flatten(1)
        a, b = pydist.chunk(y, 2, dim=1)
        u = pydist.cat([a, b], dim=1).view(y.size(0), -1) * scale
        return {
            "u": u[:, 1:3],
            "v": (functional.softmax(u, dim=-1), -u, u**2, 1 - u, u @ u.transpose(0, 1), y.shape[-1]),
        }


def leaves(value):
    found = []
    fx.node.map_aggregate(value, found.append)
    return found


def same(a, b):
    a, b = leaves(a), leaves(b)
    return len(a) == len(b) and all(
        pydist.equal(x, y) if isinstance(x, pydist.Tensor) else x == y for x, y in zip(a, b, strict=True)
    )


def all_forms(traced):
    """What runs the same graph."""
    return (
        traced,
        fx.Interpreter(traced).run,
        fx.Interpreter(traced, garbage_collect_values=False).run,
        fx.Transformer(traced).transform(),
        copy.deepcopy(traced),
        pickle.loads(pickle.dumps(traced)),
        fx.GraphModule(traced, copy.deepcopy(traced.graph)),
        fx.symbolic_trace(traced),
    )


# Tracing.


def test_a_module():
    module, x = Block().eval(), pydist.randn(2, 3, 8, 8)
    traced = fx.symbolic_trace(module)
    traced.graph.lint()
    assert [n.target for n in traced.graph.nodes if n.op == "call_module"] == [
        "conv",
        "norm",
        "layers.a b.0",
        "layers.a b.1",
    ]
    assert [n.target for n in traced.graph.nodes if n.op == "get_attr"] == ["weight", "shift", "plain"]
    functions = [n.target for n in traced.graph.nodes if n.op == "call_function"]
    assert functional.relu in functions and leaky_relu in functions and operator.matmul in functions
    assert [n.target for n in traced.graph.nodes if n.op == "placeholder"] == ["x", "scale", "bias"]
    for form in all_forms(traced):
        assert same(form(x), module(x)) and same(form(x, 3.0), module(x, 3.0))
    assert dict(traced.named_parameters()).keys() == dict(module.named_parameters()).keys()
    assert traced.weight is module.weight and not traced.training and isinstance(traced, fx.GraphModule)
    traced(x)["u"].sum().backward()
    assert module.weight.grad is not None
    assert functional.relu.__module__ == inspect.unwrap(functional.relu).__module__  # nothing stays replaced
    assert nn.Module.__call__.__name__ == "__call__" and leaky_relu is functional.leaky_relu


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", *(["squeezenet1_0", "densenet121"] if LONG else [])])
def test_models(name):
    model, x = getattr(models, name)().eval(), pydist.randn(1, 3, 64, 64)
    traced = fx.symbolic_trace(model)
    want = model(x)
    for form in all_forms(traced)[:6]:
        assert same(form(x), want)
    assert traced.state_dict().keys() == model.state_dict().keys()


def test_functions_with_all_kinds_of_arguments():
    def f(a, /, b=2, *args, c, d=4, **kwargs):
        return pydist.add(a, b) + args[0] * c - d + kwargs["e"]

    traced, given = fx.symbolic_trace(f), [pydist.full((2,), float(n)) for n in range(6)]
    assert pydist.equal(
        traced(given[0], given[1], given[2], c=given[3], e=given[5]), f(*given[:3], c=given[3], e=given[5])
    )
    assert [n.target for n in traced.graph.nodes if n.op == "placeholder"] == ["a", "b", "*args", "c", "d", "**kwargs"]


def test_concrete_arguments():
    def f(x, flag, n=1):
        return x * n if flag else x + n

    with pytest.raises(fx.TraceError, match="cannot be used as inputs to control flow"):
        fx.symbolic_trace(f)
    traced = fx.symbolic_trace(f, concrete_args={"flag": True, "n": fx.PH})
    assert traced(pydist.ones(1), True, 3).item() == 3
    with pytest.raises(
        AssertionError, match="flag has been specialized to have value True but got another value: False"
    ):
        traced(pydist.ones(1), False, 3)
    with pytest.raises(ValueError, match=r"has no \['none'\]"):
        fx.symbolic_trace(f, concrete_args={"none": 1})


def test_wrapped_functions_are_not_looked_into():
    traced = fx.symbolic_trace(lambda x, n: (by_number(x, n) + len(x) + decorated(x, n)) * math.sqrt(n))
    names = [n.name for n in traced.graph.nodes if n.op == "call_function"]
    assert names[:2] == ["by_number", "len_1"] and "decorated" in names and "sqrt" in names
    assert traced(pydist.ones(2), 4.0).tolist() == [(4 + 2 + 5) * 2.0] * 2
    assert len([1, 2]) == 2 and by_number(2, 3) == 6 and decorated(1, 2) == 3
    assert pickle.loads(pickle.dumps(traced))(pydist.ones(2), 4.0).tolist() == [22.0] * 2
    for wrong in (3, None):
        with pytest.raises(RuntimeError, match="Unsupported type"):
            fx.wrap(wrong)
    with pytest.raises(NotImplementedError, match="top level"):
        fx.wrap("by_number")


@pytest.mark.parametrize("program, match", [
    (lambda x: x if x.sum() > 0 else -x, "control flow"),
    (lambda x: list(x), "cannot be iterated"),
    (lambda x: pydist.ones(3)[: x.sum()] if int(x.sum()) else 1, "index|int"),
    (lambda x: x.__setitem__(0, 1), "does not support item assignment"),
    (lambda x: pydist.ones(2) if not x else x, "control flow"),
    (lambda x: pydist.add(x, object()), "argument of type"),
])  # fmt: skip
def test_what_cannot_be_traced(program, match):
    with pytest.raises((TypeError, ValueError, NotImplementedError, RuntimeError), match=match):
        fx.symbolic_trace(program)
    assert pydist.relu(pydist.ones(1)).item() == 1 and getattr(nn.Module.__call__, "__wrapped__", None) is None


def test_other_threads_are_not_traced():
    started, done, found = threading.Event(), threading.Event(), []

    class Slow(nn.Module):
        def forward(self, x):
            started.set()
            done.wait(10)
            return functional.relu(x)

    def other():
        started.wait(10)
        layer = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        found.append(functional.relu(layer(pydist.ones(1, 2))))
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    traced = fx.symbolic_trace(Slow())
    thread.join()
    assert type(found[0]) is pydist.Tensor and len(traced.graph.nodes) == 3
    found.clear()


def test_leaf_modules_by_choice():
    class Whole(fx.Tracer):
        def is_leaf_module(self, m, module_qualified_name):
            return module_qualified_name == "layers.a b" or super().is_leaf_module(m, module_qualified_name)

    module = Block().eval()
    graph = Whole().trace(module)
    assert [n.target for n in graph.nodes if n.op == "call_module"] == ["conv", "norm", "layers.a b"]
    x = pydist.randn(1, 3, 4, 4)
    assert same(fx.GraphModule(module, graph)(x), module(x))
    with pytest.raises(NameError, match="not installed as a submodule"):
        other = nn.Linear(2, 2)
        fx.symbolic_trace(lambda x: other(x))


def test_classes_and_tensors_made_inside():
    class Pair(metaclass=fx.ProxyableClassMeta):
        def __init__(self, a, b):
            self.a, self.b = a, b

    def f(x):
        pair = Pair(x, x + 1)
        return pair.a * pair.b + pydist.full((2,), 3.0)

    traced = fx.symbolic_trace(f)
    assert [n.op for n in traced.graph.nodes].count("get_attr") == 1 and "_tensor_constant0" in dict(
        traced.named_buffers()
    )
    assert traced(pydist.ones(2)).tolist() == [5.0, 5.0]
    assert isinstance(Pair(1, 2), Pair)


# Graphs.


def test_a_graph_by_hand():
    graph = fx.Graph()
    x, w = graph.placeholder("x"), graph.get_attr("lin.weight")
    y = graph.call_function(pydist.matmul, (x, w))
    z = graph.call_method("relu", (y,))
    unused = graph.call_function(pydist.neg, (y,))
    with graph.inserting_before(z):
        shifted = graph.call_function(operator.add, (y, 1.0))
    z.args = (shifted,)
    graph.output({"z": [z, 3, (x, None)]})
    graph.lint()
    assert (
        str(graph).splitlines()[0] == "graph():"
        and y.users == {unused: None, shifted: None}
        and shifted.all_input_nodes == [y]
    )
    assert y < z and z > y and shifted.next is z and z.prev is shifted
    root = nn.Module()
    root.lin = nn.Linear(3, 3)
    module = fx.GraphModule(root, graph)
    given = pydist.randn(2, 3)
    want = (given @ root.lin.weight + 1).relu()
    assert pydist.equal(module(given)["z"][0], want) and module(given)["z"][1:] == [3, (given, None)]
    assert graph.eliminate_dead_code() and not graph.eliminate_dead_code()
    module.recompile()
    assert "neg" not in module.code and pydist.equal(module(given)["z"][0], want)
    assert "call_function" in subprocess.run([sys.executable, "-c", TABLE], capture_output=True, text=True).stdout


TABLE = """
from pydist import fx, nn
fx.symbolic_trace(lambda x: x + nn.functional.relu(x)).graph.print_tabular()
"""


def test_nodes_are_changed():
    traced = fx.symbolic_trace(lambda x, y: pydist.add(x, y).relu())
    x, y, add, relu, out = traced.graph.nodes
    with traced.graph.inserting_after(add):
        scaled = traced.graph.call_function(operator.mul, (add, 2))
        again = traced.graph.call_function(operator.mul, (scaled, 3))
    assert [n.name for n in traced.graph.nodes] == ["x", "y", "add", "mul", "mul_1", "relu", "output"]
    assert add.replace_all_uses_with(again, delete_user_cb=lambda user: user is relu) == [relu]
    traced.recompile()
    assert traced(pydist.ones(1), pydist.ones(1)).item() == 12
    add.update_arg(1, x)
    add.update_kwarg("alpha", 5)
    traced.graph.erase_node(y)
    traced.recompile()
    assert traced(pydist.ones(1)).item() == 36 and "alpha = 5" in traced.code
    with pytest.raises(RuntimeError, match="still had 1 users"):
        traced.graph.erase_node(add)
    relu.append(again)
    with pytest.raises(RuntimeError, match="used before it has been defined"):
        traced.graph.lint()
    with pytest.raises(RuntimeError, match="does not belong to this Graph"):
        fx.Graph().call_method("relu", (add,))
    with pytest.raises(AssertionError, match="expected one of placeholder"):
        traced.graph.create_node("jump", "x")
    with pytest.raises(ValueError, match="expected a callable"):
        traced.graph.call_function("text")


def test_in_place_ops_stay():
    def f(x):
        y = x.clone()
        y.add_(1)
        y += 2
        pydist.relu(x)
        return y

    traced = fx.symbolic_trace(f)
    assert traced.graph.eliminate_dead_code()
    traced.recompile()
    assert "relu" not in traced.code and traced(pydist.ones(1)).item() == 4


def test_names_are_unique_and_no_keywords():
    graph = fx.Graph()
    nodes = [graph.placeholder(n) for n in ("x", "if", "sum", "self", "3d", "a.b", "x_1")]
    nodes += [graph.call_function(operator.add, (nodes[0], 1), name="x") for _ in range(2)]
    names = [n.name for n in nodes]
    assert (
        len(set(names)) == len(names)
        and not {"if", "sum", "self"} & set(names)
        and all(n.isidentifier() for n in names)
    )


def test_constants_in_the_code():
    values = (1, 2.5, math.inf, -math.inf, 1j, "a'b", b"c", None, ..., True, (), (1,), [1, [2]], {"k": 3}, slice(1, None, 2),
              pydist.float64, pydist.device("cpu"), pydist.channels_last, range(3))  # fmt: skip
    traced = fx.symbolic_trace(lambda x: (x, values))
    assert same(traced(pydist.ones(1))[1], values)
    assert math.isnan(fx.symbolic_trace(lambda x: (x, math.nan))(1)[1])


def test_where_the_code_is():
    """In tracebacks and for inspect; an error of an Interpreter names its node."""
    traced = fx.symbolic_trace(lambda x, y: pydist.matmul(x, y))
    assert "matmul" in inspect.getsource(type(traced).forward)
    with pytest.raises(pydist.ShapeError) as caught:
        fx.Interpreter(traced).run(pydist.ones(2, 3), pydist.ones(2, 3))
    if sys.version_info >= (3, 11):
        assert any("While executing %matmul" in note for note in caught.value.__notes__)
    assert "def forward(self, x, y)" in traced.print_readable(print_output=False)
    with pytest.raises(RuntimeError, match="Expected positional argument for parameter y"):
        fx.Interpreter(traced).run(pydist.ones(2, 3))


def test_a_module_without_what_its_graph_needs():
    graph = fx.Graph()
    graph.output(graph.get_attr("w"))
    with pytest.raises(RuntimeError, match="that target was not provided in `root`"):
        fx.GraphModule({}, graph)
    module = fx.GraphModule({"w": pydist.ones(1)}, graph)
    assert module().item() == 1 and "w" in dict(module.named_buffers())
    with pytest.raises(AssertionError, match="Expected a Graph"):
        module.graph = 3


def test_modules_come_and_go(tmp_path):
    traced = fx.symbolic_trace(Block().eval())
    assert traced.add_submodule("extra.one", nn.ReLU()) and traced.extra.one is traced.get_submodule("extra.one")
    traced.delete_all_unused_submodules()
    assert not hasattr(traced, "extra") and hasattr(traced, "conv") and hasattr(traced.layers, "a b")
    assert (
        traced.delete_submodule("norm") and not traced.delete_submodule("norm") and not traced.delete_submodule("x.y")
    )
    with pytest.raises(RuntimeError, match="references nonexistent attribute norm"):
        traced.graph.lint()
    other = fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    other.to_folder(tmp_path / "written", "Made")
    code = "import sys; sys.path.insert(0, sys.argv[1]); from written import Made; import pydist; print(Made()(pydist.ones(1, 2)).shape)"
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True)
    assert "Size([1, 2])" in done.stdout, done.stderr


# Rewriting.


def test_patterns_are_replaced():
    traced = fx.symbolic_trace(lambda x, y: (pydist.relu(x + y) * 2 + pydist.relu(y + x)).sum())
    found = fx.replace_pattern(traced, lambda a, b: pydist.relu(a + b), lambda a, b: pydist.sigmoid(a - b))
    assert len(found) == 2 and [m.anchor.target for m in found] == [pydist.relu] * 2
    traced.graph.lint()
    x, y = pydist.randn(3), pydist.randn(3)
    want = (pydist.sigmoid(x - y) * 2 + pydist.sigmoid(y - x)).sum()
    assert pydist.equal(traced(x, y), want)


def test_patterns_that_are_used_elsewhere_or_differ_stay():
    def f(x, y):
        s = x + y
        return pydist.relu(s) + s, pydist.relu(x + 1), (x * 3).abs()

    traced = fx.symbolic_trace(f)
    before = traced.code
    assert fx.replace_pattern(traced, lambda a, b: pydist.relu(a + b).abs(), lambda a, b: a) == []
    assert fx.replace_pattern(traced, lambda a: (a * 2).abs(), lambda a: a) == [] and traced.code == before
    found = fx.replace_pattern(traced, lambda a, b: pydist.relu(a + b), lambda a, b: a * b)
    assert len(found) == 1  # b may be a constant; the first sum is used again
    assert traced(pydist.full((1,), 2.0), pydist.full((1,), 3.0))[1].item() == 2
    assert len(fx.replace_pattern(traced, lambda a: (a * 3).abs(), lambda a: -a)) == 1
    with pytest.raises(AssertionError, match="the pattern has 1 inputs, the replacement 2"):
        fx.replace_pattern(traced, lambda a: a.abs(), lambda a, b: a)
    with pytest.raises(ValueError, match="returns an input"):
        fx.replace_pattern(traced, lambda a: a, lambda a: a)


def test_chains_and_several_results():
    traced = fx.symbolic_trace(lambda x: pydist.relu(pydist.relu(pydist.relu(x))))
    assert len(fx.replace_pattern(traced, lambda a: pydist.relu(a), lambda a: a + 1)) == 3
    assert traced(pydist.zeros(1)).item() == 3
    traced = fx.symbolic_trace(lambda x: [part * 2 for part in (x.sin(), x.cos())])
    found = fx.replace_pattern(traced, lambda a: (a.sin(), a.cos()), lambda a: (a + 1, a + 2))
    assert len(found) == 1 and [t.item() for t in traced(pydist.zeros(1))] == [2, 4]


def test_modules_are_put_in_by_replacements():
    class New(nn.Module):
        def __init__(self):
            super().__init__()
            self.extra = nn.Linear(2, 2)

        def forward(self, x):
            return self.extra(x)

    traced, new = fx.symbolic_trace(lambda x: pydist.relu(x)), New()
    assert len(fx.replace_pattern(traced, lambda a: pydist.relu(a), new)) == 1
    assert traced.extra is new.extra and pydist.equal(traced(pydist.ones(1, 2)), new(pydist.ones(1, 2)))


def test_filters():
    from pydist.fx.subgraph_rewriter import replace_pattern_with_filters

    traced = fx.symbolic_trace(lambda x: x.relu() + x.sin().relu())
    only = [lambda match, graph, pattern: match.anchor.args[0].op != "placeholder"]
    found = replace_pattern_with_filters(traced, lambda a: a.relu(), lambda a: a * 7, only)
    assert len(found) == 1 and [n.name for n in found[0].replacements] == ["mul"]
    x = pydist.full((1,), 0.5)
    assert pydist.equal(traced(x), x + x.sin() * 7)


def test_a_transformer_and_shapes():
    class Sigmoid(fx.Transformer):
        def call_function(self, target, args, kwargs):
            return super().call_function(pydist.sigmoid if target is functional.relu else target, args[:1], {})

        def call_module(self, target, args, kwargs):
            return -super().call_module(target, args, kwargs)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(3, 2)

        def forward(self, x):
            return functional.relu(self.a(x))

    net, x = Net(), pydist.randn(4, 3)
    changed = Sigmoid(fx.symbolic_trace(net)).transform()
    assert pydist.equal(changed(x), pydist.sigmoid(-net.a(x)))
    ShapeProp(changed).propagate(x)
    metas = [n.meta["tensor_meta"] for n in changed.graph.nodes]
    assert [tuple(m.shape) for m in metas] == [(4, 3), (4, 2), (4, 2), (4, 2), (4, 2)] and metas[0].stride == (3, 1)


# Beside torch.

BESIDE = """
import sys
if sys.argv[1] == "torch":
    import torch as t
else:
    import pydist as t
fx, nn = t.fx, t.nn
F = nn.functional

class Block(nn.Module):
    def __init__(s):
        super().__init__()
        s.c, s.b, s.w = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Parameter(t.ones(4, 1, 1))
        s.register_buffer("k", t.ones(1))
        s.seq = nn.Sequential(nn.ReLU(), nn.Conv2d(4, 4, 1))
    def forward(s, x, scale=2.0, *, bias=None):
        y = s.seq(F.relu(s.b(s.c(x))) * s.w + s.k)
        z = F.max_pool2d(y, 2).flatten(1)
        a, b = t.chunk(z, 2, dim=1)
        u = t.cat([a, b], dim=1).view(y.size(0), -1)
        return {"u": u[:, 1:3], "s": (F.softmax(u, dim=-1), -u, u**2, 1 - u, u @ u.transpose(0, 1), y.shape[-1])}

class Words(nn.Module):
    def __init__(s):
        super().__init__()
        s.e, s.l, s.g = nn.Embedding(10, 8), nn.LayerNorm(8), nn.GELU()
        s.m, s.d = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)]), nn.ModuleDict({"a b": nn.Linear(8, 3)})
    def forward(s, ids, mask=None):
        x = s.e(ids)
        for layer in s.m:
            x = x + s.g(layer(s.l(x)))
        q = F.scaled_dot_product_attention(x, x, x, is_causal=True)
        x = t.einsum("bij->bi", q).unsqueeze(-1).expand(-1, -1, 8).mean(dim=1, keepdim=True)
        return s.d["a b"](F.layer_norm(x, (8,)))

def f(x, y):
    a = x.clone()
    return F.linear(a, y) + t.zeros(3) + (x > 0).float().sum() + t.sigmoid(x).add_(1) // 2 % 3

for module in (Block(), Words(), f):
    for n in fx.symbolic_trace(module).graph.nodes:
        print(n.op, n.name, n.target if isinstance(n.target, str) else n.target.__name__, n.all_input_nodes, list(n.users))
"""


@pytest.mark.skipif(not installed("torch"), reason="no torch")
def test_the_nodes_of_torch(tmp_path):
    (tmp_path / "beside.py").write_text(BESIDE)
    ours, theirs = (
        subprocess.run(
            [sys.executable, tmp_path / "beside.py", name], capture_output=True, text=True
        ).stdout.splitlines()
        for name in ("pydist", "torch")
    )
    assert ours == theirs and len(ours) > 60
    COMPARED["nodes of graphs"] += len(ours)


def test_threads_that_trace_at_once():
    """The second one waits for the first one; each gets its own graph, and afterwards nothing is replaced any more."""
    before, inside, found = (nn.Module.__call__, nn.Module.__getattr__, functional.relu), threading.Event(), {}

    class Slow(nn.Module):
        def forward(self, x):
            inside.set()
            time.sleep(0.05)
            return x + 1

    def trace(model):
        found[type(model).__name__] = [node.op for node in fx.symbolic_trace(model).graph.nodes]

    first = threading.Thread(target=trace, args=(Slow(),))
    second = threading.Thread(target=trace, args=(nn.Sequential(nn.ReLU()),))
    first.start()
    inside.wait()
    second.start()
    first.join()
    second.join()
    assert found == {
        "Slow": ["placeholder", "call_function", "output"],
        "Sequential": ["placeholder", "call_module", "output"],
    }
    assert (nn.Module.__call__, nn.Module.__getattr__, functional.relu) == before
