//! A directory of an image as a tar stream.
//!
//! What: the calling thread walks down the tree and fills buffers of the [`stream`]; another one
//! compresses and writes. Names come in the order of their bytes, so that the same tree gives the
//! same archive.
//!
//! Invariants: the archive stays well formed whatever the image holds: a file that cannot be read
//! is left out, or filled with zeros from where it cannot, and told. A directory is entered once.

mod stream;
pub(crate) mod target;

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::ops::Range;
use std::vec::IntoIter;

use uext4::{Attr, FileKind, Ino, InodeRef, OpenFile, Timestamp, Volume};
use uext4_archive::{Acl, Content, Entry, Format, Kind, TarPath, Time, Writer};
use uext4_archive::{XATTR_ACCESS, XATTR_DEFAULT, Xattr};

use crate::copy::check_name;
use crate::failure::{Outcome, Why};
use crate::image_path::{Listed, names};
use crate::operands::Try;
use crate::progress::Progress;
use crate::spec::ImagePath;
use crate::verbosity::remark;

use super::ownership::Ownership;

/// Bytes of a file that are read at a time.
const READ_BYTES: usize = 1 << 20;
/// A file with more data ranges is written without its holes: readers of our own take no larger
/// map.
const RANGES_MAX: usize = 4 << 20;
/// Longest path that readers of our own take.
const PATH_MAX: usize = 32 << 10;

/// What the user asks for.
pub(crate) struct Settings<'a> {
    /// Which owners entries get.
    pub(crate) ownership: &'a Ownership,
    /// Access times, too.
    pub(crate) access_times: bool,
    /// A directory that is left out.
    pub(crate) left_out: Option<Ino>,
    /// Name each entry.
    pub(crate) is_verbose: bool,
}

/// Where an archive goes.
pub(crate) struct Out<W> {
    /// The stream.
    pub(crate) stream: W,
    /// How it is compressed.
    pub(crate) format: Format,
}

/// Writes what is in `dir` as an archive. An error of the inner kind is one of the stream.
pub(crate) fn pack<W: Write + Send>(
    volume: &Volume,
    (dir, path): (&InodeRef, &ImagePath),
    out: Out<W>,
    settings: &Settings<'_>,
    (progress, outcome): (&mut Progress, &mut Outcome),
) -> Try<std::io::Result<()>> {
    let (filling, writing) = stream::new();
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| writing.run(out.format, out.stream));
        let mut packer = Packer {
            volume,
            path,
            settings,
            progress,
            outcome,
            writer: Writer::new(filling),
            entered: HashSet::new(),
            linked: HashMap::new(),
            buffer: vec![0; READ_BYTES],
        };
        let packed = packer.walk(dir);
        let packed = packed.and_then(|()| Ok(packer.writer.finish().map(drop)?));
        match writing.join() {
            // This side fails as well when the stream does.
            Ok(Err(error)) => Ok(Err(error)),
            Ok(Ok(())) => packed.map(Ok),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// A directory under way.
struct Level {
    path: TarPath,
    names: IntoIter<Listed>,
}

/// The walk.
struct Packer<'a> {
    volume: &'a Volume,
    path: &'a ImagePath,
    settings: &'a Settings<'a>,
    progress: &'a mut Progress,
    outcome: &'a mut Outcome,
    writer: Writer<stream::Filling>,
    entered: HashSet<Ino>,
    /// First names of files with several.
    linked: HashMap<Ino, TarPath>,
    buffer: Vec<u8>,
}

/// What goes wrong at an entry.
enum Trouble {
    /// This entry is left out.
    Entry(Why),
    /// Nothing more can be written.
    Stream(Why),
}

impl<E: Into<Why>> From<E> for Trouble {
    fn from(error: E) -> Self {
        Self::Entry(error.into())
    }
}

/// A step of the stream.
fn written(step: uext4_archive::Result<()>) -> Result<(), Trouble> {
    step.map_err(|error| Trouble::Stream(error.into()))
}

