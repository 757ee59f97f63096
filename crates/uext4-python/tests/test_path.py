"""Paths of an image beside `pathlib` on the host.

Fault model: a method finds, tells or raises other things than its counterpart.
"""

import errno
import os
import pathlib
import stat

import pytest

import uext4


def tree(root):
    """The same tree below either root."""
    (root / "etc" / "apt" / "conf.d").mkdir(parents=True)
    (root / "etc" / "hostname").write_text("box\n")
    (root / "etc" / "apt" / "a.list").write_bytes(b"1")
    (root / "etc" / "apt" / "b.list").write_bytes(b"22")
    (root / "etc" / "apt" / "conf.d" / "c.list").write_bytes(b"333")
    (root / "etc" / ".hidden").write_bytes(b"")
    (root / "name").symlink_to("etc/hostname")
    (root / "dir").symlink_to("etc/apt")
    (root / "broken").symlink_to("nowhere")
    (root / "loop").symlink_to("loop")
    (root / "etc" / "hard").hardlink_to(root / "etc" / "hostname")
    return root


@pytest.fixture
def both(volume, tmp_path):
    (tmp_path / "host").mkdir()
    (volume / "t").mkdir()
    return tree(tmp_path / "host"), tree(volume / "t")


def test_patterns_find_the_same(both):
    host, ours = both
    for pattern in (
        "*", "etc/*", "**/*.list", "**/*", "e?c/[ab]*", "etc/apt/*.list", "nothing*", "**/conf.d",
        "name", "etc/hostname", "dir/*", "*/apt/*", "etc/**/c.list",
    ):
        want = sorted(str(path.relative_to(host)) for path in host.glob(pattern))
        found = sorted(str(path.relative_to(ours)) for path in ours.glob(pattern))
        assert found == want, pattern
    assert sorted(p.name for p in ours.rglob("*.list")) == ["a.list", "b.list", "c.list"]
    with pytest.raises(ValueError):
        list(ours.glob("/etc"))


def test_questions_have_the_same_answers(both):
    host, ours = both
    for name in (
        "etc", "etc/hostname", "name", "dir", "broken", "loop", "nothing", "etc/hostname/x", "dir/..",
        "dir/a.list", "etc/hard",
    ):
        for question in ("exists", "is_dir", "is_file", "is_symlink"):
            want = getattr(host / name, question)()
            assert getattr(ours / name, question)() == want, (name, question)
    for name in ("etc", "etc/hostname", "name", "etc/apt/b.list"):
        for look in ("stat", "lstat"):
            want, found = getattr(host / name, look)(), getattr(ours / name, look)()
            for field in ("st_size", "st_nlink", "st_uid", "st_gid"):
                if field == "st_size" and stat.S_ISDIR(want.st_mode):
                    continue
                assert getattr(found, field) == getattr(want, field), (name, field)
            assert stat.S_IFMT(found.st_mode) == stat.S_IFMT(want.st_mode)
            assert abs(found.st_mtime_ns - want.st_mtime_ns) < 60 * 10**9
            assert found.st_mtime == pytest.approx(found.st_mtime_ns / 1e9)


def test_a_walk_is_the_same(both):
    host, ours = both

    def shape(walk, root):
        return [(str(top.relative_to(root)), sorted(d), sorted(f)) for top, d, f in walk]

    def on_host(top_down, follow):
        for top, dirs, files in os.walk(host, top_down, followlinks=follow):
            # As `pathlib` has it, a link to a directory is not one unless it is followed.
            links = [] if follow else [d for d in dirs if os.path.islink(os.path.join(top, d))]
            dirs = [name for name in dirs if name not in links]
            yield pathlib.Path(top), dirs, files + links

    for top_down in (True, False):
        for follow in (False, True):
            want = sorted(shape(on_host(top_down, follow), host))
            assert sorted(shape(ours.walk(top_down, None, follow), ours)) == want
    order = [str(top.relative_to(ours)) for top, _, _ in ours.walk()]
    assert order.index("etc") < order.index("etc/apt") < order.index("etc/apt/conf.d")
    order = [str(top.relative_to(ours)) for top, _, _ in ours.walk(top_down=False)]
    assert order.index("etc") > order.index("etc/apt") > order.index("etc/apt/conf.d")
    # Names that a caller takes out are not entered.
    seen = []
    for top, dirs, _ in ours.walk():
        seen.append(top.name)
        dirs[:] = [name for name in dirs if name != "apt"]
    assert "etc" in seen and "apt" not in seen
    errors = []
    assert list((ours / "nothing").walk(on_error=errors.append)) == []
    assert isinstance(errors[0], FileNotFoundError)


