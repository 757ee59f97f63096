//! Volumes: open, close, sync, space, statistics; what version this is.

use std::ffi::{CString, c_char, c_int};
use std::sync::Arc;

use uext4::{Owner, Volume};
use uext4_fuse::stats::Snapshot;

use crate::args::{self, Shared};
use crate::device::{DeviceHandle, Hold};
use crate::failure::{Failure, Result, count, status};
use crate::open::{self, Options};

/// The version of the header, to be compared with what uext4_version_number returns. Before 1.0
/// a new minor version may break programs; its library has another soname.
pub const UEXT4_VERSION_MAJOR: u32 = 0;
/// See UEXT4_VERSION_MAJOR.
pub const UEXT4_VERSION_MINOR: u32 = 1;
/// See UEXT4_VERSION_MAJOR.
pub const UEXT4_VERSION_PATCH: u32 = 0;

/// An open file system. May be used by any number of threads.
#[derive(Clone, Debug)]
pub struct VolumeHandle {
    // Fields are dropped in this order: the device is free when nothing of the volume is left.
    volume: Volume,
    owner: Owner,
    hold: Arc<Hold>,
}

impl VolumeHandle {
    pub(crate) fn new(volume: Volume, owner: Owner, hold: Hold) -> Self {
        Self { volume, owner, hold: Arc::new(hold) }
    }

    pub(crate) fn volume(&self) -> &Volume {
        &self.volume
    }

    /// Whose files are made.
    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// Whether this is another handle of the same volume.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.hold, &other.hold)
    }
}

/// Space of a volume, as of statfs(2). Blocks are of block_size bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Space {
    /// Blocks for data and directories.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks that are not kept for root.
    pub blocks_available: u64,
    /// Inodes.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
    /// Made of the UUID.
    pub fsid: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// Longest name in bytes.
    pub name_max: u32,
    /// The UUID.
    pub uuid: [u8; 16],
}

// SAFETY: numbers without padding.
unsafe impl Shared for Space {}

/// Version of the library: major * 65536 + minor * 256 + patch.
#[unsafe(no_mangle)]
pub extern "C" fn uext4_version_number() -> u32 {
    UEXT4_VERSION_MAJOR << 16 | UEXT4_VERSION_MINOR << 8 | UEXT4_VERSION_PATCH
}

/// Version of the library as text, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn uext4_version() -> *const c_char {
    const TEXT: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    TEXT.as_ptr().cast()
}

/// Opens the file system of an image file, a block device, or a network block device
/// (nbd://HOST/EXPORT; see uext4_device_open). A journal that was left dirty is replayed, with ro
/// in memory alone.
///
/// Options are words as of mount -o, separated by commas, those of uext4(5): ro, noatime,
/// commit=SECONDS, ... Besides: offset=BYTES and sizelimit=BYTES for a part of the file; uid=ID and
/// gid=ID, the owner of what is made (0, root's, by default). NULL is none.
///
/// Fails with EROFS where the file system can only be read and ro was not given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_open(
    image: *const c_char,
    options: *const c_char,
    volume: *mut *mut VolumeHandle,
) -> c_int {
    status(None, || {
        args::check_place(volume, "volume")?;
        // SAFETY: strings, see the crate.
        let (image, options) =
            unsafe { (args::text(image, "image")?, args::optional_text(options)) };
        let options = Options::parse(options)?;
        let device = DeviceHandle::new(open::device(image, &options.file)?);
        let opened = open::volume(&device, image, options)?;
        // SAFETY: a valid place, see the crate.
        unsafe { args::put(volume, Box::into_raw(Box::new(opened))) };
        Ok(())
    })
}

/// Opens the file system on a device. Options are those of uext4_open, of which those of devices
/// have no effect. The device may be freed before the volume is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_open_device(
    device: *const DeviceHandle,
    options: *const c_char,
    volume: *mut *mut VolumeHandle,
) -> c_int {
    status(None, || {
        args::check_place(volume, "volume")?;
        // SAFETY: an object and a string, see the crate.
        let (device, options) =
            unsafe { (args::object(device, "device")?, args::optional_text(options)) };
        let opened = open::volume(device, b"device", Options::parse(options)?)?;
        // SAFETY: a valid place, see the crate.
        unsafe { args::put(volume, Box::into_raw(Box::new(opened))) };
        Ok(())
    })
}

