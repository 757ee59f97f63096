//! Quota: usage of users, groups and projects, and their limits.
//!
//! What: [`Quota`] has a file for each kind of owner (`uext4_ondisk::quota`). Usage changes in the
//! handle that gives an inode its blocks or takes them, or that makes or frees it, so it is exact
//! after a crash. [`QuotaHold`] is room below the limits for what is not mapped yet: dirty pages,
//! and blocks that an operation has allocated in memory.
//! Invariants: an owner's entry in memory is that of the file's newest bytes. Usage and holds
//! together exceed no hard limit by what was held first; nodes of extent trees are not, as in the
//! kernel, so that writeback cannot fail. An owner without an entry in the file is not counted: the
//! entry is made before the first inode of the owner. Entries stay when their usage is zero.
//! Locking: the lock of a file (rank `Quota`) is taken in handles; that of the accounts is a leaf.
//! Kernel counterpart: `fs/quota/dquot.c`, `fs/quota/quota_tree.c`.

mod file;

pub use file::QuotaFile;
use file::{EntryBuffer, TrialFile};

use crate::alloc::may_use_root_reserve;
use crate::cache::Cache;
use crate::error::{Error, ErrorKind, Result};
use crate::journal::Handle;
use crate::sync::{LockRank, Mutex};
use std::collections::HashMap;
use std::sync::Arc;
use uext4_ondisk::quota::{self as format};
pub use uext4_ondisk::quota::{Counted, QuotaEntry, QuotaInfo, QuotaKind};

/// Owners in memory, of one kind, before those are dropped that have no hold and were not asked for
/// lately. Each keeps the block of its entry in memory.
const ACCOUNTS_MAX: usize = 1 << 12;

/// The owners of an inode: user, group, project.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owners(pub [u32; 3]);

impl Owners {
    /// The owner of a kind.
    #[must_use]
    pub fn id(self, kind: QuotaKind) -> u32 {
        let [user, group, project] = self.0;
        match kind {
            QuotaKind::User => user,
            QuotaKind::Group => group,
            QuotaKind::Project => project,
        }
    }
}

/// An amount of space and inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Bytes.
    pub space: u64,
    /// Inodes.
    pub inodes: u64,
}

/// A change of usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Bytes.
    pub space: i64,
    /// Inodes.
    pub inodes: i64,
    /// Bytes of a hold among `space`, which end with it: so what becomes usage never counts twice.
    pub held: u64,
}

impl Change {
    /// The change from one amount to another.
    #[must_use]
    pub fn between(before: Amount, after: Amount) -> Self {
        let signed = |amount: u64| i64::try_from(amount).unwrap_or(i64::MAX);
        let space = signed(after.space) - signed(before.space);
        Self { space, inodes: signed(after.inodes) - signed(before.inodes), held: 0 }
    }
}

/// An owner in memory.
#[derive(Debug)]
struct Account {
    entry: QuotaEntry,
    /// Where its entry is; `None` if the file has none.
    place: Option<EntryBuffer>,
    held: Amount,
    /// Asked for since owners were dropped last.
    is_recent: bool,
}

impl Account {
    fn new(entry: QuotaEntry, place: Option<EntryBuffer>, held: Amount) -> Self {
        Self { entry, place, held, is_recent: true }
    }
}

/// Quota of one kind of owners.
#[derive(Debug)]
struct Kind {
    kind: QuotaKind,
    /// Limits are enforced.
    is_limited: bool,
    cache: Arc<Cache>,
    file: Mutex<QuotaFile>,
    accounts: Mutex<Accounts>,
}

/// Owners of one kind in memory.
#[derive(Debug)]
struct Accounts {
    of: HashMap<u32, Account>,
    /// The number of owners at which some are dropped.
    limit: usize,
    /// Times of grace, of space and of inodes.
    grace: [u32; 2],
}

/// Quota of a volume.
#[derive(Debug)]
pub struct Quota {
    kinds: Vec<Kind>,
}

