"""A tree that uses the features of an image: filled and changed.

The kernel's mount is filled and changed in the guest, uext4's changed on the host (`tree.py ROOT
FEATURES SEED`). A case is a dict of the plan: `features`, `seed`. All that is done follows from it
and from the names that are found.
"""

import ctypes
import errno
import fcntl
import os
import random
import stat
import struct
import sys
import unicodedata

from shown import CASEFOLD, FSGETXATTR, FSSETXATTR, SETFLAGS, VERITY, Holder, flags_of, walk

ENABLE_VERITY = 0x40806685
XFLAG_PROJINHERIT = 0x200
FOLD_NAMES = [
    "README", "Makefile", "Stra\u00dfe", "\u03a3\u038a\u03a3\u03a5\u03a6\u039f\u03a3",
    "\u0130stanbul", "\ufb01ne", "\u00c5re", "\uac00\ub098\ub2e4", "q\u0323\u0307", "co\u00adop",
    "zero\u200dwidth", "\u13a0\uab70", "\u01c4ungla", "\u0390", "\u1e9e", "\u017fet", "Kelvin K",
    "\u00b5", "ohm \u03a9", "\u0915\u093c", "\u0534\u0561\u0580\u0571", "\U00010400deseret",
    "\u00df" * 100, "\u00c5" * 127, "n" * 254 + "N", "..Dots", ". .", "tab\tT",
]
OWNERS = [0, 1000, 1001, 70000]


def fold(path):
    """Has an empty directory fold case."""
    flags = flags_of(path) | CASEFOLD
    with Holder(path) as fd:
        fcntl.ioctl(fd, SETFLAGS, struct.pack("Q", flags))


def set_project(path, project, inherit):
    with Holder(path) as fd:
        fields = bytearray(fcntl.ioctl(fd, FSGETXATTR, bytes(28)))
        xflags = struct.unpack_from("I", fields)[0] | (XFLAG_PROJINHERIT if inherit else 0)
        struct.pack_into("I", fields, 0, xflags)
        struct.pack_into("I", fields, 12, project)
        fcntl.ioctl(fd, FSSETXATTR, bytes(fields))


def parameters(name):
    """Hash function and salt of a sealed file, which its name begins with."""
    algorithm, salt, _ = os.path.basename(name).split("-", 2)
    return algorithm, bytes.fromhex(salt)


def seal(path):
    algorithm, salt = parameters(path)
    space = ctypes.create_string_buffer(salt, max(1, len(salt)))
    number = {"sha256": 1, "sha512": 2}[algorithm]
    words = struct.pack("<IIIIQII", 1, number, 4096, len(salt), ctypes.addressof(space), 0, 0)
    with Holder(path) as fd:
        fcntl.ioctl(fd, ENABLE_VERITY, words + bytes(128 - len(words)))


def write(path, data, at=0):
    with Holder(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW) as fd:
        os.pwrite(fd, data, at)


