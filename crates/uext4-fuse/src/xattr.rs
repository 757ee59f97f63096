//! Extended attributes of the image.

use uext4::{InodeRef, Volume, XattrMode};
use uext4_fuse_server::Errno;

use crate::failure::Answer;
/// All names that a caller may know of, each ended by a zero byte, as listxattr(2) returns them.
/// Those of the `trusted.` space are for root alone; the kernel itself refuses others their values.
pub(crate) fn list(volume: &Volume, inode: &InodeRef, is_root: bool) -> Answer<Vec<u8>> {
    let mut names = volume.xattr_list(inode)?;
    names.retain(|name| is_root || !name.starts_with(b"trusted."));
    let mut list = Vec::with_capacity(names.iter().map(|name| name.len() + 1).sum());
    for name in names {
        list.extend_from_slice(&name);
        list.push(0);
    }
    Ok(list)
}

/// The mode that the flags of setxattr(2) ask for.
pub(crate) fn mode(flags: u32) -> Answer<XattrMode> {
    match flags.cast_signed() {
        0 => Ok(XattrMode::Any),
        libc::XATTR_CREATE => Ok(XattrMode::Create),
        libc::XATTR_REPLACE => Ok(XattrMode::Replace),
        _ => Err(Errno::INVAL.into()),
    }
}
