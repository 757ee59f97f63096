//! Making file systems.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use uext4_device::{Access, Device, FileDevice, FileOptions, OpenError, SharedDevice};
use uext4_mkfs::{FsType, MkfsError, Options, format};
use uext4_nbd::NbdUri;

use crate::args::{self, Shared};
use crate::device::DeviceHandle;
use crate::failure::{Failure, Result, status};
use crate::open;

/// For uext4_mkfs_options: what the image or device holds is lost. Without it only what is new or
/// empty is taken: a file of no bytes, or a device that begins with 68 KiB of zeroes. What another
/// host has mounted, as mmp tells, is refused all the same.
pub const UEXT4_MKFS_FORCE: u32 = 1;

/// Options of mkfs, named as those of mke2fs(8). What is 0 or NULL is as mke2fs -t ext4 has it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MkfsOptions {
    /// Bytes of the file system; 0: of the whole device. A file that is not there is made of this
    /// size.
    pub size: u64,
    /// Time of making, in seconds since 1970; 0: now.
    pub time: u64,
    /// "ext2", "ext3" or "ext4".
    pub r#type: *const c_char,
    /// Features to add, or with ^ to leave out, separated by commas.
    pub features: *const c_char,
    /// Label, at most 16 bytes.
    pub label: *const c_char,
    /// The 16 bytes of the UUID; NULL: a random one.
    pub uuid: *const u8,
    /// The 16 bytes from which hashes of names start; NULL: random ones.
    pub hash_seed: *const u8,
    /// UEXT4_MKFS_FORCE or 0.
    pub flags: u32,
    /// Bytes of a block: 1024, 2048 or 4096.
    pub block_size: u32,
    /// Bytes of an inode.
    pub inode_size: u32,
    /// One inode for so many bytes.
    pub inode_ratio: u32,
    /// Inodes.
    pub inodes: u32,
    /// Size of the journal in MiB.
    pub journal_mib: u32,
    /// Owner of the root directory.
    pub root_uid: u32,
    /// Group of the root directory.
    pub root_gid: u32,
}

// SAFETY: numbers and pointers without padding, of which NULL and 0 are valid.
unsafe impl Shared for MkfsOptions {}

/// Makes an ext4 file system in an image file, which is made if it is not there, or on a block
/// device or network block device. options_size is sizeof *options; options may be NULL where the
/// image is there. If it fails, a file that it made is removed, and one of no bytes has none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_mkfs(
    image: *const c_char,
    options: *const MkfsOptions,
    options_size: usize,
) -> c_int {
    status(None, || {
        // SAFETY: a string, and a structure of that size or NULL, see the crate.
        let (image, (options, is_forced)) =
            unsafe { (args::text(image, "image")?, taken(options, options_size)?) };
        let path = Path::new(OsStr::from_bytes(image));
        let is_uri = std::str::from_utf8(image).is_ok_and(NbdUri::is_meant);
        // One of no bytes is made as well.
        let is_there = path.metadata().is_ok_and(|found| !found.is_file() || found.len() > 0);
        if !is_uri && !is_there {
            return make_file(path, &options);
        }
        let device = open::device(image, &FileOptions::new(Access::ReadWrite))?;
        make(&device, &options, is_forced).map_err(|failure| failure.at(image))
    })
}

/// Makes an ext4 file system on a device, on which no volume may be open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_mkfs_device(
    device: *const DeviceHandle,
    options: *const MkfsOptions,
    options_size: usize,
) -> c_int {
    status(None, || {
        // SAFETY: an object, and a structure of that size or NULL, see the crate.
        let (device, (options, is_forced)) =
            unsafe { (args::object(device, "device")?, taken(options, options_size)?) };
        let _hold = device.hold(true)?;
        make(&device.shared(), &options, is_forced)
    })
}

/// The options, and whether what is there may be lost.
///
/// # Safety
/// See the crate.
unsafe fn taken(options: *const MkfsOptions, size: usize) -> Result<(Options, bool)> {
    if options.is_null() {
        return Ok((Options::default(), false));
    }
    // SAFETY: a structure of that size, see the crate.
    let given = unsafe { args::structure(options, size, "options") }?;
    if given.flags & !UEXT4_MKFS_FORCE != 0 {
        return Err(Failure::invalid("flags that mkfs does not have"));
    }
    let text = |text: *const c_char, what: &str| {
        if text.is_null() {
            return Ok(String::new());
        }
        // SAFETY: a string, see the crate.
        let text = unsafe { CStr::from_ptr(text) };
        let wrong = |_| Failure::invalid(format_args!("{what}: not UTF-8"));
        text.to_str().map(str::to_owned).map_err(wrong)
    };
    // SAFETY: 16 bytes, see the field.
    let bytes = |bytes: *const u8| unsafe { bytes.cast::<[u8; 16]>().as_ref() }.copied();
    let set = |number: u32| (number != 0).then_some(number);
    let label = text(given.label, "label")?;
    if label.len() > 16 {
        return Err(Failure::invalid("label: longer than 16 bytes"));
    }
    let fs_type = match text(given.r#type, "type")?.as_str() {
        "" => FsType::Ext4,
        name => {
            let wrong =
                || Failure::invalid(format_args!("type: '{name}' is none of ext2, ext3, ext4"));
            FsType::parse(name).ok_or_else(wrong)?
        }
    };
    let time = u32::try_from(given.time).map_err(|_| Failure::invalid("time: past 2106"))?;
    let owner = (given.root_uid, given.root_gid);
    let options = Options {
        size: (given.size != 0).then_some(given.size),
        time: set(time),
        fs_type,
        features: text(given.features, "features")?,
        label,
        uuid: bytes(given.uuid),
        hash_seed: bytes(given.hash_seed),
        block_size: set(given.block_size),
        inode_size: set(given.inode_size),
        inode_ratio: set(given.inode_ratio),
        inodes: set(given.inodes),
        journal_mib: set(given.journal_mib),
        root_owner: (owner != (0, 0)).then_some(owner),
        ..Options::default()
    };
    Ok((options, given.flags & UEXT4_MKFS_FORCE != 0))
}