class Filler:
    """Makes names; what exists already under another spelling is not made again."""

    def __init__(self, case, seed):
        self.case, self.features = case, set(case["features"])
        self.rng = random.Random(seed)
        self.made = 0

    def file(self, path, size):
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return
        # Parts of it apart, so that blocks are allocated out of order; a hole, if it is not small.
        rng, data = self.rng, self.rng.randbytes(size)
        half = size // 2
        for begin, end in [(half, size), (0, half)] if rng.random() < 0.3 else [(0, size)]:
            os.pwrite(fd, data[begin:end], begin)
        if size > 5000 and rng.random() < 0.2:
            os.pwrite(fd, data[:100], size + 60_000)
        os.close(fd)
        self.made += 1
        if rng.random() < 0.5:
            os.chown(path, rng.choice(OWNERS), rng.choice(OWNERS))
        os.chmod(path, rng.choice([0o644, 0o600, 0o755, 0o4711]))
        if rng.random() < 0.25:
            self.attribute(path)

    def attribute(self, path):
        rng = self.rng
        os.setxattr(path, "user.small", rng.randbytes(rng.randrange(1, 90)))
        if "ea_inode" in self.features:
            # Some are equal, and share an inode of the kernel's.
            large = bytes([rng.randrange(4)]) * rng.randrange(3000, 3003)
            other = rng.randbytes(rng.randrange(3000, 60000))
            os.setxattr(path, "user.large", rng.choice([large, other]))
        elif rng.random() < 0.5:
            os.setxattr(path, "user.block", rng.randbytes(rng.randrange(300, 600)))

    def size(self):
        rng = self.rng
        ranges = [(0, 1), (1, 60), (60, 160), (160, 5000), (5000, 30000), (30000, 200000)]
        return rng.randrange(*rng.choices(ranges, [2, 4, 4, 6, 4, 1])[0])

    def directory(self, path):
        try:
            os.mkdir(path)
        except FileExistsError:
            return False
        self.made += 1
        return True

    def plain(self, root, entries):
        """Files, directories, links and a pipe below a directory."""
        rng, folders, files = self.rng, [root], []
        for number in range(entries):
            folder = rng.choice(folders)
            long = "-" + "l" * rng.randrange(100, 200)
            name = f"{number}" + rng.choice(["", " b", "\u00e9", long])
            path, kind = os.path.join(folder, name), rng.random()
            if kind < 0.08:
                self.directory(path)
                folders.append(path)
            elif kind < 0.14:
                os.symlink("t" * rng.choice([3, 59, 60, 61, 400]), path)
            elif kind < 0.18 and files:
                os.link(rng.choice(files), path)
            elif kind < 0.2:
                os.mkfifo(path)
            else:
                self.file(path, self.size())
                files.append(path)

    def folded(self, root, letters):
        """Names whose spellings a directory holds to be the same, enough of them for an index."""
        rng = self.rng
        self.directory(root)
        fold(root)
        nested = os.path.join(root, "Inner")
        self.directory(nested)
        for number in range(200):
            name = rng.choice(FOLD_NAMES) if number % 3 else self.letters()
            name = name if number < 30 else f"{name[:40]} {number}"
            self.file(os.path.join(rng.choice([root, root, nested]), name), self.size() % 3000)
        # Few, in a directory without an index: for the hash of a name that is not UTF-8 e2fsck
        # 1.47.0 takes that of the name before it.
        raw = os.path.join(root, "Raw")
        self.directory(raw)
        for name in [b"\xff\xfeLatin", b"\xc3(", b"\xed\xa0\x80"]:
            try:
                self.file(os.path.join(os.fsencode(raw), name), 10)
            except OSError as error:
                # Where the encoding is strict.
                if error.errno not in (errno.EINVAL, errno.EILSEQ):
                    raise
        if letters:
            alphabet = os.path.join(root, "alphabet")
            self.directory(alphabet)
            for letter in alphabet_letters():
                self.empty(os.path.join(alphabet, "x" + letter))

    def letters(self):
        """A word of Latin, Greek, Cyrillic and Armenian letters, of marks and of gaps."""
        ranges = [(0x41, 0x7B), (0xC0, 0x250), (0x370, 0x530)]
        draw = lambda: chr(self.rng.randrange(*self.rng.choice(ranges)))
        return "".join(draw() for _ in range(self.rng.randrange(1, 60)))

    def empty(self, path):
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            self.made += 1
        except FileExistsError:
            pass

    def sealed(self, root):
        self.directory(root)
        sizes = [0, 1, 4095, 4096, 4097, 128 * 4096, 128 * 4096 + 1, 700_000]
        begins = ["sha256--", "sha512-00ff17-", "sha256-0102030405060708-"]
        for number, size in enumerate(sizes):
            name = begins[number % 3] + str(size)
            path = os.path.join(root, name)
            self.file(path, 0)
            write(path, self.rng.randbytes(size))
            seal(path)

    def projects(self, root):
        for project in [7, 4_000_000_000]:
            folder = os.path.join(root, f"project {project}")
            self.directory(folder)
            set_project(folder, project, True)
            self.plain(folder, 20)


def alphabet_letters():
    """Every code point that a fold or a decomposition changes, and the neighbours of each."""
    for number in range(0x80, 0x2FA20):
        letter = chr(number)
        if unicodedata.category(letter) in ("Cn", "Cs", "Co"):
            continue
        if number in range(0xAC00, 0xD7A4) and number % 97:
            continue
        near = (chr(number - 1), letter, chr(number + 1))
        if any(a.casefold() != a or unicodedata.normalize("NFD", a) != a for a in near):
            yield letter


