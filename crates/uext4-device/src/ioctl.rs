//! The ioctls that discard blocks of a block device, or free space of a mounted file system, the
//! one that clones a FUSE connection, and those that set up a loop device.
//!
//! # Soundness
//! Each request passes nothing, or the address of one value of the size that its number names (or,
//! where it names none, that its structure has), alive for the call; the kernel reads it, and with
//! `FITRIM` writes it. It keeps no address. Numbers are in the machine's own order of bytes.

use std::fs::File;
use std::io;
use std::mem::transmute;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

/// `BLKDISCARD` (linux/fs.h): `_IO(0x12, 119)`, with two numbers, offset and length in bytes.
const BLKDISCARD: libc::c_ulong = 0x1277;
/// `FITRIM` (linux/fs.h): `_IOWR('X', 121, struct fstrim_range)`.
pub const FITRIM: u32 = 0xc018_5879;

/// Asks a mount of uext4 about itself: `_IOWR('u', 0x34, [u8; QUESTION_BYTES])`.
pub const QUESTION: u32 = 0xfff0_7534;
/// Bytes of a question and its answer: near the most that the number of an ioctl can name.
pub const QUESTION_BYTES: usize = 16_368;

/// `FUSE_DEV_IOC_CLONE` (linux/fuse.h): `_IOR(229, 0, uint32_t)`.
const FUSE_DEV_IOC_CLONE: libc::c_ulong = 0x8004_e500;

/// `LOOP_CTL_GET_FREE` (linux/loop.h), without an argument.
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4c82;
/// `LOOP_CONFIGURE` (linux/loop.h), with a `struct loop_config`.
const LOOP_CONFIGURE: libc::c_ulong = 0x4c0a;
/// `LO_FLAGS_AUTOCLEAR` (linux/loop.h).
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// `struct fstrim_range`: the range of a file system to trim, in bytes. The kernel returns the
/// number of trimmed bytes as its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct TrimRange {
    /// First byte.
    pub start: u64,
    /// Length.
    pub len: u64,
    /// Shorter free runs are not trimmed.
    pub min_len: u64,
}

impl TrimRange {
    /// Size of the structure in bytes.
    pub const BYTES: usize = 24;

    /// The whole file system, every free block.
    pub const ALL: TrimRange = TrimRange { start: 0, len: u64::MAX, min_len: 0 };

    /// Decodes the structure as a process of this machine passes it. `None` if the length is wrong.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<TrimRange> {
        let bytes: [u8; Self::BYTES] = bytes.try_into().ok()?;
        // SAFETY: both are 24 bytes, and every value of each is one of the other.
        let [start, len, min_len] = unsafe { transmute::<[u8; Self::BYTES], [u64; 3]>(bytes) };
        Some(TrimRange { start, len, min_len })
    }

    /// Encodes the structure as a process of this machine expects it.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let words = [self.start, self.len, self.min_len];
        // SAFETY: both are 24 bytes, and every value of each is one of the other.
        unsafe { transmute::<[u64; 3], [u8; Self::BYTES]>(words) }
    }
}