/// Writes everything back, leaves a clean image, and gives the volume back, also where this fails:
/// then the journal holds what must be replayed, as after a crash, and what was synced is not lost.
///
/// No call with the volume may be under way or begin. Close files, directories and inodes first.
/// Those that are open afterwards stay valid until they are closed or freed, which they must be:
/// they can still be read, and the last of them lets the device go.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_close(volume: *mut VolumeHandle) -> c_int {
    // SAFETY: it came from `Box::into_raw` and is given back once, see the crate.
    let handle = (!volume.is_null()).then(|| unsafe { Box::from_raw(volume) });
    let closed =
        status(handle.as_deref(), || Ok(given(handle.as_deref())?.volume.clone().close()?));
    // What the last user of a volume does as it goes may be a bug too.
    match status(None, || {
        drop(handle);
        Ok(())
    }) {
        0 => closed,
        failed => failed,
    }
}

/// Makes everything durable, as sync(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_sync(volume: *const VolumeHandle) -> c_int {
    // SAFETY: a volume or NULL, see the crate.
    let handle = unsafe { volume.as_ref() };
    status(handle, || Ok(given(handle)?.volume.sync()?))
}

/// Space of a volume. space_size is sizeof *space.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_statfs(
    volume: *const VolumeHandle,
    space: *mut Space,
    space_size: usize,
) -> c_int {
    // SAFETY: a volume or NULL, see the crate.
    let handle = unsafe { volume.as_ref() };
    status(handle, || {
        args::check_place(space, "space")?;
        let volume = given(handle)?.volume();
        let found = volume.stat_fs();
        let value = Space {
            blocks: found.blocks,
            blocks_free: found.blocks_free,
            blocks_available: found.blocks_available,
            inodes: found.inodes,
            inodes_free: found.inodes_free,
            fsid: found.fsid,
            block_size: found.block_size,
            name_max: found.name_max,
            uuid: volume.layout().uuid,
        };
        // SAFETY: a structure of that size, see the crate.
        unsafe { args::fill(space, space_size, &value) };
        Ok(())
    })
}

/// Tells the device which blocks are free, in runs of at least min_len bytes among the len bytes
/// from byte start: an image file gets holes there. Returns the bytes of these runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_trim(
    volume: *const VolumeHandle,
    start: u64,
    len: u64,
    min_len: u64,
) -> i64 {
    // SAFETY: a volume or NULL, see the crate.
    let handle = unsafe { volume.as_ref() };
    count(handle, || {
        let trimmed = given(handle)?.volume.trim(start, len, min_len)?;
        Ok(usize::try_from(trimmed).unwrap_or(usize::MAX))
    })
}

/// Counters, latencies and blocked threads of a volume as JSON text, the form of "uext4 stats
/// --json" (docs/stats.md). Waits for no other thread. NULL if it fails; otherwise to be given back
/// by uext4_string_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_stats(volume: *const VolumeHandle) -> *mut c_char {
    // SAFETY: a volume or NULL, see the crate.
    let handle = unsafe { volume.as_ref() };
    let mut text = std::ptr::null_mut();
    status(handle, || {
        let volume = given(handle)?.volume();
        let mut snapshot = Snapshot::from(&volume.stats());
        snapshot.read_only_reason = volume.read_only_reason().unwrap_or_default();
        let json = serde_json::to_string(&snapshot);
        let json = json.map_err(|error| Failure::new(libc::EIO, error))?;
        let json = CString::new(json).map_err(|error| Failure::new(libc::EIO, error))?;
        text = json.into_raw();
        Ok(())
    });
    text
}

/// Gives back a text that this library made. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_string_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: it came from `CString::into_raw` and is given back once, see the crate.
        drop(unsafe { CString::from_raw(text) });
    }
}

/// A volume, or the failure that there is none.
pub(crate) fn given(volume: Option<&VolumeHandle>) -> Result<&VolumeHandle> {
    volume.ok_or_else(|| Failure::invalid("volume is NULL"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault model: a new version of the crates, and a header of the old one.
    #[test]
    fn the_header_has_the_version_of_the_crate() {
        let constants = [UEXT4_VERSION_MAJOR, UEXT4_VERSION_MINOR, UEXT4_VERSION_PATCH];
        assert_eq!(constants.map(|n| n.to_string()).join("."), env!("CARGO_PKG_VERSION"));
    }
}
