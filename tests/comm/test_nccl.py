"""NCCL's library without a GPU: how it is found, what is said where it is not, and, where its wheel is installed (200 MB, so in
.ci/full alone), what the real one does without a driver. Collectives are in tests/gpu."""

import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import pydist
from pydist import _C, _nvidia, info
from pydist import distributed as dist
from pydist._doctor import gpus

ASK = """
import json
from pydist import _C, distributed
distributed.is_nccl_available()
def said(call):
    try:
        return call()
    except RuntimeError as error:
        return str(error)
ids = [said(_C.nccl_unique_id) for _ in range(2)]
print(json.dumps([_C.nccl_version(), _C.nccl_where(), [len(i) for i in ids], ids[0] == ids[1], said(_C.nccl_probe)]))
"""


def ask(library):
    env = {**os.environ, "PYDIST_NCCL": str(library)}
    done = subprocess.run([sys.executable, "-c", ASK], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "what, why", [("nothing", "cannot open shared object file"), ("other", "no symbol ncclGetVersion")]
)
def test_a_missing_library_is_named_with_its_wheel(tmp_path, what, why):
    library = tmp_path / "libnccl.so.2" if what == "nothing" else _C.__file__
    version, where, _, _, said = ask(library)
    assert (version, where) == (0, "")
    assert said.startswith("nccl_probe: NCCL: ") and str(library) in said and why in said
    assert "pip install nvidia-nccl-cu13" in said


def wheel():
    """NCCL's file as pip puts it, or None."""
    files = (os.path.join(folder, "nccl/lib/libnccl.so.2") for folder in _nvidia.folders())
    return next(filter(os.path.exists, files), None)


def test_the_real_library_without_a_driver():
    if not wheel():
        pytest.skip("no NCCL wheel here (nvidia-nccl-cu13, 200 MB): the real library is NOT tested")
    if gpus.driver():
        pytest.skip("there is a driver: tests/gpu tests more")
    version, where, sizes, equal, said = ask("")
    assert version >= 22700 and where == wheel()
    assert sizes == [128, 128] and not equal  # which needs no driver
    assert said.startswith("nccl_probe: NCCL: unhandled cuda error (")


CSRC = Path(__file__).resolve().parents[2] / "csrc"
ALIKE = """
#include <stddef.h>
#include <stdint.h>
#include "nccl.h"
#include "device/nccl.h"
#define SAME(theirs, ours) _Static_assert((theirs) == (ours), #theirs)
#define PLACE(theirs, ours) SAME(offsetof(ncclConfig_t, theirs), offsetof(pd_nccl_config, ours))
SAME(sizeof(ncclUniqueId), sizeof(pd_nccl_id));
PLACE(size, size); PLACE(magic, magic); PLACE(version, version); PLACE(blocking, blocking); PLACE(cgaClusterSize, cga_cluster);
PLACE(minCTAs, min_ctas); PLACE(maxCTAs, max_ctas); PLACE(netName, net); PLACE(splitShare, split_share);
SAME(NCCL_CONFIG_UNDEF_INT, INT32_MIN);
SAME(ncclSuccess, PD_NCCL_OK); SAME(ncclInProgress, PD_NCCL_IN_PROGRESS);
SAME(ncclSystemError, 2); SAME(ncclInternalError, 3); SAME(ncclRemoteError, 6); /* comm/nccl/watch.c */
SAME(ncclSum, PD_NCCL_SUM); SAME(ncclProd, PD_NCCL_PRODUCT); SAME(ncclMax, PD_NCCL_MAX); SAME(ncclMin, PD_NCCL_MIN);
SAME(ncclInt8, PD_NCCL_I8); SAME(ncclUint8, PD_NCCL_U8); SAME(ncclInt32, PD_NCCL_I32); SAME(ncclInt64, PD_NCCL_I64);
SAME(ncclFloat16, PD_NCCL_F16); SAME(ncclFloat32, PD_NCCL_F32); SAME(ncclFloat64, PD_NCCL_F64); SAME(ncclBfloat16, PD_NCCL_BF16);
SAME(ncclScalarHostImmediate, PD_NCCL_HOST_SCALAR);
int main(void) {
    ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
    pd_nccl_config ours = PD_NCCL_NONBLOCKING;
    return theirs.magic != ours.magic || ours.version > theirs.version;
}
"""


