"""One test for each change that pydist.keras makes in Keras. test_keras.py runs this file in a process of its own."""

import collections
import concurrent.futures
import functools
import gzip
import http.server
import importlib
import pickle
import sys
import threading
import time

import numpy as np
import pytest

import pydist
from pydist import compress, distribute, keras

keras.random.uniform((1,))  # Keras keeps the generator that its first draw makes


def module(name):
    return importlib.import_module(f"keras.src.{name}")


@pytest.fixture
def float64():
    """Keras narrows results of float64 to float32 otherwise."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


def test_pydist_keras_is_keras():
    assert keras is sys.modules["keras"] is sys.modules["pydist.keras"]
    from pydist.keras.layers import Dense

    assert Dense is keras.layers.Dense
    assert importlib.import_module("pydist.keras._seams").SEAMS


def test_s1_structures_are_taken_apart_by_optree():
    impl = module("tree.torchtree_impl")
    assert impl.traverse is module("tree.optree_impl").traverse and "optree" in vars(impl)
    point = collections.namedtuple("point", "x y")
    tree = {"b": [1, (2, None)], "a": point(3, {"c": 4})}
    assert keras.tree.flatten(tree) == [3, 4, 1, 2, None]
    paths = [path for path, _ in keras.tree.flatten_with_path(tree)]
    assert paths == [("a", 0), ("a", 1, "c"), ("b", 0), ("b", 1, 0), ("b", 1, 1)]
    assert keras.tree.map_structure(lambda x: x and x + 1, tree) == {"b": [2, (3, None)], "a": point(4, {"c": 5})}
    for leaf in (pydist.ones(2), 1.5, "word", None, np.ones(2)):
        assert keras.tree.flatten(leaf) == [leaf] and not keras.tree.is_nested(leaf)
        assert keras.tree.map_structure(lambda x: [x], leaf)[0] is leaf


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16", "int32", "uint8", "bool", "complex64"])
def test_s2_dtypes_have_keras_names(name):
    dtype = getattr(pydist, name)
    assert keras.backend.standardize_dtype(dtype) == name
    assert keras.ops.cast([0, 1], dtype).dtype is dtype
    assert keras.layers.Dense(2, dtype="float64").compute_dtype == "float64"


def test_s2_float64_is_computed_in_float64_where_the_program_asks_for_it():
    a, b = np.random.default_rng(0).standard_normal((2, 40, 40))
    assert keras.ops.matmul(a, b).dtype is pydist.float32  # as over PyTorch
    keras.config.set_floatx("float64")
    try:
        assert np.array_equal(keras.ops.matmul(a, b).numpy(), pydist.matmul(pydist.tensor(a), pydist.tensor(b)).numpy())
        assert keras.backend.result_type("float64", "float32", int) == "float64"
        assert keras.backend.result_type("int64", int) == "int32"
    finally:
        keras.config.set_floatx("float32")


def write_idx(folder, prefix, images, labels):
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in ((f"{prefix}-images-idx3-ubyte", images), (f"{prefix}-labels-idx1-ubyte", labels)):
        header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
        (folder / f"{name}.gz").write_bytes(gzip.compress(header + array.tobytes()))


@pytest.mark.parametrize("name, folder", [("mnist", "mnist"), ("fashion_mnist", "FashionMNIST/raw")])
def test_s7_mnist_from_local_files(name, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("PYDIST_DATA", str(tmp_path))
    images, labels = np.arange(2 * 784, dtype="uint8").reshape(2, 28, 28), np.array([3, 9], "uint8")
    write_idx(tmp_path / folder, "train", images, labels)
    write_idx(tmp_path / folder, "t10k", images[:1], labels[:1])
    train, test = getattr(keras.datasets, name).load_data()
    assert np.array_equal(train[0], images) and train[1].tolist() == [3, 9] and test[0].shape == (1, 28, 28)
    file = tmp_path / folder / "train-labels-idx1-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(ValueError, match=f"{file}: damaged or cut short"):
        getattr(keras.datasets, name).load_data()


@pytest.mark.parametrize("form", ["binary", "python"])
def test_s7_cifar_from_local_files(form, tmp_path, monkeypatch):
    monkeypatch.setenv("PYDIST_DATA", str(tmp_path))
    pixels, labels = np.random.default_rng(0).integers(0, 256, (2, 3072), "uint8"), np.array([[7, 1], [8, 2]], "uint8")
    ten, hundred = tmp_path / "cifar-10", tmp_path / f"cifar-100-{form}"
    for folder in (ten, hundred):
        folder.mkdir()
    for name in ("data_batch_1", "test_batch"):
        if form == "binary":
            (ten / f"{name}.bin.gz").write_bytes(gzip.compress(np.hstack([labels[:, :1], pixels]).tobytes()))
        else:
            (ten / name).write_bytes(pickle.dumps({b"data": pixels, b"labels": labels[:, 0].tolist()}))
    for name in ("train", "test"):
        if form == "binary":
            (hundred / f"{name}.bin").write_bytes(np.hstack([labels, pixels]).tobytes())
        else:
            batch = {"data": pixels, "coarse_labels": labels[:, 0].tolist(), "fine_labels": labels[:, 1].tolist()}
            (hundred / name).write_bytes(pickle.dumps(batch))
    with pytest.warns(UserWarning, match="cifar-10: no data_batch_2.*; the files that are there are used"):
        train, test = keras.datasets.cifar10.load_data()
    wanted = pixels.reshape(2, 3, 32, 32).transpose(0, 2, 3, 1)
    assert np.array_equal(train[0], wanted) and train[1].tolist() == test[1].tolist() == [[7], [8]]
    assert keras.datasets.cifar100.load_data()[0][1].tolist() == [[1], [2]]
    assert keras.datasets.cifar100.load_data("coarse")[0][1].tolist() == [[7], [8]]
    with pytest.raises(ValueError, match="`label_mode` must be one of"):
        keras.datasets.cifar100.load_data("rough")
    file = next(hundred.glob("train*"))
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(ValueError, match=f"{file}: "):
        keras.datasets.cifar100.load_data()


def test_s7_downloads_end(tmp_path):
    """One of several processes or threads downloads; without an answer the error names the file and its hash."""
    asked = []

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            time.sleep(0.2)
            self.send_response(200)
            self.send_header("Content-Length", "5")
            self.end_headers()
            self.wfile.write(b"short" if self.path == "/good" else b"cut")

        def log_message(self, *args):
            pass

    get = functools.partial(keras.utils.get_file, cache_dir=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever).start()
        origin = f"http://127.0.0.1:{server.server_port}"
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            files = list(pool.map(lambda _: get("good", f"{origin}/good"), range(4)))
        assert len(asked) == 1 and {open(file).read() for file in files} == {"short"}
        with pytest.raises(Exception, match=f"3 of 5 bytes came .expected a network, or this file at {tmp_path}"):
            get("bad", f"{origin}/bad")
        server.shutdown()
    assert not (tmp_path / "datasets" / "bad").exists()
    with pytest.raises(RuntimeError, match=f"this file at {tmp_path}/datasets/gone.*, whose hash is abc"):
        get("gone", f"{origin}/gone", file_hash="abc")


@pytest.mark.parametrize("name", ["model.keras", "model.h5", "model.weights.h5"])
def test_damaged_files_are_named(name, tmp_path):
    """Any byte of an HDF5 file, and those of a zip file that change what is read. h5py reads what is written here."""
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(4)])
    path, copy = tmp_path / name, tmp_path / f"copy-{name}"
    (model.save_weights if "weights" in name else model.save)(path)

    def weights(path):
        if "weights" not in name:
            return keras.models.load_model(path).get_weights()
        model.load_weights(path)
        return model.get_weights()

    whole, content = weights(path), path.read_bytes()
    rng = np.random.default_rng(0)
    for at in rng.integers(0, len(content), 40):
        flipped = bytearray(content)
        flipped[at] ^= 1 << rng.integers(8)
        copy.write_bytes(flipped)
        try:
            same = [np.array_equal(a, b) for a, b in zip(weights(copy), whole, strict=True)]
            assert name == "model.keras" and all(same), at
        except ValueError as error:
            assert str(error).startswith(f"{copy}: damaged"), error
    for size in (0, 1, 100, len(content) // 2, len(content) - 100):  # the last one is an HDF5 file without our end
        copy.write_bytes(content[:size])
        with pytest.raises(ValueError, match=f"^{copy}: damaged"):
            weights(copy)
    with pytest.raises((OSError, ValueError), match="missing"):
        weights(tmp_path / f"missing-{name}")


def test_files_without_our_end_are_read(tmp_path):
    """Those that Keras writes elsewhere."""
    h5py = pytest.importorskip("h5py")
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(4)])
    model.save_weights(path := tmp_path / "model.weights.h5")
    with h5py.File(path, "r") as file:
        assert "layers" in file
    content = path.read_bytes()
    path.write_bytes(content[:-46])
    assert b"pydist sha256" in content[-46:] and b"pydist" not in path.read_bytes()
    before = model.get_weights()
    model.set_weights([weight + 1 for weight in before])
    model.load_weights(path)
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))


@pytest.mark.parametrize("name", ["Conv2D", "MaxPooling2D", "AveragePooling2D"])
@pytest.mark.parametrize("padding", ["valid", "same"])
def test_images_stay_in_their_layout(name, padding):
    """Results and gradients are in memory as Keras has them, and are those of channels first."""
    rng = np.random.default_rng(0)
    options = (3, 3) if name == "Conv2D" else (3, 1)
    images, found = rng.normal(size=(2, 8, 7, 4)).astype("float32"), []
    weights = [rng.normal(size=size).astype("float32") for size in ((3, 3, 4, 3), (3,))] if name == "Conv2D" else []
    for form in ("channels_last", "channels_first"):
        layer = getattr(keras.layers, name)(*options, padding=padding, data_format=form)
        x = pydist.tensor(images)
        x = (x if form == "channels_last" else x.permute(0, 3, 1, 2).contiguous()).requires_grad_()
        layer.build(x.shape)
        layer.set_weights(weights)
        y = layer(x)
        grad = pydist.autograd.grad(y.square().sum(), x)[0]
        if form == "channels_last":
            assert y.is_contiguous() and grad.is_contiguous()
            y, grad = y.permute(0, 3, 1, 2), grad.permute(0, 3, 1, 2)
        found.append((y, grad))
    for ours, theirs in zip(*found, strict=True):
        pydist.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("activation", [None, "relu", "tanh"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"padding": "same", "strides": 2},
        {"groups": 2, "dilation_rate": 2},
        {"data_format": "channels_first"},
        {"padding": "same", "data_format": "channels_first", "dilation_rate": (1, 2)},
    ],
)
def test_s12_convolutions_add_their_bias(options, activation, float64):
    """Against Keras' own operations, one after the other."""

    class Apart(keras.layers.Conv2D):
        def convolution_op(self, inputs, kernel):
            calls.append(1)
            return super().convolution_op(inputs, kernel)

    calls, results = [], []
    x = pydist.randn(
        *(2, 4, 9, 10) if "data_format" in options else (2, 9, 10, 4), dtype=pydist.float64
    ).requires_grad_()
    layers = [kind(6, (3, 2), activation=activation, **options) for kind in (keras.layers.Conv2D, Apart)]
    weights = [pydist.randn(3, 2, 4 // options.get("groups", 1), 6).numpy(), pydist.randn(6).numpy()]
    for layer in layers:
        layer.build(x.shape)
        layer.set_weights(weights)
        y = layer(x)
        loss = (y * pydist.arange(y.numel(), dtype=pydist.float64).reshape(y.shape)).sum()
        results.append([y, *pydist.autograd.grad(loss, [x, layer.kernel.value, layer.bias.value])])
    assert calls
    for ours, theirs in zip(*results, strict=True):
        pydist.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-11)


def test_s12_one_operation_makes_the_output():
    layer = keras.layers.Conv2D(8, 3, activation="relu")
    x = pydist.randn(2, 9, 9, 3)
    layer(x)
    with pydist.profiler.profile() as record:
        layer(x)
    names = {event.name for event in record.events()}
    assert "conv2d" in names and "add" not in names, names


def test_s8_other_frameworks_are_out_of_reach(monkeypatch):
    """Also where they are there: a module of that name changes nothing."""
    monkeypatch.setitem(sys.modules, "tensorflow", pydist)
    utils = module("utils.module_utils")
    for name in ("tensorflow", "jax", "gfile"):
        assert not getattr(utils, name).available
    with pytest.raises(ImportError, match="tensorflow is not used by Keras over pydist"):
        utils.tensorflow.Tensor
    assert utils.h5py.available


def test_s9_one_seed_gives_each_replica_numbers_of_its_own():
    """But outside of replicas the same numbers, for the weights."""
    strategy = distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    def masks():
        with strategy.scope():
            layer = keras.layers.Dropout(0.5, seed=1)
        found = strategy.run(lambda: [layer(pydist.ones(100), training=True) for _ in range(2)])
        return [mask.tolist() for call in found for mask in strategy.experimental_local_results(call)]

    first = masks()
    assert len({str(mask) for mask in first}) == 4 and masks() == first
    assert all(30 < mask.count(0) < 70 for mask in first)
    for draw in (keras.random.normal, keras.random.uniform):
        assert draw((5,), seed=1).tolist() == draw((5,), seed=1).tolist() != draw((5,), seed=2).tolist()


def test_s10_big_packages_are_imported_when_they_are_used(monkeypatch):
    assert not {"pandas", "sklearn", "matplotlib"} & set(sys.modules)
    array_slicing = module("trainers.data_adapters.array_slicing")
    assert array_slicing.can_slice_array(np.ones(3))
    frames = pytest.importorskip("pandas")
    assert array_slicing.can_slice_array(frames.Series([1.0])) and array_slicing.can_slice_array(frames.DataFrame())
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rows = frames.DataFrame({"a": [0.0, 1.0, 2.0], "b": [1.0, 0.0, 1.0]})
    assert model.predict(rows, verbose=0).shape == (3, 1)
    model.fit(rows, frames.Series([1.0, 0.0, 1.0]), verbose=0)


FUSED = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("Adam", {}),
    ("Adam", {"amsgrad": True, "epsilon": 1e-3}),
    ("AdamW", {"weight_decay": 0.1}),
    ("Nadam", {"epsilon": 1e-3}),
    ("Adamax", {"epsilon": 1e-3}),
    ("Adadelta", {"epsilon": 1e-3}),
    ("RMSprop", {"epsilon": 1e-3}),
    ("RMSprop", {"momentum": 0.9, "centered": True, "epsilon": 1e-3}),
    ("Adagrad", {"epsilon": 1e-3}),
    ("Lion", {"weight_decay": 0.1}),
    ("Adam", {"clipnorm": 0.5, "use_ema": True}),
    ("SGD", {"momentum": 0.9, "gradient_accumulation_steps": 2}),
]


