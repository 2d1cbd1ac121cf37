"""Functions, methods and classes that PyTorch and pydist both have take PyTorch's arguments: by the same names, at the
same places, with the same defaults. What differs on purpose stands in DIFFERENT, with the reason.

PyTorch's side is read from its Python functions, its stub files and its operators' schemas."""

import ast
import importlib
import inspect
import re
from collections import namedtuple
from functools import cache
from pathlib import Path

import pytest

import pydist

MODULES = (
    "amp autograd autograd.functional autograd.graph cuda distributed distributions fft func linalg multiprocessing nn "
    "nn.functional nn.init nn.parallel nn.utils nn.utils.parametrizations nn.utils.parametrize nn.utils.rnn optim "
    "optim.lr_scheduler optim.swa_utils random special testing utils.checkpoint utils.data"
).split()
REQUIRED = inspect.Parameter.empty
PLACED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
OP = type(pydist.add)
Parameter = namedtuple("Parameter", "name place default")  # place: None where it is taken by name alone

DIFFERENT = {  # of "name | difference"
    r"(Tensor\.)?(tensor|as_tensor|new_tensor) \| .* is not number \d": "the stub is wrong: PyTorch takes them by name only",
    r"(from_numpy|set_num_threads|to_dlpack) \| .*": "PyTorch's own takes no keyword",
    r"(finfo|iinfo) \| no dtype": "the stub is wrong: the name is type",
    r"nn\.functional\.scaled_dot_product_attention \| .* is not number \d": "the stub is wrong: PyTorch takes them by name only",
    r"Tensor\.requires_grad_ \| no mode": "the stub is wrong: the name is requires_grad",
    r"distributed\.FileStore \| no (path|numWorkers)": "the names of the documentation are file_name and world_size",
    r"result_type \| .*": "numbers come by place; the stub names each combination otherwise",
    r"(Tensor\.(cdouble|cfloat)|distributions\.identity_transform|nn\.functional\.logsigmoid) \| \? .*": "without arguments "
    "of note",
    r"(Tensor\.)?(max|min) \| other is not number \d": "the form of two tensors, which takes it there",
    r"(arange|randint|randint_like) \| (end|high|size) is not number \d": "the form without a start, which takes it there",
    r"(Tensor\.)?random_ \| .* is not number \d": "bounds come by place, or as `from` and `to`",
    r"(Tensor\.)?scatter_? \| value is not number \d": "src takes a number, and there is a keyword",
    r"(Tensor\.)?([hvd]|tensor_)split \| .* is not number \d": "one parameter takes them all by place, each has a keyword",
    r"repeat_interleave \| repeats is not number 0": "the form of repeats alone, which takes it there",
    r"(Tensor\.)?(std|var)(_mean)? \| unbiased is .*": "dim's place takes a bool; not given means True",
    r"Tensor\.view \| (no dtype|size is not number 0)": "the form with a dtype takes both; size is shape's other name",
    r"(norm|tensordot) \| (out|dtype) is not number \d": "out comes by name; Tensor.norm has dtype there",
    r"(nn\.functional\.)?conv\dd \| padding is 0 by default, not .*": "padding 'valid' is 0",
    r"load \| weights_only is True by default, not None": "None is True in PyTorch, too",
    r"Generator \| device is 'cpu' by default, not 'None'": "None is the CPU in PyTorch, too",
    r"random\.fork_rng \| device_type .*": "two private parameters stand before it in PyTorch; nothing depends on it here",
    r"distributed\.(ProcessGroup|ReduceOp) \| .*": "made by the library; ReduceOp's values are words",
    r"nn\.RNNCellBase \| .*": "a base class, not documented",
    r"nn\.functional\.max_pool[12]d_with_indices \| no return_indices": "it gives them anyhow",
    r"Size \| no iterable": "tuple's constructor takes it by place only, PyTorch's, too",
    r"device \| device is not number 0": "taken, by another constructor's signature",
    r"isin \| no (test_)?element": "elements and test_elements take numbers, too",
    r"(add|b|badd)?b?mm \| no out_dtype": "of products on GPUs alone",
    r"(Tensor\.)?gather \| no sparse_grad": "gradients are dense",
    r"Tensor\.to_sparse \| no .*": "COO is the only layout",
    r"Tensor\.expand \| no implicit": "internal to PyTorch",
    r"full \| no names": "no named dimensions",
    r"frombuffer \| no requires_grad": "memory of others takes no gradient",
}


