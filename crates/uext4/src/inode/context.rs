//! The parts of a volume that all of its inodes share.

use crate::alloc::Space;
use crate::cache::{Cache, PageBudget};
use crate::config::DaxMode;
use std::sync::Arc;

/// The parts of a volume that all of its inodes share.
#[derive(Debug)]
pub struct InodeContext {
    /// The metadata cache.
    pub cache: Arc<Cache>,
    /// The allocator.
    pub space: Arc<Space>,
    /// The budget of the pages of all files.
    pub budget: Arc<PageBudget>,
    /// Which files are in DAX mode.
    pub dax: DaxMode,
}
