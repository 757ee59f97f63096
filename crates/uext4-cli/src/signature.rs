//! What a device holds, by the marks that file systems, volume managers, disk images and archives
//! have at fixed places: enough to ask before it is overwritten, and to say what it is instead of
//! the file system that was looked for.

use uext4_device::Device;
use uext4_device::stored_overlay::MAGIC as OVERLAY_MAGIC;

use crate::failure::Why;
use crate::partition::{self, Table};

/// A format and its mark.
struct Mark {
    /// Its name, with an article.
    what: &'static str,
    /// Where the mark stands, in bytes.
    at: u64,
    bytes: &'static [u8],
    /// The way to a file system in it, if there is one.
    help: &'static str,
}

const fn mark(what: &'static str, at: u64, bytes: &'static [u8], help: &'static str) -> Mark {
    Mark { what, at, bytes, help }
}

const CONVERT: &str = "convert it first (qemu-img convert -O raw)";

const FAT: &str = "copy by mtools (mcopy -i), or mount it as such (mount -t vfat)";

const EXT: Mark = mark("an ext2, ext3 or ext4 file system", 1024 + 56, &[0x53, 0xef], "");
/// Many of the others have its mark, too.
const BOOT: Mark = mark("a boot sector", 510, &[0x55, 0xaa], "");

