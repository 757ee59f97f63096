//! Images of Ceph's block device by their names: `rbd:POOL/IMAGE[@SNAPSHOT]`.
//!
//! A build without librbd reaches them by an NBD server that knows them; see docs/rbd.md.

use std::sync::Arc;
use std::time::Duration;

use uext4_device::{Access, FileOptions, SharedDevice};
use uext4_rbd::{RbdEvent, RbdName, RbdOptions};

use crate::closing;
use crate::failure::{Failure, Result};
use crate::network;
use crate::spec::Image;
use crate::verbosity::remark;

/// Whether a text names an image.
pub(crate) fn is_name(text: &str) -> bool {
    text.parse::<RbdName>().is_ok()
}

/// Opens a whole image.
pub(crate) fn open(
    verb: &str,
    image: &Image,
    text: &str,
    options: &FileOptions,
) -> Result<SharedDevice> {
    let line = |error: &dyn std::fmt::Display| Failure::line(&format!("{verb}: {error}"));
    let name: RbdName = text.parse().map_err(|error| line(&error))?;
    if !uext4_rbd::IS_BUILT {
        return Err(Failure::line(&way(verb, &name)));
    }
    let (of, named) = (verb.to_owned(), image.to_string());
    let rbd = RbdOptions {
        read_only: options.access == Access::ReadOnly,
        timeout: options.nbd_timeout,
        // A mount of this host is not about to close it.
        closing: if closing::is_mounted(image) { Duration::ZERO } else { closing::PATIENCE },
        tell: Some(Arc::new(move |event| match event {
            RbdEvent::GivenUp { .. } if of == "mount" => {
                tracing::error!("mount: {named}: {event}");
            }
            _ => remark(&format!("{of}: {named}: {event}")),
        })),
        on_thread: network::on_thread(),
    };
    let opened = uext4_rbd::open(&name, rbd).map_err(|error| line(&error))?;
    if let Some(notice) = opened.notice {
        remark(&format!("{verb}: {image}: {notice}"));
    }
    Ok(opened.device)
}

/// How an image is reached without librbd.
fn way(verb: &str, name: &RbdName) -> String {
    format!(
        "{verb}: {name}: is reached by two commands: `qemu-nbd --persistent --shared=8 \
         --socket=SOCKET --format=raw {name}`, and then `uext4 {verb} \
         nbd+unix:///?socket=SOCKET` (docs/rbd.md)"
    )
}
