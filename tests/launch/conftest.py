"""What the tests of the launcher share: scripts for its workers, and a program that stands for ssh."""

import textwrap

import pytest

SSH = """#!/bin/sh
host=$1; shift
echo "$host $*" >>"$0.log"
mkfifo "$0.$$"
exec 3<&0
cat <&3 >"$0.$$" &
env -i PATH="$PATH" PYDIST_HOST="$host" setsid -w sh -c "$*" <"$0.$$" 3<&-
code=$?
kill $!
exit $code
"""


@pytest.fixture
def ssh(tmp_path):
    path = tmp_path / "ssh"
    path.write_text(SSH)
    path.chmod(0o755)
    return path


@pytest.fixture
def script(tmp_path):
    def write(text, name="script.py"):
        path = tmp_path / name
        path.write_text(
            "import os, sys, time, signal, subprocess\nrank = int(os.environ['RANK'])\n" + textwrap.dedent(text)
        )
        return path

    return write