impl Quota {
    /// Quota with these files; the flag says whether their limits are enforced.
    #[must_use]
    pub fn new(cache: &Arc<Cache>, files: Vec<(QuotaFile, bool)>) -> Arc<Self> {
        let kind = |(file, is_limited): (QuotaFile, bool)| Kind {
            kind: file.kind,
            is_limited,
            cache: Arc::clone(cache),
            accounts: Mutex::new(
                LockRank::Leaf,
                Accounts { of: HashMap::new(), limit: ACCOUNTS_MAX, grace: file.grace() },
            ),
            file: Mutex::new(LockRank::Quota, file),
        };
        Arc::new(Self { kinds: files.into_iter().map(kind).collect() })
    }

    /// Brings the entries of owners into memory, so that a handle reads nothing.
    ///
    /// # Errors
    /// A damaged quota file; a device failure.
    pub fn load(&self, owners: Owners) -> Result<()> {
        for kind in &self.kinds {
            kind.load(owners.id(kind.kind))?;
        }
        Ok(())
    }

    /// The kinds whose file has no entry for these owners.
    ///
    /// # Errors
    /// Those of [`Quota::load`].
    pub fn missing(&self, owners: Owners) -> Result<Vec<QuotaKind>> {
        let mut missing = Vec::new();
        for kind in &self.kinds {
            if !kind.load(owners.id(kind.kind))? {
                missing.push(kind.kind);
            }
        }
        Ok(missing)
    }

    /// Changes the usage of an inode's owners in the handle that changes the inode. Costs a credit
    /// for each kind.
    ///
    /// # Errors
    /// A damaged quota file; those of [`Handle::write`].
    pub fn charge(&self, handle: &mut Handle<'_>, owners: Owners, change: Change) -> Result<()> {
        for kind in &self.kinds {
            kind.charge(handle, owners.id(kind.kind), change)?;
        }
        Ok(())
    }

    /// Gives an inode to other owners, each with what it counts for: before, and after. Owners that
    /// stay are charged the difference.
    ///
    /// # Errors
    /// Those of [`Quota::charge`].
    pub fn transfer(&self, handle: &mut Handle<'_>, usage: [(Owners, Amount); 2]) -> Result<()> {
        let [(from, before), (to, after)] = usage;
        for kind in &self.kinds {
            let (old, new) = (from.id(kind.kind), to.id(kind.kind));
            if old == new {
                kind.charge(handle, old, Change::between(before, after))?;
            } else {
                kind.charge(handle, old, Change::between(before, Amount::default()))?;
                kind.charge(handle, new, Change::between(Amount::default(), after))?;
            }
        }
        Ok(())
    }

    /// Takes room below the limits of those of the owners `to` who are not among `from`.
    ///
    /// # Errors
    /// `QuotaExceeded`; nothing has changed.
    pub fn hold_transfer(
        self: &Arc<Self>,
        from: Owners,
        to: Owners,
        more: Amount,
    ) -> Result<Vec<QuotaHold>> {
        let mut holds = Vec::new();
        for kind in self.kinds.iter().filter(|of| from.id(of.kind) != to.id(of.kind)) {
            let only = Some(kind.kind);
            let mut hold = QuotaHold::empty(self, to);
            hold.only = only;
            hold.grow(more)?;
            holds.push(hold);
        }
        Ok(holds)
    }

    fn kind(&self, kind: QuotaKind) -> Result<&Kind> {
        let found = self.kinds.iter().find(|of| of.kind == kind);
        let why = || format!("the volume keeps no quota of {}s", kind.name());
        found.ok_or_else(|| Error::new(ErrorKind::InvalidArgument, why()))
    }

    /// Inode of the file of a kind.
    ///
    /// # Errors
    /// `InvalidArgument` if the volume keeps no quota of the kind.
    pub fn file_ino(&self, kind: QuotaKind) -> Result<uext4_ondisk::Ino> {
        Ok(self.kind(kind)?.file.lock().ino)
    }

