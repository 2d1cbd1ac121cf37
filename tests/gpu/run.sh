#!/usr/bin/env bash
# All that needs a GPU, in one command on a bare machine: Python 3.12 (or as python3 is) with NumPy and pytest, nvcc 13, gcc, no
# network: builds pydist with its kernels for this machine's GPU, then runs tests/gpu, a training run and timings. Fetches nothing;
# ends within 9 minutes. The log's last lines say what passed.
set -uo pipefail
cd "$(dirname "$0")/../.."
start=$SECONDS failed=0
python=${PYTHON:-python3}
export PYTHONPATH=$PWD PYDIST_CUDA=1 PYDIST_MPI=0
command -v nvcc >/dev/null || export PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin # where the toolkit's installer leaves it

step() { # a title, seconds it may take, a command
    local title=$1 limit=$2 rc=0
    shift 2
    printf '\n== %s (%d s so far)\n' "$title" $((SECONDS - start))
    timeout "$limit" "$@" || rc=$?
    [ $rc = 0 ] || { failed=1 && printf '!!!! %s: failed (%d)\n' "$title" $rc; }
}

step "machine" 30 bash -c 'nvidia-smi --query-gpu=name,driver_version,compute_cap,memory.total --format=csv,noheader; nvcc --version | tail -n 2; nproc'
if [ -z "${CUDA_ARCH:-}" ]; then
    CUDA_ARCH=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
    [ "$CUDA_ARCH" = 90 ] && CUDA_ARCH=90a
    [ "$CUDA_ARCH" = 100 ] && CUDA_ARCH=100a
    export CUDA_ARCH=${CUDA_ARCH:-90a} # no nvidia-smi: a guess
fi
if ! $python - <<'EOF'; then
import ctypes.util, glob, sys
sys.exit(not (ctypes.util.find_library("dnnl") or any(glob.glob(f"{p}/libdnnl.so*") + glob.glob(f"{p}/../../libdnnl.so*") for p in sys.path if p)))
EOF
    export PYDIST_ONEDNN=0
    echo "no oneDNN here: PYDIST_ONEDNN=0, the CPU's side runs on the portable kernels"
fi
step "build for sm_$CUDA_ARCH" 300 $python setup.py -q build_ext --inplace
step "devices, memory, streams" 60 $python -m pytest -q tests/gpu/test_gpu_device.py
step "ops, CUDA against CPU" 180 $python -m pytest -q tests/gpu/test_gpu_ops.py
step "kernels at larger sizes, complex numbers" 90 $python -m pytest -q tests/gpu/test_gpu_kernels.py tests/gpu/test_gpu_complex.py
step "cuBLASLt and cuDNN, CUDA against CPU" 60 $python -m pytest -q tests/gpu/test_gpu_libraries.py
step "graphs, pinned memory, mixed precision" 60 $python -m pytest -q tests/gpu/test_gpu_graphs.py
step "training, CUDA against CPU" 90 $python -m pytest -q tests/gpu/test_gpu_training.py
step "the profiler and what measures" 30 $python -m pytest -q tests/gpu/test_gpu_profiler.py tests/gpu/test_gpu_benchmarks.py
step "NCCL on 2 and 3 ranks" 240 $python -m pytest -q tests/gpu/test_gpu_nccl.py
if command -v compute-sanitizer >/dev/null; then
    step "compute-sanitizer" 90 compute-sanitizer --error-exitcode 3 $python -m pytest -q tests/gpu/test_gpu_training.py -k "AdamW or products"
    step "compute-sanitizer: what blocks share" 60 compute-sanitizer --tool racecheck --error-exitcode 3 $python -m pytest -q tests/gpu/test_gpu_kernels.py -k "rows_in_order or permutations or topk_chooses and float16 and True"
else
    echo "no compute-sanitizer here: memory is not checked"
fi
step "what is used" 20 bash -c "$python -m pydist.info | grep -E '^(CUDA|cuBLASLt|cuDNN)'"
step "timings" 60 $python tests/gpu/timings.py
left=$((530 - (SECONDS - start)))
if [ $left -gt 20 ]; then
    step "GPT-2 124M and ResNet-50 in bfloat16, next to torch" $left $python -m benchmarks --device cuda
fi
printf '\n== %s after %d s\n' "$([ $failed = 0 ] && echo "all passed" || echo "SOMETHING FAILED")" $((SECONDS - start))
exit $failed
