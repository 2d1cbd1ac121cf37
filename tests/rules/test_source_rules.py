"""The laws of the source: which folder may include which, who knows Python, tensors and ops, and what no file may say."""

import ast
import re
import shutil
import subprocess
import sys
from collections import Counter
from graphlib import TopologicalSorter

import pytest

from lib.source import TEXT, TOP, files
from pydist import _C

# A folder includes only headers of folders listed before it.
ROOMS = [
    "base", "data", "io", "device", "kernels", "cuda", "tensor", "autograd", "ops", "optim", "mpi", "comm", "ps", "parallel", "py",
]  # fmt: skip
# The rooms of comm, by levels: a room includes only rooms of levels before its own, so rooms of one level do not know each other.
COMM = [{"net"}, {"memory"}, {"link"}, {"mesh", "algo", "control", "pipe"}, {"group"}, {"nccl"}]
TENSORS = {"tensor", "autograd", "ops", "optim"}  # what comm and ps must not know


def csrc(*suffixes):
    """(room, path, text) of csrc's files, those of the top folder left out."""
    for path in files(*(f"*{s}" for s in suffixes or (".c", ".h", ".def", ".inc", ".cu", ".cuh"))):
        if path.parts[0] == "csrc" and len(path.parts) > 2:
            yield path.parts[1], path, (TOP / path).read_text()


def blanked(pattern, text):
    """What matches becomes blanks; the lines stay where they are."""
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.S)


def code(text, strings=False):
    """C without comments, and without strings unless asked for."""
    text = blanked(r"/\*.*?\*/", text)
    return text if strings else blanked(r'"(?:\\.|[^"\\\n])*"', text)


def hits(pattern, text, path):
    return [f"{path}:{text[: m.start()].count(chr(10)) + 1}: {m[0]}" for m in re.finditer(pattern, text)]


# Rooms of functions and modules that must work for tensors on any device: what they make says on which one.
PLACED = (
    "_functions nn distributions optim amp models autograd _make.py _legacy.py _tensor.py fft.py func.py linalg.py "
    "sparse.py special.py"
).split()
CREATORS = set(
    "arange empty empty_strided eye from_numpy full linspace logspace ones rand randint randn randperm scalar_tensor "
    "tensor zeros".split()
)
PLACELESS = {  # functions of the rooms that may make tensors without device=, or read NumPy's view of one
    "_functions/_register.py array_of": "the way to the host",
    "_functions/rearrange.py block_diag": "of no tensors",
    "_legacy.py __array_wrap__": "NumPy's results are on the host",
    "distributions/transforms.py __init__": "one number, which goes wherever it is used",
    "fft.py _computed": "moves it",
    "models/llama.py rotations": "makes a buffer, as the layers do: on the default device",
    "models/transformer.py positions": "makes a buffer, as the layers do: on the default device",
    "nn/init.py orthogonal_": "copies it into the tensor",
    "nn/parameter.py __new__": "of no data",
    "nn/utils/clip_grad.py get_total_norm": "of no tensors",
}


def placeless(text):
    """(line, function) of calls of a creator without device=, and of numpy() of a tensor that may be on a GPU."""

    def search(node, function):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute):
                of, name = child.func.value, child.func.attr
                makes = name in CREATORS and isinstance(of, ast.Name) and of.id in ("_C", "pydist")
                if makes and not any(k.arg in ("device", None) for k in child.keywords):
                    yield child.lineno, function
                if name == "numpy" and ast.unparse(of) != "dtype":
                    yield child.lineno, function
            yield from search(
                child, getattr(child, "name", function) if isinstance(child, ast.FunctionDef) else function
            )

    return list(search(ast.parse(text), ""))


def test_what_is_made_says_on_which_device():
    made = "def f(x):\n return _C.arange(3) + x.new_zeros(3) + pydist.zeros(3, device=x.device) + _C.full((), 1, **x)\n"
    assert placeless(made) == [(2, "f")] and placeless("x.detach().numpy()") == [(1, "")]
    found = []
    for path in files("*.py"):
        if path.parts[0] == "pydist" and path.parts[1] in PLACED:
            found += [
                (f"{'/'.join(path.parts[1:])} {name}", line) for line, name in placeless((TOP / path).read_text())
            ]
    assert [at for at in found if at[0] not in PLACELESS] == []
    assert {name for name, _ in found} == set(PLACELESS)


