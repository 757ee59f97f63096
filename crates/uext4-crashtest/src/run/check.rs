//! The check of one state: its image is mounted, and the user's command judges it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use uext4_device::MemoryDevice;

use super::Plan;
use super::command::Job;
use super::mounted::Mounted;
use super::place::Place;
use crate::error::Result;

/// The variable that names the file with what the program had printed.
const OUTPUT: &str = "UEXT4_CRASHTEST_OUTPUT";

/// Most bytes of what a check says that are kept.
const SAID_MAX: u64 = 64 << 10;

/// A place for checks, one at a time.
pub(super) struct Checker<'a> {
    plan: &'a Plan,
    place: &'a Place,
    name: String,
    dir: PathBuf,
}

/// What the check says of a state.
#[derive(Debug)]
pub(super) struct Verdict {
    /// How it failed; `None`: the state is sound.
    pub(super) failure: Option<String>,
    /// The end of what it printed.
    pub(super) said: String,
}

impl<'a> Checker<'a> {
    /// A place with a name of its own.
    pub(super) fn new(plan: &'a Plan, place: &'a Place, name: &str) -> Result<Self> {
        let dir = place.directory(name)?;
        Ok(Self { plan, place, name: name.to_owned(), dir })
    }

    /// Mounts a state and has the command judge it. Whatever it changes there is thrown away.
    pub(super) fn check(&self, image: &MemoryDevice, printed: &[u8]) -> Result<Verdict> {
        let output = self.place.file(&format!("{}.output", self.name), printed)?;
        let said = tempfile::tempfile()?;
        let device = Arc::new(image.snapshot());
        let mounted = Mounted::plain(device, &self.dir, &self.plan.fuse)?;
        let job = Job {
            line: &self.plan.check,
            dir: &self.dir,
            variables: &[(OUTPUT, &output)],
            limit: self.plan.limit,
            stop: &self.plan.stop,
        };
        let ended = job.run(Stdio::from(said.try_clone()?), Stdio::from(said.try_clone()?));
        drop(mounted);
        Ok(Verdict { failure: ended?.failure(), said: tail(&said)? })
    }
}

/// The end of what was written to a file, as text.
fn tail(file: &File) -> Result<String> {
    let len = file.metadata()?.len();
    // At most SAID_MAX bytes.
    let mut bytes = vec![0; len.min(SAID_MAX) as usize];
    file.read_exact_at(&mut bytes, len.saturating_sub(SAID_MAX))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
