"""The tables of docs/environment.md: `python tools/environment.py` writes them, tests/rules/test_documents.py compares.

The engine's variables are the rows of csrc/base/flags.def. Those that Python, setup.py and two files of the engine read are
described here; `read()` finds their names in the sources, so that the test finds one that is missing here or stale."""

import ast
import re
from pathlib import Path

TOP = Path(__file__).parents[1]
FILE = TOP / "docs" / "environment.md"
BEGIN, END = (f"<!-- written by tools/environment.py: {word} -->\n" for word in ("begin", "end"))

FLAG = re.compile(r'^PD_FLAG\((\w+),\s*(int|num|str),\s*("[^"]*"|\S+?),\s*"((?:[^"\\]|\\.)*)"\)$', re.M)
NAME = re.compile(r"[A-Z]+(_[A-Z]+)+|RANK|TERM|COLUMNS|NVCC|MPICC")
NOT_VARIABLES = re.compile(r"SC_\w+|(START|STOP)_\w+")  # names for os.sysconf

# section: {variable: meaning}
OTHERS = {
    "Who a rank is, and where ranks meet": {
        "RANK": "the number of this rank, from 0; the launcher sets it",
        "WORLD_SIZE": "how many ranks there are; the launcher sets it",
        "LOCAL_RANK": "the number of this rank on its host; the launcher sets it",
        "LOCAL_WORLD_SIZE": "how many ranks this host has; a rank takes its share of the cores by it",
        "GROUP_RANK": "the number of this host; the launcher sets it",
        "GROUP_WORLD_SIZE": "how many hosts there are; the launcher sets it",
        "ROLE_NAME": "what `--role` says; for scripts",
        "ROLE_RANK": "the same as RANK; for scripts",
        "ROLE_WORLD_SIZE": "the same as WORLD_SIZE; for scripts",
        "MASTER_ADDR": 'the address of rank 0, without a launcher (`init_method="env://"`)',
        "MASTER_PORT": "the port that rank 0 listens on",
        "PYDIST_BITS": "the file, with `.RANK` behind it, that gets hashes of all shards; `pydist.verify` sets it",
        "PYDIST_BITS_STEPS": "with PYDIST_BITS: the steps after which the program ends",
        "PYDIST_VERIFY_HOSTS": "ranks of each pretended host; `pydist.verify` sets it",
        "PYDIST_VERIFY_MPI": "`init_process_group` uses MPI if it is told no backend; `pydist.verify` sets it",
        "PYDIST_SHARDS": "the number of logical shards, if `init_process_group` is not told one; `--logical-shards` sets it",
        "TF_CONFIG": "a cluster and this task in it, as JSON; for `distribute.MultiWorkerMirroredStrategy`",
        "TORCHELASTIC_RUN_ID": "the job's name (`--rdzv-id`); for scripts",
        "TORCHELASTIC_RESTART_COUNT": "how often the job was started before; for scripts",
        "TORCHELASTIC_MAX_RESTARTS": "what `--max-restarts` says; for scripts",
        "PYDIST_CONTROL": "the launcher's address; set by the launcher, not by you",
        "PYDIST_SECRET_FD": "the descriptor from which a rank reads the job's secret; set by the launcher",
        "PYDIST_ON_FAILURE": "what `--on-failure` says; keep: Keras' `fit` goes on with the survivors of a death",
        "PYDIST_SNAPSHOTS": "the folder in memory for snapshots (`CheckpointManager(memory_every=)`); the launcher sets it",
        "PYDIST_SNAPSHOTS_DIR": "where the launcher makes that folder; without it, in `/dev/shm`",
        "PYDIST_RPC_ARENA": "MiB of shared memory for the tensors of `pydist.distributed.rpc`'s calls; default 256",
        "PYDIST_RPC_ALLOW": "what other workers may call, as `rpc.allow` takes it, parted by commas; default: everything",
        "PYDIST_MEETING": "where the processes of `multiprocessing.spawn` meet; set by it",
        "DMLC_ROLE": "worker, server or scheduler of a job with a parameter server; `--workers` sets worker",
        "DMLC_PS_ROOT_URI": "such a job's scheduler",
        "DMLC_PS_ROOT_PORT": "the port that it listens on",
        "DMLC_NUM_WORKER": "how many workers it has",
        "DMLC_NUM_SERVER": "how many servers it has, which only wait until the workers end",
        "DMLC_WORKER_ID": "a worker's rank; without it the scheduler gives one",
        "OMPI_COMM_WORLD_RANK": "Open MPI's RANK; so are the variables below, of Open MPI, MPICH and Slurm",
        "OMPI_COMM_WORLD_SIZE": "Open MPI's WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK": "Open MPI's LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "Open MPI's LOCAL_WORLD_SIZE",
        "PMIX_NAMESPACE": "Open MPI's name of the job",
        "PMI_RANK": "MPICH's RANK",
        "PMI_SIZE": "MPICH's WORLD_SIZE",
        "MPI_LOCALRANKID": "MPICH's LOCAL_RANK",
        "MPI_LOCALNRANKS": "MPICH's LOCAL_WORLD_SIZE",
        "SLURM_PROCID": "Slurm's RANK",
        "SLURM_STEP_NUM_TASKS": "Slurm's WORLD_SIZE",
        "SLURM_LOCALID": "Slurm's LOCAL_RANK",
        "SLURM_STEP_TASKS_PER_NODE": "Slurm's LOCAL_WORLD_SIZE",
        "SLURM_STEP_NODELIST": "Slurm's hosts: ranks meet on the first one",
        "SLURM_JOB_ID": "Slurm's name of the job",
        "SLURM_STEP_ID": "Slurm's number of the step within the job",
    },
    "What other programs read, too": {
        "OMP_NUM_THREADS": "threads of a rank; default: the cores, divided by LOCAL_WORLD_SIZE",
        "GOMP_SPINCOUNT": "how long idle threads of OpenMP wait actively; pydist sets a short time where nothing is set",
        "OMP_WAIT_POLICY": "the same by name (active or passive)",
        "GLOO_SOCKET_IFNAME": "read where PYDIST_IFACE is not set",
        "NCCL_SOCKET_IFNAME": "read where neither PYDIST_IFACE nor GLOO_SOCKET_IFNAME is set",
        "CUDA_VISIBLE_DEVICES": "the GPUs that this process sees; `--hosts` passes it on",
        "ONEDNN_ROOT": "the folder of oneDNN, for its headers (build) and its library (run)",
        "XDG_CACHE_HOME": "the user's cache: tune.json and downloads; default: ~/.cache",
        "MXNET_HOME": "the folder of data sets for scripts that import mxnet; default: ~/.mxnet",
        "TORCH_HOME": "the folder of `pydist.hub`'s downloads; default: torch in the user's cache",
        "PYDIST_FOLD": "the default of the launcher's `--fold`: auto or off",
        "PYDIST_DTENSOR": "strict: an op that has no rule for DTensors raises NotImplementedError; its operands are not gathered",
        "PYDIST_FSDP": "private: ranks of `fully_shard` gather wholes of their own, also where they could share memory; "
        "default: auto",
        "KERAS_BACKEND": "Keras runs over pydist whether this is unset, tensorflow, jax or torch; other values are an error",
        "PYDIST_DATA": "the folder in which `keras.datasets` looks for files (docs/guide/keras.md)",
        "NO_COLOR": "anything: the launcher writes no colours",
        "TERM": "dumb: the launcher treats the terminal as a file",
        "COLUMNS": "the width for progress bars, where the output is no terminal",
    },
    "When pydist is built": {
        "PYDIST_BUILD": "debug: without optimization, with assertions",
        "PYDIST_SANITIZE": "address, undefined, both (`address,undefined`), or thread: a build for these sanitizers",
        "PYDIST_WERROR": "1: warnings are errors",
        "PYDIST_CUDA": "1: builds the CUDA kernels, 0: does not; default: where there are nvcc and a driver",
        "PYDIST_MPI": "1: an error where the MPI part cannot be built, 0: does not build it; default: where there is mpicc",
        "NVCC": "CUDA's compiler; default: nvcc",
        "CUDA_ARCH": "the GPUs that the kernels are for, such as `90a` or `80,90a`; default: all that are supported",
        "CUDA_HOME": "CUDA's folder; default: the compiler's",
        "MPICC": "MPI's compiler; default: mpicc",
    },
}  # fmt: skip


