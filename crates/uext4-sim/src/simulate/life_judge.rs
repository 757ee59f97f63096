//! What must be there after a life: the volume is recovered, checked, and compared with the model.

use super::around::Progress;
use super::life::Ended;
use super::medium::Medium;
use super::plan::{LifePlan, SeedPlan, Speed};
use super::racer::{self, SHARED_FILES};
use crate::crash::{Checker, CheckerAfterErrors, Judge};
use crate::model::{History, Mark};
use crate::operation::{Place, ROOT, SHARED_NAME, own_name, thread_of};
use crate::oracle::{self, Oracle};
use crate::view::View;
use std::collections::BTreeSet;
use std::sync::Arc;
use uext4::{Error, ErrorKind, FileKind, InodeRef, MountOptions, Volume};
use uext4_device::MemoryDevice;

/// What earlier lives left.
#[derive(Debug, Default)]
pub(super) struct Remains {
    view: View,
    /// A device failed once: the superblock may say so.
    has_failed: bool,
}

/// Recovered images of which e2fsck judges one.
const E2FSCK_EVERY: u64 = 10;

/// What a loss of power would have left at a moment of a life that went on.
#[derive(Debug)]
pub(super) struct Moment {
    pub(super) image: MemoryDevice,
    /// By the clock of the callers.
    pub(super) time: u64,
    /// The device had failed by then.
    pub(super) has_failed: bool,
}

/// Recovers the image that a life has left and judges it; the image afterwards, if a next life can
/// go on with it.
pub(super) fn judge(
    plan: &SeedPlan,
    number: usize,
    ended: Ended,
    remains: &mut Remains,
    progress: &Progress,
) -> Result<Option<MemoryDevice>, Vec<String>> {
    let life = &plan.lives[number];
    let seed = plan.case.seed ^ (number as u64) << 32 ^ 0x6a75;
    let mut image = ended.image;
    let mut is_left = false;
    if let Some(request) = life.recovery_cut {
        let medium = Arc::new(Medium::new(&image, seed, Speed::AT_ONCE, false));
        medium.cut_at(request);
        // It fails, or ends before the power does.
        if let Ok(volume) = open(medium.clone(), life) {
            is_left = !volume.orphan_problems().is_empty();
            let _ = volume.close();
        }
        image = medium.after_power_loss();
        progress.change(|report| report.cuts += 1);
    }
    for moment in ended.moments {
        let when = |fault: String| format!("at moment {}: {fault}", moment.time);
        let history = ended.history.until(moment.time);
        let left = Left {
            image: moment.image,
            marks: history.syncs_before(moment.time),
            history,
            has_failed: remains.has_failed || moment.has_failed,
            is_left: false,
        };
        progress.change(|report| report.cuts += 1);
        let faults = examine(plan, number, left, &remains.view, seed).faults;
        if !faults.is_empty() {
            return Err(faults.into_iter().map(when).collect());
        }
    }
    remains.has_failed |= ended.has_failed;
    let left = Left {
        image,
        history: ended.history,
        marks: ended.marks,
        has_failed: remains.has_failed,
        is_left,
    };
    let mut seen = examine(plan, number, left, &remains.view, seed);
    remains.view = part_of(&seen.view, is_callers);
    if let Some(image) = &seen.image
        && seen.faults.is_empty()
        && !remains.has_failed
        && is_for_e2fsck(plan, number)
    {
        seen.faults.extend(e2fsck(image).err().map(|fault| format!("e2fsck: {fault}")));
    }
    if seen.faults.is_empty() { Ok(seen.image.filter(|_| !seen.is_left)) } else { Err(seen.faults) }
}

/// What a life has left, or would have.
struct Left {
    image: MemoryDevice,
    history: History,
    marks: Vec<Mark>,
    has_failed: bool,
    /// Orphans are left to e2fsck.
    is_left: bool,
}

/// What became of it in the recovery.
#[derive(Default)]
struct Examined {
    image: Option<MemoryDevice>,
    view: View,
    is_left: bool,
    faults: Vec<String>,
}

fn is_callers(place: &Place) -> bool {
    place.dir != SHARED_FILES && thread_of(place).is_some()
}

