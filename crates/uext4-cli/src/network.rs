//! Images on network block devices: `nbd://HOST/EXPORT`, `nbd+unix:///EXPORT?socket=PATH`, and
//! `rbd:POOL/IMAGE`.

use std::io;
use std::sync::{Arc, OnceLock};

use uext4_device::{Access, FileOptions, PartDevice, SharedDevice};
use uext4_nbd::{NbdDevice, NbdEvent, NbdOptions, NbdUri};
use uext4_rbd::RbdName;

use crate::failure::{At, Failure, Result, Why};
use crate::place::Place;
use crate::rbd;
use crate::spec::Image;
use crate::verbosity::remark;

/// What the threads of network block devices do first.
static ON_THREAD: OnceLock<Arc<dyn Fn() + Send + Sync>> = OnceLock::new();

/// Has each thread of a network block device that is opened from now on call `first`.
pub(crate) fn on_threads(first: impl Fn() + Send + Sync + 'static) {
    // A process mounts once.
    let _ = ON_THREAD.set(Arc::new(first));
}

/// Opens the part of an export that is the image.
pub(crate) fn open(
    verb: &str,
    image: &Image,
    uri: &str,
    place: Place,
    options: &FileOptions,
) -> Result<SharedDevice> {
    let device = match RbdName::is_meant(uri) {
        true => rbd::open(verb, image, uri, options)?,
        false => export(verb, image, uri, options)?,
    };
    if place.offset == 0 && place.len.is_none() {
        return Ok(device);
    }
    let there = device.len();
    let past = || Why::new(format!("offset {} is not inside its {there} bytes", place.offset));
    let left = there.checked_sub(place.offset).filter(|left| *left > 0);
    let left = left.ok_or_else(past).at(verb, image)?;
    let len = place.len.unwrap_or(left).min(left);
    Ok(Arc::new(PartDevice::new(device, place.offset..place.offset + len)))
}

/// Opens a whole export.
fn export(verb: &str, image: &Image, uri: &str, options: &FileOptions) -> Result<SharedDevice> {
    let line = |error: &dyn std::fmt::Display| Failure::line(&format!("{verb}: {error}"));
    let uri: NbdUri = uri.parse().map_err(|error| line(&error))?;
    let (of, named) = (verb.to_owned(), image.to_string());
    let nbd = NbdOptions {
        read_only: options.access == Access::ReadOnly,
        timeout: options.nbd_timeout,
        tell: Some(Arc::new(move |event| tell(&of, &named, event))),
        on_thread: on_thread(),
        ..NbdOptions::new()
    };
    let device = NbdDevice::open(&uri, nbd).map_err(|error| line(&error))?;
    if let Some(notice) = device.notice() {
        remark(&format!("{verb}: {image}: {notice}"));
    }
    Ok(Arc::new(device))
}

/// What threads of network block devices do first; see [`on_threads`].
pub(crate) fn on_thread() -> Option<Arc<dyn Fn() + Send + Sync>> {
    ON_THREAD.get().cloned()
}

/// A URI that does not depend on the working directory; as it is, if it is a bad one.
pub(crate) fn absolute(uri: &str) -> io::Result<String> {
    if let Ok(name) = uri.parse::<RbdName>() {
        return Ok(name.absolute()?.to_string());
    }
    Ok(match uri.parse::<NbdUri>() {
        Ok(uri) => uri.absolute()?.to_string(),
        Err(_) => uri.to_owned(),
    })
}

/// Whether the daemon of a mount needs sockets of the Internet for an image: those of NBD are made
/// anew when a server is reached again, and those of Ceph by threads that librados has by then.
pub(crate) fn needs_sockets(image: &Image) -> bool {
    port(image).is_some() || image.uri().is_some_and(RbdName::is_meant)
}

/// The port of the server of an image, if it is one of TCP.
pub(crate) fn port(image: &Image) -> Option<u16> {
    image.uri()?.parse::<NbdUri>().ok()?.port()
}

/// A mount's log has it; other verbs tell it on standard error.
fn tell(verb: &str, image: &str, event: &NbdEvent) {
    match event {
        _ if verb != "mount" => remark(&format!("{verb}: {image}: {event}")),
        NbdEvent::GivenUp { .. } => tracing::error!("{verb}: {image}: {event}"),
        _ => tracing::warn!("{verb}: {image}: {event}"),
    }
}
