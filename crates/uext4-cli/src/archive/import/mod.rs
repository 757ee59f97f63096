//! Unpacking a tar stream into an image.
//!
//! What: the calling thread reads the stream and makes directories, links, special files and large
//! files in order ([`Unpacker`]); small files are made by threads of a [`Queue`].
//! [`places`] finds the directory of an entry, [`maker`] makes and replaces files.
//!
//! Invariants: what an entry depends on is there before the entry is done: a name that the queue
//! still has is waited for before it is named again, as a second entry, as the target of a hard
//! link or as a directory. A name is one of a directory that was found, not a path as the archive
//! spells it; where several spellings are one name, nothing is queued. Of several entries of one
//! name the last one counts. The times of directories are set last of all.

mod late;
mod maker;
mod places;
mod queued;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use uext4::{Device, FileKind, InodeRef, Owner, Timestamp, Volume};
use uext4_archive::{Acl, Content, Entry, Kind, Member, Reader, TarPath, Time, XATTR_ACCESS};
use uext4_archive::{XATTR_DEFAULT, Xattr as TarXattr};

use crate::copy::{Xattr, mode_without_list};
use crate::failure::{Outcome, Why};
use crate::operands::Try;
use crate::output::Told;
use crate::progress::Progress;
use crate::queue::Queue;
use crate::spec::ImagePath;

use super::ownership::Ownership;
use late::LateTimes;
use maker::{Attributes, Maker};
use places::{Dir, Found, Missing, Places};
use queued::{LIMITS, Queued, Small};

/// Files up to this length are made by the threads of the queue.
const SMALL_BYTES: u64 = 256 << 10;
/// Bytes of a large file that are written at a time.
const COPY_BYTES: usize = 1 << 20;
/// Names that the queue has or had are forgotten at so many.
const NAMES_MAX: usize = 32 << 10;

/// Tables of users are read again at most so often, for ACLs with names that are not known.
const TABLES_MAX: u32 = 100;

/// What the user asks for.
pub(crate) struct Settings<'a> {
    /// Which owners files get.
    pub(crate) ownership: &'a Ownership,
    /// Entries with absolute names are taken, below the target.
    pub(crate) absolute_names: bool,
    /// Symbolic links of the image may be parents of entries.
    pub(crate) follow_links: bool,
    /// Name each entry.
    pub(crate) told: Told,
    /// Threads that make small files.
    pub(crate) threads: usize,
}

/// The directory of an image that a stream is unpacked into.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    /// The image.
    pub(crate) volume: &'a Volume,
    /// The directory.
    pub(crate) dir: &'a InodeRef,
    /// Its path.
    pub(crate) path: &'a ImagePath,
}

/// What went wrong, told by any thread.
struct Failures<'a> {
    path: &'a ImagePath,
    outcome: Mutex<Outcome>,
    /// Nothing more can be written.
    is_final: AtomicBool,
}

impl Failures<'_> {
    fn note(&self, path: &TarPath, why: Why) {
        let is_final = why.is_final();
        // The reason that ends all is told once.
        if self.is_final.fetch_or(is_final, Ordering::AcqRel) {
            return;
        }
        let place = self.path.below(path.as_bytes());
        let mut outcome = self.outcome.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        outcome.note(why.at("import", place));
    }

    fn is_final(&self) -> bool {
        self.is_final.load(Ordering::Acquire)
    }
}