def flags():
    """(variable, default, meaning) of each row of flags.def."""
    text = (TOP / "csrc/base/flags.def").read_text()
    rows = [(f"PYDIST_{name}", default.strip('"'), help.replace('\\"', '"')) for name, _, default, help in FLAG.findall(text)]  # fmt: skip
    assert len(rows) == text.count("\nPD_FLAG("), "a row of flags.def that this file cannot read"
    return rows


def read():
    """The names in sources that look at the environment, flags left out: {variable: a file that names it}."""
    found = {}
    for path in [TOP / "setup.py", *sorted((TOP / "pydist").rglob("*.py"))]:
        source = path.read_text()
        if "environ" in source:
            strings = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
            found.update((text, path) for text in strings if isinstance(text, str) and NAME.fullmatch(text))
    for path in sorted((TOP / "csrc/base").glob("*.c")):
        source = path.read_text()
        if "getenv" in source:
            found.update((text, path) for text in re.findall(r'"(\w+)"', source) if NAME.fullmatch(text))
    flagged = {name for name, *_ in flags()}
    return {n: path for n, path in found.items() if n not in flagged and not NOT_VARIABLES.fullmatch(n)}


def tables():
    lines = ["| variable | default | meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | {default or '-'} | {meaning} |" for name, default, meaning in flags()]
    for title, rows in OTHERS.items():
        lines += ["", f"## {title}", "", "| variable | meaning |", "|---|---|"]
        lines += [f"| `{name}` | {meaning} |" for name, meaning in rows.items()]
    return "\n".join(lines) + "\n"


def page():
    before, _, rest = FILE.read_text().partition(BEGIN)
    return before + BEGIN + tables() + END + rest.partition(END)[2]


if __name__ == "__main__":
    FILE.write_text(page())
