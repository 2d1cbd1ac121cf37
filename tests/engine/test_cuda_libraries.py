"""NVIDIA's libraries where there is no GPU: what we declare of them is what their headers say, they open or say why, and nothing
needs them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pydist
from pydist import _C

CSRC = Path(__file__).resolve().parents[2] / "csrc"
ASK = """
import sys
from pydist import _C
_C.nvidia_paths(sys.argv[1:])
print(*_C.cublaslt_version(), sep="|")
print(*_C.cudnn_version(), sep="|")
"""


def ask(folder, **flags):
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(folder)],
        env={k: v for k, v in os.environ.items() if k not in ("PYDIST_CUBLASLT", "PYDIST_CUDNN")} | flags,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_what_is_missing_is_named(tmp_path):
    if any(version for version, _ in (_C.cublaslt_version(), _C.cudnn_version())):
        pytest.skip("they are here")
    (tmp_path / "cu13/lib").mkdir(parents=True)
    (tmp_path / "cu13/lib/libcublasLt.so.13").write_text("#!")
    lt, dnn = ask(tmp_path)
    assert lt.startswith("None|cuBLASLt: cannot open a library (") and lt.endswith("; pip install nvidia-cublas")
    assert f"{tmp_path}/cu13/lib/libcublasLt.so.13: " in lt and "file too short" in lt
    assert f"{tmp_path}/cudnn/lib/libcudnn.so.9" in dnn and dnn.endswith("; pip install nvidia-cudnn-cu13")
    lt, dnn = ask(tmp_path, PYDIST_CUBLASLT="none", PYDIST_CUDNN=_C.__file__)
    assert (
        lt == "None|cuBLASLt: the library is switched off by its environment variable"
        and "no symbol cudnnCreate" in dnn
        and "cudnn/lib" not in dnn
    )


def test_settings_are_kept():
    before = _C.gpu_settings()
    try:
        pydist.backends.cuda.matmul.allow_tf32 = True
        pydist.backends.cudnn.allow_tf32 = False
        pydist.backends.cudnn.benchmark = True
        assert _C.gpu_settings() == (True, False, True, False, False)
        assert pydist.get_float32_matmul_precision() == "high"
        pydist.set_float32_matmul_precision("medium")
        assert pydist.get_float32_matmul_precision() == "medium"
        pydist.set_float32_matmul_precision("highest")
        assert not pydist.backends.cuda.matmul.allow_tf32
    finally:
        _C.gpu_settings(*before)


def numbers(text):
    """{name: value} of a header's enums that give values."""
    return {
        name: int(value, 0)
        for name, value in re.findall(r"\b(\w+)(?:\s+\w+_DEPRECATED_ENUM)?\s*=\s*(0x[0-9a-fA-F]+|\d+)\b", text)
    }


