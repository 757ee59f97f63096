//! Fences of which one side costs nothing.
//!
//! # What
//! Two threads that each write one word and then read the other's need a fence between the two, or
//! both may read what was before. Where one side runs millions of times a second and the other
//! hardly ever, the rare side pays for both: [`heavy_fence`] makes the kernel have every thread of
//! the process that is running execute a fence (`membarrier`), and [`light_fence`] only keeps the
//! compiler from moving anything. Where the kernel cannot (before 4.14, or a sandbox), both are
//! ordinary fences.
//!
//! # Why that is enough
//! The kernel's fence meets the other thread before its write, between its write and its read, or
//! after its read. In the first two cases it reads what was written before `heavy_fence`; in the
//! last two what it wrote is seen after `heavy_fence`. A thread that is not running went through a
//! fence when it stopped, and goes through one before it runs.
//!
//! # Invariants
//! - Which kind the light side uses needs no agreement: an ordinary fence is never too little, and
//!   nothing lighter is used before the process is registered with the kernel.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence, fence};

use rustix::thread::{MembarrierCommand, membarrier};

/// Heavy fences of the process.
static HEAVY: AtomicU64 = AtomicU64::new(0);

/// How many heavy fences the process has made.
#[must_use]
pub fn heavy_fences() -> u64 {
    HEAVY.load(Ordering::Relaxed)
}

/// The process is registered.
static REGISTERED: AtomicBool = AtomicBool::new(false);

/// Asks the kernel, once. Without this the light side pays for itself.
pub(crate) fn prepare() -> bool {
    static ASKED: OnceLock<bool> = OnceLock::new();
    *ASKED.get_or_init(|| {
        let registered =
            !cfg!(miri) && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
        REGISTERED.store(registered, Ordering::SeqCst);
        registered
    })
}

/// The frequent side, between its write and its read.
#[inline]
pub(crate) fn light_fence() {
    if REGISTERED.load(Ordering::Relaxed) {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// The rare side, between its write and its read. Takes some microseconds.
///
/// # Panics
/// If a kernel that has registered the process refuses later: nobody could be waited for any more.
pub fn heavy_fence() {
    HEAVY.fetch_add(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    if prepare() {
        membarrier(MembarrierCommand::PrivateExpedited)
            .expect("the kernel has promised memory barriers");
    }
}
