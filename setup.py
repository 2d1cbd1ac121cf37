"""Builds pydist._C: every C file under csrc, csrc/kernels/cpu once per instruction set.

Environment: PYDIST_WERROR=1 (warnings are errors), PYDIST_BUILD=debug, PYDIST_SANITIZE=address|undefined|address,undefined|thread,
ONEDNN_ROOT (its include/ has oneDNN's headers), PYDIST_CUDA=1|0 (pydist/_cuda.so is made or not; else where nvcc and a
driver are both there), CUDA_ARCH (the GPUs that it is for, such as 90a or 80,90a; else all of CUDA_ARCHS). Files are compiled in parallel, and again only when their command,
their source or a header that they include has changed: a rebuild in a checkout costs what changed.
"""

import fcntl
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

X86 = platform.machine().lower() in ("x86_64", "amd64")
ISAS = {"portable": []}
if X86:
    ISAS["avx2"] = "-mavx2 -mfma -mf16c".split()
    ISAS["avx512"] = "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c -mprefer-vector-width=512".split()

COMMON = (
    "-std=c11 -D_GNU_SOURCE -Icsrc -fvisibility=hidden -fno-math-errno -fno-trapping-math -ffp-contract=off "
    "-Wall -Wextra"
).split()

DEBUG = os.environ.get("PYDIST_BUILD") == "debug"
SANITIZE = os.environ.get("PYDIST_SANITIZE", "")


def has_openmp(compiler):
    """Whether the compiler finds OpenMP's header and runtime (clang's are a package of their own). The thread sanitizer's
    build goes without: libgomp itself reports races."""
    if SANITIZE == "thread":
        return False
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "openmp.c")
        source.write_text("#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }\n")
        command = [*compiler, "-fopenmp", str(source), "-o", str(source.with_suffix(""))]
        if subprocess.run(command, capture_output=True).returncode == 0:
            return True
    print(f"pydist._C: {compiler[0]} has no OpenMP: kernels will use one thread", file=sys.stderr)
    return False


def mode_flags(openmp):
    """The flags of this kind of build, for compiling and for linking."""
    if SANITIZE not in ("", "address", "undefined", "address,undefined", "thread"):
        sys.exit(f"PYDIST_SANITIZE={SANITIZE}: expected address, undefined, both with a comma, or thread")
    if SANITIZE:
        compiling = ["-O1", "-g", "-UNDEBUG", "-fno-omit-frame-pointer", f"-fsanitize={SANITIZE}"]
        linking = [f"-fsanitize={SANITIZE}"]
    else:
        compiling, linking = (["-Og", "-g3", "-UNDEBUG"] if DEBUG else ["-O3", "-g0"]), []
    if openmp:
        compiling.append("-fopenmp")
        linking.append("-fopenmp")
    else:
        compiling.append("-fopenmp-simd")
    if os.environ.get("PYDIST_WERROR") == "1":
        compiling.append("-Werror")
    return compiling, linking


def onednn_include():
    """The folder with dnnl.h: ONEDNN_ROOT's, the wheel's, or None."""
    if SANITIZE == "thread":
        return None
    folders = [Path(sys.prefix, "include")]
    if root := os.environ.get("ONEDNN_ROOT"):
        folders.insert(0, Path(root, "include"))
    try:  # in pip's build environment the wheel is not under sys.prefix
        files = metadata.files("onednn-devel-cpu-gomp") or []
        folders += [Path(f.locate()).resolve().parent for f in files if f.name == "dnnl.h"]
    except metadata.PackageNotFoundError:
        pass
    return next((f for f in folders if (f / "dnnl.h").is_file()), None)


def numpy_include():
    """The folder with NumPy's headers. Those of NumPy 2 give a library that runs on NumPy 1.23, too, older ones not on 2."""
    try:
        import numpy
    except ImportError:
        sys.exit("pydist._C: NumPy's headers are needed to build (pip install 'numpy>=2')")
    if int(numpy.__version__.partition(".")[0]) < 2:
        sys.exit(f"pydist._C: NumPy {numpy.__version__} (expected 2 or newer to build; the library runs on 1.23, too)")
    return numpy.get_include()


