//! `cp` from standard input and to standard output.

use std::ffi::OsString;
use std::io::Read;

use uext4::{FileKind, InodeRef, RenameMode, SetAttr, Volume, XattrMode};

use crate::failure::{Result, Why};
use crate::glob;
use crate::operands::{self, Images, Try};
use crate::output::Output;
use crate::spec::{self, ImagePath, Location};
use crate::verb::cat;

/// Bytes read at a time.
const READ_BYTES: usize = 1 << 20;

/// Copies where a source or the target is `-`.
pub(super) fn run(no_clobber: bool, names: &[OsString], target: &OsString) -> Result<()> {
    if target == "-" {
        let mut output = Output::new();
        for path in glob::in_image("cp", names)? {
            cat::print("cp", &path, &mut output)?;
        }
        return output.finish();
    }
    let [_] = names else {
        return Err(Why::new("is one source, of one file").at("cp", "-"));
    };
    let Location::Image(path) = Location::parse(target) else {
        return Err(Why::new(spec::NOT_IN_IMAGE).at("cp", target.display()));
    };
    let mut images = Images::new("cp");
    images.at(&path, |volume| write(no_clobber, volume, &path));
    images.finish()
}

/// Writes a file from standard input. It takes the place of an old one when all is there, with that
/// one's owner, mode and attributes: a change of a file by a pipe keeps what `>` of a shell keeps.
fn write(no_clobber: bool, volume: &Volume, path: &ImagePath) -> Try<()> {
    let end = operands::end_of(volume, &path.path)?;
    match end.inode.as_ref().map(|inode| inode.kind()) {
        None => {}
        Some(_) if no_clobber => return Ok(()),
        Some(FileKind::Regular) => {}
        Some(FileKind::Directory) => {
            return Err(Why::new("Is a directory; standard input needs the name of a file"));
        }
        Some(_) => return Err(Why::new("is a special file; not replaced")),
    }
    let dir = end.dir.inode();
    let beside = operands::free_name(volume, dir)?;
    let file = operands::new_file(volume, dir, &beside, 0o600)?;
    let written = fill(volume, &file).and_then(|()| dress(volume, end.inode.as_ref(), &file));
    let renamed = written
        .and_then(|()| Ok(volume.rename(dir, &beside, dir, &end.name, RenameMode::Replace)?));
    if renamed.is_err() {
        // The first failure is the one to tell.
        let _ = volume.unlink(dir, &beside);
    }
    renamed
}

fn fill(volume: &Volume, inode: &InodeRef) -> Try<()> {
    let file = volume.open_file(inode)?;
    let mut input = std::io::stdin().lock();
    let (mut buffer, mut offset) = (vec![0; READ_BYTES], 0);
    loop {
        let len = match input.read(&mut buffer) {
            Ok(0) => return Ok(file.flush()?),
            Ok(len) => len,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Why::from(error).of("standard input")),
        };
        let mut done = 0;
        while done < len {
            match file.write_at(offset, &buffer[done..len])? {
                0 => return Err(Why::new("wrote nothing")),
                written => {
                    done += written;
                    offset += written as u64;
                }
            }
        }
    }
}

/// Gives the new file the attributes of the old one, or those of any new file.
fn dress(volume: &Volume, old: Option<&InodeRef>, new: &InodeRef) -> Try<()> {
    let Some(old) = old else {
        let mode = Some(0o666 & !operands::umask());
        volume.set_attr(new, &SetAttr { mode, ..SetAttr::default() })?;
        return Ok(());
    };
    let attr = volume.attr(old);
    let owner = SetAttr { uid: Some(attr.uid), gid: Some(attr.gid), ..SetAttr::default() };
    volume.set_attr(new, &owner)?;
    for name in volume.xattr_list(old)? {
        let value = volume.xattr_get(old, &name)?;
        volume.xattr_set(new, &name, &value, XattrMode::Any)?;
    }
    // A change of content takes capabilities and set-id bits away.
    let mode = Some(attr.mode & 0o1777);
    volume.set_attr(new, &SetAttr { mode, ..SetAttr::default() })?;
    Ok(())
}
