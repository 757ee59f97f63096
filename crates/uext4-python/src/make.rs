//! Making and checking file systems.

use crate::error::Failure;
use crate::image;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::Arc;
use uext4_device::{Access, FileDevice, FileOptions, SharedDevice};
use uext4_fsck::CheckError;
use uext4_mkfs::{FsType, MkfsError, Options, Report};
use uext4_nbd::NbdUri;

/// Bytes at the start of a device that must be zero where something is to be made without force:
/// every file system and partition table has its mark there.
const MARKS_END: usize = 1 << 20;

/// Makes a file system. `uext4.mkfs` has the documentation.
#[pyfunction]
#[pyo3(signature = (image, *, size, offset, length, force, fs_type, label, block_size, inode_size,
    inode_ratio, inodes, reserved_percent, features, journal_mib, uuid, root_owner, root_mode,
    epoch))]
#[allow(clippy::too_many_arguments)]
pub(crate) fn mkfs<'py>(
    py: Python<'py>,
    image: &[u8],
    size: Option<u64>,
    offset: u64,
    length: Option<u64>,
    force: bool,
    fs_type: &str,
    label: String,
    block_size: Option<u32>,
    inode_size: Option<u32>,
    inode_ratio: Option<u32>,
    inodes: Option<u32>,
    reserved_percent: Option<f64>,
    features: String,
    journal_mib: Option<u32>,
    uuid: Option<[u8; 16]>,
    root_owner: Option<(u32, u32)>,
    root_mode: Option<u16>,
    epoch: Option<u32>,
) -> PyResult<Bound<'py, PyDict>> {
    let made = py.detach(|| -> Result<_, Failure> {
        let unknown = || Failure::Value(format!("{fs_type}: ext2, ext3 and ext4 are made"));
        if label.len() > 16 {
            return Err(Failure::Value("a label has at most 16 bytes".to_owned()));
        }
        let mut options = Options {
            size,
            fs_type: FsType::parse(fs_type).ok_or_else(unknown)?,
            label,
            block_size,
            inode_size,
            inode_ratio,
            inodes,
            reserved_percent,
            features,
            journal_mib,
            uuid,
            root_owner,
            root_mode,
            ..Options::default()
        };
        let target = open_to_make(image, size, (offset, length), force)?;
        let mut make = || -> Result<_, Failure> {
            if force {
                check_no_host_has_it(&target.device)?;
            }
            if let Some(epoch) = epoch {
                let bytes = size.unwrap_or(target.device.len());
                options.make_reproducible(epoch, format!("{bytes} bytes").as_bytes());
            }
            Ok(uext4_mkfs::format(&*target.device, &options)?)
        };
        make().inspect_err(|_| target.put_back())
    });
    report(py, &made.map_err(|failure| failure.raise(py, Some(image)))?)
}

/// What a file system is made on.
struct Target {
    device: SharedDevice,
    /// The same, where it is a file that is made for it, or lengthened.
    file: Option<Arc<FileDevice>>,
}

impl Target {
    fn file(file: FileDevice) -> Self {
        let file = Arc::new(file);
        Self { device: Arc::clone(&file) as SharedDevice, file: Some(file) }
    }

    /// Removes a file that was made for it, or gives one that was there the length that it had.
    fn put_back(&self) {
        if let Some(file) = &self.file {
            file.put_back();
        }
    }
}

