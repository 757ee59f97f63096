//! Memory of asynchronous requests.
//!
//! # What
//! [`IoMemory`]: page-aligned memory, allocated once, that a queue may register with the kernel.
//! [`IoBuf`]: an exclusive range of it, which moves into a request and returns with its completion.
//! Moving, splitting and shortening a buffer allocates nothing.
//!
//! # Soundness
//! A range is an address, not a reference, because the kernel reads and writes it while no Rust
//! code may access it. That is sound because a range is:
//! - **Exclusive**: no two live `IoBuf`s share a byte. Memory is divided into them once
//!   ([`IoMemory::into_bufs`] panics the second time), splitting divides a range, and joining
//!   merges two adjacent ranges of one memory. The only way to name an arbitrary range,
//!   [`IoMemory::buf`], is `unsafe`.
//! - **Alive**: every `IoBuf` holds a reference to the memory, and so does a ring that registered
//!   it.
//! - **Unreachable while the kernel has it**: a queue owns the `IoBuf`s of its requests, and
//!   neither returns nor drops one before the kernel has answered. So no reference to the bytes can
//!   exist meanwhile, because `Deref` needs the `IoBuf`.

use std::alloc::Layout;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Least alignment of owned memory. It suffices for direct I/O to most devices.
const PAGE: usize = 4096;

/// Memory for asynchronous requests, shared by its [`IoBuf`]s and by the queues that registered it.
/// It is a handle: a clone copies no bytes.
#[derive(Clone)]
pub struct IoMemory {
    region: Arc<Region>,
}

struct Region {
    start: NonNull<u8>,
    len: usize,
    /// Whether it has been divided into buffers.
    cut: AtomicBool,
    /// The layout of its allocation; `None` for foreign memory.
    layout: Option<Layout>,
}

// SAFETY: a region is an address and a length. Its bytes are reached through `IoBuf`s, each of
// which is the only way to its range (see Soundness), and by no method of the region itself.
unsafe impl Send for Region {}
// SAFETY: as above; what changes behind a shared reference is an atomic.
unsafe impl Sync for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        if let Some(layout) = self.layout {
            // SAFETY: `start` came from `alloc_zeroed` with this layout and is freed once, here;
            // the last handle and the last buffer of it are gone.
            unsafe { std::alloc::dealloc(self.start.as_ptr(), layout) }
        }
    }
}

impl IoMemory {
    /// `len` zero bytes, page-aligned.
    ///
    /// # Errors
    /// `InvalidInput` if `len` is 0 or too large for any memory; `OutOfMemory`.
    pub fn new(len: usize) -> io::Result<IoMemory> {
        IoMemory::aligned(len, PAGE)
    }

    /// [`IoMemory::new`] at a multiple of `align`, a power of two.
    pub(crate) fn aligned(len: usize, align: usize) -> io::Result<IoMemory> {
        let layout = Layout::from_size_align(len, align.max(PAGE))
            .ok()
            .filter(|layout| layout.size() > 0)
            .ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: the layout is not empty.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(IoMemory::of(start, len, Some(layout)))
    }

    /// Foreign memory, such as the buffers of a C program.
    ///
    /// # Safety
    /// `start` is valid for reads and writes of `len` bytes, initialised, until the last clone of
    /// this, the last [`IoBuf`] of it and every queue that was given it are dropped. Nothing else
    /// accesses the bytes of an `IoBuf` of it while that is in a queue or a reference to its bytes
    /// (`Deref`) lives.
    #[must_use]
    pub unsafe fn from_raw(start: NonNull<u8>, len: usize) -> IoMemory {
        IoMemory::of(start, len, None)
    }

    fn of(start: NonNull<u8>, len: usize, layout: Option<Layout>) -> IoMemory {
        let region = Region { start, len, cut: AtomicBool::new(false), layout };
        IoMemory { region: Arc::new(region) }
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.region.len
    }