BEGINNINGS = {  # of cuBLASLt's names: ours, theirs
    "LT_R_": "CUDA_R_", "LT_COMPUTE_": "CUBLAS_COMPUTE_", "LT_OP_": "CUBLAS_OP_", "LT_LAYOUT_": "CUBLASLT_MATRIX_LAYOUT_", "LT_DESC_": "CUBLASLT_MATMUL_DESC_",
    "LT_EPILOGUE_": "CUBLASLT_EPILOGUE_", "LT_PREF_": "CUBLASLT_MATMUL_PREF_", "LT_REDUCTION_": "CUBLASLT_REDUCTION_SCHEME_",
}  # fmt: skip
NAMES = {  # of cuDNN, whose names are long: ours, theirs
    "DNN_FLOAT": "CUDNN_DATA_FLOAT", "DNN_DOUBLE": "CUDNN_DATA_DOUBLE", "DNN_HALF": "CUDNN_DATA_HALF", "DNN_BFLOAT16": "CUDNN_DATA_BFLOAT16",
    "DNN_CROSS_CORRELATION": "CUDNN_CROSS_CORRELATION", "DNN_HEUR_FALLBACK": "CUDNN_HEUR_MODE_FALLBACK", "DNN_HEUR_A": "CUDNN_HEUR_MODE_A",
    "DNN_NOTE_TENSOR_CORE": "CUDNN_NUMERICAL_NOTE_TENSOR_CORE", "DNN_NOTE_DOWN_CONVERT": "CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS",
    "DNN_NOTE_REDUCED_PRECISION": "CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION", "DNN_NOTE_NONDETERMINISTIC": "CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC",
    "DNN_CONVOLUTION": "CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR", "DNN_ENGINE": "CUDNN_BACKEND_ENGINE_DESCRIPTOR", "DNN_ENGINECFG": "CUDNN_BACKEND_ENGINECFG_DESCRIPTOR",
    "DNN_ENGINEHEUR": "CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR", "DNN_PLAN": "CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR",
    "DNN_CONV_FORWARD": "CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR", "DNN_CONV_FILTER": "CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR",
    "DNN_CONV_DATA": "CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR", "DNN_GRAPH": "CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR",
    "DNN_PACK": "CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR", "DNN_TENSOR": "CUDNN_BACKEND_TENSOR_DESCRIPTOR", "DNN_T_HANDLE": "CUDNN_TYPE_HANDLE",
    "DNN_T_DATA_TYPE": "CUDNN_TYPE_DATA_TYPE", "DNN_T_INT64": "CUDNN_TYPE_INT64", "DNN_T_FLOAT": "CUDNN_TYPE_FLOAT", "DNN_T_DOUBLE": "CUDNN_TYPE_DOUBLE",
    "DNN_T_POINTER": "CUDNN_TYPE_VOID_PTR", "DNN_T_CONVOLUTION_MODE": "CUDNN_TYPE_CONVOLUTION_MODE", "DNN_T_HEUR_MODE": "CUDNN_TYPE_HEUR_MODE",
    "DNN_T_NOTE": "CUDNN_TYPE_NUMERICAL_NOTE", "DNN_T_DESCRIPTOR": "CUDNN_TYPE_BACKEND_DESCRIPTOR", "DNN_A_CONV_COMPUTE": "CUDNN_ATTR_CONVOLUTION_COMP_TYPE",
    "DNN_A_CONV_MODE": "CUDNN_ATTR_CONVOLUTION_CONV_MODE", "DNN_A_CONV_DILATIONS": "CUDNN_ATTR_CONVOLUTION_DILATIONS",
    "DNN_A_CONV_STRIDES": "CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES", "DNN_A_CONV_POST_PADDINGS": "CUDNN_ATTR_CONVOLUTION_POST_PADDINGS",
    "DNN_A_CONV_PRE_PADDINGS": "CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS", "DNN_A_CONV_DIMS": "CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS",
    "DNN_A_HEUR_MODE": "CUDNN_ATTR_ENGINEHEUR_MODE", "DNN_A_HEUR_GRAPH": "CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH", "DNN_A_HEUR_RESULTS": "CUDNN_ATTR_ENGINEHEUR_RESULTS",
    "DNN_A_CONFIG_ENGINE": "CUDNN_ATTR_ENGINECFG_ENGINE", "DNN_A_PLAN_HANDLE": "CUDNN_ATTR_EXECUTION_PLAN_HANDLE",
    "DNN_A_PLAN_CONFIG": "CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG", "DNN_A_PLAN_WORKSPACE": "CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE",
    "DNN_A_FORWARD": "CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA", "DNN_A_DATA": "CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA",
    "DNN_A_FILTER": "CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA", "DNN_A_GRAPH_HANDLE": "CUDNN_ATTR_OPERATIONGRAPH_HANDLE",
    "DNN_A_GRAPH_OPS": "CUDNN_ATTR_OPERATIONGRAPH_OPS", "DNN_A_TENSOR_ALIGNMENT": "CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT",
    "DNN_A_TENSOR_TYPE": "CUDNN_ATTR_TENSOR_DATA_TYPE", "DNN_A_TENSOR_DIMS": "CUDNN_ATTR_TENSOR_DIMENSIONS", "DNN_A_TENSOR_STRIDES": "CUDNN_ATTR_TENSOR_STRIDES",
    "DNN_A_TENSOR_ID": "CUDNN_ATTR_TENSOR_UNIQUE_ID", "DNN_A_PACK_IDS": "CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS",
    "DNN_A_PACK_POINTERS": "CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS", "DNN_A_PACK_WORKSPACE": "CUDNN_ATTR_VARIANT_PACK_WORKSPACE",
    "DNN_A_ENGINE_NOTES": "CUDNN_ATTR_ENGINE_NUMERICAL_NOTE",
}  # fmt: skip
# What follows an operation's alpha: beta, the convolution, then these.
OPERANDS = {"FORWARD": ("W", "X", "Y"), "BWD_DATA": ("W", "DX", "DY"), "BWD_FILTER": ("DW", "X", "DY")}


def header(name, *more):
    """The text of a header of an installed wheel, or the toolkit's, and of those that it includes."""
    places = [Path(p, "nvidia", *below) for p in sys.path for below in (("cu13", "include"), ("cudnn", "include"))] + [
        Path("/usr/local/cuda/include")
    ]
    folder = next((p for p in places if (p / name).is_file()), None)
    if folder is None:
        pytest.skip(f"no {name} here")
    return "".join(
        (place / file).read_text() for file in (name, *more) for place in [folder, *places] if (place / file).is_file()
    )


def ours(file, beginning):
    return {
        name: value
        for name, value in numbers((CSRC / "kernels" / file).read_text()).items()
        if name.startswith(beginning)
    }


def test_our_cublaslt_is_theirs():
    theirs = numbers(header("cublasLt.h", "cublas_api.h", "library_types.h"))
    found = ours("cublaslt/lt.h", "LT_")
    assert len(found) > 15
    for name, value in found.items():
        beginning = next(b for b in BEGINNINGS if name.startswith(b))
        assert theirs[BEGINNINGS[beginning] + name.removeprefix(beginning)] == value, name


def test_our_cudnn_is_theirs():
    theirs = numbers(header("cudnn_graph_v9.h"))
    found = ours("cudnn/dnn.h", "DNN_")
    assert {NAMES[name]: value for name, value in found.items()} == {name: theirs[name] for name in NAMES.values()}
    for kind, operands in OPERANDS.items():
        row = [
            theirs[f"CUDNN_ATTR_OPERATION_CONVOLUTION_{kind}_{word}"]
            for word in ("ALPHA", "BETA", "CONV_DESC", *operands)
        ]
        assert row == list(range(row[0], row[0] + 6))
