//! What answers the requests of a mount, on whatever thread.

use std::sync::atomic::AtomicBool;
use std::sync::{OnceLock, Weak};
use std::time::Duration;

use uext4::{ErrorKind, InodeRef, Volume};
use uext4_device::TrimRange;
use uext4_fuse_server::abi::{self, AttrOut, Dirent, EntryOut};
use uext4_fuse_server::{Caller, DirBuffer, Errno, Monitor};

use crate::convert;
use crate::failure::Answer;
use crate::file::FileTable;
use crate::leaving::Leaving;
use crate::listing;
use crate::node::NodeTable;
use crate::ops::{self, Found, Ops};
use crate::options::FuseOptions;
use crate::question::{Answers, Question};
use crate::stats;

/// How long a read-only mount looks for attributes before it begins to serve: enough for 600,000
/// inodes, where the host has their tables in memory.
const LOOK_FOR_ATTRIBUTES: Duration = Duration::from_millis(250);

/// State of a mount, shared by all threads that serve it.
pub(crate) struct Server {
    /// What requests do.
    pub(crate) ops: Ops,
    /// Files are read without being opened.
    pub(crate) no_open: AtomicBool,
    /// The kernel maps files that are read and written past its cache.
    pub(crate) maps_direct: AtomicBool,
    /// The session, which counts requests; there from its start on.
    pub(crate) session: OnceLock<Weak<dyn Monitor>>,
    /// No inode has an extended attribute, nor will one get any: the kernel need not ask.
    pub(crate) has_no_attributes: bool,
    /// Long answers to [`Question`]s.
    pub(crate) answers: Answers,
    /// The mount may be bound with other owners.
    pub(crate) idmap: bool,
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
    /// Whose the reserved blocks are besides root (`resuid`, `resgid`, else `s_def_resuid` and
    /// `s_def_resgid`); with `fakeroot` everybody's.
    reserve: Option<(u32, u32)>,
}

impl Server {
    /// A server for `volume`, whose root directory is `root`.
    pub(crate) fn new(volume: Volume, root: InodeRef, options: &FuseOptions) -> Self {
        let superblock = volume.superblock();
        let (uid, gid) = (volume.options().reserve_uid, volume.options().reserve_gid);
        let owners = (
            uid.unwrap_or_else(|| superblock.s_def_resuid.get().into()),
            gid.unwrap_or_else(|| superblock.s_def_resgid.get().into()),
        );
        // Access control lists are also what has the kernel check permissions on a connection that
        // another program has mounted without saying so.
        let has_no_attributes =
            options.connection.is_none() && volume.has_no_attributes(LOOK_FOR_ATTRIBUTES);
        let enforces_lists = options.enforces_lists(rustix::process::getuid().is_root());
        Self {
            has_no_attributes,
            idmap: options.idmap,
            answers: Answers::default(),
            reserve: (!options.fakeroot).then_some(owners),
            ops: Ops {
                volume,
                nodes: NodeTable::new(root),
                files: FileTable::new(),
                leaving: Leaving::default(),
                notifier: OnceLock::new(),
                apply_umask: AtomicBool::new(false),
            },
            no_open: AtomicBool::new(false),
            maps_direct: AtomicBool::new(false),
            session: OnceLock::new(),
            // A kernel that was told not to ask would refuse what it cannot find a list of.
            acl: enforces_lists && !has_no_attributes,
            writeback_cache: options.writeback_cache && !options.read_only,
            attr_timeout: options.attr_timeout,
            entry_timeout: options.entry_timeout,
            negative_timeout: options.negative_timeout,
            uid: rustix::process::getuid().as_raw(),
        }
    }

    /// The session has begun.
    pub(crate) fn begin(&self, session: Weak<dyn Monitor>) {
        // Begun once a mount.
        let _ = self.session.set(session);
    }

    /// The caller whose rights count. New files belong to whom the request names.
    pub(crate) fn credentials(&self, caller: Caller) -> Caller {
        if self.idmap { ops::unmapped(caller) } else { caller }
    }

    /// Has the volume write data as soon as it commits names: sync(2), which would make both
    /// durable, does not reach this mount, and most programs rely on it or on nothing.
    pub(crate) fn write_back_early(&self) {
        let options = self.ops.volume.options();
        let age = options.commit_interval_ms.min(options.dirty_expire_ms);
        self.ops.volume.set_dirty_expire(Duration::from_millis(age));
    }

    /// Whether a caller with these [`Server::credentials`] may use the blocks that are reserved for
    /// root. The group 0 that most images name means nobody, as in ext4.
    pub(crate) fn may_use_reserve(&self, caller: Caller) -> bool {
        self.reserve.is_none_or(|(user, group)| {
            caller.uid == 0 || caller.uid == user || (group != 0 && ops::is_of(caller, group))
        })
    }

