// SPDX-License-Identifier: GPL-2.0-only
//! Images that this process has open.
//!
//! # What
//! A [`Session`] is an image and its volume. Jobs [`attach`] to it by path and [`detach`]; the
//! first opens, the last closes. A job that fio gives up before it runs never detaches: what is
//! left at the end of the process goes with [`close_all`].
//!
//! # Locking
//! One lock, `OPEN`, over the list of sessions. It is held while an image is opened or closed, so
//! that nobody finds a volume that is half open, or opens an image that is being closed.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uext4::{MountOptions, Volume};
use uext4_device::{Access, FileDevice, FileOptions};

use crate::line::{Failure, Result};

/// An image that is open.
#[derive(Debug)]
pub struct Session {
    image: PathBuf,
    options: String,
    volume: Volume,
    /// What the device had to do without.
    notice: Option<String>,
}

struct Entry {
    session: Arc<Session>,
    /// Jobs that attached and did not detach.
    jobs: usize,
}

static OPEN: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

impl Session {
    /// The volume.
    #[must_use]
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// Something that the user should know about how the image is reached.
    #[must_use]
    pub fn notice(&self) -> Option<&str> {
        self.notice.as_deref()
    }

    fn open(image: PathBuf, options: &str) -> Result<Self> {
        let (mut mount, mut file) = (MountOptions::default(), FileOptions::auto(Access::ReadWrite));
        let bad = |why: &dyn std::fmt::Display| Failure::invalid(format_args!("mount_opts: {why}"));
        for word in options.split(',').filter(|word| !word.is_empty()) {
            if !file.parse(word).map_err(|error| bad(&error))? {
                mount.parse(word).map_err(|error| bad(&error))?;
            }
        }
        mount.check().map_err(|error| bad(&error))?;
        if mount.read_only {
            file.access = Access::ReadOnly;
        }
        let device = FileDevice::open_with(&image, &file)
            .map_err(|error| Failure::new(error.errno(), error))?;
        let notice = device.notice().map(|line| format!("{}: {line}", image.display()));
        let volume = Volume::open(Arc::new(device), mount)
            .map_err(|error| Failure::new(error.errno(), named(&image, &error)))?;
        Ok(Self { image, options: options.to_owned(), volume, notice })
    }

    fn close(&self) -> Result<()> {
        let closed = self.volume.clone().close();
        closed.map_err(|error| Failure::new(error.errno(), named(&self.image, &error)))
    }
}

fn named(image: &Path, error: &uext4::Error) -> String {
    format!("{}: {error}", image.display())
}

fn list() -> MutexGuard<'static, Vec<Entry>> {
    // The list is whole at every point where a panic could leave it.
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Joins the session of an image; the first one opens it.
///
/// # Errors
/// No such image, in use, broken, a word in `options` that uext4 does not know, other options than
/// those it is open with. One line each.
pub fn attach(image: &Path, options: &str) -> Result<Arc<Session>> {
    let mut open = list();
    // Without the file there is no other name for it, and opening it tells why.
    let path = fs::canonicalize(image).unwrap_or_else(|_| image.to_owned());
    if let Some(entry) = open.iter_mut().find(|entry| entry.session.image == path) {
        if entry.session.options != options {
            let line = format!(
                "{}: one job has mount_opts='{}', another '{options}'; all share one volume",
                path.display(),
                entry.session.options
            );
            return Err(Failure::invalid(line));
        }
        entry.jobs += 1;
        return Ok(Arc::clone(&entry.session));
    }
    let session = Arc::new(Session::open(path, options)?);
    open.push(Entry { session: Arc::clone(&session), jobs: 1 });
    Ok(session)
}

/// Leaves a session; the last one closes the image.
///
/// # Errors
/// Closing fails: the image needs recovery then.
pub fn detach(session: &Arc<Session>) -> Result<()> {
    let mut open = list();
    let Some(index) = open.iter().position(|entry| Arc::ptr_eq(&entry.session, session)) else {
        return Ok(());
    };
    open[index].jobs -= 1;
    if open[index].jobs > 0 {
        return Ok(());
    }
    open.swap_remove(index).session.close()
}

/// Closes what is still open.
///
/// # Errors
/// The first failure; the others are closed all the same.
pub fn close_all() -> Result<()> {
    let mut closed = Ok(());
    for entry in list().drain(..) {
        closed = closed.and(entry.session.close());
    }
    closed
}