# What PyTorch says: lists of Parameters, one for each way to call a function.


def of_stub(node, method):
    """A function of a stub file."""
    placed = [*node.args.posonlyargs, *node.args.args][method:]
    defaults = (
        [REQUIRED] * (len(placed) - len(node.args.defaults)) + node.args.defaults[-len(placed) :] if placed else []
    )
    kinds = [(p, i) for i, p in enumerate(placed)] + [(p, None) for p in node.args.kwonlyargs]
    way = [
        Parameter(
            p.arg, place, default if default is REQUIRED else REQUIRED if default is None else ast.unparse(default)
        )
        for (p, place), default in zip(kinds, [*defaults, *node.args.kw_defaults])
    ]
    notes = [ast.unparse(p.annotation) for p, _ in kinds if p.annotation]
    return None if any("ellipsis" in note for note in notes) else way  # None: of named dimensions


@cache
def stubs(torch, file, cls=None):
    body = ast.parse((Path(torch.__file__).parent / "_C" / file).read_text()).body
    if cls:
        body = next((node.body for node in body if isinstance(node, ast.ClassDef) and node.name == cls), [])
    found = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, []).append(of_stub(node, bool(cls)))
    return {name: [way for way in ways if way is not None] for name, ways in found.items()}


@cache
def schemas(torch):
    found = {}
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("aten::"):
            ours = [a for a in schema.arguments if not (a.kwarg_only and a.alias_info and a.alias_info.is_write)]
            way = [
                Parameter(
                    "input" if a.name == "self" else a.name,
                    None if a.kwarg_only else i,
                    repr(a.default_value) if a.has_default_value() else REQUIRED,
                )
                for i, a in enumerate(ours)
            ]
            if len(ours) < len(schema.arguments):
                way.append(Parameter("out", None, "None"))
            found.setdefault(schema.name[6:], []).append(way)
    return found


def of_python(f, method=False):
    parameters = list(inspect.signature(f).parameters.values())[method:]
    placed = [p for p in parameters if p.kind in PLACED]
    way = [Parameter(p.name, i, p.default) for i, p in enumerate(placed)]
    return way + [Parameter(p.name, None, p.default) for p in parameters if p.kind == p.KEYWORD_ONLY]


def theirs(torch, path, f, method):
    """The ways to call PyTorch's f, or None where nothing says them."""
    module, _, name = path.rpartition(".")
    if not inspect.getdoc(f) and not inspect.isclass(f):
        return []
    if inspect.isclass(f):
        try:
            return [of_python(f)]
        except ValueError:  # in C
            for file in ("__init__.pyi", "_distributed_c10d.pyi"):
                if made := stubs(torch, file, f.__name__).get("__init__"):
                    return made
            return []
    if getattr(f, "__name__", "") == "fn" and hasattr(torch.nn.functional, f"_{name}"):  # a choice by a flag
        return [of_python(getattr(torch.nn.functional, f"_{name}"))]
    if inspect.isfunction(f) or inspect.ismethod(f):
        return [of_python(f, method and not inspect.ismethod(f))]
    if module == "Tensor":
        return stubs(torch, "__init__.pyi", "TensorBase").get(name)
    if module == "":
        return stubs(torch, "_VariableFunctions.pyi").get(name) or stubs(torch, "__init__.pyi").get(name)
    if module in ("linalg", "fft", "special"):
        return schemas(torch).get(f"{module}_{name}".replace("fft_fft", "fft_fft"))
    if module == "nn.functional":
        return stubs(torch, "_nn.pyi").get(name) or stubs(torch, "_VariableFunctions.pyi").get(name)
    return None


