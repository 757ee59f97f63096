//! Where copies go: the last operand of `cp`, on the host or in an image.

use std::path::{Path, PathBuf};

use uext4::{FileKind, Resolved, Volume};

use crate::copy::guarded::Guarded;
use crate::copy::host_target::HostTarget;
use crate::failure::Why;
use crate::image_path::{Last, resolve, resolve_parent};
use crate::operands::Try;
use crate::spec::{self, Location};

/// Where copies go: into a directory under their own names, under one new name, or onto a
/// directory that has no name of its own (`/`, `.`).
pub(super) enum Goal<N> {
    Into(N),
    As(N, Vec<u8>),
    Onto(N),
}

/// What the last operand may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A directory, or a new name.
    Either,
    /// A directory: for several sources, with `-t`, or with a slash at its end.
    Directory,
    /// A name, whatever stands there (`-T`).
    Name,
}

/// The name in the target directory; `None` for the directory itself.
pub(super) type Name = Option<Vec<u8>>;

impl Form {
    /// The goal in a directory that was found.
    pub(super) fn goal<N>(self, dir: N, name: &Name) -> Goal<N> {
        match name {
            Some(name) => Goal::As(dir, name.clone()),
            None if self == Self::Name => Goal::Onto(dir),
            None => Goal::Into(dir),
        }
    }
}

pub(super) fn ends_in_slash(path: &[u8]) -> bool {
    path.last() == Some(&b'/')
}

/// Whether a path of the host leads to one of some files.
pub(super) fn is_any(path: &Path, files: &Guarded) -> bool {
    path.metadata().is_ok_and(|found| files.has(&found))
}

/// The files of the host that operands' images are in.
pub(super) fn images<'l>(operands: impl Iterator<Item = &'l Location>) -> Guarded {
    Guarded::of(operands.filter_map(|operand| match operand {
        Location::Image(path) => Some(&*path.image.path),
        Location::Host(_) => None,
    }))
}

/// The target directory, and the new name when the path is not a directory itself.
pub(super) fn of_host(path: &Path, form: Form) -> Try<(HostTarget, Name)> {
    let name = path.file_name();
    if path.is_dir() && (form != Form::Name || name.is_none()) {
        return Ok((HostTarget::open(path)?, None));
    }
    match (path.parent(), name) {
        (Some(parent), Some(name)) if form != Form::Directory => {
            let parent = if parent.as_os_str().is_empty() {
                PathBuf::from(".")
            } else {
                parent.to_path_buf()
            };
            Ok((HostTarget::open(&parent)?, Some(name.as_encoded_bytes().to_vec())))
        }
        _ => Err(Why::new("Not a directory")),
    }
}

/// The directory and the name of a destination in an image.
pub(super) fn of_image(volume: &Volume, path: &[u8], form: Form) -> Try<(Resolved, Name)> {
    let is_nameless = matches!(spec::last_part(path), b"" | b"." | b"..");
    match resolve(volume, path, Last::Follow) {
        Ok(found)
            if found.inode().kind() == FileKind::Directory
                && (form != Form::Name || is_nameless) =>
        {
            Ok((found, None))
        }
        Ok(_) | Err(_) if form != Form::Directory => {
            let (parent, name) = resolve_parent(volume, path)?;
            Ok((parent, Some(name)))
        }
        Ok(_) => Err(Why::new("Not a directory")),
        Err(why) => Err(why),
    }
}