/// Opens what a file system is made on.
fn open_to_make(
    image: &[u8],
    size: Option<u64>,
    (offset, len): (u64, Option<u64>),
    force: bool,
) -> Result<Target, Failure> {
    let mut options = FileOptions { offset, len, ..FileOptions::new(Access::ReadWrite) };
    let is_uri = str::from_utf8(image).is_ok_and(NbdUri::is_meant);
    let path = image::path(image);
    if let (false, Some(size), 0, None) = (is_uri, size, offset, len)
        && path.metadata().map_or(true, |found| found.is_file())
    {
        let opening = |error| image::opening(image, &error);
        if let Some(file) = FileDevice::create_unless_filled(path, size).map_err(opening)? {
            return Ok(Target::file(file));
        }
        if !force {
            let why = "has data; force=True overwrites it".to_owned();
            return Err(Failure::Os(libc::EEXIST, why));
        }
        if path.metadata()?.len() < size {
            let file = FileDevice::open_lengthened(path, size).map_err(opening)?;
            return Ok(Target::file(file));
        }
    }
    options.len = len;
    let device = image::open(image, &options)?;
    if !force {
        let there = usize::try_from(device.len()).unwrap_or(usize::MAX);
        let mut start = vec![0; MARKS_END.min(there)];
        device.read_at(0, &mut start)?;
        if start.iter().any(|byte| *byte != 0) {
            let why = "is not empty; force=True overwrites it".to_owned();
            return Err(Failure::Os(libc::EEXIST, why));
        }
    }
    Ok(Target { device, file: None })
}

/// Refuses what another host has mounted, as mmp tells, or may have. Whatever else lies there, or
/// is damaged, is overwritten.
fn check_no_host_has_it(device: &SharedDevice) -> Result<(), Failure> {
    match uext4::mmp_holder(device) {
        Ok(Some(holder)) => Err(Failure::Os(libc::EBUSY, format!("{holder}: in use"))),
        Err(error) if *error.kind() == uext4::ErrorKind::Io => {
            let why = format!("cannot see whether another host has it: {error}");
            Err(Failure::Os(libc::EIO, why))
        }
        _ => Ok(()),
    }
}

fn report<'py>(py: Python<'py>, report: &Report) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("block_size", report.block_size)?;
    dict.set_item("blocks", report.blocks)?;
    dict.set_item("free_blocks", report.free_blocks)?;
    dict.set_item("inodes", report.inodes)?;
    dict.set_item("groups", report.groups)?;
    dict.set_item("journal_blocks", report.journal_blocks)?;
    dict.set_item("uuid", pyo3::types::PyBytes::new(py, &report.uuid))?;
    dict.set_item("features", &report.features)?;
    dict.set_item("warnings", &report.warnings)?;
    Ok(dict)
}

impl From<MkfsError> for Failure {
    fn from(error: MkfsError) -> Self {
        let text = error.to_string();
        match error {
            MkfsError::Io { source, .. } => {
                Self::Os(source.raw_os_error().unwrap_or(libc::EIO), text)
            }
            _ => Self::Value(text),
        }
    }
}

/// A finding: code, severity, place, sentence.
type FindingTuple = (String, String, String, String);

/// Checks a file system, which is only read: whether it is clean, whether the check stopped
/// half-way, and the findings.
#[pyfunction]
pub(crate) fn fsck(
    py: Python<'_>,
    image: &[u8],
    offset: u64,
    length: Option<u64>,
    threads: Option<usize>,
) -> PyResult<(bool, bool, Vec<FindingTuple>)> {
    let checked = py.detach(|| -> Result<_, Failure> {
        let options = FileOptions { offset, len: length, ..FileOptions::new(Access::ReadOnly) };
        let device = image::open(image, &options)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let options = uext4_fsck::Options {
            threads: threads.unwrap_or(cores),
            ..uext4_fsck::Options::default()
        };
        uext4_fsck::check(&*device, &options, &mut ()).map_err(|error| match error {
            CheckError::Device(source) => source.into(),
            error => Failure::Os(libc::EUCLEAN, error.to_string()),
        })
    });
    let report = checked.map_err(|failure| failure.raise(py, Some(image)))?;
    let finding = |finding: &uext4_fsck::Finding| {
        let place = finding.place.to_string();
        (
            finding.code.to_owned(),
            finding.severity.name().to_owned(),
            place,
            finding.sentence.clone(),
        )
    };
    let findings = report.findings.iter().map(finding).collect();
    Ok((report.is_clean(), report.stopped, findings))
}
