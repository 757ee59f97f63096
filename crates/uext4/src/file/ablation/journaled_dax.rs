//! A handle for each overwrite in DAX mode: `dax_overwrite=journal`.
//!
//! What: kernels before 5.10 began a write inside a file with a handle and put the inode into it.
//! Locking: the handle ends before the read-side critical section of the overwrite begins, because
//! a thread in one must not wait for a handle.

use crate::error::Result;
use crate::file::direct::DirectIo;
use crate::inode::Inode;

pub(super) fn start_handle(
    direct: &DirectIo,
    inode: &Inode,
    offset: u64,
    len: usize,
) -> Result<()> {
    if offset.saturating_add(len as u64) > inode.size() || direct.context.is_read_only() {
        return Ok(());
    }
    let _pin = inode.table_block()?;
    direct.stats.dax_handles.add(1);
    direct.context.journal().run(1, |handle| {
        inode.update(handle, |attributes| {
            attributes.touch_content();
        })
    })
}
