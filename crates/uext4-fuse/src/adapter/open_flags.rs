//! Flags of open(2), and how the kernel is told to treat the file.

use uext4_fuse_server::OpenFlags;

/// The kernel's pages of a file stay good across opens: nothing else changes the image. close(2)
/// tells nobody anything, as on any disk file system, so it needs no answer of ours; what is due on
/// close is done on release.
const OPEN_FLAGS: OpenFlags = OpenFlags::KEEP_CACHE.union(OpenFlags::NOFLUSH);

/// How the kernel opens a file: past its cache if the program does so, with direct writes side by
/// side, as far as they do not extend the file.
pub(super) fn open_flags(flags: u32) -> OpenFlags {
    if is_direct(flags) {
        return OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES | OpenFlags::NOFLUSH;
    }
    OPEN_FLAGS
}

/// Whether a file with these flags is read and written past caches.
pub(super) fn is_direct(flags: u32) -> bool {
    flags & libc::O_DIRECT as u32 != 0
}

/// Whether a file opened with `flags` can make pages dirty.
pub(super) fn can_write(flags: u32) -> bool {
    flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32
}