# What pydist says.


def signature(f, method):
    """f's parameters; for a function in C what the first line of its documentation says."""
    try:
        return list(inspect.signature(f).parameters.values())[method:]
    except (ValueError, TypeError):
        text = (f.__doc__ or "").partition("\n")[0]
        made = {}
        exec(f"def {text}: pass", {"pydist": pydist}, made)
        return list(inspect.signature(next(iter(made.values()))).parameters.values())


def takes(f, name):
    """Whether an op takes a keyword: it says so before it looks at what is missing."""
    try:
        f(**{name: pydist.ones(1)})
    except Exception as error:
        return "unexpected keyword" not in str(error)
    return True


def value(default):
    """Comparable: an enumeration's word, a function's name, the number itself; an empty tuple is None."""
    text = default if isinstance(default, str) else getattr(default, "name", None) or getattr(default, "__name__", None)
    text = re.sub(r"\b(torch|pydist)\.", "", repr(default) if text is None else text)
    text = re.sub(r"^<.*Generator.*|^\(\)|^\[\]|^Size\(\[\]\)|^strided", "None", text).lower()
    try:
        found = ast.literal_eval(text.title() if text in ("none", "true", "false") else text)
    except (ValueError, SyntaxError):
        return text
    return list(found) if isinstance(found, tuple) else found


def differences(way, f, method):
    parameters = signature(f, method)
    kinds = {p.kind for p in parameters}
    named = {
        p.name: p.default for p in parameters if p.kind not in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }
    order = [p.name for p in parameters if p.kind in PLACED]
    for name, place, default in way:
        if name.startswith("_"):
            continue
        if name == "self":
            name = "input"
        also = getattr(f, "also_named", {})
        known = name in named or name in also or inspect.Parameter.VAR_KEYWORD in kinds
        if not known and not (type(f) is OP and takes(f, name)):
            yield f"no {name}"
            continue
        various = inspect.Parameter.VAR_POSITIONAL in kinds and len(order) <= place if place is not None else False
        if place is not None and order[place : place + 1] != [also.get(name, name)] and not various:
            yield f"{name} is not number {place}"
        if default is not REQUIRED and default != "..." and name in named:
            if named[name] is REQUIRED:
                yield f"{name} has no default"
            elif value(default) != value(named[name]):
                yield f"{name} is {named[name]!r} by default, not {default!r}"


def old(path, way):
    """PyTorch's older order of arguments, in which a factor stands before tensors: it warns of it."""
    factors = [p for p in way if p.place is not None and p.name in ("alpha", "beta", "value") and p.default is REQUIRED]
    return bool(factors) and re.match(r"(Tensor\.)?(b?add|sub)", path)


def pairs(torch):
    """(path, PyTorch's, ours, is a method)"""
    for name in sorted(dir(torch)):
        if not name.startswith("_") and callable(getattr(torch, name)) and hasattr(pydist, name):
            yield name, getattr(torch, name), getattr(pydist, name), False
    for name in sorted(dir(torch.Tensor)):
        if not name.startswith("_") and callable(getattr(torch.Tensor, name)) and hasattr(pydist.Tensor, name):
            yield f"Tensor.{name}", getattr(torch.Tensor, name), getattr(pydist.Tensor, name), True
    for path in MODULES:
        a, b = importlib.import_module(f"torch.{path}"), importlib.import_module(f"pydist.{path}")
        for name in sorted(getattr(a, "__all__", None) or dir(a)):
            f, g = getattr(a, name, None), getattr(b, name, None)
            if (
                name.startswith("_")
                or not callable(f)
                or g is None
                or not str(getattr(f, "__module__", "torch")).startswith("torch")
            ):
                continue
            yield f"{path}.{name}", f, g, False
            if inspect.isclass(f):
                for inner, method in sorted(vars(f).items()):
                    if (
                        not inner.startswith("_")
                        and inspect.isfunction(method)
                        and inspect.isroutine(getattr(g, inner, None))
                    ):
                        yield f"{path}.{name}.{inner}", method, getattr(g, inner), True


