"""The calls of `paths.txt` (crates/uext4-capi/tests), by the kernel or by a volume.

As a program it asks the kernel, on a tmpfs that it mounts on a folder and takes for its root: in a
mount namespace of its own, and without CAP_FSETID.
"""

import ctypes
import errno
import os
import stat
import sys

CAPABILITY = "security.capability"
#: Of version 2: one capability, permitted.
VALUE = bytes([1, 0, 0, 2, 1]) + bytes(15)
MS_RDONLY, MS_REMOUNT, MNT_DETACH = 1, 32, 2
#: Calls that Python's package does not have, besides the flag n of `open`.
NOT_HERE = {"mknod", "noreplace", "exchange", "allocate", "punch"}
#: What words of the table stand for.
MARKS = {"{none}": "", "{long}": "x" * 256, "{dots}": "./" * 2045}


class Kernel:
    """The root directory of this process."""

    libc = ctypes.CDLL(None, use_errno=True)

    def mount(self, source, target, kind, flags, options):
        if self.libc.mount(source, target, kind, flags, options) != 0:
            raise OSError(ctypes.get_errno(), "mount")

    def enter(self, folder):
        """Takes a tmpfs on a folder for the root. This name space's copies of the host's other
        mounts go: they would keep what the host unmounts meanwhile."""
        self.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, b"mode=755")
        os.chdir(folder)
        if self.libc.pivot_root(b".", b".") == 0:
            assert self.libc.umount2(b".", MNT_DETACH) == 0
        else:
            # In a chroot, whose root is no mount.
            os.chroot(".")
        os.chdir("/")

    def readonly(self):
        self.mount(None, b"/", None, MS_REMOUNT | MS_RDONLY, None)

    def open(self, flags, path, data=None):
        how = os.O_RDWR if "w" in flags else os.O_RDONLY
        how |= os.O_CREAT if "c" in flags else 0
        how |= os.O_EXCL if "x" in flags else 0
        how |= os.O_TRUNC if "t" in flags else 0
        fd = os.open(path, how, 0o644)
        try:
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                # As the function `open` does.
                raise IsADirectoryError(errno.EISDIR, "a directory")
            if data is not None:
                os.write(fd, data)
        finally:
            os.close(fd)

    def mkdir(self, path):
        os.mkdir(path, 0o755)

    symlink = staticmethod(os.symlink)
    unlink = staticmethod(os.unlink)
    rmdir = staticmethod(os.rmdir)
    rename = staticmethod(os.rename)
    readlink = staticmethod(os.readlink)
    list = staticmethod(os.listdir)

    def link(self, target, path):
        os.link(target, path, follow_symlinks=False)

    def mode(self, path, follow=True):
        return os.stat(path, follow_symlinks=follow).st_mode

    def chmod(self, mode, path):
        os.chmod(path, int(mode, 8))

    def chown(self, path):
        os.chown(path, 0, 0)

    def truncate(self, path):
        os.truncate(path, 0)

    def capable(self, path):
        os.setxattr(path, CAPABILITY, VALUE)

    def is_capable(self, path):
        os.getxattr(path, CAPABILITY)


class Ours:
    """A volume, by the calls below `Path`, which would change a path's slashes."""

    def __init__(self, open_volume):
        self.open_volume = open_volume
        self.volume = open_volume("r+")

    def readonly(self):
        self.volume.close()
        self.volume = self.open_volume("r")

    @property
    def core(self):
        return self.volume.core

    def open(self, flags, path, data=None):
        file = self.core.open(
            os.fsencode(path),
            read=True,
            write="w" in flags,
            create="c" in flags,
            exclusive="x" in flags,
            truncate="t" in flags,
            append=False,
            mode=0o644,
            owner=(0, 0),
        )
        if data is not None:
            file.pwrite(data, 0)
        file.close()

    def mkdir(self, path):
        self.core.mkdir(os.fsencode(path), 0o755, (0, 0))

    def symlink(self, target, path):
        self.core.symlink(os.fsencode(target), os.fsencode(path), (0, 0))

    def link(self, target, path):
        self.core.link(os.fsencode(target), os.fsencode(path), False)

    def unlink(self, path):
        self.core.unlink(os.fsencode(path))

    def rmdir(self, path):
        self.core.rmdir(os.fsencode(path))

    def rename(self, path, new_path):
        self.core.rename(os.fsencode(path), os.fsencode(new_path), True)

    def readlink(self, path):
        self.core.readlink(os.fsencode(path))

    def list(self, path):
        self.core.list_dir(os.fsencode(path))

    def mode(self, path, follow=True):
        return self.core.stat(os.fsencode(path), follow)["mode"]

    def chmod(self, mode, path):
        self.core.set_attr(os.fsencode(path), True, mode=int(mode, 8))

    def chown(self, path):
        self.core.set_attr(os.fsencode(path), True, uid=0, gid=0)

    def truncate(self, path):
        self.core.set_attr(os.fsencode(path), True, size=0)

    def capable(self, path):
        self.core.set_xattr(os.fsencode(path), CAPABILITY.encode(), VALUE, 0, True)

    def is_capable(self, path):
        self.core.get_xattr(os.fsencode(path), CAPABILITY.encode(), True)


def links(side, count, name, target):
    for number in range(1, int(count) + 1):
        side.symlink(target, f"{name}{number}")
        target = f"{name}{number}"


def answer(side, call, words):
    for mark, text in MARKS.items():
        words = [word.replace(mark, text) for word in words]
    try:
        if call == "links":
            links(side, *words)
        elif call in ("stat", "lstat"):
            return oct(stat.S_IFMT(side.mode(*words, call == "stat")))
        elif call == "mode":
            return oct(stat.S_IMODE(side.mode(*words)))
        elif call in ("write", "write-nothing"):
            side.open("w", *words, b"x" if call == "write" else b"")
        else:
            getattr(side, call.replace("-", "_"))(*words)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"


def answers(side, table):
    """What each line of the table gives."""
    for line in table.splitlines():
        call, *words = line.split() or ["#"]
        is_here = call not in NOT_HERE and not (call == "open" and "n" in words[0])
        if not call.startswith("#") and is_here:
            yield f"{line}: {answer(side, call, words)}"


if __name__ == "__main__":
    folder, table = sys.argv[1], sys.stdin.read()
    os.umask(0)
    kernel = Kernel()
    kernel.enter(folder)
    print("\n".join(answers(kernel, table)))