def test_there_is_something_to_check():
    assert {room for room, _, _ in csrc()} <= set(ROOMS) and len(list(csrc())) > 50


def test_folders_include_only_what_stands_above_them():
    wrong = []
    for room, path, text in csrc():
        for target in re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.M):
            if not (TOP / "csrc" / target).is_file():
                wrong.append(f"{path}: {target} is no path below csrc")
            elif ROOMS.index(target.split("/")[0]) > ROOMS.index(room):
                wrong.append(f"{path}: {target}")
            elif room in ("comm", "ps") and target.split("/")[0] in TENSORS:
                wrong.append(f"{path}: {target}: {room} knows no tensor")
    assert not wrong


def test_rooms_of_comm_include_only_what_stands_above_them():
    level = {room: n for n, rooms in enumerate(COMM) for room in rooms}
    wrong = []
    for room, path, text in csrc():
        if room == "comm":
            here = path.parts[2]
            assert len(path.parts) == 4 and here in level, f"{path}: no room of comm"
            for there, target in re.findall(r'^\s*#\s*include\s+"(?=comm/(\w+)/)([^"]+)"', text, re.M):
                if there != here and level[there] >= level[here]:
                    wrong.append(f"{path}: {target}")
    assert not wrong


def test_rooms_of_comm_define_what_they_declare():
    """So that the order of includes is the order of calls, too."""
    homes, count, wrong = {}, 0, []
    for room, path, text in csrc(".c", ".h"):
        if room == "comm":
            for name in re.findall(r"^(?:static inline )?[\w ]+[ *](pd_\w+)\([^;{}]*\) \{", code(text), re.M):
                homes[name] = path.parts[2]
    for room, path, text in csrc(".h"):
        if room == "comm":
            for name in re.findall(r"^[\w ]+[ *](pd_\w+)\([^;{}]*\)[^;{}]*;", code(text), re.M):
                count += 1
                if homes.get(name) != path.parts[2]:
                    wrong.append(f"{path}: {name} is defined in {homes.get(name)}")
    assert len(homes) > 150 and count > 150 and not wrong


def test_rooms_of_py_do_not_include_each_other():
    """py/tensor, py/autograd and py/comm stand side by side; py's own files may use all of them."""
    wrong = []
    for room, path, text in csrc():
        if room == "py" and len(path.parts) > 3:
            for target in re.findall(r'^\s*#\s*include\s+"py/(\w+)/[^"]+"', text, re.M):
                if target != path.parts[2]:
                    wrong.append(f"{path}: py/{target}")
    assert not wrong


def test_only_py_knows_python():
    wrong = []
    for room, path, text in csrc():
        if room != "py":
            wrong += hits(
                r"#\s*include\s*<(Python|structmember|numpy/.*)\.h>|\bPy(Err|GILState|Object|Eval|Mem)?_?[A-Z]\w*\b",
                code(text),
                path,
            )
        elif path.name != "numpy.c":
            wrong += hits(r"#\s*include\s*<numpy/", code(text), path)
    assert not wrong


def test_below_py_nobody_prints_or_ends_the_process():
    """_exit stands in forked children only: base/spawn.c."""
    wrong = []
    for room, path, text in csrc():
        if room != "py":
            pattern = r"\b(f|vf|d|v)?printf\s*\(|\b(f?puts|putchar|perror|exit|quick_exit|abort|assert)\s*\("
            wrong += hits(pattern if path.name == "spawn.c" else pattern + r"|\b_exit\s*\(", code(text), path)
    assert not wrong


def test_autograd_names_no_op():
    names = "|".join(name for name, *_ in _C.op_table())
    pattern = rf'\bPD_OP_\w+|\bPD_DEF\b|\bpd_op_({names})\b|"({names})"'
    assert len(hits(pattern, 'PD_OP_X pd_op_exp /* pd_op_exps */ "exp"', "")) == 3
    wrong = []
    for room, path, text in csrc():
        if room == "autograd":
            wrong += hits(pattern, code(text, strings=True), path)
    assert not wrong


