//! Opening images: the one place of this crate that knows devices and mount options together.

use std::sync::Arc;

use uext4::config::DaxMode;
use uext4::{MountOptions, Volume};
use uext4_device::{DaxDevice, FileDevice, FileOptions, OpenError, SharedDevice};

use crate::failure::{At, Failure, Result, Why};
use crate::journal;
use crate::keys;
use crate::network;
use crate::place::{self, Place};
use crate::signature::{self, Found};
use crate::spec::{Image, Part};
use crate::verbosity::{done, remark};

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

/// Opens the device of `image`, which must not be of another format.
pub(crate) fn device(verb: &str, image: &Image, access: Access) -> Result<SharedDevice> {
    device_with(verb, image, &FileOptions::new(access.into()))
}

/// As [`device`], opened as the options say. What it must do without is told on standard error.
pub(crate) fn device_with(
    verb: &str,
    image: &Image,
    options: &FileOptions,
) -> Result<SharedDevice> {
    let device = any_device(verb, image, Place::of(verb, image)?, options)?;
    check_format(verb, image, device)
}

/// The volume on a device, whose journal is on another if one was named.
pub(crate) fn open_volume(
    device: SharedDevice,
    journal: Option<SharedDevice>,
    options: MountOptions,
) -> uext4::Result<Volume> {
    match journal {
        Some(journal) => Volume::open_with_journal(device, journal, options),
        None => Volume::open(device, options),
    }
}

/// Opens a device for whatever it may hold.
pub(crate) fn any_device(
    verb: &str,
    image: &Image,
    place: Place,
    options: &FileOptions,
) -> Result<SharedDevice> {
    if let Some(uri) = image.uri() {
        return network::open(verb, image, uri, place, options);
    }
    if options.access == uext4_device::Access::ReadWrite && DaxDevice::is_only_way(&image.path) {
        return mapped(image, place, options).map_err(|error| opening(verb, &error));
    }
    let options = FileOptions { offset: place.offset, len: place.len, ..*options };
    let device = FileDevice::open_with(&image.path, &options);
    let device = device.map_err(|error| opening(verb, &error))?;
    if let Some(notice) = device.notice() {
        remark(&format!("{verb}: {image}: {notice}"));
    }
    Ok(Arc::new(device))
}

fn mapped(
    image: &Image,
    place: Place,
    options: &FileOptions,
) -> std::result::Result<SharedDevice, OpenError> {
    let device = DaxDevice::open(&image.path, place.offset, options.access)?;
    Ok(Arc::new(device.limited_to(place.len.unwrap_or(u64::MAX))))
}

/// The error names the image itself.
fn opening(verb: &str, error: &OpenError) -> Failure {
    Failure::line(&format!("{verb}: {error}"))
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
    match mapped(image, Place::of(verb, image)?, options) {
        Ok(device) => check_format(verb, image, device),
        Err(error @ (OpenError::NotByteAddressable { .. } | OpenError::WrongKind { .. }))
            if mount.dax == DaxMode::Inode =>
        {
            remark(&format!("{verb}: {error}: no file is in DAX mode"));
            device_with(verb, image, options)
        }
        Err(error) => Err(opening(verb, &error)),
    }
}

/// Refuses what is known to be something else than ext4, with the word that helps.
pub(crate) fn check_format(
    verb: &str,
    image: &Image,
    device: SharedDevice,
) -> Result<SharedDevice> {
    let why = match signature::of(device.as_ref(), place::sector(image)) {
        None | Some(Found::Ext) => return journal::refuse(verb, image, device),
        Some(Found::Other { what, help: "" }) => format!("contains {what}, not ext4"),
        Some(Found::Other { what, help }) => format!("contains {what}: {help}"),
        Some(Found::Damaged(why)) => why.to_string(),
        Some(Found::Table(table)) => {
            let kind = table.kind;
            let part = signature::likely_partition(device.as_ref(), &table).map(Part::Partition);
            match part.filter(|_| image.part == Part::Whole) {
                None => format!("contains a partition table ({kind}), not ext4"),
                Some(part) => {
                    let name = Image { part, ..image.clone() };
                    format!("has a partition table ({kind}): name a partition, {name}")
                }
            }
        }
    };
    Err(Why::new(why).at(verb, image))
}

/// Opens the file system of `image` with the options of an unmounted verb.
pub(crate) fn volume(verb: &str, image: &Image, access: Access) -> Result<Volume> {
    let device = device(verb, image, access)?;
    let options = FileOptions::new(access.into());
    let journal = journal::given().map(|path| journal::open(verb, image, &path, &options));
    let journal = journal.transpose()?;
    let read_only = access == Access::Read;
    let options = MountOptions { read_only, keys: keys::given(), ..MountOptions::default() };
    let volume = open_volume(device, journal, options).at(verb, image)?;
    if access == Access::Write && volume.read_only() {
        let reason = volume.read_only_reason().unwrap_or_else(|| "unknown reason".to_owned());
        return Err(Why::new(format!("can only be read: {reason}")).at(verb, image));
    }
    tell_of(verb, image, &volume, access);
    Ok(volume)
}

/// With `-v`, what was opened.
fn tell_of(verb: &str, image: &Image, volume: &Volume, access: Access) {
    let replayed = volume.recovery().transactions;
    let journal = match (replayed, access) {
        (0, _) => String::new(),
        (count, Access::Write) => format!(", {count} transactions of its journal replayed"),
        (count, Access::Read) => {
            format!(", {count} transactions of its journal replayed in memory")
        }
    };
    let how = if access == Access::Read { "for reading" } else { "for writing" };
    done(verb, image, &format!("opened {how}{journal}"));
}

/// Closes a volume that was changed: what the verb did is on the device when this returns.
pub(crate) fn close(verb: &str, image: &Image, volume: Volume) -> Result<()> {
    volume.close().at(verb, image)?;
    done(verb, image, "written and closed");
    Ok(())
}
