"""Arguments whose methods change, while they are read, what is read: lists that empty themselves, lengths that lie."""

import threading

import pytest

import pydist


class Real:
    """A number that does something when it is asked for."""

    def __init__(self, act, value=1):
        self.act, self.value = act, value

    def __float__(self):
        self.act()
        return float(self.value)


class Whole(Real):
    def __index__(self):
        self.act()
        return self.value


def fails():
    raise ZeroDivisionError("on purpose")


def test_lists_of_tensors_are_read_as_they_were():
    def later():
        tensors.clear()
        junk.extend(pydist.full((1 << 16,), 7.0) for _ in range(8))

    for call in (lambda: pydist.cat(tensors, Whole(later, 0)), lambda: pydist.stack(tensors, Whole(later, 0))):
        tensors, junk = [pydist.ones(1 << 16) for _ in range(4)], []
        out = call()
        assert out.numel() == 4 << 16 and (out == 1).all() and not tensors


def test_a_list_of_tensors_may_lose_some_in_another_thread():
    def churn():
        while not stop.is_set():
            buffer.append(pydist.ones(n))
            buffer.pop(0)
            pydist.full((n,), 5.0)

    n, stop = 1 << 19, threading.Event()
    buffer = [pydist.ones(n) for _ in range(8)]
    thread = threading.Thread(target=churn)
    thread.start()
    try:
        outs = [pydist.cat(buffer) for _ in range(10)]  # each gives up the GIL
    finally:
        stop.set()
        thread.join()
    assert all((out == 1).all() and out.numel() % n == 0 for out in outs)


def test_a_tensor_may_get_other_memory_in_another_thread():
    def churn():
        for k in range(10**9):
            if stop.is_set():
                break
            x.data = pydist.full((n,), float(k % 100))

    n, stop = 1 << 22, threading.Event()
    x = pydist.ones(n)
    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(20):
            y = x * 2  # gives up the GIL
            assert y.min() == y.max()
    finally:
        stop.set()
        thread.join()


def test_lists_of_sizes_are_read_as_they_were():
    sizes = []
    sizes += [Whole(sizes.clear, 2), *[1] * 7]
    assert pydist.zeros(sizes).shape == (2, 1, 1, 1, 1, 1, 1, 1) and not sizes
    sizes += [Whole(sizes.clear, 2), 3]
    assert pydist.ones(6).view(sizes).shape == (2, 3) and not sizes


def test_sequences_that_change_while_a_tensor_is_made_of_them():
    def grow():
        data.extend([2.0] * 100_000)

    class Lies:
        def __init__(self):
            self.asked = 0

        def __len__(self):
            self.asked += 1
            return 3 if self.asked < self.honest else 100_000

        def __getitem__(self, i):
            return 1.0

    data = []
    data += [Real(lambda: len(data) > 9 or grow(), 1.0)]
    with pytest.raises(RuntimeError, match="changed while they were read"):
        pydist.tensor(data)
    for Lies.honest in range(1, 8):
        try:
            assert pydist.tensor([Lies(), [1.0] * 3]).shape == (2, 3)
        except (RuntimeError, ValueError) as e:
            assert "changed while" in str(e) or "lengths" in str(e)
    rows = [[1.0, 2.0], [Real(lambda: rows.__setitem__(0, 5.0)), 2.0]]  # a row that becomes a number
    with pytest.raises(RuntimeError, match="changed while they were read"):
        pydist.tensor(rows)
    rows = [[1.0, Real(lambda: rows.__setitem__(1, [[3.0], [4.0]]))], [3.0, 4.0]]
    with pytest.raises((RuntimeError, ValueError), match="changed while they were read|lengths"):
        pydist.tensor(rows)


def test_what_an_argument_raises_is_what_the_caller_sees():
    x = pydist.ones(3)

    class Unsized:
        def __len__(self):
            fails()

        def __getitem__(self, i):
            fails()

    for call in (
        lambda: pydist.tensor([Real(fails)]),
        lambda: pydist.tensor(Unsized()),
        lambda: x + Real(fails),
        lambda: x.add_(Real(fails)),
        lambda: pydist.full((2,), Real(fails)),
        lambda: pydist.zeros([Whole(fails)]),
        lambda: pydist.cat(fails() for _ in range(2)),
        lambda: x.__setitem__(0, Real(fails)),
        lambda: x.__setitem__(0, Unsized()),
    ):
        with pytest.raises(ZeroDivisionError, match="on purpose"):
            call()
    assert x.tolist() == [1, 1, 1]


def test_more_elements_than_memory_are_refused_at_once():
    with pytest.raises(MemoryError):
        pydist.tensor(range(1 << 50))


def test_an_index_that_grows_while_the_others_are_read():
    """A mask of no dimensions stands behind all 16; by its turn it has one."""
    x, mask = pydist.zeros((1,) * 16), pydist.tensor(False)

    def grow():
        mask.data = pydist.tensor([False])

    with pytest.raises(IndexError):
        x[[Whole(grow, 0)], ..., mask]


def test_the_truth_of_an_argument_may_raise():
    class Odd:
        def __bool__(self):
            fails()

    x = pydist.ones(2)
    for call in (
        lambda: x.to(copy=Odd()),
        lambda: x.to("cpu", non_blocking=Odd()),
        lambda: pydist.zeros(2, requires_grad=Odd()),
        lambda: x.sum(0, keepdim=Odd()),
        lambda: x.requires_grad_(Odd()),
    ):
        with pytest.raises(ZeroDivisionError, match="on purpose"):
            call()
    with pytest.raises(RuntimeError, match="ambiguous"):
        x.to("cpu", non_blocking=x)