impl Packer<'_> {
    fn walk(&mut self, dir: &InodeRef) -> Try<()> {
        let mut levels = Vec::new();
        let root = TarPath::default();
        levels.extend(self.told(&root, |packer| packer.entry(dir, &root))?);
        while let Some(level) = levels.last_mut() {
            let Some(listed) = level.names.next() else {
                levels.pop();
                continue;
            };
            let dir = level.path.clone();
            let below = self.told(&dir, |_| {
                check_name(&listed.name)?;
                Ok(Some(dir.join(&listed.name)))
            })?;
            let Some(path) = below else { continue };
            levels.extend(self.told(&path, |packer| {
                if path.as_bytes().len() > PATH_MAX {
                    return Err(Why::new("path of more than 32 KiB").into());
                }
                let inode = packer.volume.inode(listed.ino)?;
                packer.entry(&inode, &path)
            })?);
        }
        Ok(())
    }

    /// A step at an entry, whose failure is told.
    fn told<T>(
        &mut self,
        path: &TarPath,
        step: impl FnOnce(&mut Self) -> Result<Option<T>, Trouble>,
    ) -> Try<Option<T>> {
        match step(self) {
            Ok(done) => Ok(done),
            Err(Trouble::Stream(why)) => Err(why),
            Err(Trouble::Entry(why)) => {
                self.note(path, why);
                Ok(None)
            }
        }
    }

    fn note(&mut self, path: &TarPath, why: Why) {
        self.outcome.note(why.at("export", self.path.below(path.as_bytes())));
    }

    /// Writes an entry; of a directory what is in it is next.
    fn entry(&mut self, inode: &InodeRef, path: &TarPath) -> Result<Option<Level>, Trouble> {
        if self.settings.left_out == Some(inode.ino()) {
            return Ok(None);
        }
        let attr = self.volume.attr(inode);
        if attr.kind == FileKind::Directory && !self.entered.insert(attr.ino) {
            return Err(Why::new("a second name of a directory; run fsck").into());
        }
        if let Some(first) = self.linked.get(&attr.ino) {
            let entry = Entry::new(path.clone(), Kind::HardLink(first.clone()));
            self.put(self.dressed(entry, inode, &attr)?)?;
            return Ok(None);
        }
        let kind = match attr.kind {
            FileKind::Regular => {
                self.file(inode, &attr, path)?;
                self.remember(&attr, path);
                return Ok(None);
            }
            FileKind::Directory => Kind::Directory,
            FileKind::Symlink => Kind::Symlink(self.volume.read_link(inode)?),
            FileKind::CharDevice => Kind::CharDevice(attr.rdev.major, attr.rdev.minor),
            FileKind::BlockDevice => Kind::BlockDevice(attr.rdev.major, attr.rdev.minor),
            FileKind::Fifo => Kind::Fifo,
            FileKind::Socket => {
                let place = self.path.below(path.as_bytes());
                remark(&format!("export: {place}: is a socket, which tar has not; left out"));
                return Ok(None);
            }
        };
        // What is in a directory is read before it is named.
        let mut listed = match kind {
            Kind::Directory => names(self.volume, inode)?,
            _ => Vec::new(),
        };
        self.put(self.dressed(Entry::new(path.clone(), kind), inode, &attr)?)?;
        self.remember(&attr, path);
        if attr.kind != FileKind::Directory {
            return Ok(None);
        }
        listed.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(Some(Level { path: path.clone(), names: listed.into_iter() }))
    }

    fn remember(&mut self, attr: &Attr, path: &TarPath) {
        if attr.kind != FileKind::Directory && attr.links > 1 {
            self.linked.insert(attr.ino, path.clone());
        }
    }

    fn put(&mut self, entry: Entry) -> Result<(), Trouble> {
        if self.settings.is_verbose {
            // Standard output may be the archive.
            crate::failure::say(&format!("export: {}", entry.path));
        }
        self.progress.add_file();
        written(self.writer.entry(&entry))
    }

    /// An entry with the attributes of its inode.
    fn dressed(&self, entry: Entry, inode: &InodeRef, attr: &Attr) -> Try<Entry> {
        let (uid, uname) = self.settings.ownership.user_of_image(attr.uid);
        let (gid, gname) = self.settings.ownership.group_of_image(attr.gid);
        let mut entry = Entry {
            mode: attr.mode,
            uid,
            gid,
            uname: uname.to_vec(),
            gname: gname.to_vec(),
            mtime: time(attr.mtime),
            atime: self.settings.access_times.then(|| time(attr.atime)),
            ..entry
        };
        if matches!(entry.kind, Kind::HardLink(_)) {
            return Ok(entry);
        }
        for name in self.volume.xattr_list(inode)? {
            let value = self.volume.xattr_get(inode, &name)?;
            let value = self.settings.ownership.value(&name, value);
            match &name[..] {
                XATTR_ACCESS => entry.acl_access = Some(acl(&value)?),
                XATTR_DEFAULT => entry.acl_default = Some(acl(&value)?),
                _ => entry.xattrs.push(Xattr { name, value }),
            }
        }
        entry.xattrs.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(entry)
    }

    /// Writes a regular file.
    fn file(&mut self, inode: &InodeRef, attr: &Attr, path: &TarPath) -> Result<(), Trouble> {
        let file = self.volume.open_file(inode)?;
        let content = match content(&file, attr, self.volume.layout().block_size)? {
            Some(content) => content,
            None => {
                let place = self.path.below(path.as_bytes());
                remark(&format!("export: {place}: has too many holes for an archive; filled"));
                Content::whole(attr.size)
            }
        };
        let first = content.ranges().first().cloned().unwrap_or(0..0);
        let entry = Entry::new(path.clone(), Kind::File(content.clone()));
        let entry = self.dressed(entry, inode, attr)?;
        // A file that cannot be read at all is left out whole.
        let mut ready = self.read(&file, first)?;
        self.put(entry)?;
        for range in content.ranges() {
            let mut at = range.start;
            while at < range.end {
                let count = match ready {
                    0 => match self.read(&file, at..range.end) {
                        Ok(count) if count > 0 => count,
                        Ok(_) => return self.fill(path, content_left(&content, at), None),
                        Err(why) => {
                            return self.fill(path, content_left(&content, at), Some(why));
                        }
                    },
                    ready => ready,
                };
                ready = 0;
                written(self.writer.data(&self.buffer[..count]))?;
                self.progress.add_bytes(count as u64);
                at += count as u64;
            }
        }
        Ok(())
    }

    fn read(&mut self, file: &OpenFile, range: Range<u64>) -> Try<usize> {
        let left = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        let want = self.buffer.len().min(left);
        Ok(file.read_at(range.start, &mut self.buffer[..want])?)
    }

    /// Fills what is left of a file, so that what follows can be found.
    fn fill(&mut self, path: &TarPath, left: u64, why: Option<Why>) -> Result<(), Trouble> {
        let why = why.unwrap_or_else(|| Why::new("is shorter than its size"));
        self.note(path, why.about("filled with zeros from where it cannot be read"));
        self.buffer.fill(0);
        let mut left = left;
        while left > 0 {
            let count = self.buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            written(self.writer.data(&self.buffer[..count]))?;
            left -= count as u64;
        }
        Ok(())
    }
}

