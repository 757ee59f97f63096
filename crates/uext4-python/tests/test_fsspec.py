"""Images as a file system of fsspec.

Fault model: a URL names another file; what programs of fsspec call (walk, glob, get, put, cat) gives
other things than for a local folder; what was written stays in memory when the file system goes.
"""

import errno
import gc
import io
import pickle
import shutil

import pytest
from conftest import e2fsck

import uext4

fsspec = pytest.importorskip("fsspec")


def fill(root):
    (root / "etc" / "apt").mkdir(parents=True)
    (root / "etc" / "hostname").write_text("box\n")
    (root / "etc" / "apt" / "a.list").write_bytes(b"1" * 300_000)
    (root / "etc" / "apt" / "b.list").write_bytes(b"22")
    (root / "link").symlink_to("etc/hostname")
    return root


@pytest.fixture
def filled(image):
    with uext4.Volume(image, "r+") as volume:
        (volume / "lost+found").rmdir()
        fill(volume.root)
        # A walk that entered it would not end.
        (volume / "loop").symlink_to(".")
    return image


def test_urls(filled):
    image = str(filled)
    for url, options in [
        ("uext4:///etc/hostname", {"image": image}),
        ("uext4://etc/hostname", {"image": image}),
        ("uext4:///link", {"image": image}),
        (f"uext4://etc/hostname::file://{image}", {}),
        (f"uext4:///etc/hostname::{image}", {}),
    ]:
        with fsspec.open(url, "r", **options) as file:
            assert file.read() == "box\n", url
    fs, path = fsspec.core.url_to_fs(f"uext4://etc::file://{image}")
    assert path == "/etc" and fs.ls(path, detail=False) == ["/etc/apt", "/etc/hostname"]
    # A file lives longer than what has opened it.
    file = fsspec.open("uext4:///etc/apt/a.list", "rb", image=image).open()
    gc.collect()
    assert file.read() == b"1" * 300_000
    file.close()
    for wrong in ({}, {"image": image, "fo": image}):
        with pytest.raises(ValueError, match="needs an image"):
            fsspec.filesystem("uext4", **wrong)
    with pytest.raises(FileNotFoundError):
        fsspec.open("uext4:///nothing", image=image).open()


def test_an_image_elsewhere_is_read_by_a_copy(filled, tmp_path):
    memory = fsspec.filesystem("memory")
    memory.pipe("/disk.img", filled.read_bytes())
    options = {"simplecache": {"cache_storage": str(tmp_path / "cache")}}
    url = "uext4://etc/hostname::simplecache::memory://disk.img"
    with fsspec.open(url, "rb", **options) as file:
        assert file.read() == b"box\n"
    with pytest.raises(ValueError, match="simplecache::"):
        fsspec.open("uext4://etc/hostname::memory://disk.img").open()
    with pytest.raises(ValueError, match="only a local image"):
        fsspec.open(url, "rb", uext4={"writable": True}, **options)
    memory.rm("/disk.img")


def test_what_is_there_is_told_as_of_a_local_folder(filled, tmp_path):
    host = fill(tmp_path / "host")
    (host / "loop").symlink_to(".")
    local = fsspec.filesystem("file")
    fs = fsspec.filesystem("uext4", image=filled)

    def names(found, root):
        return sorted(name[len(root) :].strip("/") for name in found)

    base = str(host)
    for pattern in ("/**/*.list", "/etc/*", "/e?c/h*", "/nothing*"):
        assert names(fs.glob(pattern), "") == names(local.glob(base + pattern), base), pattern
    assert names(fs.find("/etc"), "/etc") == names(local.find(base + "/etc"), base + "/etc")
    assert fs.find("/") == ["/etc/apt/a.list", "/etc/apt/b.list", "/etc/hostname", "/link", "/loop"]
    assert fs.du("/etc") == local.du(base + "/etc") == 300_006
    for path in ("/etc", "/etc/hostname", "/link"):
        ours, theirs = fs.info(path), local.info(base + path)
        assert ours["size"] == theirs["size"] or ours["type"] == "directory", path
        assert ours["name"] == path and ours["islink"] == theirs["islink"]
        assert abs(ours["mtime"] - theirs["mtime"]) < 60
        assert fs.exists(path) and fs.isfile(path) == local.isfile(base + path), path
        assert fs.isdir(path) == local.isdir(base + path), path
    assert fs.info("/loop")["type"] == "link" and fs.info("/")["type"] == "directory"
    assert not fs.exists("/nothing") and fs.ls("/etc/hostname")[0]["size"] == 4
    assert fs.cat("/etc/hostname") == b"box\n"
    assert fs.cat_file("/etc/apt/a.list", 299_990, 300_100) == b"1" * 10
    assert fs.head("/etc/hostname", 2) == b"bo" and fs.created("/etc") and fs.modified("/etc")
    assert [row[0] for row in fs.walk("/")] == ["/", "/etc", "/etc/apt"]
    fs.get("/etc", str(tmp_path / "out"), recursive=True)
    assert (tmp_path / "out" / "apt" / "a.list").read_bytes() == b"1" * 300_000
    with pytest.raises(FileNotFoundError):
        fs.ls("/nothing", detail=False)


