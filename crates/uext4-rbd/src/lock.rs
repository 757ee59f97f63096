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
//! Of two that come at the same time, the one that was not there at the other's first look waits.
//! If each has seen the other, both are refused. Not covered: a client that opens the image between
//! the last look and the lock, has written by then, and hands the lock over. It gets errors when it
//! writes again.

use std::collections::BTreeSet;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use crate::cluster::FENCES;
use crate::error::Fault;
use crate::image::{Client, Image};
use crate::options::RbdEvent;

/// How long a client is given for an answer, and how long it is waited before the next look.
const ANSWER: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(250);

/// Takes the lock, if within `timeout` no client has it that could use it. A client that is there
/// may be about to close the image, and is waited for as long as `closing`.
pub(crate) fn take(
    image: &Image,
    timeout: Duration,
    closing: Duration,
    tell: impl Fn(&RbdEvent),
) -> Result<(), Fault> {
    check_fences(image)?;
    let start = Instant::now();
    let mut is_told = false;
    let mut first = None;
    let missed = loop {
        let other = match look(image, &mut first).map_err(Fault::of("its clients"))? {
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
    if let Some(address) = &missed {
        // Before librbd does so for an hour, which a monitor would keep.
        image.pool().fence(address).map_err(Fault::of("the fence of its writer"))?;
    }
    image.take_lock().map_err(|error| match image.lock_owner() {
        // Another one was faster, and does not hand it over.
        Ok(Some(owner)) if error.raw_os_error() == Some(libc::EROFS) => {
            Other::Holds(owner).in_use()
        }
        _ => Fault::Failed("its exclusive lock", error),
    })?;
    // Where this fails the lock is given back, with nothing written.
    let is_fenced = |address| image.pool().is_fenced(address);
    match missed.as_deref().map_or(Ok(true), is_fenced).map_err(Fault::of("its fences"))? {
        true => Ok(()),
        false => Err(Fault::Refused("its writer, which was missed, is fenced no more".to_owned())),
    }
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

/// Looks at the clients. `first` are the numbers of those that were there at the first look: one
/// that came later finds this one.
fn look(image: &Image, first: &mut Option<BTreeSet<u64>>) -> io::Result<Look> {
    let pool = image.pool();
    loop {
        let owner = image.lock_owner()?;
        let Some(header) = image.header() else { return Ok(Look::Free { missed: owner }) };
        let entry = pool.locker(&header)?;
        let mut clients = image.clients()?;
        clients.retain(|client| client.number != pool.number());
        let answering = match clients.is_empty() {
            true => BTreeSet::new(),
            false => pool.answering(&header, ANSWER)?,
        };
        let first = first.get_or_insert_with(|| clients.iter().map(|it| it.number).collect());
        let has_lock = |client: &&Client| owner.as_ref() == Some(&client.address);
        let mut holders = clients.iter().filter(has_lock).peekable();
        if let (Some(owner), Some(_)) = (&owner, holders.peek()) {
            let is_there = holders.any(|client| answering.contains(&client.number));
            let other = if is_there { Other::Holds } else { Other::Silent };
            return Ok(Look::InUse(other(owner.clone())));
        }
        let is_there = |it: &Client| first.contains(&it.number) && answering.contains(&it.number);
        if let Some(client) = clients.into_iter().find(is_there) {
            return Ok(Look::InUse(Other::IsOpen(client.address)));
        }
        // It is missed if it had the lock before and after it was looked for among the clients: one
        // that has closed the image meanwhile must not be fenced.
        if image.lock_owner()? == owner && pool.locker(&header)? == entry {
            return Ok(Look::Free { missed: owner });
        }
    }
}
