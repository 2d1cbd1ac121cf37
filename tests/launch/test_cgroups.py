"""Limits of control groups (containers, batch systems): stand-in files below a folder, and a group of this machine's."""

import os
import subprocess
import sys

import pytest

from pydist import _C

MIB = 1 << 20


@pytest.fixture
def system(tmp_path):
    """Writes the files that it is given by name; memory left in MiB, and cores."""

    def look(own, **files):
        every = {"proc/self/cgroup": own, "proc/meminfo": f"MemTotal: 1\nMemAvailable:   {8 << 20} kB\n"}
        every.update({f"sys/fs/cgroup/{name}": text for name, text in files.items()})
        for name, text in every.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
        left, cores = _C._limits(str(tmp_path))
        return left / MIB, cores

    return look


def version2(most, used, cache=(0, 0), shmem=0):
    """Shared memory is in `file`, too, but in neither list of pages that can be given back."""
    return {
        "memory.max": "max" if most is None else most * MIB,
        "memory.current": used * MIB,
        "memory.stat": f"anon 5\nfile {(sum(cache) + shmem) * MIB}\nshmem {shmem * MIB}\ninactive_anon 1\n"
        f"active_anon 1\ninactive_file {cache[0] * MIB}\nactive_file {cache[1] * MIB}\nunevictable 0",
    }


def version1(most, used, cache=(0, 0)):
    return {
        "memory.limit_in_bytes": 9223372036854771712 if most is None else most * MIB,
        "memory.usage_in_bytes": used * MIB,
        "memory.stat": f"inactive_file 1\nactive_file 1\ntotal_inactive_file {cache[0] * MIB}\ntotal_active_file {cache[1] * MIB}",
    }


def below(folder, files):
    return {f"{folder}/{name}" if folder else name: text for name, text in files.items()}


def test_without_groups_the_machine_counts(system):
    assert system("0::/") == (8192, 0)
    assert system("0::/", **version2(None, 5000)) == (8192, 0)
    assert system("7:memory:/\n0::/", **below("memory", version1(None, 5000))) == (8192, 0)
    assert system("nonsense") == (8192, 0)


def test_page_cache_is_not_used_memory(system):
    """A container of 4 GiB that has read 3.9 GiB of data."""
    assert system("0::/", **version2(4096, 4066, cache=(2900, 1000)))[0] == 30 + 3900
    assert system("0::/", **version2(4096, 4066, cache=(0, 16), shmem=3900))[0] == 46
    assert system("4:memory:/", **below("memory", version1(4096, 4066, cache=(2900, 1000))))[0] == 30 + 3900
    assert system("0::/", **version2(4096, 5000))[0] == 0
    assert system("0::/", **{**version2(4096, 4066), "memory.stat": ""})[0] == 4096  # nobody says what of it is cache


def test_version_1_names_its_controller(system):
    files = {**below("memory/job/step", version1(300, 100)), **below("memory", version1(None, 7000))}
    assert system("9:name=systemd:/job\n5:cpu,cpuacct:/elsewhere\n4:hugetlb,memory:/job/step\n0::/", **files)[0] == 200
    assert system("4:memory_of_others:/job/step", **files)[0] == 8192


@pytest.mark.parametrize("tight", ["", "pod", "pod/container", "pod/container/job"])
def test_of_nested_groups_the_tightest_counts(system, tight):
    files = {}
    for folder in ("", "pod", "pod/container", "pod/container/job"):
        files.update(below(folder, version2(600 if folder == tight else 2000, 100)))
    assert system("0::/pod/container/job", **files)[0] == 500


@pytest.mark.parametrize(
    "path, left",
    [
        ("/docker/4711", 400),  # the host's path of what is the mount here
        ("/docker/4711/job", 300),  # and a group below it
        ("/../../other", 400),  # outside of the namespace
        ("/..", 400),
        ("/job", 300),
        ("/job/gone", 400),
    ],
)
def test_paths_that_are_not_below_the_mount(system, path, left):
    files = {**version2(500, 100), **below("job", version2(400, 100))}
    assert system(f"0::{path}", **files)[0] == left


def test_cores(system):
    assert system("0::/a/b", **{"a/cpu.max": "250000 100000", "a/b/cpu.max": "max 100000"})[1] == 2.5
    assert system("0::/a/b", **{"a/cpu.max": "250000 100000", "a/b/cpu.max": "150000 100000"})[1] == 1.5
    assert system("3:cpu,cpuacct:/c", **{"cpu/c/cpu.cfs_quota_us": 50000, "cpu/c/cpu.cfs_period_us": 100000})[1] == 0.5
    assert system("3:cpu,cpuacct:/c", **{"cpu/c/cpu.cfs_quota_us": -1, "cpu/c/cpu.cfs_period_us": 100000})[1] == 0
    assert system("0::/", **{"cpu.max": "odd"})[1] == 0


def test_a_group_that_is_full_is_an_error_and_no_death():
    """In a group of version 1 with 300 MiB, where this machine lets us make one."""
    folder = f"/sys/fs/cgroup/memory/pydist-test-{os.getpid()}"
    try:
        os.mkdir(folder)
    except OSError:
        pytest.skip("no memory group of version 1 can be made here")
    try:
        with open(f"{folder}/memory.limit_in_bytes", "w") as file:
            file.write("300M")
        script = f"open('{folder}/cgroup.procs', 'w').write('0')\n" + (
            "import pydist\n"
            "try: pydist.empty(125_000_000).share_memory_()\n"
            "except MemoryError as error: print(error)\n"
            "pydist.ones(1 << 20).share_memory_(); print('small')"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    finally:
        for _ in range(50):
            try:
                os.rmdir(folder)
                break
            except OSError:
                pass
    assert done.returncode == 0, done.stderr
    assert "tried to allocate 500000000 bytes" in done.stdout and done.stdout.endswith("small\n")
