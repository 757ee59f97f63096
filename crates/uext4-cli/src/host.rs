//! Room on the host of an image that is sparse.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::text::human;
use crate::verbosity::remark;

/// Bytes of a unit of `st_blocks`.
const STAT_BLOCK: u64 = 512;

/// What an image may still take from the file system that holds it, and what that one has.
#[derive(Debug, PartialEq, Eq)]
struct Shortage {
    wants: u64,
    has: u64,
}

/// How far the host of an image could fail it; `None` where it has room, or nobody can tell.
fn shortage(image: &Path) -> Option<Shortage> {
    let found = image.metadata().ok().filter(|found| found.is_file())?;
    let wants = found.len().saturating_sub(found.blocks() * STAT_BLOCK);
    let has = room(image)?;
    (wants > has).then_some(Shortage { wants, has })
}

/// Bytes that the file system of an image has for it, if that can be seen.
pub(crate) fn room(image: &Path) -> Option<u64> {
    let host = rustix::fs::statvfs(image).ok()?;
    let is_root = rustix::process::geteuid().is_root();
    let free = if is_root { host.f_bfree } else { host.f_bavail };
    Some(free.saturating_mul(host.f_frsize))
}

/// Tells in one line that writes to a sparse image may fail for want of room on its host.
pub(crate) fn warn_of_shortage(verb: &str, image: &Path) {
    if let Some(Shortage { wants, has }) = shortage(image) {
        let (image, wants, has) = (image.display(), human(wants), human(has));
        remark(&format!("{verb}: {image}: sparse: may take {wants} more, and its host has {has}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn only_what_is_sparse_can_want_room() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        std::fs::write(&path, [1; 65536]).unwrap();
        assert_eq!(shortage(&path), None);
        assert_eq!(shortage(dir.path()), None);
        File::options().write(true).open(&path).unwrap().set_len(1 << 43).unwrap();
        let found = shortage(&path).expect("no host here has 8 TiB");
        assert!(found.wants > found.has && found.wants <= (1 << 43) - 65536, "{found:?}");
    }
}