def fill(root, case):
    filler = Filler(case, case["seed"])
    features, at = filler.features, lambda name: os.path.join(root, name)
    if "encrypt" in features:
        filler.plain(at("secret"), 60)
    os.mkdir(at("plain"))
    filler.plain(at("plain"), 110)
    os.mkdir(at("many"))
    for number in range(120):
        filler.empty(at(f"many/{number * 7919 % 1000:03} of a linear directory or an index"))
    if "casefold" in features:
        filler.folded(at("folded"), case.get("letters", False))
        if "encrypt" in features:
            filler.folded(at("both"), False)
    if "verity" in features:
        filler.sealed(at("sealed"))
    if "project" in features:
        filler.projects(root)
    return filler.made


class Changer(Filler):
    """Every kind of change, by chance; `wild` has those that the kernel is not asked for."""

    def change(self, root, wild):
        self.wild = wild
        chosen = lambda path: b"/alphabet/" not in path or self.rng.random() < 0.1
        paths = [path for path in walk(root) if chosen(path)]
        for path in paths:
            try:
                mode = os.lstat(path).st_mode
            except FileNotFoundError:
                continue
            if stat.S_ISDIR(mode):
                self.of_directory(path)
            elif self.rng.random() < 0.6:
                self.of_file(path, mode)
        return self.made

    def of_directory(self, path):
        for number in range(self.rng.randrange(4)):
            word = self.rng.choice(["New", "NEU", "\u043d\u043e\u0432\u044b\u0439", "n\u00e9"])
            self.file(os.path.join(path, os.fsencode(f"{word} {self.made % 50}")), self.size())
        if self.rng.random() < 0.3:
            inner = os.path.join(path, os.fsencode(f"Ordner {self.made}"))
            if self.directory(inner):
                self.file(os.path.join(inner, b"f"), self.size())

    def of_file(self, path, mode):
        rng, kind = self.rng, self.rng.randrange(9)
        self.made += 1
        is_file = stat.S_ISREG(mode)
        sealed = is_file and flags_of(path) & VERITY
        if kind == 0:
            os.unlink(path)
        elif kind in (1, 2):
            self.rename(path)
        elif not is_file or kind == 3:
            os.lchown(path, rng.choice(OWNERS), rng.choice(OWNERS))
        elif kind == 4:
            self.attribute(path)
        elif not sealed:
            self.content(path, kind)

    def rename(self, path):
        folder, name = os.path.split(path)
        spelled = name.decode(errors="surrogateescape")
        other = self.rng.choice([spelled.upper(), spelled.lower(), spelled + ".R", "R" + spelled])
        if name.startswith(b"sha"):
            other = spelled + ".r"
        other = os.fsencode(other)
        if other != name and len(other) <= 255:
            # By way of a third name: two spellings are one file to rename(2).
            third = os.path.join(folder, b"third")
            os.rename(path, third)
            target = os.path.join(folder, other)
            os.rename(third, path if os.path.isdir(target) else target)

    def content(self, path, kind):
        rng, size = self.rng, os.stat(path).st_size
        with Holder(path, os.O_WRONLY) as fd:
            if kind == 5:
                os.pwrite(fd, rng.randbytes(rng.randrange(1, 6000)), size // 2)
            elif kind == 6:
                os.ftruncate(fd, size // 3)
            elif kind == 7:
                os.pwrite(fd, rng.randbytes(rng.randrange(1, 9000)), size)
            elif self.wild:
                os.ftruncate(fd, size + rng.randrange(1, 100_000))
                os.pwrite(fd, b"end", size + 30_000)


def to_seal(root, seed):
    """Files of a change that are sealed when they are written."""
    return [os.path.join(root, f"sealed/{name}of {seed}") for name in ["sha256--", "sha512-aa55-"]]


def change(root, case, seed, wild):
    changer = Changer(case, seed)
    changer.change(root, wild)
    at = lambda name: os.path.join(root, name)
    if "encrypt" in changer.features:
        changer.plain(at(f"secret {seed}"), 40)
    if "casefold" in changer.features:
        changer.folded(at(f"folded {seed}"), False)
        if "encrypt" in changer.features:
            changer.folded(at(f"secret {seed}/both"), False)
    if "verity" in changer.features:
        for path in to_seal(root, seed):
            write(path, changer.rng.randbytes(300_000))
    if "project" in changer.features:
        for project in [7, 8]:
            path = at(f"of project {project} {seed}")
            changer.file(path, 20_000)
            set_project(path, project, False)
    return changer.made


if __name__ == "__main__":
    print(change(sys.argv[1], {"features": sys.argv[2].split(",")}, int(sys.argv[3]), True))