# What a thread may keep between calls: a state or memory of its own. No argument of a call travels there.
THREAD_LOCALS = {
    "autograd/apply": {  # its selective checkpoint; the mode of DTensors; what it carries on between kernels
        "pd_selecting",
        "pd_parts_are_plain",
        "pd_between_kernels",
    },  # fmt: skip
    "autograd/autocast": {"pd_autocast", "region"},  # the mode, and the casts of its region
    "autograd/engine": {"current"},  # the backward that it runs
    "autograd/program": {"pd_recorder_here", "text"},  # its recording; a message
    "autograd/record": {"pd_recorder_here", "reason"},  # its recording, and why that was refused
    "parallel/shares": {"now"},  # gradients that wait for the end of this thread's backward
    "autograd/rehearse": {"rehearsing", "text"},  # its rehearsal; a message
    "autograd/tape": {"pd_grad_mode", "pd_saved_pack", "dying", "looping"},  # modes, and a loop that frees
    "base/mem": {"mine", "scratch"},
    "base/profile": {"thread", "pd_timespan_mark"},  # its number; the length of the program that it records
    "base/rng": {"mine", "my_shard", "is_own"},
    "base/status": {"error"},
    "base/threads": {"own", "inside"},
    "comm/group/queue": {"here", "calls"},  # its address is the thread's name; how often it has called each collective
    "comm/group/readers": {"here"},  # the same
    "parallel/between": {"groups", "looked"},  # whose works it carries on, and when it has last done so
    "device/cpu": {"pd_device_here"},
    "device/cuda": {"here"},  # its stream, and what its op has got so far
    "device/device": {"pd_device_here"},
    "kernels/onednn/lib": {"starved"},  # why its last plan failed
    "mpi/mpi": {"reason"},
    "py/autograd/saved": {"hooks"},
    "py/autograd/selected": {"chooser"},
    "py/tensor/create": {"by_default"},  # the device that the thread has set
    "py/raise": {"caught"},
    "tensor/shape": {"texts", "turn"},  # of error messages
    "tensor/storage": {"pd_inference_mode"},
}


def test_thread_locals_carry_no_arguments():
    """Each _Thread_local of csrc is a state that stands in the list above, and the list names no other."""
    found = {}
    for _, path, text in csrc():
        for m in re.finditer(r"_Thread_local\b([^;{=]*)(\{[^}]*\}[^;=]*)?", code(text)):
            name = re.findall(r"\(\*(\w+)\)", m[1]) or re.findall(r"(\w+)\s*(?:\[[^\]]*\])*\s*$", m[2] or m[1])
            found.setdefault(str(path.relative_to("csrc").with_suffix("")), set()).add(name[0])
    assert found == THREAD_LOCALS, "pass it as an argument, or say above what state of the thread it is"


def test_environment_variables_are_rows():
    """Only base/ reads the environment, and PYDIST_* only base/flags.c, by its rows."""
    wrong = []
    for room, path, text in csrc():
        if path.name != "flags.c":
            wrong += hits(
                r'getenv\s*\("PYDIST_\w*' if room == "base" else r"getenv\s*\(", code(text, strings=True), path
            )
    assert not wrong


def test_time_and_threads_go_through_os():
    """Clocks, sleeps, waits on a word, threads, random bytes and ids: all of csrc asks base/os.h, so that a simulator can
    stand there. Left out: base/spawn.c's pids, of processes that it makes itself."""
    calls = (
        "clock_gettime|gettimeofday|time|nanosleep|clock_nanosleep|usleep|sleep|sched_yield|pthread_create|thrd_create"
    )
    calls += "|pthread_cond_timedwait|pthread_mutex_timedlock|getrandom|getentropy|getpid|gettid"
    wrong = []
    for room, path, text in csrc(".c", ".h", ".inc"):
        if room == "base" and path.stem in ("os", "spawn"):
            continue
        wrong += hits(
            rf"\b({calls})\s*\(|\bSYS_(futex|gettid|getrandom)\b|\bFUTEX_\w+|__builtin_ia32_pause", code(text), path
        )
    assert not wrong


