//! The device that a file system is made on: what is there, or a file of the size asked for.

use std::sync::Arc;

use uext4_device::{Caching, DaxDevice, FileDevice, FileOptions, MemoryDevice, SharedDevice, Undo};

use super::Args;
use crate::failure::{At, Failure, Result, Why};
use crate::image::{self, Access};
use crate::place::Place;
use crate::spec::Image;

/// What a file system is made on.
pub(super) struct Target {
    pub(super) device: SharedDevice,
    /// For a file that was made or lengthened for it.
    undo: Option<Undo>,
}

impl Target {
    /// What is there, as it is.
    fn there(device: SharedDevice) -> Self {
        Self { device, undo: None }
    }

    /// Whether the file was made for it.
    pub(super) fn is_made(&self) -> bool {
        self.undo.as_ref().is_some_and(Undo::is_created)
    }

    /// Removes a file that was made for it, or gives one that was there the length that it had.
    pub(super) fn put_back(&self) {
        if let Some(undo) = &self.undo {
            undo.run();
        }
    }
}

/// Opens what is there or makes a file of the size asked for.
pub(super) fn open(args: &Args, image: &Image, place: Place, size: Option<u64>) -> Result<Target> {
    let mut write = FileOptions::new(Access::Write.into());
    if args.direct {
        write.caching = Caching::Direct;
    }
    let open = || image::any_device("mkfs", image, place, &write);
    if image.uri().is_some() {
        return open().map(Target::there);
    }
    let Some(file) = sized(args, image, place, size)? else { return open().map(Target::there) };
    let undo = file.undo();
    let undo = undo.inspect_err(|_| file.put_back()).at("mkfs", image)?;
    let is_plain = place.offset == 0 && place.len.is_none() && !args.direct;
    if is_plain && !DaxDevice::is_only_way(&image.path) {
        return Ok(Target { device: Arc::new(file), undo: Some(undo) });
    }
    // Its lock is free until it is opened again.
    drop(file);
    let device = open().inspect_err(|_| undo.run_if_unused())?;
    if !undo.is_at_path() {
        return Err(Why::new("another program has put another file there").at("mkfs", image));
    }
    Ok(Target { device, undo: Some(undo) })
}

/// A file that is to have a size and has not: made, or lengthened, which `-F` allows. `None` for
/// what is taken as it is.
fn sized(
    args: &Args,
    image: &Image,
    place: Place,
    size: Option<u64>,
) -> Result<Option<FileDevice>> {
    let wrong = |why: &str| Why::new(why).at("mkfs", image);
    let there = match image.path.metadata() {
        Ok(meta) if !meta.is_file() => return Ok(None),
        Ok(meta) => meta.len(),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(Why::from(error).at("mkfs", image));
        }
        Err(_) if size.is_none() => return Err(wrong("does not exist; give a size to make it")),
        Err(_) => 0,
    };
    let Some(size) = size else { return Ok(None) };
    let wanted = size.checked_add(place.offset).ok_or_else(|| wrong("too large"))?;
    if there >= wanted {
        return Ok(None);
    }
    let file = match there {
        0 => FileDevice::create_unless_filled(&image.path, wanted),
        _ if !args.force => {
            return Err(wrong(&format!("has only {there} bytes; use -F to extend it")));
        }
        _ => FileDevice::open_lengthened(&image.path, wanted).map(Some),
    };
    let file = file.map_err(|error| Failure::line(&format!("mkfs: {error}")))?;
    file.ok_or_else(|| wrong("another program has filled it meanwhile")).map(Some)
}

/// What a plan is made for: the device as it is, or one of the size asked for.
pub(super) fn open_to_plan(image: &Image, place: Place, size: Option<u64>) -> Result<Target> {
    let there = match image.path.metadata() {
        _ if image.uri().is_some() => u64::MAX,
        Ok(meta) if meta.is_file() => meta.len().saturating_sub(place.offset),
        Ok(_) => u64::MAX,
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(Why::from(error).at("mkfs", image));
        }
        Err(_) => 0,
    };
    match size {
        Some(size) if size > there => Ok(Target::there(Arc::new(MemoryDevice::new(size)))),
        None if there == 0 => Err(Why::new("does not exist; give a size").at("mkfs", image)),
        _ => {
            let read = FileOptions::new(Access::Read.into());
            image::any_device("mkfs", image, place, &read).map(Target::there)
        }
    }
}
