"""Opens and closes volumes and files over and over, and tells what stays behind.

    python3 open_close.py IMAGE [CYCLES]

IMAGE is made if it does not exist. The exit status is 1 if descriptors, threads or memory stay.
"""

import gc
import os
import sys
import time
import tracemalloc
from dataclasses import dataclass

import uext4

#: What an allocator keeps for itself may differ by so much, in bytes.
RESIDENT_MAX = 16 << 20
#: Objects of Python that caches keep, in bytes.
TRACED_MAX = 256 << 10
#: Larger blocks are tables of the interpreter (interned strings), which double now and then.
BLOCK_MAX = 64 << 10


@dataclass
class Growth:
    """What there is more of behind the cycles than before them."""

    cycles: int
    seconds: float
    descriptors: int
    threads: int
    resident: int
    traced: int

    def is_clean(self) -> bool:
        """Whether nothing stayed."""
        counts = self.descriptors <= 0 and self.threads <= 0
        return counts and self.resident < RESIDENT_MAX and self.traced < TRACED_MAX


def now():
    """Descriptors, threads, resident bytes, and bytes of Python's objects."""
    gc.collect()
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    descriptors = len(os.listdir("/proc/self/fd"))
    threads = len(os.listdir("/proc/self/task"))
    blocks = tracemalloc.take_snapshot().traces
    return descriptors, threads, resident, sum(b.size for b in blocks if b.size < BLOCK_MAX)


def cycle(image, number):
    """One life of a volume: each fourth one is for writing, each sixteenth is dropped open."""
    writes = number % 4 == 0
    volume = uext4.Volume(image, "r+" if writes else "r")
    if writes:
        (volume / "file").write_bytes(b"x" * 10_000)
        (volume / "file").setxattr("user.a", b"1")
    with (volume / "file").open("rb") as file:
        file.read(100)
    left = (volume / "file").open("rb")
    left.read(1)
    list(volume.root.iterdir())
    try:
        (volume / "missing").stat()
    except FileNotFoundError:
        pass
    if number % 16 != 1:
        volume.close()


def measure(image, cycles, warm_up):
    """The growth over so many cycles, after some that fill caches."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        for number in range(warm_up):
            cycle(image, number)
        tracemalloc.start()
        cycle(image, 0)
        before = now()
        start = time.monotonic()
        for number in range(cycles):
            cycle(image, number)
        seconds = time.monotonic() - start
        after = now()
        tracemalloc.stop()
    growth = Growth(cycles, seconds, *(b - a for a, b in zip(before, after)))
    print(growth)
    return growth


def main():
    image = sys.argv[1]
    cycles = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
    if not os.path.exists(image):
        uext4.mkfs(image, 64 << 20)
    sys.exit(0 if measure(image, cycles, warm_up=200).is_clean() else 1)


if __name__ == "__main__":
    main()
