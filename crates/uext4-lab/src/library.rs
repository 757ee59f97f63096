//! The loads on a [`Volume`] of this process.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::thread;

use uext4::{Device, FileKind, InodeRef, NewInode, OpenFile, SetAttr, SetTime, Timestamp, Volume};

use crate::archive::{MemberKind, Reader};
use crate::error::{Doing, Error, Result};
use crate::load::{SMALL_FILE_BYTES, SmallFiles};
use crate::machine::caller;
use crate::worker::{dir_name, file_name};

const COPY_BYTES: usize = 1 << 20;
/// As cat(1) reads.
const READ_BYTES: usize = 128 << 10;

/// Unpacks an archive into the root, as `tar -xp` does: modes, owners and times are kept.
pub(crate) fn unpack(volume: &Volume, archive: &Path) -> Result<()> {
    let mut reader = Reader::open(archive).doing("opening the archive")?;
    let mut dirs = HashMap::from([(String::new(), volume.root()?)]);
    // Unpacking changes the times of directories: theirs are set at the end.
    let mut late = Vec::new();
    let mut buf = vec![0; COPY_BYTES];
    while let Some(member) = reader.next().doing("reading the archive")? {
        let (parent, name) = member.path.rsplit_once('/').unwrap_or(("", &member.path));
        let Some(dir) = dirs.get(parent) else {
            return Err(Error::new(format!("archive: {} comes before its parent", member.path)));
        };
        match member.kind {
            MemberKind::Directory => {
                let made = create(volume, dir, name.as_bytes(), FileKind::Directory, member.mode)?;
                late.push((made.clone(), member.mtime));
                dirs.insert(member.path, made);
            }
            MemberKind::File => {
                let made = create(volume, dir, name.as_bytes(), FileKind::Regular, member.mode)?;
                let file = volume.open_file(&made)?;
                copy(|buf| reader.read(buf), &file, &mut buf)?;
                set_mtime(volume, &made, member.mtime)?;
            }
            MemberKind::Link(target) => {
                let made = volume.symlink(dir, name.as_bytes(), target.as_bytes(), caller())?;
                set_mtime(volume, &made, member.mtime)?;
            }
        }
    }
    for (dir, mtime) in late {
        set_mtime(volume, &dir, mtime)?;
    }
    Ok(())
}

fn create(
    volume: &Volume,
    dir: &InodeRef,
    name: &[u8],
    kind: FileKind,
    mode: u16,
) -> Result<InodeRef> {
    let new = NewInode { kind, mode, owner: caller(), rdev: Device::default() };
    Ok(volume.create(dir, name, &new)?)
}

fn copy(
    mut read: impl FnMut(&mut [u8]) -> io::Result<usize>,
    to: &OpenFile,
    buf: &mut [u8],
) -> Result<()> {
    let mut offset = 0;
    loop {
        let count = read(buf).doing("reading what is imported")?;
        if count == 0 {
            return Ok(());
        }
        write_all(to, offset, &buf[..count])?;
        offset += count as u64;
    }
}

fn write_all(file: &OpenFile, offset: u64, data: &[u8]) -> Result<()> {
    let written = file.write_at(offset, data)?;
    if written == data.len() { Ok(()) } else { Err(Error::new("uext4: short write")) }
}

fn set_mtime(volume: &Volume, inode: &InodeRef, secs: u64) -> Result<()> {
    let time = Timestamp { secs: i64::try_from(secs).unwrap_or(0), nanos: 0 };
    let change = SetAttr { mtime: Some(SetTime::At(time)), ..SetAttr::default() };
    volume.set_attr(inode, &change)?;
    Ok(())
}

/// Names of a directory without `.` and `..`, with the inodes they lead to.
pub(crate) fn children(volume: &Volume, dir: &InodeRef) -> Result<Vec<(Vec<u8>, InodeRef)>> {
    let mut names = Vec::new();
    volume.read_dir(dir, 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            names.push(entry.name.to_vec());
        }
        true
    })?;
    names
        .into_iter()
        .map(|name| {
            let inode = volume.lookup(dir, &name)?;
            Ok((name, inode))
        })
        .collect()
}

