//! A volume, as Python's layer calls it: operations by absolute path, in bytes.
//!
//! # Invariants
//! Closing takes the volume from all users and closes the open files, so that when the calls under
//! way have ended the image is no longer open. After a fork the volume is the parent's: the child
//! has neither its threads nor its lock on the image, so there each call fails, and nothing is
//! written when the objects go.

use crate::error::Failure;
use crate::file::{File, OpenState};
use crate::image;
use crate::names::{OpenFlags, Stat};
use parking_lot::{Mutex, RwLock};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::mem::ManuallyDrop;
use std::process;
use std::sync::{Arc, Weak};
use uext4::{MountOptions, Owner};
use uext4_device::{Access, FileOptions};

/// What a volume and its open files share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The process that opened it.
    pid: u32,
    /// The group of what changes files.
    pub(crate) group: u32,
    /// `None` once it is closed; locked for writing while it is being closed.
    volume: RwLock<Option<uext4::Volume>>,
    /// Open files, which closing the volume closes.
    files: Mutex<Vec<Weak<OpenState>>>,
}

impl Shared {
    /// The engine's volume, for one call.
    pub(crate) fn volume(&self) -> Result<uext4::Volume, Failure> {
        if !self.is_own() {
            let why = "the volume was opened before a fork, by another process";
            return Err(Failure::Value(why.to_owned()));
        }
        self.volume.read().clone().ok_or_else(|| Failure::closed("volume"))
    }

    /// Whether this process opened it.
    pub(crate) fn is_own(&self) -> bool {
        self.pid == process::id()
    }

    /// Does the work of a call; a panic in it stops the volume.
    pub(crate) fn guarded<T>(
        &self,
        work: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        crate::error::guarded(|| self.volume().ok(), work)
    }

    /// Notes an open file, unless the volume is closed.
    pub(crate) fn note(&self, file: &Arc<OpenState>) -> Result<(), Failure> {
        let mut files = self.files.lock();
        files.retain(|file| file.strong_count() > 0);
        files.push(Arc::downgrade(file));
        drop(files);
        // Closing closes what is noted after it has taken the volume.
        self.volume().map(drop)
    }

    fn close(&self) -> Result<(), Failure> {
        if !self.is_own() {
            return Ok(());
        }
        let mut volume = self.volume.write();
        let Some(open) = volume.take() else { return Ok(()) };
        let stopped = open.clone();
        crate::error::guarded(
            || Some(stopped),
            || {
                let files = std::mem::take(&mut *self.files.lock());
                let mut failed = None;
                for file in files.iter().filter_map(Weak::upgrade) {
                    failed = file.close().err().or(failed);
                }
                open.close()?;
                failed.map_or(Ok(()), Err)
            },
        )
    }
}

/// Never drops what a child of fork has of its parent: dropping it would close it here.
pub(crate) fn keep_for_ever<T>(value: T) {
    let _kept = ManuallyDrop::new(value);
}

/// A volume. `uext4.Volume` has the documentation.
#[pyclass(frozen, module = "uext4._uext4")]
pub(crate) struct Volume {
    shared: Arc<Shared>,
}

impl Drop for Volume {
    fn drop(&mut self) {
        if !self.shared.is_own() {
            keep_for_ever(Arc::clone(&self.shared));
        }
    }
}

impl Volume {
    /// Does something with the engine's volume, without the interpreter.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        path: Option<&[u8]>,
        work: impl FnOnce(&uext4::Volume) -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        let done = py.detach(|| self.shared.guarded(|| work(&self.shared.volume()?)));
        done.map_err(|failure| failure.raise(py, path))
    }
}

/// Opens the file system; `words` are those of `-o`.
fn open(
    image: &[u8],
    read_only: bool,
    words: &[String],
    place: (u64, Option<u64>),
) -> Result<uext4::Volume, Failure> {
    let mut mount = MountOptions { read_only, ..MountOptions::default() };
    let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
    let mut file = FileOptions::auto(access);
    for word in words.iter().filter(|word| !word.is_empty()) {
        if !file.parse(word).map_err(Failure::Value)? {
            mount.parse(word).map_err(|error| Failure::Value(error.to_string()))?;
        }
    }
    mount.check().map_err(Failure::Value)?;
    if mount.read_only {
        file.access = Access::ReadOnly;
    }
    (file.offset, file.len) = place;
    let wants_to_write = !mount.read_only;
    let volume = uext4::Volume::open(image::open(image, &file)?, mount)?;
    if wants_to_write && volume.read_only() {
        let why = volume.read_only_reason().unwrap_or_else(|| "unknown reason".to_owned());
        return Err(Failure::Os(libc::EROFS, format!("can only be read: {why}")));
    }
    Ok(volume)
}