@pytest.mark.parametrize("name, options", FUSED)
def test_s5_a_step_is_one_call_with_keras_formula(name, options, float64, monkeypatch):
    """In float64, against Keras' update_step, which a subclass gets. The rate changes between steps."""
    made = getattr(keras.optimizers, name)
    calls = []
    call = {"Adamw": "adam", "Nadam": "moments"}.get(name.capitalize(), name.lower()) + "_step"
    fused = getattr(pydist._C, call)
    monkeypatch.setattr(pydist._C, call, lambda *args, **kwargs: calls.append(1) or fused(*args, **kwargs))
    rng = np.random.default_rng(0)
    start = [rng.normal(size=shape) for shape in ((3, 4), (), (5,))]
    rows = [[rng.normal(size=value.shape) for value in start] for _ in range(6)]
    results = []
    for cls in (made, type("Plain", (made,), {})):
        optimizer = cls(keras.optimizers.schedules.ExponentialDecay(0.01, 1, 0.5), **options)
        variables = [keras.Variable(value) for value in start]
        for grads in rows:
            optimizer.apply([keras.ops.convert_to_tensor(g, "float64") for g in grads], variables)
        results.append([*(variable.numpy() for variable in variables), *(v.numpy() for v in optimizer.variables)])
    assert len(calls) == (3 if "gradient_accumulation_steps" in options else 6)
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)