def test_a_writable_one(filled, tmp_path):
    (tmp_path / "source" / "deep").mkdir(parents=True)
    (tmp_path / "source" / "deep" / "f").write_bytes(b"f" * 100_000)
    with fsspec.filesystem("uext4", image=filled, writable=True) as fs:
        fs.put(str(tmp_path / "source"), "/new", recursive=True)
        assert fs.cat("/new/deep/f") == b"f" * 100_000
        fs.cp_file("/new/deep/f", "/copies/g")
        fs.mv("/new", "/moved")
        fs.pipe("/piped", b"piped")
        with fs.open("/piped", "ab") as file:
            file.write(b" and more")
        with fs.open("/text", "w") as file:
            file.write("text")
        fs.rm("/etc", recursive=True)
        fs.mkdir("/a/b")
        fs.makedirs("/a/b", exist_ok=True)
        with pytest.raises(FileExistsError):
            fs.makedirs("/a/b")
        fs.rmdir("/a/b")
        fs.touch("/piped", truncate=False)
        ukey = fs.ukey("/piped")
        fs.touch("/empty")
        fs.pipe("/piped", b"others")
        assert fs.ukey("/piped") != ukey
        with pytest.raises(NotImplementedError), fs.transaction:
            fs.open("/x", "wb")
    e2fsck(filled)
    with uext4.Volume(filled) as volume:
        files = {str(path) for path in volume.root.rglob("*") if path.is_file()}
        assert files == {"/copies/g", "/moved/deep/f", "/piped", "/text", "/empty"}
        assert (volume / "piped").read_bytes() == b"others"
        assert (volume / "text").read_text() == "text"


def test_a_file_is_not_copied_onto_itself(filled):
    with fsspec.filesystem("uext4", image=filled, writable=True) as fs:
        root = fs.volume.root
        (root / "hard").hardlink_to(root / "etc" / "hostname")
        for target in ("/etc/hostname", "/hard", "/link", "/loop/etc/hostname"):
            with pytest.raises(shutil.SameFileError):
                fs.cp_file("/etc/hostname", target)
            assert fs.cat("/etc/hostname") == b"box\n", target


def test_a_copy_is_whole_or_fails(filled):
    with fsspec.filesystem("uext4", image=filled, writable=True) as fs:
        root = fs.volume.root
        (root / "source").write_bytes(bytes(range(1, 251)) * 20_000)
        room = fs.volume.statfs()
        with (root / "filler").open("wb", 0) as file:
            left = room.f_bavail * room.f_frsize - (2 << 20)
            while left > 0:
                left -= file.write(b"f" * min(left, 1 << 20))
        with pytest.raises(OSError) as caught:
            fs.cp_file("/source", "/target")
        assert caught.value.errno == errno.ENOSPC
        # A writer that takes half of each piece, as one of the last blocks does.
        (root / "filler").unlink()
        write = uext4.File.write
        with pytest.MonkeyPatch.context() as patch:
            half = lambda file, data: write(file, memoryview(data)[: len(data) // 2 + 1])  # noqa: E731
            patch.setattr(uext4.File, "write", half)
            fs.cp_file("/source", "/target")
        assert fs.cat("/target") == fs.cat("/source")


def test_a_directory_that_is_there_is_made_on_a_read_only_image(filled):
    with fsspec.filesystem("uext4", image=filled) as fs:
        fs.makedirs("/etc/apt", exist_ok=True)
        fs.volume.path("/etc").mkdir(exist_ok=True, parents=True)
        with pytest.raises(OSError) as caught:
            fs.makedirs("/new", exist_ok=True)
        assert caught.value.errno == errno.EROFS


def test_a_file_system_that_goes_has_written_everything(filled, recwarn):
    fs = fsspec.filesystem("uext4", image=filled, writable=True)
    fs.pipe("/kept", b"kept")
    del fs
    gc.collect()
    e2fsck(filled)
    with fsspec.open("uext4:///kept", "wb", image=filled, writable=True) as file:
        file.write(b"again")
    gc.collect()
    e2fsck(filled)
    with uext4.Volume(filled, "r+") as volume:
        assert (volume / "kept").read_bytes() == b"again"
        # One that others have opened stays open.
        fs = fsspec.filesystem("uext4", volume=volume)
        fs.pipe("/kept", b"third")
        del fs
        gc.collect()
        assert (volume / "kept").read_bytes() == b"third"
    assert not [w for w in recwarn if issubclass(w.category, ResourceWarning)]


def test_a_read_only_one_says_how_to_write(filled):
    fs = fsspec.filesystem("uext4", image=str(filled))
    with pytest.raises(io.UnsupportedOperation, match="writable=True"):
        fs.open("/x", "wb")
    copy = pickle.loads(pickle.dumps(fs))
    assert copy.cat("/etc/hostname") == b"box\n"
