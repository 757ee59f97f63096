//! The reaction of a volume to damage: `errors=`.
//!
//! What: every result that may name a corrupt structure passes through [`FileContext::watch`] once,
//! on its way to the caller or where it is dropped. Every abort of the journal passes through
//! [`Damage::journal_aborted`]. Damage is recorded; then the volume goes on, refuses changes, or
//! ends its process.
//! On disk: `s_state`, `s_error_count` and the first and last error with time, inode, block and
//! structure, through the journal. The record of an aborted journal is in the journal superblock;
//! the next mount copies it from there.
//! Locking: the caller has no handle, because a commit may be waited for.
//! Kernel counterpart: `ext4_handle_error` in `fs/ext4/super.c`.

use super::FileContext;
use crate::cache::Buffer;
use crate::config::OnError;
use crate::error::{Corrupt, CorruptKind, Error, ErrorKind, Place, Result};
use crate::journal::Journal;
use crate::sync::state::{AtomicU32, Ordering};
use std::fmt;
use std::sync::{Arc, OnceLock};
use uext4_ondisk::RawSuperblock;
use uext4_ondisk::superblock::STATE_ERROR;

/// `s_*_error_errcode`: a checksum does not match.
const CODE_CHECKSUM: u8 = 4;
/// `s_*_error_errcode`: a structure is corrupt.
const CODE_CORRUPT: u8 = 5;

/// Ends the process that has mounted the volume.
pub type PanicHook = Box<dyn Fn(&Error) + Send + Sync>;

/// What a volume tells of as it happens. A caller may be told, too, or none is there.
#[derive(Clone, Copy, Debug)]
pub enum Trouble<'a> {
    /// A structure is corrupt. Told of the first few only: a reader may meet it again and again.
    Damage(&'a Error),
    /// The journal is aborted for this cause: the volume refuses changes from now on.
    Aborted(&'a Error),
}

impl fmt::Display for Trouble<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damage(error) => write!(f, "damage was found: {error}"),
            Self::Aborted(cause) => write!(f, "changes are refused from now on: {cause}"),
        }
    }
}

/// Is told of trouble.
pub type TroubleHook = Box<dyn Fn(Trouble<'_>) + Send + Sync>;

/// So many structures that are corrupt are told of.
const TOLD_MAX: u32 = 10;

/// The volume's reaction to damage.
pub struct Damage {
    on_error: OnError,
    superblock: Arc<Buffer>,
    superblock_at: usize,
    panic_hook: OnceLock<PanicHook>,
    trouble_hook: OnceLock<TroubleHook>,
    /// Corrupt structures that were told of.
    told: AtomicU32,
}

impl fmt::Debug for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_hook = self.panic_hook.get().is_some();
        f.debug_struct("Damage")
            .field("on_error", &self.on_error)
            .field("has_hook", &has_hook)
            .finish_non_exhaustive()
    }
}

impl Damage {
    /// The reaction `on_error`. The record goes to the superblock, at byte `at` of `superblock`.
    #[must_use]
    pub(crate) fn new(on_error: OnError, superblock: Arc<Buffer>, at: usize) -> Arc<Self> {
        Arc::new(Self {
            on_error,
            superblock,
            superblock_at: at,
            panic_hook: OnceLock::new(),
            trouble_hook: OnceLock::new(),
            told: AtomicU32::new(0),
        })
    }

    /// Sets the hook that is told of trouble, unless one is set.
    pub(crate) fn set_trouble_hook(&self, hook: TroubleHook) {
        let _ = self.trouble_hook.set(hook);
    }

    fn tell(&self, trouble: Trouble<'_>) {
        if let Some(hook) = self.trouble_hook.get() {
            hook(trouble);
        }
    }

    /// Sets the hook that `errors=panic` calls, unless one is set.
    pub(crate) fn set_panic_hook(&self, hook: PanicHook) {
        let _ = self.panic_hook.set(hook);
    }

    /// Reacts to an abort of the journal. As in ext4, it ends changes whatever `errors=` says.
    pub(crate) fn journal_aborted(&self, cause: &Error) {
        self.tell(Trouble::Aborted(cause));
        self.panic(cause);
    }

