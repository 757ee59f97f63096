//! What answers the requests of a mount, on whatever thread.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Errno, FileAttr, FileType, Generation, INodeNo, Notifier, ReplyAttr, ReplyDirectoryPlus,
    ReplyEntry,
};
use uext4::{ErrorKind, InodeRef, Volume};
use uext4_device::TrimRange;

use crate::buffers::Buffers;
use crate::convert;
use crate::failure::Answer;
use crate::file::FileTable;
use crate::leaving::Leaving;
use crate::listing;
use crate::node::{NodeTable, node_of};
use crate::ops::{Found, Ops};
use crate::options::FuseOptions;
use crate::seek::Seeker;
use crate::stats;

/// State of a mount, shared by all threads that serve it.
pub(crate) struct Server {
    /// What requests do.
    pub(crate) ops: Ops,
    /// Where reads put file data.
    pub(crate) buffers: Buffers,
    /// The thread that writes back before it answers.
    pub(crate) seeker: Arc<Seeker>,
    /// Access control lists are enforced.
    pub(crate) acl: bool,
    /// The kernel may hold dirty pages.
    pub(crate) writeback_cache: bool,
    /// How long the kernel may keep attributes.
    pub(crate) attr_timeout: Duration,
    /// How long the kernel may keep names.
    pub(crate) entry_timeout: Duration,
    /// How long the kernel may keep the absence of a name.
    pub(crate) negative_timeout: Duration,
    /// Who mounted.
    uid: u32,
    /// Whose the reserved blocks are besides root (`s_def_resuid`, `s_def_resgid`); with `fakeroot`
    /// everybody's.
    reserve: Option<(u32, u32)>,
}

impl Server {
    /// A server for `volume`, whose root directory is `root`.
    pub(crate) fn new(volume: Volume, root: InodeRef, options: &FuseOptions) -> Self {
        let superblock = volume.superblock();
        let owners = (superblock.s_def_resuid.get().into(), superblock.s_def_resgid.get().into());
        Self {
            reserve: (!options.fakeroot).then_some(owners),
            ops: Ops {
                volume,
                nodes: NodeTable::new(root),
                files: FileTable::new(),
                leaving: Leaving::default(),
                notifier: OnceLock::new(),
                apply_umask: AtomicBool::new(false),
            },
            buffers: Buffers::default(),
            seeker: Arc::default(),
            acl: options.acl,
            writeback_cache: options.writeback_cache && !options.read_only,
            attr_timeout: options.attr_timeout,
            entry_timeout: options.entry_timeout,
            negative_timeout: options.negative_timeout,
            uid: rustix::process::getuid().as_raw(),
        }
    }

    /// Starts what notifies the kernel.
    pub(crate) fn start(&self, notifier: &Notifier) -> std::io::Result<()> {
        // Started once a mount.
        let _ = self.ops.notifier.set(notifier.clone());
        self.seeker.start(notifier.clone())
    }

    /// Whether a caller may use the blocks that are reserved for root. The group 0 that most images
    /// name means nobody, as in ext4.
    pub(crate) fn may_use_reserve(&self, uid: u32, gid: u32) -> bool {
        self.reserve
            .is_none_or(|(user, group)| uid == 0 || uid == user || (group != 0 && gid == group))
    }

    /// What the engine tells of itself, for root and who mounted: names of threads and the like
    /// are nobody else's concern.
    pub(crate) fn stats(&self, uid: u32) -> Answer<Vec<u8>> {
        if uid != 0 && uid != self.uid {
            return Err(Errno::EACCES.into());
        }
        stats::encode(&self.ops.volume, self.ops.nodes.len() as u64)
    }

    /// Discards what is free, for root and who mounted; the length becomes what was discarded.
    pub(crate) fn trim(&self, uid: u32, range: TrimRange) -> Answer<TrimRange> {
        if uid != 0 && uid != self.uid {
            return Err(Errno::EPERM.into());
        }
        let TrimRange { start, len, min_len } = range;
        Ok(TrimRange { len: self.ops.volume.trim(start, len, min_len)?, ..range })
    }

    /// Answers a look-up.
    pub(crate) fn reply_entry(&self, answer: Answer<Found>, reply: ReplyEntry) {
        match answer {
            Ok(Found { attr, generation }) => {
                reply.entry_with_ttls(&self.attr_timeout, &self.entry_timeout, &attr, generation);
            }
            Err(failure) => reply.error(failure.errno()),
        }
    }

    /// Answers with attributes.
    pub(crate) fn reply_attr(&self, answer: Answer<FileAttr>, reply: ReplyAttr) {
        match answer {
            Ok(attr) => reply.attr(&self.attr_timeout, &attr),
            Err(failure) => reply.error(failure.errno()),
        }
    }

    /// Adds one listed name with its attributes; true when the reply is full.
    pub(crate) fn add_plus(&self, entry: &listing::Entry, reply: &mut ReplyDirectoryPlus) -> bool {
        let name = OsStr::from_bytes(&entry.name);
        let node = INodeNo(u64::from(entry.ino.get()));
        let bare = FileAttr { ino: node, kind: convert::file_type(entry.kind), ..NO_ATTR };
        if entry.is_dots() {
            return reply.add(node, entry.next, name, &Duration::ZERO, &bare, Generation(0));
        }
        match self.ops.volume.inode(entry.ino) {
            Ok(inode) => {
                let attr = convert::attr_of_entry(&self.ops.volume.attr(&inode));
                let generation = Generation(u64::from(inode.generation()));
                let full =
                    reply.add(attr.ino, entry.next, name, &self.attr_timeout, &attr, generation);
                if !full {
                    self.ops.nodes.remember(&inode);
                }
                full
            }
            // Removed since the batch was taken.
            Err(error) if *error.kind() == ErrorKind::NotFound => false,
            // The name is there and must be seen; what it leads to fails when it is used.
            Err(_) => {
                let node = INodeNo(node_of(entry.ino));
                reply.add(node, entry.next, name, &Duration::ZERO, &bare, Generation(0))
            }
        }
    }

    /// Feeds the entries of `node` after `offset`, `count` at a time, to `add` until it says full
    /// or they end.
    pub(crate) fn list(
        &self,
        node: INodeNo,
        offset: u64,
        count: usize,
        mut add: impl FnMut(&listing::Entry) -> bool,
    ) -> Answer<()> {
        let dir = self.ops.node(node.0)?;
        let mut cursor = offset;
        loop {
            let batch = listing::batch(&self.ops.volume, &dir, cursor, count)?;
            let Some(last) = batch.last() else { return Ok(()) };
            cursor = last.next;
            if batch.iter().any(&mut add) {
                return Ok(());
            }
        }
    }
}

/// Attributes of nothing.
pub(crate) const NO_ATTR: FileAttr = FileAttr {
    ino: INodeNo(0),
    size: 0,
    blocks: 0,
    atime: UNIX_EPOCH,
    mtime: UNIX_EPOCH,
    ctime: UNIX_EPOCH,
    crtime: UNIX_EPOCH,
    kind: FileType::RegularFile,
    perm: 0,
    nlink: 1,
    uid: 0,
    gid: 0,
    rdev: 0,
    blksize: 4096,
    flags: 0,
};