def test_failures_leave_a_trail():
    """PD_TRY, PD_TRY_TO, PD_THEN or PD_TRAIL: each adds its line. A library's own numbers are no statuses."""
    wrong = []
    for _, path, text in csrc(".c", ".inc", ".cu"):
        pattern = r"\bif \(!status\)\s+status = (?!(?:lt|dnn)\.|layout\(&q->)\w*|\bpd_trail\(__FILE__"
        wrong += hits(pattern, code(text), path)
    assert not wrong


def test_headers_begin_with_their_contract():
    """A comment of a sentence, at least; what comes after its end is no contract."""
    contracts = {path: re.match(r"/\*(.*?)\*/", text, re.S) for _, path, text in csrc(".h", ".def")}
    assert len(contracts) > 100
    assert not [str(path) for path, found in contracts.items() if not found or len(found[1].split()) < 4]


def declared():
    """(name, header) of the functions that headers declare or define."""
    for _, path, text in csrc(".h"):
        for name in re.findall(r"\b(pd_\w+)\s*\((?:[^;{}()]|\([^()]*\))*\)\s*(?:__attribute__[^;{]*)?[;{]", code(text)):
            yield name, path


def test_declared_functions_are_called():
    """By somebody in csrc: tests are no reason to keep a function."""
    texts = {path: code(text) for _, path, text in csrc()}
    uses = Counter(word for text in texts.values() for word in re.findall(r"\b(?:pd_|VN\()\w+", text))
    for text in texts.values():  # a declaration or definition is no call
        uses.subtract(re.findall(r"^(?![\s#])[\w\s*]*\b(pd_\w+)\s*\(", text, re.M))
    for name in [name for name in uses if re.match("pd_v[fd]_", name)]:
        uses[name] += uses["VN(" + name[6:]]  # kernels/cpu/lib/each_type.h
    found = list(declared())
    assert len(found) > 800 and not [f"{path}: {name}" for name, path in found if uses[name] <= 0]


def test_lines_fit():
    """In C; tables (.def) and kernels for the GPU have rows that are easier to read as one line."""
    long = [f"{path}:{n}" for _, path, text in csrc(".c", ".h", ".inc")
            for n, line in enumerate(text.split("\n"), 1) if len(line) > 120]  # fmt: skip
    assert not long, "over 120 columns (clang-format --lines=N:N wraps them by .clang-format)"


def functions(text):
    """(name, first line, number of lines) of C's functions, whose last lines are "}" at the margin."""
    lines, start, name = text.split("\n"), None, None
    for i, line in enumerate(lines):
        if start is not None:
            if line.startswith("}"):
                yield name, start + 1, i - start + 1
                start = None
        elif line.endswith("{"):
            first = i
            while first and (lines[first].startswith(" ") or re.match(r"\w[^;{}]*$", lines[first - 1])):
                first -= 1
            found = re.search(r"(\w+)\s*\([^=]*\)\s*\{$", " ".join(lines[first : i + 1]))
            if found:
                start, name = first, found[1]


def test_functions_are_short():
    assert list(functions("int g;\nint f(int x,\n      int y) {\n    if (x) {\n    }\n}\n")) == [("f", 2, 5)]
    found = [
        (count, f"{path}:{line}: {name}")
        for _, path, text in csrc(".c", ".h", ".inc", ".cu", ".cuh")
        for name, line, count in functions(code(text))
    ]
    long = [where for count, where in found if count > 80]
    assert len(found) > 2500 and not long, "over 80 lines"


def test_every_op_has_a_row():
    """A descriptor without a row in ops.def would be dead code."""
    table = {name for name, *_ in _C.op_table()}
    made = {
        m
        for room, _, text in csrc(".c")
        if room == "ops"
        for m in re.findall(r"^const pd_op pd_op_(\w+) = {", text, re.M)
    }
    assert len(made) > 100 and made <= table


