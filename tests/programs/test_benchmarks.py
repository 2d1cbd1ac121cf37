"""The benchmarks' harness: peers, pairs, discarded repeats, tables. Their figures are not tested here."""

import json
import sys
from pathlib import Path

import pytest

import pydist

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import against, paired, report
from benchmarks.__main__ import parse
from benchmarks.workloads import WORKLOADS, load, ops
from benchmarks.workloads.training import Training


def test_a_workload_counts_its_products_and_names_its_bits():
    mlp = Training(pydist, "mlp", "float32")
    want = 2 * 64 * (2 * 784 * 128 + 3 * 128 * 10)  # the gradient of the input is not computed
    assert mlp.flops() == want
    fresh = [Training(pydist, "mlp", "float32") for _ in range(2)]
    for training in fresh:
        training.step()
    assert fresh[0].hash() == fresh[1].hash() == mlp.hash() != Training(pydist, "mlp", "float32").hash()
    assert all(load(name)[0].make for name in WORKLOADS)


def test_single_ops_run():
    assert len(ops.OPS) > 80
    for name in ops.OPS:
        for backward in (False, True):
            op = ops.Op(pydist, name, 1 << 10, backward)
            assert op.bytes > 0
            if op.step:
                op.step()


class Fake:
    def __init__(self, framework, seconds):
        self.framework, self.seconds, self.calls = framework, seconds, []

    def time(self, calls):
        self.calls.append(calls)
        return self.seconds


def test_repeats_count_only_while_the_machine_is_ours(monkeypatch):
    peers = [Fake("pydist", 0.1), Fake("torch", 0.001)]
    monkeypatch.setattr(paired.time, "sleep", lambda seconds: None)
    probes = iter([2.0, 2.0, 1.2, 1.9, 1.95, 1.9])
    monkeypatch.setattr(paired, "probe", lambda: next(probes))
    found, discarded = paired.paired(peers, 3)
    # the one that ended, and the one that began, busy
    assert found == {"pydist": [0.1] * 3, "torch": [0.001] * 3} and discarded == 2
    assert peers[0].calls[-1] == 4 and 350 < peers[1].calls[-1] < 450
    monkeypatch.setattr(paired, "probe", lambda: 1.0)
    with pytest.raises(paired.MachineBusy, match="machine busy: 10 repeats"):
        paired.paired(peers, 3)
    assert paired.spread([3.0, 1.0, 2.0, 4.0, 5.0]) == (3.0, 2.0) and paired.spread([7.0]) == (7.0, 0.0)


def test_a_peer_in_its_process():
    assert 0 < paired.probe(bytes(1 << 14), 8) < 3
    peer = paired.Peer("pydist", 1)
    try:
        peer.ask("workload", "mlp", "float32")
        ((found, peak),) = peer.ask("after", 2)
        again = Training(pydist, "mlp", "float32")
        again.step()
        again.step()
        assert found == again.hash() and 0 < peak < 1 << 30 and 0 < peer.time(2) < 5
        assert peer.ask("op", "add", 1024, False) == [3 << 12] and peer.ask("op", "lt", 1024, True) == [None]
        with pytest.raises(RuntimeError, match="KeyError: 'nothing'"):
            peer.ask("workload", "nothing", "float32")
    finally:
        peer.close()
    assert peer.process.returncode == 0


def test_reports(tmp_path, capsys):
    common = {"name": "mlp", "dtype": "float32", "threads": 2, "ranks": 1, "repeats": 3, "discarded": 1, "flops": 10**9, "share": 0.5,
              "seconds": [0.1], "iqr": 0.001, "peak": 3 << 20, "hash": "abc", "hashes": {"first": "abc", "1 thread": "abd"}}  # fmt: skip
    results = [{**common, "framework": "pydist", "median": 0.1, "ratio": 1.0, "same": False},
               {**common, "framework": "torch", "median": 0.25, "ratio": 2.5, "same": True}]  # fmt: skip
    report.print_workload(results)
    report.print_ops([{"name": "exp", "size": 1024, "median": 1e-6, "peer": 1.2e-6, "ratio": 1.2, "rate": 1e9, "share": 0.1},
                      {"name": "add", "size": 1024, "median": 2e-6, "peer": 1e-6, "ratio": 0.5, "rate": 1e9, "share": 0.1}], "torch")  # fmt: skip
    report.write(tmp_path / "figures.json", {"repeats": 3}, {"bytes": 1.0}, results)
    said = capsys.readouterr().out
    assert (
        "torch, 2.50 times pydist's time" in said
        and "BITS DIFFER" in said
        and "10 GFLOP/s ( 50%)" in said
        and "3.0 MiB" in said
    )
    assert "50.0% of 2 cases take at most 1.1 of torch's time, the slowest 2.00; over 1.1: add 1024" in said
    written = json.loads((tmp_path / "figures.json").read_text())
    assert written["results"][1]["ratio"] == 2.5 and written["machine"]["cores"] >= 1
    pytest.importorskip("matplotlib")
    report.plot(tmp_path / "figures.png", results)
    assert (tmp_path / "figures.png").read_bytes().startswith(b"\x89PNG")


def test_slower_than_a_commit_is_what_its_own_noise_does_not_explain(capsys):
    before, again = [1.0, 1.0, 1.0, 1.0, 1.0], [0.99, 1.0, 1.01, 1.02, 0.98]
    peers = {against.BEFORE: before, against.AGAIN: again}
    assert not against.report("case", {against.NOW: [1.0, 1.01, 1.0, 0.99, 1.3], **peers})
    assert against.report("case", {against.NOW: [1.02, 1.03, 1.02, 0.9, 1.02], **peers})
    assert "now/before 1.020 (1.020 to 1.020), before/before 1.000 (0.990 to 1.010): SLOWER" in capsys.readouterr().out


def test_only_steps_of_a_gpu_are_counted(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--count"])
    with pytest.raises(SystemExit):
        parse()
    assert "--count is for --device cuda" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--device", "cuda", "--count", "gpt2"])
    assert parse().count and parse().cases == ["gpt2"]
