#!/usr/bin/env python3
"""Microseconds, requests and switches of a file, through mounts of 2,000 small files.

    measure.py ROUNDS UEXT4 [OLDER_UEXT4]

As root, on a quiet machine; needs tar, bindfs, fuse2fs and a loop device. Images lie in /dev/shm.
Each round makes a fresh image for each target, in turn: tar x, ls -lR, tar c, rm -rf, then 2,000
files created and written by one program, and stat of each with names not cached. io_uring is
switched on (/sys/module/fuse/parameters/enable_uring) for its own target alone. One line of JSON
for each figure; a table of medians at the end.
"""
import json, os, re, shutil, statistics, subprocess, sys, time

rounds, uext4 = int(sys.argv[1]), sys.argv[2]
older = sys.argv[3] if len(sys.argv) > 3 else None
FILES, DIRS = 2000, 20
BASE = "/dev/shm/measure"
PARAMETER = "/sys/module/fuse/parameters/enable_uring"
shutil.rmtree(BASE, ignore_errors=True)
os.makedirs(BASE + "/m")
os.makedirs(BASE + "/lower")
image, mnt, archive = BASE + "/image", BASE + "/m", BASE + "/tree.tar"

def run(*words, **more):
    return subprocess.run(words, check=True, stdout=subprocess.DEVNULL, **more)

tree = BASE + "/tree"
for d in range(DIRS):
    os.makedirs(f"{tree}/d{d}")
    for n in range(FILES // DIRS):
        with open(f"{tree}/d{d}/f{n}", "wb") as file:
            file.write(os.urandom(200 + 137 * n % 9000))
run("tar", "cf", archive, "-C", tree, ".")

def drop():
    run("sync")
    open("/proc/sys/vm/drop_caches", "w").write("2")

def create():
    for n in range(FILES):
        fd = os.open(f"{mnt}/c{n}", os.O_CREAT | os.O_WRONLY, 0o644)
        os.write(fd, b"x" * 4096)
        os.close(fd)

def stat():
    for n in range(FILES):
        os.lstat(f"{mnt}/c{n}")

STEPS = [
    ("tar x", lambda: run("tar", "xf", archive, "-C", mnt), False),
    ("ls -lR", lambda: run("ls", "-lR", mnt), True),
    ("tar c", lambda: run("sh", "-c", f"tar cf - -C {mnt} . | cat >/dev/null"), True),
    ("rm -rf", lambda: run("sh", "-c", f"rm -rf {mnt}/d*"), True),
    ("create", create, False),
    ("stat", stat, True),
]

def daemon():
    try:
        return int(os.getxattr(mnt, "uext4.pid"))
    except OSError:
        return None

def requests(program):
    done = subprocess.run([program, "stats", "--json", mnt], capture_output=True, text=True)
    return json.loads(done.stdout).get("requests", {}) if done.returncode == 0 else {}

def switches(pid):
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            text = open(f"/proc/{pid}/task/{task}/status").read()
        except OSError:
            continue
        total += sum(int(n) for n in re.findall(r"ctxt_switches:\s+(\d+)", text))
    return total

def ours(program, *options):
    def mount():
        words = [program, "mkfs", "-q", image, "512M"]
        run(*words)
        run(program, "mount", *(["-o", ",".join(options)] if options else []), image, mnt)
    return mount, lambda: run(uext4, "umount", mnt)

def kernel():
    run("mke2fs", "-q", "-F", "-t", "ext4", image, "512M", stderr=subprocess.DEVNULL)
    run("mount", "-o", "loop", image, mnt)

def fuse2fs():
    run("mke2fs", "-q", "-F", "-t", "ext4", image, "512M", stderr=subprocess.DEVNULL)
    run("fuse2fs", image, mnt, stderr=subprocess.DEVNULL)

def bindfs():
    shutil.rmtree(BASE + "/lower"); os.mkdir(BASE + "/lower")
    run("bindfs", BASE + "/lower", mnt)

def umount():
    while subprocess.run(["umount", mnt], stderr=subprocess.DEVNULL).returncode != 0:
        time.sleep(0.05)

targets = {}
if older:
    targets["older"] = (*ours(older), older, "N")
targets["/dev/fuse"] = (*ours(uext4), uext4, "N")
targets["io_uring"] = (*ours(uext4), uext4, "Y")
targets["kernel"] = (kernel, umount, None, "N")
targets["bindfs"] = (bindfs, umount, None, "N")
targets["fuse2fs"] = (fuse2fs, umount, None, "N")

figures = {}
for number in range(rounds):
    for name, (mount, unmount, program, parameter) in targets.items():
        open(PARAMETER, "w").write(parameter)
        if os.path.exists(image):
            os.remove(image)
        mount()
        open(PARAMETER, "w").write("N")
        for step, work, is_cold in STEPS:
            if is_cold:
                drop()
            pid = daemon() if program else None
            before = requests(program) if program else {}
            switched = switches(pid) if pid else 0
            start = time.perf_counter()
            work()
            taken = (time.perf_counter() - start) / FILES * 1e6
            figure = {"round": number, "target": name, "step": step, "us": round(taken, 2)}
            if pid:
                figure["switches"] = round((switches(pid) - switched) / FILES, 2)
                after = requests(program)
                each = {k: round((v - before.get(k, 0)) / FILES, 2) for k, v in after.items()}
                figure["requests"] = {k: v for k, v in each.items() if v >= 0.01}
            print(json.dumps(figure), flush=True)
            figures.setdefault((step, name), []).append(figure)
        unmount()

print("| us a file, median [range] |", " | ".join(targets), "|")
print("|" + "---|" * (len(targets) + 1))
for step, _, _ in STEPS:
    cells = []
    for name in targets:
        us = [figure["us"] for figure in figures[step, name]]
        cells.append(f"{statistics.median(us):.0f} [{min(us):.0f}-{max(us):.0f}]")
    print(f"| {step} |", " | ".join(cells), "|")
for step, _, _ in STEPS:
    for name in ["/dev/fuse", "io_uring"]:
        last = figures[step, name][-1]
        print(f"{step}, {name}: {last.get('switches')} switches, requests {last.get('requests')}")
shutil.rmtree(BASE)