def test_devices_have_a_hash_and_sizes_a_product():
    """-1 is no hash: CPython took it for an exception that nobody had set."""
    for index in range(-300, -1):
        with pytest.raises(RuntimeError, match="index"):
            pydist.device("cuda", index)
    for text in ("cuda:128", "cuda:4294967296", "cuda:-1", "cuda:99999999999999999999"):
        with pytest.raises(RuntimeError, match="device is"):
            pydist.device(text)
    assert len({hash(pydist.device("cuda", i)) for i in range(128)}) == 128
    with pytest.raises(TypeError, match="numel"):
        pydist.Size(("a", Whole(fails))).numel()
    with pytest.raises(OverflowError):
        pydist.Size((2**62, 4)).numel()


def test_what_only_the_package_calls_is_not_pydists():
    for name in (
        "cuda_event_free", "storage_view", "shared_open", "spawn", "session_kill", "die_with", "fault", "comm_init",
    ):  # fmt: skip
        assert hasattr(pydist._C, name) and not hasattr(pydist, name)
    for name in (
        "add", "Tensor", "zeros", "grad", "DistError", "from_dlpack", "set_num_threads", "float32", "Generator",
    ):  # fmt: skip
        assert getattr(pydist, name) is getattr(pydist._C, name)


def test_numbers_that_cuda_did_not_give_are_refused():
    C = pydist._C
    for number in (2**32, 2**70, -1, 5, "a", None):
        for call in (
            lambda n: C.cuda_event_free(n),
            lambda n: C.cuda_event_between(n, n),
            lambda n: C.cuda_event_record(n, 0, 0),
            lambda n: C.cuda_graph_launch(n, 0, 0),
            lambda n: C.cuda_graph_free(n),
        ):
            with pytest.raises(ValueError, match="not a live"):
                call(number)
        for call in (C.cuda_stream_wait, C.cuda_stream_done):
            there = pydist.cuda.is_available()
            with pytest.raises(
                ValueError if there else RuntimeError, match="not a live" if there else "no CUDA device"
            ):
                call(0, number)


def test_numbers_that_would_take_hours():
    x, huge = pydist.ones(3), 2**62
    for call in (
        lambda: pydist.tensor_split(x, 2**40),
        lambda: pydist.chunk(x[:0], 2**40),
        lambda: pydist.split(x[:1].expand(2**40), 1),
        lambda: pydist.unbind(x[:1].expand(2**40)),
        lambda: pydist.repeat_interleave(x, 2**53),
        lambda: pydist.repeat_interleave(x, [1, 2**53, 1]),
        lambda: pydist.repeat_interleave(x, huge),
        lambda: pydist.combinations(pydist.ones(60), 30),
        lambda: pydist.combinations(x, huge, with_replacement=True),
        lambda: pydist.matrix_power(pydist.ones(1, 1), 2 ** (10**6)),
        lambda: pydist.tensordot(x, x, range(huge)),
        lambda: pydist.nn.functional.unfold(pydist.ones(1, 1, 1, 1), 2**13, padding=2**12),
        lambda: pydist.nn.functional.pdist(x.reshape(3, 1)[:1].expand(2**40, 1)),
    ):
        with pytest.raises((RuntimeError, ValueError, OverflowError, MemoryError)):
            call()
    assert pydist.diff(x, n=huge).shape == (0,) and pydist.diff(x, n=2).tolist() == [0]
    assert pydist.combinations(x, 2**30).shape == (0, 2**30)
    assert pydist.polygamma(2**53 + 1, pydist.ones(1)).item() == pydist.inf


def test_repeats_one_by_one():
    x = pydist.tensor([5, 6, 7, 8])
    for repeats in (
        [0, 2, 0, 3], [1, 0, 0, 0], [0, 0, 0, 0], [3, 1, 1, 0], (2,), 2, pydist.tensor(1),
        pydist.tensor([0, 0, 0, 2]),
    ):  # fmt: skip
        counts = repeats.tolist() if isinstance(repeats, pydist.Tensor) else repeats
        counts = [counts] * 4 if isinstance(counts, int) else list(counts) * (4 // len(counts))
        want = [v for v, k in zip(x.tolist(), counts) for _ in range(k)]
        assert pydist.repeat_interleave(x, repeats).tolist() == want
    assert x[:0].repeat_interleave([]).shape == (0,) and x[:0].repeat_interleave(2).shape == (0,)


def test_a_decomposition_of_infinities_ends():
    """LAPACK's goes round for ever."""
    for value in (pydist.inf, -pydist.inf, pydist.nan):
        for dtype in (pydist.float32, pydist.float64):
            x = pydist.ones(3, 3, dtype=dtype)
            x[0, 0] = value
            for f in (
                pydist.linalg.svd,
                pydist.linalg.svdvals,
                pydist.linalg.pinv,
                pydist.linalg.matrix_rank,
                lambda x: pydist.linalg.lstsq(x, x),
            ):
                with pytest.raises(pydist.linalg.LinAlgError, match="expected finite"):
                    f(x)


def test_sizes_without_end_are_refused():
    class Endless:
        def __getitem__(self, i):
            return 1

    x = pydist.ones(1, 2, 5)
    with pytest.raises((RuntimeError, ValueError, NotImplementedError)):
        pydist.nn.functional.pad(x, Endless())
    with pytest.raises(TypeError, match="tensor_split: got Endless"):
        x.tensor_split(Endless())
    with pytest.raises(pydist.ArgumentError, match="2 values"):
        pydist.nn.functional.conv1d(x, pydist.ones(1, 2, 3), padding=Endless())
