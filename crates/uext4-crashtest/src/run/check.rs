//! The check of one state: its image is mounted, and the user's command judges it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use uext4_device::MemoryDevice;

use super::Plan;
use super::command::Job;
use super::killed::Kills;
use super::mounted::Mounted;
use super::place::Place;
use super::said::Said;
use crate::error::{Error, Result};

/// The variable that names the file with what the program had printed.
const OUTPUT: &str = "UEXT4_CRASHTEST_OUTPUT";

/// A place for checks, one at a time.
pub(super) struct Checker<'a> {
    plan: &'a Plan,
    place: &'a Place,
    name: String,
    dir: PathBuf,
}

/// What the check says of a state.
#[derive(Clone, Debug)]
pub(super) struct Verdict {
    /// How it failed; `None`: the state is sound.
    pub(super) failure: Option<String>,
    /// What it printed: the begin and the end.
    pub(super) said: String,
}

impl<'a> Checker<'a> {
    /// A place with a name of its own.
    pub(super) fn new(plan: &'a Plan, place: &'a Place, name: &str) -> Result<Self> {
        let dir = place.directory(name)?;
        Ok(Self { plan, place, name: name.to_owned(), dir })
    }

    /// Mounts a state and has the command judge it. Whatever it changes there is thrown away.
    ///
    /// # Errors
    /// What is no verdict: the state cannot be mounted or unmounted, the command not be started.
    pub(super) fn check(&self, image: &MemoryDevice, printed: &[u8]) -> Result<Verdict> {
        let output = self.place.file(&format!("{}.output", self.name), printed)?;
        let device = Arc::new(image.snapshot());
        let mounted = Mounted::plain(device, &self.dir, &self.plan.fuse)?;
        let job = Job {
            line: &self.plan.check,
            dir: &self.dir,
            variables: &[(OUTPUT, &output)],
            limit: self.plan.limit,
            stop: &self.plan.stop,
        };
        let kills = Kills::now();
        let (said, [out, error]) = Said::new()?;
        let ended = job.run(out, error);
        let said = said.end();
        let ended = ended?;
        let failure = ended.failure();
        mounted.discard()?;
        // A signal to the whole group ends the check as well: that says nothing of the state.
        if failure.is_some() && self.plan.stop.load(Ordering::Relaxed) {
            return Err(Error::new("interrupted"));
        }
        if let Some(why) = failure.as_ref().and_then(|_| kills.reason(&ended)) {
            let text = format!("check: {why}: no verdict; fewer --jobs need less memory");
            return Err(Error::new(text));
        }
        Ok(Verdict { failure, said })
    }
}
