//! Checking file systems.

use std::ffi::{CString, c_char, c_int};

use uext4_device::{Access, Device, FileOptions};
use uext4_fsck::{CheckError, Options, Report, Severity};

use crate::args::{self, Shared};
use crate::device::DeviceHandle;
use crate::failure::{Failure, Result, status};
use crate::open;

/// Severity of a finding: lawful, but odd or stale.
pub const UEXT4_WARNING: u32 = 1;
/// Severity of a finding: something is wrong.
pub const UEXT4_ERROR: u32 = 2;
/// Severity of a finding: so wrong that the check stopped.
pub const UEXT4_FATAL: u32 = 3;

/// What a check found. Read by any number of threads.
#[derive(Debug)]
pub struct ReportHandle {
    report: Report,
    /// What the pointers of `findings` lead to.
    _texts: Vec<[CString; 3]>,
    findings: Vec<Finding>,
}

// SAFETY: pointers lead to texts of the same report, which nothing changes.
unsafe impl Send for ReportHandle {}
// SAFETY: as above.
unsafe impl Sync for ReportHandle {}

/// A finding of a check. Its texts are valid until the report is given back.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Finding {
    /// Stable code, such as "inode.checksum" (docs/fsck.md).
    pub code: *const c_char,
    /// Where it is, such as "inode 12".
    pub place: *const c_char,
    /// What is wrong, in a sentence.
    pub sentence: *const c_char,
    /// UEXT4_WARNING, UEXT4_ERROR or UEXT4_FATAL.
    pub severity: u32,
}

/// Sums of a check.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Counts {
    /// Errors; more than there are findings if there are very many.
    pub errors: u64,
    /// Warnings.
    pub warnings: u64,
    /// Findings that uext4_report_finding has.
    pub findings: u64,
    /// Inodes.
    pub inodes: u64,
    /// Inodes in use.
    pub inodes_used: u64,
    /// Blocks.
    pub blocks: u64,
    /// Blocks in use.
    pub blocks_used: u64,
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Devices, pipes and sockets.
    pub special: u64,
    /// 1 if there is nothing to repair, else 0. Warnings do not count.
    pub clean: u32,
    /// 1 if the check stopped half-way, else 0.
    pub stopped: u32,
}

// SAFETY: numbers without padding.
unsafe impl Shared for Counts {}

/// Checks the file system of an image, as e2fsck -fn; nothing is written. A journal that was left
/// dirty is a warning, and is not replayed. Threads: 0 for one for each processor. Damage is in the
/// report and no failure of this call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_fsck(
    image: *const c_char,
    threads: u32,
    report: *mut *mut ReportHandle,
) -> c_int {
    status(None, || {
        args::check_place(report, "report")?;
        // SAFETY: a string, see the crate.
        let image = unsafe { args::text(image, "image") }?;
        let device = open::device(image, &FileOptions::new(Access::ReadOnly))?;
        let found = check(&*device, threads).map_err(|failure| failure.at(image))?;
        // SAFETY: a valid place, see the crate.
        unsafe { args::put(report, Box::into_raw(Box::new(found))) };
        Ok(())
    })
}

/// The same of a device, on which no volume is open for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_fsck_device(
    device: *const DeviceHandle,
    threads: u32,
    report: *mut *mut ReportHandle,
) -> c_int {
    status(None, || {
        args::check_place(report, "report")?;
        // SAFETY: an object, see the crate.
        let device = unsafe { args::object(device, "device") }?;
        let _hold = device.hold(false)?;
        let found = check(&*device.shared(), threads)?;
        // SAFETY: a valid place, see the crate.
        unsafe { args::put(report, Box::into_raw(Box::new(found))) };
        Ok(())
    })
}

fn check(device: &dyn Device, threads: u32) -> Result<ReportHandle> {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if threads == 0 { cores() } else { threads as usize };
    let options = Options { threads, ..Options::default() };
    let checked = uext4_fsck::check(device, &options, &mut ());
    let report = checked.map_err(|error| match &error {
        CheckError::Device(source) => {
            Failure::new(source.raw_os_error().unwrap_or(libc::EIO), error)
        }
        CheckError::Refused { .. } => Failure::new(libc::EOPNOTSUPP, error),
        CheckError::NoFileSystem | CheckError::JournalElsewhere => {
            Failure::new(libc::EUCLEAN, error)
        }
    })?;
    let text = |text: String| CString::new(text.replace('\0', " ")).unwrap_or_default();
    let texts = report.findings.iter().map(|found| {
        let words = [found.code.to_owned(), found.place.to_string(), found.sentence.clone()];
        words.map(text)
    });
    let texts: Vec<[CString; 3]> = texts.collect();
    let findings = report.findings.iter().zip(&texts).map(|(found, texts)| Finding {
        code: texts[0].as_ptr(),
        place: texts[1].as_ptr(),
        sentence: texts[2].as_ptr(),
        severity: match found.severity {
            Severity::Warning => UEXT4_WARNING,
            Severity::Error => UEXT4_ERROR,
            Severity::Fatal => UEXT4_FATAL,
        },
    });
    let findings = findings.collect();
    Ok(ReportHandle { report, findings, _texts: texts })
}

/// Sums of a report. counts_size is sizeof *counts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_report_counts(
    report: *const ReportHandle,
    counts: *mut Counts,
    counts_size: usize,
) -> c_int {
    status(None, || {
        args::check_place(counts, "counts")?;
        // SAFETY: an object, see the crate.
        let ReportHandle { report, findings, .. } = unsafe { args::object(report, "report") }?;
        let value = Counts {
            errors: report.errors,
            warnings: report.warnings,
            findings: findings.len() as u64,
            inodes: report.counts.inodes,
            inodes_used: report.counts.inodes_used,
            blocks: report.counts.blocks,
            blocks_used: report.counts.blocks_used,
            files: report.counts.files,
            directories: report.counts.directories,
            symlinks: report.counts.symlinks,
            special: report.counts.special,
            clean: report.is_clean().into(),
            stopped: report.stopped.into(),
        };
        // SAFETY: a structure of that size, see the crate.
        unsafe { args::fill(counts, counts_size, &value) };
        Ok(())
    })
}

/// A finding by its number, from 0, in the order of the passes; NULL past the last.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_report_finding(
    report: *const ReportHandle,
    number: u64,
) -> *const Finding {
    // SAFETY: a report or NULL, see the crate.
    let found = unsafe { report.as_ref() }
        .and_then(|report| report.findings.get(usize::try_from(number).unwrap_or(usize::MAX)));
    found.map_or(std::ptr::null(), std::ptr::from_ref)
}

/// Gives a report back. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_report_free(report: *mut ReportHandle) {
    if !report.is_null() {
        // SAFETY: it came from `Box::into_raw` and is given back once, see the crate.
        drop(unsafe { Box::from_raw(report) });
    }
}