/// Unpacks a stream. An error means that the rest of it is lost; what fails alone is told.
pub(crate) fn unpack(
    place: Place<'_>,
    reader: Reader,
    settings: &Settings<'_>,
    (progress, outcome): (&mut Progress, &mut Outcome),
) -> Try<()> {
    let failures = Failures {
        path: place.path,
        outcome: Mutex::new(std::mem::take(outcome)),
        is_final: AtomicBool::new(false),
    };
    let (maker, queue) = (Maker::new(place.volume), Queue::new(LIMITS));
    let read = std::thread::scope(|scope| {
        for _ in 0..settings.threads.max(1) {
            scope.spawn(|| {
                queue.work(|small| {
                    if !failures.is_final()
                        && let Err(why) = maker.small(&small)
                    {
                        failures.note(&small.path, why);
                    }
                })
            });
        }
        // The threads end with the queue, also when this one panics.
        let _closing = queue.closing();
        let mut unpacker = Unpacker {
            reader,
            settings,
            progress,
            failures: &failures,
            maker: &maker,
            queue: &queue,
            queued: Queued::default(),
            places: Places::new(place, settings.follow_links),
            late: LateTimes::default(),
            names: None,
            tables_left: TABLES_MAX,
            buffer: vec![0; COPY_BYTES],
        };
        let read = unpacker.run();
        unpacker.settle();
        unpacker.late.set(place.volume, |why| {
            failures.note(&TarPath::default(), why);
            failures.is_final()
        });
        read
    });
    *outcome = failures.outcome.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    read
}

/// The thread that reads.
struct Unpacker<'a> {
    reader: Reader,
    settings: &'a Settings<'a>,
    progress: &'a mut Progress,
    failures: &'a Failures<'a>,
    maker: &'a Maker<'a>,
    queue: &'a Queue<Small>,
    /// Names that may be in the queue.
    queued: Queued,
    places: Places<'a>,
    late: LateTimes,
    /// For ACLs with names that were not known at first.
    names: Option<Ownership>,
    /// How often the tables of the image may be read again.
    tables_left: u32,
    buffer: Vec<u8>,
}

