"""Making and checking file systems."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from . import _uext4
from ._partition import place


def mkfs(
    image: str | bytes | os.PathLike[Any],
    size: int | None = None,
    *,
    partition: int | None = None,
    offset: int = 0,
    length: int | None = None,
    force: bool = False,
    fs_type: str = "ext4",
    label: str = "",
    block_size: int | None = None,
    inode_size: int | None = None,
    inode_ratio: int | None = None,
    inodes: int | None = None,
    reserved_percent: float | None = None,
    features: str = "",
    journal_mib: int | None = None,
    uuid: UUID | None = None,
    root_owner: tuple[int, int] | None = None,
    root_mode: int | None = None,
    epoch: int | None = None,
) -> dict[str, Any]:
    """Makes a file system, as ``mke2fs -t ext4`` does, and says what was made.

    An image that does not exist is made, of ``size`` bytes; one that has data is refused without
    ``force``, and one that another host has mounted with mmp always. ``partition``, or ``offset``
    and ``length`` in bytes, name a part of a disk image. ``features`` is a list as of ``-O``. With ``epoch``, seconds since 1970, the image is the same
    bytes each time.
    """
    name = os.fsencode(image)
    offset, length = place(name, partition, offset, length)
    made = _uext4.mkfs(
        name,
        size=size,
        offset=offset,
        length=length,
        force=force,
        fs_type=fs_type,
        label=label,
        block_size=block_size,
        inode_size=inode_size,
        inode_ratio=inode_ratio,
        inodes=inodes,
        reserved_percent=reserved_percent,
        features=features,
        journal_mib=journal_mib,
        uuid=None if uuid is None else uuid.bytes,
        root_owner=root_owner,
        root_mode=root_mode,
        epoch=epoch,
    )
    made["uuid"] = UUID(bytes=made["uuid"])
    return made


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a file system: docs/fsck.md lists the codes."""

    code: str
    severity: str
    place: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.place}: {self.sentence}"


@dataclass(frozen=True)
class CheckResult:
    """What a check has found. It is true if the file system is clean."""

    clean: bool
    #: The check ended half-way, as what is wrong leaves nothing to go on with.
    stopped: bool
    findings: list[Finding]

    def __bool__(self) -> bool:
        return self.clean


def fsck(
    image: str | bytes | os.PathLike[Any],
    *,
    partition: int | None = None,
    offset: int = 0,
    length: int | None = None,
    threads: int | None = None,
) -> CheckResult:
    """Checks a file system that is not in use, as ``e2fsck -fn`` does. Nothing is written."""
    name = os.fsencode(image)
    offset, length = place(name, partition, offset, length)
    clean, stopped, findings = _uext4.fsck(name, offset, length, threads)
    return CheckResult(clean, stopped, [Finding(*finding) for finding in findings])
