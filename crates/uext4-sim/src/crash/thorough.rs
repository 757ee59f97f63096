//! A crash state judged with e2fsck beside uext4.
//!
//! # What each state must show
//! - (a) uext4 opens it; `e2fsck -fn` then finds nothing.
//! - (b) `e2fsck -fy` on another copy recovers the journal and cleans up orphans, nothing else (see
//!   [`crate::oracle`]); `-fn` then finds nothing.
//! - (c) Everything that was synced is there, after (a) and after (b): [`History::check`].
//! - (d) No file holds bytes that were never written to it; free blocks hold junk to show that.
//! - After (a) and (b) the volume shows the same names, attributes and bytes.
//! - Opened read-only it shows the same, and nothing is written.

use crate::encrypted::with_key;
use crate::external;
use crate::model::{History, Mark};
use crate::oracle::{self, Oracle};
use crate::view::View;
use std::sync::Arc;
use uext4::MountOptions;
use uext4_device::{Access, Device, MemoryDevice, SharedDevice};
use uext4_ondisk::Ino;

/// A state to judge.
struct StateCase {
    device: MemoryDevice,
    marks: Vec<Mark>,
}

/// Judges one image, as the states of a recording are judged.
///
/// # Errors
/// The machinery failed.
pub fn judge_image(
    device: MemoryDevice,
    history: &History,
    marks: Vec<Mark>,
) -> Result<Vec<String>, String> {
    let oracle = Oracle::new().map_err(|error| format!("no folder for images: {error}"))?;
    let case = StateCase { device, marks };
    judge_case(&oracle, history, &case)
}

fn judge_case(oracle: &Oracle, history: &History, case: &StateCase) -> Result<Vec<String>, String> {
    let put = |device: &MemoryDevice, name| {
        oracle.put(device, name).map_err(|error| format!("cannot put an image down: {error}"))
    };
    let mut faults = Vec::new();
    let mut add = |way: &str, found: Vec<String>| {
        faults.extend(found.into_iter().map(|what| format!("{way}: {what}")));
    };

    // (a) Recovered by uext4.
    let device = Arc::new(case.device.snapshot());
    let ours = recover(device.clone());
    match &ours {
        Ok(view) => add("after uext4's recovery", history.check(&case.marks, view)),
        Err(error) => add("uext4's recovery", vec![error.clone()]),
    }
    let path = put(&device, "ours.img")?;
    add("after uext4's recovery", oracle::expect_clean(&path).err().into_iter().collect());

    // (b) Recovered by e2fsck.
    let path = put(&case.device, "theirs.img")?;
    let truncated = match oracle::expect_recovery_only(&path) {
        Ok(Some(truncated)) => truncated,
        Ok(None) => return Ok(faults),
        Err(error) => {
            add("recovery by e2fsck", vec![error]);
            Vec::new()
        }
    };
    add("after e2fsck's recovery", oracle::expect_clean(&path).err().into_iter().collect());
    let recovered = external::open_files(&path, Access::ReadOnly)
        .map_err(|error| format!("cannot open what e2fsck left: {error}"))?;
    let mut theirs = read_only(recovered);
    if let (Ok(ours), Ok(theirs)) = (&ours, &mut theirs) {
        forgive_truncated(&truncated, ours, theirs);
    }
    match (&ours, theirs) {
        (Ok(ours), Ok(theirs)) if *ours == theirs => {}
        (ours, Ok(theirs)) => {
            add("after e2fsck's recovery", history.check(&case.marks, &theirs));
            if let Ok(ours) = ours {
                add("uext4's and e2fsck's recovery differ", ours.differences(&theirs));
            }
        }
        (_, Err(error)) => add("after e2fsck's recovery", vec![error]),
    }

    add("read-only", check_read_only(&case.device, ours.as_ref().ok(), &truncated));
    Ok(faults)
}

/// e2fsck loses the attribute block of an orphan that it truncates, and leaves its times alone
/// where uext4 and the kernel set them: see [`crate::oracle`].
fn forgive_truncated(truncated: &[u32], ours: &View, theirs: &mut View) {
    for ino in truncated.iter().map(|&ino| Ino(ino)) {
        if let (Some(our), Some(their)) = (ours.nodes.get(&ino), theirs.nodes.get_mut(&ino)) {
            their.mtime = our.mtime;
            let kept = their.xattrs.iter().all(|(name, value)| our.xattrs.get(name) == Some(value));
            if kept {
                their.xattrs.clone_from(&our.xattrs);
            }
        }
    }
}

/// Opens, reads and closes.
fn recover(device: SharedDevice) -> Result<View, String> {
    let volume = external::open(external::split(&device), with_key(MountOptions::default()))
        .map_err(|e| format!("open: {e}"))?;
    if let Some(reason) = volume.read_only_reason() {
        return Err(format!("opened read-only: {reason}"));
    }
    let view = View::read(&volume)?;
    volume.close().map_err(|error| format!("close: {error}"))?;
    Ok(view)
}

fn read_only(parts: (SharedDevice, Option<SharedDevice>)) -> Result<View, String> {
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let volume =
        external::open(parts, with_key(options)).map_err(|error| format!("open: {error}"))?;
    let view = View::read(&volume)?;
    volume.close().map_err(|error| format!("close: {error}"))?;
    Ok(view)
}

/// A read-only mount of a dirty image shows what recovery makes of it and writes nothing.
fn check_read_only(
    dirty: &MemoryDevice,
    recovered: Option<&View>,
    truncated: &[u32],
) -> Vec<String> {
    let device = Arc::new(dirty.snapshot());
    let mut view = match read_only(external::split(&(device.clone() as SharedDevice))) {
        Ok(view) => view,
        Err(error) => return vec![error],
    };
    let mut faults = Vec::new();
    if let Some(recovered) = recovered {
        // The truncation of an orphan touches its times.
        forgive_truncated(truncated, recovered, &mut view);
        faults = recovered.differences(&view);
    }
    if !same_bytes(dirty, &device) {
        faults.push("the device was written".into());
    }
    faults
}

/// Whether two images have the same bytes.
pub(crate) fn same_bytes(one: &MemoryDevice, other: &MemoryDevice) -> bool {
    const STEP: usize = 1 << 20;
    let (mut left, mut right) = (vec![0; STEP], vec![0; STEP]);
    let mut at = 0;
    while at < one.len() {
        let count = STEP.min((one.len() - at) as usize);
        let read = one.read_at(at, &mut left[..count]).is_ok()
            && other.read_at(at, &mut right[..count]).is_ok();
        if !read || left[..count] != right[..count] {
            return false;
        }
        at += count as u64;
    }
    true
}