def imported(tree):
    """(line, name) of the modules of pydist that Python code names: in imports, also in functions, in import_module("...")
    and as pydist.nn."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield node.lineno, f"{node.value.id}.{node.attr}"


def uses_nn(text):
    return [line for line, name in imported(ast.parse(text)) if re.match(r"pydist\.nn\b[\w.]*$", name)]


@pytest.mark.parametrize("text", ["import pydist.nn", "from pydist import nn", "from pydist.nn.modules import Module",
                                  "def f():\n import pydist.nn.parallel as p", "import_module('pydist.nn')",
                                  "isinstance(x, pydist.nn.Module)"])  # fmt: skip
def test_the_next_test_can_fail(text):
    assert uses_nn(text)


def test_distributed_does_not_know_nn():
    """nn.parallel stands on distributed, and registers with it (distributed/member.py). Some files have names of what
    stands in nn, most of them PyTorch's, and find it when they are asked for it."""
    aliases = ("distributed/ps/__init__.py", "nn/api/remote_module.py", "algorithms/_checkpoint/checkpoint_wrapper.py", "_composable/fsdp/__init__.py",
               *(f"_composable/{name}.py" for name in ("__init__", "contract", "replicate", "checkpoint_activation")),
               *(f"distributed/tensor/parallel/{name}.py" for name in ("__init__", "api", "loss", "style")),
               *(f"distributed/fsdp/{name}.py" for name in ("__init__", "api", "fully_sharded_data_parallel", "sharded_grad_scaler", "wrap")))  # fmt: skip
    wrong = [f"{path}:{line}" for path in files("*.py") if path.parts[:2] == ("pydist", "distributed") and not str(path).endswith(aliases)
             for line in uses_nn((TOP / path).read_text())]  # fmt: skip
    assert not wrong
    names = {".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in files("*.py")
             if path.parts[:2] == ("pydist", "distributed")}  # fmt: skip
    assert len(names) > 20
    code = f"import sys\nfor name in {sorted(names)}: __import__(name)\nprint('pydist.nn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def at_import(tree):
    """The nodes that run when the module is imported: what stands in functions is left out."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield node
            yield from at_import(node)


def test_no_modules_import_each_other_in_a_circle():
    """At module level; the root package, which has its parts by __getattr__, aside."""
    texts = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): (TOP / path).read_text()
             for path in files("*.py") if path.parts[0] == "pydist"}  # fmt: skip
    arrows = {}
    for name, text in texts.items():
        targets = set()
        for node in at_import(ast.parse(text)):
            if isinstance(node, ast.Import):
                targets |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                whole = {f"{node.module}.{alias.name}" for alias in node.names}
                targets |= whole & texts.keys() or {node.module}
        arrows[name] = (targets & texts.keys()) - {name, "pydist"}
    assert sum(map(len, arrows.values())) > 500
    assert list(TopologicalSorter(arrows).static_order())  # CycleError names the circle


@pytest.mark.parametrize("words", [("format", "--check", "--quiet"), ("check", "--quiet")], ids=lambda words: words[0])
def test_python_is_formatted_and_linted(words):
    """By the ruff that .ci/run names, where it is installed."""
    wanted = re.search(r"ruff==([\d.]+)", (TOP / ".ci/run").read_text())[1]
    ruff = shutil.which("ruff")
    if not ruff or wanted not in subprocess.run([ruff, "--version"], capture_output=True, text=True, check=True).stdout:
        pytest.skip(f"no ruff {wanted}")
    done = subprocess.run([ruff, *words, "."], cwd=TOP, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "what, example, pattern",
    [
        ("unsafe arithmetic", "gcc -O" + "fast", "-f" + "fast-math|-O" + "fast|-funsafe" + "-math|-ffinite" + "-math"),
        ("a machine's path", "in /" + "home/me", r"(?<![\w.$}])/" + r"(home|root|Users|work|mnt|scratch|data)/\w"),
        ("a registry's host", "https://py" + "pi.org", "(py" + r"pi|python" + r"hosted|arti" + r"factory|\bnexus|\banaconda)[\w.-]*\.(org|com|io|net|internal|local)\b|--?(extra-)?index-" + r"url|\b\d+\.\d+\.\d+\.\d+:\d{4}/"),
        ("unfinished work", "TO" + "DO: it", r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX|HA" + r"CK)\b"),
    ],
)  # fmt: skip
def test_no_file_says(what, example, pattern):
    wrong = []
    assert hits(pattern, example, "")
    for path in files(*TEXT):
        wrong += hits(pattern, (TOP / path).read_text(errors="replace"), path)
    assert not wrong, what
