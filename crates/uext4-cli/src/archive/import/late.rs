//! Times of directories, which are set when nothing in them changes any more.

use std::collections::HashMap;

use uext4::{ErrorKind, Ino, SetAttr, SetTime, Timestamp, Volume};

use super::maker::Attributes;
use crate::failure::Why;
use crate::operands::Try;

/// A few words for each directory: an archive may have any number of them.
#[derive(Default)]
pub(super) struct LateTimes {
    dirs: HashMap<Ino, Late>,
}

struct Late {
    generation: u32,
    atime: Timestamp,
    mtime: Timestamp,
}

impl LateTimes {
    /// Keeps the times of a directory. The last ones count.
    pub(super) fn keep(&mut self, ino: Ino, generation: u32, attributes: &Attributes) {
        let (atime, mtime) = (attributes.atime, attributes.mtime);
        self.dirs.insert(ino, Late { generation, atime, mtime });
    }

    /// Sets all, until `note`, which is told what fails, says that nothing more can be written.
    pub(super) fn set(&mut self, volume: &Volume, note: impl Fn(Why) -> bool) {
        let mut all: Vec<(Ino, Late)> = self.dirs.drain().collect();
        all.sort_unstable_by_key(|(ino, _)| ino.get());
        for (ino, late) in all {
            let set = set(volume, ino, &late);
            if let Err(why) = set
                && note(why.about(format!("the times of directory inode {ino}")))
            {
                return;
            }
        }
    }
}

fn set(volume: &Volume, ino: Ino, late: &Late) -> Try<()> {
    let inode = match volume.inode_again(ino, late.generation) {
        // One that has been replaced is not there any more.
        Err(error) if *error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    let times = SetAttr {
        atime: Some(SetTime::At(late.atime)),
        mtime: Some(SetTime::At(late.mtime)),
        ..SetAttr::default()
    };
    volume.set_attr(&inode, &times)?;
    Ok(())
}
