//! How files and free space lie.
//!
//! What: extents as the tree of a file has them (`extents_per_file`: a load that appends to 64
//! files at once cannot have fewer than nine in a GiB of unwritten space) and as filefrag(8) counts
//! them, where one that continues the one before is none (`runs_per_file`); e4defrag's score; the
//! mean of free runs, those of neighbouring groups joined, as e2freefrag(8) has it.

use uext4::{FileBlock, GroupNo, InodeRef, Volume};

use crate::error::{Error, Result};
use crate::library;

/// What the files of a load have.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Files {
    files: u64,
    extents: u64,
    runs: u64,
    blocks: u64,
    /// Least runs that e4defrag would have.
    best: u64,
}

impl Files {
    /// Counts a file in.
    pub(crate) fn add(&mut self, volume: &Volume, inode: &InodeRef) -> Result<()> {
        let mut end = None;
        let before = self.blocks;
        volume.extents(inode, FileBlock(0), &mut |extent| {
            self.extents += 1;
            self.blocks += u64::from(extent.len);
            let place = (u64::from(extent.first.get()), extent.start.get(), extent.unwritten);
            if end != Some(place) {
                self.runs += 1;
            }
            let len = u64::from(extent.len);
            end = Some((place.0 + len, place.1 + len, place.2));
            true
        })?;
        self.files += 1;
        let layout = volume.layout();
        let flex = u64::from(layout.blocks_per_group) * u64::from(layout.groups_per_flex);
        self.best += (self.blocks - before).div_ceil(flex.max(1));
        Ok(())
    }

    /// Counts the files of a directory in.
    pub(crate) fn add_dir(&mut self, volume: &Volume, name: &str) -> Result<()> {
        let dir = volume.lookup(&volume.root()?, name.as_bytes())?;
        let children = library::children(volume, &dir)?;
        children.iter().try_for_each(|(_, inode)| self.add(volume, inode))
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    pub(crate) fn extents_per_file(&self) -> f64 {
        self.extents as f64 / self.files.max(1) as f64
    }

    pub(crate) fn runs_per_file(&self) -> f64 {
        self.runs as f64 / self.files.max(1) as f64
    }

    /// e4defrag's: from 0, whole, to 100, every block alone.
    pub(crate) fn score(&self) -> f64 {
        let surplus = self.runs.saturating_sub(self.best) as f64 * 100.0;
        let surplus = surplus / self.blocks.max(1) as f64;
        if surplus > 10.0 { 80.0 + 20.0 * surplus / 100.0 } else { 8.0 * surplus }
    }
}

/// Mean length of the free runs, in KiB.
pub(crate) fn free_extent_mean_kib(volume: &Volume) -> Result<f64> {
    let layout = volume.layout();
    let (mut runs, mut blocks, mut end) = (0_u64, 0_u64, None);
    for group in 0..layout.group_count {
        for run in volume.free_runs(GroupNo(group))? {
            if end != Some(run.start) {
                runs += 1;
            }
            blocks += u64::from(run.len);
            end = Some(run.end());
        }
    }
    if runs == 0 {
        return Err(Error::new("nothing is free"));
    }
    Ok((blocks * u64::from(layout.block_size / 1024)) as f64 / runs as f64)
}

/// Mean distance from the end of a file to the begin of the next one in a directory, in the order
/// of their names, in KiB; `None` if there are no two files with blocks.
pub(crate) fn neighbour_distance_kib(volume: &Volume, dirs: &[String]) -> Result<Option<f64>> {
    let (mut pairs, mut blocks) = (0_u64, 0_u64);
    for name in dirs {
        let dir = volume.lookup(&volume.root()?, name.as_bytes())?;
        let mut children = library::children(volume, &dir)?;
        children.sort_by(|one, other| one.0.cmp(&other.0));
        let mut end: Option<u64> = None;
        for (_, inode) in &children {
            let mut place = None;
            volume.extents(inode, FileBlock(0), &mut |extent| {
                place = Some((extent.start.get(), extent.start.get() + u64::from(extent.len)));
                false
            })?;
            let Some((start, after)) = place else { continue };
            if let Some(end) = end {
                pairs += 1;
                blocks += start.abs_diff(end);
            }
            end = Some(after);
        }
    }
    let kib = u64::from(volume.layout().block_size / 1024);
    Ok((pairs > 0).then(|| (blocks * kib) as f64 / pairs as f64))
}
