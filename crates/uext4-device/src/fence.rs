//! Asymmetric fences: the frequent side costs nothing.
//!
//! # What
//! Two threads that each write one word and then read the other's word need a fence between the
//! write and the read, or both may read the old value. Where one side runs millions of times a
//! second and the other hardly ever, the rare side can pay for both: [`heavy_fence`] makes every
//! running thread of the process execute a fence (`membarrier(2)`), and [`light_fence`] only
//! restrains the compiler. Where the kernel cannot do that (before 4.14, or in a sandbox), both are
//! ordinary fences.
//!
//! # Why that is enough
//! The kernel's fence hits the other thread before its write, between its write and its read, or
//! after its read. In the first two cases that thread reads what was written before `heavy_fence`.
//! In the last two its write is visible after `heavy_fence`. A thread that is not running executed
//! a fence when it was descheduled, and executes one before it runs again.
//!
//! # Invariants
//! - The light side may use either kind of fence without agreement: an ordinary fence always
//!   suffices, and nothing lighter is used before the process is registered with the kernel.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence, fence};

use rustix::thread::{MembarrierCommand, membarrier};

/// Number of heavy fences that the process has executed.
static HEAVY: AtomicU64 = AtomicU64::new(0);

/// Number of heavy fences that the process has executed.
#[must_use]
pub fn heavy_fences() -> u64 {
    HEAVY.load(Ordering::Relaxed)
}

/// The process is registered with the kernel.
static REGISTERED: AtomicBool = AtomicBool::new(false);

/// Registers the process with the kernel, once. Until then the light side is an ordinary fence.
pub(crate) fn prepare() -> bool {
    static ASKED: OnceLock<bool> = OnceLock::new();
    *ASKED.get_or_init(|| {
        let registered =
            !cfg!(miri) && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
        REGISTERED.store(registered, Ordering::SeqCst);
        registered
    })
}

/// The fence of the frequent side, between its write and its read.
#[inline]
pub(crate) fn light_fence() {
    if REGISTERED.load(Ordering::Relaxed) {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// The fence of the rare side, between its write and its read. Takes some microseconds.
///
/// # Panics
/// If the kernel has registered the process and refuses later: no wait for readers would be sound.
pub fn heavy_fence() {
    HEAVY.fetch_add(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    if prepare() {
        membarrier(MembarrierCommand::PrivateExpedited)
            .expect("the kernel registered the process for membarrier");
    }
}