    /// How many blocks of 1 KiB the file has with an entry for `id`, and how many fit into the
    /// blocks of the file system that it has. The caller holds the lock of the quota inode, so that
    /// no other entry is inserted.
    ///
    /// # Errors
    /// A damaged quota file; a device failure.
    pub fn blocks_with(&self, kind: QuotaKind, id: u32) -> Result<(u32, u32)> {
        let of = self.kind(kind)?;
        let file = of.file.lock();
        let mut info = file.info;
        let mut trial = TrialFile::new(&file, &of.cache);
        let inserted =
            format::insert(&mut trial, &mut info, &QuotaEntry { id, ..Default::default() });
        inserted.map_err(|failure| file.error(failure))?;
        Ok((info.blocks, file.capacity(&of.cache)))
    }

    /// Notes a block that the file of a kind has got behind its last.
    ///
    /// # Errors
    /// `InvalidArgument` if the volume keeps no quota of the kind.
    pub fn note_block(&self, kind: QuotaKind, block: uext4_ondisk::BlockNo) -> Result<()> {
        self.kind(kind)?.file.lock().append(block);
        Ok(())
    }

    /// Inserts an entry for `id`. Returns the length of the file in bytes.
    ///
    /// # Errors
    /// A damaged quota file; those of [`Handle::write`].
    pub fn insert(&self, handle: &mut Handle<'_>, kind: QuotaKind, id: u32) -> Result<u64> {
        let of = self.kind(kind)?;
        let mut file = of.file.lock();
        let entry = QuotaEntry { id, ..QuotaEntry::default() };
        let place = file.insert(handle, &of.cache, &entry)?;
        let mut accounts = of.accounts.lock();
        let held = accounts.of.get(&id).map_or(Amount::default(), |account| account.held);
        accounts.of.insert(id, Account::new(entry, Some(place), held));
        Ok(u64::from(file.info.blocks) * format::BLOCK_SIZE as u64)
    }

    /// Sets the limits of an owner that has an entry.
    ///
    /// # Errors
    /// Those of [`Quota::charge`].
    pub fn set_limits(
        &self,
        handle: &mut Handle<'_>,
        kind: QuotaKind,
        to: &QuotaEntry,
    ) -> Result<()> {
        self.kind(kind)?.change(handle, to.id, 0, |entry, info| {
            (entry.space.soft, entry.space.hard) = (to.space.soft, to.space.hard);
            (entry.inodes.soft, entry.inodes.hard) = (to.inodes.soft, to.inodes.hard);
            update_deadline(&mut entry.space, info.space_grace);
            update_deadline(&mut entry.inodes, info.inode_grace);
        })
    }

    /// Sets the times of grace of a kind, in seconds. Costs one credit.
    ///
    /// # Errors
    /// Those of [`Handle::write`].
    pub fn set_grace(
        &self,
        handle: &mut Handle<'_>,
        kind: QuotaKind,
        space: u32,
        inodes: u32,
    ) -> Result<()> {
        let of = self.kind(kind)?;
        let mut file = of.file.lock();
        (file.info.space_grace, file.info.inode_grace) = (space, inodes);
        of.accounts.lock().grace = file.grace();
        file.write_info(handle, &of.cache)
    }
}

impl Accounts {
    /// Keeps an owner in memory for the time being; whether the file has its entry. `None`: it has
    /// to be loaded.
    fn ask_for(&mut self, id: u32) -> Option<bool> {
        let account = self.of.get_mut(&id)?;
        account.is_recent = true;
        Some(account.place.is_some())
    }

    /// Drops owners if they are many: those that were not asked for since the last time. So an
    /// owner that has just been loaded is there for the hold that follows.
    fn make_room(&mut self) {
        if self.of.len() < self.limit {
            return;
        }
        self.of.retain(|_, account| {
            let is_needed = account.is_recent || account.held != Amount::default();
            account.is_recent = false;
            is_needed
        });
        self.limit = ACCOUNTS_MAX.max(2 * self.of.len());
    }
}

