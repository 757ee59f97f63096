//! Opening images: the one place of this crate that knows devices and mount options together.

use std::sync::Arc;

use uext4::config::DaxMode;
use uext4::{MountOptions, Volume};
use uext4_device::{DaxDevice, FileDevice, FileOptions, OpenError, SharedDevice};

use crate::failure::{At, Failure, Result, Why, say};
use crate::spec::Image;

/// What a verb will do with an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Read; the device is opened read-only and a dirty journal is replayed into memory.
    Read,
    /// Change; the device is locked against every other writer.
    Write,
}

impl From<Access> for uext4_device::Access {
    fn from(access: Access) -> Self {
        match access {
            Access::Read => Self::ReadOnly,
            Access::Write => Self::ReadWrite,
        }
    }
}

/// Opens the device of `image`.
pub(crate) fn device(verb: &str, image: &Image, access: Access) -> Result<SharedDevice> {
    device_with(verb, image, &FileOptions::new(access.into()))
}

/// Opens the device of `image` as the options say, at the place that `image` names. What it must do
/// without is told on standard error.
pub(crate) fn device_with(
    verb: &str,
    image: &Image,
    options: &FileOptions,
) -> Result<SharedDevice> {
    let options = FileOptions { offset: image.offset, ..*options };
    if options.access == uext4_device::Access::ReadWrite && DaxDevice::is_only_way(&image.path) {
        let device = DaxDevice::open(&image.path, image.offset, options.access);
        return match device {
            Ok(device) => Ok(Arc::new(device)),
            Err(error) => Err(Failure::line(&format!("{verb}: {error}"))),
        };
    }
    match FileDevice::open_with(&image.path, &options) {
        Ok(device) => {
            if let Some(notice) = device.notice() {
                say(&format!("{verb}: {image}: {notice}"));
            }
            Ok(Arc::new(device))
        }
        // Its message names the image itself.
        Err(error) => Err(Failure::line(&format!("{verb}: {error}"))),
    }
}

/// Opens the device of `image` for a mount: mapped where `dax` was asked for. With `dax=inode` a
/// store that cannot be mapped is opened as any other, and that is told on standard error.
pub(crate) fn device_for_mount(
    verb: &str,
    image: &Image,
    options: &FileOptions,
    mount: &MountOptions,
) -> Result<SharedDevice> {
    if !mount.dax_given || mount.dax == DaxMode::Never {
        return device_with(verb, image, options);
    }
    match DaxDevice::open(&image.path, image.offset, options.access) {
        Ok(device) => Ok(Arc::new(device)),
        Err(error @ (OpenError::NotByteAddressable { .. } | OpenError::WrongKind { .. }))
            if mount.dax == DaxMode::Inode =>
        {
            say(&format!("{verb}: {error}: no file is in DAX mode"));
            device_with(verb, image, options)
        }
        Err(error) => Err(Failure::line(&format!("{verb}: {error}"))),
    }
}

/// Opens the file system of `image` with the options of an unmounted verb.
pub(crate) fn volume(verb: &str, image: &Image, access: Access) -> Result<Volume> {
    let device = device(verb, image, access)?;
    let options = MountOptions::default();
    let volume = match access {
        Access::Read => Volume::open(device, MountOptions { read_only: true, ..options }),
        Access::Write => Volume::open(device, options),
    }
    .at(verb, image)?;
    if access == Access::Write && volume.read_only() {
        let reason = volume.read_only_reason().unwrap_or_else(|| "unknown reason".to_owned());
        return Err(Why::new(format!("can only be read: {reason}")).at(verb, image));
    }
    Ok(volume)
}

/// Closes a volume that was changed: what the verb did is on the device when this returns.
pub(crate) fn close(verb: &str, image: &Image, volume: Volume) -> Result<()> {
    volume.close().at(verb, image)
}
