//! `cp` from standard input and to standard output.

use std::ffi::OsString;
use std::io::Read;

use uext4::{FileKind, InodeRef, OpenFile, RenameMode, SetAttr, Volume, XattrMode};

use crate::closing;
use crate::failure::{Outcome, Result, Why};
use crate::glob;
use crate::image_path::end_of;
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
        let mut outcome = Outcome::default();
        for path in glob::in_image("cp", names, &mut outcome)? {
            cat::print("cp", &path, &mut output)?;
        }
        output.finish()?;
        return outcome.finish();
    }
    let [_] = names else {
        return Err(Why::new("is one source, of one file").at("cp", "-"));
    };
    let Location::Image(path) = Location::parse(target) else {
        return Err(Why::new(spec::NOT_IN_IMAGE).at("cp", target.display()));
    };
    // Before the image is locked, which the other end of the pipe may be reading:
    // `uext4 cat a.img:/f | sed ... | uext4 cp - a.img:/f`.
    let mut start = Vec::new();
    if path.image.exists() {
        start = first_bytes().map_err(|why| why.at("cp", &path))?;
        closing::wait_for_end_of_pipe(&path.image);
    }
    let mut images = Images::new("cp");
    images.at(&path, |volume| write(no_clobber, volume, &path, &start));
    images.finish()
}

/// What standard input has, up to a megabyte.
fn first_bytes() -> Try<Vec<u8>> {
    let mut start = Vec::new();
    let input = std::io::stdin().lock();
    let read = input.take(READ_BYTES as u64).read_to_end(&mut start);
    read.map_err(|error| Why::from(error).of("standard input"))?;
    Ok(start)
}

/// Writes a file from standard input. It takes the place of an old one when all is there, with that
/// one's owner, mode and attributes: a change of a file by a pipe keeps what `>` of a shell keeps.
fn write(no_clobber: bool, volume: &Volume, path: &ImagePath, start: &[u8]) -> Try<()> {
    let end = end_of(volume, &path.path)?;
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
    let written =
        fill(volume, &file, start).and_then(|()| dress(volume, end.inode.as_ref(), &file));
    let renamed = written
        .and_then(|()| Ok(volume.rename(dir, &beside, dir, &end.name, RenameMode::Replace)?));
    if renamed.is_err() {
        // The first failure is the one to tell.
        let _ = volume.unlink(dir, &beside);
    }
    renamed
}

fn fill(volume: &Volume, inode: &InodeRef, start: &[u8]) -> Try<()> {
    let file = volume.open_file(inode)?;
    append(&file, 0, start)?;
    let mut input = std::io::stdin().lock();
    let (mut buffer, mut offset) = (vec![0; READ_BYTES], start.len() as u64);
    loop {
        let len = match input.read(&mut buffer) {
            Ok(0) => return Ok(file.flush()?),
            Ok(len) => len,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Why::from(error).of("standard input")),
        };
        append(&file, offset, &buffer[..len])?;
        offset += len as u64;
    }
}

fn append(file: &OpenFile, at: u64, bytes: &[u8]) -> Try<()> {
    let mut done = 0;
    while done < bytes.len() {
        match file.write_at(at + done as u64, &bytes[done..])? {
            0 => return Err(Why::new("wrote nothing")),
            written => done += written,
        }
    }
    Ok(())
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
