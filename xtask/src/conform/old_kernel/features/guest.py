"""What the guest's kernel does with each image: `guest.py PHASE FOLDER`.

FOLDER has the plan and gets what was found: NAME.STEP.kernel is a listing, .quota.kernel what is
counted, .digests.kernel what is measured of sealed files. An image is the disk whose serial number
is its name. `fill` makes the trees; `turn` reads what uext4 made of them and changes it.
"""

import ctypes
import fcntl
import glob
import json
import os
import struct
import subprocess
import sys
import time

import shown
import tree

ADD_KEY, SET_POLICY, MEASURE = 0xC0506617, 0x800C6613, 0xC0046686
GET_NEXT_QUOTA, SET_QUOTA = 0x800009, 0x800008
POINT = "/mnt"
LIBC = ctypes.CDLL(None, use_errno=True)


def call(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def disk(name):
    for path in glob.glob("/sys/block/vd*/serial"):
        with open(path) as file:
            if file.read().strip() == name:
                return "/dev/" + path.split("/")[3]
    raise OSError(f"no disk {name}")


class Mounted:
    """A case's image on its point, until the end of a block."""

    def __init__(self, case, stays=False):
        self.case, self.stays = case, stays
        self.device = disk(case["name"])

    def __enter__(self):
        options, features = "noatime", self.case["features"]
        if "quota" in features:
            options += ",usrquota,grpquota" + (",prjquota" if "project" in features else "")
        call("mount", "-t", "ext4", "-o", options, self.device, POINT)
        return self

    def __exit__(self, kind, *_):
        if kind or not self.stays:
            call("umount", POINT)


def add_key(folder):
    """Gives the kernel the key; what policies call it."""
    with open(os.path.join(folder, "key"), "rb") as file:
        key = file.read()
    argument = bytearray(struct.pack("<II32sII32s", 2, 0, b"", len(key), 0, b"") + key)
    with shown.Holder(POINT) as fd:
        fcntl.ioctl(fd, ADD_KEY, argument)
    return bytes(argument[8:24])


def encrypt(path, identifier):
    os.mkdir(path)
    with shown.Holder(path) as fd:
        fcntl.ioctl(fd, SET_POLICY, struct.pack("<BBBBI16s", 2, 1, 4, 3, 0, identifier))


def usage(device):
    """What the kernel counts: kind to [id, bytes, inodes and limits]."""
    kinds = {}
    for number, kind in enumerate(["user", "group", "project"]):
        rows, owner = [], 0
        while True:
            block = bytearray(72)
            space = (ctypes.c_char * 72).from_buffer(block)
            command = GET_NEXT_QUOTA << 8 | number
            if LIBC.quotactl(command, device.encode(), ctypes.c_uint(owner), space):
                break
            hard, soft, used, inodes_hard, inodes_soft, inodes = struct.unpack_from("6Q", block)
            found = struct.unpack_from("I", block, 68)[0]
            rows.append([found, used, soft * 1024, hard * 1024, inodes, inodes_soft, inodes_hard])
            owner = found + 1
        if rows:
            kinds[kind] = rows
    return kinds


def set_limits(device):
    block = bytearray(struct.pack("8QII", 900_000, 800_000, 0, 7000, 6000, 0, 0, 0, 5, 0))
    space = (ctypes.c_char * 72).from_buffer(block)
    if LIBC.quotactl(SET_QUOTA << 8, device.encode(), 1000, space):
        raise OSError(ctypes.get_errno(), "quotactl: limits of user 1000")


def digests(root):
    """Path and digest of each sealed file: the kernel's, which fsverity(1) must compute as well."""
    for path in shown.walk(root):
        if not os.path.isfile(path) or os.path.islink(path):
            continue
        try:
            if not shown.flags_of(path) & shown.VERITY:
                continue
        except OSError:
            continue
        name = os.fsdecode(path)
        argument = bytearray(struct.pack("HH", 0, 64) + bytes(64))
        with shown.Holder(name) as fd:
            fcntl.ioctl(fd, MEASURE, argument)
        algorithm, salt = tree.parameters(name)
        measured = algorithm + ":" + argument[4 : 4 + struct.unpack_from("H", argument, 2)[0]].hex()
        words = ["fsverity", "digest", "--compact", "--hash-alg=" + algorithm]
        words += ["--salt=" + salt.hex()] if salt else []
        computed = algorithm + ":" + call(*words, name).strip()
        if measured != computed:
            raise OSError(f"{name}: measured {measured}, fsverity digest {computed}")
        yield ("/" + os.path.relpath(name, root)).encode().hex() + " " + measured


def look(case, folder, step):
    """Mounts the image and writes down all that it shows."""
    file = os.path.join(folder, f"{case['name']}.{step}")
    features = case["features"]
    with Mounted(case) as mounted:
        if "encrypt" in features:
            shown.write_listing(POINT, file + ".locked.kernel", "locked")
            add_key(folder)
        mode = "rough" if case.get("rough") else "full"
        count = shown.write_listing(POINT, file + ".kernel", mode)
        if "quota" in features:
            with open(file + ".quota.kernel", "w") as out:
                json.dump(usage(mounted.device), out)
        if "verity" in features:
            with open(file + ".digests.kernel", "w") as out:
                out.writelines(line + "\n" for line in digests(POINT))
    return count


def fill(case, folder):
    features = case["features"]
    with Mounted(case) as mounted:
        if "encrypt" in features:
            identifier = add_key(folder)
            encrypt(POINT + "/secret", identifier)
            if "casefold" in features:
                encrypt(POINT + "/both", identifier)
        made = tree.fill(POINT, case)
        if "quota" in features:
            set_limits(mounted.device)
    lines = look(case, folder, "filled")
    return f"{made} entries made, {lines} lines"


def leave_fast_commits(case, folder):
    """Changes that are synced file by file, and no unmount: the log has them alone."""
    with Mounted(case, stays=True) as mounted:
        made = tree.Filler(case, case["seed"])
        made.plain(POINT, 40)
        os.mkdir(POINT + "/quick")
        if "casefold" in case["features"]:
            tree.fold(POINT + "/quick")
        LIBC.syncfs(os.open(POINT, os.O_RDONLY))
        for number in range(60):
            path = f"{POINT}/quick/Name {number}"
            tree.write(path, made.rng.randbytes(made.size() % 20_000))
            if number % 4 == 1:
                os.link(path, path + " linked")
            if number % 4 == 2:
                os.rename(f"{POINT}/quick/Name {number - 1}", path + " renamed")
            if number % 4 == 3:
                os.unlink(f"{POINT}/quick/Name {number - 3}")
                os.truncate(path, os.stat(path).st_size // 2)
            with shown.Holder(path, os.O_RDWR) as fd:
                os.fsync(fd)
        info = open(f"/proc/fs/ext4/{mounted.device.split('/')[-1]}/fc_info").read()
        file = os.path.join(folder, case["name"] + ".filled.kernel")
        lines = shown.write_listing(POINT, file, "rough")
    return f"{lines} lines; {info.split(chr(10))[1].strip()}"


def turn(case, folder):
    read = look(case, folder, "changed")
    if case.get("rough"):
        return f"{read} lines read"
    features, seed = case["features"], 2
    with Mounted(case):
        if "encrypt" in features:
            encrypt(POINT + f"/secret {seed}", add_key(folder))
        made = tree.change(POINT, case, seed, False)
        for path in tree.to_seal(POINT, seed) if "verity" in features else []:
            tree.seal(path)
    return f"{read} lines read, {made} changes, {look(case, folder, 'again')} lines"


def main(phase, folder):
    with open(os.path.join(folder, "plan.json")) as file:
        cases = json.load(file)
    failed = 0
    for case in cases:
        begin = time.monotonic()
        try:
            if phase == "turn":
                said = turn(case, folder)
            elif case.get("rough"):
                said = "later" if case.get("copy") else leave_fast_commits(case, folder)
            else:
                said = fill(case, folder)
        except Exception as error:
            failed, said = 1, f"FAILED: {type(error).__name__} {error}"
            subprocess.run(["umount", POINT], capture_output=True)
        print(f"  {case['name']:<24} {said} ({time.monotonic() - begin:.0f} s)", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
