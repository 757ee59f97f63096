"""Paths of every shape mean what they mean to the kernel, which is asked: see path_calls.py.

Fault model: that of crates/uext4-capi/tests/paths.rs, in the calls of the Python package. Those
that it does not have are left out: mknod, renames that exchange or do not replace, fallocate, and
O_NOFOLLOW.
"""

import pathlib
import subprocess
import sys

import pytest
from path_calls import Ours, answers

import uext4

HERE = pathlib.Path(__file__).parent
CAP_SYS_ADMIN = 1 << 21


def may_mount():
    """Whether this process may mount without a user namespace, as root in CI."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.partition("CapEff:")[2].split()[0], 16) & CAP_SYS_ADMIN != 0


#: Before a program that may mount in a namespace of its own, and has no CAP_FSETID.
MOUNTING = [
    *("unshare", "--mount", "--propagation", "slave"),
    *(() if may_mount() else ("--map-root-user",)),
    *("setpriv", "--bounding-set", "-fsetid"),
]


def test_paths_mean_what_they_mean_to_the_kernel(image, tmp_path):
    tried = subprocess.run([*MOUNTING, "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        assert not may_mount(), tried.stderr
        pytest.skip(f"no mount namespace here, to ask the kernel: {tried.stderr.strip()}")
    table = (HERE / "../../uext4-capi/tests/paths.txt").read_text()
    root = tmp_path / "root"
    root.mkdir()
    program = [*MOUNTING, sys.executable, HERE / "path_calls.py", root]
    asked = subprocess.run(program, input=table, capture_output=True, text=True)
    assert asked.returncode == 0, asked.stderr
    expected = asked.stdout.splitlines()
    side = Ours(lambda mode: uext4.Volume(image, mode, owner=(0, 0)))
    try:
        given = list(answers(side, table))
    finally:
        side.volume.close()
    assert len(expected) > 300
    assert given == expected
