//! What the kernel is asked for when the session begins.

use std::sync::atomic::Ordering;

use fuser::{InitFlags, KernelConfig};

use crate::server::Server;

/// Largest write request, in bytes; also the most a read request asks for.
const REQUEST_BYTES_MAX: u32 = 1 << 20;

/// Read-ahead and write-back requests that the kernel keeps in flight.
const BACKGROUND_MAX: u16 = 64;

/// Kernel abilities asked for; those a kernel lacks are left out one by one.
///
/// Not asked for: `FUSE_HANDLE_KILLPRIV` (the first version cannot say which cached write must
/// clear set-id bits), `FUSE_NO_OPEN_SUPPORT` (every open file has its own write-error cursor),
/// `FUSE_ATOMIC_O_TRUNC` (open(2) of a running program with `O_TRUNC` would cut it before the
/// kernel says `ETXTBSY`), `FUSE_AUTO_INVAL_DATA` (nothing else changes the image), locks (the
/// kernel's own serve a local mount). `FUSE_WRITEBACK_CACHE`, and `FUSE_POSIX_ACL` with
/// `FUSE_DONT_MASK`, by option.
const ABILITIES: [InitFlags; 9] = [
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_NO_OPENDIR_SUPPORT,
    InitFlags::FUSE_EXPLICIT_INVAL_DATA,
    // mmap(2) with MAP_SHARED of a file that is open with O_DIRECT.
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
    // Also lets the kernel remember that a file has no capabilities: without it each write(2) asks
    // for security.capability.
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
];

/// Asks for all of it.
pub(super) fn ask(config: &mut KernelConfig, server: &Server) {
    for ability in ABILITIES {
        // A kernel without it works, only slower.
        let _ = config.add_capabilities(ability);
    }
    if server.writeback_cache {
        let _ = config.add_capabilities(InitFlags::FUSE_WRITEBACK_CACHE);
    }
    if server.acl {
        let both = InitFlags::FUSE_POSIX_ACL | InitFlags::FUSE_DONT_MASK;
        let given = config.add_capabilities(both).is_ok();
        server.ops.apply_umask.store(given, Ordering::Relaxed);
    }
    // Each setter answers the nearest value it would take.
    if let Err(nearest) = config.set_max_write(REQUEST_BYTES_MAX) {
        let _ = config.set_max_write(nearest);
    }
    if let Err(nearest) = config.set_max_readahead(REQUEST_BYTES_MAX) {
        let _ = config.set_max_readahead(nearest);
    }
    let _ = config.set_max_background(BACKGROUND_MAX);
}
