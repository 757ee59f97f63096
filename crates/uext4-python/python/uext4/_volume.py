"""A volume: an ext4 file system that is open."""

from __future__ import annotations

import atexit
import io
import os
import warnings
import weakref
from collections.abc import Iterable, Iterator
from typing import IO, Any, NoReturn, SupportsIndex
from uuid import UUID

from . import _uext4
from ._file import File, parse_mode
from ._partition import place
from ._path import Path

StrPath = str | bytes | os.PathLike[Any]

#: Volumes that the interpreter closes at its end.
_open_volumes: weakref.WeakSet[Volume] = weakref.WeakSet()


class Volume:
    """An ext4 file system in an image file, a block device or a network block device.

    ``image`` is a path, or an ``nbd://`` URI. ``mode`` is ``"r"``, which never writes, or
    ``"r+"``, which locks the image for this volume alone. ``options`` are the words of ``-o``
    (docs/mount.md), in one string or several. ``partition``, or ``offset`` and ``length`` in bytes,
    name a part of a disk image. ``owner`` is the user and the group of what is made, by default
    those of this process.

    Any number of threads may use a volume. `close` writes everything back; a ``with`` statement
    does so at its end. Files that are still open are closed then, with what is in their buffers.
    After that each use raises ValueError.
    """

    _core: _uext4.Volume | None = None
    #: Whether to be dropped open is how it is closed.
    _is_quiet = False
    #: A file that must stay open as long as the volume.
    _keeps: IO[Any] | None = None

    def __init__(
        self,
        image: StrPath,
        mode: str = "r",
        *,
        options: str | Iterable[str] = (),
        partition: int | None = None,
        offset: int = 0,
        length: int | None = None,
        owner: tuple[int, int] | None = None,
    ) -> None:
        if mode not in ("r", "r+"):
            raise ValueError(f"invalid mode: {mode!r}; want 'r' or 'r+'")
        words = options.split(",") if isinstance(options, str) else list(options)
        name = os.fsencode(image)
        offset, length = place(name, partition, offset, length)
        #: The image, as it was named.
        self.name = os.fsdecode(name)
        self._owner = owner or (os.geteuid(), os.getegid())
        #: Open files by the identity of their `File`: what is to be closed before the volume.
        self._files: dict[int, weakref.ref[IO[Any]]] = {}
        self._core = _uext4.Volume(name, mode == "r", words, offset, length, self._owner[1])
        _open_volumes.add(self)

    @property
    def core(self) -> _uext4.Volume:
        """What the package itself calls. Not for users: it may change."""
        if self._core is None:
            raise ValueError("I/O operation on closed volume")
        return self._core

    @property
    def owner(self) -> tuple[int, int]:
        """User and group of what is made, and of the caller whose changes take set-id bits."""
        return self._owner

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError("a volume is open once: it cannot be copied or pickled")

    # Open and closed.

    @property
    def closed(self) -> bool:
        """Whether the volume is closed."""
        return self._core is None or self._core.closed

    def close(self) -> None:
        """Writes everything back and closes the image. Closing it again does nothing.

        Raises the first failure, of a file's buffer too; it is closed all the same.
        """
        core = self._core
        if core is None or core.closed or not core.is_own:
            return
        failure = None
        for reference in list(self._files.values()):
            file = reference()
            try:
                if file is not None:
                    file.close()
            except (OSError, ValueError) as error:
                failure = failure or error
        core.close()
        _open_volumes.discard(self)
        if self._keeps is not None:
            self._keeps.close()
        if failure is not None:
            raise failure

    def __enter__(self) -> Volume:
        if self.closed:
            raise ValueError("I/O operation on closed volume")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        core = self._core
        if core is None or not core.is_own or core.closed:
            return
        try:
            if not self._is_quiet:
                what = f"unclosed volume {self!r}"
                warnings.warn(what, ResourceWarning, source=self, stacklevel=2)
        finally:
            # Also where warnings are errors.
            self.close()

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<uext4.Volume {self.name!r}{state}>"

    # Paths.

    @property
    def root(self) -> Path:
        """The root directory."""
        return Path(self, "/")

    def path(self, *parts: str) -> Path:
        """A path of the volume."""
        return Path(self, "/", *parts)

    def __truediv__(self, part: str) -> Path:
        return Path(self, "/", part)

    # Files.

    def open(
        self,
        path: str | Path,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        permissions: int = 0o644,
    ) -> Any:
        """Opens a file, as the function `open` does. A file that is made gets ``permissions``."""
        binary = "b" in mode
        if binary and ("t" in mode or encoding or errors or newline):
            raise ValueError("binary mode has no encoding, errors or newline")
        plain = mode.replace("b", "", 1).replace("t", "", 1)
        flags = parse_mode(plain)
        if buffering == 0 and not binary:
            raise ValueError("can't have unbuffered text I/O")
        name = str(path)
        core = self.core.open(
            os.fsencode(name if name.startswith("/") else "/" + name),
            mode=permissions,
            owner=self.owner,
            **flags,
        )
        raw = File(self, core, name, plain)
        file: Any = raw
        if buffering != 0:
            size = buffering if buffering > 1 else 128 * 1024
            if flags["read"] and flags["write"]:
                file = io.BufferedRandom(raw, size)
            elif flags["write"]:
                file = io.BufferedWriter(raw, size)
            else:
                file = io.BufferedReader(raw, size)
            if not binary:
                encoding = io.text_encoding(encoding) if encoding is None else encoding
                line_buffering = buffering == 1
                file = io.TextIOWrapper(file, encoding, errors, newline, line_buffering)
                file.mode = mode
        self._files[id(raw)] = weakref.ref(file)
        return file

    def walk(self, top: str = "/") -> Iterator[tuple[Path, list[str], list[str]]]:
        """As `Path.walk`, from ``top`` on."""
        return self.path(top).walk()

    # The file system.

    @property
    def read_only(self) -> bool:
        """Whether nothing can be changed: opened so, or after an error."""
        return self.core.read_only

    @property
    def label(self) -> str:
        """The label, of at most 16 bytes."""
        return os.fsdecode(self.core.label)

    @label.setter
    def label(self, label: str) -> None:
        self.core.set_label(os.fsencode(label))

    @property
    def uuid(self) -> UUID:
        """The UUID."""
        return UUID(bytes=self.core.uuid)

    def sync(self) -> None:
        """Makes everything durable, but what is in buffers of open files."""
        self.core.sync()

    def statfs(self) -> os.statvfs_result:
        """Space and inodes, as `os.statvfs` gives them."""
        size, blocks, free, available, inodes, inodes_free, name_max = self.core.statfs()
        flags = os.ST_RDONLY if self.core.read_only else 0
        figures = (size, size, blocks, free, available, inodes, inodes_free, inodes_free, flags)
        return os.statvfs_result((*figures, name_max))

    def stats(self) -> dict[str, Any]:
        """Counters and levels by name, and ``latencies`` in nanoseconds: docs/stats.md."""
        return self.core.stats()


def _close_all() -> None:
    failures: list[tuple[Volume, Exception]] = []
    for volume in list(_open_volumes):
        try:
            volume.close()
        except Exception as error:
            failures.append((volume, error))
    # Behind all of them, as a warning may be an error.
    for volume, error in failures:
        warnings.warn(f"{volume!r}: closing failed: {error}", RuntimeWarning, stacklevel=1)


atexit.register(_close_all)
