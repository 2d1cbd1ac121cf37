"""The count of a training step: bytes of kernels by hand, launches of the hollow emulator beside those of the one that computes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pydist
from pydist import _C, nn
from pydist.nn import functional as F

if not pydist.cuda.is_available() or _C.pretended_cuda() or pydist.cuda.get_device_name() != "emulated":
    pytest.skip("no emulator", allow_module_level=True)

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP))
from benchmarks import count

TINY = """
from benchmarks import count, cuda
from benchmarks.workloads import gpt
gpt.SIZES["tiny"] = (2, 2, 32, 24, 2, 80)
cuda.ON_CUDA["tiny"] = ("gpt", {"size": "tiny"})
import json
print(json.dumps(count.counted("tiny")))
"""


def kinds_of(work):
    """{kind: (launches, bytes read, bytes written)} of work(), which is done once before."""
    work()
    with count.Counter() as counter:
        work()
    assert count.problems(counter.kinds) == []
    return {name: (kind["launches"], kind["read"], kind["written"]) for name, kind in counter.kinds.items()}


def cuda(*shape, dtype=pydist.float32, **options):
    return pydist.randn(*shape, **options).to("cuda", dtype)


def test_elementwise_kernels_count_each_operand_once():
    x, y, row = cuda(30, 40), cuda(30, 40), cuda(40)
    assert kinds_of(lambda: x + y) == {"add float32": (1, 9600, 4800)}
    assert kinds_of(lambda: x + x) == {"add float32": (1, 4800, 4800)}
    half = y.to(pydist.bfloat16)
    assert kinds_of(lambda: x + half) == {"add float32, mixed": (1, 7200, 4800)}
    assert kinds_of(lambda: x * 2) == {"mul float32": (1, 4800, 4800)}
    assert kinds_of(lambda: x + row) == {"add float32, strided": (1, 4960, 4800)}
    assert kinds_of(lambda: x.clone()) == {"copy float32": (1, 4800, 4800)}
    assert kinds_of(lambda: x.to(pydist.bfloat16)) == {"cast float32 to bfloat16": (1, 4800, 2400)}
    assert kinds_of(lambda: x.t().contiguous()) == {"copy float32, strided": (1, 4800, 4800)}


def test_a_reduction_counts_its_stages():
    x = cuda(10000, dtype=pydist.bfloat16)
    assert kinds_of(x.sum) == {"fold bfloat16": (1, 20000 + 12, 12 + 2)}  # three parts, and their sums
    rows = cuda(300, 40, dtype=pydist.bfloat16)  # a row is five vectors, so eight threads, and 32 of these are a block
    assert kinds_of(lambda: rows[:250].sum(0)) == {"fold bfloat16": (1, 250 * 80, 80)}
    assert kinds_of(lambda: rows.sum(0)) == {"fold bfloat16": (1, 300 * 80 + 2 * 160, 2 * 160 + 80)}


def test_layer_norm_counts_one_pass():
    x, w, b = cuda(50, 24), cuda(24), cuda(24)
    row, stats = 24 * 4, 2 * 50 * 4
    assert kinds_of(lambda: F.layer_norm(x, (24,), w, b)) == {"norm float32": (1, 50 * row + 2 * row, 50 * row + stats)}
    y, g = F.layer_norm(x.requires_grad_(), (24,), w.requires_grad_(), b.requires_grad_()), cuda(50, 24)
    found = kinds_of(lambda: pydist.autograd.grad(y, (x, w, b), g, retain_graph=True))
    parts = 7 * 2 * row  # 50 rows in seven parts, each with sums for w and for b
    assert found["norm float32, backward"] == (1, 2 * 50 * row + stats + row + parts, 50 * row + parts + 2 * row)


def test_a_residual_block_adds_in_the_norms_kernels():
    x, y = cuda(50, 24), cuda(50, 24, dtype=pydist.bfloat16)
    row, stats = 24 * 4, 2 * 50 * 4
    found = kinds_of(lambda: F.add_layer_norm(x, y, (24,)))
    assert found == {"add, norm float32": (1, 50 * row * 1.5, 2 * 50 * row + stats)}
    s, n = F.add_layer_norm(x.requires_grad_(), y.requires_grad_(), (24,))
    found = kinds_of(lambda: pydist.autograd.grad((s, n), (x, y), (cuda(50, 24), cuda(50, 24)), retain_graph=True))
    assert found["norm float32, backward"] == (1, 3 * 50 * row + stats, 50 * row * 1.5)
    assert not any(name.startswith(("add", "cast")) for name in found)
    # norms that stand alone add to the stream's gradient, too
    loss = ((x + F.layer_norm(x, (24,)).sin()) * s.detach()).sum()
    found = kinds_of(lambda: pydist.autograd.grad(loss, x, retain_graph=True))
    assert not any(name.startswith("add") for name in found)


def test_sums_of_logical_shards_read_each_level_once():
    p = pydist.nn.Parameter(cuda(1000))
    reducer = _C.Reducer([p], ["p"], pydist.distributed.group.WORLD, 1 << 20, 1 << 20, _C.Blocks(4, [4]))

    def step():
        for k in range(4):
            reducer.open_shard(k)
            reducer.last_backward()
            (p * p).sum().backward()
            reducer.close_shard()

    # Shards 0 and 2 are written where they belong, 1 is added to one level, 3 to two.
    assert kinds_of(step)["sum in order float32"] == (2, (2 + 3) * 4000, 2 * 4000)


def test_what_is_made_in_passing_needs_no_kernel():
    """Under autocast: casts of norms' results and of the stream's gradient, sums for biases."""
    x = cuda(50, 24).requires_grad_()
    norm, last, first, second = (
        nn.LayerNorm(24).cuda(),
        nn.LayerNorm(24).cuda(),
        nn.Linear(24, 40).cuda(),
        nn.Linear(40, 24).cuda(),
    )

    def step():
        with pydist.autocast("cuda", dtype=pydist.bfloat16):
            y = x + second(F.gelu(first(norm(x))))
            return last(y).sum()

    found = kinds_of(lambda: pydist.no_grad()(step)())
    casts = {kind: numbers for kind, numbers in found.items() if kind.startswith("cast")}
    assert (
        set(casts) == {"cast float32 to bfloat16"} and casts["cast float32 to bfloat16"][0] == 4
    )  # weights and biases
    made = 50 * 96 + 50 * 48 + 2 * 50 * 4  # the result, its copy, mean and 1 / deviation of each row
    assert found["norm float32"] == (1, 50 * 96 + 2 * 96, made)
    assert found["add, norm float32"] == (1, 50 * 96 + 50 * 48 + 2 * 96, 50 * 96 + made)
    loss = step()
    with count.Counter() as counter:
        loss.backward()
    assert not [kind for kind in counter.kinds if kind.startswith(("cast", "fold", "add"))], counter.kinds
    row, found = 24 * 4, counter.kinds["norm float32, backward"]
    assert found["launches"] == 2
    # the gradients, a copy of the last norm's, sums for weight and bias in seven parts, and for the last norm of its copy
    assert found["written"] == 2 * 50 * row + 50 * row / 2 + 7 * (2 + 3) * row + (2 + 3) * row


def test_a_norm_of_a_sum_is_one_launch():
    """Though the program calls them one after the other. Whatever else is called in between launches the sum first."""
    x, y = cuda(50, 24), cuda(50, 24, dtype=pydist.bfloat16)
    row, stats = 24 * 4, 2 * 50 * 4
    joined = {"add, norm float32": (1, 50 * row * 1.5, 2 * 50 * row + stats)}
    apart = {"add float32, mixed": (1, 50 * row * 1.5, 50 * row), "norm float32": (1, 50 * row, 50 * row + stats)}
    assert kinds_of(lambda: F.layer_norm(x + y, (24,))) == joined

    def freed():
        z = x * 1
        s = z + y
        del z
        return F.layer_norm(s, (24,))  # in the memory of z

    assert kinds_of(freed) == {**joined, "mul float32": (1, 50 * row, 50 * row)}
    assert kinds_of(lambda: x + y) == {"add float32, mixed": apart["add float32, mixed"]}  # when the count ends

    def after(call):
        s = x + y
        call()
        return F.layer_norm(s, (24,))

    assert kinds_of(lambda: after(pydist.cuda.synchronize)) == apart
    assert kinds_of(lambda: after(lambda: pydist.cuda.current_stream().cuda_stream)) == apart
    found = kinds_of(lambda: F.layer_norm(x + y[:1], (24,)))
    assert len(found) == 2 and found["norm float32"] == apart["norm float32"]
    x.data_ptr()  # a kernel of somebody else may write it
    assert kinds_of(lambda: F.layer_norm(x + y, (24,))) == apart


def test_cross_entropy_counts_one_pass():
    x, target = (
        cuda(40, 100, dtype=pydist.bfloat16).requires_grad_(),
        pydist.zeros(40, dtype=pydist.int64, device="cuda"),
    )
    found = kinds_of(lambda: F.cross_entropy(x, target))
    # rows, labels, and the sums of loss and weight; the log of the sum of e^, loss and weight of each row, three sums
    assert found["cross_entropy bfloat16"] == (2, 8000 + 40 * 8 + 40 * 16, 40 * 4 + 40 * 16 + 24)
    # backward the loss's gradient and the total weight, too
    loss = F.cross_entropy(x, target)
    found = kinds_of(lambda: pydist.autograd.grad(loss, x, retain_graph=True))
    assert found["cross_entropy bfloat16, backward"] == (1, 8000 + 40 * 8 + 40 * 4 + 2 + 4, 8000)


def test_an_optimizer_counts_its_arrays():
    parameters = [cuda(1000).requires_grad_() for _ in range(3)]
    for p in parameters:
        p.grad = cuda(1000)
    optimizer = pydist.optim.AdamW(parameters)
    assert kinds_of(optimizer.step) == {"adam float32": (1, 3 * 4 * 4000, 3 * 3 * 4000)}


def test_products_count_operations():
    x, w = cuda(20, 30, dtype=pydist.bfloat16), cuda(40, 30, dtype=pydist.bfloat16)
    with count.Counter() as counter:
        F.linear(x, w)
    (found,) = counter.kinds.values()
    assert (found["flops"], found["read"], found["written"]) == (2 * 20 * 30 * 40, 2 * (600 + 1200), 2 * 800)


def test_convolutions_count_operations():
    x, w = cuda(2, 4, 9, 9), cuda(6, 2, 3, 3)
    with count.Counter() as counter:
        F.conv2d(x, w, stride=2, groups=2)
    (found,) = counter.kinds.values()
    results = 2 * 6 * 4 * 4
    assert (found["flops"], found["written"]) == (2 * results * 2 * 9, 4 * results)
    assert found["read"] == 4 * (2 * 4 * 81 + 6 * 2 * 9)


def test_attention_counts_what_causality_leaves():
    q, k, v = (cuda(2, 3, 40, 16, dtype=pydist.bfloat16).requires_grad_() for _ in range(3))
    pairs = 2 * 3 * 40 * 41 // 2
    with count.Counter() as counter:
        F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
    assert counter.kinds["attention bfloat16"]["flops"] == 2 * pairs * 16 * 2  # two products
    assert counter.kinds["attention bfloat16, backward"]["flops"] == 7 * pairs * 16 * 2  # the scores are made twice
    q, k, v = (cuda(2, 3, 40, 136, dtype=pydist.bfloat16).requires_grad_() for _ in range(3))
    with count.Counter() as counter:
        F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
    wide = counter.kinds["attention bfloat16, backward"]
    assert (wide["flops"], wide["launches"]) == (8 * pairs * 136 * 2, 3)  # and once more for gv


def test_slices_share_one_gradient():
    x = cuda(2, 40, 3 * 24, dtype=pydist.bfloat16).requires_grad_()
    q, k, v = (part.view(2, 40, 3, 8).transpose(1, 2) for part in (x * 1).chunk(3, 2))
    loss = F.scaled_dot_product_attention(q, k, v).sin().sum()
    found = kinds_of(lambda: pydist.grad(loss, x, retain_graph=True))
    assert found and not [kind for kind in found if "copy" in kind or "add" in kind]  # attention wrote them there
    first, w = nn.Linear(24, 72).cuda().bfloat16(), cuda(2, 40, 24, dtype=pydist.bfloat16)
    q, k, v = (part.view(2, 40, 3, 8).transpose(1, 2) for part in first(w).chunk(3, 2))
    loss = F.scaled_dot_product_attention(q, k, v).sum()
    found = kinds_of(lambda: pydist.grad(loss, first.bias, retain_graph=True))
    assert found and not [kind for kind in found if kind.startswith("fold")]  # it has summed the columns, too
    a, b = (x * 1).chunk(2, 2)
    loss = a.sin().sum() + b.sin().sum()
    found = kinds_of(lambda: pydist.grad(loss, x, retain_graph=True))
    assert found["copy bfloat16, strided"][0] == 2 and not [kind for kind in found if "add" in kind]


def run(code, hollow):
    libraries = (
        {} if os.environ.get("PYDIST_CUBLASLT") != "none" else {"PYDIST_CUBLASLT": "none", "PYDIST_CUDNN": "none"}
    )
    environment = {**os.environ, **libraries, "EMULATOR_HOLLOW": "1" if hollow else "0"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=TOP, env=environment)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# Formulas that leave something out: numbers of channels and of the step; entries of neighbours; tokens that occur twice.
NEARLY = ("batch_norm", "adam", "put_reduce", "take")
UNSEEN = ("product", "memcpy", "fold bfloat16")  # no kernel of ours; loads that the compiler does not report


@pytest.mark.skipif("FULL_LONG" not in os.environ, reason="builds the emulator: .ci/full runs it")
def test_kernels_touch_the_bytes_that_formulas_say(tmp_path):
    library = tmp_path / "traced.so"
    subprocess.run([sys.executable, TOP / "tests/emulator/build.py", "--traced", library], check=True)
    settings = {"PYDIST_CUDA_LIBRARY": str(library), "PYDIST_CUBLASLT": "none", "PYDIST_CUDNN": "none"}
    environment = {**os.environ, **settings, "PYTHONPATH": f"{TOP}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, Path(__file__).with_name("traced_calls.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert not done.returncode, done.stderr
    wrong = []
    for call, kinds in json.loads(done.stdout.splitlines()[-1]).items():
        wrong += count.problems(kinds)
        for name, kind in kinds.items():
            if any(word in name for word in UNSEEN):
                continue
            for way in ("read", "written"):
                said, touched = kind[way], kind[f"touched {way}"]
                if said != touched if not name.startswith(NEARLY) else abs(said - touched) > 0.04 * touched + 4000:
                    wrong.append(f"{call}: {name}: {said:.0f} bytes {way} (kernels touch {touched:.0f})")
    assert not wrong, "\n".join(wrong)


def test_the_hollow_emulator_counts_what_the_other_one_does():
    full, hollow = run(TINY, False), run(TINY, True)
    assert full["kinds"] == hollow["kinds"] and count.problems(full["kinds"]) == []
    layers, width, tokens, vocabulary = 2, 32, 2 * 24, 80
    products = sum(kind["flops"] for name, kind in full["kinds"].items() if "product" in name)
    assert products == 6 * tokens * (12 * layers * width * width + vocabulary * width)
    attention = sum(kind["flops"] for name, kind in full["kinds"].items() if "attention" in name)
    assert attention == 9 * layers * 2 * (24 * 25 // 2) * width * 2


def test_nothing_is_computed_by_the_hollow_emulator():
    code = """
