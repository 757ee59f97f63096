//! Runs of a file as Linux lists them to filefrag(8) and e4defrag(8): extents that continue each
//! other, in the file and on the device, and are both written or both not, are one run. How an
//! extent tree cuts them at 32,768 blocks is no fragmentation.

use uext4::{Extent, FileBlock, InodeRef, Volume};

use crate::failure::Why;

/// A run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// First block of the file.
    pub(crate) logical: u64,
    /// First block of the device.
    pub(crate) physical: u64,
    /// Number of blocks.
    pub(crate) len: u64,
    /// Allocated, but reads as zeroes.
    pub(crate) unwritten: bool,
}

impl Run {
    fn new(extent: &Extent) -> Self {
        Self {
            logical: u64::from(extent.first.get()),
            physical: extent.start.get(),
            len: u64::from(extent.len),
            unwritten: extent.unwritten,
        }
    }

    /// Takes in `next` if it continues this run.
    fn join(&mut self, next: &Self) -> bool {
        let continues = self.logical + self.len == next.logical
            && self.physical + self.len == next.physical
            && self.unwritten == next.unwritten;
        if continues {
            self.len += next.len;
        }
        continues
    }
}

/// Calls `see` with each run of a file, in ascending order.
pub(crate) fn each(volume: &Volume, inode: &InodeRef, mut see: impl FnMut(Run)) -> Result<(), Why> {
    let mut open: Option<Run> = None;
    volume.extents(inode, FileBlock(0), &mut |extent| {
        let next = Run::new(&extent);
        if !open.as_mut().is_some_and(|run| run.join(&next))
            && let Some(done) = open.replace(next)
        {
            see(done);
        }
        true
    })?;
    if let Some(last) = open {
        see(last);
    }
    Ok(())
}

/// The runs of a file.
pub(crate) fn all(volume: &Volume, inode: &InodeRef) -> Result<Vec<Run>, Why> {
    let mut runs = Vec::new();
    each(volume, inode, |run| runs.push(run))?;
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_join_where_they_continue() {
        let run = |logical, physical, len, unwritten| Run { logical, physical, len, unwritten };
        let mut first = run(10, 100, 5, false);
        assert!(!first.join(&run(16, 105, 1, false)), "a hole between");
        assert!(!first.join(&run(15, 106, 1, false)), "elsewhere");
        assert!(!first.join(&run(15, 105, 1, true)), "unwritten");
        assert!(first.join(&run(15, 105, 3, false)));
        assert_eq!(first, run(10, 100, 8, false));
    }
}