    /// Whether the length is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.region.len == 0
    }

    /// Divides the memory into buffers of `len` bytes each. The remainder at the end is in none.
    ///
    /// # Panics
    /// If `len` is 0, or if this memory was divided before, because a byte may be in one buffer
    /// only.
    #[must_use]
    pub fn into_bufs(self, len: usize) -> Vec<IoBuf> {
        assert!(len > 0, "a buffer has bytes");
        let cut_before = self.region.cut.swap(true, Ordering::Relaxed);
        assert!(!cut_before, "memory is cut into buffers once");
        (0..self.region.len / len)
            .map(|index| {
                // SAFETY: the range lies in the region and no other buffer has a byte of it: the
                // ranges of one division are disjoint, and there is one division.
                unsafe { self.buf(index * len, len) }
            })
            .collect()
    }

    /// A buffer of `len` bytes from `from`.
    ///
    /// # Safety
    /// While the buffer lives, no other buffer has a byte of the range.
    ///
    /// # Panics
    /// If the range reaches past the memory.
    #[must_use]
    pub unsafe fn buf(&self, from: usize, len: usize) -> IoBuf {
        let end = from.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.region.len), "a buffer lies in its memory");
        // SAFETY: `from` is at most the region's length.
        let start = unsafe { self.region.start.add(from) };
        IoBuf { start, len, capacity: len, region: Some(Arc::clone(&self.region)) }
    }

    /// Address of the first byte, for registering.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.region.start
    }
}

impl fmt::Debug for IoMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IoMemory").field("len", &self.region.len).finish_non_exhaustive()
    }
}

/// An exclusive range of an [`IoMemory`].
pub struct IoBuf {
    start: NonNull<u8>,
    len: usize,
    /// Bytes of its range; `len` may be less.
    capacity: usize,
    /// Keeps the bytes alive; `None` for a buffer without bytes.
    region: Option<Arc<Region>>,
}

// SAFETY: the buffer is the only way to its bytes (see Soundness), as a `Box<[u8]>` is.
unsafe impl Send for IoBuf {}
// SAFETY: a shared reference gives shared references to bytes, no more.
unsafe impl Sync for IoBuf {}

impl IoBuf {
    /// A buffer without bytes, for requests that have none.
    #[must_use]
    pub const fn empty() -> IoBuf {
        IoBuf { start: NonNull::dangling(), len: 0, capacity: 0, region: None }
    }

    /// A buffer in memory of its own.
    ///
    /// # Errors
    /// Those of [`IoMemory::new`].
    pub fn new(len: usize) -> io::Result<IoBuf> {
        let memory = IoMemory::new(len)?;
        // SAFETY: the memory is new and has no other buffer.
        Ok(unsafe { memory.buf(0, len) })
    }