    /// Calls the hook of `errors=panic`, if that is set. Returns if there is none.
    fn panic(&self, error: &Error) {
        if self.on_error == OnError::Panic
            && let Some(hook) = self.panic_hook.get()
        {
            hook(error);
        }
    }

    /// Records damage in the superblock. A failure is ignored, because the journal is aborted then.
    fn record(&self, journal: &Journal, corrupt: &Corrupt) {
        let _ = journal.run(1, |handle| {
            let mut bytes = handle.write(&self.superblock)?;
            if let Some(raw) = RawSuperblock::mut_from_prefix(&mut bytes[self.superblock_at..]) {
                note(raw, corrupt);
            }
            Ok(())
        });
    }
}

impl FileContext {
    /// Returns the result. If it names damage, the reaction that `errors=` asks for comes first.
    ///
    /// # Errors
    /// That of `result`.
    pub fn watch<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result
            && let ErrorKind::Corrupt(corrupt) = error.kind()
        {
            self.note_damage(error, corrupt);
        }
        result
    }

    /// [`FileContext::watch`] for a result that no caller waits for, because a failure is reported
    /// otherwise.
    pub(super) fn watch_dropped<T>(&self, result: Result<T>) {
        let _ = self.watch(result);
    }

    /// The volume's reaction to damage.
    #[must_use]
    pub fn damage(&self) -> &Arc<Damage> {
        &self.damage
    }

    fn note_damage(&self, error: &Error, corrupt: &Corrupt) {
        if self.is_read_only() {
            return;
        }
        if self.damage.told.fetch_add(1, Ordering::Relaxed) < TOLD_MAX {
            self.damage.tell(Trouble::Damage(error));
        }
        let journal = self.journal();
        self.damage.record(journal, corrupt);
        if self.damage.on_error == OnError::Continue {
            return;
        }
        // The record has to be durable for the next mount. The rest of the transaction is complete:
        // the operation that met the damage has changed nothing.
        let _ = journal.commit_all();
        self.damage.panic(error);
        // As in ext4 the journal ends: changes that are not durable by now are lost, and every sync
        // says so.
        self.set_read_only();
        journal.abort(Error::new(ErrorKind::ReadOnly, format!("damage was found: {error}")));
    }
}

fn note(raw: &mut RawSuperblock, corrupt: &Corrupt) {
    let (ino, block) = match corrupt.place {
        Place::Inode(ino) => (ino.get(), 0),
        Place::FileBlock(ino, at) => (ino.get(), u64::from(at.get())),
        Place::InodeBlock(ino, block) => (ino.get(), block.get()),
        Place::Block(block) => (0, block.get()),
        Place::Superblock | Place::Group(_) | Place::LogBlock(_) => (0, 0),
    };
    let code = match corrupt.kind {
        CorruptKind::Checksum { .. } => CODE_CHECKSUM,
        _ => CODE_CORRUPT,
    };
    // The kernel puts the name of a function of its source there; this is the structure. There is
    // no line.
    let mut structure = [0; 32];
    let name = corrupt.kind.structure().as_bytes();
    let len = name.len().min(structure.len() - 1);
    structure[..len].copy_from_slice(&name[..len]);
    let now = u64::try_from(crate::inode::now().secs).unwrap_or(0);
    let (now_low, now_high) = (now as u32, (now >> 32) as u8);
    // As ext4, which leaves the other bit as it was: "clean with errors" after an orderly end.
    raw.s_state.set(raw.s_state.get() | STATE_ERROR);
    raw.s_last_error_time.set(now_low);
    raw.s_last_error_time_hi = now_high;
    raw.s_last_error_ino.set(ino);
    raw.s_last_error_block.set(block);
    raw.s_last_error_func = structure;
    raw.s_last_error_line.set(0);
    raw.s_last_error_errcode = code;
    if raw.s_error_count.get() == 0 {
        raw.s_first_error_time.set(now_low);
        raw.s_first_error_time_hi = now_high;
        raw.s_first_error_ino.set(ino);
        raw.s_first_error_block.set(block);
        raw.s_first_error_func = structure;
        raw.s_first_error_line.set(0);
        raw.s_first_error_errcode = code;
    }
    raw.s_error_count.set(raw.s_error_count.get().saturating_add(1));
}
