//! Taking the exclusive lock of an image.
//!
//! # What
//! A client that has it and is there keeps others out. librbd asks such a client for the lock, and
//! clients that took it without being told to (qemu, `rbd map`) hand it over. A file system must
//! not be taken from under them, so the lock is not asked for while a client is there that has the
//! image open to write, with the lock or without: it is named. Whether one is there is found out by
//! a question to all of them, which their libraries answer. One that was killed answers nothing,
//! and is missed by the cluster after its `osd client watch timeout`; then it is fenced for good,
//! and librbd takes the lock.
//!
//! Two that come at the same time: the one with the lower number, which was there first, does not
//! wait for the other. Not covered: a client that opens the image between the last look and the
//! lock, has written by then, and hands the lock over. It gets errors when it writes again.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use crate::cluster::FENCES;
use crate::error::Fault;
use crate::image::Image;
use crate::options::RbdEvent;

/// How long a client is given for an answer, and how long it is waited before the next look.
const ANSWER: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(250);

/// Takes the lock, if within `timeout` nobody has it who could use it. A client that is there may
/// be about to close the image, and is waited for as long as `closing`.
pub(crate) fn take(
    image: &Image,
    timeout: Duration,
    closing: Duration,
    tell: impl Fn(&RbdEvent),
) -> Result<(), Fault> {
    check_fences(image)?;
    let start = Instant::now();
    let mut is_told = false;
    let missed = loop {
        let other = match look(image).map_err(Fault::of("its clients"))? {
            Look::Free { missed } => break missed,
            Look::InUse(other) => other,
        };
        let patience = if matches!(other, Other::Silent(_)) { timeout } else { closing };
        if start.elapsed() >= patience {
            return Err(other.in_use());
        }
        if !std::mem::replace(&mut is_told, true) {
            tell(&RbdEvent::InUse { by: other.address().to_owned(), patience });
        }
        thread::sleep(PAUSE);
    };
    // librbd fences it as well, for an hour. Monitors of Ceph 16 keep the time of a fence that is
    // there; where the last one counts it is made again.
    let fence = || missed.iter().try_for_each(|address| image.pool().fence(address));
    let fence = || fence().map_err(Fault::of("the fence of its writer"));
    fence()?;
    image.take_lock().map_err(|error| match image.lock_owner() {
        // Another one was faster, and does not hand it over.
        Ok(Some(owner)) if error.raw_os_error() == Some(libc::EROFS) => {
            Other::Holds(owner).in_use()
        }
        _ => Fault::Failed("its exclusive lock", error),
    })?;
    // Where this fails the lock is given back, with nothing written.
    fence()
}

/// Fails if librbd would not fence the one whose lock it takes. The settings of this client say
/// that it does; those of the image and of its pool come before them.
fn check_fences(image: &Image) -> Result<(), Fault> {
    let (key, want) = FENCES;
    let found = image.setting(key).map_err(Fault::of("its settings"))?.unwrap_or_default();
    if found == want {
        return Ok(());
    }
    Err(Fault::Refused(format!(
        "{key} is {found} for it, and must be {want}: a writer that was missed could come back and \
         write over the next one (`rbd config image rm`, `rbd config pool rm`)"
    )))
}

/// What is known of other clients that write.
enum Look {
    /// Nobody is there. One that had the lock may have been missed: its address.
    Free {
        missed: Option<String>,
    },
    InUse(Other),
}

/// A client, by its address, that has the image open to write.
enum Other {
    /// It has the lock, and is there.
    Holds(String),
    /// It has the lock. It may have died, or have trouble with its network.
    Silent(String),
    /// It has no lock, and is there.
    IsOpen(String),
}

impl Other {
    fn address(&self) -> &str {
        let (Self::Holds(at) | Self::Silent(at) | Self::IsOpen(at)) = self;
        at
    }

    fn in_use(&self) -> Fault {
        let does = match self {
            Self::Holds(_) => "has its exclusive lock",
            Self::Silent(_) => "has its exclusive lock, and does not answer",
            Self::IsOpen(_) => "has it open to write",
        };
        Fault::Refused(format!("in use: the client at {} {does}", self.address()))
    }
}

fn look(image: &Image) -> io::Result<Look> {
    let owner = image.lock_owner()?;
    let own = image.pool().number();
    let mut clients = image.clients()?;
    clients.retain(|client| client.number != own);
    let Some(header) = image.header().filter(|_| !clients.is_empty()) else {
        return Ok(Look::Free { missed: owner });
    };
    let answering = image.pool().answering(&header, ANSWER)?;
    if let Some(owner) = &owner
        && clients.iter().any(|client| client.address == *owner)
    {
        let mut numbers = clients.iter().filter(|client| client.address == *owner);
        let is_there = numbers.any(|client| answering.contains(&client.number));
        let other = if is_there { Other::Holds } else { Other::Silent };
        return Ok(Look::InUse(other(owner.clone())));
    }
    let first = clients
        .into_iter()
        .find(|client| client.number < own && answering.contains(&client.number));
    Ok(match first {
        Some(client) => Look::InUse(Other::IsOpen(client.address)),
        None => Look::Free { missed: owner },
    })
}
