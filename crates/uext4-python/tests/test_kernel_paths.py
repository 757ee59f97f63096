"""Paths of every shape mean what they mean to the kernel, which is asked: see path_calls.py.

Fault model: that of crates/uext4-capi/tests/paths.rs, in the calls of the Python package.
"""

import pathlib
import subprocess
import sys

import pytest
from path_calls import Ours, answers

import uext4

HERE = pathlib.Path(__file__).parent
MOUNTING = ["unshare", "--mount", "--map-root-user", "setpriv", "--bounding-set", "-fsetid"]


def test_paths_mean_what_they_mean_to_the_kernel(image, tmp_path):
    if subprocess.run([*MOUNTING, "true"], capture_output=True).returncode != 0:
        pytest.skip("no mounts in a user namespace here, to ask the kernel")
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
