//! Losses of power during the recovery of an image: each must come to what the whole recovery
//! comes to.

use crate::crash::{Checker, Depth, Judge, each_state};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use uext4::{FileKind, InodeRef, MountOptions, Volume};
use uext4_device::{MemoryDevice, RecordingDevice, SharedDevice};

/// By path: type, links, size and a sum of the content.
type Listing = BTreeMap<Vec<u8>, String>;

/// Cuts the recovery of an image at most `most` times. Returns how often, and what is wrong.
///
/// # Errors
/// The machinery failed, or the whole recovery.
pub(super) fn cut(image: &Path, seed: u64, most: usize) -> Result<(usize, Vec<String>), String> {
    let text = |error: std::io::Error| error.to_string();
    let base = MemoryDevice::load(image).map_err(text)?;
    let recorder = Arc::new(RecordingDevice::over(base));
    let want = recover(recorder.clone())?;
    let (mut states, mut faults) = (0, Vec::new());
    let depth = Depth { exhaustive_max: 3, random: 1 };
    each_state(&recorder.recording(), depth, seed, &mut |device, name| {
        let device = Arc::new(device.snapshot());
        let found = recover(device.clone()).and_then(|found| {
            let findings = Checker.findings(&device)?;
            Ok((found, findings))
        });
        match found {
            Ok((found, findings)) => {
                faults.extend(findings.into_iter().map(|what| format!("{name}: {what}")));
                let differs = want.iter().find(|(path, what)| found.get(*path) != Some(*what));
                if let Some((path, what)) = differs {
                    let other = found.get(path);
                    let path = path.escape_ascii();
                    faults.push(format!("{name}: {path}: {what} and {other:?}"));
                } else if found.len() != want.len() {
                    faults.push(format!("{name}: {} names and {}", want.len(), found.len()));
                }
            }
            Err(error) => faults.push(format!("{name}: {error}")),
        }
        states += 1;
        states < most && faults.len() < 5
    });
    Ok((states, faults))
}

fn recover(device: SharedDevice) -> Result<Listing, String> {
    let volume =
        Volume::open(device, MountOptions::default()).map_err(|error| format!("open: {error}"))?;
    let mut listing = Listing::new();
    let root = volume.root().map_err(|error| error.to_string())?;
    let listed = list(&volume, &root, b"", &mut listing);
    volume.close().map_err(|error| format!("close: {error}"))?;
    listed.map(|()| listing)
}

fn list(volume: &Volume, dir: &InodeRef, at: &[u8], listing: &mut Listing) -> Result<(), String> {
    let text = |error: uext4::Error| format!("{}: {error}", at.escape_ascii());
    let mut entries = Vec::new();
    volume
        .read_dir(dir, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                entries.push((entry.name.to_vec(), entry.ino));
            }
            true
        })
        .map_err(text)?;
    for (name, ino) in entries {
        let path = [at, b"/", &name].concat();
        let inode = volume.inode(ino).map_err(text)?;
        let attr = volume.attr(&inode);
        let mut sum = 0_u64;
        match attr.kind {
            FileKind::Directory => list(volume, &inode, &path, listing)?,
            FileKind::Regular => {
                let mut bytes = vec![0; usize::try_from(attr.size).unwrap_or(0)];
                volume.open_file(&inode).and_then(|f| f.read_at(0, &mut bytes)).map_err(text)?;
                for byte in bytes {
                    sum = sum.rotate_left(5).wrapping_mul(0x9e37_79b9).wrapping_add(byte.into());
                }
            }
            _ => {}
        }
        let (kind, links, size) = (attr.kind, attr.links, attr.size);
        listing.insert(path, format!("{kind:?}, {links} links, {size} bytes, sum {sum:x}"));
    }
    Ok(())
}