    /// Most bytes that [`IoBuf::set_len`] can give the buffer.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Changes the length, up to the capacity.
    ///
    /// # Panics
    /// If `len` is more than the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity, "a buffer does not grow past its capacity");
        self.len = len;
    }

    /// Splits off the first `len` bytes as a buffer of their own.
    ///
    /// # Panics
    /// If there are fewer.
    #[must_use]
    pub fn split_to(&mut self, len: usize) -> IoBuf {
        assert!(len <= self.len, "a buffer is split inside");
        let first = IoBuf { start: self.start, len, capacity: len, region: self.region.clone() };
        // SAFETY: at most the end of the range.
        self.start = unsafe { self.start.add(len) };
        self.len -= len;
        self.capacity -= len;
        first
    }

    /// Appends `next`, which must begin where this buffer ends. The merged range is exclusive,
    /// because both ranges are.
    ///
    /// # Errors
    /// `next` itself if it begins elsewhere, or if this buffer is shorter than its capacity.
    pub fn join(&mut self, next: IoBuf) -> Result<(), IoBuf> {
        let is_of_one_memory = match (&self.region, &next.region) {
            (Some(region), Some(other)) => Arc::ptr_eq(region, other),
            _ => false,
        };
        let end = self.start.as_ptr().wrapping_add(self.capacity);
        if !is_of_one_memory || self.len != self.capacity || end != next.start.as_ptr() {
            return Err(next);
        }
        self.len += next.len;
        self.capacity += next.capacity;
        Ok(())
    }

    /// Whether the bytes are in this memory.
    pub(crate) fn is_of(&self, memory: &IoMemory) -> bool {
        self.region.as_ref().is_some_and(|region| Arc::ptr_eq(region, &memory.region))
    }

    /// Address of the first byte, for a request. A caller that passes it to the
    /// kernel owns the buffer until the kernel has answered.
    pub(crate) fn address(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Default for IoBuf {
    fn default() -> IoBuf {
        IoBuf::empty()
    }
}

impl Deref for IoBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: initialised bytes that the region keeps alive and that nothing else accesses
        // while this buffer is borrowed (see Soundness); a dangling address only with length 0.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for IoBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and the buffer is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IoBuf").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_share_no_byte_and_keep_their_memory() {
        let memory = IoMemory::new(4096 * 3 + 100).unwrap();
        let mut bufs = memory.clone().into_bufs(4096);
        assert_eq!(bufs.len(), 3);
        assert!(bufs.iter().all(|buf| buf.as_ptr().addr().is_multiple_of(PAGE)));
        assert!(bufs[0].is_of(&memory) && !IoBuf::empty().is_of(&memory));
        drop(memory);
        for (index, buf) in bufs.iter_mut().enumerate() {
            assert!(buf.iter().all(|byte| *byte == 0));
            buf.fill(index as u8 + 1);
        }
        let mut rest = bufs.pop().unwrap();
        drop(bufs);
        let mut first = rest.split_to(1000);
        first.fill(9);
        assert_eq!((first.len(), rest.len()), (1000, 3096));
        assert!(rest.iter().all(|byte| *byte == 3));
        rest.set_len(10);
        assert_eq!((rest.len(), rest.capacity()), (10, 3096));
        rest.set_len(3096);
        std::thread::spawn(move || rest.fill(1)).join().unwrap();
    }

    /// Only adjacent buffers of one memory can be joined, and only in order.
    #[test]
    fn what_was_split_is_joined_and_nothing_else() {
        let mut whole = IoBuf::new(4096).unwrap();
        whole.set_len(3500);
        let mut first = whole.split_to(1000);
        let middle = whole.split_to(1000);
        first.fill(1);
        let back = first.join(whole).unwrap_err();
        assert_eq!(first.len(), 1000);
        first.join(middle).unwrap();
        // A shortened buffer refuses, because the bytes that follow would move.
        first.set_len(500);
        let back = first.join(back).unwrap_err();
        first.set_len(2000);
        first.join(back).unwrap();
        assert_eq!((first.len(), first.capacity()), (3500, 4096));
        assert!(first[..1000].iter().all(|byte| *byte == 1) && first[1000..] == [0; 2500]);
        first.fill(2);
        // Buffers of different memories, and buffers without memory.
        let mut bufs = IoMemory::new(8192).unwrap().into_bufs(4096);
        let last = bufs.pop().unwrap();
        let stranger = bufs[0].join(IoBuf::new(4096).unwrap()).unwrap_err();
        let stranger = IoBuf::empty().join(stranger).unwrap_err();
        assert!(bufs[0].join(IoBuf::empty()).is_err() && stranger.len() == 4096);
        bufs[0].join(last).unwrap();
        assert_eq!(bufs[0].len(), 8192);
    }

    #[test]
    #[should_panic(expected = "cut into buffers once")]
    fn memory_is_not_cut_twice() {
        let memory = IoMemory::new(4096).unwrap();
        let _bufs = memory.clone().into_bufs(512);
        let _again = memory.into_bufs(512);
    }

    #[test]
    fn foreign_memory_can_be_used() {
        let mut bytes = vec![5_u8; 1024];
        let start = NonNull::new(bytes.as_mut_ptr()).unwrap();
        // SAFETY: the bytes outlive the memory and are not touched while its buffers live.
        let memory = unsafe { IoMemory::from_raw(start, bytes.len()) };
        let mut bufs = memory.into_bufs(512);
        assert_eq!(bufs[1][0], 5);
        bufs[1].fill(6);
        drop(bufs);
        assert_eq!((bytes[511], bytes[512]), (5, 6));
        assert!(IoMemory::new(0).is_err());
        assert!(IoBuf::empty().is_empty() && IoBuf::new(10).unwrap().len() == 10);
    }
}
