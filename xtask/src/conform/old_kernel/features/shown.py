"""What a mount shows of a tree, as lines: the kernel's and uext4's must be the same.

`shown.py ROOT FILE full|rough|locked` writes them down. The same file runs in the guest and on
the host.
"""

import errno
import fcntl
import hashlib
import os
import stat
import struct
import sys
import unicodedata

GETFLAGS, SETFLAGS = 0x80086601, 0x40086602
FSGETXATTR, FSSETXATTR = 0x801C581F, 0x401C5820
VERITY, ENCRYPT, CASEFOLD, PROJINHERIT = 0x100000, 0x800, 0x40000000, 0x20000000
# What both drivers show by FS_IOC_GETFLAGS and that is not a matter of layout.
SHOWN = VERITY | ENCRYPT | CASEFOLD | PROJINHERIT | 0x30


class Holder:
    """A descriptor of a path for the time of a block."""

    def __init__(self, path, flags=os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK):
        self.path, self.flags = path, flags

    def __enter__(self):
        self.fd = os.open(self.path, self.flags)
        return self.fd

    def __exit__(self, *_):
        os.close(self.fd)


def flags_of(path):
    with Holder(path) as fd:
        return struct.unpack("I", fcntl.ioctl(fd, GETFLAGS, bytes(8))[:4])[0]


def walk(root):
    """All paths below, parents first, in the order of their bytes."""
    root = os.fsencode(root)
    for name in sorted(os.listdir(root)):
        path = os.path.join(root, name)
        if name == b"lost+found":
            continue
        yield path
        if stat.S_ISDIR(os.lstat(path).st_mode):
            yield from walk(path)


def spellings(name):
    """Other spellings of a name, of which some are the same to a directory that folds case."""
    text = name.decode(errors="surrogateescape")
    forms = [text.upper(), text.lower(), text.swapcase(), text.casefold()]
    forms.append(text[:1] + "\u00ad" + text[1:])
    try:
        forms += [unicodedata.normalize(form, text) for form in ("NFC", "NFD", "NFKC")]
    except UnicodeError:
        pass
    found = {os.fsencode(form) for form in forms}
    return sorted(form for form in found if form != name and 0 < len(form) <= 255)


def words(path, full):
    """What is compared of one file; an error by its name, where there is no key."""
    state = os.lstat(path)
    said = [oct(state.st_mode), state.st_uid, state.st_gid]
    is_directory = stat.S_ISDIR(state.st_mode)
    if full or not is_directory:
        said += [state.st_nlink, state.st_size, state.st_mtime_ns]
    if full:
        said += [state.st_ctime_ns, state.st_blocks]
    if stat.S_ISLNK(state.st_mode):
        said.append(os.readlink(path).hex())
        return said
    for name in sorted(os.listxattr(path)):
        said.append(name + "=" + hashlib.sha256(os.getxattr(path, name)).hexdigest()[:16])
    if stat.S_ISREG(state.st_mode) or is_directory:
        try:
            with Holder(path) as fd:
                if not is_directory:
                    digest = hashlib.sha256()
                    while data := os.read(fd, 1 << 20):
                        digest.update(data)
                    said.append(digest.hexdigest()[:24])
                flags = flags_of(path) & SHOWN
                attributes = fcntl.ioctl(fd, FSGETXATTR, bytes(28))
                project = struct.unpack_from("I", attributes, 12)[0]
                said += [f"flags {flags:x}", f"project {project}"]
        except OSError as error:
            said.append(errno.errorcode[error.errno])
    return said


def listing(root, mode):
    """A line for each file, and one for each other spelling where names fold case.

    Not in the mode `locked`, without keys: Linux then finds another spelling of an encoded name
    if it has just looked up the name itself.
    """
    folding = {}
    for path in walk(root):
        shown = os.path.relpath(path, os.fsencode(root)).hex()
        yield " ".join(map(str, [shown] + words(path, mode != "rough")))
        folder, name = os.path.split(path)
        if folder not in folding:
            try:
                folding[folder] = flags_of(folder) & CASEFOLD
            except OSError:
                folding[folder] = 0
        for form in spellings(name) if folding[folder] and mode != "locked" else []:
            try:
                found = os.lstat(os.path.join(folder, form)).st_ino - os.lstat(path).st_ino
            except OSError as error:
                found = errno.errorcode[error.errno]
            yield f"{shown} as {form.hex()}: {found}"


def write_listing(root, file, mode="full"):
    with open(file, "w") as out:
        count = 0
        for line in listing(root, mode):
            out.write(line + "\n")
            count += 1
    return count


if __name__ == "__main__":
    print(write_listing(sys.argv[1], sys.argv[2], sys.argv[3]))
