//! Runs over an overlay: the power fails on its store.
//!
//! # What
//! The form `overlay` writes to an overlay of the image. The recording is that of the store; a
//! state of it shows the image that a commit of it would make. Blocks that the store does not hold
//! are junk in it, so that a bit without its block is seen.

use crate::oracle::JUNK;
use std::sync::Arc;
use uext4_device::stored_overlay::{Layout, OverlayError, StoredOverlay, commit, create};
use uext4_device::{Device, MemoryDevice, SharedDevice};

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