/// Reads every file below the root; returns how many bytes.
pub(crate) fn read_tree(volume: &Volume) -> Result<u64> {
    let mut buf = vec![0; READ_BYTES];
    let mut bytes = 0;
    let mut dirs = vec![volume.root()?];
    while let Some(dir) = dirs.pop() {
        for (_, inode) in children(volume, &dir)? {
            match inode.kind() {
                FileKind::Directory => dirs.push(inode),
                FileKind::Regular => bytes += read_file(&volume.open_file(&inode)?, &mut buf)?,
                _ => {}
            }
        }
    }
    Ok(bytes)
}

fn read_file(file: &OpenFile, buf: &mut [u8]) -> Result<u64> {
    let mut offset = 0;
    loop {
        let count = file.read_at(offset, buf)?;
        if count == 0 {
            return Ok(offset);
        }
        offset += count as u64;
    }
}

/// Removes `name` from `dir` and everything below it, as `rm -r`.
pub(crate) fn remove_tree(volume: &Volume, dir: &InodeRef, name: &[u8]) -> Result<()> {
    let top = volume.lookup(dir, name)?;
    for (name, inode) in children(volume, &top)? {
        if inode.kind() == FileKind::Directory {
            drop(inode);
            remove_tree(volume, &top, &name)?;
        } else {
            drop(inode);
            volume.unlink(&top, &name)?;
        }
    }
    drop(top);
    Ok(volume.rmdir(dir, name)?)
}

/// Makes the directories of the small files.
pub(crate) fn make_dirs(volume: &Volume, files: SmallFiles) -> Result<()> {
    let root = volume.root()?;
    for number in 0..files.dirs {
        create(volume, &root, dir_name(number).as_bytes(), FileKind::Directory, 0o755)?;
    }
    Ok(())
}

/// Does something with each small file, divided among `threads` threads.
pub(crate) fn for_small_files(
    volume: &Volume,
    threads: u32,
    files: SmallFiles,
    each: impl Fn(&Volume, &InodeRef, &[u8]) -> Result<()> + Sync,
) -> Result<()> {
    let work = |thread: u32| -> Result<()> {
        let root = volume.root()?;
        for (number, part) in files.part(thread, threads) {
            let dir = volume.lookup(&root, dir_name(number).as_bytes())?;
            for file in part {
                each(volume, &dir, file_name(file).as_bytes())?;
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let work = &work;
        // By this name it is known who makes the load.
        let start = |thread: u32| {
            let named = thread::Builder::new().name(format!("load-{thread}"));
            named.spawn_scoped(scope, move || work(thread)).doing("starting a thread")
        };
        let running: Vec<_> = (0..threads).map(start).collect();
        running.into_iter().try_for_each(|thread| {
            thread?.join().map_err(|_| Error::new("a thread of the load panicked"))?
        })
    })
}

/// Creates a small file and writes it.
pub(crate) fn create_small(volume: &Volume, dir: &InodeRef, name: &[u8]) -> Result<()> {
    let made = create(volume, dir, name, FileKind::Regular, 0o644)?;
    let file = volume.open_file(&made)?;
    write_all(&file, 0, &[0x5a; SMALL_FILE_BYTES])?;
    Ok(file.flush()?)
}

/// Looks a small file up and reads its attributes.
pub(crate) fn stat_small(volume: &Volume, dir: &InodeRef, name: &[u8]) -> Result<()> {
    let attr = volume.attr(&volume.lookup(dir, name)?);
    if attr.size == SMALL_FILE_BYTES as u64 {
        return Ok(());
    }
    Err(Error::new(format!("a small file has {} bytes", attr.size)))
}