impl Kind {
    /// Brings an entry into memory. False if the file has none.
    fn load(&self, id: u32) -> Result<bool> {
        if let Some(has_entry) = self.accounts.lock().ask_for(id) {
            return Ok(has_entry);
        }
        self.load_from(&self.file.lock(), id)
    }

    fn load_from(&self, file: &QuotaFile, id: u32) -> Result<bool> {
        if let Some(has_entry) = self.accounts.lock().ask_for(id) {
            return Ok(has_entry);
        }
        let found = file.find(&self.cache, id)?;
        let is_there = found.is_some();
        let account = match found {
            Some((place, entry)) => Account::new(entry, Some(place), Amount::default()),
            None => {
                let entry = QuotaEntry { id, ..QuotaEntry::default() };
                Account::new(entry, None, Amount::default())
            }
        };
        let mut accounts = self.accounts.lock();
        accounts.make_room();
        accounts.of.insert(id, account);
        Ok(is_there)
    }

    /// Changes an entry, in memory and in the file, and ends `held` bytes of a hold with that.
    fn change(
        &self,
        handle: &mut Handle<'_>,
        id: u32,
        held: u64,
        change: impl FnOnce(&mut QuotaEntry, &QuotaInfo),
    ) -> Result<()> {
        let file = self.file.lock();
        self.load_from(&file, id)?;
        let (entry, place) = {
            let mut accounts = self.accounts.lock();
            let Some(account) = accounts.of.get_mut(&id) else { return Ok(()) };
            change(&mut account.entry, &file.info);
            account.held.space = account.held.space.saturating_sub(held);
            let Some(place) = account.place.clone() else { return Ok(()) };
            (account.entry, place)
        };
        place.write(handle, &entry)
    }

    /// Changes the usage of an owner.
    fn charge(&self, handle: &mut Handle<'_>, id: u32, change: Change) -> Result<()> {
        if change == Change::default() {
            return Ok(());
        }
        self.change(handle, id, change.held, |entry, info| {
            entry.space.used = entry.space.used.saturating_add_signed(change.space);
            entry.inodes.used = entry.inodes.used.saturating_add_signed(change.inodes);
            update_deadline(&mut entry.space, info.space_grace);
            update_deadline(&mut entry.inodes, info.inode_grace);
        })
    }

    /// Takes `more` below the limits. The owner's entry has just been loaded.
    fn hold(&self, id: u32, more: Amount) -> Result<()> {
        let mut accounts = self.accounts.lock();
        let [space_grace, inode_grace] = accounts.grace;
        let Some(account) = accounts.of.get_mut(&id) else {
            let context = format!("the usage of {} {id} is not in memory", self.kind.name());
            return Err(Error::new(ErrorKind::Internal, context));
        };
        let (entry, held) = (&account.entry, &account.held);
        if self.is_limited
            && account.place.is_some()
            && !(fits(&entry.space, held.space, more.space, space_grace)
                && fits(&entry.inodes, held.inodes, more.inodes, inode_grace))
            && !may_use_root_reserve()
        {
            let context = format!("{} {id}", self.kind.name());
            return Err(Error::new(ErrorKind::QuotaExceeded, context));
        }
        account.held.space += more.space;
        account.held.inodes += more.inodes;
        Ok(())
    }

    /// Takes `more`, whatever the limits say. False if the owner is not in memory.
    fn add_held(&self, id: u32, more: Amount) -> bool {
        let mut accounts = self.accounts.lock();
        let Some(account) = accounts.of.get_mut(&id) else { return false };
        account.held.space += more.space;
        account.held.inodes += more.inodes;
        true
    }

    fn release(&self, id: u32, less: Amount) {
        if let Some(account) = self.accounts.lock().of.get_mut(&id) {
            account.held.space = account.held.space.saturating_sub(less.space);
            account.held.inodes = account.held.inodes.saturating_sub(less.inodes);
        }
    }
}

