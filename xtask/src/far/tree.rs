//! The tree that is unpacked, walked and removed.

use std::fs;
use std::process::Command;

use super::Stage;
use super::trial::call;

const FILES_PER_DIRECTORY: u32 = 15;
/// Directories of the tree's root.
const PARTS: u32 = 60;

/// An archive of a tree of source files: of lengths as source files
/// have, the same each time.
pub(super) fn pack(stage: &Stage, files: u32) -> Result<(), String> {
    let root = stage.folder.join("tree");
    let failed = |error: std::io::Error| format!("{}: {error}", root.display());
    let data: Vec<u8> = (0..1 << 20).map(|at: u32| (mixed(at) & 0xFF) as u8).collect();
    let mut folder = root.clone();
    for at in 0..files {
        let mixed = mixed(at);
        if at % FILES_PER_DIRECTORY == 0 {
            let number = at / FILES_PER_DIRECTORY;
            folder = root.join(format!("part{}/module{number}", number % PARTS));
            fs::create_dir_all(&folder).map_err(failed)?;
        }
        // Most have some kilobytes, and one of 64 has some hundred.
        let len = if mixed.is_multiple_of(64) { 100_000 + mixed % 100_000 } else { mixed % 6_000 };
        let begin = (mixed % 500_000) as usize;
        let path = folder.join(format!("file{at}.rs"));
        fs::write(path, &data[begin..begin + len as usize]).map_err(failed)?;
    }
    let (folder, archive) =
        (stage.folder.display().to_string(), stage.archive.display().to_string());
    call(Command::new("tar").args(["-cf", &archive, "-C", &folder, "tree"]))?;
    fs::remove_dir_all(&root).map_err(failed)
}

/// Numbers without an order that one sees.
fn mixed(at: u32) -> u32 {
    at.wrapping_mul(2_654_435_761) >> 8
}
