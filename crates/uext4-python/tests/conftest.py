"""Images for the tests. Each test that writes ends with e2fsck's opinion of its image."""

import faulthandler
import shutil
import subprocess

import pytest

import uext4

# A call that never gives the interpreter back would block every test behind it.
TEST_SECONDS_MAX = 120


@pytest.fixture(autouse=True)
def watchdog():
    faulthandler.dump_traceback_later(TEST_SECONDS_MAX, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def e2fsck(image, offset=0):
    """e2fsck must call the image clean, without a replay of its journal."""
    name = f"{image}?offset={offset}" if offset else str(image)
    done = subprocess.run(["e2fsck", "-fn", name], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "recovering journal" not in done.stdout


@pytest.fixture(scope="session")
def fresh_image(tmp_path_factory):
    path = tmp_path_factory.mktemp("fresh") / "fresh.img"
    uext4.mkfs(path, 48 << 20, label="test")
    return path


@pytest.fixture
def image(fresh_image, tmp_path):
    """An empty image, which e2fsck looks at behind the test."""
    path = tmp_path / "disk.img"
    shutil.copy(fresh_image, path)
    yield path
    e2fsck(path)


@pytest.fixture
def volume(image):
    with uext4.Volume(image, "r+") as volume:
        yield volume