def test_shortcuts_give_what_keras_gives(monkeypatch):
    """On both sides of each border."""
    core = module("backend.torch.core")
    x, variable = pydist.ones(2), keras.Variable([1.0, 2.0])
    assert core.convert_to_tensor(x) is x and core.convert_to_tensor(variable) is variable.value
    assert core.convert_to_tensor(x, "float64").dtype is pydist.float64 and core.convert_to_tensor([1, 2]).tolist() == [
        1,
        2,
    ]
    with pytest.raises(ValueError, match="sparse"):
        core.convert_to_tensor(x, sparse=True)
    with keras.device("meta"):
        assert core.convert_to_tensor(x).is_meta and variable.value.is_meta and core.get_device() == "meta"
    assert core.get_device() == "cpu" and not variable.value.is_meta
    with keras.StatelessScope([(variable, x)]):
        assert variable.value.tolist() == [1.0, 1.0]
    with module("backend.common.variables").AutocastScope("bfloat16"):
        assert variable.value.dtype is pydist.bfloat16
    names = [None, "float16", float, int, np.float64, np.dtype("uint8"), pydist.int32]
    wanted = ["float32", "float16", "float32", "int32", "float64", "uint8", "int32"]
    assert [keras.backend.standardize_dtype(name) for name in names * 2] == wanted * 2
    for bad in ("float31", object):
        with pytest.raises(ValueError, match="Invalid dtype"):
            keras.backend.standardize_dtype(bad)
    layer = keras.layers.Dense(2)
    layer.note = 1
    layer.note = "word"
    assert layer.note == "word" and "note" in vars(layer)
    layer.note = keras.layers.Dense(3)
    layer.note = None
    assert layer.note is None


