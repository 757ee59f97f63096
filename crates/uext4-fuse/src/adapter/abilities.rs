//! What the kernel is asked for when the session begins.

use std::sync::atomic::Ordering;

use uext4::FileKind;
use uext4_fuse_server::{InitFlags, Offer, Wanted};
use uext4_ondisk::Incompat;

use crate::server::Server;

/// Largest write request, in bytes; also the most a read request asks for.
const REQUEST_BYTES_MAX: u32 = 1 << 20;

/// Read-ahead and write-back requests that the kernel keeps in flight.
const BACKGROUND_MAX: u16 = 64;

/// Kernel abilities asked for; those that a kernel lacks are left out one by one.
///
/// Not asked for: `FUSE_HANDLE_KILLPRIV` (the first version cannot say which cached write must
/// clear set-id bits), `FUSE_NO_OPEN_SUPPORT` where anything can be written (every open file has
/// its own write-error cursor), `FUSE_ATOMIC_O_TRUNC` (open(2) of a running program with `O_TRUNC`
/// would cut it before the kernel says `ETXTBSY`), `FUSE_AUTO_INVAL_DATA` (nothing else changes the
/// image), locks (the kernel's own serve a local mount). `FUSE_WRITEBACK_CACHE`, and
/// `FUSE_POSIX_ACL` with `FUSE_DONT_MASK`, by option.
const ABILITIES: InitFlags = InitFlags::PARALLEL_DIROPS
    .union(InitFlags::DO_READDIRPLUS)
    .union(InitFlags::READDIRPLUS_AUTO)
    .union(InitFlags::ASYNC_DIO)
    .union(InitFlags::CACHE_SYMLINKS)
    .union(InitFlags::NO_OPENDIR_SUPPORT)
    .union(InitFlags::EXPLICIT_INVAL_DATA)
    // mmap(2) with MAP_SHARED of a file that is open with O_DIRECT.
    .union(InitFlags::DIRECT_IO_ALLOW_MMAP)
    // open_by_handle_at(2), and so NFS: look-ups of "." and "..".
    .union(InitFlags::EXPORT_SUPPORT)
    .union(InitFlags::HAS_IOCTL_DIR)
    // Also lets the kernel remember that a file has no capabilities: without it each write(2) asks
    // for security.capability.
    .union(InitFlags::HANDLE_KILLPRIV_V2);

pub(super) fn wanted(offer: &Offer, server: &Server) -> Wanted {
    let mut flags = ABILITIES;
    if server.writeback_cache {
        flags |= InitFlags::WRITEBACK_CACHE;
    }
    if server.acl {
        let both = InitFlags::POSIX_ACL | InitFlags::DONT_MASK;
        flags |= both;
        server.ops.apply_umask.store(offer.flags.contains(both), Ordering::Relaxed);
    }
    let maps_direct = offer.flags.contains(InitFlags::DIRECT_IO_ALLOW_MMAP);
    server.maps_direct.store(maps_direct, Ordering::Relaxed);
    if server.idmap {
        flags |= InitFlags::ALLOW_IDMAP;
    }
    if server.every_access_counts(FileKind::Symlink) {
        flags -= InitFlags::CACHE_SYMLINKS;
    }
    let no_open = InitFlags::NO_OPEN_SUPPORT;
    // An encrypted file is refused when it is opened without its key.
    let opens_all = !server.ops.volume.layout().features.incompat.contains(Incompat::ENCRYPT);
    if server.ops.volume.read_only() && opens_all && offer.flags.contains(no_open) {
        flags |= no_open;
        server.no_open.store(true, Ordering::Relaxed);
    }
    Wanted {
        flags,
        max_write: REQUEST_BYTES_MAX,
        max_readahead: REQUEST_BYTES_MAX,
        max_background: BACKGROUND_MAX,
        // Also where inodes have no room for nanoseconds: new ones may have.
        time_gran: 1,
    }
}
