"""Paths of a volume, with the methods of `pathlib.Path`."""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from functools import total_ordering
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._volume import Volume

#: What a look at a path that leads nowhere raises.
_NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


@total_ordering
class Path:
    """An absolute path of a volume: ``volume / "etc" / "hostname"``.

    Names are bytes in the file system; those that are no UTF-8 are told as `os.fsdecode` does.
    Symbolic links are followed as the kernel does, and lead into the volume alone. It is no
    `os.PathLike`, as it leads nowhere on the host.
    """

    __slots__ = ("_pure", "_volume")

    def __init__(self, volume: Volume, *parts: str | PurePosixPath) -> None:
        self._volume = volume
        self._pure = PurePosixPath("/", *parts)

    # Names.

    @property
    def volume(self) -> Volume:
        """The volume."""
        return self._volume

    @property
    def name(self) -> str:
        """The last name."""
        return self._pure.name

    @property
    def stem(self) -> str:
        """The last name without its suffix."""
        return self._pure.stem

    @property
    def suffix(self) -> str:
        """The suffix of the last name, with its dot."""
        return self._pure.suffix

    @property
    def suffixes(self) -> list[str]:
        """All suffixes of the last name."""
        return self._pure.suffixes

    @property
    def parts(self) -> tuple[str, ...]:
        """The names, with ``/`` before them."""
        return self._pure.parts

    @property
    def parent(self) -> Path:
        """The path without its last name."""
        return self._with(self._pure.parent)

    @property
    def parents(self) -> list[Path]:
        """The paths above, nearest first."""
        return [self._with(parent) for parent in self._pure.parents]

    def _with(self, pure: PurePosixPath) -> Path:
        return Path(self._volume, pure)

    def joinpath(self, *parts: str) -> Path:
        """The path with names behind it."""
        return self._with(self._pure.joinpath(*parts))

    def __truediv__(self, part: str) -> Path:
        return self._with(self._pure / part)

    def with_name(self, name: str) -> Path:
        """The path with another last name."""
        return self._with(self._pure.with_name(name))

    def with_stem(self, stem: str) -> Path:
        """The path with another last name but its suffix."""
        return self._with(self._pure.with_stem(stem))

    def with_suffix(self, suffix: str) -> Path:
        """The path with another suffix."""
        return self._with(self._pure.with_suffix(suffix))

    def relative_to(self, other: str | Path) -> PurePosixPath:
        """The path from another one on."""
        return self._pure.relative_to(str(other))

    def is_relative_to(self, other: str | Path) -> bool:
        """Whether another path is above this one, or the same."""
        return self._pure.is_relative_to(str(other))

    def match(self, pattern: str) -> bool:
        """Whether the path matches a pattern, as `pathlib.PurePath.match` does."""
        return self._pure.match(pattern)

    def as_posix(self) -> str:
        """The path as a string."""
        return str(self._pure)

    def __str__(self) -> str:
        return str(self._pure)

    def __bytes__(self) -> bytes:
        return os.fsencode(str(self._pure))

    def __repr__(self) -> str:
        return f"<uext4.Path {str(self._pure)!r} of {self._volume.name!r}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Path):
            return NotImplemented
        return self._volume is other._volume and self._pure == other._pure

    def __lt__(self, other: Path) -> bool:
        if not isinstance(other, Path):
            return NotImplemented
        return self._pure < other._pure

    def __hash__(self) -> int:
        return hash((id(self._volume), self._pure))

    # Attributes.

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Attributes, as `os.stat` gives them. The device is always 0."""
        found = self._volume.core.stat(bytes(self), follow_symlinks)
        seconds = [found[key][0] for key in ("atime", "mtime", "ctime")]
        ns = [found[key][0] * 10**9 + found[key][1] for key in ("atime", "mtime", "ctime")]
        head = (found["mode"], found["ino"], 0, found["links"], found["uid"], found["gid"])
        return os.stat_result(
            (*head, found["size"], *seconds, *(time / 1e9 for time in ns), *ns),
            {
                "st_blksize": found["block_size"],
                "st_blocks": found["blocks"],
                "st_rdev": os.makedev(*found["device"]),
            },
        )

    def _created_ns(self) -> int | None:
        """When it was made, in nanoseconds since 1970, where the inode has room for it."""
        created = self._volume.core.stat(bytes(self), True)["crtime"]
        return None if created is None else created[0] * 10**9 + created[1]

    def lstat(self) -> os.stat_result:
        """Attributes of a symbolic link itself."""
        return self.stat(follow_symlinks=False)

    def _mode(self, *, follow_symlinks: bool = True) -> int:
        try:
            return int(self._volume.core.stat(bytes(self), follow_symlinks)["mode"])
        except OSError as error:
            if error.errno in _NOWHERE:
                return 0
            raise

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it leads to something."""
        return self._mode(follow_symlinks=follow_symlinks) != 0

    def is_dir(self) -> bool:
        """Whether it leads to a directory."""
        return stat.S_ISDIR(self._mode())

    def is_file(self) -> bool:
        """Whether it leads to a regular file."""
        return stat.S_ISREG(self._mode())

    def is_symlink(self) -> bool:
        """Whether it is a symbolic link."""
        return stat.S_ISLNK(self._mode(follow_symlinks=False))

    def samefile(self, other: Path) -> bool:
        """Whether both lead to one inode."""
        same = self._volume is other._volume
        return same and self.stat().st_ino == other.stat().st_ino

    def chmod(self, mode: int, *, follow_symlinks: bool = True) -> None:
        """Sets the permission bits."""
        self._volume.core.set_attr(bytes(self), follow_symlinks, mode=mode & 0o7777)

    def chown(self, uid: int = -1, gid: int = -1, *, follow_symlinks: bool = True) -> None:
        """Sets user and group, by number; -1 leaves one as it is."""
        self._volume.core.set_attr(
            bytes(self),
            follow_symlinks,
            uid=None if uid == -1 else uid,
            gid=None if gid == -1 else gid,
        )

    def utime(self, *, ns: tuple[int, int], follow_symlinks: bool = True) -> None:
        """Sets the times of access and of the content, in nanoseconds since 1970."""
        atime, mtime = (divmod(time, 10**9) for time in ns)
        self._volume.core.set_attr(bytes(self), follow_symlinks, atime=atime, mtime=mtime)

    def truncate(self, size: int) -> None:
        """Sets the length in bytes."""
        self._volume.core.set_attr(bytes(self), True, size=size)

    # Extended attributes.

    def getxattr(self, name: str, *, follow_symlinks: bool = True) -> bytes:
        """The value of an extended attribute, by its full name (``user.x``)."""
        return self._volume.core.get_xattr(bytes(self), os.fsencode(name), follow_symlinks)

    def setxattr(
        self, name: str, value: bytes, flags: int = 0, *, follow_symlinks: bool = True
    ) -> None:
        """Sets an extended attribute; ``flags`` are those of `os.setxattr`."""
        core = self._volume.core
        core.set_xattr(bytes(self), os.fsencode(name), bytes(value), flags, follow_symlinks)

    def removexattr(self, name: str, *, follow_symlinks: bool = True) -> None:
        """Removes an extended attribute."""
        core = self._volume.core
        core.set_xattr(bytes(self), os.fsencode(name), None, 0, follow_symlinks)

    def listxattr(self, *, follow_symlinks: bool = True) -> list[str]:
        """The names of the extended attributes."""
        names = self._volume.core.list_xattrs(bytes(self), follow_symlinks)
        return [os.fsdecode(name) for name in names]

    # Files.

    def open(
        self,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        permissions: int = 0o644,
    ) -> IO[Any]:
        """Opens the file, as the function `open` does."""
        volume = self._volume
        file: IO[Any] = volume.open(
            self, mode, buffering, encoding, errors, newline, permissions=permissions
        )
        return file

    def read_bytes(self) -> bytes:
        """All bytes of the file."""
        with self.open("rb", 0) as file:
            return bytes(file.read())

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        """All text of the file."""
        with self.open("r", -1, encoding, errors) as file:
            return str(file.read())

    def write_bytes(self, data: Any) -> int:
        """Makes the file, or empties it, and writes bytes."""
        view = memoryview(data).cast("B")
        with self.open("wb", 0) as file:
            done = 0
            while done < len(view):
                done += file.write(view[done:])
        return done

    def write_text(
        self,
        data: str,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> int:
        """Makes the file, or empties it, and writes text."""
        with self.open("w", -1, encoding, errors, newline) as file:
            return file.write(data)

    def touch(self, mode: int = 0o644, exist_ok: bool = True) -> None:
        """Makes the file, or sets its times to now."""
        if exist_ok and self.exists():
            now = time.time_ns()
            self.utime(ns=(now, now))
        else:
            self.open("ab" if exist_ok else "xb", 0, permissions=mode).close()

    # Names of directories.

    def iterdir(self) -> Iterator[Path]:
        """The paths in the directory, in no order."""
        for name, _, _ in self._volume.core.list_dir(bytes(self)):
            yield self / os.fsdecode(name)

    def mkdir(self, mode: int = 0o755, parents: bool = False, exist_ok: bool = False) -> None:
        """Makes a directory."""
        try:
            self._volume.core.mkdir(bytes(self), mode, self._volume.owner)
        except FileNotFoundError:
            if not parents or self.parent == self:
                raise
            self.parent.mkdir(parents=True, exist_ok=True)
            self.mkdir(mode, exist_ok=exist_ok)
        except OSError:
            # Not FileExistsError alone: a file system that is read-only is told first.
            if not exist_ok or not self.is_dir():
                raise

    def rmdir(self) -> None:
        """Removes the directory, which is empty."""
        self._volume.core.rmdir(bytes(self))

    def unlink(self, missing_ok: bool = False) -> None:
        """Removes the name of a file or a symbolic link."""
        try:
            self._volume.core.unlink(bytes(self))
        except FileNotFoundError:
            if not missing_ok:
                raise

    def _other(self, other: str | Path) -> Path:
        if isinstance(other, Path):
            if other._volume is not self._volume:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(self), None, str(other))
            return other
        return Path(self._volume, other)

    def rename(self, target: str | Path) -> Path:
        """Renames; a file that has the new name is replaced, as on every Unix."""
        to = self._other(target)
        self._volume.core.rename(bytes(self), bytes(to), True)
        return to

    replace = rename

    def symlink_to(self, target: str | Path) -> None:
        """Makes this path a symbolic link."""
        core = self._volume.core
        core.symlink(os.fsencode(str(target)), bytes(self), self._volume.owner)

    def hardlink_to(self, target: str | Path) -> None:
        """Makes this path another name of a file."""
        self._volume.core.link(bytes(self._other(target)), bytes(self), False)

    def readlink(self) -> PurePosixPath:
        """The target of the symbolic link."""
        return PurePosixPath(os.fsdecode(self._volume.core.readlink(bytes(self))))

    # Trees.

    def walk(
        self,
        top_down: bool = True,
        on_error: Callable[[OSError], object] | None = None,
        follow_symlinks: bool = False,
    ) -> Iterator[tuple[Path, list[str], list[str]]]:
        """Directories below with their names, as `pathlib.Path.walk` of Python 3.12."""
        todo: list[Path | tuple[Path, list[str], list[str]]] = [self]
        while todo:
            top = todo.pop()
            if isinstance(top, tuple):
                yield top
                continue
            directories: list[str] = []
            others: list[str] = []
            try:
                entries = list(top._entries(follow_symlinks))
            except OSError as error:
                if on_error is not None:
                    on_error(error)
                continue
            for name, is_directory in entries:
                (directories if is_directory else others).append(name)
            if top_down:
                yield top, directories, others
            else:
                todo.append((top, directories, others))
            todo.extend(top / name for name in reversed(directories))

    def _entries(self, follow_symlinks: bool) -> Iterator[tuple[str, bool]]:
        """Names, and whether each is a directory."""
        for raw, _, kind in self._volume.core.list_dir(bytes(self)):
            name = os.fsdecode(raw)
            if kind == 0 or (follow_symlinks and stat.S_ISLNK(kind)):
                kind = (self / name)._mode(follow_symlinks=follow_symlinks)
            yield name, stat.S_ISDIR(kind)

    def glob(self, pattern: str) -> Iterator[Path]:
        """Paths below that match a pattern; ``**`` is any number of directories."""
        parts = PurePosixPath(pattern).parts
        if not parts or parts[0] == "/":
            raise ValueError(f"unacceptable pattern: {pattern!r}")
        seen = set()
        for found in self._glob(parts):
            if found not in seen:
                seen.add(found)
                yield found

    def rglob(self, pattern: str) -> Iterator[Path]:
        """As `glob`, with ``**/`` before the pattern."""
        return self.glob(f"**/{pattern}")

    def _glob(self, parts: tuple[str, ...]) -> Iterator[Path]:
        if not parts:
            yield self
            return
        part, rest = parts[0], parts[1:]
        if part == "**":
            for top, _, _ in self.walk():
                yield from top._glob(rest)
        elif not re.search(r"[*?\[]", part):
            found = self / part
            if found.exists(follow_symlinks=bool(rest)):
                yield from found._glob(rest)
        elif self.is_dir():
            match = re.compile(fnmatch.translate(part)).match
            for name, _ in self._entries(False):
                if match(name):
                    found = self / name
                    if not rest or found.is_dir():
                        yield from found._glob(rest)