def test_s5_variables_of_several_dtypes():
    variables = [keras.Variable([1.0, 2.0], dtype=dtype) for dtype in ("float32", "float64", "float32")]
    optimizer = keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 1.0))
    optimizer.apply([pydist.ones(2, dtype=pydist.float64) for _ in variables], variables)
    for variable in variables:
        np.testing.assert_allclose(variable.numpy(), [0.9, 1.9], rtol=1e-6)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_s11_recurrent_layers_run_in_c(name, masked, backwards, float64, monkeypatch):
    """Against Keras' own steps through time, use_cudnn=False: results and gradients, also of states that are given."""
    rng = np.random.default_rng(0)
    calls = []
    recurrent = pydist.nn.functional.recurrent
    monkeypatch.setattr(pydist.nn.functional, "recurrent", lambda *args: calls.append(1) or recurrent(*args))
    mask = np.array([[1, 1, 1, 1], [0, 1, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]], bool) if masked else None
    for options in (
        {},
        {"return_sequences": True, "return_state": True, "use_bias": False},
        {"zero_output_for_mask": True},
    ):
        layers = [
            getattr(keras.layers, name)(3, go_backwards=backwards, use_cudnn=cudnn, **options)
            for cudnn in ("auto", False)
        ]
        for layer in layers:
            layer.build((4, 4, 2))
        layers[0].set_weights([rng.normal(size=weight.shape) for weight in layers[0].get_weights()])
        layers[1].set_weights(layers[0].get_weights())
        start = rng.normal(size=(4, 4, 2)), *rng.normal(size=(2 if name == "LSTM" else 1, 4, 3))
        for states in (0, len(start) - 1):
            results = []
            for layer in layers:
                x, *given = (pydist.tensor(value, requires_grad=True) for value in start[: states + 1])
                outs = keras.tree.flatten(layer(x, initial_state=given or None, mask=mask))
                loss = sum((out * (k + 1)).square().sum() for k, out in enumerate(outs))
                leaves = [x, *given, *(v.value for v in layer.trainable_variables)]
                results.append([*outs, *pydist.autograd.grad(loss, leaves)])
            for ours, theirs in zip(*results, strict=True):
                pydist.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)
    assert len(calls) == (4 if masked else 6)


