//! Block devices for uext4: file, memory, and wrappers that record, fault and meter.
//!
//! # What
//! [`Device`] is the only way in which the engine, mkfs and the checker reach bytes. Kinds that
//! hold bytes: [`FileDevice`] (image file or block device), [`MemoryDevice`], [`OverlayDevice`]
//! (writes kept in memory above a device that is never touched), [`StoredOverlay`] (writes kept on
//! another device). Wrappers: [`RecordingDevice`]
//! (crash tests), [`FaultDevice`] (the Nth request fails), [`HookedDevice`] (slow and stuck
//! devices), [`MeteredDevice`] (counters), [`AddressableDevice`] (any device as byte-addressable
//! memory), [`PartDevice`] (a range of one).
//!
//! Besides devices, the primitives of lock-free readers: [`reader_slot`], [`heavy_fence`] and
//! [`Published`].
//!
//! # Invariants
//! - A device never changes its length.
//! - A request is served whole or fails; one that reaches past the end fails and changes nothing.
//! - This is the only engine crate in which `unsafe` may stand, and in it only the modules that say
//!   so below have any.

#![deny(unsafe_code)]

mod addressable;
mod bounce;
#[allow(unsafe_code, reason = "clock_gettime(2) fills what an address names")]
mod clock;
mod dax;
mod dax_backing;
#[allow(unsafe_code, reason = "mapped bytes are copied by assembly")]
mod dax_copy;
#[allow(unsafe_code, reason = "mmap(2)")]
mod dax_map;
mod dax_memory;
mod device;
mod direct;
mod fault;
mod fence;
mod file;
mod flush_latch;
#[allow(unsafe_code, reason = "the kernel is given the address of requests and answers")]
mod fuse_ring;
#[allow(unsafe_code, reason = "calls of the C library's allocator")]
pub mod heap;
mod hook;
mod host;
#[allow(unsafe_code, reason = "calls of the scheduler")]
mod idle_policy;
mod image_lock;
#[allow(unsafe_code, reason = "buffers are named by address while the kernel has them")]
mod io_memory;
#[allow(unsafe_code, reason = "ioctl(2) takes an address")]
mod ioctl;
mod lease;
mod loop_backing;
mod loop_source;
mod memory;
mod meter;
mod open_error;
mod options;
mod overlay;
mod page_store;
mod part;
mod piece;
#[allow(unsafe_code, reason = "a value is dereferenced while a hazard pointer protects it")]
mod published;
mod queue;
#[allow(unsafe_code, reason = "the kernel is given addresses of buffers")]
mod queue_table;
pub mod reader_slot;
mod recording;
mod recording_device;
#[allow(unsafe_code, reason = "the kernel is given addresses of memory to register")]
mod ring;
#[allow(unsafe_code, reason = "the kernel is given addresses of buffers")]
mod ring_writer;
mod rings;
mod room;
mod sleep;
pub mod stored_overlay;
mod sync_queue;
#[allow(unsafe_code, reason = "the requests of a ring that never closes are never freed")]
mod uring_queue;
mod vectored;

pub use addressable::AddressableDevice;
pub use clock::{last_tick, since_boot};
pub use dax::{Allocate, DaxDevice};
pub use dax_memory::DaxMemory;
pub use device::{Device, ReadRun, SharedDevice, WriteRun, check_read, check_write};
pub use fault::{Fault, FaultDevice, FaultPlan, Operation, Times};
pub use fence::{heavy_fence, heavy_fences};
pub use file::{FileDevice, Undo};
pub use flush_latch::FlushLatch;
pub use fuse_ring::{FuseRing, Unregistered};
pub use hook::{Gate, HookedDevice, HookedRequest, OpensGate};
pub use host::host_name;
pub use idle_policy::IdlePolicy;
pub use io_memory::{IoBuf, IoMemory};
pub use ioctl::{
    FITRIM, QUESTION, QUESTION_BYTES, TrimRange, clone_fuse, question_mounted, trim_mounted,
};
pub use lease::{Lease, LeasedDevice};
pub use loop_source::LoopSource;
pub use memory::MemoryDevice;
pub use meter::{MeterReading, MeteredDevice};
pub use open_error::OpenError;
pub use options::{Access, Caching, FileOptions, MOUNT_OPTIONS, Submission};
pub use overlay::OverlayDevice;
pub use part::PartDevice;
pub use published::Published;
pub use queue::{DeviceQueue, QueueDone, QueueOp, QueueOptions, QueueRequest};
pub use recording::{Cut, CutKind, Event, Recording, State, States};
pub use recording_device::RecordingDevice;
pub use room::{Room, RoomEvent, RoomReading};
pub use sleep::{SleepHook, about_to_sleep, on_sleep};
pub use stored_overlay::{OverlayError, StoredOverlay};