def compile_jobs(compiler, flags, temp):
    """(command, source, object) of every object file."""
    base = [*compiler, *COMMON, *flags]
    onednn = onednn_include()
    if onednn:
        base.append("-DPD_HAVE_ONEDNN=1")
    if not X86:
        base.append("-DPD_ONLY_PORTABLE")
    for source in sorted(Path("csrc").rglob("*.c")):
        room = source.parts[1]
        if room == "mpi":  # a library of its own
            continue
        extra = []
        if room == "py":
            extra.append("-I" + sysconfig.get_path("include"))
            if source.name == "numpy.c":
                extra += ["-isystem", numpy_include()]  # its warnings are NumPy's
        if source.parts[1:3] == ("kernels", "onednn") and onednn:  # pip builds each time with another folder
            extra.append(f"-I{onednn}")
        per_isa = ISAS if source.parts[1:3] == ("kernels", "cpu") else {"": []}
        for isa, isa_flags in per_isa.items():
            obj = Path(temp, isa, source).with_suffix(".o")
            define = [f"-DPD_ISA={isa}"] if isa else []
            yield [*base, *extra, *isa_flags, *define], source, obj


def is_current(command, source, obj):
    """True where obj was made by this command and is newer than all that it includes."""
    stamp, deps = obj.with_suffix(".cmd"), obj.with_suffix(".d")
    if not (obj.exists() and deps.exists() and stamp.exists()) or stamp.read_text() != " ".join(command):
        return False
    names = deps.read_text().replace("\\\n", " ").split(":", 1)[1].split()
    made = obj.stat().st_mtime
    return all(os.path.exists(n) and os.path.getmtime(n) <= made for n in names)


def compile_one(job):
    """Compiles one file where needed. Returns the compiler's messages if it failed, else ""."""
    command, source, obj = job
    if is_current(command, source, obj):
        return ""
    obj.parent.mkdir(parents=True, exist_ok=True)
    full = [*command, "-MMD", "-MF", str(obj.with_suffix(".d")), "-c", str(source), "-o", str(obj)]
    done = subprocess.run(full, capture_output=True, text=True)
    if done.returncode:
        return f"{' '.join(full)}\n{done.stderr}"
    sys.stderr.write(done.stderr)
    obj.with_suffix(".cmd").write_text(" ".join(command))
    return ""


CUDA_ARCHS = ["80", "90a", "100a", "120"]  # the last as PTX too, for what comes after
CUDA_FLAGS = "-std=c++17 -O3 -fmad=false -Icsrc".split()
CUDA_HOST = "-fPIC,-fvisibility=hidden,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-Wall,-Wextra"


def cuda_compiler():
    """nvcc's path where pydist/_cuda.so is wanted, else None."""
    wanted, nvcc = os.environ.get("PYDIST_CUDA", ""), shutil.which(os.environ.get("NVCC", "nvcc"))
    if wanted == "1" and not nvcc:
        sys.exit("PYDIST_CUDA=1, but there is no nvcc (set NVCC)")
    if wanted == "0" or SANITIZE or not nvcc:
        return None
    return nvcc if wanted == "1" or os.path.exists("/proc/driver/nvidia/version") else None


def cuda_jobs(nvcc, temp):
    """(command, source, object) of each of the library's objects."""
    if not nvcc:
        return
    given = os.environ.get("CUDA_ARCH", "").replace(",", " ").split()
    archs = given or CUDA_ARCHS
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout.rpartition(
        "release "
    )[2]
    codes = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in archs]
    if not given:
        codes.append(f"-gencode=arch=compute_{archs[-1]},code=compute_{archs[-1]}")
    built = f"CUDA {version.partition(',')[0]}, {' '.join('sm_' + a for a in archs)}"
    strict = "-Werror all-warnings -Xptxas -warn-spills".split() if os.environ.get("PYDIST_WERROR") == "1" else []
    command = [nvcc, *CUDA_FLAGS, *strict, "-Xcompiler", CUDA_HOST, f'-DPD_CUDA_BUILT="{built}"', *codes]
    for source in sorted(Path("csrc/cuda").glob("*.cu")):
        yield command, source, Path(temp, "cuda", source.name).with_suffix(".o")