impl Unpacker<'_> {
    fn run(&mut self) -> Try<()> {
        while !self.failures.is_final() {
            match self.reader.next_member()? {
                None => break,
                Some(Member::Refused(refused)) => {
                    let why = Why::new(refused.why).of(crate::spec::show(&refused.name));
                    self.failures.note(&TarPath::default(), why);
                }
                Some(Member::Entry(entry)) => match self.entry(&entry) {
                    Ok(()) => {}
                    Err(Trouble::Entry(why)) => self.failures.note(&entry.path, why),
                    Err(Trouble::Stream(why)) => return Err(why),
                },
            }
        }
        Ok(())
    }

    /// Waits until the queue is empty.
    fn settle(&mut self) {
        self.queue.wait();
        self.queued.clear();
    }

    fn settle_for(&mut self, dir: &Dir, name: &[u8]) {
        if self.queued.has(dir.inode.ino(), name) {
            self.settle();
        }
    }

    /// If a directory stands at a name that something else gets: it may be in use by what is in
    /// the queue, and known by several paths.
    fn settle_for_dir(&mut self, dir: &Dir, name: &[u8]) -> Try<()> {
        // Its own name, `.` in it, and `..` of each directory in it; 1 is more than can be counted.
        let has_dirs = self.maker.volume().attr(&dir.inode).links != 2;
        if has_dirs
            && let Some(there) = self.maker.existing(dir, name)?
            && there.kind() == FileKind::Directory
        {
            self.settle();
            self.places.forget();
        }
        Ok(())
    }

    fn entry(&mut self, entry: &Entry) -> Result<(), Trouble> {
        if entry.is_absolute && !self.settings.absolute_names {
            let why = "has an absolute name; refused without --absolute-names";
            return Err(Why::new(why).into());
        }
        self.settings.told.say(&entry.path.to_string());
        self.progress.add_file();
        let Some((parent, name)) = entry.path.split() else {
            let (root, attributes) = (self.places.root()?, self.attributes(entry));
            return Ok(self.directory(&root, &attributes)?);
        };
        let parent = self.dir(parent, Missing::Made)?;
        self.settle_for(&parent, name);
        let attributes = self.attributes(entry);
        if entry.kind == Kind::Directory {
            let mut dir = self.child_dir(&parent, name, entry, &attributes)?;
            self.directory(&dir, &attributes)?;
            dir.gives_acl |= attributes.has_default_acl();
            self.places.keep(entry.path.as_bytes(), dir);
            return Ok(());
        }
        self.settle_for_dir(&parent, name)?;
        self.file(parent, name, entry, attributes)
    }

    /// Makes what is no directory.
    fn file(
        &mut self,
        parent: Dir,
        name: &[u8],
        entry: &Entry,
        attributes: Attributes,
    ) -> Result<(), Trouble> {
        match &entry.kind {
            Kind::Directory => {}
            Kind::File(content) if content.len() <= SMALL_BYTES && !content.is_sparse() => {
                self.small(parent, name, entry, attributes, content.len())?;
            }
            Kind::File(content) => self.large(&parent, name, content, &attributes)?,
            Kind::Symlink(target) => self.maker.symlink(&parent, name, target, &attributes)?,
            Kind::HardLink(target) => self.hard_link(&parent, name, target)?,
            Kind::CharDevice(major, minor) => {
                let device = Device { major: *major, minor: *minor };
                self.maker.special(&parent, name, FileKind::CharDevice, device, &attributes)?;
            }
            Kind::BlockDevice(major, minor) => {
                let device = Device { major: *major, minor: *minor };
                self.maker.special(&parent, name, FileKind::BlockDevice, device, &attributes)?;
            }
            Kind::Fifo => {
                let device = Device::default();
                self.maker.special(&parent, name, FileKind::Fifo, device, &attributes)?;
            }
        }
        Ok(())
    }

    /// The directory that is called so in the archive.
    fn dir(&mut self, path: &[u8], missing: Missing) -> Try<Dir> {
        loop {
            match self.places.dir(path, missing, &self.queued)? {
                Some(dir) => return Ok(dir),
                None => self.settle(),
            }
        }
    }

    /// The attribute of an ACL.
    fn acl(&mut self, acl: &Acl) -> Try<Vec<u8>> {
        let ownership = self.settings.ownership;
        let first = ownership.acl(acl);
        if first.is_ok() {
            return first;
        }
        // The archive may have brought the tables of the image itself.
        let found = self.names.as_ref().and_then(|names| names.acl(acl).ok());
        if let Some(value) = found {
            return Ok(value);
        }
        self.tables_left = self.tables_left.checked_sub(1).ok_or_else(|| first.unwrap_err())?;
        self.settle();
        let names = Ownership::of_names(self.maker.volume(), ownership.rules())?;
        self.names.insert(names).acl(acl)
    }

    fn attributes(&mut self, entry: &Entry) -> Attributes {
        let ownership = self.settings.ownership;
        let own = |it: &TarXattr| Xattr {
            value: ownership.value(&it.name, it.value.clone()),
            name: it.name.clone(),
        };
        let mut xattrs: Vec<Xattr> = entry.xattrs.iter().map(own).collect();
        let acls = [(XATTR_ACCESS, &entry.acl_access), (XATTR_DEFAULT, &entry.acl_default)];
        let mut mode = entry.mode;
        for (name, acl) in acls {
            let Some(acl) = acl else { continue };
            match self.acl(acl) {
                Ok(value) => xattrs.push(Xattr { name: name.to_vec(), value }),
                Err(why) => {
                    self.failures.note(&entry.path, why);
                    if name == XATTR_ACCESS {
                        mode = mode_without_list(mode, acl);
                    }
                }
            }
        }
        let mtime = timestamp(entry.mtime);
        Attributes {
            mode,
            owner: Owner {
                uid: ownership.user(&entry.uname, entry.uid),
                gid: ownership.group(&entry.gname, entry.gid),
            },
            mtime,
            atime: entry.atime.map_or(mtime, timestamp),
            xattrs,
        }
    }

    /// A directory that is there, or a new one, also in place of something else.
    fn child_dir(
        &mut self,
        parent: &Dir,
        name: &[u8],
        entry: &Entry,
        attributes: &Attributes,
    ) -> Try<Dir> {
        loop {
            match self.places.existing(parent, name, entry.path.as_bytes(), &self.queued)? {
                Found::Dir(dir) => return Ok(dir),
                Found::No => return self.maker.directory(parent, name, attributes),
                Found::NotYet => self.settle(),
            }
        }
    }

    /// Gives a directory its attributes.
    fn directory(&mut self, dir: &Dir, attributes: &Attributes) -> Try<()> {
        if attributes.has_default_acl() {
            // Files of the queue know nothing of it.
            self.settle();
            self.places.forget();
        }
        let generation = self.maker.dress_directory(dir, attributes)?;
        self.late.keep(dir.inode.ino(), generation, attributes);
        Ok(())
    }

    /// Reads a small file and hands it to the queue, but in a directory that folds case: what
    /// other entries call it there the queue does not know.
    fn small(
        &mut self,
        dir: Dir,
        name: &[u8],
        entry: &Entry,
        attributes: Attributes,
        len: u64,
    ) -> Result<(), Trouble> {
        let mut data = vec![0; usize::try_from(len).unwrap_or(0)];
        let mut done = 0;
        while done < data.len() {
            match self.reader.read(&mut data[done..]).map_err(Trouble::stream)? {
                Some((_, count)) => done += count,
                None => return Err(Why::new("has less content than its entry says").into()),
            }
        }
        self.progress.add_bytes(len);
        let (name, path) = (name.to_vec(), entry.path.clone());
        let small = Small { dir, name, path, data, attributes };
        if small.dir.folds_case {
            return Ok(self.maker.small(&small)?);
        }
        if self.queued.len() >= NAMES_MAX {
            self.settle();
        }
        self.queued.insert(small.dir.inode.ino(), &small.name);
        let bytes = small.bytes();
        if !self.queue.push(small, bytes) {
            return Err(Trouble::Stream(Why::new("a thread that makes files has ended")));
        }
        Ok(())
    }

    /// Copies a file that is large or has holes.
    fn large(
        &mut self,
        dir: &Dir,
        name: &[u8],
        content: &Content,
        attributes: &Attributes,
    ) -> Result<(), Trouble> {
        let file = self.maker.file(dir, name, attributes)?;
        let copied = loop {
            match self.reader.read(&mut self.buffer) {
                Ok(None) => break Ok(()),
                Ok(Some((at, count))) => {
                    if let Err(why) = maker::write(&file, at, &self.buffer[..count]) {
                        break Err(why.into());
                    }
                    self.progress.add_bytes(count as u64);
                }
                Err(error) => break Err(Trouble::stream(error)),
            }
        };
        let copied = copied
            .and_then(|()| Ok(self.maker.finish(dir, &file, Some(content.len()), attributes)?));
        if copied.is_err() {
            // Half a file would look like a whole one. The first failure is the one to tell.
            let _ = self.maker.remove(dir, name);
        }
        copied
    }

    fn hard_link(&mut self, dir: &Dir, name: &[u8], target: &TarPath) -> Try<()> {
        let (parent, first) = target.split().ok_or_else(|| Why::new("links to a directory"))?;
        let found = self.dir(parent, Missing::Refused).and_then(|parent| {
            self.settle_for(&parent, first);
            self.maker.existing(&parent, first)
        });
        match found {
            Ok(Some(inode)) => self.maker.link(dir, name, &inode),
            Ok(None) => Err(Why::new(format!("links to '{target}', which is not there"))),
            Err(why) => Err(Why::new(format!("links to '{target}': {why}"))),
        }
    }
}

/// What goes wrong at an entry.
enum Trouble {
    /// This entry is lost.
    Entry(Why),
    /// All that follows is lost.
    Stream(Why),
}

impl Trouble {
    fn stream(error: uext4_archive::Error) -> Self {
        Self::Stream(error.into())
    }
}

impl From<Why> for Trouble {
    fn from(why: Why) -> Self {
        Self::Entry(why)
    }
}

fn timestamp(time: Time) -> Timestamp {
    Timestamp { secs: time.secs, nanos: time.nanos }
}
