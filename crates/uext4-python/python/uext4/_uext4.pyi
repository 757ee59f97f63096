"""The core in Rust. The package's own modules call it; it may change from version to version."""

from typing import Any, TypedDict, final, type_check_only

__all__: list[str]

VERSION: str

@type_check_only
class Stat(TypedDict):
    mode: int
    ino: int
    links: int
    uid: int
    gid: int
    size: int
    blocks: int
    block_size: int
    device: tuple[int, int]
    atime: tuple[int, int]
    mtime: tuple[int, int]
    ctime: tuple[int, int]
    crtime: tuple[int, int] | None
    flags: int
    generation: int

@final
class Volume:
    def __new__(
        cls,
        image: bytes,
        read_only: bool,
        options: list[str],
        offset: int,
        length: int | None,
        group: int,
    ) -> Volume: ...
    @property
    def closed(self) -> bool: ...
    @property
    def is_own(self) -> bool: ...
    @property
    def read_only(self) -> bool: ...
    @property
    def label(self) -> bytes: ...
    @property
    def uuid(self) -> bytes: ...
    def close(self) -> None: ...
    def set_label(self, label: bytes) -> None: ...
    def sync(self) -> None: ...
    def statfs(self) -> tuple[int, int, int, int, int, int, int]: ...
    def stats(self) -> dict[str, Any]: ...
    def open(
        self,
        path: bytes,
        *,
        read: bool,
        write: bool,
        create: bool,
        exclusive: bool,
        truncate: bool,
        append: bool,
        mode: int,
        owner: tuple[int, int],
    ) -> File: ...
    def stat(self, path: bytes, follow: bool) -> Stat: ...
    def list_dir(self, path: bytes) -> list[tuple[bytes, int, int]]: ...
    def mkdir(self, path: bytes, mode: int, owner: tuple[int, int]) -> None: ...
    def symlink(self, target: bytes, path: bytes, owner: tuple[int, int]) -> None: ...
    def link(self, target: bytes, path: bytes, follow: bool) -> None: ...
    def unlink(self, path: bytes) -> None: ...
    def rmdir(self, path: bytes) -> None: ...
    def rename(self, source: bytes, target: bytes, replace: bool) -> None: ...
    def readlink(self, path: bytes) -> bytes: ...
    def set_attr(
        self,
        path: bytes,
        follow: bool,
        *,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        size: int | None = None,
        atime: tuple[int, int] | None = None,
        mtime: tuple[int, int] | None = None,
    ) -> None: ...
    def get_xattr(self, path: bytes, name: bytes, follow: bool) -> bytes: ...
    def list_xattrs(self, path: bytes, follow: bool) -> list[bytes]: ...
    def set_xattr(
        self, path: bytes, name: bytes, value: bytes | None, flags: int, follow: bool
    ) -> None: ...

@final
class File:
    def close(self) -> None: ...
    def readinto(self, into: Any) -> int: ...
    def preadinto(self, into: Any, offset: int) -> int: ...
    def pread(self, len: int, offset: int) -> bytes: ...
    def write(self, data: Any) -> int: ...
    def pwrite(self, data: Any, offset: int) -> int: ...
    def seek(self, offset: int, whence: int) -> int: ...
    def tell(self) -> int: ...
    def size(self) -> int: ...
    def truncate(self, size: int) -> None: ...
    def fsync(self, data_only: bool) -> None: ...

def read_device(image: bytes, offset: int, len: int) -> tuple[bytes, int]: ...
def mkfs(
    image: bytes,
    *,
    size: int | None,
    offset: int,
    length: int | None,
    force: bool,
    fs_type: str,
    label: str,
    block_size: int | None,
    inode_size: int | None,
    inode_ratio: int | None,
    inodes: int | None,
    reserved_percent: float | None,
    features: str,
    journal_mib: int | None,
    uuid: bytes | None,
    root_owner: tuple[int, int] | None,
    root_mode: int | None,
    epoch: int | None,
) -> dict[str, Any]: ...
def fsck(
    image: bytes, offset: int, length: int | None, threads: int | None
) -> tuple[bool, bool, list[tuple[str, str, str, str]]]: ...
