//! Ablations of file I/O: mount options that switch on what the engine is built to avoid, so that
//! the lab can measure what that costs.
//!
//! What: [`Ablations`] holds the policies that a mount has chosen; by default there are none. The
//! production code asks it at a few seams, and every ablated path is in this folder:
//! - `writeback=ordered` ([`ordered`]): mappings before data, which the commit waits for.
//! - `writeback=unwritten` ([`unwritten`]): two handles for each run of blocks.
//! - `fsync_batch=rescan` ([`rescan`]): no sync shares a writeback pass with another.
//! - `dio_completion=deferred` ([`deferred_completion`]): direct overwrites end on a worker thread.
//! - `dax_overwrite=journal` ([`journaled_dax`]): a handle for each overwrite in DAX mode.
//!
//! Invariants: an ablation costs time and keeps every promise of docs/durability.md.

mod deferred_completion;
mod journaled_dax;
mod ordered;
mod rescan;
mod unwritten;

pub(super) use deferred_completion::{Completion, CompletionWorker};

use super::direct::DirectIo;
use super::writeback::{Part, Writeback};
use crate::alloc::Space;
use crate::config::{DaxOverwrite, DioCompletion, FsyncBatch, MountOptions, WritebackMode};
use crate::error::Result;
use crate::inode::Inode;
use std::fmt::Debug;
use std::sync::Arc;

/// An order of data and mappings that takes the place of "data, then mapping".
trait WritebackOrder: Debug + Send + Sync {
    /// Writes and maps the pages of parts whose blocks are planned; with `times` also brings lazy
    /// timestamps into a transaction.
    fn write_and_map(
        &self,
        writeback: &Writeback,
        parts: &mut [Part<'_>],
        times: bool,
    ) -> Result<()>;

    /// Whether blocks that a handle frees may be used again before it is durable.
    fn recycles_blocks(&self) -> bool {
        true
    }
}

/// The policies that the options of a mount have put in place of the production ones.
#[derive(Clone, Debug)]
pub(super) struct Ablations {
    order: Option<Arc<dyn WritebackOrder>>,
    rescans: bool,
    journals_dax: bool,
    defers_completion: bool,
}

impl Ablations {
    pub(super) fn new(options: &MountOptions, space: &Space) -> Self {
        let order: Option<Arc<dyn WritebackOrder>> = match options.writeback {
            WritebackMode::Mapped => None,
            WritebackMode::Ordered => Some(Arc::new(ordered::Ordered::new(space))),
            WritebackMode::Unwritten => Some(Arc::new(unwritten::Unwritten)),
        };
        Self {
            order,
            rescans: options.fsync_batch == FsyncBatch::Rescan,
            journals_dax: options.dax_overwrite == DaxOverwrite::Journal,
            defers_completion: options.dio_completion == DioCompletion::Deferred,
        }
    }

    /// Writes and maps the pages of parts in another order than the production one, if there is
    /// another.
    pub(super) fn write_and_map(
        &self,
        writeback: &Writeback,
        parts: &mut [Part<'_>],
        times: bool,
    ) -> Option<Result<()>> {
        Some(self.order.as_ref()?.write_and_map(writeback, parts, times))
    }

    /// Whether data is written before it is mapped, as in production.
    pub(super) fn writes_before_mapping(&self) -> bool {
        self.order.is_none()
    }

    /// Whether blocks that a handle frees may be used again before it is durable.
    pub(super) fn recycles_blocks(&self) -> bool {
        self.order.as_ref().is_none_or(|order| order.recycles_blocks())
    }

    /// Whether each sync runs a pass of its own.
    pub(super) fn syncs_alone(&self) -> bool {
        self.rescans || self.order.is_some()
    }

    /// Writes an inode back in small batches until none of its pages is dirty, if that is chosen.
    /// The caller holds the writeback lock.
    pub(super) fn write_back(&self, writeback: &Writeback, inode: &Inode) -> Option<Result<()>> {
        self.rescans.then(|| rescan::write_back(writeback, inode))
    }

    /// Whether an overwrite in DAX mode starts a handle.
    #[inline]
    pub(super) fn journals_dax(&self) -> bool {
        self.journals_dax
    }

    /// Starts a handle for an overwrite in DAX mode, if that is chosen.
    pub(super) fn before_dax_overwrite(
        &self,
        direct: &DirectIo,
        inode: &Inode,
        offset: u64,
        len: usize,
    ) -> Result<()> {
        if self.journals_dax {
            journaled_dax::start_handle(direct, inode, offset, len)
        } else {
            Ok(())
        }
    }

    /// The worker thread of a queue of direct requests, if completions are deferred to one.
    pub(super) fn completion_worker(&self) -> Result<Option<CompletionWorker>> {
        self.defers_completion.then(CompletionWorker::start).transpose()
    }
}
