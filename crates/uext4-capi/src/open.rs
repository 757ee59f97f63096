//! Opening by name: the words of `-o`, images and network block devices, the volume on them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use uext4::{MountOptions, Owner, Volume};
use uext4_device::{Access, FileDevice, FileOptions, OpenError, PartDevice, SharedDevice};
use uext4_nbd::{NbdDevice, NbdOptions, NbdUri};

use crate::device::DeviceHandle;
use crate::failure::{Failure, Result};
use crate::volume::VolumeHandle;

/// What the words of `-o` say.
pub(crate) struct Options {
    mount: MountOptions,
    pub(crate) file: FileOptions,
    owner: Owner,
}

impl Options {
    /// Takes words apart: those of uext4(5), and `offset=`, `sizelimit=`, `uid=`, `gid=`.
    pub(crate) fn parse(words: Option<&[u8]>) -> Result<Self> {
        let mut options = Self {
            mount: MountOptions::default(),
            file: FileOptions::auto(Access::ReadWrite),
            owner: Owner::default(),
        };
        let words = std::str::from_utf8(words.unwrap_or_default())
            .map_err(|_| Failure::invalid("options: not UTF-8"))?;
        for word in words.split(',').filter(|word| !word.is_empty()) {
            options.take(word)?;
        }
        options.mount.check().map_err(Failure::invalid)?;
        if options.mount.read_only {
            options.file.access = Access::ReadOnly;
        }
        Ok(options)
    }

    fn take(&mut self, word: &str) -> Result<()> {
        match word.split_once('=') {
            Some(("offset", bytes)) => self.file.offset = number(word, bytes)?,
            Some(("sizelimit", bytes)) => self.file.len = Some(number(word, bytes)?),
            Some(("uid", id)) => self.owner.uid = number(word, id)?,
            Some(("gid", id)) => self.owner.gid = number(word, id)?,
            _ => {
                if !self.file.parse(word).map_err(Failure::invalid)? {
                    self.mount.parse(word).map_err(Failure::invalid)?;
                }
            }
        }
        Ok(())
    }
}

fn number<T: std::str::FromStr>(word: &str, digits: &str) -> Result<T> {
    let wrong = |_| Failure::invalid(format_args!("mount option '{word}': not a number"));
    digits.parse().map_err(wrong)
}

/// Opens an image file, a block device, or a network block device by its URI.
pub(crate) fn device(name: &[u8], options: &FileOptions) -> Result<SharedDevice> {
    match std::str::from_utf8(name) {
        Ok(uri) if NbdUri::is_meant(uri) => network(uri, options),
        _ => {
            let path = Path::new(OsStr::from_bytes(name));
            Ok(Arc::new(FileDevice::open_with(path, options)?))
        }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        // It names the image itself.
        Self::new(error.errno(), error)
    }
}

fn network(uri: &str, options: &FileOptions) -> Result<SharedDevice> {
    let parsed: NbdUri = uri.parse().map_err(Failure::invalid)?;
    let nbd = NbdOptions {
        read_only: options.access == Access::ReadOnly,
        timeout: options.nbd_timeout,
        ..NbdOptions::new()
    };
    let device =
        NbdDevice::open(&parsed, nbd).map_err(|error| Failure::new(error.errno(), error))?;
    let device: SharedDevice = Arc::new(device);
    if options.offset == 0 && options.len.is_none() {
        return Ok(device);
    }
    let left = device.len().checked_sub(options.offset).filter(|left| *left > 0);
    let wrong = || format!("{uri}: offset {} is not inside it", options.offset);
    let left = left.ok_or_else(|| Failure::invalid(wrong()))?;
    let end = options.offset + options.len.unwrap_or(left).min(left);
    Ok(Arc::new(PartDevice::new(device, options.offset..end)))
}

/// Opens the volume on a device, which messages call `name`.
pub(crate) fn volume(device: &DeviceHandle, name: &[u8], options: Options) -> Result<VolumeHandle> {
    let read_only = options.mount.read_only;
    let hold = device.hold(!read_only)?;
    // It has no place of its own in the image's file.
    let file = FileOptions { offset: 0, len: None, ..options.file };
    let path = options.mount.journal_path.as_ref();
    let journal = path.map(|path| self::device(path.as_os_str().as_bytes(), &file)).transpose()?;
    let device = device.shared();
    let opened = match journal {
        Some(journal) => Volume::open_with_journal(device, journal, options.mount),
        None => Volume::open(device, options.mount),
    };
    let volume = opened.map_err(|error| Failure::from(error).at(name))?;
    if !read_only && volume.read_only() {
        let why = volume.read_only_reason().unwrap_or_else(|| "unknown reason".to_owned());
        let text = format!("can only be read: {why}; open it with the option ro");
        volume.close()?;
        return Err(Failure::new(libc::EROFS, text).at(name));
    }
    Ok(VolumeHandle::new(volume, options.owner, hold))
}