/// Places and bytes as in file(1)'s magic and in each format's document.
const MARKS: [Mark; 39] = [
    mark("an xfs file system", 0, b"XFSB", "mount it as such (mount -t xfs)"),
    mark("a btrfs file system", 65_536 + 64, b"_BHRfS_M", "mount it as such (mount -t btrfs)"),
    mark(
        "an f2fs file system",
        1024,
        &[0x10, 0x20, 0xf5, 0xf2],
        "mount it as such (mount -t f2fs)",
    ),
    mark(
        "an erofs file system",
        1024,
        &[0xe2, 0xe1, 0xf5, 0xe0],
        "unpack it (fsck.erofs --extract)",
    ),
    mark("a squashfs file system", 0, b"hsqs", "unpack it (unsquashfs)"),
    mark("an NTFS file system", 3, b"NTFS    ", "mount it as such (mount -t ntfs3)"),
    mark("an exFAT file system", 3, b"EXFAT   ", "mount it as such (mount -t exfat)"),
    mark("a FAT file system", 54, b"FAT12   ", FAT),
    mark("a FAT file system", 54, b"FAT16   ", FAT),
    mark("a FAT file system", 82, b"FAT32   ", FAT),
    mark("an ISO 9660 file system", 32_769, b"CD001", "unpack it (bsdtar -x)"),
    mark("swap space", 4096 - 10, b"SWAPSPACE2", "it has no files"),
    mark("swap space", 65_536 - 10, b"SWAPSPACE2", "it has no files"),
    mark("a bcachefs or bcache device", 4096 + 24, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca", ""),
    mark("a LUKS volume", 0, b"LUKS\xba\xbe", "open it first (cryptsetup open)"),
    mark("an LVM physical volume", 512 + 24, b"LVM2 001", "name a logical volume of it"),
    mark("a part of a RAID", 0, b"\xfc\x4e\x2b\xa9", "assemble it first (mdadm)"),
    mark("a part of a RAID", 4096, b"\xfc\x4e\x2b\xa9", "assemble it first (mdadm)"),
    mark("an overlay", 0, OVERLAY_MAGIC, "name its image (uext4 mount --overlay FILE IMAGE DIR)"),
    mark("a qcow2 disk image", 0, b"QFI\xfb", CONVERT),
    mark("a VMDK disk image", 0, b"KDMV", CONVERT),
    mark("a VMDK disk image", 0, b"COWD", CONVERT),
    mark("a VMDK description", 0, b"# Disk DescriptorFile", CONVERT),
    mark("a VDI disk image", 64, &[0x7f, 0x10, 0xda, 0xbe], CONVERT),
    mark("a VHDX disk image", 0, b"vhdxfile", CONVERT),
    mark("a VHD disk image", 0, b"conectix", CONVERT),
    mark("a QED disk image", 0, b"QED\0", CONVERT),
    mark("a VMA archive of Proxmox", 0, b"VMA\0", "unpack it first (vma extract)"),
    mark("a BitLocker volume", 3, b"-FVE-FS-", "open it first (cryptsetup open --type bitlk)"),
    mark("a cpio archive", 0, b"070701", "unpack it first (cpio -i)"),
    mark("an Android sparse image", 0, &[0x3a, 0xff, 0x26, 0xed], "convert it first (simg2img)"),
    mark("a gzip archive", 0, &[0x1f, 0x8b, 0x08], "unpack it first (gunzip)"),
    mark("a zstd archive", 0, &[0x28, 0xb5, 0x2f, 0xfd], "unpack it first (unzstd)"),
    mark("an xz archive", 0, b"\xfd7zXZ\0", "unpack it first (unxz)"),
    mark("a bzip2 archive", 0, b"BZh", "unpack it first (bunzip2)"),
    mark("an lz4 archive", 0, &[0x04, 0x22, 0x4d, 0x18], "unpack it first (unlz4)"),
    mark("a zip archive", 0, b"PK\x03\x04", "unpack it first (unzip)"),
    mark("a 7z archive", 0, &[0x37, 0x7a, 0xbc, 0xaf, 0x27, 0x1c], "unpack it first (7z x)"),
    mark("a tar archive", 257, b"ustar", "unpack it first (tar -x)"),
];

/// What was found.
pub(crate) enum Found {
    /// What is looked for.
    Ext,
    /// Another format.
    Other { what: &'static str, help: &'static str },
    /// Partitions.
    Table(Table),
    /// What would be a partition table, and what is wrong with it.
    Damaged(Why),
}

/// Whether what starts at a byte of `device` has a mark.
fn has_mark(device: &dyn Device, start: u64, mark: &Mark) -> bool {
    let mut bytes = vec![0; mark.bytes.len()];
    let at = start.checked_add(mark.at);
    // A device too short for a mark does not have it.
    at.is_some_and(|at| device.read_at(at, &mut bytes).is_ok()) && bytes == mark.bytes
}

/// Whether something that is known by its mark starts at a byte of `device`.
pub(crate) fn is_known_at(device: &dyn Device, start: u64) -> bool {
    [EXT].iter().chain(&MARKS).any(|mark| has_mark(device, start, mark))
}

/// What `device` holds; `None` when no mark is found. `sector` is the size of the disk's sectors in
/// bytes, if it is known.
pub(crate) fn of(device: &dyn Device, sector: Option<u64>) -> Option<Found> {
    let found = |mark: &&Mark| has_mark(device, 0, mark);
    if found(&&EXT) {
        return Some(Found::Ext);
    }
    if let Some(Mark { what, help, .. }) = MARKS.iter().find(found) {
        return Some(Found::Other { what, help });
    }
    match partition::read(device, sector) {
        Ok(Some(table)) => Some(Found::Table(table)),
        Ok(None) => found(&&BOOT).then_some(Found::Other { what: BOOT.what, help: BOOT.help }),
        Err(why) => Some(Found::Damaged(why)),
    }
}

/// The partition of a table to look into first: one with an ext4 file system if there is one.
pub(crate) fn likely_partition(device: &dyn Device, table: &Table) -> Option<u32> {
    let is_ext = |start: u64| has_mark(device, start, &EXT);
    let mut partitions = table.partitions();
    let first = table.partitions().next();
    partitions.find(|(_, bytes)| is_ext(bytes.start)).or(first).map(|(number, _)| number)
}

impl Found {
    /// Why this must not be overwritten unasked, as the end of a sentence about the device.
    pub(crate) fn sentence(&self) -> String {
        match self {
            Self::Ext => format!("contains {}", EXT.what),
            Self::Other { what, .. } => format!("contains {what}"),
            Self::Table(table) => format!("contains a partition table ({})", table.kind),
            Self::Damaged(why) => why.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uext4_device::MemoryDevice;

    fn sentence(device: &MemoryDevice) -> Option<String> {
        of(device, Some(512)).map(|found| found.sentence())
    }

    #[test]
    fn marks_are_seen_and_zeroes_have_none() {
        for Mark { what, at, bytes, .. } in MARKS.iter().chain([&EXT, &BOOT]) {
            let device = MemoryDevice::new(1 << 17);
            assert_eq!(sentence(&device), None);
            device.write_at(*at, bytes).unwrap();
            assert_eq!(sentence(&device), Some(format!("contains {what}")));
            // An ext4 file system leaves the boot sector alone.
            device.write_at(EXT.at, EXT.bytes).unwrap();
            assert!(matches!(of(&device, Some(512)), Some(Found::Ext)), "{what}");
        }
        let short = MemoryDevice::new(100);
        assert_eq!(sentence(&short), None);
    }
}