def test_s11_other_forms_stay_keras():
    x = np.ones((2, 3, 4), "float32")
    for options in ({"activation": "relu"}, {"recurrent_dropout": 0.5}, {"stateful": True}):
        assert keras.layers.LSTM(5, **options)(x).shape == (2, 5)
    assert keras.layers.GRU(5, reset_after=False)(x).shape == (2, 5)
    layer = keras.layers.Bidirectional(keras.layers.LSTM(5, return_sequences=True), dtype="mixed_bfloat16")
    assert layer(x).shape == (2, 3, 10) and layer(x).dtype is pydist.bfloat16


# What pydist adds to Keras.


@pytest.mark.parametrize("own", [False, True])
def test_pruning_by_a_schedule(own):
    layers = [keras.layers.Input((20,)), keras.layers.Dense(30, activation="relu"), keras.layers.Dense(3)]
    model = keras.Sequential(layers)
    model.compile(optimizer="adam", loss="mse")
    seen, schedule = [], compress.PolynomialDecay(0.0, 0.8, 0, 30, frequency=5)
    callback = compress.PruningCallback(schedule, [model.layers[0].kernel] if own else None)

    class Count(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append([int((v.numpy() == 0).sum()) for v in callback.variables])

    x = np.random.default_rng(0).standard_normal((64, 20)).astype("float32")
    before = [v.numpy().copy() for v in model.variables]
    model.fit(x, x[:, :3], batch_size=8, epochs=4, verbose=0, callbacks=[callback, Count()])
    sizes, share, want = [600, 90][: 1 if own else 2], 0.0, []
    for step in range(1, 33):
        share = schedule.sparsity(step) if schedule.is_due(step) else share
        want.append([round(share * size) for size in sizes])
    assert seen == want and callback.sparsity() == pytest.approx(0.8)
    assert any((v.numpy() != b).any() for v, b in zip(model.variables, before, strict=True))
    with pytest.raises(ValueError, match="no variables named 'kernel'"):
        empty = keras.Sequential([keras.layers.Input((20,)), keras.layers.Rescaling(2.0)])
        empty.compile(loss="mse")
        empty.fit(x, x, epochs=1, verbose=0, callbacks=[compress.PruningCallback(schedule)])
