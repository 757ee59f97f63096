//! Whether an image is what a load should have made of it.

use std::num::NonZero;
use std::path::Path;

use uext4::{ErrorKind, FileKind, InodeRef, Volume};
use uext4_device::{Access, FileDevice};

use crate::append::neighbour_distance_kib;
use crate::command;
use crate::error::{Doing, Error, Result};
use crate::library;
use crate::load::{SmallFiles, Start, Work};
use crate::target::{self, Target};
use crate::tree::{self, Body, Content, Tree};
use crate::worker::dir_name;

const READ_BYTES: usize = 1 << 20;

/// What an image must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// The tree, to the byte.
    Tree,
    /// The tree, but for the times of its entries.
    UntimedTree,
    /// No tree.
    NoTree,
    /// The small files in their directories, and so many of each directory that are there.
    Files(SmallFiles),
}

impl Expected {
    /// What a load leaves behind.
    pub(crate) fn after(work: Work, target: Target, files: SmallFiles) -> Self {
        match work {
            // bindfs 1.14 does not set a modification time alone, as tar wants it.
            Work::Unpack if target == Target::Bindfs => Self::UntimedTree,
            Work::Unpack | Work::ReadTree | Work::Build => Self::Tree,
            Work::RemoveTree => Self::NoTree,
            Work::Create | Work::Stat => Self::Files(files),
            Work::Unlink => Self::Files(SmallFiles { per_dir: 0, ..files }),
        }
    }

    /// What a load finds.
    pub(crate) fn before(start: Start, files: SmallFiles) -> Self {
        match start {
            Start::Nothing | Start::Empty => Self::NoTree,
            Start::Tree => Self::Tree,
            Start::Files | Start::SharedFiles => Self::Files(files),
        }
    }
}

/// Checks an image that nobody has open, and that it holds what it must. Of small files it tells
/// how far apart they lie: the mean distance in a directory, in KiB.
///
/// # Errors
/// Says what is wrong with it.
pub(crate) fn image(image: &Path, expected: Expected, tree: &Tree) -> Result<Option<f64>> {
    let volume = clean(image)?;
    let found = content(&volume, expected, tree).and_then(|()| match expected {
        Expected::Files(files) => {
            let dirs: Vec<String> = (0..files.dirs).map(dir_name).collect();
            neighbour_distance_kib(&volume, &dirs)
        }
        _ => Ok(None),
    });
    volume.close()?;
    found
}

/// Opens an image that nobody has open, to be read, when both checkers have found it clean.
///
/// # Errors
/// Says what is wrong with it.
pub(crate) fn clean(image: &Path) -> Result<Volume> {
    if command::find("e2fsck").is_some() {
        let (code, output) = command::status("e2fsck", &["-fn".as_ref(), image.as_os_str()])?;
        if code != Some(0) {
            let first = output.lines().find(|line| !is_header(line)).unwrap_or("");
            return Err(Error::new(format!("e2fsck -fn: status {code:?}: {first}")));
        }
    }
    let device = FileDevice::open(image, Access::ReadOnly, 0).doing("opening the image")?;
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let options = uext4_fsck::Options { threads, ..uext4_fsck::Options::default() };
    let report = uext4_fsck::check(&device, &options, &mut ()).doing("uext4 fsck")?;
    if !report.is_clean() {
        let first = report.findings.first().map(ToString::to_string).unwrap_or_default();
        return Err(Error::new(format!("uext4 fsck: {} errors: {first}", report.errors)));
    }
    drop(device);
    let volume = target::open(image, true, "")?;
    let recovery = volume.recovery();
    if recovery != uext4::RecoveryReport::default() {
        return Err(Error::new(format!("the image needed recovery: {recovery:?}")));
    }
    Ok(volume)
}

fn is_header(line: &str) -> bool {
    line.starts_with("Pass 1") || line.starts_with("e2fsck ")
}

