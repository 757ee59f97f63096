//! What the states of a growth must show.
//!
//! - The engine recovers each, to one of the sizes; the checker finds nothing; the file that was
//!   there is whole. Without a journal this is so of those that call themselves clean.
//! - `e2fsck -p`, as at boot, makes it so as well, of a part of the states, and of all that the
//!   kernel refuses. Without a journal it is `-fy`, and of all that are not called clean.
//! - The kernel refuses a state, or uses all groups that it has after the recovery: as many blocks
//!   are free as this engine finds. A mount that has replayed a growth would know the old groups
//!   only.

use super::{Case, Growth, content, options, superblock};
use crate::crash::{Depth, each_state};
use crate::external;
use crate::mount::KernelMount;
use crate::oracle::{expect_clean, image_folder, judge as e2fsck, save_part};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use uext4::{MountOptions, Volume};
use uext4_device::{MemoryDevice, SharedDevice};
use uext4_ondisk::superblock::STATE_VALID;

/// How much of a growth to judge.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// How much of a window.
    pub depth: Depth,
    /// Every so many states e2fsck recovers too.
    pub e2fsck_every: usize,
    /// Every so many states the kernel is asked too; 0: never.
    pub kernel_every: usize,
    /// Stop before this moment.
    pub until: Option<Instant>,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Judged {
    /// States.
    pub states: usize,
    /// The sizes that they came to.
    pub sizes: BTreeSet<u64>,
    /// States that e2fsck recovered.
    pub by_e2fsck: usize,
    /// States that the kernel mounted.
    pub mounted: usize,
    /// States that it refused.
    pub refused: usize,
    /// States, and what is wrong with them.
    pub faults: Vec<String>,
}

impl Judged {
    /// Adds what came of other states.
    pub fn add(&mut self, other: Judged) {
        self.states += other.states;
        self.sizes.extend(other.sizes);
        self.by_e2fsck += other.by_e2fsck;
        self.mounted += other.mounted;
        self.refused += other.refused;
        self.faults.extend(other.faults);
    }
}

/// What a recovered file system is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    blocks: u64,
    free: u64,
}

/// Judges the states of a growth, up to three faults.
///
/// # Errors
/// The machinery failed.
pub fn judge(growth: &Growth, seed: u64, effort: &Effort) -> Result<Judged, String> {
    let folder = image_folder().map_err(|error| format!("no folder for images: {error}"))?;
    let judge = Judge { case: growth.case, sizes: &growth.sizes, folder: folder.path() };
    let mut judged = Judged::default();
    each_state(&growth.recording, effort.depth, seed, &mut |state, name| {
        judged.states += 1;
        if let Err(what) = judge.state(state, effort, &mut judged) {
            judged.faults.push(format!("{name}: {what}"));
        }
        let is_late = effort.until.is_some_and(|until| Instant::now() >= until);
        judged.faults.len() < 3 && !is_late
    });
    Ok(judged)
}

struct Judge<'a> {
    case: &'static Case,
    sizes: &'a BTreeSet<u64>,
    folder: &'a Path,
}

