//! Options of an image.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Hears that a device is given up, and why, in a line.
pub type Tell = Arc<dyn Fn(&str) + Send + Sync>;

/// How an image is used.
#[derive(Clone)]
pub struct RbdOptions {
    /// Whether nothing is written. Then no lock is taken.
    pub read_only: bool,
    /// How long a cluster may owe an answer, from a second to a week; a request that takes longer
    /// fails, and every later one does. Ceph's `client_mount_timeout`, `rados_mon_op_timeout` and
    /// `rados_osd_op_timeout`.
    pub timeout: Duration,
    /// Hears that the device is given up.
    pub tell: Option<Tell>,
    /// Called first by the device's own thread, which may give up rights there. The library's
    /// threads are there by then, and are not asked.
    pub on_thread: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl RbdOptions {
    /// Read and write, 60 s of patience.
    #[must_use]
    pub fn new() -> Self {
        Self { read_only: false, timeout: Duration::from_mins(1), tell: None, on_thread: None }
    }
}

impl Default for RbdOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for RbdOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { read_only, timeout, .. } = self;
        f.debug_struct("RbdOptions")
            .field("read_only", read_only)
            .field("timeout", timeout)
            .finish_non_exhaustive()
    }
}