def test_failures_are_the_same(both):
    host, ours = both
    calls = [
        lambda root: (root / "nothing").stat(),
        lambda root: (root / "nothing").unlink(),
        lambda root: (root / "etc").mkdir(),
        lambda root: (root / "name").mkdir(exist_ok=True),
        lambda root: (root / "x" / "y").mkdir(),
        lambda root: (root / "etc" / "hostname" / "y").mkdir(),
        lambda root: (root / "etc").rmdir(),
        lambda root: (root / "etc" / "hostname").rmdir(),
        lambda root: (root / "etc").unlink(),
        lambda root: (root / "loop").read_bytes(),
        lambda root: (root / "etc").read_bytes(),
        lambda root: (root / "etc" / "hostname").readlink(),
        lambda root: (root / "name").symlink_to("x"),
        lambda root: (root / "etc" / "hard").hardlink_to(root / "nothing"),
        lambda root: (root / "etc").rename(root / "etc" / "hostname"),
        lambda root: (root / "etc").rename(root / "etc" / "apt" / "x"),
        lambda root: list((root / "etc" / "hostname").iterdir()),
        lambda root: (root / ("n" * 256)).write_bytes(b""),
        lambda root: (root / "nothing").chmod(0o600),
    ]
    for number, call in enumerate(calls):
        with pytest.raises(OSError) as want:
            call(host)
        with pytest.raises(OSError) as found:
            call(ours)
        assert type(found.value) is type(want.value), number
        assert found.value.errno == want.value.errno, number
        if want.value.errno != errno.EINVAL:
            # What is invalid is told in more words.
            assert found.value.strerror == want.value.strerror, number


def test_names_are_those_of_pathlib(volume):
    path = volume / "a" / "b.tar.gz"
    pure = pathlib.PurePosixPath("/a/b.tar.gz")
    for field in ("name", "stem", "suffix", "suffixes", "parts"):
        assert getattr(path, field) == getattr(pure, field)
    assert str(path.parent) == "/a" and [str(p) for p in path.parents] == ["/a", "/"]
    assert path == volume.path("a", "b.tar.gz") == volume.root.joinpath("a", "b.tar.gz")
    assert path.with_suffix(".x").name == "b.tar.x" and path.with_name("c").name == "c"
    assert path.match("*.gz") and path.is_relative_to("/a") and hash(path) == hash(volume / str(path))
    assert volume / "a" < volume / "b" and path != "/a/b.tar.gz"
    assert str(volume / "a" / "/etc") == "/etc"
    with pytest.raises(TypeError):
        os.fspath(path)


def test_names_are_changed(volume, image):
    path = volume / "a"
    path.touch(0o600)
    path.touch()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o4751)
    assert stat.S_IMODE(path.stat().st_mode) == 0o4751
    path.chown(1000, 1001)
    assert (path.stat().st_uid, path.stat().st_gid) == (1000, 1001)
    path.chown(gid=5)
    assert (path.stat().st_uid, path.stat().st_gid) == (1000, 5)
    path.utime(ns=(1, -2))
    assert (path.stat().st_atime_ns, path.stat().st_mtime_ns) == (1, -2)
    path.truncate(10)
    assert path.stat().st_size == 10
    moved = path.rename("/b")
    assert moved == volume / "b" and not path.exists() and moved.samefile(volume / "b")
    (volume / "c").write_bytes(b"c")
    (volume / "c").replace(moved)
    assert moved.read_bytes() == b"c"
    moved.unlink()
    moved.unlink(missing_ok=True)


def test_attributes(volume):
    path = volume / "a"
    path.write_bytes(b"")
    path.setxattr("user.one", b"1")
    path.setxattr("user.two", bytes(range(200)))
    assert sorted(path.listxattr()) == ["user.one", "user.two"]
    assert path.getxattr("user.two") == bytes(range(200))
    with pytest.raises(FileExistsError):
        path.setxattr("user.one", b"2", os.XATTR_CREATE)
    path.setxattr("user.one", b"2", os.XATTR_REPLACE)
    path.removexattr("user.one")
    for call in (lambda: path.getxattr("user.one"), lambda: path.removexattr("user.one")):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == 61


def test_names_that_are_no_utf_8(volume):
    name = os.fsdecode(b"caf\xe9")
    (volume / name).write_bytes(b"x")
    assert [p.name for p in volume.root.glob("caf*")] == [name]
    with pytest.raises(FileNotFoundError) as caught:
        (volume / "x\udcff").stat()
    assert caught.value.filename == "/x\udcff"
    (volume / name).unlink()


def test_volumes_do_not_mix(volume, tmp_path):
    uext4.mkfs(tmp_path / "other.img", 8 << 20)
    with uext4.Volume(tmp_path / "other.img", "r+") as other:
        (volume / "a").write_bytes(b"")
        assert volume / "a" != other / "a"
        with pytest.raises(OSError) as caught:
            (volume / "a").rename(other / "a")
        assert caught.value.errno == 18


def test_a_large_directory(volume):
    directory = volume / "many"
    directory.mkdir()
    names = {f"file-{number:05}" for number in range(3000)}
    for name in names:
        (directory / name).open("xb", 0).close()
    assert {path.name for path in directory.iterdir()} == names
