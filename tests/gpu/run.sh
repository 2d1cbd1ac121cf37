#!/usr/bin/env bash
# All that needs a GPU, in three parts of at most ten minutes each:
#
#   bash tests/gpu/run.sh A    correctness: build, tests/gpu without NCCL
#   bash tests/gpu/run.sh B    speed: kernels, GPT-2 124M and ResNet-50 next to torch, a profile
#   bash tests/gpu/run.sh C    NCCL on one and two ranks, compute-sanitizer
#
# Without an argument: all three. The machine needs Python with NumPy and pytest, nvcc 13 and gcc, no network. Where
# pydist/_cuda.so is there and opens, it is used as it is; else it is built, which takes minutes. The output of a part goes
# line by line to A.log, B.log or C.log in the folder OUT (default: gpu-logs), too; its last lines say what passed.
#
# A dry run on the emulator: PYDIST_CUDA_LIBRARY=emulated.so bash tests/gpu/run.sh A (tests/emulator/build.py makes the file).
set -uo pipefail
cd "$(dirname "$0")/../.."
logs=${OUT:-$PWD/gpu-logs}
mkdir -p "$logs" || exit 2
logs=$(cd "$logs" && pwd)
python=${PYTHON:-python3}
emulated=${PYDIST_CUDA_LIBRARY:-}
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1 PYDIST_MPI=0
command -v nvcc >/dev/null || export PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin # where the toolkit's installer leaves it

have() { $python -c "import $1" 2>/dev/null; } # this package

step() { # title, seconds it may take, command: at most what is left of the part
    local title=$1 limit=$2 left=$((until - SECONDS)) rc=0
    shift 2
    [ $left -lt "$limit" ] && limit=$left
    [ "$limit" -lt 5 ] && echo "!!!! $title: no time left" && failed="$failed; $title (no time)" && return 1
    printf '\n== %s (%d s of the part so far, at most %d s)\n' "$title" $((SECONDS - begun)) "$limit"
    timeout --kill-after 5 "$limit" "$@" || rc=$?
    [ $rc = 0 ] && return
    [ $rc = 124 ] && rc="not done after $limit s"
    failed="$failed; $title ($rc)"
    echo "!!!! $title: failed ($rc)"
    return 1
}

tests() { # title, seconds, processes, pytest's arguments
    local title=$1 limit=$2 workers=$3 options=(-q --tb=short -rfE)
    shift 3
    have pytest_timeout && options+=(--timeout "${each:-60}")
    [ "$workers" -gt 1 ] && have xdist && options+=(-n "$workers")
    step "$title" "$limit" $python -m pytest "${options[@]}" "$@"
}

architecture() { # of this machine's GPU, for nvcc
    local capability
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .)
    case $capability in 90 | 100) echo "${capability}a" ;; *) echo "${capability:-90a}" ;; esac
}

build() {
    local opens='import ctypes, glob; ctypes.CDLL(glob.glob("pydist/_cuda.so")[0])'
    if ! $python -c 'import ctypes.util, glob, sys
sys.exit(not (ctypes.util.find_library("dnnl") or any(glob.glob(f"{p}/libdnnl.so*") + glob.glob(f"{p}/../../libdnnl.so*")
                                                      for p in sys.path if p)))'; then
        export PYDIST_ONEDNN=0
        echo "no oneDNN here: PYDIST_ONEDNN=0, the CPU's side runs on the portable kernels"
    fi
    [ -n "$emulated" ] && echo "a dry run on $emulated" && return
    export CUDA_ARCH=${CUDA_ARCH:-$(architecture)} PYDIST_CUDA=1
    if $python -c "$opens" 2>/dev/null; then
        PYDIST_CUDA=0
        echo "pydist/_cuda.so is here and opens: used as it is"
    fi
    step "build for sm_$CUDA_ARCH" 300 $python setup.py -q build_ext --inplace
}

