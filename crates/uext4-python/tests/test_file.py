"""Files of an image as files of `io`.

Fault model: a position, a size or bytes differ from those of a file of the host after the same
calls; a buffer is overrun or a short one is taken for full.
"""

import array
import io
import os
import random

import pytest


def test_a_file_does_what_a_file_of_the_host_does(volume, tmp_path):
    seed = 19
    draw = random.Random(seed)
    for mode in ("w+b", "r+b", "a+b"):
        host = open(tmp_path / "host", mode, buffering=0)
        ours = (volume / "file").open(mode, buffering=0)
        for step in range(400):
            size = draw.choice((0, 1, 511, 4096, 70_000))
            what = draw.choice(("write", "read", "readinto", "seek", "end", "truncate", "tell"))
            pair = []
            data = draw.randbytes(size)
            at = draw.randrange(300_000)
            for file in (host, ours):
                if what == "write":
                    done = file.write(data)
                elif what == "read":
                    done = file.read(size)
                elif what == "readinto":
                    buffer = bytearray(size)
                    done = (file.readinto(buffer), bytes(buffer))
                elif what == "seek":
                    done = file.seek(at)
                elif what == "end":
                    done = file.seek(-min(size, file.seek(0, 2)), os.SEEK_END)
                elif what == "truncate":
                    done = file.truncate(at)
                else:
                    done = file.tell()
                pair.append(done)
            assert pair[0] == pair[1], f"seed {seed}, {mode}, step {step}: {what}"
        host.close()
        ours.close()
        assert (volume / "file").read_bytes() == (tmp_path / "host").read_bytes(), mode


def test_buffers_of_io_work(volume):
    path = volume / "text"
    with path.open("w", encoding="utf-8", newline="\n") as file:
        assert isinstance(file, io.TextIOWrapper) and file.mode == "w"
        for number in range(5000):
            print("line", number, "\u00e4", file=file)
    with path.open(encoding="utf-8") as file:
        assert [line.split()[1] for line in file] == [str(n) for n in range(5000)]
        file.seek(0)
        assert file.readline() == "line 0 \u00e4\n"
    with path.open("rb") as file:
        assert isinstance(file, io.BufferedReader)
        assert file.read() == path.read_bytes() and file.raw.name == "/text"
    with path.open("r+b") as file:
        assert isinstance(file, io.BufferedRandom)
        file.seek(2)
        file.write(b"XX")
        file.seek(0)
        assert file.readline().startswith(b"liXX 0")
    path.write_text("a\r\nb\n", newline="")
    assert path.read_bytes() == b"a\r\nb\n" and path.read_text() == "a\nb\n"


def test_modes_are_those_of_open(volume):
    path = volume / "f"
    with pytest.raises(FileNotFoundError):
        path.open("r")
    with path.open("xb") as file:
        file.write(b"one")
    with pytest.raises(FileExistsError):
        path.open("xb")
    with path.open("ab") as file:
        file.write(b"two")
    assert path.read_bytes() == b"onetwo"
    with path.open("rb", 0) as file:
        assert not file.writable() and file.seekable() and not file.isatty()
        for refused in (lambda: file.write(b"x"), file.truncate, file.fileno):
            with pytest.raises(io.UnsupportedOperation):
                refused()
    with path.open("wb", 0) as file, pytest.raises(io.UnsupportedOperation):
        file.read(1)
    for wrong in ("", "rw", "r++", "q", "rbt"):
        with pytest.raises(ValueError):
            path.open(wrong)
    with pytest.raises(IsADirectoryError):
        (volume / "lost+found").open()
    with pytest.raises(IsADirectoryError):
        (volume / "/").open("w")
    # A link to nothing leads to where the file is made, but for "x".
    (volume / "link").symlink_to("target")
    with pytest.raises(FileExistsError):
        (volume / "link").open("x")
    (volume / "link").write_text("through")
    assert (volume / "target").read_text() == "through"


def test_offsets_of_their_own(volume):
    with (volume / "f").open("w+b", 0) as file:
        assert file.pwrite(b"world", 6) == 5
        assert file.pwrite(b"hello ", 0) == 6
        assert file.tell() == 0
        assert file.pread(100, 3) == b"lo world" and file.pread(5, 11) == b""
        buffer = bytearray(4)
        assert file.preadinto(buffer, 9) == 2 and buffer == b"ld\0\0"
        file.fsync()
        file.fsync(data_only=True)
        with pytest.raises(OverflowError):
            file.pread(1, -1)
    with (volume / "f").open("ab", 0) as file, pytest.raises(io.UnsupportedOperation):
        file.pwrite(b"x", 0)


def test_any_contiguous_buffer_is_taken(volume):
    with (volume / "f").open("w+b", 0) as file:
        numbers = array.array("I", range(1000))
        assert file.write(numbers) == 4000
        file.seek(0)
        back = array.array("I", bytes(4000))
        assert file.readinto(back) == 4000 and back == numbers
        assert file.readinto(bytearray()) == 0 and file.write(b"") == 0
        with pytest.raises(TypeError):
            file.readinto(b"constant")
        with pytest.raises(TypeError):
            file.write("text")
        with pytest.raises(BufferError):
            file.write(memoryview(bytes(10))[::2])


def test_holes_are_found(volume):
    with (volume / "f").open("w+b", 0) as file:
        file.seek(1 << 20)
        file.write(b"data")
        assert file.seek(0, os.SEEK_DATA) == 1 << 20
        assert file.seek(0, os.SEEK_HOLE) == 0
        with pytest.raises(OSError):
            file.seek(2 << 20, os.SEEK_DATA)
        with pytest.raises(OSError):
            file.seek(-1)


def test_a_full_image_says_so(volume):
    with pytest.raises(OSError, match="No space left") as caught:
        with (volume / "f").open("wb", 0) as file:
            for _ in range(100):
                file.write(bytes(1 << 20))
    assert caught.value.errno == 28
    (volume / "f").unlink()
