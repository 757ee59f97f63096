//! Flags of open(2), and how the kernel is told to treat the file.

use fuser::FopenFlags;

/// The kernel's pages of a file stay good across opens: nothing else changes the image. close(2)
/// tells nobody anything, as on any disk file system, so it needs no answer of ours; what is due on
/// close is done on release.
const OPEN_FLAGS: FopenFlags = FopenFlags::FOPEN_KEEP_CACHE.union(FopenFlags::FOPEN_NOFLUSH);

/// How the kernel opens a file: past its cache if the program does so, with direct writes side by
/// side, as far as they do not extend the file.
pub(super) fn open_flags(flags: i32) -> FopenFlags {
    if is_direct(flags) {
        let direct = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        return direct | FopenFlags::FOPEN_NOFLUSH;
    }
    OPEN_FLAGS
}

/// Whether a file with these flags is read and written past caches.
pub(crate) fn is_direct(flags: i32) -> bool {
    flags & libc::O_DIRECT != 0
}

/// Whether a file opened with `flags` can make pages dirty.
pub(super) fn can_write(flags: i32) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY
}
