//! Copies between a caller's bytes and memory that other threads may write at the same time.
//!
//! # What
//! [`load`] and [`store`] move bytes between a slice and mapped storage. A large store bypasses the
//! processor's caches (non-temporal), so lines are not read first and the caches keep data that is
//! used again. [`write_back`] writes cache lines back, for persistent memory.
//!
//! # Soundness
//! Callers of a device may safely read and write the same bytes at the same time; they get a
//! mixture, as with a disk. With ordinary or volatile accesses that would be undefined behaviour.
//! So mapped bytes are never accessed by Rust's loads and stores, and no reference to them exists.
//! On x86-64 assembly accesses them. The compiler only knows that it reads or writes memory, and it
//! does the same as a loop of relaxed atomic bytes. On other processors such a loop accesses them.
//! Compilers move neither kind over a lock or an atomic that orders it.
//!
//! Locks do not order non-temporal stores, so each copy ends with a fence: a thread that
//! synchronises with the return of `store` sees the bytes.
//!
//! # What pays
//! `STREAM_MIN`, see docs/device.md.

/// Bytes of a cache line.
const LINE: usize = 64;
/// Smaller stores go through the caches.
pub(crate) const STREAM_MIN: usize = 1024;

// A non-temporal store has at least one line.
const _: () = assert!(STREAM_MIN >= LINE);

/// Copies mapped bytes out.
///
/// # Safety
/// `from` is valid for reads of `to.len()` bytes of mapped storage. Other threads may write them.
pub(crate) unsafe fn load(from: *const u8, to: &mut [u8]) {
    // SAFETY: `to` is valid for writes of its length; `from` by the caller's promise.
    unsafe { arch::copy(from, to.as_mut_ptr(), to.len()) }
}

/// Copies bytes in. When it returns they are in the caches, or on their way to memory.
///
/// # Safety
/// `to` is valid for writes of `from.len()` bytes of mapped storage. Other threads may access them.
pub(crate) unsafe fn store(from: &[u8], to: *mut u8) {
    let len = from.len();
    let head = to.addr().wrapping_neg() % LINE;
    if len < STREAM_MIN + head {
        // SAFETY: `from` is valid for reads of its length; `to` by the caller's promise.
        return unsafe { arch::copy(from.as_ptr(), to, len) };
    }
    let lines = (len - head) / LINE * LINE;
    let tail = head + lines;
    let source = from.as_ptr();
    // SAFETY: the three ranges are the whole range, cut at `head` and `tail`; the middle one starts
    // at a line and is whole lines.
    unsafe {
        // An empty copy takes as long as the copy of a line.
        if head > 0 {
            arch::copy(source, to, head);
        }
        arch::stream(source.add(head), to.add(head), lines);
        if tail < len {
            arch::copy(source.add(tail), to.add(tail), len - tail);
        }
    }
}

/// Makes stored bytes durable, on storage where bytes are durable once they leave the processor's
/// caches.
///
/// # Safety
/// The range is mapped.
pub(crate) unsafe fn write_back(at: *const u8, len: usize) {
    let skipped = at.addr() % LINE;
    for line in (0..skipped + len).step_by(LINE) {
        // SAFETY: the start of a line that has a byte of the range, so in its page.
        unsafe { arch::write_back_line(at.wrapping_sub(skipped).wrapping_add(line)) }
    }
    arch::fence();
}

/// Whether [`write_back`] does anything here.
pub(crate) fn can_write_back() -> bool {
    arch::can_write_back()
}

#[cfg(target_arch = "x86_64")]
mod arch {
    use std::arch::asm;
    use std::sync::atomic::{AtomicU8, Ordering};

