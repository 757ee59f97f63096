"""Images as a file system of fsspec: ``uext4://`` URLs.

>>> fs = fsspec.filesystem("uext4", image="disk.img")
>>> fs.ls("/etc", detail=False)
>>> fsspec.open("uext4:///etc/hostname", image="disk.img")
>>> fsspec.open("uext4://etc/hostname::file:///srv/disk.img")

Paths are absolute, in the image. docs/python.md has the rest.
"""

from __future__ import annotations

import datetime
import io
import os
import shutil
import stat
from collections.abc import Iterable
from typing import IO, Any

import fsspec
from fsspec.spec import AbstractFileSystem

from ._path import Path
from ._volume import Volume

_LOCAL = (None, "file", "local")


class Uext4FileSystem(AbstractFileSystem):  # type: ignore[misc]
    """An image as a file system of fsspec.

    ``image`` is what `uext4.Volume` takes; ``writable`` opens it to write. ``volume`` is one that is
    open already, which stays open. In a URL chain the image is the next link: a local file, or any
    other behind ``simplecache::``.

    The volume is closed by `close`, or when this object and the files that it has opened are gone.
    Instances are not cached, because a writable one locks its image.
    """

    protocol = "uext4"
    root_marker = "/"
    cachable = False

    def __init__(
        self,
        image: str | os.PathLike[str] | None = None,
        *,
        writable: bool = False,
        partition: int | None = None,
        offset: int = 0,
        length: int | None = None,
        options: str | Iterable[str] = (),
        owner: tuple[int, int] | None = None,
        volume: Volume | None = None,
        fo: str | None = None,
        target_protocol: str | None = None,
        target_options: dict[str, Any] | None = None,
        **storage_options: Any,
    ) -> None:
        super().__init__(**storage_options)
        if sum(given is not None for given in (image, volume, fo)) != 1:
            raise ValueError("uext4:// needs an image (image=, a URL chain), or a volume")
        if volume is None:
            copy = None
            if fo is not None:
                image, copy = _local(fo, target_protocol, target_options or {}, writable)
            assert image is not None
            volume = Volume(
                image,
                "r+" if writable else "r",
                options=options,
                partition=partition,
                offset=offset,
                length=length,
                owner=owner,
            )
            # It goes with this object: no warning.
            volume._is_quiet = True
            volume._keeps = copy
        self.volume = volume

    def close(self) -> None:
        """Writes everything back and closes the image."""
        self.volume.close()

    def __enter__(self) -> Uext4FileSystem:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = str(path)
        path = path.removeprefix("uext4://").removeprefix("uext4:")
        return "/" + path.strip("/")

    def _path(self, path: str) -> Path:
        return self.volume.path(self._strip_protocol(path))

    # Looking.

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Name, size and type, and what `os.stat` tells. A symbolic link is what it leads to, but
        ``link`` where that is a directory or nothing: a walk does not enter it."""
        found = self._path(path)
        status = found.lstat()
        info: dict[str, Any] = {"name": str(found), "islink": stat.S_ISLNK(status.st_mode)}
        kind = status
        if info["islink"]:
            info["destination"] = str(found.readlink())
            try:
                kind = found.stat()
            except OSError:
                pass
        size = kind.st_size
        if stat.S_ISREG(kind.st_mode):
            word = "file"
        elif info["islink"]:
            word, size = "link", status.st_size
        elif stat.S_ISDIR(kind.st_mode):
            word, size = "directory", 0
        else:
            word = "other"
        created = found._created_ns() if word != "link" else None
        info |= {
            "size": size,
            "type": word,
            "mode": status.st_mode,
            "uid": status.st_uid,
            "gid": status.st_gid,
            "ino": status.st_ino,
            "nlink": status.st_nlink,
            "mtime": status.st_mtime,
            "created": status.st_ctime if created is None else created / 1e9,
        }
        return info

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """Names below a directory, or the file itself; with ``detail`` what `info` tells."""
        found = self._path(path)
        names = [str(one) for one in found.iterdir()] if found.is_dir() else [str(found)]
        names.sort()
        if not detail:
            if not found.is_dir():
                found.lstat()
            return names
        return [self.info(name) for name in names]

    def created(self, path: str) -> datetime.datetime:
        """When a file was made."""
        return _utc(self.info(path)["created"])

    def modified(self, path: str) -> datetime.datetime:
        """When the content of a file changed."""
        return _utc(self._path(path).stat().st_mtime)

    def ukey(self, path: str) -> str:
        """Another text whenever the file has changed."""
        status = self._path(path).stat()
        return f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"

    # Files.

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **kwargs: Any,
    ) -> Any:
        if not autocommit:
            raise NotImplementedError("uext4:// has no transactions")
        if "r" not in mode and self.volume.read_only:
            raise io.UnsupportedOperation("the image is open read-only: writable=True")
        return self._path(path).open(mode)

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        """Makes a file, or empties it, or with ``truncate=False`` sets its times."""
        if truncate:
            self._path(path).open("wb", 0).close()
        else:
            self._path(path).touch()

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Copies one file, or makes a directory that another one is.

        A file is not copied onto itself, by whatever name: shutil.SameFileError.
        """
        source, target = self._path(path1), self._path(path2)
        if source.is_dir():
            target.mkdir(parents=True, exist_ok=True)
            return
        if target.exists() and source.samefile(target):
            raise shutil.SameFileError(f"{source} and {target} are the same file")
        target.parent.mkdir(parents=True, exist_ok=True)
        with source.open("rb", 0) as reader, target.open("wb", 0) as writer:
            while piece := reader.read(1 << 20):
                rest = memoryview(piece)
                # The last blocks of a full image take the beginning of a piece.
                while rest:
                    rest = rest[writer.write(rest) :]

    def rm_file(self, path: str) -> None:
        """Removes a file, a link or an empty directory."""
        found = self._path(path)
        if stat.S_ISDIR(found.lstat().st_mode):
            found.rmdir()
        else:
            found.unlink()

    _rm = rm_file

    def mv(
        self, path1: str, path2: str, recursive: bool = False, maxdepth: Any = None, **kwargs: Any
    ) -> None:
        """Renames: at once, directories too."""
        self._path(path1).rename(self._path(path2))

    # Directories.

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Makes a directory, and those above it."""
        self._path(path).mkdir(parents=create_parents)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Makes a directory and those above it."""
        self._path(path).mkdir(parents=True, exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        """Removes an empty directory."""
        self._path(path).rmdir()


def _local(
    fo: str, protocol: str | None, options: dict[str, Any], writable: bool
) -> tuple[str, IO[Any] | None]:
    """The path on this host of the image that a URL chain names, and the file that keeps it."""
    if protocol in _LOCAL:
        return fo, None
    if writable:
        raise ValueError(f"{protocol}: only a local image can be written")
    copy: IO[Any] = fsspec.open(fo, "rb", protocol=protocol, **options).open()
    name = getattr(copy, "name", None)
    if isinstance(name, str) and os.path.exists(name):
        return name, copy
    copy.close()
    raise ValueError(f"{protocol}: the image is no local file: put simplecache:: before it")


def _utc(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, tz=datetime.timezone.utc)