def found(torch):
    """["name | difference"]"""
    rows = {}
    for path, f, g, method in pairs(torch):
        ways = theirs(torch, path, f, method)
        if ways is None:
            rows[f"{path} | ? PyTorch does not say"] = None
            continue
        for way in ways:
            if not old(path, way):
                texts = differences(way, g, method and not inspect.ismethod(g))
                rows.update((f"{path} | {text}", None) for text in texts)
    return list(rows)


def test_all_signatures(torch):
    for file in Path(pydist.__file__).parent.joinpath("_functions").glob("[a-z]*.py"):
        importlib.import_module(f"pydist._functions.{file.stem}")  # until then its methods are stand-ins
    rows = found(torch)
    assert len(rows) > 50  # PyTorch's side was read
    unexplained = [row for row in rows if not any(re.fullmatch(pattern, row) for pattern in DIFFERENT)]
    assert unexplained == []
    if torch.__version__.startswith("2.13."):
        assert [pattern for pattern in DIFFERENT if not any(re.fullmatch(pattern, row) for row in rows)] == []


CALLS = """
torch.ones(2, 3).view(size=(3, 2))
torch.ones(2, 3).view(dtype=torch.int32)
torch.ones(2, 3).reshape(shape=(3, 2))
torch.ones(2, 1).expand(size=(2, 3))
torch.arange(6.0).view(2, 3).permute(dims=(1, 0))
torch.arange(3.0).repeat(repeats=(2, 2))
torch.arange(3.0).tile(dims=(2, 2))
torch.arange(6.0).resize_(size=(2, 2))
torch.arange(6.0).resize_as_(the_template=torch.ones(2, 2))
torch.arange(6.0).view(2, 3).sum_to_size(size=(1, 3))
torch.arange(6.0).view(2, 3).transpose_(dim0=0, dim1=1)
torch.arange(3.0).unsqueeze_(dim=1)
torch.arange(6.0).as_strided_(size=(2, 2), stride=(2, 1), storage_offset=1)
torch.ones(0).set_(torch.arange(6.0), storage_offset=1, size=(2, 2), stride=(2, 1))
torch.cat(torch.arange(6.0).split(split_size=4))
torch.cat(torch.arange(6.0).tensor_split(sections=4)[:2])
torch.arange(6.0).tensor_split(indices=(1, 5))[1]
torch.hsplit(torch.arange(6.0), indices=[2])[1]
torch.pow(input=torch.arange(3.0), exponent=2)
torch.arange(3.0).pow(exponent=torch.ones(3))
torch.pow(self=2, exponent=torch.arange(3.0))
torch.add(x1=torch.ones(2), x2=torch.ones(2), alpha=3)
torch.arange(6.0).view(2, 3).sum(axis=0, keepdims=True)
torch.tensor([1.25, -1.35]).round(decimals=1)
torch.round(torch.tensor([125.0, 131.0]), decimals=-1)
torch.round(torch.tensor([1.2, 3.7]), out=torch.ones(2))
torch.tensor([1.26]).round_(decimals=1)
torch.repeat_interleave(torch.tensor([2, 0, 1]))
torch.repeat_interleave(repeats=torch.tensor([2, 0, 1]))
torch.ones(2, requires_grad=True).numpy(force=True)
torch.ones(2).cpu(memory_format=torch.contiguous_format)
torch.zeros(3).random_(**{"from": 4, "to": 5})
torch.zeros(3).random_(4, 5)
torch.zeros(3).random_(to=1)
torch.var(torch.arange(4.0), False)
torch.arange(4.0).std(False)
torch.std_mean(torch.arange(4.0), False)[0]
torch.max(torch.ones(2), other=torch.arange(2.0))
torch.arange(3.0).min(torch.ones(3))
torch.zeros(2, 2).scatter(1, torch.tensor([[0], [1]]), value=3.0)
torch.zeros(2, 2).scatter(1, torch.tensor([[0], [1]]), 3.0)
torch.dot(torch.ones(2), torch.ones(2), out=torch.zeros(()))
torch.cummax(torch.arange(3.0), 0, out=(torch.zeros(3), torch.zeros(3, dtype=torch.long)))[1]
torch.linspace(0, 1, 5, out=torch.zeros(5))
torch.fft.rfft(torch.arange(4.0), out=torch.zeros(3, dtype=torch.complex64)).real
torch.special.erfcx(torch.zeros(2), out=torch.ones(2))
torch.linalg.inv(torch.eye(2), out=torch.zeros(2, 2))
torch.linalg.cholesky(input=torch.eye(2) * 4)
torch.linalg.matrix_rank(torch.eye(2), 0.1, True)
torch.linalg.pinv(torch.eye(2), 0.1, True)
torch.linalg.lstsq(input=torch.eye(2), b=torch.ones(2, 1)).solution
torch.empty(size=(2, 0))
torch.ones(size=(2,), layout=torch.strided, pin_memory=False)
torch.arange(end=3)
torch.randint(high=1, size=(2,))
torch.tril_indices(row=2, col=2, layout=torch.strided)
torch.full(size=(2,), fill_value=1, out=None)
torch.ones(2).new_zeros(size=(2,))
torch.nan_to_num(torch.tensor([float("nan")]), nan=None)
torch.histogram(torch.arange(4.0), bins=2)[0]
torch.meshgrid(torch.arange(2), torch.arange(3), indexing="xy")[0]
torch.iinfo(type=torch.int8).max
torch.finfo(type=torch.float16).max
torch.device(device="cpu").type
torch.nn.Hardtanh(min_value=-3.0, max_value=2.0)(torch.arange(-4.0, 4.0))
torch.distributions.HalfNormal(1.0).icdf(prob=torch.tensor(0.5))
torch.set_rng_state(new_state=torch.get_rng_state())
""".strip().split("\n")


