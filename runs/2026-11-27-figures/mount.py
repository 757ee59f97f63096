#!/usr/bin/env python3
"""Figures that docs/mount.md and docs/device.md name: what options of a mount cost.

    mount.py UEXT4 [ROUNDS]

As root (drop_caches). Makes images in DIR (TMPDIR, else /var/tmp), mounts them with each option in
turns, prints medians and [least-most] of the rounds, and removes what it made.
"""
import os, statistics, subprocess, sys, tempfile, time

UEXT4 = os.path.abspath(sys.argv[1])
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 5


class Mount:
    """A fresh image, mounted with these options; `keep` mounts it again instead."""

    def __init__(self, folder, options, keep=False):
        self.image, self.dir = f"{folder}/image", f"{folder}/mnt"
        os.makedirs(self.dir, exist_ok=True)
        if not keep:
            subprocess.run([UEXT4, "mkfs", "-q", "-F", self.image, "1G"], check=True)
        words = [UEXT4, "mount", self.image, self.dir]
        subprocess.run(words + (["-o", options] if options else []), check=True)

    def __enter__(self):
        return self.dir

    def __exit__(self, *_):
        subprocess.run([UEXT4, "umount", self.dir], check=True)


def each(calls, function):
    """Microseconds of a call of `function(number)`."""
    begin = time.perf_counter()
    for number in range(calls):
        function(number)
    return (time.perf_counter() - begin) / calls * 1e6


def getxattr(folder, options):
    with Mount(folder, options) as top:
        path = f"{top}/file"
        open(path, "w").close()
        os.setxattr(path, "user.a", b"value")
        return {"getxattr, us": each(20000, lambda _: os.getxattr(path, "user.a"))}


def appends(folder, options):
    with Mount(folder, options) as top:
        handle = os.open(f"{top}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        data = bytes(100)
        append = each(20000, lambda _: os.write(handle, data))
        os.close(handle)

        def create(number):
            handle = os.open(f"{top}/{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            os.write(handle, bytes(4096))
            os.close(handle)

        made = each(5000, create)
        gone = each(5000, lambda number: os.unlink(f"{top}/{number}"))
    return {"append of 100 bytes, us": append, "create 4 KiB, us": made, "unlink, us": gone}


def reads(folder, options):
    with Mount(folder, options) as top:
        with open(f"{top}/file", "wb") as file:
            file.write(bytes(4096))
        handle = os.open(f"{top}/file", os.O_RDONLY)
        figure = each(20000, lambda _: os.pread(handle, 4096, 0))
        os.close(handle)
    return {"read of 4 KiB, us": figure}


def fill(folder):
    """One file of 300 MB and 3,000 small ones."""
    with Mount(folder, "") as top:
        with open(f"{top}/large", "wb") as file:
            for _ in range(300):
                file.write(os.urandom(1 << 20))
        for number in range(3000):
            with open(f"{top}/{number}", "wb") as file:
                file.write(os.urandom(8000))


def cold(folder, options):
    def read(path):
        with open(path, "rb", buffering=0) as file:
            while file.read(1 << 17):
                pass

    figures = {}
    for name, paths in (("300 MB, s", ["large"]), ("3,000 files, s", map(str, range(3000)))):
        subprocess.run(["sync"], check=True)
        with open("/proc/sys/vm/drop_caches", "w") as file:
            file.write("3")
        with Mount(folder, options, keep=True) as top:
            begin = time.perf_counter()
            for path in paths:
                read(f"{top}/{path}")
            figures[name] = time.perf_counter() - begin
    return figures


def table(title, function, variants, prepare=None):
    """Rounds in turns; a line of each variant."""
    found = {name: {} for name in variants}
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as folder:
        if prepare:
            prepare(folder)
        for _ in range(ROUNDS):
            for name in variants:
                for metric, value in function(folder, name).items():
                    found[name].setdefault(metric, []).append(value)
    print(f"\n{title}")
    for name, metrics in found.items():
        cells = [
            f"{metric} {statistics.median(values):.3g} [{min(values):.3g}-{max(values):.3g}]"
            for metric, values in metrics.items()
        ]
        print(f"  {name or 'default':16} {', '.join(cells)}")


table("Sandbox", getxattr, ["", "no_sandbox"])
table("Write-back cache of the kernel", appends, ["", "writeback_cache"])
table("Access times", reads, ["", "strictatime"])
table("Cold reads by the mount", cold, ["direct", "nodirect"], fill)
