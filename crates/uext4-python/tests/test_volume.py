"""Opening and closing volumes.

Fault model: a volume stays open, or its image locked, behind `close`; what was written is lost when
the object or the interpreter goes; a child of fork writes to the image of its parent.
"""

import copy
import errno
import gc
import os
import pickle
import subprocess
import sys
import uuid

import pytest
from conftest import e2fsck
from nbd_server import Server

import uext4


def test_a_read_only_volume_changes_nothing(image):
    before = image.read_bytes()
    with uext4.Volume(image) as volume:
        assert volume.read_only
        with pytest.raises(OSError) as caught:
            (volume / "x").mkdir()
        assert caught.value.errno == errno.EROFS
        # Readers share the image.
        with uext4.Volume(image) as other:
            assert (other / "lost+found").is_dir()
    assert image.read_bytes() == before


def test_a_file_of_a_read_only_volume_is_not_opened_to_write(image):
    with uext4.Volume(image, "r+") as volume:
        (volume / "a").write_bytes(b"a")
    with uext4.Volume(image) as volume:
        for mode in ("r+", "a", "w", "w+", "rb+", "x"):
            with pytest.raises(OSError) as caught:
                (volume / ("new" if mode == "x" else "a")).open(mode)
            assert caught.value.errno == errno.EROFS, mode
        assert (volume / "a").read_bytes() == b"a"


def test_a_writer_has_the_image_alone_and_gives_it_back(image):
    volume = uext4.Volume(image, "r+")
    file = (volume / "a").open("wb")
    file.write(b"in the buffer")
    for mode in ("r", "r+"):
        with pytest.raises(OSError, match="in use") as caught:
            uext4.Volume(image, mode)
        assert caught.value.errno == errno.EBUSY
    volume.close()
    volume.close()
    assert volume.closed and file.closed
    # The file object lives, and the image is free all the same.
    with uext4.Volume(image, "r+") as again:
        assert (again / "a").read_bytes() == b"in the buffer"
    with uext4.Volume(image) as again:
        assert (again / "a").stat().st_size == 13


def test_each_use_of_a_closed_volume_is_a_value_error(image):
    volume = uext4.Volume(image, "r+")
    raw = (volume / "a").open("w+b", 0)
    volume.close()
    uses = [
        lambda: volume / "a" / "b" and (volume / "a").stat(),
        lambda: (volume / "a").read_bytes(),
        lambda: list(volume.root.iterdir()),
        lambda: (volume / "a").exists(),
        volume.sync,
        volume.statfs,
        volume.stats,
        volume.__enter__,
        lambda: raw.read(1),
        lambda: raw.pwrite(b"x", 0),
        raw.tell,
        raw.fsync,
        raw.truncate,
        raw.readable,
    ]
    for number, use in enumerate(uses):
        with pytest.raises(ValueError, match="closed"):
            print(number, use())
    # A core whose volume was closed below it.
    with uext4.Volume(image, "r+") as volume:
        raw = (volume / "a").open("rb", 0)
        volume.core.close()
        with pytest.raises(ValueError, match="closed file"):
            raw.read(1)


def test_a_volume_cannot_be_copied(image):
    with uext4.Volume(image, "r+") as volume:
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError):
                copied(volume)
        gc.collect()
        (volume / "a").write_bytes(b"a")


def test_an_owner_is_for_as_long_as_the_volume(image):
    with uext4.Volume(image, "r+", owner=(7, 8)) as volume:
        assert volume.owner == (7, 8)
        with pytest.raises(AttributeError):
            volume.owner = (1, 2)
        path = volume / "a"
        path.touch()
        assert (path.stat().st_uid, path.stat().st_gid) == (7, 8)
        # Set-group-id without the right to run it goes by a write from outside the group alone.
        for group, left in ((8, 0o2644), (9, 0o644)):
            path.chown(7, group)
            path.chmod(0o2644)
            path.write_bytes(b"x")
            assert path.stat().st_mode & 0o7777 == left, group


