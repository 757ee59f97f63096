"""Four classic mistakes, and how they are mended.

mistakes.py NAME setup makes what the program finds, mistakes.py NAME wrong|right is the program,
mistakes.py NAME check-wrong|check-right judges what a loss of power has left.
"""
import os
import sys
import zlib

ROUNDS = 6


def content(n):
    return b"%d," % n * 3000


def write(path, data, sync):
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())


def sync_directory():
    directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(directory)
    os.close(directory)


def acknowledge(n):
    os.write(1, b"%d\n" % n)


def acknowledged():
    with open(os.environ["UEXT4_CRASHTEST_OUTPUT"]) as file:
        return [int(line) for line in file]


def new_name(right):
    """Data without a sync is renamed to a new name: the name may come before the data."""
    for n in range(ROUNDS):
        write("new", content(n), sync=right)
        os.rename("new", f"version-{n}")


def check_new_name(_right):
    for name in os.listdir("."):
        if name.startswith("version-"):
            n = int(name.removeprefix("version-"))
            assert open(name, "rb").read() == content(n), f"{name} has not its content"


def old_name(right):
    """The same over an old name: noauto_da_alloc takes away what ext4 does for such programs."""
    for n in range(ROUNDS):
        write("new", content(n), sync=right)
        os.rename("new", "current")


def check_old_name(_right):
    data = open("current", "rb").read()
    assert data in [content(n) for n in range(ROUNDS)], f"current has {len(data)} bytes"


def announced(right):
    """The data is durable, its name need not be when it is acknowledged."""
    for n in range(ROUNDS):
        write("new", content(n), sync=True)
        os.rename("new", f"version-{n}")
        if right:
            sync_directory()
        acknowledge(n)


def check_announced(_right):
    for n in acknowledged():
        assert open(f"version-{n}", "rb").read() == content(n), f"version-{n} has not its content"


def append(right):
    """Records behind one another; what is behind the last sync may be there in part."""
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    sync_directory()
    for n in range(ROUNDS):
        data = content(n)
        checksum = b"%08x" % zlib.crc32(data) if right else b""
        os.write(log, b"%08d" % len(data) + checksum + data)
        os.fsync(log)
        acknowledge(n)


def records(right):
    """What the program's own reader takes for records."""
    data = open("log", "rb").read() if os.path.exists("log") else b""
    header = 16 if right else 8
    while len(data) >= header:
        if not data[:8].isdigit():
            return
        end = header + int(data[:8])
        record = data[header:end]
        if end > len(data) or right and data[8:16] != b"%08x" % zlib.crc32(record):
            return
        yield record
        data = data[end:]


def check_append(right):
    found = list(records(right))
    assert len(found) >= len(acknowledged()), f"only {len(found)} records"
    for n, record in enumerate(found):
        assert record == content(n), f"record {n} is none that was written"


def main(name, how):
    if how == "setup":
        write("current", content(0), sync=False)
    else:
        function = "check_" + name if how.startswith("check-") else name
        globals()[function](how.endswith("right"))


main(sys.argv[1], sys.argv[2])