@pytest.mark.parametrize("text", CALLS)
def test_calls_by_name(torch, text):
    """The same call means the same: a signature alone could say what the function does not take."""
    ours, theirs = (eval(text, {"torch": module}) for module in (pydist, torch))
    if not hasattr(ours, "tolist"):
        assert ours == theirs
        return
    assert (
        tuple(ours.shape) == tuple(theirs.shape)
        and str(ours.dtype).partition(".")[2] == str(theirs.dtype).partition(".")[2]
    )
    assert ours.tolist() == pytest.approx(theirs.tolist()) if ours.ndim < 2 else ours.tolist() == theirs.tolist()


def test_bad_names():
    x = pydist.ones(4)
    for call, message in (
        (lambda: x.view(sizes=(2, 2)), "view: got an unexpected keyword argument 'sizes'"),
        (lambda: x.view((2, 2), size=(2, 2)), "view: got multiple values for argument 'size'"),
        (lambda: x.tensor_split(2, sections=2), "tensor_split: got 2 of indices_or_sections, indices and sections"),
        (lambda: x.random_(1, frm=2), "random_: unexpected keyword"),
        (lambda: pydist.cummax(x, 0, out=x), "cummax: out is Tensor \\(expected 2 tensors\\)"),
        (lambda: pydist.dot(x, x, out=3), "dot: out is int"),
        (lambda: x.numpy(True), "numpy"),
    ):
        with pytest.raises(TypeError, match=message):
            call()
    with pytest.raises(RuntimeError, match="dot: out= does not support automatic differentiation"):
        pydist.dot(x.clone().requires_grad_(), x, out=pydist.ones(()))
