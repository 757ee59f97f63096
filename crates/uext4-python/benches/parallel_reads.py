"""How much faster several threads read files of one image than one thread does.

    python3 parallel_reads.py IMAGE [THREADS] [ROUNDS]

IMAGE is made if it does not exist. Each file is read in pieces of 1 MiB into a buffer of its
thread: first from the cache of the volume, then with a cache that is too small for them, from the
image. Rounds of one thread and of all alternate, and the medians are compared.
"""

import os
import statistics
import sys
import threading
import time

import uext4

FILES = 8
FILE_BYTES = 24 << 20
PIECE = 1 << 20


def make(image):
    uext4.mkfs(image, 512 << 20)
    with uext4.Volume(image, "r+") as volume:
        for number in range(FILES):
            (volume / f"file-{number}").write_bytes(os.urandom(FILE_BYTES))


def read(volume, numbers):
    buffer = bytearray(PIECE)
    for number in numbers:
        with (volume / f"file-{number}").open("rb", 0) as file:
            while file.readinto(buffer):
                pass


def timed(volume, threads):
    """Seconds in which so many threads read all files once."""
    workers = [
        threading.Thread(target=read, args=(volume, range(first, FILES, threads)))
        for first in range(threads)
    ]
    start = time.monotonic()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return time.monotonic() - start


def compare(image, threads, rounds, name, options):
    with uext4.Volume(image, options=options) as volume:
        read(volume, range(FILES))
        one, all_of_them = [], []
        for _ in range(rounds):
            one.append(timed(volume, 1))
            all_of_them.append(timed(volume, threads))
    one, several = statistics.median(one), statistics.median(all_of_them)
    size = FILES * FILE_BYTES / (1 << 20)
    print(
        f"{name}: 1 thread {size / one:.0f} MiB/s, {threads} threads {size / several:.0f} MiB/s: "
        f"{one / several:.2f} times as fast"
    )


def main():
    image = sys.argv[1]
    threads = int(sys.argv[2]) if len(sys.argv) > 2 else 8
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 11
    if not os.path.exists(image):
        make(image)
    print(f"{os.cpu_count()} processors, {rounds} rounds")
    compare(image, threads, rounds, "from the cache", "cache=512M")
    compare(image, threads, rounds, "from the image", "cache=32M")


if __name__ == "__main__":
    main()