/// Bytes of data at and behind an offset.
fn content_left(content: &Content, at: u64) -> u64 {
    content.ranges().iter().map(|range| range.end.saturating_sub(range.start.max(at))).sum()
}

/// Length and data of a file; `None` if it has too many ranges. The number of its blocks says
/// nothing of holes: blocks of attributes and those behind its end are among them.
fn content(file: &OpenFile, attr: &Attr, block_size: u32) -> Try<Option<Content>> {
    if attr.blocks_512 > 0 && attr.size <= u64::from(block_size) {
        return Ok(Some(Content::whole(attr.size)));
    }
    let (mut ranges, mut at) = (Vec::new(), 0);
    while at < attr.size {
        if ranges.len() == RANGES_MAX {
            return Ok(None);
        }
        let start = match file.seek_data(at) {
            Err(error) if *error.kind() == uext4::ErrorKind::NoData => break,
            start => start?,
        };
        at = file.seek_hole(start)?.min(attr.size);
        ranges.push(start..at);
    }
    let content = Content::sparse(attr.size, ranges);
    Ok(Some(content.unwrap_or_else(|| Content::whole(attr.size))))
}

fn acl(value: &[u8]) -> Try<Acl> {
    Acl::from_xattr(value).ok_or_else(|| Why::new("has an ACL that is none"))
}

fn time(time: Timestamp) -> Time {
    Time { secs: time.secs, nanos: time.nanos }
}
