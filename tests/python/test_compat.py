"""`import torch` meaning pydist: the hook, the command, its children, the check, and PyTorch's settings."""

import os
import subprocess
import sys
import textwrap

import pytest

import pydist


def run(tmp_path, text, *command, **env):
    """A script's output, run by `command` (default: python -m pydist.compat)."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(text))
    command = command or (sys.executable, "-m", "pydist.compat", str(script))
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env={**os.environ, **env})


def test_a_script_of_pytorch_runs_unchanged(tmp_path):
    done = run(
        tmp_path,
        """
        import sys
        import torch
        import torch.nn as nn
        import torch.nn.functional as F
        import torch.optim as optim
        from torch.utils.data import DataLoader, TensorDataset
        from torch import no_grad
        import pydist

        assert torch.nn is nn is pydist.nn and F is pydist.nn.functional and torch.Tensor is pydist.Tensor
        assert pydist.nn.__spec__.name == "pydist.nn" and torch.__version__.startswith("2.")
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        optimizer = optim.SGD(model.parameters(), lr=0.5)
        x = torch.randn(64, 4)
        y = (x[:, 0] > 0).long()
        for epoch in range(20):
            for a, b in DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(a), b)
                loss.backward()
                optimizer.step()
        with no_grad():
            print("accurate" if (model(x).argmax(1) == y).float().mean() > 0.9 else "not", sys.argv[1:])
        """,
        sys.executable, "-m", "pydist.compat", str(tmp_path / "script.py"), "--lr", "1",
    )  # fmt: skip
    assert done.stdout == "accurate ['--lr', '1']\n", done.stderr


def test_a_module_and_a_main_guard(tmp_path):
    done = run(
        tmp_path,
        """
        if __name__ == "__main__":
            import torch
            print(torch.ones(2).sum().item(), __file__.endswith("script.py"))
        """,
        sys.executable, "-m", "pydist.compat", "-m", "script",
    )  # fmt: skip
    assert done.stdout == "2.0 True\n", done.stderr


def test_children_inherit_it(tmp_path):
    done = run(
        tmp_path,
        """
        import subprocess, sys
        import torch
        import torch.multiprocessing as mp

        def child(x, queue):
            import torch, pydist
            queue.put((torch.Tensor is pydist.Tensor, x.sum().item()))

        if __name__ == "__main__":
            queue = mp.get_context("spawn").Queue()
            process = mp.get_context("spawn").Process(target=child, args=(torch.ones(3), queue))
            process.start()
            print(queue.get(timeout=60))
            process.join()
            text = "import torch.nn, pydist; print(torch.nn is pydist.nn)"
            print(subprocess.run([sys.executable, "-c", text], capture_output=True, text=True).stdout, end="")
        """,
    )
    assert done.stdout == "(True, 3.0)\nTrue\n", done.stderr


def test_tensorboardx_is_our_writer_where_it_is_not_installed(tmp_path):
    text = """
        import json, os, subprocess, sys
        from tensorboardX import SummaryWriter
        import tensorboardX

        with SummaryWriter("logs", flush_secs=1) as writer:
            writer.add_scalar("loss", 1.0, 1)
            writer.add_scalars("both", {"a": 1, "b": 2.0}, 3)
            writer.export_scalars_to_json("all.json")
        writer.add_scalar("loss", 1.0, 2)  # a new file
        writer.close()
        SummaryWriter(log_dir="nothing", write_to_disk=False).add_scalar("loss", 1.0, 1)
        with open("all.json") as file:
            rows = json.load(file)
        print(tensorboardX.__name__, sorted(os.listdir("logs"))[:2], len(os.listdir("logs")), os.path.exists("nothing"))
        print({name: rows[0][1:] for name, rows in rows.items()})
        print(subprocess.check_output([sys.executable, "-c", "import tensorboardX; print(tensorboardX.__name__)"], text=True))
        """
    done = run(tmp_path, text)
    name = "pydist.compat.tensorboardx"
    assert done.stdout.split("\n") == [
        f"{name} ['both_a', 'both_b'] 4 False", "{'logs/both/a': [3, 1.0], 'logs/both/b': [3, 2.0]}", name, "", ""
    ], done.stderr  # fmt: skip
    (tmp_path / "tensorboardX.py").write_text("SummaryWriter = 'installed'")
    done = run(tmp_path, "import tensorboardX; print(tensorboardX.SummaryWriter)")
    assert done.stdout == "installed\n", done.stderr


def test_libraries_find_the_version_of_the_package(tmp_path):
    done = run(
        tmp_path,
        """
        import subprocess, sys
        from importlib.metadata import version
        import torch, torchvision
        print(version("torch") == torch.__version__, version("torchvision") == torchvision.__version__)
        code = "from importlib.metadata import version; print(version('torch'))"
        print(subprocess.check_output([sys.executable, "-c", code], text=True).strip() == torch.__version__)
        """,
    )
    assert done.stdout == "True True\nTrue\n", done.stderr


def test_what_is_missing_says_so_at_use(tmp_path):
    done = run(
        tmp_path,
        """
        import torch
        for use in (lambda: torch.onse(2), lambda: torch.nn.Linaer):
            try:
                use()
            except AttributeError as error:
                print(error)
        try:
            import torch.nonsense
        except ImportError as error:
            print(error)
        try:
            from torch.nn import Linearr
        except ImportError as error:
            print("ImportError")
        """,
    )
    lines = done.stdout.splitlines()
    assert lines[0].startswith("pydist has no torch.onse, near:") and "ones" in lines[0], done.stderr
    assert "Linaer" in lines[1] and lines[2].startswith("pydist has no module torch.nonsense")
    assert lines[3] == "ImportError"


def test_a_failing_script_fails(tmp_path):
    done = run(tmp_path, "import torch\nraise SystemExit(3)")
    assert done.returncode == 3
    done = run(tmp_path, "import torch\ntorch.ones(2) @ torch.ones(3)")
    assert done.returncode == 1 and "script.py" in done.stderr


def test_check_reads_and_does_not_run(tmp_path):
    done = run(
        tmp_path,
        """
        import torch, torch.nn as nn
        from torch.nn import functional as F
        from torch.optim import Nonesuch
        open("ran", "w")
        x = torch.zeros(2).nonexistent_method()
        nn.Linear(2, 2)
        F.relu(x)
        nn.functional.reluu(x)
        torch.nonsense.more(x)
        torch.zeros.whatever
        def f(nn):
            return nn.anything
        for F in ():
            F.anything
        """,
        sys.executable, "-m", "pydist.compat", "--check", str(tmp_path / "script.py"),
    )  # fmt: skip
    lines = [line.partition("script.py:")[2] for line in done.stdout.splitlines()]
    assert done.returncode == 1 and not (tmp_path / "ran").exists()
    assert [line.partition(",")[0] for line in lines[:3]] == [
        "4: no torch.optim.Nonesuch",
        "9: no torch.nn.functional.reluu",
        "10: no torch.nonsense",
    ]
    assert "near: relu" in lines[1] and done.stdout.splitlines()[-1] == "1 files, 3 names missing"
    (tmp_path / "script.py").write_text("import torch\ntorch.ones(2)\n")
    again = subprocess.run([sys.executable, "-m", "pydist.compat", "--check", tmp_path], capture_output=True)
    assert again.returncode == 0


def test_pytest_plugin(tmp_path):
    (tmp_path / "conftest.py").write_text("import torch\n")
    test = "import torch, pydist\ndef test_it():\n    assert torch.Tensor is pydist.Tensor\n"
    (tmp_path / "test_it.py").write_text(test)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "pydist.compat", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


def test_pytorch_imported_before_is_an_error(tmp_path):
    (tmp_path / "torch.py").write_text("")
    text = "import torch\nfrom pydist import compat\ncompat.install()"
    done = run(tmp_path, "", sys.executable, "-c", text)
    assert done.returncode == 1 and "torch is already imported" in done.stderr


def test_environment_is_a_copy():
    from pydist.compat import environment

    once = environment({"PYTHONPATH": "elsewhere", "A": "1"})
    assert environment(once) == once and once["PYTHONPATH"].endswith(os.pathsep + "elsewhere") and once["A"] == "1"


# Settings


def test_there_is_no_gpu_and_it_is_said():
    assert not pydist.cuda.is_available() and pydist.cuda.device_count() == 0 and pydist.cuda.memory_allocated() == 0
    assert pydist.accelerator.current_accelerator() is None and not pydist.backends.mps.is_available()
    pydist.cuda.manual_seed(0)
    pydist.cuda.empty_cache()
    cuda = pydist.cuda
    for call in (cuda.synchronize, cuda.current_device, lambda: cuda.set_device(0), cuda.Stream):
        with pytest.raises(RuntimeError, match="no CUDA device"):
            call()


def test_random_states_are_tensors_of_bytes():
    state, generator = pydist.get_rng_state(), pydist.Generator().manual_seed(3)
    assert (
        state.dtype is pydist.uint8 and generator.get_state().dtype is pydist.uint8 and generator.device.type == "cpu"
    )
    with pydist.random.fork_rng():
        drawn = pydist.rand(3)
    assert pydist.equal(pydist.get_rng_state(), state) and pydist.equal(pydist.rand(3), drawn)
    generator.set_state(state.clone())
    assert pydist.equal(pydist.rand(3, generator=generator), drawn)
    pydist.random.set_rng_state(state)
    assert pydist.equal(pydist.rand(3), drawn)
    assert pydist.seed() == pydist.initial_seed() != pydist.random.seed()
    for wrong in (
        state[:3], state.float(), state.repeat(2)[::2], pydist.zeros(2, 10, dtype=pydist.uint8), (1, 2), None,
    ):  # fmt: skip
        with pytest.raises(TypeError, match="get_rng_state|argument"):
            pydist.set_rng_state(wrong)


def test_hub_reads_files_by_their_url(tmp_path, monkeypatch):
    assert pydist.hub.HASH_REGEX.search("model-5c106cde.pth")[1] == "5c106cde"
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    (tmp_path / "source").mkdir()
    pydist.save({"a": pydist.ones(2)}, tmp_path / "source" / "m-00.pt")
    url = (tmp_path / "source" / "m-00.pt").as_uri()
    for _ in range(2):
        assert pydist.hub.load_state_dict_from_url(url)["a"].tolist() == [1, 1]
        (tmp_path / "source" / "m-00.pt").unlink(missing_ok=True)  # the second time it is there
    assert (tmp_path / "hub" / "checkpoints" / "m-00.pt").is_file()
    with pytest.raises(RuntimeError, match="failed"):
        pydist.hub.load_state_dict_from_url(url, tmp_path / "other")
    pydist.save({}, tmp_path / "source" / "m-00.pt")
    with pytest.raises(RuntimeError, match="invalid hash"):
        pydist.hub.load_state_dict_from_url(url, tmp_path / "other", check_hash=True)
    with pytest.raises(RuntimeError, match="does not run code"):
        pydist.hub.load("owner/name", "model")


def test_compilers_return_what_they_are_given():
    def f(x):
        return x

    assert pydist.compile(f) is f and pydist.compile(mode="max-autotune")(f) is f
    assert pydist.jit.script(f) is f and pydist.jit.ignore(f) is f and pydist.jit.ignore(drop=True)(f) is f
    assert pydist.compiler.disable(f) is f and pydist.compiler.disable()(f) is f
    assert pydist.jit.annotate(int, 3) == 3 and pydist.jit.Final[int] and pydist.jit.annotations.List[int]
    assert not isinstance(pydist.ones(1), pydist.fx.Proxy) and pydist.fx.symbolic_trace(f)(3) == 3
    with pytest.raises(AttributeError, match="pydist has no fx.traceback"):
        pydist.fx.traceback
    pydist._assert(True, "never")
    with pytest.raises(AssertionError, match="said"):
        pydist._assert(False, "said")
    assert pydist.vmap is pydist.func.vmap and pydist.nn.modules.batchnorm.SyncBatchNorm is pydist.nn.SyncBatchNorm


def test_settings():
    assert pydist.get_float32_matmul_precision() == "highest"
    pydist.set_float32_matmul_precision("high")
    assert pydist.get_float32_matmul_precision() == "high"
    pydist.set_float32_matmul_precision("highest")
    with pytest.raises(RuntimeError, match="expected 'highest'"):
        pydist.set_float32_matmul_precision("best")
    pydist.use_deterministic_algorithms(True)
    assert pydist.are_deterministic_algorithms_enabled()
    assert pydist.is_tensor(pydist.ones(1)) and not pydist.is_tensor(1)
    assert pydist.is_floating_point(pydist.ones(1)) and not pydist.is_complex(pydist.ones(1))
    assert pydist.pi > 3 and pydist.inf > pydist.e and pydist.nan != pydist.nan and pydist.newaxis is None
    assert pydist.version.cuda is None and pydist.version.__version__ == pydist.__version__


def test_strict_gives_the_lists_of_pytorch(torch, monkeypatch):
    from pydist.utils.data import DataLoader, DistributedSampler, random_split

    monkeypatch.setenv("PYDIST_COMPAT_STRICT", "1")
    for size in (1, 2, 5, 10, 103):
        for options in ({}, {"seed": 7}, {"drop_last": True}, {"shuffle": False}):
            for rank in range(3):
                ours = DistributedSampler(range(size), 3, rank, **options)
                theirs = torch.utils.data.DistributedSampler(range(size), 3, rank, **options)
                for epoch in (None, None, 3):
                    if epoch:
                        ours.set_epoch(epoch)
                        theirs.set_epoch(epoch)
                    batches = DataLoader(range(size), 1, sampler=ours)
                    assert [int(b) for b in batches] == list(theirs), (size, options)
    for seed in (0, 42, 1 << 40):
        ours = random_split(range(11), [4, 7], pydist.Generator().manual_seed(seed))
        theirs = torch.utils.data.random_split(range(11), [4, 7], torch.Generator().manual_seed(seed))
        assert [part.indices for part in ours] == [part.indices for part in theirs]


def test_strict_samplers_and_loaders_give_the_lists_of_pytorch(torch, monkeypatch):
    """From a generator, from the default one, through a loader; several epochs of each."""
    monkeypatch.setenv("PYDIST_COMPAT_STRICT", "1")

    def lists(lib, seed, size):
        data, generator = lib.utils.data, lib.Generator().manual_seed(seed)
        weights = [float(i % 5) for i in range(2, size + 2)]
        lib.manual_seed(seed)
        several = [
            data.RandomSampler(range(size)),
            data.RandomSampler(range(size), generator=generator),
            data.RandomSampler(range(size), num_samples=size + 3, generator=generator),
            data.RandomSampler(range(size), replacement=True, num_samples=70),
            data.RandomSampler(range(size), replacement=True, generator=generator),
            data.SubsetRandomSampler(list(range(10, 10 + size)), generator=generator),
            data.WeightedRandomSampler(weights, 40, generator=generator),
            data.DataLoader(range(size), 4, shuffle=True),
            data.DataLoader(range(size), 3, shuffle=True, generator=generator, drop_last=True),
            data.DataLoader(range(size), 2, sampler=data.SubsetRandomSampler(range(size))),
        ]
        epochs = [[lib.as_tensor(x).tolist() for x in one] for one in several for epoch in range(3)]
        return epochs + [list(part.indices) for part in data.random_split(range(size), [size - 2, 2])]

    for seed, size in ((0, 6), (1234, 40), (-5, 101)):
        assert lists(pydist, seed, size) == lists(torch, seed, size), (seed, size)


def test_launcher(tmp_path):
    """--compat and --cpu-as-cuda; torch.distributed.run as a program."""
    text = """
        import os
        import torch, torch.distributed as dist
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        x = torch.ones(1)
        dist.all_reduce(x)
        if os.environ["RANK"] == "0":
            print(int(x), torch.cuda.device_count())
        dist.destroy_process_group()
        """
    for module, *options in (
        ("pydist.run", "--compat", "--cpu-as-cuda", "2"),
        ("torch.distributed.run", "--standalone"),
    ):
        command = [sys.executable, "-m", module, "--nproc-per-node", "2", *options, str(tmp_path / "script.py")]
        env = pydist.compat.environment({}) if module.startswith("torch") else {}
        done = run(tmp_path, text, *command, **env)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split()[-2:] == (["2", "2"] if options[0] == "--compat" else ["2", "0"])


def test_more_settings(torch):
    with pytest.raises(RuntimeError):
        pydist.set_default_device("cuda")
    pydist.set_default_device("cpu")
    assert pydist.get_default_device() == pydist.device("cpu") and pydist.get_num_interop_threads() == 1
    for lib in (pydist, torch):
        with lib.device("cpu") as d, lib.device("cpu"):
            assert d == lib.zeros(1).device == lib.get_default_device()
        with pytest.raises((RuntimeError, AssertionError)), lib.device("cuda"):  # torch: not compiled with CUDA
            lib.zeros(1)
        assert lib.zeros(1).device == lib.get_default_device() == lib.device("cpu")
    with pytest.raises(RuntimeError, match="positive"):
        pydist.set_num_interop_threads(0)
    for value in (3, "a", int):
        assert pydist.typename(value) == torch.typename(value)
    assert pydist.typename(pydist.ones(1)) == "torch.FloatTensor" and pydist.set_flush_denormal(True) is False
    cuda = pydist.backends.cuda
    with cuda.sdp_kernel(enable_flash=False):
        assert not cuda.flash_sdp_enabled() and cuda.math_sdp_enabled()
    assert cuda.flash_sdp_enabled()
    from pydist.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]), sdpa_kernel(SDPBackend.MATH):
        pass
    with pytest.raises(TypeError, match="SDPBackend"), sdpa_kernel("math"):
        pass


def test_flat_tensors(torch):
    from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

    from pydist import _utils as ours

    parts = [[[1.0, 2.0]], [3.0], [[4.0], [5.0]]]
    flat = ours._flatten_dense_tensors([pydist.tensor(p) for p in parts])
    assert flat.tolist() == _flatten_dense_tensors([torch.tensor(p) for p in parts]).tolist()
    views = ours._unflatten_dense_tensors(flat, [pydist.tensor(p) for p in parts])
    assert (
        [v.tolist() for v in views]
        == parts
        == [v.tolist() for v in _unflatten_dense_tensors(torch.arange(1.0, 6.0), [torch.tensor(p) for p in parts])]
    )
    assert list(ours._accumulate([1, 2, 3])) == [1, 3, 6]


def test_compilers_settings(tmp_path):
    done = run(
        tmp_path,
        """
        import torch
        import torch._inductor.config as config
        import torch._dynamo

        config.coordinate_descent_tuning = True
        torch._dynamo.config.suppress_errors = True
        torch._inductor.config.fx_graph_cache = True
        torch._dynamo.reset()
        print(torch._inductor.config.coordinate_descent_tuning, torch._dynamo.is_compiling())
        """,
    )
    assert done.stdout == "True False\n", done.stderr


def test_names_are_looked_up_once(tmp_path):
    done = run(
        tmp_path,
        """
        import torch
        import torchvision
        import pydist

        assert "ones" not in vars(torch) and torch.ones is pydist.ones and vars(torch)["ones"] is pydist.ones
        assert torch.vmap is pydist.func.vmap and torchvision.datasets is vars(torchvision)["datasets"]
        torch.ones = 3  # a program's own
        assert torch.ones == 3 and pydist.ones(1).sum() == 1
        del torch.ones
        assert torch.ones is pydist.ones
        for _ in range(2):
            try:
                torch.onez
            except AttributeError as error:
                print(error)
        """,
    )
    assert done.stdout == "pydist has no torch.onez, near: ones\n" * 2, done.stderr
