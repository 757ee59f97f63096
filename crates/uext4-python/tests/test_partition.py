"""Partitions of disk images.

Fault model: a partition is taken for another, or its end is passed; a damaged table is trusted.
"""

import shutil
import struct
import subprocess
import zlib

import pytest
from conftest import e2fsck

import uext4

MIB = 1 << 20


def make_gpt(path):
    path.write_bytes(b"")
    with path.open("r+b") as file:
        file.truncate(64 * MIB)
    command = ["sgdisk", "-n1:2048:+16M", "-c1:boot", "-n3:0:+24M", "-c3:root", str(path)]
    subprocess.run(command, check=True, capture_output=True)


def test_partitions_of_a_gpt(tmp_path):
    path = tmp_path / "disk.img"
    make_gpt(path)
    assert uext4.partitions(path) == [
        uext4.Partition(1, MIB, 16 * MIB, "boot"),
        uext4.Partition(3, 17 * MIB, 24 * MIB, "root"),
    ]
    for number in (1, 3):
        uext4.mkfs(path, partition=number, label=f"p{number}")
    with pytest.raises(FileExistsError):
        uext4.mkfs(path, partition=3)
    with pytest.raises(TypeError):
        uext4.Volume(path, partition="3")
    with pytest.raises(ValueError, match="16 bytes"):
        uext4.mkfs(path, partition=1, force=True, label="x" * 17)
    with uext4.Volume(path, "r+", partition=3) as volume:
        assert volume.label == "p3"
        assert volume.statfs().f_blocks * volume.statfs().f_frsize <= 24 * MIB
        (volume / "f").write_bytes(b"three")
    with uext4.Volume(path, offset=17 * MIB) as volume:
        assert (volume / "f").read_bytes() == b"three"
    for number, offset in ((1, MIB), (3, 17 * MIB)):
        assert uext4.fsck(path, partition=number)
        e2fsck(path, offset)
    assert [p.number for p in uext4.partitions(path)] == [1, 3]
    for wrong, why in [
        ({"partition": 2}, "has no partition 2 .it has 1, 3"),
        ({"partition": 3, "offset": 5}, "either"),
        ({"offset": -1}, "negative"),
        ({"offset": 1 << 40}, "not inside"),
        ({"offset": MIB, "length": 1 << 40}, "ends at"),
    ]:
        with pytest.raises(ValueError, match=why):
            uext4.Volume(path, **wrong)


@pytest.mark.skipif(shutil.which("sfdisk") is None, reason="sfdisk is not installed")
def test_partitions_of_an_mbr(tmp_path):
    path = tmp_path / "disk.img"
    with path.open("wb") as file:
        file.truncate(64 * MIB)
    table = "label: dos\n1: start=2048, size=8M\n2: size=40M, type=E\n5: size=8M\n6: size=8M\n"
    subprocess.run(["sfdisk", "-q", path], input=table, text=True, check=True)
    found = uext4.partitions(path)
    assert [(p.number, p.offset, p.length) for p in found] == [
        (1, MIB, 8 * MIB),
        (5, 10 * MIB, 8 * MIB),
        (6, 19 * MIB, 8 * MIB),
    ]
    uext4.mkfs(path, partition=6)
    with uext4.Volume(path, "r+", partition=6) as volume:
        (volume / "f").write_bytes(b"six")
    assert uext4.fsck(path, partition=6)
    e2fsck(path, 19 * MIB)


def test_what_has_no_table(image, tmp_path):
    assert uext4.partitions(image) == []
    with pytest.raises(ValueError, match="has no partition 1 .it has none"):
        uext4.Volume(image, partition=1)


def test_a_damaged_table_is_refused(tmp_path):
    path = tmp_path / "disk.img"
    make_gpt(path)
    data = bytearray(path.read_bytes())
    for at in (512 + 24, 1024 + 40):
        damaged = data.copy()
        damaged[at] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="damaged"):
            uext4.partitions(path)
    # A chain of logical partitions that leads to itself ends.
    record = bytearray(512)
    record[510:] = b"\x55\xaa"
    record[446 + 4] = 0x05
    record[446 + 8 : 446 + 12] = (1).to_bytes(4, "little")
    record[446 + 12 : 446 + 16] = (9).to_bytes(4, "little")
    inner = bytearray(record)
    inner[446 + 4] = 0x83
    inner[462 + 4] = 0x05
    inner[462 + 8] = 0
    data[: 4 * 512] = record + inner + bytes(1024)
    path.write_bytes(data)
    assert [p.number for p in uext4.partitions(path)] == [5]


def test_a_table_that_lies_is_damaged(tmp_path):
    """Its sums are right: it was made so."""
    path = tmp_path / "disk.img"
    for field, value in [(72, 2**64 - 1), (72, 2**55), (72, 2**40), (1024 + 40, 2**64 - 2)]:
        make_gpt(path)
        data = bytearray(path.read_bytes())
        struct.pack_into("<Q", data, field if field > 512 else 512 + field, value)
        struct.pack_into("<I", data, 512 + 88, zlib.crc32(data[1024 : 1024 + 128 * 128]))
        if value == 2**40:
            # The sum of what is read there: nothing.
            struct.pack_into("<I", data, 512 + 88, 0)
        struct.pack_into("<I", data, 512 + 16, 0)
        struct.pack_into("<I", data, 512 + 16, zlib.crc32(data[512 : 512 + 92]))
        path.write_bytes(data)
        with pytest.raises(ValueError, match="damaged"):
            uext4.partitions(path)
        with pytest.raises(ValueError, match="damaged"):
            uext4.Volume(path, partition=1)