#[pymethods]
impl Volume {
    #[new]
    fn new(
        py: Python<'_>,
        image: &[u8],
        read_only: bool,
        options: Vec<String>,
        offset: u64,
        length: Option<u64>,
        group: u32,
    ) -> PyResult<Self> {
        let opened = py.detach(|| open(image, read_only, &options, (offset, length)));
        let volume = opened.map_err(|failure| failure.raise(py, Some(image)))?;
        let shared = Shared {
            pid: process::id(),
            group,
            volume: RwLock::new(Some(volume)),
            files: Mutex::new(Vec::new()),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Writes everything back and closes the image. Again, it does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let closed = py.detach(|| self.shared.close());
        closed.map_err(|failure| failure.raise(py, None))
    }

    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        py.detach(|| self.shared.volume().is_err())
    }

    #[getter]
    fn is_own(&self) -> bool {
        self.shared.is_own()
    }

    #[getter]
    fn read_only(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, None, |volume| Ok(volume.read_only()))
    }

    #[getter]
    fn label<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let label = self.with(py, None, |volume| Ok(volume.label()))?;
        Ok(PyBytes::new(py, &label))
    }

    fn set_label(&self, py: Python<'_>, label: &[u8]) -> PyResult<()> {
        self.with(py, None, |volume| Ok(volume.set_label(label)?))
    }

    #[getter]
    fn uuid<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let uuid = self.with(py, None, |volume| Ok(volume.layout().uuid))?;
        Ok(PyBytes::new(py, &uuid))
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, None, |volume| Ok(volume.sync()?))
    }

    /// Block size, blocks, free and available blocks, inodes, free inodes, longest name.
    #[allow(clippy::type_complexity)]
    fn statfs(&self, py: Python<'_>) -> PyResult<(u32, u64, u64, u64, u64, u64, u32)> {
        let fs = self.with(py, None, |volume| Ok(volume.stat_fs()))?;
        Ok((
            fs.block_size,
            fs.blocks,
            fs.blocks_free,
            fs.blocks_available,
            fs.inodes,
            fs.inodes_free,
            fs.name_max,
        ))
    }

    /// Counters and levels by name, and `latencies`: calls, and mean and 99th percentile in
    /// nanoseconds.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.with(py, None, |volume| Ok(volume.stats()))?;
        let dict = PyDict::new(py);
        for (name, number) in stats.counters.iter().chain(&stats.levels) {
            dict.set_item(name, number)?;
        }
        let latencies = PyDict::new(py);
        for (name, reading) in &stats.histograms {
            let one = PyDict::new(py);
            one.set_item("calls", reading.calls)?;
            one.set_item("mean_ns", reading.timed.mean_ns())?;
            one.set_item("p99_ns", reading.timed.quantile_ns(0.99))?;
            latencies.set_item(name, one)?;
        }
        dict.set_item("open_for_s", stats.open_for.as_secs_f64())?;
        dict.set_item("latencies", latencies)?;
        Ok(dict)
    }

    /// Opens a regular file.
    #[pyo3(signature = (path, *, read, write, create, exclusive, truncate, append, mode, owner))]
    #[allow(clippy::too_many_arguments, clippy::fn_params_excessive_bools)]
    fn open(
        &self,
        py: Python<'_>,
        path: &[u8],
        read: bool,
        write: bool,
        create: bool,
        exclusive: bool,
        truncate: bool,
        append: bool,
        mode: u16,
        owner: (u32, u32),
    ) -> PyResult<File> {
        let flags = OpenFlags { write, create, exclusive, truncate, mode, owner: owner_of(owner) };
        let state = self.with(py, Some(path), |volume| {
            let state = Arc::new(OpenState::new(flags.open(volume, path)?));
            self.shared.note(&state)?;
            Ok(state)
        })?;
        let _ = read;
        Ok(File::new(Arc::clone(&self.shared), state, append && write))
    }

    /// Attributes: see `Stat`.
    fn stat(&self, py: Python<'_>, path: &[u8], follow: bool) -> PyResult<Stat> {
        self.with(py, Some(path), |volume| crate::names::stat(volume, path, follow))
    }

    /// Names of a directory with inode and type bits (0 if the directory does not have them).
    fn list_dir<'py>(
        &self,
        py: Python<'py>,
        path: &[u8],
    ) -> PyResult<Vec<(Bound<'py, PyBytes>, u32, u16)>> {
        let names = self.with(py, Some(path), |volume| crate::names::list(volume, path))?;
        let entry = |(name, ino, kind): (Vec<u8>, u32, u16)| (PyBytes::new(py, &name), ino, kind);
        Ok(names.into_iter().map(entry).collect())
    }

    fn mkdir(&self, py: Python<'_>, path: &[u8], mode: u16, owner: (u32, u32)) -> PyResult<()> {
        let owner = owner_of(owner);
        self.with(py, Some(path), |volume| crate::names::mkdir(volume, path, mode, owner))
    }

    fn symlink(
        &self,
        py: Python<'_>,
        target: &[u8],
        path: &[u8],
        owner: (u32, u32),
    ) -> PyResult<()> {
        let owner = owner_of(owner);
        self.with(py, Some(path), |volume| crate::names::symlink(volume, target, path, owner))
    }

    /// A hard link `path` to `target`.
    fn link(&self, py: Python<'_>, target: &[u8], path: &[u8], follow: bool) -> PyResult<()> {
        self.with(py, Some(path), |volume| crate::names::link(volume, target, path, follow))
    }

    fn unlink(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        self.with(py, Some(path), |volume| crate::names::remove(volume, path, false))
    }

    fn rmdir(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        self.with(py, Some(path), |volume| crate::names::remove(volume, path, true))
    }

    fn rename(&self, py: Python<'_>, source: &[u8], target: &[u8], replace: bool) -> PyResult<()> {
        self.with(py, Some(source), |volume| crate::names::rename(volume, source, target, replace))
    }

    fn readlink<'py>(&self, py: Python<'py>, path: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let target = self.with(py, Some(path), |volume| crate::names::readlink(volume, path))?;
        Ok(PyBytes::new(py, &target))
    }

    /// Sets what is not `None`; times are seconds and nanoseconds.
    #[pyo3(signature = (path, follow, *, mode=None, uid=None, gid=None, size=None, atime=None,
        mtime=None))]
    #[allow(clippy::too_many_arguments)]
    fn set_attr(
        &self,
        py: Python<'_>,
        path: &[u8],
        follow: bool,
        mode: Option<u16>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<(i64, u32)>,
        mtime: Option<(i64, u32)>,
    ) -> PyResult<()> {
        let change = crate::names::Change { mode, uid, gid, size, atime, mtime };
        let group = self.shared.group;
        self.with(py, Some(path), |volume| change.apply(volume, path, follow, group))
    }

    fn get_xattr<'py>(
        &self,
        py: Python<'py>,
        path: &[u8],
        name: &[u8],
        follow: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let value = self.with(py, Some(path), |volume| {
            let inode = crate::names::find(volume, path, follow)?;
            Ok(volume.xattr_get(&inode, name)?)
        })?;
        Ok(PyBytes::new(py, &value))
    }

    fn list_xattrs<'py>(
        &self,
        py: Python<'py>,
        path: &[u8],
        follow: bool,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let names = self.with(py, Some(path), |volume| {
            let inode = crate::names::find(volume, path, follow)?;
            Ok(volume.xattr_list(&inode)?)
        })?;
        Ok(names.iter().map(|name| PyBytes::new(py, name)).collect())
    }

    /// Sets an attribute; without a value it is removed. `flags` as of setxattr(2).
    fn set_xattr(
        &self,
        py: Python<'_>,
        path: &[u8],
        name: &[u8],
        value: Option<&[u8]>,
        flags: i32,
        follow: bool,
    ) -> PyResult<()> {
        let mode = match flags {
            libc::XATTR_CREATE => uext4::XattrMode::Create,
            libc::XATTR_REPLACE => uext4::XattrMode::Replace,
            0 => uext4::XattrMode::Any,
            _ => return Err(Failure::errno(libc::EINVAL).raise(py, Some(path))),
        };
        self.with(py, Some(path), |volume| {
            let inode = crate::names::find(volume, path, follow)?;
            match value {
                Some(value) => volume.xattr_set(&inode, name, value, mode)?,
                None => volume.xattr_remove(&inode, name)?,
            }
            Ok(())
        })
    }
}

fn owner_of((uid, gid): (u32, u32)) -> Owner {
    Owner { uid, gid }
}
