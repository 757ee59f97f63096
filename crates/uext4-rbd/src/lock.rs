//! The exclusive lock of an image.
//!
//! # What
//! A client that has it and is there keeps others out. librbd asks such a client for the lock, and
//! clients that took it without being told to (qemu, `rbd map`) hand it over. A file system must
//! not be taken from under them, so a client that is there is not asked at all: it is named.
//! Whether it is there is found out by a question to all clients that have the image open, which
//! their libraries answer. One that was killed answers nothing, and is missed by the cluster after
//! its `osd client watch timeout`; then librbd fences it and takes the lock.
//!
//! Not covered: a client that has the image open and has not written yet has no lock. It gets
//! errors when it does.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::Fault;
use crate::health::{FENCED, Health};
use crate::image::Image;

/// How long a client is given for an answer, and how long it is waited before the next look.
const ANSWER: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(250);
/// Most of the time between two looks at a lock that one has.
const LOOK: Duration = Duration::from_secs(10);

/// Takes the lock, if nobody has it within `timeout` who could use it.
pub(crate) fn take(image: &Image, timeout: Duration) -> Result<(), Fault> {
    let deadline = Instant::now() + timeout;
    while let Some(owner) = image.lock_owner().map_err(Fault::of("its lock"))? {
        match state(image, &owner).map_err(Fault::of("its clients"))? {
            State::Missed => break,
            State::Silent if Instant::now() < deadline => thread::sleep(PAUSE),
            State::Silent => return Err(in_use(&owner, ", which does not answer")),
            State::There => return Err(in_use(&owner, "")),
        }
    }
    image.take_lock().map_err(|error| match image.lock_owner() {
        // Another one was faster, and does not hand it over.
        Ok(Some(owner)) if error.raw_os_error() == Some(libc::EROFS) => in_use(&owner, ""),
        _ => Fault::Failed("its exclusive lock", error),
    })
}

fn in_use(owner: &str, more: &str) -> Fault {
    Fault::Refused(format!("in use: the client at {owner} has its exclusive lock{more}"))
}

/// What is known of a client that has the lock.
enum State {
    There,
    /// It may have died, or have trouble with its network.
    Silent,
    /// The cluster has missed it.
    Missed,
}

fn state(image: &Image, owner: &str) -> io::Result<State> {
    let clients = image.clients()?;
    let numbers: Vec<u64> =
        clients.iter().filter(|client| client.address == owner).map(|c| c.number).collect();
    if numbers.is_empty() {
        return Ok(State::Missed);
    }
    let Some(header) = image.header() else { return Ok(State::There) };
    let answering = image.pool().answering(&header, ANSWER)?;
    let is_there = numbers.iter().any(|number| answering.contains(number));
    Ok(if is_there { State::There } else { State::Silent })
}

/// Looks at the lock again and again until told to stop, and gives the device up when it is lost.
pub(crate) fn keep(image: &Image, health: &Health, timeout: Duration, stop: &Receiver<()>) {
    let pause = LOOK.min(timeout / 4);
    while let Err(RecvTimeoutError::Timeout) = stop.recv_timeout(pause) {
        match image.owns_lock() {
            Ok(true) => {}
            Ok(false) => health.end(libc::EROFS, "its exclusive lock was lost"),
            Err(error) if error.raw_os_error() == Some(libc::ESHUTDOWN) => {
                health.end(libc::ESHUTDOWN, FENCED);
            }
            // Requests tell when the cluster is gone for too long.
            Err(_) => {}
        }
    }
}