    /// What the mount tells of itself. It takes no lock that anybody waits under.
    pub(crate) fn tell(&self, question: Question, caller: Caller) -> Answer<Vec<u8>> {
        match question {
            // The number means nothing to a program in another namespace.
            Question::Pid if caller.pid == 0 => Err(Errno::NODATA.into()),
            Question::Pid => Ok(std::process::id().to_string().into_bytes()),
            Question::ReadOnly => {
                Ok(u8::from(self.ops.volume.read_only()).to_string().into_bytes())
            }
            Question::Stats => self.stats(caller.uid),
        }
    }

    /// What the engine tells of itself, for root and who mounted: names of threads and the like
    /// are nobody else's concern.
    fn stats(&self, uid: u32) -> Answer<Vec<u8>> {
        if uid != 0 && uid != self.uid {
            return Err(Errno::ACCESS.into());
        }
        let session = self.session.get().and_then(Weak::upgrade);
        stats::encode(&self.ops.volume, self.ops.nodes.len() as u64, session.as_deref())
    }

    /// Discards what is free, for root and who mounted; the length becomes what was discarded.
    pub(crate) fn trim(&self, uid: u32, range: TrimRange) -> Answer<TrimRange> {
        if uid != 0 && uid != self.uid {
            return Err(Errno::PERM.into());
        }
        let TrimRange { start, len, min_len } = range;
        Ok(TrimRange { len: self.ops.volume.trim(start, len, min_len)?, ..range })
    }

    /// Whether the kernel may keep that a name is missing. Not where a directory may come to fold
    /// case: it could not be told which of the names that it keeps are there from then on.
    pub(crate) fn keeps_absences(&self) -> bool {
        !self.negative_timeout.is_zero() && self.ops.volume.layout().encoding.is_none()
    }

    /// The answer of a look-up in `parent`. The kernel keeps names by their bytes: in a directory
    /// that folds case it asks each time, because a name goes with its other spellings. So it does
    /// everywhere for what is no directory, if there are such directories: a name that is moved
    /// into one keeps its time.
    pub(crate) fn entry(&self, parent: u64, found: Found) -> EntryOut {
        let Found { attr, generation } = found;
        let has_folding = self.ops.volume.layout().encoding.is_some();
        let may_be_moved = has_folding && attr.mode & libc::S_IFMT != libc::S_IFDIR;
        let timeout = match may_be_moved || self.ops.folds_case(parent) {
            true => Duration::ZERO,
            false => self.entry_timeout,
        };
        EntryOut {
            nodeid: attr.ino,
            generation,
            entry_valid: timeout.as_secs(),
            attr_valid: self.attr_timeout.as_secs(),
            entry_valid_nsec: timeout.subsec_nanos(),
            attr_valid_nsec: self.attr_timeout.subsec_nanos(),
            attr,
        }
    }

    /// The answer of what asks for attributes.
    pub(crate) fn attributes(&self, attr: abi::Attr) -> AttrOut {
        AttrOut::new(self.attr_timeout, attr)
    }

    /// Adds one listed name with its attributes; true when the reply is full.
    pub(crate) fn add_plus(
        &self,
        dir: u64,
        entry: &listing::Entry,
        list: &mut DirBuffer<'_>,
    ) -> bool {
        let (ino, kind) = (u64::from(entry.ino.get()), convert::dirent_type(entry.kind));
        let dirent = Dirent { ino, off: entry.next, namelen: 0, kind };
        if entry.is_dots() {
            return !list.add_plus(&EntryOut::default(), dirent, &entry.name);
        }
        match self.ops.volume.inode(entry.ino) {
            Ok(inode) => {
                let found = Found::new(&self.ops.volume, &inode);
                let is_added = list.add_plus(&self.entry(dir, found), dirent, &entry.name);
                if is_added {
                    self.ops.nodes.remember(&inode);
                }
                !is_added
            }
            // Removed since the batch was taken.
            Err(error) if *error.kind() == ErrorKind::NotFound => false,
            // The name is there and must be seen; what it leads to fails when it is used.
            Err(_) => !list.add_plus(&EntryOut::default(), dirent, &entry.name),
        }
    }

    /// Feeds the entries of `node` after `offset`, `count` at a time, to `add` until it says full
    /// or they end.
    pub(crate) fn list(
        &self,
        node: u64,
        offset: u64,
        count: usize,
        mut add: impl FnMut(&listing::Entry) -> bool,
    ) -> Answer<()> {
        let dir = self.ops.node(node)?;
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
