//! Grows ext4 file systems that are not in use, without moving anything.
//!
//! What: [`examine`] says what a file system becomes at a size, in steps; [`resize`] makes it so.
//! A step writes the new groups behind the end of the file system and then makes them part of it
//! by one transaction of the engine. docs/resize.md has the order of writes, and what a crash
//! leaves.
//!
//! Invariants: each step leaves a whole file system. What cannot be grown is refused by name before
//! anything is written: [`examine`] looks at all that any step depends on.
//!
//! Kernel counterpart: `fs/ext4/resize.c`; e2fsprogs `resize/`.

#![forbid(unsafe_code)]

mod error;
mod geometry;
mod groups;

pub use error::{ResizeError, Result};
pub use geometry::{fitting_blocks, next};

use uext4::{Growth, Volume};
use uext4_mkfs::NewGroups;
use uext4_ondisk::superblock::{STATE_ERROR, STATE_VALID};
use uext4_ondisk::{Compat, Features, GroupNo, Incompat, Layout, RawSuperblock};

/// What a file system is, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Blocks.
    pub blocks: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// Inodes.
    pub inodes: u32,
    /// Block groups.
    pub groups: u32,
    /// Descriptors of groups from here on are in their meta groups (meta_bg).
    pub first_meta_group: Option<u32>,
}

impl Shape {
    fn of(sb: &RawSuperblock) -> Result<Self> {
        let layout = Layout::new(sb, None)?;
        let first_meta_group =
            layout.has_meta_bg().then(|| sb.s_first_meta_bg.get() * layout.descs_per_block());
        Ok(Self {
            blocks: layout.blocks_count,
            block_size: layout.block_size,
            inodes: layout.inodes_count,
            groups: layout.group_count,
            first_meta_group,
        })
    }
}

/// What a growth makes of a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Before.
    pub old: Shape,
    /// After each step.
    pub steps: Vec<Shape>,
}

impl Report {
    /// Afterwards.
    #[must_use]
    pub fn last(&self) -> Shape {
        self.steps.last().copied().unwrap_or(self.old)
    }
}

/// What `blocks` blocks make of a file system, which may be open to read. With no more blocks than
/// it has there is no step. Changes nothing.
///
/// # Errors
/// The file system cannot be grown to that size: why, and what helps. A device failure.
pub fn examine(volume: &Volume, blocks: u64) -> Result<Report> {
    let mut sb = volume.superblock();
    check(&sb)?;
    refuse_damage(volume, &sb)?;
    let mut report = Report { old: Shape::of(&sb)?, steps: Vec::new() };
    while sb.blocks_count() < blocks {
        sb = next(&sb, blocks, volume.growth_blocks_max())?;
        volume.check_growth(&sb).map_err(needs_check)?;
        report.steps.push(Shape::of(&sb)?);
    }
    Ok(report)
}

/// Grows a file system to `blocks` blocks, of which the device has so many. `open` opens it for
/// each step, and a step closes it.
///
/// # Errors
/// Those of [`examine`], before anything is written; those of `open`; a device failure. The steps
/// that were made stay.
pub fn resize<E: From<ResizeError>>(
    blocks: u64,
    open: &mut dyn FnMut() -> std::result::Result<Volume, E>,
) -> std::result::Result<Report, E> {
    let mut report: Option<Report> = None;
    loop {
        let volume = open()?;
        let sb = volume.superblock();
        let report = match &mut report {
            Some(report) => report,
            none => {
                let planned = examine(&volume, blocks)?;
                none.insert(Report { old: planned.old, steps: Vec::new() })
            }
        };
        if sb.blocks_count() >= blocks {
            let report = report.clone();
            volume.close().map_err(ResizeError::from)?;
            return Ok(report);
        }
        let new = step(volume, &sb, blocks)?;
        report.steps.push(new);
    }
}

/// One step.
fn step(volume: Volume, sb: &RawSuperblock, blocks: u64) -> Result<Shape> {
    let mut new = next(sb, blocks, volume.growth_blocks_max())?;
    let layout = Layout::new(&new, None)?;
    let first = GroupNo(volume.layout().group_count);
    let mut groups = NewGroups::lay_out(&layout, first)?;
    geometry::count_free(&mut new, volume.layout(), &layout, groups.descs());
    groups::write(&volume, &layout, &new, &mut groups)?;
    let growth = Growth { superblock: new, groups: groups.descs().to_vec() };
    volume.grow(&growth)?;
    Shape::of(&new)
}

/// Refuses what nobody can grow.
fn check(sb: &RawSuperblock) -> Result<()> {
    let features = Features::of(sb);
    if features.incompat.contains(Incompat::JOURNAL_DEV) {
        return Err(ResizeError::Refused("is a journal, not a file system".to_owned()));
    }
    if sb.s_state.get() & STATE_ERROR != 0 {
        return Err(ResizeError::Refused(
            "has errors: repair it first (e2fsck -f), then resize it".to_owned(),
        ));
    }
    Ok(())
}

/// Refuses a file system that only e2fsck can make whole.
fn refuse_damage(volume: &Volume, sb: &RawSuperblock) -> Result<()> {
    let has_journal = Features::of(sb).compat.contains(Compat::HAS_JOURNAL);
    // A volume without a journal is not marked as clean while it is open.
    let was_unclean = volume.recovery().is_unchecked;
    if was_unclean || (has_journal && sb.s_state.get() & STATE_VALID == 0) {
        return Err(ResizeError::Refused(
            "was not closed cleanly: repair it first (e2fsck -f), then resize it".to_owned(),
        ));
    }
    match volume.orphan_problems().first() {
        None => Ok(()),
        Some(problem) => Err(needs_repair(problem)),
    }
}

/// The error with the word that helps, if a check does.
fn needs_check(error: uext4::Error) -> ResizeError {
    match error.kind() {
        uext4::ErrorKind::Corrupt(_) => needs_repair(&error),
        _ => error.into(),
    }
}

fn needs_repair(problem: &dyn std::fmt::Display) -> ResizeError {
    ResizeError::Refused(format!("needs a check ({problem}): repair it first (e2fsck -f)"))
}