def link_cuda(nvcc, linker, jobs, temp):
    """The library from its objects, the runtime linked in: it needs no file of CUDA's to be opened."""
    root = Path(os.environ.get("CUDA_HOME") or Path(nvcc).resolve().parents[1])
    places = [root / "lib64", root / "lib", *root.glob("targets/*/lib"), Path("/usr/local/cuda/lib64")]
    runtime = next((p / "libcudart_static.a" for p in places if (p / "libcudart_static.a").is_file()), None)
    if not runtime:
        sys.exit(f"pydist._cuda: no libcudart_static.a in {', '.join(map(str, places))}")
    built = Path(temp, "_cuda.so")
    objects = [str(obj) for *_, obj in jobs]
    subprocess.run(
        [*linker, *objects, str(runtime), "-Wl,--exclude-libs,ALL", "-ldl", "-lpthread", "-lrt", "-o", str(built)],
        check=True,
    )
    return built


def build_mpi(temp):
    """pydist/_mpi.so, the engine's way to an MPI: made by MPICC (default: mpicc) where there is one. PYDIST_MPI=0: not
    made; 1: an error where it cannot be."""
    wanted, mpicc = os.environ.get("PYDIST_MPI", ""), shutil.which(os.environ.get("MPICC", "mpicc"))
    if wanted == "0" or SANITIZE or (not mpicc and wanted != "1"):
        return None
    if not mpicc:
        sys.exit("PYDIST_MPI=1, but there is no mpicc (set MPICC)")
    built = Path(temp, "_mpi.so")
    flags = ["-Werror"] if os.environ.get("PYDIST_WERROR") == "1" else []
    command = [mpicc, *COMMON, *flags, "-O2", "-fPIC", "-shared", "csrc/mpi/mpi.c", "-o", str(built)]
    done = subprocess.run(command, capture_output=True, text=True)
    sys.stderr.write(done.stderr)
    if done.returncode and wanted == "1":
        sys.exit(f"{' '.join(command)}: does not compile")
    return None if done.returncode else built


def put(built, target):
    """Copies beside the target and renames: a process that has the old library open keeps it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    new = target.with_name(target.name + ".new")
    shutil.copyfile(built, new)
    os.replace(new, target)


class BuildExt(build_ext):
    def build_extension(self, ext):
        out = Path(self.get_ext_fullpath(ext.name)).absolute()
        temp = Path(self.build_temp, SANITIZE or ("debug" if DEBUG else "release"))
        os.makedirs(temp, exist_ok=True)
        with open(temp / "lock", "w") as lock:  # several builds may run in one checkout
            fcntl.flock(lock, fcntl.LOCK_EX)
            compiling, linking = mode_flags(has_openmp(self.compiler.compiler_so))
            jobs, nvcc = list(compile_jobs(self.compiler.compiler_so, compiling, temp)), cuda_compiler()
            kernels = list(cuda_jobs(nvcc, temp))
            with ThreadPoolExecutor(os.cpu_count()) as pool:  # the longest first
                failed = [text for text in pool.map(compile_one, kernels + jobs) if text]
            if failed:
                sys.exit(
                    "\n".join(failed) + f"\npydist._C: {len(failed)} of {len(kernels + jobs)} files do not compile"
                )
            objects = [str(obj) for *_, obj in jobs]
            built = temp / out.name
            subprocess.run([*self.compiler.linker_so, *objects, *linking, "-lm", "-ldl", "-o", str(built)], check=True)
            extras = [build_mpi(temp), nvcc and link_cuda(nvcc, self.compiler.linker_so, kernels, temp)]
            targets = [out.parent]
            if not self.inplace:  # `python -m` in the checkout finds this folder's package before the installed one
                targets.append(Path("pydist"))
            for folder in targets:
                put(built, folder / out.name)
                for extra in filter(None, extras):
                    put(extra, folder / extra.name)


setup(ext_modules=[Extension("pydist._C", sources=[])], cmdclass={"build_ext": BuildExt})
