"""Threads, and the interpreter during I/O.

Fault model: a call keeps the interpreter while it waits; threads get each other's bytes, or block
each other for good.
"""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import e2fsck
from nbd_server import Server

import uext4


def test_the_interpreter_is_free_during_each_call_that_waits(tmp_path):
    """The device is served by another thread of this interpreter: a call that keeps it waits for
    ever, and the watchdog ends the tests."""
    data = bytearray(16 << 20)
    server = Server(tmp_path, data)
    try:
        uext4.mkfs(server.uri, size=16 << 20)
        assert uext4.fsck(server.uri)
        with uext4.Volume(server.uri, "r+", options="nbd_timeout=20") as volume:
            (volume / "d").mkdir()
            with (volume / "d" / "f").open("w+b", 0) as file:
                file.write(b"x" * 3_000_000)
                file.fsync()
            volume.sync()
            (volume / "d" / "f").setxattr("user.a", b"1")
        with uext4.Volume(server.uri) as volume:
            assert [p.name for p in volume.root.glob("d/*")] == ["f"]
            with (volume / "d" / "f").open("rb", 0) as file:
                buffer = bytearray(1000)
                assert file.readinto(buffer) == 1000
                assert file.pread(10, 2_999_995) == b"xxxxx"
                assert file.readall() == b"x" * 2_999_000
            assert (volume / "d" / "f").getxattr("user.a") == b"1"
    finally:
        server.close()
    (tmp_path / "copy.img").write_bytes(data)
    e2fsck(tmp_path / "copy.img")


def test_a_thread_goes_on_while_another_one_waits_for_the_device(tmp_path):
    data = bytearray(16 << 20)
    server = Server(tmp_path, data)
    blocked, go_on = threading.Event(), threading.Event()
    try:
        uext4.mkfs(server.uri)
        with uext4.Volume(server.uri, "r+") as volume:
            (volume / "f").write_bytes(b"x" * 100_000)
        with uext4.Volume(server.uri) as volume, ThreadPoolExecutor(1) as pool:
            path = volume / "f"
            path.stat()

            def wait():
                blocked.set()
                go_on.wait()

            server.before_read = wait
            reader = pool.submit(path.read_bytes)
            blocked.wait()
            # The reader waits in the engine; this thread works, also on the volume.
            assert sum(range(100_000)) == 4999950000
            assert path.stat().st_size == 100_000 and not reader.done()
            go_on.set()
            assert reader.result() == b"x" * 100_000
    finally:
        go_on.set()
        server.close()


def test_threads_read_and_write_side_by_side(volume):
    with (volume / "shared").open("w+b", 0) as shared:

        def work(number):
            mine = random.Random(number)
            own = volume / f"own-{number}"
            own.mkdir()
            for step in range(30):
                data = mine.randbytes(5000)
                shared.pwrite(data, (number * 30 + step) * 5000)
                (own / str(step)).write_bytes(data)
                assert (own / str(step)).read_bytes() == data
                assert shared.pread(5000, (number * 30 + step) * 5000) == data
            for path in own.iterdir():
                path.unlink()
            own.rmdir()

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
    content = (volume / "shared").read_bytes()
    for number in range(8):
        mine = random.Random(number)
        for step in range(30):
            at = (number * 30 + step) * 5000
            assert content[at : at + 5000] == mine.randbytes(5000), (number, step)


def test_a_shared_position_gives_each_byte_once(volume):
    (volume / "f").write_bytes(b"".join(number.to_bytes(4, "big") for number in range(50_000)))
    with (volume / "f").open("rb", 0) as file:

        def read(_):
            found = []
            while piece := file.read(400):
                found.append(piece)
            return found

        with ThreadPoolExecutor(8) as pool:
            pieces = [piece for found in pool.map(read, range(8)) for piece in found]
    numbers = sorted(int.from_bytes(p[i : i + 4], "big") for p in pieces for i in range(0, len(p), 4))
    assert numbers == list(range(50_000))


def test_a_volume_is_closed_under_the_hands_of_threads(image):
    for _ in range(5):
        volume = uext4.Volume(image, "r+")
        (volume / "f").write_bytes(bytes(100_000))
        ends = []

        def work(volume=volume, ends=ends):
            try:
                with (volume / "f").open("r+b", 0) as file:
                    while True:
                        file.pwrite(b"x", 50_000)
                        file.pread(1000, 0)
            except (ValueError, OSError) as error:
                ends.append(error)

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        time.sleep(0.02)
        volume.close()
        for thread in threads:
            thread.join()
        assert len(ends) == 6
        for error in ends:
            # One that was under way is refused as by a volume that is being closed.
            assert isinstance(error, ValueError) or error.errno == 30, error
        e2fsck(image)
        with uext4.Volume(image, "r+"):
            pass


def test_errors_of_threads_are_their_own(volume):
    def look(number):
        with pytest.raises(FileNotFoundError) as caught:
            (volume / f"missing-{number}").stat()
        return caught.value.filename

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(look, range(100))) == [f"/missing-{n}" for n in range(100)]
