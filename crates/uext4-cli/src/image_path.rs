//! Paths inside an image, from its root, with the reasons of failures as verbs tell them.

pub(crate) use uext4::LastLink as Last;
use uext4::{ErrorKind, InodeRef, PathEnd, Resolved, Volume};

use crate::failure::Why;

/// Resolves a path of bytes. A slash at its end asks for a directory, also behind a link.
pub(crate) fn resolve(volume: &Volume, path: &[u8], last: Last) -> Result<Resolved, Why> {
    volume.resolve(&volume.root()?, path, last).map_err(why)
}

/// Resolves all but the last part, which need not exist: the directory and the name.
pub(crate) fn resolve_parent(volume: &Volume, path: &[u8]) -> Result<(Resolved, Vec<u8>), Why> {
    if path.is_empty() {
        return Err(Why::new("needs a name at its end"));
    }
    volume.resolve_parent(&volume.root()?, path).map_err(why)
}

/// Finds the place of a file that is written or made, as open(2) does.
pub(crate) fn end_of(volume: &Volume, path: &[u8]) -> Result<PathEnd, Why> {
    volume.resolve_end(&volume.root()?, path).map_err(why)
}

fn why(error: uext4::Error) -> Why {
    match error.kind() {
        ErrorKind::NotADirectory => Why::not_directory(),
        _ => error.into(),
    }
}

/// All names of a directory but `.` and `..`, with inode numbers.
pub(crate) fn names(volume: &Volume, dir: &InodeRef) -> Result<Vec<Listed>, Why> {
    let mut names = Vec::new();
    volume.read_dir(dir, 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            names.push(Listed { name: entry.name.to_vec(), ino: entry.ino });
        }
        true
    })?;
    Ok(names)
}

/// One name of a directory.
pub(crate) struct Listed {
    /// Name.
    pub(crate) name: Vec<u8>,
    /// Inode.
    pub(crate) ino: uext4::Ino,
}
