//! Threads that use what the callers make: they sync, read and let go of files that are not theirs.
//!
//! # What
//! None of it changes what a file holds, and more may be durable than its owner has asked for, so
//! the model needs not know of it. What changes is which thread writes a file back, and when:
//! beside the owner's next call on it, and in one group with files of others.

use super::around::Around;
use super::part::Part;
use crate::operation::own_name;
use rand::Rng;
use rand::rngs::StdRng;
use uext4::{Error, ErrorKind, FileKind, InodeRef, Volume};

/// Deepest directory that is looked into.
const DEPTH: u32 = 3;

/// One iteration of an onlooker.
pub(super) fn look_on(around: &Around, rng: &mut StdRng) -> Result<(), Error> {
    let volume = &around.volume;
    let thread = around.threads[rng.random_range(0..around.threads.len())];
    let dir = volume.lookup(&volume.root()?, &own_name(thread))?;
    let Some(inode) = some_file(volume, dir, rng)? else { return Ok(()) };
    for _ in 0..rng.random_range(1..4) {
        match iteration(volume, &inode, rng) {
            // The owner's request failed for a moment, or its file has gone.
            Err(error) if around.plan.parts.has(Part::Trouble) && is_of_owner(&error) => {}
            Err(error) if *error.kind() == ErrorKind::NotFound => {}
            other => other?,
        }
    }
    Ok(())
}

fn is_of_owner(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Io | ErrorKind::Aborted | ErrorKind::ReadOnly)
}

/// A file below a directory; `None` where the way down ends at none.
fn some_file(
    volume: &Volume,
    mut dir: InodeRef,
    rng: &mut StdRng,
) -> Result<Option<InodeRef>, Error> {
    for _ in 0..DEPTH {
        let mut names = Vec::new();
        volume.read_dir(&dir, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                names.push(entry.name.to_vec());
            }
            true
        })?;
        if names.is_empty() {
            return Ok(None);
        }
        let inode = match volume.lookup(&dir, &names[rng.random_range(0..names.len())]) {
            Err(error) if *error.kind() == ErrorKind::NotFound => return Ok(None),
            found => found?,
        };
        match volume.attr(&inode).kind {
            FileKind::Regular => return Ok(Some(inode)),
            FileKind::Directory => dir = inode,
            _ => return Ok(None),
        }
    }
    Ok(None)
}

fn iteration(volume: &Volume, inode: &InodeRef, rng: &mut StdRng) -> Result<(), Error> {
    let file = volume.open_file(inode)?;
    let block = volume.layout().block_size as usize;
    match rng.random_range(0..12) {
        0..=4 => file.sync(rng.random()),
        5..=7 => file.read_at(0, &mut [0; 16 << 10]).map(drop),
        8 => file.read_direct_at(0, &mut vec![0; 4 * block]).map(drop),
        9..=10 => file.drop_cached(),
        _ => volume.xattr_list(inode).map(drop),
    }
}
