//! Opening an image, and choosing how requests reach its store.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::FileDevice;
use super::durable::DurableFiles;
use super::undo::{Before, Undo, put_back};
use crate::direct::Direct;
use crate::flush_latch::FlushLatch;
use crate::image_lock::{LockedImage, check_kind, is_hole, lock, open_locked, refuse_loop_backing};
use crate::open_error::OpenError;
use crate::options::{Access, Caching, FileOptions, Submission};
use crate::rings::Rings;
use crate::room::Room;

/// Bytes of a page of the kernel's page cache.
const PAGE_BYTES: u64 = 4096;
/// Largest unit that is believed, because some stores report the size of efficient requests
/// instead.
const DISCARD_UNIT_MAX: u64 = 64 << 10;

impl FileDevice {
    /// Opens an image, through the page cache and without io_uring. The device reaches from
    /// `offset` (bytes) to the end of the file. The lock covers the whole file.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(path: &Path, access: Access, offset: u64) -> Result<FileDevice, OpenError> {
        FileDevice::open_with(path, &FileOptions { offset, ..FileOptions::new(access) })
    }

    /// Opens an image. The lock covers the whole file. If the store or the system lacks what the
    /// options request, the device does without, and [`FileDevice::notice`] says so.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_with(path: &Path, options: &FileOptions) -> Result<FileDevice, OpenError> {
        FileDevice::open_where(path, options, None)
    }

    /// `open_with`, for tests also as if the system refused io_uring with this errno.
    pub(super) fn open_where(
        path: &Path,
        options: &FileOptions,
        uring_refused: Option<i32>,
    ) -> Result<FileDevice, OpenError> {
        let (writing, offset) = (options.access == Access::ReadWrite, options.offset);
        let LockedImage { file, block_device, total } = open_locked(path, options.access, offset)?;
        let len = options.len.unwrap_or(total - offset);
        if len > total - offset {
            let (path, end) = (path.to_path_buf(), offset.saturating_add(len));
            return Err(OpenError::EndPastEnd { path, end, len: total });
        }
        let fresh = writing && !block_device && is_hole(&file, offset..offset + len);
        let mut device =
            FileDevice::assemble(path, file, !writing, block_device, offset, len, fresh);
        device.room = Room::new(options.no_space_timeout);
        device.start_direct(options.caching);
        device.start_rings(options.submission, uring_refused);
        Ok(device)
    }

    /// Creates a sparse file of `len` bytes, all zero, and opens it for writing. An existing file
    /// is emptied first, under the locks and checks of [`FileDevice::open`].
    ///
    /// # Errors
    /// See [`OpenError`]. If the call fails, a file that it created is removed, and one that was
    /// there has its content still.
    pub fn create(path: &Path, len: u64) -> Result<FileDevice, OpenError> {
        let created = FileDevice::create_where(path, len, false)?;
        // `None` is for what must not be replaced.
        created.ok_or_else(|| OpenError::Empty { path: path.to_path_buf() })
    }

    /// As [`FileDevice::create`]; `None` for a file that has data, which stays as it is. One that
    /// is but a hole has none. It is looked at under the lock.
    ///
    /// # Errors
    /// See [`OpenError`]. If the call fails, a file that it created is removed, and one that was
    /// there has the length that it had.
    pub fn create_unless_filled(path: &Path, len: u64) -> Result<Option<FileDevice>, OpenError> {
        FileDevice::create_where(path, len, true)
    }

    fn create_where(
        path: &Path,
        len: u64,
        spares_data: bool,
    ) -> Result<Option<FileDevice>, OpenError> {
        let fail = |action, error| OpenError::from_io(path, true, action, error);
        if len == 0 {
            return Err(OpenError::Empty { path: path.to_path_buf() });
        }
        let existed = match std::fs::metadata(path) {
            Ok(found) => {
                check_kind(path, &found)?;
                if found.file_type().is_block_device() {
                    return Err(OpenError::WrongKind {
                        path: path.to_path_buf(),
                        found: "block device",
                        wanted: "a file",
                    });
                }
                true
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(fail("look at it", error)),
        };
        let (file, created) = open_or_create(path, existed).map_err(|it| fail("create it", it))?;
        lock(path, &file, true, false)?;
        let found = file.metadata().map_err(|error| fail("look at it", error))?;
        check_kind(path, &found)?;
        refuse_loop_backing(path, &found)?;
        let before = match is_hole(&file, 0..found.len()) {
            _ if created => Before::Nothing,
            true => Before::Hole(found.len()),
            false if spares_data => return Ok(None),
            // Its data is lost.
            false => Before::Same,
        };
        // A length that the host refuses is refused before anything is lost.
        let sized = file.set_len(len).and_then(|()| file.set_len(0));
        if let Err(error) = sized.and_then(|()| file.set_len(len)) {
            put_back(path, &file, before);
            return Err(fail("give it its size", error));
        }
        let mut device = FileDevice::assemble(path, file, false, false, 0, len, true);
        device.before = before;
        Ok(Some(device))
    }

    /// Opens a file for writing that is to have at least `len` bytes: a shorter one is lengthened
    /// by a hole, and keeps its data.
    ///
    /// # Errors
    /// See [`OpenError`]. If the call fails, the file has the length that it had.
    pub fn open_lengthened(path: &Path, len: u64) -> Result<FileDevice, OpenError> {
        let LockedImage { file, block_device, total } = open_locked(path, Access::ReadWrite, 0)?;
        let before = if total < len { Before::Shorter(total) } else { Before::Same };
        let len = total.max(len);
        if before != Before::Same {
            let fail = |error| OpenError::from_io(path, true, "give it its size", error);
            file.set_len(len).map_err(fail)?;
        }
        let fresh = !block_device && is_hole(&file, 0..len);
        let mut device = FileDevice::assemble(path, file, false, block_device, 0, len, fresh);
        device.before = before;
        Ok(device)
    }

    /// What puts back what was there before [`FileDevice::create`],
    /// [`FileDevice::create_unless_filled`] or [`FileDevice::open_lengthened`], and outlives the
    /// device. A file is removed if it was made at this very path: not behind a symbolic link that
    /// led to nothing.
    ///
    /// # Errors
    /// No descriptor is left for it.
    pub fn undo(&self) -> io::Result<Undo> {
        Ok(Undo::new(&self.path, self.file.try_clone()?, self.before))
    }

    /// Puts it back, while the file is locked still.
    pub fn put_back(&self) {
        put_back(&self.path, &self.file, self.before);
    }

    fn start_direct(&mut self, caching: Caching) {
        let wanted = match caching {
            Caching::Buffered => false,
            Caching::Direct => true,
            Caching::Auto => !self.read_only,
        };
        if !wanted {
            return;
        }
        let try_sizes = caching == Caching::Direct;
        match Direct::start(&self.file, self.start, self.len, try_sizes) {
            Ok(direct) => {
                self.direct = Some(direct);
                if self.durable.is_some() {
                    self.durable = DurableFiles::open(&self.file, libc::O_DIRECT);
                }
            }
            Err(why) if caching == Caching::Direct => {
                self.note(&format!("{why}; using the page cache"));
            }
            Err(_) => {}
        }
    }

    fn start_rings(&mut self, submission: Submission, refused: Option<i32>) {
        (self.submission, self.uring_refused) = (submission, refused);
        let wanted = match submission {
            Submission::Pread => false,
            Submission::Uring => true,
            Submission::Auto => self.direct.is_some(),
        };
        if !wanted || self.read_only {
            return;
        }
        let opened = match (refused, self.reopened()) {
            (Some(errno), _) => Err(io::Error::from_raw_os_error(errno)),
            (None, Some(file)) => Rings::open(file, self.direct.as_ref().map(Direct::alignment)),
            (None, None) => Err(io::Error::other("/proc is not there")),
        };
        match opened {
            Ok(rings) => self.rings = Some(rings),
            Err(error) => {
                self.note(&format!("no io_uring: {}; writing by pwrite", uring_reason(&error)));
            }
        }
    }

    fn note(&mut self, line: &str) {
        let earlier = self.notice.take().map_or_else(String::new, |earlier| earlier + "; ");
        self.notice = Some(earlier + line);
    }

    fn assemble(
        path: &Path,
        file: File,
        read_only: bool,
        block_device: bool,
        start: u64,
        len: u64,
        fresh: bool,
    ) -> FileDevice {
        let store_block = file.metadata().map_or(0, |found| found.blksize());
        // A synchronous write to a block device is a FUA write *and* a flush, which is one too
        // many.
        let synchronous = !read_only && !block_device;
        let durable = if synchronous { DurableFiles::open(&file, 0) } else { None };
        FileDevice {
            path: path.to_path_buf(),
            file,
            before: Before::Same,
            durable,
            start,
            len,
            block_device,
            discard_unit: store_block.clamp(PAGE_BYTES, DISCARD_UNIT_MAX),
            read_only,
            fresh: AtomicBool::new(fresh),
            flushes: FlushLatch::default(),
            room: Room::new(Duration::ZERO),
            direct: None,
            uncached: OnceLock::new(),
            rings: None,
            submission: Submission::Pread,
            uring_refused: None,
            notice: None,
            queue_notice: OnceLock::new(),
        }
    }
}

/// Opens a file for writing, which is made if it is not there, and tells whether it was made at
/// this very path: not behind a symbolic link that led to nothing, and not by another process.
fn open_or_create(path: &Path, existed: bool) -> io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NOCTTY);
    if !existed {
        match options.clone().create_new(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            file => return file.map(|file| (file, true)),
        }
    }
    options.create(true).truncate(false).open(path).map(|file| (file, false))
}

/// The reason why there is no ring, for a notice.
pub(super) fn uring_reason(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOSYS) => "this kernel has none".to_owned(),
        Some(libc::EPERM | libc::EACCES) => {
            "not allowed here (kernel.io_uring_disabled, or a sandbox)".to_owned()
        }
        _ => error.to_string(),
    }
}

/// Opens the same file again, with its own flags and its own report of writeback errors. It uses
/// the entry under `/proc`, because the path may name another file by now.
pub(super) fn reopen(file: &File, writing: bool, flags: libc::c_int) -> Option<File> {
    OpenOptions::new()
        .read(true)
        .write(writing)
        .custom_flags(flags | libc::O_NOCTTY)
        .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
        .ok()
}