impl Judge<'_> {
    fn state(
        &self,
        state: &MemoryDevice,
        effort: &Effort,
        judged: &mut Judged,
    ) -> Result<(), String> {
        let state = Arc::new(state.snapshot());
        if self.case.has_mmp() {
            // The host that had claimed it is gone. Waiting for it takes seconds.
            let (data, _) = self.case.devices(&(state.clone() as SharedDevice));
            uext4::clear_mmp(&data).map_err(|error| error.to_string())?;
        }
        self.recovered(&state, effort, judged)
    }

    fn recovered(
        &self,
        state: &MemoryDevice,
        effort: &Effort,
        judged: &mut Judged,
    ) -> Result<(), String> {
        let is_due = |every: usize| every > 0 && judged.states.is_multiple_of(every);
        let (e2fsck_is_due, kernel_is_due) =
            (is_due(effort.e2fsck_every), is_due(effort.kernel_every));
        if !self.case.has_journal() {
            let is_clean = superblock(state).s_state.get() & STATE_VALID != 0;
            let seen =
                if is_clean { self.at_rest(state) } else { self.by_e2fsck(state, "-fy", judged) };
            judged.sizes.insert(seen?.blocks);
            return Ok(());
        }
        let seen = self.by_engine(state)?;
        judged.sizes.insert(seen.blocks);
        let mut others = Vec::new();
        if kernel_is_due && self.case.is_for_kernel() {
            match self.by_kernel(state)? {
                Some(by_kernel) => {
                    judged.mounted += 1;
                    others.push(("the kernel", by_kernel));
                }
                None => {
                    judged.refused += 1;
                    others.push(("e2fsck", self.by_e2fsck(state, "-p", judged)?));
                }
            }
        }
        if e2fsck_is_due {
            others.push(("e2fsck", self.by_e2fsck(state, "-p", judged)?));
        }
        match others.iter().find(|(_, other)| *other != seen) {
            None => Ok(()),
            Some((by, other)) => Err(format!("{by} finds {other:?}, uext4 {seen:?}")),
        }
    }

    fn by_engine(&self, state: &MemoryDevice) -> Result<Seen, String> {
        let state = Arc::new(state.snapshot());
        let devices = self.case.devices(&(state.clone() as SharedDevice));
        let volume = external::open(devices, options());
        volume.and_then(Volume::close).map_err(|error| error.to_string())?;
        self.at_rest(&state)
    }

    fn by_e2fsck(
        &self,
        state: &MemoryDevice,
        flags: &str,
        judged: &mut Judged,
    ) -> Result<Seen, String> {
        judged.by_e2fsck += 1;
        let path = self.put(state)?;
        let verdict = e2fsck(&path, flags).map_err(|error| error.to_string())?;
        if verdict.code > 1 {
            return Err(format!("e2fsck {flags} exits {}: {}", verdict.code, verdict.text));
        }
        expect_clean(&path)?;
        self.at_rest(&self.load(state, &path)?)
    }

    /// `None`: the kernel refuses the state.
    fn by_kernel(&self, state: &MemoryDevice) -> Result<Option<Seen>, String> {
        let path = self.put(state)?;
        let point = self.folder.join("mnt");
        let Ok(mount) = KernelMount::start(&path, &point, false) else { return Ok(None) };
        let found = std::fs::read(point.join("content"));
        let stat = rustix::fs::statvfs(&point);
        mount.unmount()?;
        if found.map_err(|error| error.to_string())? != content() {
            return Err("the kernel shows other content".to_owned());
        }
        let stat = stat.map_err(|error| error.to_string())?;
        expect_clean(&path)?;
        let seen = self.at_rest(&self.load(state, &path)?)?;
        Ok(Some(Seen { free: stat.f_bfree, ..seen }))
    }

    /// A file system that needs no recovery.
    fn at_rest(&self, state: &MemoryDevice) -> Result<Seen, String> {
        let shared: SharedDevice = Arc::new(state.snapshot());
        let (data, log) = self.case.devices(&shared);
        let options = uext4_fsck::Options { threads: 1, findings_max: 3 };
        let report = uext4_fsck::check_with_journal(
            &*data,
            log.as_deref().map(|log| log as _),
            &options,
            &mut (),
        );
        if let Some(finding) = report.map_err(|e| e.to_string())?.findings.first() {
            return Err(format!("checker: {finding}"));
        }
        let told = |error: uext4::Error| error.to_string();
        let options = MountOptions { read_only: true, ..MountOptions::default() };
        let volume = external::open((data, log), options).map_err(told)?;
        let blocks = volume.layout().blocks_count;
        if !self.sizes.contains(&blocks) {
            return Err(format!("has {blocks} blocks, which is none of {:?}", self.sizes));
        }
        if volume.superblock().s_journal_dev.get() != 0 {
            return Err("names a journal device".to_owned());
        }
        let file = volume.root().and_then(|root| volume.lookup(&root, b"content"));
        let file = file.and_then(|file| volume.open_file(&file)).map_err(told)?;
        let mut found = vec![0; content().len()];
        file.read_at(0, &mut found).map_err(told)?;
        if found != content() {
            return Err("other content".to_owned());
        }
        Ok(Seen { blocks, free: volume.stat_fs().blocks_free })
    }

    /// Puts a state into files.
    fn put(&self, state: &MemoryDevice) -> Result<PathBuf, String> {
        let path = self.folder.join("state");
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        let (data, log) = self.case.parts();
        save_part(state, data, &path).map_err(failed)?;
        if let Some(log) = log {
            save_part(state, log, &external::journal_path(&path)).map_err(failed)?;
        }
        Ok(path)
    }

    /// A state after something has changed its files.
    fn load(&self, state: &MemoryDevice, path: &Path) -> Result<MemoryDevice, String> {
        let whole = Arc::new(state.snapshot());
        let (data, log) = self.case.devices(&(whole.clone() as SharedDevice));
        let files =
            [Some((path.to_owned(), data)), log.map(|log| (external::journal_path(path), log))];
        for (path, part) in files.into_iter().flatten() {
            let file = MemoryDevice::load(&path).and_then(|file| external::copy(&file, &*part));
            file.map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(whole.snapshot())
    }
}
