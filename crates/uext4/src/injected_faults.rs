//! Injected faults: each is a mistake that the tests must find.
//!
//! What: with the feature `injected-faults` a test switches one fault on for the whole process.
//! Without the feature nothing of this is compiled in: [`Fault::is_injected`] is a constant.

/// A mistake of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// The flush between the journal's images and their commit block is skipped.
    SkippedBarrier = 1,
    /// A changed block is left out of its transaction.
    MissingBlock,
    /// Revoke records are not written.
    LostRevoke,
    /// Freed blocks can be used before the transaction that freed them is durable.
    EarlyReuse,
    /// Checksums of metadata blocks are not looked at.
    UncheckedChecksum,
    /// A new name does not count as a link.
    WrongLinkCount,
    /// The bytes behind the end of a cut file stay.
    UnzeroedTail,
    /// A mapping is durable before the data that it leads to is written.
    MappingBeforeData,
    /// The last handle of a closed transaction wakes nobody.
    LostWakeUp,
    /// A failed write of file data is taken for a good one.
    SwallowedError,
    /// The leader of a group wakes its followers before the commit that they need.
    EarlyGroupWakeUp,
    /// No mistake: each commit leaves no room in the log, so that schedules meet that often.
    TinyLog,
    /// Nobody in line is sent to make room in the log. As `TinyLog` besides.
    UnsentJoiner,
    /// A trim releases its blocks before it discards them.
    UnallocatedTrim,
    /// Freed blocks are discarded before the transaction that freed them is durable.
    EarlyDiscard,
    /// Freed blocks return to a preallocation at once even if an earlier transaction had allocated
    /// them.
    LateRecycling,
    /// Preallocations are not discarded when space runs out.
    HoardedPreallocations,
    /// A remover of mappings does not wait for direct accesses that are under way. Nor does a
    /// thread that puts pages in.
    LateEpoch,
    /// Direct overwrites count as flushed.
    ForgottenOverwrites,
    /// A thread that removes mappings or puts pages in does not see a reader that has just begun.
    /// With `shuttle` only.
    MissingFence,
    /// What was written in place is converted whatever has happened to its blocks since.
    BlindConversion,
    /// Files without a name lose their blocks while somebody still holds and writes them.
    HastyDelete,
    /// A thread that reserves blocks from its cell does not check again whether the stock lacks
    /// them.
    UncheckedCell,
    /// A free inode number is found under the lock of its group, and set in a later critical
    /// section.
    LooseNumber,
    /// Ranges are collapsed and inserted without the writeback lock of the file.
    UnlockedShift,
    /// A number whose inode is being created can be looked up.
    VisibleCreation,
    /// A log that the superblock does not call dirty is not wiped.
    UnwipedLog,
    /// Closing a volume does not stop its callers.
    OpenDoor,
    /// An inode whose truncation failed leaves memory while the orphan list holds it.
    ForgottenOrphan,
    /// Slots of an inode table that were never written come into use as they are.
    UninitializedSlots,
    /// A writeback pass that finds nothing dirty leaves a size that is only in memory.
    LateSize,
    /// What was read of an inode is taken, though the inode left memory meanwhile.
    StaleArrival,
    /// A sync whose commit failed takes the close of an empty transaction behind it for its own.
    TrustedEmptyClose,
    /// Who finds no space does not see that another thread's commit has brought some meanwhile.
    OverlookedRelease,
    /// Readers change times though the volume is being closed.
    LateReader,
    /// Pages above the budget are not noticed.
    HoardedPages,
    /// The in-memory bitmap forgets blocks before they are marked used.
    ForgottenAllocation,
    /// The in-memory bitmap forgets blocks that were marked used.
    LostBits,
    /// A reservation that shrinks releases a block more than it gives up.
    SurplusRelease,
    /// The log has a block more than it has.
    ExtraLogBlock,
    /// Each handle ends twice.
    SecondStop,
    /// Blocks come into a transaction without a credit.
    FreeRide,
    /// New data is not given to the device before its mapping.
    SkippedData,
    /// A page stays under writeback when that has ended.
    EndlessWriteback,
    /// With a journal on a device of its own, commits flush that device alone.
    SkippedDataFlush,
}

impl Fault {
    /// All, in their order.
    pub const ALL: &[Fault] = &[
        Self::SkippedBarrier,
        Self::MissingBlock,
        Self::LostRevoke,
        Self::EarlyReuse,
        Self::UncheckedChecksum,
        Self::WrongLinkCount,
        Self::UnzeroedTail,
        Self::MappingBeforeData,
        Self::LostWakeUp,
        Self::SwallowedError,
        Self::EarlyGroupWakeUp,
        Self::TinyLog,
        Self::UnsentJoiner,
        Self::UnallocatedTrim,
        Self::EarlyDiscard,
        Self::LateRecycling,
        Self::HoardedPreallocations,
        Self::LateEpoch,
        Self::ForgottenOverwrites,
        Self::MissingFence,
        Self::BlindConversion,
        Self::HastyDelete,
        Self::UncheckedCell,
        Self::LooseNumber,
        Self::UnlockedShift,
        Self::VisibleCreation,
        Self::UnwipedLog,
        Self::OpenDoor,
        Self::ForgottenOrphan,
        Self::UninitializedSlots,
        Self::LateSize,
        Self::StaleArrival,
        Self::TrustedEmptyClose,
        Self::OverlookedRelease,
        Self::LateReader,
        Self::HoardedPages,
        Self::ForgottenAllocation,
        Self::LostBits,
        Self::SurplusRelease,
        Self::ExtraLogBlock,
        Self::SecondStop,
        Self::FreeRide,
        Self::SkippedData,
        Self::EndlessWriteback,
        Self::SkippedDataFlush,
    ];
}

/// By the name of the variant.
impl std::str::FromStr for Fault {
    type Err = String;

    fn from_str(name: &str) -> Result<Fault, String> {
        let is_it = |fault: &&Fault| format!("{fault:?}") == name;
        Self::ALL.iter().find(is_it).copied().ok_or_else(|| format!("one of {:?}", Self::ALL))
    }
}

#[cfg(feature = "injected-faults")]
static INJECTED: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

impl Fault {
    /// Whether this fault is switched on.
    #[cfg(not(feature = "injected-faults"))]
    pub(crate) const fn is_injected(self) -> bool {
        false
    }

    /// Whether this fault is switched on.
    #[cfg(feature = "injected-faults")]
    pub(crate) fn is_injected(self) -> bool {
        INJECTED.load(std::sync::atomic::Ordering::SeqCst) == self as u8
    }
}

/// Switches a fault on, or all off. For the whole process: tests run one after the other.
#[cfg(feature = "injected-faults")]
pub fn inject(fault: Option<Fault>) {
    let number = fault.map_or(0, |fault| fault as u8);
    INJECTED.store(number, std::sync::atomic::Ordering::SeqCst);
}