def kinds(arguments):
    """How each argument is passed: p(ointer), z (a size), i(nt) or u (an identifier, by value)."""
    words = [] if arguments.strip() in ("", "void") else arguments.split(",")
    return "".join("p" if "*" in w or re.search("ncclComm_t|cudaStream_t", w) else "z" if "size_t" in w else "u" if re.search("_id |UniqueId", w) else "i"
                   for w in words)  # fmt: skip


def test_what_we_declare_is_what_the_header_says(tmp_path):
    if not wheel():
        pytest.skip("no NCCL wheel here (nvidia-nccl-cu13, 200 MB): its header is NOT compared")
    header = Path(wheel()).parents[1] / "include/nccl.h"
    theirs = dict(re.findall(r"ncclResult_t\s+nccl(\w+)\(([^)]*)\);", header.read_text()))
    rows = re.findall(r"F\(int, (\w+), \(([^)]*)\)\)", (CSRC / "device/nccl.h").read_text())
    assert len(rows) > 20 and {name: kinds(arguments) for name, arguments in rows} == {
        name: kinds(theirs[name]) for name, _ in rows
    }
    (tmp_path / "cuda_runtime.h").write_text(
        "typedef struct CUstream_st *cudaStream_t; typedef struct CUevent_st *cudaEvent_t;"
    )
    (tmp_path / "cuda_fp16.h").write_text("")
    (tmp_path / "check.c").write_text(ALIKE)
    command = [
        *sysconfig.get_config_var("CC").split(), f"-I{tmp_path}", f"-I{header.parent}", f"-I{CSRC}", "check.c", "-o",
        "check",
    ]  # fmt: skip
    subprocess.run(command, check=True, cwd=tmp_path)
    subprocess.run([tmp_path / "check"], check=True)


def test_version_as_text():
    assert _nvidia.nccl_version_text(22809) == "2.28.9"


def test_without_a_device_the_backend_says_so():
    if pydist.cuda.is_available():
        pytest.skip("there is a device")
    with pytest.raises(RuntimeError, match="backend 'nccl': there is no CUDA device: .*expected 'gloo'"):
        dist.init_process_group("nccl")
    dist.init_process_group("cpu:gloo,cuda:nccl")
    x = pydist.ones(2)
    dist.all_reduce(x)
    assert x.tolist() == [1.0, 1.0]


def test_reports_name_gpus_and_nccl():
    assert any(line.startswith("NCCL: ") for line in info.lines())
    found = list(gpus.findings())
    assert found[0][1] == "GPU driver" and all(severity in ("ok", "warning", "problem") for severity, _, _ in found)
    if not _C.cuda_count() and not gpus.driver():
        assert found == [("ok", "GPU driver", "no NVIDIA driver: pydist computes on the CPU")]


def test_the_drivers_version(tmp_path):
    file = tmp_path / "version"
    file.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27\nGCC version: 12\n")
    assert gpus.driver(str(file)) == "580.65.06" and gpus.driver(str(tmp_path / "no")) is None


LINKS = "\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\nGPU0\t X \tNV18\tSYS\tPIX\t0-47\nGPU1\tNV18\t X \tSYS\tSYS\t0-47\nGPU2\tSYS\tSYS\t X \tSYS\t0-47\nNIC0\tPIX\tSYS\tSYS\t X \t\n"
READS = " \tGPU0\tGPU1\tGPU2\n GPU0\tX\tOK\tCNS\n GPU1\tOK\tX\tCNS\n GPU2\tCNS\tCNS\tX\n\nLegend:\n"


def test_how_gpus_reach_each_other():
    assert gpus.pairs(LINKS) == {(0, 1): "NV18", (0, 2): "SYS", (1, 2): "SYS"}
    said = list(gpus.reach_findings(gpus.pairs(LINKS), gpus.pairs(READS)))
    assert [severity for severity, _, _ in said] == ["ok", "warning"]
    assert (
        "2 by SYS, 1 by NV18" in said[0][2]
        and "GPUs 0 and 2, 1 and 2 cannot read each other's memory (CNS)" in said[1][2]
    )
    assert list(gpus.reach_findings({}, {})) == []