/// Discards a range of a block device, whose contents are undefined afterwards.
///
/// # Errors
/// `EOPNOTSUPP` if the device cannot; `EINVAL` if the range is not a multiple of its sectors.
pub(crate) fn discard_blocks(device: &File, offset: u64, len: u64) -> io::Result<()> {
    let range = [offset, len];
    // SAFETY: the file is open; the kernel reads the two numbers, which live past the call.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), BLKDISCARD as _, range.as_ptr()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes the file system of the directory `dir` discard its free space. Returns the number of bytes
/// discarded.
///
/// # Errors
/// The error of the file system: `EOPNOTSUPP` or `ENOTTY` if it cannot, `EPERM`, `EINVAL`, `EROFS`.
pub fn trim_mounted(dir: &File, mut range: TrimRange) -> io::Result<u64> {
    // SAFETY: the file is open; the kernel reads and writes the structure, of the layout and size
    // that the request names, which lives past the call and is borrowed for it alone.
    let result = unsafe { libc::ioctl(dir.as_raw_fd(), FITRIM as _, &raw mut range) };
    if result == 0 { Ok(range.len) } else { Err(io::Error::last_os_error()) }
}

/// Asks the file system of the directory `dir` by [`QUESTION`]; the answer takes the question's
/// place. The directory is on a mount of uext4: to others the number may mean anything.
///
/// # Errors
/// The error of the file system.
pub fn question_mounted(dir: &File, question: &mut [u8; QUESTION_BYTES]) -> io::Result<()> {
    // SAFETY: the file is open; the kernel reads and writes as many bytes as the request names,
    // which live past the call and are borrowed for it alone.
    let result = unsafe { libc::ioctl(dir.as_raw_fd(), QUESTION as _, question.as_mut_ptr()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes `device`, a newly opened `/dev/fuse`, another descriptor of a FUSE connection, with a list
/// of its own of the requests that it was given.
///
/// # Errors
/// The kernel's refusal.
pub fn clone_fuse(connection: BorrowedFd<'_>, device: &File) -> io::Result<()> {
    let number = connection.as_raw_fd();
    // SAFETY: the file is open; the kernel reads four bytes, which live past the call.
    let result =
        unsafe { libc::ioctl(device.as_raw_fd(), FUSE_DEV_IOC_CLONE as _, &raw const number) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `struct loop_config`, which has a `struct loop_info64` inside.
#[repr(C)]
pub(crate) struct LoopConfig {
    fd: u32,
    block_size: u32,
    /// `lo_device`, `lo_inode`, `lo_rdevice`, `lo_offset`, `lo_sizelimit`.
    places: [u64; 5],
    /// `lo_number`, `lo_encrypt_type`, `lo_encrypt_key_size`.
    numbers: [u32; 3],
    flags: u32,
    /// `lo_file_name`, `lo_crypt_name`.
    names: [[u64; 8]; 2],
    key: [u64; 4],
    init: [u64; 2],
    reserved: [u64; 8],
}

impl LoopConfig {
    /// All of an open file; the device goes when nobody has it open.
    pub(crate) fn autoclear(file: RawFd) -> Self {
        Self {
            fd: file.cast_unsigned(),
            block_size: 0,
            places: [0; 5],
            numbers: [0; 3],
            flags: LO_FLAGS_AUTOCLEAR,
            names: [[0; 8]; 2],
            key: [0; 4],
            init: [0; 2],
            reserved: [0; 8],
        }
    }
}

/// The number of a loop device that is free now.
///
/// # Errors
/// `EPERM`, or no more devices.
pub(crate) fn loop_get_free(control: &File) -> io::Result<u32> {
    // SAFETY: the file is open; nothing is passed.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _) };
    u32::try_from(number).map_err(|_| io::Error::last_os_error())
}

/// Sets up a loop device.
///
/// # Errors
/// `EBUSY`: it is not free any more.
pub(crate) fn loop_configure(device: &File, config: &LoopConfig) -> io::Result<()> {
    // SAFETY: the file is open; the kernel reads the structure, which lives past the call.
    let result =
        unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, &raw const *config) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structure_is_that_of_the_kernel() {
        assert_eq!(size_of::<TrimRange>(), TrimRange::BYTES);
        let range = TrimRange { start: 1, len: u64::MAX, min_len: 4096 };
        assert_eq!(TrimRange::from_bytes(&range.to_bytes()), Some(range));
        assert_eq!(TrimRange::from_bytes(&[0; 23]), None);
        assert_eq!(size_of::<LoopConfig>(), 304);
        assert_eq!(std::mem::offset_of!(LoopConfig, flags), 60);
    }

    #[test]
    fn a_file_is_no_block_device() {
        let file = tempfile::tempfile().unwrap();
        assert!(discard_blocks(&file, 0, 4096).is_err());
    }
}
