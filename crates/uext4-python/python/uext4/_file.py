"""Open files of an image."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

from . import _uext4

if TYPE_CHECKING:
    from ._volume import Volume


def parse_mode(mode: str) -> dict[str, bool]:
    """The flags of open(2) that a mode of `open` without its `t` or `b` stands for."""
    kind = mode.replace("+", "", 1)
    if kind not in ("r", "w", "x", "a"):
        raise ValueError(f"invalid mode: {mode!r}")
    both = "+" in mode
    return {
        "read": kind == "r" or both,
        "write": kind != "r" or both,
        "create": kind != "r",
        "exclusive": kind == "x",
        "truncate": kind == "w",
        "append": kind == "a",
    }


class File(io.RawIOBase):
    """An open file, without a buffer of its own: see `io.RawIOBase`.

    `Path.open` and `Volume.open` give one with ``buffering=0``, and else wrap it in the buffers of
    `io`. All calls release the interpreter while they wait. `pread` and `pwrite` have an offset of
    their own, so any number of threads may use them at a time.
    """

    def __init__(self, volume: Volume, core: _uext4.File, name: str, mode: str) -> None:
        super().__init__()
        flags = parse_mode(mode)
        # The volume stays as long as one of its files does.
        self._volume: Volume | None = volume
        self._core = core
        self._readable = flags["read"]
        self._writable = flags["write"]
        self._appends = flags["append"]
        self.name = name
        self.mode = mode
        if self._appends:
            core.seek(0, os.SEEK_END)

    def _check(self, *, read: bool = False, write: bool = False) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        if read and not self._readable:
            raise io.UnsupportedOperation("not readable")
        if write and not self._writable:
            raise io.UnsupportedOperation("not writable")

    def readable(self) -> bool:
        self._check()
        return self._readable

    def writable(self) -> bool:
        self._check()
        return self._writable

    def seekable(self) -> bool:
        self._check()
        return True

    def fileno(self) -> int:
        raise io.UnsupportedOperation("a file of an image has no descriptor")

    def isatty(self) -> bool:
        self._check()
        return False

    def readinto(self, buffer: Any, /) -> int:
        self._check(read=True)
        return self._core.readinto(buffer)

    def readall(self) -> bytes:
        self._check(read=True)
        position = self._core.tell()
        data = self._core.pread(max(self._core.size() - position, 0), position)
        self._core.seek(position + len(data), os.SEEK_SET)
        # What was appended meanwhile.
        more = super().readall()
        return data + more if more else data

    def write(self, data: Any, /) -> int:
        self._check(write=True)
        return self._core.write(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._check()
        return self._core.seek(offset, whence)

    def tell(self) -> int:
        self._check()
        return self._core.tell()

    def truncate(self, size: int | None = None, /) -> int:
        self._check(write=True)
        size = self._core.tell() if size is None else size
        if size < 0:
            raise ValueError(f"negative size value {size}")
        self._core.truncate(size)
        return size

    def pread(self, length: int, offset: int) -> bytes:
        """At most ``length`` bytes from ``offset`` on; fewer only at the end of the file."""
        self._check(read=True)
        return self._core.pread(length, offset)

    def preadinto(self, buffer: Any, offset: int) -> int:
        """Reads into ``buffer`` from ``offset`` on, and returns the number of bytes."""
        self._check(read=True)
        return self._core.preadinto(buffer, offset)

    def pwrite(self, data: Any, offset: int) -> int:
        """Writes at ``offset``, and returns the number of bytes. Not for files that append."""
        self._check(write=True)
        if self._appends:
            raise io.UnsupportedOperation("the file is open for appending")
        return self._core.pwrite(data, offset)

    def fsync(self, *, data_only: bool = False) -> None:
        """Makes the file durable. What is in a buffer above this file is not in it yet: flush
        that first."""
        self._check()
        self._core.fsync(data_only)

    def close(self) -> None:
        """Closes the file, and raises a failure of writing it back that was not raised yet."""
        if self.closed:
            return
        try:
            self._core.close()
        finally:
            volume, self._volume = self._volume, None
            if volume is not None:
                volume._files.pop(id(self), None)
            super().close()

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<uext4.File name={self.name!r} mode={self.mode!r}{state}>"
