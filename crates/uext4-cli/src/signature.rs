//! What a device already holds, by the marks that file systems and volume managers leave at fixed
//! places: enough to ask before it is overwritten.

use uext4_device::Device;

/// Name, byte offset and mark. Offsets and marks as in file(1)'s magic and each format's document.
const MARKS: [(&str, u64, &[u8]); 16] = [
    ("an ext2, ext3 or ext4 file system", 1024 + 56, &[0x53, 0xef]),
    ("an xfs file system", 0, b"XFSB"),
    ("a btrfs file system", 65_536 + 64, b"_BHRfS_M"),
    ("an f2fs file system", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    ("an erofs file system", 1024, &[0xe2, 0xe1, 0xf5, 0xe0]),
    ("a squashfs file system", 0, b"hsqs"),
    ("an NTFS file system", 3, b"NTFS    "),
    ("an exFAT file system", 3, b"EXFAT   "),
    ("an ISO 9660 file system", 32_769, b"CD001"),
    ("swap space", 4096 - 10, b"SWAPSPACE2"),
    ("a LUKS volume", 0, b"LUKS\xba\xbe"),
    ("an LVM physical volume", 512 + 24, b"LVM2 001"),
    ("a GPT partition table", 512, b"EFI PART"),
    ("a QEMU copy-on-write image", 0, b"QFI\xfb"),
    ("a bcachefs or bcache device", 4096 + 24, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca"),
    // Last, as many of the others carry it too.
    ("a boot sector or partition table", 510, &[0x55, 0xaa]),
];

/// What `device` holds; `None` when no mark is found.
pub(crate) fn of(device: &dyn Device) -> Option<&'static str> {
    let found = |offset: u64, mark: &[u8]| {
        let mut bytes = vec![0; mark.len()];
        // A device too short for a mark does not have it.
        device.read_at(offset, &mut bytes).is_ok() && bytes == mark
    };
    MARKS.iter().find(|(_, offset, mark)| found(*offset, mark)).map(|(name, ..)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use uext4_device::MemoryDevice;

    #[test]
    fn marks_are_seen_and_zeroes_have_none() {
        for (name, offset, mark) in MARKS {
            let device = MemoryDevice::new(1 << 17);
            assert_eq!(of(&device), None);
            device.write_at(offset, mark).unwrap();
            assert_eq!(of(&device), Some(name));
        }
        let short = MemoryDevice::new(100);
        assert_eq!(of(&short), None);
    }
}
