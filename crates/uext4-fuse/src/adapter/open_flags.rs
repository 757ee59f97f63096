//! Flags of open(2), and how the kernel is told to treat the file.

use uext4_fuse_server::OpenFlags;

/// The kernel's pages of a file stay good across opens: nothing else changes the image. close(2)
/// tells nobody anything, as on any disk file system, so it needs no answer of ours; what is due on
/// close is done on release.
const OPEN_FLAGS: OpenFlags = OpenFlags::KEEP_CACHE.union(OpenFlags::NOFLUSH);

/// How the kernel opens a file: past its cache if the program does so, with direct writes side by
/// side, as far as they do not extend the file. Where every read counts (`strictatime`), past its
/// cache whenever the file can be read: it tells nobody of reads from there.
///
/// A kernel that cannot map files that bypass its cache (`maps_direct` false: before Linux 6.6)
/// does not look at the pages that others map or read either: a direct write would leave them
/// stale. There all files are opened alike, and the kernel's own `O_DIRECT` drops the pages that it
/// writes past. Where every read counts it drops all pages at an open, so that at least the first
/// read after it does.
pub(super) fn open_flags(flags: u32, maps_direct: bool, every_read_counts: bool) -> OpenFlags {
    let counts = every_read_counts && can_read(flags);
    match (maps_direct, is_direct(flags)) {
        (true, true) => {
            OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES | OpenFlags::NOFLUSH
        }
        (true, false) if counts => OpenFlags::DIRECT_IO | OpenFlags::NOFLUSH,
        (false, _) if counts => OpenFlags::NOFLUSH,
        _ => OPEN_FLAGS,
    }
}

/// Whether a file with these flags is read and written past caches.
pub(super) fn is_direct(flags: u32) -> bool {
    flags & libc::O_DIRECT as u32 != 0
}

fn can_read(flags: u32) -> bool {
    flags & libc::O_ACCMODE as u32 != libc::O_WRONLY as u32
}

/// Whether a file opened with `flags` can make pages dirty.
pub(super) fn can_write(flags: u32) -> bool {
    flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault model: a kernel that keeps stale pages beside direct writes is told to make them past
    /// its cache; reads from the kernel's cache where they count.
    #[test]
    fn files_go_past_the_cache_where_they_must_and_the_kernel_can_map_them() {
        let direct = (libc::O_RDWR | libc::O_DIRECT) as u32;
        let (read, write) = (libc::O_RDWR as u32, libc::O_WRONLY as u32);
        assert!(open_flags(direct, true, false).contains(OpenFlags::DIRECT_IO));
        assert_eq!(open_flags(direct, false, false), OPEN_FLAGS);
        assert_eq!(open_flags(read, true, false), OPEN_FLAGS);
        assert_eq!(open_flags(write, true, true), OPEN_FLAGS);
        assert!(open_flags(read, true, true).contains(OpenFlags::DIRECT_IO));
        let old = open_flags(read, false, true);
        assert!(!old.intersects(OpenFlags::DIRECT_IO | OpenFlags::KEEP_CACHE));
    }
}