    /// # Safety
    /// `from` and `to` are valid for `len` bytes and do not overlap.
    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: moves `len` bytes upwards; the direction flag is clear, as the ABI has it.
        unsafe {
            asm!("rep movsb", inout("rcx") len => _, inout("rsi") from => _, inout("rdi") to => _,
                options(nostack, preserves_flags));
        }
    }

    /// Copies whole lines, bypassing the caches.
    ///
    /// # Safety
    /// Those of `copy`; `to` is at a line and `len` is a multiple of a line, not 0.
    pub(super) unsafe fn stream(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: moves 64 bytes a round until `len` is 0; SSE2 is part of the architecture.
        unsafe {
            asm!(
                "2:",
                "movdqu {a}, [{from}]",
                "movdqu {b}, [{from} + 16]",
                "movdqu {c}, [{from} + 32]",
                "movdqu {d}, [{from} + 48]",
                "movntdq [{to}], {a}",
                "movntdq [{to} + 16], {b}",
                "movntdq [{to} + 32], {c}",
                "movntdq [{to} + 48], {d}",
                "add {from}, 64",
                "add {to}, 64",
                "sub {len}, 64",
                "jnz 2b",
                "sfence",
                from = inout(reg) from => _,
                to = inout(reg) to => _,
                len = inout(reg) len => _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack),
            );
        }
    }

    pub(super) fn fence() {
        // SAFETY: orders stores; touches nothing.
        unsafe { asm!("sfence", options(nostack, preserves_flags)) }
    }

    pub(super) fn can_write_back() -> bool {
        true
    }

    /// # Safety
    /// The line is mapped.
    pub(super) unsafe fn write_back_line(line: *const u8) {
        // SAFETY: the processor has the instruction; it changes no bytes.
        unsafe {
            match instruction() {
                CLWB => asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)),
                CLFLUSHOPT => {
                    asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
                }
                _ => asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags)),
            }
        }
    }

    const CLWB: u8 = 1;
    const CLFLUSHOPT: u8 = 2;
    const CLFLUSH: u8 = 3;

    /// The best instruction of the processor, determined once.
    fn instruction() -> u8 {
        static KNOWN: AtomicU8 = AtomicU8::new(0);
        let known = KNOWN.load(Ordering::Relaxed);
        if known != 0 {
            return known;
        }
        let most = std::arch::x86_64::__cpuid(0).eax;
        let bits = if most >= 7 { std::arch::x86_64::__cpuid_count(7, 0).ebx } else { 0 };
        let best = match (bits & (1 << 24) != 0, bits & (1 << 23) != 0) {
            (true, _) => CLWB,
            (false, true) => CLFLUSHOPT,
            (false, false) => CLFLUSH,
        };
        KNOWN.store(best, Ordering::Relaxed);
        best
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod arch {
    use std::sync::atomic::{AtomicU8, Ordering, fence as order};

    /// # Safety
    /// `from` and `to` are valid for `len` bytes and do not overlap.
    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        for at in 0..len {
            // SAFETY: inside both ranges. One of them is mapped storage, accessed by nothing but
            // atomics of this size; the other is the caller's alone, or only read.
            unsafe {
                let byte = AtomicU8::from_ptr(from.add(at).cast_mut()).load(Ordering::Relaxed);
                AtomicU8::from_ptr(to.add(at)).store(byte, Ordering::Relaxed);
            }
        }
    }

    /// # Safety
    /// Those of `copy`.
    pub(super) unsafe fn stream(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { copy(from, to, len) }
    }

    pub(super) fn fence() {
        order(Ordering::SeqCst);
    }

    pub(super) fn can_write_back() -> bool {
        false
    }

    /// # Safety
    /// None. It does nothing and is never called.
    pub(super) unsafe fn write_back_line(_line: *const u8) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_at_every_place() {
        let source: Vec<u8> = (0..8192_u32).map(|at| (at * 7 / 3) as u8 | 1).collect();
        for at in (0..80).chain([4095]) {
            for len in [0, 1, 63, 64, 65, 1000, 1023, 1024, 1087, 1088, 1151, 4000, 4096] {
                let from = &source[at / 2..at / 2 + len];
                let mut to = vec![0_u8; 8400];
                // SAFETY: inside `to`, which is exclusive.
                unsafe {
                    store(from, to.as_mut_ptr().add(at));
                    write_back(to.as_ptr().add(at), len);
                }
                assert!(
                    to[..at].iter().chain(&to[at + len..]).all(|byte| *byte == 0),
                    "{at} {len}"
                );
                let mut back = vec![0; len];
                // SAFETY: as above.
                unsafe { load(to.as_ptr().add(at), &mut back) };
                assert!(back == from, "{at} {len}");
            }
        }
    }
}
