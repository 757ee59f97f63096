"""Partition tables of disk images: GPT, and MBR with logical partitions.

Numbers are those of Linux: 1 is what the kernel calls ``sda1``. A table is what its disk says, and
a disk may lie: reading one ends after a bounded number of steps.
"""

from __future__ import annotations

import operator
import os
import struct
import zlib
from dataclasses import dataclass
from typing import Any

from . import _uext4

_EXTENDED = (0x05, 0x0F, 0x85)
_PROTECTIVE = 0xEE
_LOGICAL_MAX = 128
_ENTRIES_BYTES_MAX = 1 << 20
# As of off_t.
_DISK_BYTES_MAX = 1 << 63


@dataclass(frozen=True)
class Partition:
    """A partition: its number, and where it lies in its disk, in bytes."""

    number: int
    offset: int
    length: int
    #: The name that a GPT has for it.
    name: str = ""


def partitions(image: str | bytes | os.PathLike[Any]) -> list[Partition]:
    """The partitions of a disk image or a disk; none if it has no partition table."""
    name = os.fsencode(image)
    # Disks of 4096-byte sectors have their GPT at the second of those.
    for sector in (512, 4096):
        found = _gpt(name, sector)
        if found is not None:
            return found
    return _mbr(name)


def place(
    image: bytes, partition: int | None, offset: int, length: int | None
) -> tuple[int, int | None]:
    """Offset and length in bytes of what the caller named."""
    if partition is None:
        if offset < 0 or (length is not None and length <= 0):
            raise ValueError("offset and length are not negative")
        return offset, length
    if offset or length is not None:
        raise ValueError("either a partition, or an offset and a length")
    number = operator.index(partition)
    table = partitions(image)
    for found in table:
        if found.number == number:
            return found.offset, found.length
    has = ", ".join(str(found.number) for found in table) or "none"
    raise ValueError(f"{os.fsdecode(image)}: has no partition {partition} (it has {has})")


def _read(image: bytes, offset: int, length: int) -> bytes:
    return _uext4.read_device(image, offset, length)[0]


def _gpt(image: bytes, sector: int) -> list[Partition] | None:
    header = _read(image, sector, sector)
    if header[:8] != b"EFI PART":
        return None
    size, crc = struct.unpack_from("<II", header, 12)
    if not 92 <= size <= len(header):
        raise ValueError(f"{os.fsdecode(image)}: its GPT is damaged")
    plain = header[:16] + bytes(4) + header[20:size]
    (first,) = struct.unpack_from("<Q", header, 72)
    count, each, entries_crc = struct.unpack_from("<III", header, 80)
    too_many = each < 128 or count * each > _ENTRIES_BYTES_MAX
    if zlib.crc32(plain) != crc or too_many or first * sector >= _DISK_BYTES_MAX:
        raise ValueError(f"{os.fsdecode(image)}: its GPT is damaged")
    entries = _read(image, first * sector, count * each)
    if len(entries) != count * each or zlib.crc32(entries) != entries_crc:
        raise ValueError(f"{os.fsdecode(image)}: its GPT is damaged")
    found = []
    for index in range(count):
        entry = entries[index * each : (index + 1) * each]
        start, last = struct.unpack_from("<QQ", entry, 32)
        if entry[:16] != bytes(16) and start <= last:
            name = entry[56:128].decode("utf-16-le", "replace").split("\0")[0]
            length = (last - start + 1) * sector
            if (last + 1) * sector > _DISK_BYTES_MAX:
                raise ValueError(f"{os.fsdecode(image)}: its GPT is damaged")
            found.append(Partition(index + 1, start * sector, length, name))
    return found


def _mbr(image: bytes) -> list[Partition]:
    sector = 512
    found = []
    extended = []
    for index, (kind, start, length) in enumerate(_records(_read(image, 0, sector))):
        if kind == _PROTECTIVE:
            raise ValueError(f"{os.fsdecode(image)}: its GPT is damaged")
        if kind in _EXTENDED:
            extended.append(start)
        elif kind and length:
            found.append(Partition(index + 1, start * sector, length * sector))
    if extended:
        base = link = extended[0]
        for number in range(5, 5 + _LOGICAL_MAX):
            records = _records(_read(image, link * sector, sector))
            if not records:
                break
            kind, start, length = records[0]
            if kind and length:
                found.append(Partition(number, (link + start) * sector, length * sector))
            kind, start, _ = records[1]
            if kind not in _EXTENDED or not start:
                break
            link = base + start
    return found


def _records(block: bytes) -> list[tuple[int, int, int]]:
    """Type, first sector and number of sectors of the four records; none without a mark."""
    if len(block) < 512 or block[510:512] != b"\x55\xaa":
        return []
    records = []
    for at in range(446, 510, 16):
        if block[at] & 0x7F:
            # A boot sector of a file system, not a table.
            return []
        records.append((block[at + 4], *struct.unpack_from("<II", block, at + 8)))
    return records