part_A() {
    step "machine" 30 bash -c 'nvidia-smi --query-gpu=name,driver_version,compute_cap,memory.total --format=csv,noheader
        nvcc --version | tail -n 2; gcc --version | head -n 1; nproc; exit 0'
    build || return
    step "one product" 60 $python -c 'import pydist
a = pydist.ones(64, 64, device="cuda")
assert (a @ a)[0, 0].item() == 64
print(pydist.cuda.get_device_name(), pydist._C.cuda_built(), pydist._C.cublaslt_version(), pydist._C.cudnn_version())' || return
    tests "devices, memory" 60 1 tests/gpu/test_gpu_device.py # fills the memory: alone
    tests "streams, captures, threads" 60 1 tests/gpu/test_gpu_streams.py
    tests "cuBLASLt and cuDNN" 150 1 tests/gpu/test_gpu_libraries.py tests/engine/test_cuda_libraries.py
    tests "graphs, pinned memory, mixed precision" 60 1 tests/gpu/test_gpu_graphs.py
    tests "kernels at larger sizes, complex numbers" 90 4 tests/gpu/test_gpu_{kernels,complex}.py
    tests "what passes make besides, sums that wait" 60 4 tests/gpu/test_gpu_{beside,later}.py
    tests "training, functions, modules, shards, CUDA against CPU" 90 4 tests/gpu/test_gpu_{training,functions,modules,shards}.py
    tests "the profiler, what measures" 60 1 tests/gpu/test_gpu_{profiler,benchmarks}.py
    tests "ops, CUDA against CPU" 180 6 tests/gpu/test_gpu_ops.py
}

part_B() {
    build || return
    local small=() # else of a size for a GPU
    [ -n "$emulated" ] && small=(0.01 "" 64)
    step "kernels one by one" 120 $python tests/gpu/timings.py "${small[@]}"
    [ -n "$emulated" ] && echo "no GPU: training is not timed" && return
    step "GPT-2 124M, next to torch" 200 $python -m benchmarks --device cuda gpt2-124M
    step "ResNet-50, next to torch" 150 $python -m benchmarks --device cuda resnet50
    if command -v ncu >/dev/null; then
        step "attention's backward, by ncu" 60 ncu --kernel-name regex:attention --launch-skip 2 --launch-count 4 \
            $python tests/gpu/timings.py 1 attention
    else
        echo "no ncu here"
    fi
}

part_C() {
    build || return
    each=170 tests "NCCL on one and two ranks" 400 1 tests/gpu/test_gpu_nccl.py # each: a job's limit of 150 s, and its end
    [ -n "$emulated" ] && echo "no GPU: compute-sanitizer is not run" && return
    if command -v compute-sanitizer >/dev/null; then
        step "compute-sanitizer" 90 compute-sanitizer --error-exitcode 3 $python -m pytest -q --tb=short \
            tests/gpu/test_gpu_training.py -k "AdamW or products"
        step "compute-sanitizer: what blocks share" 60 compute-sanitizer --tool racecheck --error-exitcode 3 \
            $python -m pytest -q --tb=short tests/gpu/test_gpu_kernels.py \
            -k "rows_in_order or permutations or topk_chooses and float16 and True"
    else
        echo "no compute-sanitizer here: memory is NOT checked"
    fi
}

run() { # a part: prints how it ended
    failed="" begun=$SECONDS until=$((SECONDS + 570))
    "part_$1"
    printf '\n== part %s: %s after %d s\n' "$1" "$([ -z "$failed" ] && echo "all passed" || echo "FAILED${failed}")" \
        $((SECONDS - begun))
    [ -z "$failed" ]
}

rc=0
for part in "${@:-A B C}"; do
    for letter in $part; do
        case $letter in
            A | B | C) (run "$letter") 2>&1 | tee "$logs/$letter.log"; [ "${PIPESTATUS[0]}" = 0 ] || rc=1 ;;
            *) echo "tests/gpu/run.sh: $letter is not a part (expected A, B or C)" >&2; exit 2 ;;
        esac
    done
done
exit $rc
