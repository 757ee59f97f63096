#!/usr/bin/env python3
"""Random synced writes into files of preset size: pieces on the device, and time to read back.

preset.py --uext4 NAME=BINARY ... --dir DIR --rounds N > preset.jsonl   (as root, with loop and FUSE)
Each side in turn makes a new image (its file preallocated)'s files through its own mount; all files are read back through a kernel mount of
the image on a loop device with direct I/O, after dropping caches, with O_DIRECT in requests of 64 KiB, from the first byte to the last.
"""
import argparse, json, mmap, os, random, subprocess, time

MIB = 1 << 20
LOADS = [("8 MiB in 4 KiB", 8 * MIB, 4096, "write"), ("64 MiB in 16 KiB", 64 * MIB, 16384, "write"),
         ("1 MiB mapped by two processes", MIB, 4096, "mmap")]

def sh(*args):
    return subprocess.run(args, check=True, capture_output=True, text=True).stdout.strip()

def places(size, unit, seed):
    order = list(range(0, size, unit))
    random.Random(seed).shuffle(order)
    return order

def write_load(path, size, unit, seed):
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    os.ftruncate(fd, size)
    for n, at in enumerate(places(size, unit, seed), 1):
        os.pwrite(fd, os.urandom(unit), at)
        if n % 16 == 0:
            os.fdatasync(fd)
    os.fsync(fd)
    os.close(fd)

def mmap_load(path, size, unit, seed):
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    os.ftruncate(fd, size)
    order = places(size, unit, seed)
    children = []
    for half in (0, 1):
        pid = os.fork()
        if pid == 0:
            area = mmap.mmap(fd, size)
            for n, at in enumerate(order[half::2], 1):
                area[at:at + unit] = os.urandom(unit)
                if n % 8 == 0:
                    area.flush()
            area.flush()
            os._exit(0)
        children.append(pid)
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0
    os.fsync(fd)
    os.close(fd)

def pieces(path):
    return int(sh("filefrag", path).rsplit(":", 1)[1].split()[0])

def read_back(path):
    buf = mmap.mmap(-1, 65536)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    start = time.monotonic()
    at = 0
    while (got := os.preadv(fd, [buf], at)) > 0:
        at += got
    os.close(fd)
    return time.monotonic() - start

def turn(side, binary, folder, number):
    image, point = f"{folder}/image", f"{folder}/point"
    os.makedirs(point, exist_ok=True)
    if os.path.exists(image):
        os.unlink(image)
    sh("fallocate", "-l", "1G", image)
    sh("mke2fs", "-q", "-F", "-t", "ext4", image)
    if binary:
        sh(binary, "mount", image, point)
    else:
        sh("mount", "-o", "loop", image, point)
    times = []
    for index, (_, size, unit, how) in enumerate(LOADS):
        start = time.monotonic()
        (write_load if how == "write" else mmap_load)(f"{point}/f{index}", size, unit, number * 10 + index)
        times.append(time.monotonic() - start)
    sh("umount", point)
    for _ in range(100):
        if subprocess.run(["pgrep", "-f", image], capture_output=True).returncode:
            break
        time.sleep(0.1)
    sh("e2fsck", "-fn", image)
    sh("sync")
    loop = sh("losetup", "--find", "--show", "--direct-io=on", "--read-only", image)
    sh("mount", "-o", "ro,noload", loop, point)
    with open("/proc/sys/vm/drop_caches", "w") as caches:
        caches.write("3")
    for index, (name, size, _, _) in enumerate(LOADS):
        path = f"{point}/f{index}"
        count, seconds = pieces(path), read_back(path)
        print(json.dumps({"round": number, "side": side, "load": name, "pieces": count,
                          "write_s": round(times[index], 3), "read_s": round(seconds, 4),
                          "read_mib_s": round(size / MIB / seconds, 1)}), flush=True)
    sh("umount", point)
    sh("losetup", "-d", loop)

parser = argparse.ArgumentParser()
parser.add_argument("--uext4", action="append", default=[])
parser.add_argument("--dir", default="/tmp/preset")
parser.add_argument("--rounds", type=int, default=5)
args = parser.parse_args()
sides = [tuple(word.split("=", 1)) for word in args.uext4] + [("kernel", None)]
for number in range(args.rounds):
    for side, binary in sides:
        turn(side, binary, args.dir, number)