/// Whether `more` may be used on top of what is in use and held.
fn fits(of: &Counted, held: u64, more: u64, grace: u32) -> bool {
    let total = of.used.saturating_add(held).saturating_add(more);
    if more == 0 {
        return true;
    }
    if of.hard != 0 && total > of.hard {
        return false;
    }
    // Without any grace the soft limit is a hard one.
    let is_over = of.soft != 0 && total > of.soft;
    let has_ended = if of.deadline == 0 { grace == 0 } else { now() >= of.deadline };
    !(is_over && has_ended)
}

/// Starts the grace when usage passes the soft limit, and forgets it when it is below again.
fn update_deadline(of: &mut Counted, grace: u32) {
    if of.soft == 0 || of.used <= of.soft {
        of.deadline = 0;
    } else if of.deadline == 0 {
        of.deadline = now().saturating_add(u64::from(grace));
    }
}

fn now() -> u64 {
    u64::try_from(crate::sync::time::last_tick().0).unwrap_or(0)
}

/// Room below the limits of an inode's owners. Dropping it gives the room back.
#[derive(Debug)]
pub struct QuotaHold {
    quota: Arc<Quota>,
    owners: Owners,
    /// The one kind of owners that it is of; `None`: of all.
    only: Option<QuotaKind>,
    held: Amount,
}

impl QuotaHold {
    /// A hold of nothing.
    #[must_use]
    pub fn empty(quota: &Arc<Quota>, owners: Owners) -> Self {
        Self { quota: Arc::clone(quota), owners, only: None, held: Amount::default() }
    }

    /// Holds of this much, whatever the limits say: one of each owner that is in memory.
    #[must_use]
    pub fn of(quota: &Arc<Quota>, owners: Owners, amount: Amount) -> Vec<Self> {
        let is_held = |of: &&Kind| of.add_held(owners.id(of.kind), amount);
        let hold = |of: &Kind| {
            let (only, quota) = (Some(of.kind), Arc::clone(quota));
            Self { quota, owners, only, held: amount }
        };
        quota.kinds.iter().filter(is_held).map(hold).collect()
    }

    fn kinds(&self) -> impl Iterator<Item = (&Kind, u32)> {
        let kinds = self.quota.kinds.iter();
        let kinds = kinds.filter(|of| self.only.is_none_or(|only| only == of.kind));
        kinds.map(|of| (of, self.owners.id(of.kind)))
    }

    /// Takes more room. A thread with the right to the blocks reserved for root is not limited.
    ///
    /// # Errors
    /// `QuotaExceeded`; nothing has changed.
    pub fn grow(&mut self, more: Amount) -> Result<()> {
        for (at, (kind, id)) in self.kinds().enumerate() {
            if let Err(error) = kind.hold(id, more) {
                self.kinds().take(at).for_each(|(before, id)| before.release(id, more));
                return Err(error);
            }
        }
        self.held.space += more.space;
        self.held.inodes += more.inodes;
        Ok(())
    }

    /// Gives room back.
    pub fn shrink(&mut self, less: Amount) {
        self.kinds().for_each(|(kind, id)| kind.release(id, less));
        self.held.space = self.held.space.saturating_sub(less.space);
        self.held.inodes = self.held.inodes.saturating_sub(less.inodes);
    }

    /// Takes `bytes` out of the hold for a [`Change`], which ends them; returns how many.
    pub fn become_usage(&mut self, bytes: u64) -> u64 {
        let taken = bytes.min(self.held.space);
        self.held.space -= taken;
        taken
    }

    /// The room is below the limits of other owners from now on, who have been checked: the
    /// caller's holds of [`Quota::hold_transfer`] keep them in memory.
    pub fn move_to(&mut self, owners: Owners) {
        for (kind, from) in self.kinds() {
            let to = owners.id(kind.kind);
            if from != to {
                kind.release(from, self.held);
                kind.add_held(to, self.held);
            }
        }
        self.owners = owners;
    }
}

impl Drop for QuotaHold {
    fn drop(&mut self) {
        self.shrink(self.held);
    }
}