def test_options_are_the_words_of_a_mount(image):
    for options in ("noatime,commit=1,io=pread", ["noatime", "commit=1"], "ro", ""):
        uext4.Volume(image, "r+", options=options).close()
    for options, why in [
        ("frobnicate", "frobnicate"),
        ("commit=x", "commit"),
        ("io=never", "io"),
        ("allow_other", "allow_other"),
    ]:
        with pytest.raises(ValueError, match=why):
            uext4.Volume(image, options=options)
    with pytest.raises(ValueError, match="invalid mode"):
        uext4.Volume(image, "w")


def test_what_cannot_be_opened_is_told_in_one_line(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        uext4.Volume(tmp_path / "missing")
    assert caught.value.filename == str(tmp_path / "missing")
    with pytest.raises(IsADirectoryError):
        uext4.Volume(tmp_path)
    for content in (b"", b"x" * 5000, bytes(1 << 20)):
        (tmp_path / "none").write_bytes(content)
        with pytest.raises(OSError) as caught:
            uext4.Volume(tmp_path / "none")
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="nbd"):
        uext4.Volume("nbd://")
    with pytest.raises(FileNotFoundError, match="no connection"):
        uext4.Volume(f"nbd+unix:///?socket={tmp_path}/missing")


def test_a_failed_mkfs_removes_what_it_made_alone(tmp_path):
    link, file = tmp_path / "link", tmp_path / "file"
    link.symlink_to("nothing")
    for path in (link, file):
        with pytest.raises(ValueError):
            uext4.mkfs(path, 4096)
    assert link.is_symlink() and not file.exists()
    # What was there is as it was: a hole, and data.
    hole, data = tmp_path / "hole", tmp_path / "data"
    hole.touch()
    os.truncate(hole, 12345)
    data.write_bytes(b"data" * 1000)
    for path, more in ((hole, {}), (data, {"force": True})):
        before = path.read_bytes()
        with pytest.raises(ValueError):
            uext4.mkfs(path, 8 << 20, block_size=5, **more)
        assert path.read_bytes() == before
    uext4.mkfs(data, 8 << 20, force=True)
    e2fsck(data)
    assert data.stat().st_size == 8 << 20


def test_a_volume_that_is_dropped_warns_and_is_closed(image):
    volume = uext4.Volume(image, "r+")
    file = (volume / "a").open("wb")
    file.write(b"kept")
    with pytest.warns(ResourceWarning, match="unclosed volume"):
        del volume, file
        gc.collect()
    e2fsck(image)
    with uext4.Volume(image) as volume:
        assert (volume / "a").read_bytes() == b"kept"


def test_a_volume_that_is_dropped_is_closed_where_warnings_are_errors(image):
    script = """
import gc, sys, uext4
volume = uext4.Volume(sys.argv[1], "r+")
core = volume.core
del volume
gc.collect()
assert core.closed
"""
    python = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run([*python, image], capture_output=True, text=True)
    assert done.returncode == 0 and "ResourceWarning" in done.stderr, done.stderr


def test_at_the_end_a_volume_that_fails_leaves_no_other_open(image, tmp_path):
    class Bad(uext4.Volume):
        def close(self):
            super().close()
            raise RuntimeError("injected")

    uext4.mkfs(tmp_path / "other.img", 8 << 20)
    volumes = [Bad(name, "r+") for name in (image, tmp_path / "other.img")]
    with pytest.warns(RuntimeWarning, match="injected"):
        uext4._volume._close_all()
    assert all(volume.closed for volume in volumes)


def test_the_end_of_the_interpreter_closes_volumes(image):
    script = """
import sys, uext4
volume = uext4.Volume(sys.argv[1], "r+")
file = (volume / "a").open("w")
file.write("text")
if len(sys.argv) > 2:
    raise SystemExit(3)
"""
    for arguments, status in ([], 0), (["raise"], 3):
        done = subprocess.run([sys.executable, "-c", script, image, *arguments])
        assert done.returncode == status
        e2fsck(image)
        with uext4.Volume(image, "r+") as volume:
            assert (volume / "a").read_text() == "text"
            (volume / "a").unlink()