fn make_file(path: &Path, options: &Options) -> Result<()> {
    let name = path.as_os_str().as_bytes();
    let Some(size) = options.size else {
        return Err(match path.exists() {
            true => Failure::invalid("has no bytes; give a size"),
            false => Failure::new(libc::ENOENT, "not there; give a size to make it"),
        }
        .at(name));
    };
    let created = FileDevice::create_unless_filled(path, size)?;
    let device = created.ok_or_else(|| OpenError::InUse { path: path.to_owned() })?;
    write(&device, options).map_err(|failure| {
        device.put_back();
        failure.at(name)
    })
}

fn make(device: &SharedDevice, options: &Options, is_forced: bool) -> Result<()> {
    match is_forced {
        true => check_no_host_has_it(device)?,
        false => check_empty(&**device)?,
    }
    write(&**device, options)
}

/// Refuses what another host has mounted, as mmp tells, or may have. Whatever else lies there, or
/// is damaged, is overwritten.
fn check_no_host_has_it(device: &SharedDevice) -> Result<()> {
    match uext4::mmp_holder(device) {
        Ok(Some(holder)) => Err(Failure::new(libc::EBUSY, format_args!("{holder}: in use"))),
        Err(error) if *error.kind() == uext4::ErrorKind::Io => {
            let why = format_args!("cannot see whether another host has it: {error}");
            Err(Failure::new(libc::EIO, why))
        }
        _ => Ok(()),
    }
}

fn write(device: &dyn Device, options: &Options) -> Result<()> {
    format(device, options).map(drop).map_err(|error| match &error {
        MkfsError::Io { source, .. } => {
            Failure::new(source.raw_os_error().unwrap_or(libc::EIO), error)
        }
        _ => Failure::invalid(error),
    })
}

/// Refuses a device that begins with anything: file systems and partition tables have their marks
/// in the first 68 KiB.
fn check_empty(device: &dyn Device) -> Result<()> {
    let count = usize::try_from(device.len()).unwrap_or(usize::MAX).min(68 << 10);
    let mut start = vec![0; count];
    let failed =
        |error: std::io::Error| Failure::new(error.raw_os_error().unwrap_or(libc::EIO), error);
    device.read_at(0, &mut start).map_err(failed)?;
    match start.iter().position(|byte| *byte != 0) {
        None => Ok(()),
        Some(at) => {
            let text = format!("holds something (byte {at} is not 0); UEXT4_MKFS_FORCE overwrites");
            Err(Failure::new(libc::EEXIST, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::Arc;

    use uext4::{MountOptions, Volume};
    use uext4_device::MemoryDevice;

    use super::*;

    /// Fault model: a forced mkfs of what another host has mounted, here another volume on the same
    /// bytes, of which the device's handle does not know.
    #[test]
    fn what_another_host_has_is_refused_with_its_name() {
        let device: SharedDevice = Arc::new(MemoryDevice::new(16 << 20));
        let options = Options {
            features: "mmp".to_owned(),
            mmp_update_interval: Some(1),
            ..Options::default()
        };
        write(&*device, &options).unwrap();
        let mut mount = MountOptions::default();
        mount.parse("mmp_node=other").unwrap();
        let volume = Volume::open(Arc::clone(&device), mount).unwrap();
        let uuid = volume.layout().uuid;
        let refused = make(&device, &options, true).unwrap_err();
        assert_eq!(refused.errno(), libc::EBUSY);
        assert!(refused.text().contains("'other'"), "{refused:?}");
        volume.close().unwrap();
        let volume = Volume::open(Arc::clone(&device), MountOptions::default()).unwrap();
        assert_eq!(volume.layout().uuid, uuid);
        volume.close().unwrap();
        make(&device, &options, true).unwrap();
    }

    /// Fault model: a mkfs that fails for its options once the file is made. What it has made goes,
    /// and nothing else: not a symbolic link of the user's, even where it led to nothing. A file of
    /// no bytes has none afterwards.
    #[test]
    fn what_a_failed_mkfs_removes_is_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let (link, file) = (folder.path().join("link"), folder.path().join("file"));
        let empty = folder.path().join("empty");
        std::fs::write(&empty, "").unwrap();
        symlink(folder.path().join("nothing"), &link).unwrap();
        let options = Options { size: Some(4096), ..Options::default() };
        for path in [&link, &file, &empty] {
            let failed = make_file(path, &options).unwrap_err();
            assert_eq!(failed.errno(), libc::EINVAL, "{failed:?}");
        }
        assert!(link.is_symlink() && !file.exists());
        assert_eq!(empty.metadata().unwrap().len(), 0);
    }
}