import json, pydist
x = pydist.ones(1 << 33, device="cuda")  # 32 GiB
y = (x + 1).sum()
print(json.dumps([y.item(), pydist.arange(5, device="cuda").tolist(), pydist.cuda.max_memory_allocated() >= 2 << 35]))
"""
    assert run(code, True) == [0, [0, 0, 0, 0, 0], True]


def test_linear_cross_entropy_has_a_gib_of_logits_at_once():
    """On a GPU; on a CPU it is 64 MiB."""
    code = """
import json, pydist
from benchmarks import count
from pydist.nn import functional as F
def products(rows):
    x, w = (pydist.zeros(n, 8, device="cuda") for n in (rows, 1 << 16))
    with count.Counter() as counter:
        F.linear_cross_entropy(x, w, pydist.zeros(rows, dtype=pydist.int64, device="cuda"))
    return sum(kind["calls"] for name, kind in counter.kinds.items() if "product" in name)
print(json.dumps([products(4096), products(4097)]))
"""
    assert run(code, True) == [1, 2]


def test_a_training_step_of_gpt2_is_counted(capsys):
    found = count.count("gpt2-124M")
    assert count.problems(found["kinds"]) == []
    tokens, width, layers = 32 * 1024, 768, 12
    products = sum(kind["flops"] for name, kind in found["kinds"].items() if "product" in name)
    assert products == 6 * tokens * (12 * layers * width * width + 50304 * width)
    machine = json.loads((TOP / "benchmarks/machines/h200.json").read_text())
    count.report("gpt2-124M", found, machine)
    now = count.totals(machine, found["kinds"])
    then = count.totals(machine, json.loads((TOP / "benchmarks/counted/gpt2-124M.json").read_text())["kinds"])
    assert now["flops"] <= then["flops"] and now["bytes"] < 0.587 * then["bytes"]
    assert now["ms"] < 68.95 and now["launches"] <= 291
    said = capsys.readouterr().out
    assert (
        f"sum: {now['launches']:.0f} launches" in said and f"bytes {now['bytes'] / then['bytes']:.2f}, memory" in said
    )


def test_what_a_machine_needs():
    machine = {"bytes_per_second": 1e12, "flops_per_second": {"product": 1e12, "product bfloat16, backward": 5e11},
               "seconds_per_launch": 1e-3}  # fmt: skip
    kind = {"launches": 3, "read": 1e9, "written": 1e9, "flops": 4e9}
    assert count.milliseconds(machine, "add", kind) == 2
    assert count.milliseconds(machine, "product float32", kind) == 4
    assert count.milliseconds(machine, "product bfloat16, backward", kind) == 8
    sums = count.totals(machine, {"add": kind, "product": kind})
    assert sums == {"launches": 6, "bytes": 4e9, "flops": 8e9, "gpu": 6, "host": 6, "ms": 6}
    assert count.problems({"add": {**kind, "expected": 3}, "mul": {**kind, "expected": 2}})[0].startswith(
        "mul: 3 launches"
    )
