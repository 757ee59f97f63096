#!/usr/bin/env python3
"""Microseconds a file of small loads, through mounts of several builds in turns.

    measure.py ROUNDS NAME=UEXT4:OPTIONS ... kernel=:

As root, on a quiet machine; needs tar, rsync and a loop device. 2,000 files of 2,000 bytes with an
attribute each, in 20 directories; images lie in /dev/shm. `io_uring=on` among the options switches
/sys/module/fuse/parameters/enable_uring on for that mount.
"""
import os, shutil, statistics, subprocess, sys, time

rounds = int(sys.argv[1])
targets = [word.split("=", 1) for word in sys.argv[2:]]
N, BASE = 2000, "/dev/shm/measure"
PARAMETER = "/sys/module/fuse/parameters/enable_uring"
mnt, image, tree = BASE + "/m", BASE + "/image", BASE + "/tree"
quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

def sh(command):
    subprocess.run(command, shell=True, check=True, **quiet)

shutil.rmtree(BASE, ignore_errors=True)
os.makedirs(mnt)
for d in range(20):
    os.makedirs(f"{tree}/d{d}")
    for n in range(N // 20):
        path = f"{tree}/d{d}/f{n}"
        with open(path, "wb") as file:
            file.write(os.urandom(2000))
        os.setxattr(path, "user.note", b"text")
sh(f"tar --xattrs -C {tree} -cf {BASE}/tree.tar .")

def create():
    for n in range(N):
        fd = os.open(f"{mnt}/c{n}", os.O_CREAT | os.O_WRONLY, 0o644)
        os.write(fd, b"x" * 4096)
        os.close(fd)

def stat():
    for n in range(N):
        os.lstat(f"{mnt}/c{n}")

STEPS = [  # name, load, names not cached
    ("tar x", lambda: sh(f"mkdir {mnt}/x && tar --xattrs --xattrs-include='*' -C {mnt}/x -xf {BASE}/tree.tar"), False),
    ("rsync", lambda: sh(f"rsync -aHAX {tree}/ {mnt}/copy/"), False),
    ("ls -lR", lambda: sh(f"ls -lR {mnt}/x"), True),
    ("tar c", lambda: sh(f"tar cf - -C {mnt}/x . | cat >/dev/null"), True),
    ("rm -rf", lambda: sh(f"rm -rf {mnt}/x"), True),
    ("create", create, False),
    ("stat", stat, True),
]

figures = {}
for _ in range(rounds):
    for name, rest in targets:
        program, options = rest.split(":", 1)
        if os.path.exists(image):
            os.remove(image)
        if program:
            if "io_uring=on" in options:
                open(PARAMETER, "w").write("Y")
            sh(f"{program} mkfs -q {image} 1G; {program} mount -o {options} {image} {mnt}")
            open(PARAMETER, "w").write("N")
        else:
            sh(f"truncate -s 1G {image}; mke2fs -q -F -t ext4 {image}; mount -o loop {image} {mnt}")
        for step, load, is_cold in STEPS:
            if is_cold:
                sh(f"sync -f {mnt}")
                open("/proc/sys/vm/drop_caches", "w").write("2")
            start = time.perf_counter()
            load()
            figures.setdefault((name, step), []).append((time.perf_counter() - start) / N * 1e6)
        while subprocess.run(["umount", mnt], **quiet).returncode:
            time.sleep(0.05)
        time.sleep(0.2)

print("| us a file, median [range] |", " | ".join(step for step, _, _ in STEPS), "|")
print("|" + "---|" * (len(STEPS) + 1))
for name, _ in targets:
    cells = []
    for step, _, _ in STEPS:
        us = figures[name, step]
        cells.append(f"{statistics.median(us):.0f} [{min(us):.0f}-{max(us):.0f}]")
    print(f"| {name} |", " | ".join(cells), "|")
shutil.rmtree(BASE)
