//! Compares an image with that of mke2fs, byte for byte but for what cannot be the same: the count
//! of bytes written, with the superblock's checksum over it, and the time in the MMP block.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Clears what may differ in the copies of the superblock, which are at these offsets.
fn mask(bytes: &mut [u8], from: u64, copies: &[u64]) {
    for copy in copies {
        for (field, len) in [(0x178, 8), (0x3fc, 4)] {
            let at = (copy + field).checked_sub(from).and_then(|at| usize::try_from(at).ok());
            if let Some(part) = at.and_then(|at| bytes.get_mut(at..at + len)) {
                part.fill(0);
            }
        }
    }
}

/// Byte offsets of all copies of an image's superblock.
fn copies(image: &Path) -> Vec<u64> {
    let mut bytes = [0; 1024];
    File::open(image).unwrap().read_exact_at(&mut bytes, 1024).unwrap();
    let sb = uext4_ondisk::RawSuperblock::read(&bytes).unwrap();
    let layout = uext4_ondisk::Layout::new(&sb, None).unwrap();
    let groups = (1..layout.group_count).map(uext4_ondisk::GroupNo);
    let backups = groups.filter(|&g| layout.has_super(g));
    let offset = |g| layout.byte_of(layout.group_first_block(g));
    std::iter::once(1024).chain(backups.map(offset)).collect()
}

/// Byte offset of an image's MMP block.
fn mmp_block(image: &Path) -> Option<u64> {
    let mut bytes = [0; 1024];
    File::open(image).unwrap().read_exact_at(&mut bytes, 1024).unwrap();
    let sb = uext4_ondisk::RawSuperblock::read(&bytes).unwrap();
    let layout = uext4_ondisk::Layout::new(&sb, None).unwrap();
    layout.has_mmp().then(|| sb.s_mmp_block.get() * u64::from(layout.block_size))
}

/// Compares two images in whole.
pub(crate) fn compare(ours: &Path, theirs: &Path, context: &str) {
    const CHUNK: usize = 4 << 20;
    let files = [File::open(ours).unwrap(), File::open(theirs).unwrap()];
    let len = files[0].metadata().unwrap().len();
    assert_eq!(len, files[1].metadata().unwrap().len());
    let mut buffers = [vec![0; CHUNK], vec![0; CHUNK]];
    let (copies, mmp) = (copies(ours), mmp_block(ours));
    let mut at = 0;
    let mut different = Vec::new();
    while at < len {
        let count = CHUNK.min((len - at) as usize);
        for (file, buffer) in files.iter().zip(&mut buffers) {
            file.read_exact_at(&mut buffer[..count], at).unwrap();
            mask(&mut buffer[..count], at, &copies);
            if let Some(mmp) = mmp.filter(|mmp| (at..at + count as u64).contains(mmp)) {
                // The time and the checksum over it.
                let start = (mmp - at) as usize;
                buffer[start + 8..start + 16].fill(0);
                buffer[start + 1020..start + 1024].fill(0);
            }
        }
        if buffers[0] != buffers[1] {
            let pairs = buffers[0].iter().zip(&buffers[1]).enumerate();
            let here = pairs.filter(|(_, (a, b))| a != b);
            different.extend(here.take(20).map(|(n, (a, b))| (at + n as u64, *a, *b)));
        }
        at += count as u64;
    }
    let list: Vec<String> = different
        .iter()
        .take(40)
        .map(|(at, a, b)| format!("{at:#x} (1K block {}): {a:#04x} {b:#04x}", at / 1024))
        .collect();
    assert!(list.is_empty(), "{context}: byte, ours, theirs\n{}", list.join("\n"));
}
