//! The judges of an image that something was written into.

use std::path::Path;
use std::time::Duration;

use uext4_device::MemoryDevice;
use uext4_fsck::Options;

use crate::oracle::{judge_within, program};

/// Time for e2fsck.
const TIME: Duration = Duration::from_secs(60);

/// What is wrong with the image at `path`, in words, by both checkers.
pub(super) fn unsound(path: &Path) -> Option<String> {
    let device = match MemoryDevice::load(path) {
        Ok(device) => device,
        Err(error) => return Some(error.to_string()),
    };
    match uext4_fsck::check(&device, &Options::default(), &mut ()) {
        Ok(report) if report.is_clean() => {}
        Ok(report) => return Some(format!("the image is damaged: {}", report.findings[0])),
        Err(error) => return Some(format!("the image cannot be checked: {error}")),
    }
    program("e2fsck")?;
    match judge_within(path, "-fn", TIME) {
        Ok(verdict) if verdict.code == 0 => None,
        Ok(verdict) => Some(format!("e2fsck -fn: {}: {}", verdict.code, verdict.text.trim())),
        Err(error) => Some(format!("e2fsck: {error}")),
    }
}
