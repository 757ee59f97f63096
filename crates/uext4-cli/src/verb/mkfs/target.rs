//! The device that a file system is made on: what is there, or a file of the size asked for.

use std::fs::File;
use std::sync::Arc;

use uext4_device::{Caching, DaxDevice, FileDevice, FileOptions, MemoryDevice, SharedDevice};

use super::Args;
use crate::failure::{At, Failure, Result, Why};
use crate::image::{self, Access};
use crate::place::Place;
use crate::spec::Image;

/// Opens what is there or makes a file of the size asked for; tells whether it was made.
pub(super) fn open(
    args: &Args,
    image: &Image,
    place: Place,
    size: Option<u64>,
) -> Result<(SharedDevice, bool)> {
    let mut write = FileOptions::new(Access::Write.into());
    if args.direct {
        write.caching = Caching::Direct;
    }
    let open = || image::any_device("mkfs", image, place, &write);
    let wrong = |why: &str| Why::new(why).at("mkfs", image);
    if image.uri().is_some() {
        return Ok((open()?, false));
    }
    let meta = match image.path.metadata() {
        Ok(meta) => meta,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let Some(size) = size else {
                return Err(wrong("does not exist; give a size to make it"));
            };
            let len = size.checked_add(place.offset).ok_or_else(|| wrong("too large"))?;
            return match FileDevice::create(&image.path, len) {
                Ok(device)
                    if place.offset == 0
                        && !args.direct
                        && !DaxDevice::is_only_way(&image.path) =>
                {
                    let created = device.is_created();
                    Ok((Arc::new(device), created))
                }
                Ok(device) => {
                    let created = device.is_created();
                    drop(device);
                    Ok((open()?, created))
                }
                Err(error) => Err(Failure::line(&format!("mkfs: {error}"))),
            };
        }
        Err(error) => return Err(Why::from(error).at("mkfs", image)),
    };
    let wanted = size.and_then(|size| size.checked_add(place.offset));
    match wanted {
        Some(wanted) if meta.is_file() && meta.len() < wanted => {
            if meta.len() != 0 && !args.force {
                let why = format!("has only {} bytes; use -F to extend it", meta.len());
                return Err(wrong(&why));
            }
            let file = File::options().write(true).open(&image.path).at("mkfs", image)?;
            // Nobody may work on it while it grows.
            if file.try_lock().is_err() {
                return Err(wrong("in use: mounted, or held by another process"));
            }
            file.set_len(wanted).at("mkfs", image)?;
        }
        _ => {}
    }
    Ok((open()?, false))
}

/// What a plan is made for: the device as it is, or one of the size asked for.
pub(super) fn open_to_plan(image: &Image, place: Place, size: Option<u64>) -> Result<SharedDevice> {
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
        Some(size) if size > there => Ok(Arc::new(MemoryDevice::new(size))),
        None if there == 0 => Err(Why::new("does not exist; give a size").at("mkfs", image)),
        _ => image::any_device("mkfs", image, place, &FileOptions::new(Access::Read.into())),
    }
}