fn content(volume: &Volume, expected: Expected, tree: &Tree) -> Result<()> {
    let root = volume.root()?;
    match expected {
        Expected::NoTree => match volume.lookup(&root, tree::TOP.as_bytes()) {
            Err(error) if *error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error.into()),
            Ok(_) => Err(Error::new("the tree is still there")),
        },
        Expected::Files(files) => (0..files.dirs).try_for_each(|number| {
            let dir = volume.lookup(&root, dir_name(number).as_bytes())?;
            let found = library::children(volume, &dir)?;
            for (name, _) in &found {
                library::stat_small(volume, &dir, name)?;
            }
            if found.len() == files.per_dir as usize {
                return Ok(());
            }
            Err(Error::new(format!("{} small files, not {}", found.len(), files.per_dir)))
        }),
        Expected::Tree => whole_tree(volume, &root, tree, true),
        Expected::UntimedTree => whole_tree(volume, &root, tree, false),
    }
}

fn whole_tree(volume: &Volume, root: &InodeRef, tree: &Tree, timed: bool) -> Result<()> {
    let mut found = tree::TOP.len();
    let (mut want, mut have) = (vec![0; READ_BYTES], vec![0; READ_BYTES]);
    // The directories on the way to the entry: entries come depth first.
    let mut path: Vec<(&str, InodeRef)> = Vec::new();
    for entry in &tree.entries {
        let differs = |what: &str| Err(Error::new(format!("{}: {what} differs", entry.path)));
        let (parent, name) = entry.path.rsplit_once('/').unwrap_or(("", &entry.path));
        while path.last().is_some_and(|(dir, _)| *dir != parent) {
            path.pop();
        }
        let dir = path.last().map_or(root, |(_, dir)| dir);
        let inode = volume.lookup(dir, name.as_bytes())?;
        let attr = volume.attr(&inode);
        found += entry.path.len();
        match (&entry.body, inode.kind()) {
            (Body::Directory, FileKind::Directory) => path.push((&entry.path, inode)),
            (Body::Link(target), FileKind::Symlink) => {
                if volume.read_link(&inode)? != target.as_bytes() {
                    return differs("target");
                }
                continue;
            }
            (Body::File(content), FileKind::Regular) => {
                if attr.size != content.len
                    || !same(volume, &inode, *content, &mut want, &mut have)?
                {
                    return differs("content");
                }
            }
            _ => return differs("kind"),
        }
        if attr.mode != entry.mode {
            return differs("mode");
        }
        if timed && u64::try_from(attr.mtime.secs) != Ok(entry.mtime) {
            return differs("modification time");
        }
    }
    // Nothing but the tree: lengths of all paths tell an entry too many.
    let there = tree::TOP.len() + lengths(volume, root, 0)?;
    if found == there { Ok(()) } else { Err(Error::new("entries that are not of the tree")) }
}

fn same(
    volume: &Volume,
    inode: &InodeRef,
    content: Content,
    want: &mut [u8],
    have: &mut [u8],
) -> Result<bool> {
    let file = volume.open_file(inode)?;
    let mut offset = 0;
    loop {
        let count = file.read_at(offset, have)?;
        if count == 0 {
            return Ok(offset == content.len);
        }
        content.fill(offset, &mut want[..count]);
        if want[..count] != have[..count] {
            return Ok(false);
        }
        offset += count as u64;
    }
}

/// Bytes of the paths of everything below a directory whose own path has `prefix` bytes.
fn lengths(volume: &Volume, dir: &InodeRef, prefix: usize) -> Result<usize> {
    let mut sum = 0;
    for (name, inode) in library::children(volume, dir)? {
        if prefix == 0 && name == b"lost+found" {
            continue;
        }
        let len = if prefix == 0 { name.len() } else { prefix + 1 + name.len() };
        sum += len;
        if inode.kind() == FileKind::Directory {
            sum += lengths(volume, &inode, len)?;
        }
    }
    Ok(sum)
}
