"""The examples do what they say.

Fault model: a name that they use is no more; what they print differs.
"""

import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"


def test_images():
    pytest.importorskip("fsspec")
    command = [sys.executable, "-W", "error", EXAMPLES / "images.py"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:4] == [
        "/etc/hostname 4",
        "/etc/motd 9",
        "/srv/data/numbers.bin 256000",
        "Example Linux 1",
    ]
    assert lines[4:] == ["file 6 /etc/hostname", "file 45 /etc/os-release", "Welcome."]