/// Recovers an image and judges it; `earlier` is what lives before left.
fn examine(plan: &SeedPlan, number: usize, left: Left, earlier: &View, seed: u64) -> Examined {
    let life = &plan.lives[number];
    let medium = Arc::new(Medium::new(&left.image, seed, Speed::AT_ONCE, false));
    let Recovered { view, problems, closed } = match recover(medium.clone(), life) {
        Ok(recovered) => recovered,
        Err(fault) => return Examined { faults: vec![fault], ..Examined::default() },
    };
    let image = medium.after_power_loss();
    let mut faults: Vec<String> = closed.err().into_iter().collect();
    // Orphans of a volume whose superblock tells of errors are left to e2fsck.
    let is_left = left.has_failed && (left.is_left || !problems.is_empty());
    if !is_left {
        let judge: &dyn Judge = if left.has_failed { &CheckerAfterErrors } else { &Checker };
        let findings = judge.findings(&image).unwrap_or_else(|fault| vec![fault]);
        faults.extend(findings.into_iter().map(|fault| format!("fsck: {fault}")));
        faults.extend(problems);
    }
    let threads: BTreeSet<u32> = left.history.threads.iter().map(|t| t.thread).collect();
    let of_these = |place: &Place| thread_of(place).is_some_and(|t| threads.contains(&t));
    let differences = left.history.check(&left.marks, &part_of(&view, of_these));
    faults.extend(differences.into_iter().map(|line| format!("model: {line}")));
    faults.extend(racer::check(&view));
    let is_old = |place: &Place| is_callers(place) && !of_these(place);
    let old = earlier.differences(&part_of(&view, is_old));
    faults.extend(old.into_iter().map(|line| format!("of an earlier life: {line}")));
    Examined { image: Some(image), view, is_left, faults }
}

/// One image in [`E2FSCK_EVERY`], or with `--e2fsck` all.
fn is_for_e2fsck(plan: &SeedPlan, number: usize) -> bool {
    plan.case.e2fsck || (plan.case.seed + number as u64).is_multiple_of(E2FSCK_EVERY)
}

fn open(medium: Arc<Medium>, life: &LifePlan) -> Result<Volume, Error> {
    let options =
        MountOptions { cache_bytes: 8 << 20, dax: life.options.dax, ..Default::default() };
    super::life::open(medium, &LifePlan { options, ..life.clone() })
}

/// A volume after its recovery.
struct Recovered {
    view: View,
    /// Orphans that were not cleaned up.
    problems: Vec<String>,
    closed: Result<(), String>,
}

fn recover(medium: Arc<Medium>, life: &LifePlan) -> Result<Recovered, String> {
    let volume = open(medium, life).map_err(|error| format!("recovery: {error}"))?;
    if let Some(reason) = volume.read_only_reason() {
        return Err(format!("recovery: read-only: {reason}"));
    }
    let view = View::read(&volume).map_err(|fault| format!("after the recovery: {fault}"))?;
    let problems =
        volume.orphan_problems().iter().map(|error| format!("orphan: {error}")).collect();
    let closed = volume.close().map_err(|error| format!("close after the recovery: {error}"));
    Ok(Recovered { view, problems, closed })
}

/// The names that fit, and the nodes that they lead to.
fn part_of(view: &View, fits: impl Fn(&Place) -> bool) -> View {
    let entries: std::collections::BTreeMap<_, _> = view
        .entries
        .iter()
        .filter(|(place, _)| fits(place))
        .map(|(place, ino)| (place.clone(), *ino))
        .collect();
    let named: BTreeSet<_> = entries.values().copied().collect();
    let nodes = view.nodes.iter().filter(|(ino, _)| named.contains(ino));
    View { nodes: nodes.map(|(ino, seen)| (*ino, seen.clone())).collect(), entries }
}

/// What e2fsck says of an image at rest, where there is one.
fn e2fsck(image: &MemoryDevice) -> Result<(), String> {
    if oracle::e2fsck().is_none() {
        return Ok(());
    }
    let oracle = Oracle::new().map_err(|error| error.to_string())?;
    oracle.findings(image)?.into_iter().next().map_or(Ok(()), Err)
}

impl Remains {
    /// Removes what half of the earlier callers left.
    pub(super) fn remove(&mut self, volume: &Volume, seed: u64) -> Result<(), Error> {
        let threads: BTreeSet<u32> = self.view.entries.keys().filter_map(thread_of).collect();
        let goes = |thread: u32| !(u64::from(thread) + seed).is_multiple_of(2);
        let root = volume.root()?;
        for &thread in threads.iter().filter(|thread| goes(**thread)) {
            remove_tree(volume, &root, &own_name(thread))?;
        }
        if let Ok(shared) = volume.lookup(&root, SHARED_NAME) {
            for place in
                self.view.entries.keys().filter(|place| place.dir == crate::operation::SHARED)
            {
                if thread_of(place).is_some_and(goes) {
                    remove_tree(volume, &shared, &place.name)?;
                }
            }
        }
        self.view = part_of(&self.view, |place| {
            debug_assert_ne!(place.dir, ROOT);
            thread_of(place).is_some_and(|thread| !goes(thread))
        });
        Ok(())
    }
}

/// Removes a name and all below it.
fn remove_tree(volume: &Volume, dir: &InodeRef, name: &[u8]) -> Result<(), Error> {
    let inode = match volume.lookup(dir, name) {
        Err(error) if *error.kind() == ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    if volume.attr(&inode).kind != FileKind::Directory {
        return volume.unlink(dir, name);
    }
    let mut names = Vec::new();
    volume.read_dir(&inode, 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            names.push(entry.name.to_vec());
        }
        true
    })?;
    names.iter().try_for_each(|name| remove_tree(volume, &inode, name))?;
    volume.rmdir(dir, name)
}