def test_a_child_of_fork_leaves_the_volume_alone(image):
    with uext4.Volume(image, "r+") as volume:
        file = (volume / "a").open("wb", 0)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for use in (volume.sync, lambda: file.write(b"child"), volume.root.stat):
                    try:
                        use()
                    except ValueError as error:
                        assert "fork" in str(error) or "closed" in str(error)
                    else:
                        raise AssertionError("the child used the volume")
                volume.close()
                del volume, file
                gc.collect()
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        file.write(b"parent")
        assert (volume / "a").read_bytes() == b"parent"


def test_the_file_system_tells_of_itself(volume):
    assert volume.label == "test"
    volume.label = "other"
    assert volume.label == "other"
    assert isinstance(volume.uuid, uuid.UUID)
    space = volume.statfs()
    assert space.f_frsize in (1024, 4096) and 0 < space.f_bavail <= space.f_bfree < space.f_blocks
    (volume / "a").write_bytes(bytes(100_000))
    volume.sync()
    assert volume.statfs().f_bfree < space.f_bfree
    stats = volume.stats()
    assert stats["transactions"] >= 1
    assert stats["latencies"]["write"]["calls"] >= 1


def test_mkfs_overwrites_nothing_unasked(tmp_path):
    path = tmp_path / "new.img"
    number = uuid.uuid4()
    made = uext4.mkfs(path, 8 << 20, uuid=number, label="one", block_size=4096, root_mode=0o700)
    assert made["uuid"] == number and made["blocks"] == 2048
    e2fsck(path)
    before = path.read_bytes()
    for size in (8 << 20, None):
        with pytest.raises(FileExistsError):
            uext4.mkfs(path, size)
    for wrong in ({"fs_type": "xfs"}, {"features": "frobnicate"}, {"block_size": 5}):
        with pytest.raises(ValueError):
            uext4.mkfs(tmp_path / "wrong.img", 8 << 20, **wrong)
        assert not (tmp_path / "wrong.img").exists()
    assert path.read_bytes() == before
    with uext4.Volume(path) as volume:
        assert volume.root.stat().st_mode == 0o40700
    uext4.mkfs(path, force=True, fs_type="ext2")
    e2fsck(path)
    assert len(path.read_bytes()) == 8 << 20


def test_a_forced_mkfs_spares_what_another_host_has(tmp_path):
    data = bytearray(8 << 20)
    (tmp_path / "disk.img").write_bytes(b"")
    uext4.mkfs(tmp_path / "disk.img", len(data), features="mmp")
    data[:] = (tmp_path / "disk.img").read_bytes()
    server = Server(tmp_path, data)
    try:
        with uext4.Volume(server.uri, "r+", options="mmp_node=other") as volume:
            number = volume.uuid
            with pytest.raises(OSError, match="'other'") as caught:
                uext4.mkfs(server.uri, force=True)
            assert caught.value.errno == errno.EBUSY
            (volume / "a").write_bytes(b"a")
        with uext4.Volume(server.uri) as volume:
            assert volume.uuid == number
        assert uext4.mkfs(server.uri, force=True)["uuid"] != number
    finally:
        server.close()


def test_with_an_epoch_images_are_the_same_bytes(tmp_path):
    for name in "ab":
        uext4.mkfs(tmp_path / name, 8 << 20, epoch=1_700_000_000)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_fsck_tells_what_is_wrong(image, tmp_path):
    assert uext4.fsck(image)
    broken = tmp_path / "broken.img"
    data = bytearray(image.read_bytes())
    # The count of free blocks in the superblock.
    data[1024 + 12] ^= 0x55
    broken.write_bytes(data)
    found = uext4.fsck(broken, threads=1)
    assert not found and not found.clean and found.findings
    assert found.findings[0].code and str(found.findings[0])
    with pytest.raises(OSError):
        (tmp_path / "none").write_bytes(bytes(1 << 20))
        uext4.fsck(tmp_path / "none")
