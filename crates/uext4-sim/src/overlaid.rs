//! Runs over an overlay: the power fails on its store.
//!
//! # What
//! The form `overlay` writes to an overlay of the image. The recording is that of the store; a
//! state of it shows the image that a commit of it would make. Blocks that the store does not hold
//! are junk in it, so that a bit without its block is seen. The power fails during such commits as
//! well, then on the base.

use crate::crash::thorough::same_bytes;
use crate::crash::{self, Depth};
use crate::oracle::JUNK;
use std::sync::Arc;
use uext4_device::stored_overlay::{Layout, OverlayError, StoredOverlay, commit, create};
use uext4_device::{Device, MemoryDevice, RecordingDevice, SharedDevice};
use uext4_ondisk::features::{Support, support};
use uext4_ondisk::superblock::{RawSuperblock, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};

fn told(error: impl Into<OverlayError>) -> String {
    format!("overlay: {}", error.into())
}

/// A new store over `base`.
pub(crate) fn make(base: &MemoryDevice) -> Result<MemoryDevice, String> {
    let layout = Layout::new(base.len()).map_err(told)?;
    let store = MemoryDevice::new(layout.store_len());
    let junk = vec![JUNK; 1 << 16];
    for at in (layout.data_offset()..store.len()).step_by(junk.len()) {
        let len = junk.len().min((store.len() - at) as usize);
        store.write_at(at, &junk[..len]).map_err(told)?;
    }
    create(&store, base, b"").map_err(told)?;
    Ok(store)
}

/// Where the image begins in the store.
pub(crate) fn image_start(base: &MemoryDevice) -> u64 {
    Layout::new(base.len()).map_or(0, |layout| layout.data_offset())
}

/// The overlay of a store.
pub(crate) fn open(store: SharedDevice, base: &Arc<MemoryDevice>) -> Result<SharedDevice, String> {
    Ok(Arc::new(StoredOverlay::open(store, base.clone()).map_err(told)?))
}

/// The image that a state of a store shows.
pub(crate) fn merged(store: &MemoryDevice, base: &MemoryDevice) -> Result<MemoryDevice, String> {
    let image = base.snapshot();
    commit(&store.snapshot(), &image, &mut |_| ()).map_err(told)?;
    Ok(image)
}

/// Cuts a commit of a store off, with the writes to the base that are in flight torn. Returns the
/// number of states of the base, and what is wrong with them: one that is neither old nor new and
/// would be used, or that another commit does not make `whole`.
pub(crate) fn cut_commits(
    store: &MemoryDevice,
    base: &MemoryDevice,
    whole: &MemoryDevice,
    seed: u64,
) -> Result<(usize, Vec<String>), String> {
    const STATES_MAX: usize = 48;
    let (store, recorder) = (store.snapshot(), RecordingDevice::over(base.snapshot()));
    commit(&store, &recorder, &mut |_| ()).map_err(told)?;
    let (mut states, mut faults) = (0, Vec::new());
    let depth = Depth { exhaustive_max: 2, random: 2 };
    crash::each_state(&recorder.recording(), depth, seed, &mut |state, name| {
        states += 1;
        let is_whole = same_bytes(state, base) || same_bytes(state, whole);
        if !is_whole && is_used(state) {
            faults.push(format!("commit {name}: half written, and not refused"));
        }
        let image = state.snapshot();
        match commit(&store.snapshot(), &image, &mut |_| ()) {
            Ok(_) if same_bytes(&image, whole) => {}
            Ok(_) => faults.push(format!("commit {name}: finished, and not what was shown")),
            Err(error) => faults.push(format!("commit {name}: {error}")),
        }
        states < STATES_MAX
    });
    Ok((states, faults))
}

/// Whether whatever knows ext4 would take the bytes for a file system that it may use.
fn is_used(image: &MemoryDevice) -> bool {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    let superblock = image.read_at(SUPERBLOCK_OFFSET, &mut bytes).ok();
    let superblock = superblock.and_then(|()| RawSuperblock::read(&bytes).ok());
    superblock.is_some_and(|raw| {
        raw.verify_checksum().is_ok() && !matches!(support(&raw), Support::Refused(_))
    })
}
