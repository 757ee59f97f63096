//! Comparing two trees of images.
//!
//! What: [`compare`] finds names that only one side has and what differs in those that both have:
//! [`walk`] goes down both trees at once, [`inode`] compares attributes, [`content`] and [`blocks`]
//! compare bytes, [`links`] and [`renames`] look at the whole at the end, [`report`] prints.
//!
//! Content is compared by its bytes, always. Where both sides map a file to the same blocks, as
//! copies of one image do, the blocks of the devices are compared, sorted and in large reads; any
//! other file is read through its mapping. Only [`Settings::trust_times`] takes a file as the same
//! unread.
//!
//! Invariants: nothing is written. A directory is entered once on each side, so a corrupt image
//! with a loop ends the walk and is told.

mod blocks;
mod content;
mod entry;
mod inode;
mod links;
mod renames;
mod report;
mod walk;

use entry::Entry;
pub(crate) use report::{print, print_json};

use uext4::Volume;

use crate::failure::{Failure, Why};
use crate::image_path::{Last, resolve};
use crate::spec::{self, ImagePath};

/// What counts as a difference.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Settings {
    /// Modification times do not.
    pub(crate) no_times: bool,
    /// Owners do not.
    pub(crate) no_owner: bool,
    /// Only names, types, content, targets of links and numbers of devices do.
    pub(crate) content_only: bool,
    /// A file of the same inode, size, times and mapping is the same, unread.
    pub(crate) trust_times: bool,
    /// A name that is gone and one that is new are a rename, where they have the same inode with
    /// the same content.
    pub(crate) renames: bool,
}

/// One of the two trees.
pub(crate) struct Side {
    pub(crate) volume: Volume,
    pub(crate) at: ImagePath,
}

/// The outcome.
pub(crate) struct Comparison {
    /// What differs, by path.
    pub(crate) entries: Vec<Entry>,
    /// What could not be compared.
    pub(crate) troubles: Vec<Failure>,
}

/// Compares the trees, or two files, that two operands name.
pub(crate) fn compare(sides: &[Side; 2], settings: Settings) -> Result<Comparison, Failure> {
    let mut roots = Vec::with_capacity(2);
    for side in sides {
        let found = resolve(&side.volume, &side.at.path, Last::Follow);
        let found = found.map_err(|why| why.at("diff", &side.at))?;
        roots.push(found.inode().ino());
    }
    let mut found = walk::run(sides, settings, [roots[0], roots[1]]);
    if settings.renames {
        renames::pair(sides, settings, &mut found);
    }
    if !settings.content_only {
        links::compare(&mut found);
    }
    found.entries.sort_by(|one, other| one.order().cmp(&other.order()));
    found.troubles.sort();
    let troubles = found.troubles.iter().map(|line| Failure::line(line)).collect();
    Ok(Comparison { entries: found.entries, troubles })
}

impl Side {
    /// The path in the image of a path below the operand; empty for the operand itself.
    fn path(&self, below: &[u8]) -> Vec<u8> {
        if below.is_empty() { self.at.path.clone() } else { spec::join(&self.at.path, below) }
    }

    /// The line of what could not be compared.
    fn trouble(&self, below: &[u8], why: Why) -> String {
        let path = ImagePath { image: self.at.image.clone(), path: self.path(below) };
        match why.at("diff", path) {
            Failure::Line(line) => line,
            _ => String::new(),
        }
    }
}
