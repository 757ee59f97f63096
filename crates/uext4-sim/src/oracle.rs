//! e2fsck as the judge of an image.
//!
//! # What is allowed of `e2fsck -fy`
//! After a crash an image needs its journal replayed and its orphans cleaned up, and nothing else.
//! So of what `-fy` prints only these lines pass ([`repairs`] returns the others):
//!
//! - its banner, the names of the passes, the closing summary, `FILE SYSTEM WAS MODIFIED`: it says
//!   the last one for the replay alone;
//! - `recovering journal`: the replay;
//! - `Clearing orphaned inode`, `Truncating orphaned inode`: the orphan list or file, whose work a
//!   crash interrupts; the kernel does the same at mount;
//! - `Feature orphan_present is set but orphan file is clean`: the flag is up for as long as a
//!   volume   with an orphan file is mounted for writing; to take it down is the end of orphan
//!   clean-up. An   image of a live kernel mount gets the same line;
//! - `Orphan file (inode N) block M is not clean`: the slots of orphans that were cleared or
//!   truncated before; the kernel's images get this line as well;
//! - `extent tree ... could be narrower` or `shorter`, with `Pass 1E` that does it: an optimisation
//!   that e2fsck offers for trees that are valid, also for the kernel's; `-fn` calls them clean.
//!
//! - `Inode N, i_blocks is X, should be Y`, if N is an orphan that e2fsck has truncated: e2fsck
//!   1.47   frees the attribute block of such an inode with the cut blocks, and then finds its own
//!   count   wrong. It does so with any image (set the size and `s_last_orphan` with debugfs to
//!   see it), and   the attributes of that inode are lost; no writer can prevent it but by not
//!   having such orphans.
//!
//! Counts that only the group descriptors keep are no lines at all: e2fsck takes the superblock's
//! free counts from the groups silently.

use crate::external;
use std::fs;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use uext4_device::{Device, MemoryDevice};
use uext4_ondisk::{Features, RawSuperblock, RoCompat};

/// Runs e2fsck on images in memory, by way of a file.
#[derive(Debug)]
pub struct Oracle {
    folder: tempfile::TempDir,
}

/// What e2fsck said.
#[derive(Debug)]
pub struct Verdict {
    /// Exit status.
    pub code: i32,
    /// Standard output.
    pub text: String,
}

/// A folder for images: in memory where the machine has that.
///
/// # Errors
/// Those of making it.
pub fn image_folder() -> io::Result<tempfile::TempDir> {
    let builder = || {
        let mut builder = tempfile::Builder::new();
        builder.prefix("uext4-sim-");
        builder
    };
    match builder().tempdir_in("/dev/shm") {
        Ok(folder) => Ok(folder),
        Err(_) => builder().tempdir(),
    }
}

/// Where e2fsck is, if it is installed.
#[must_use]
pub fn e2fsck() -> Option<PathBuf> {
    program("e2fsck")
}

/// Where a system program is, if it is installed.
#[must_use]
pub fn program(name: &str) -> Option<PathBuf> {
    ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"]
        .iter()
        .map(|folder| Path::new(folder).join(name))
        .find(|path| path.is_file())
}

impl Oracle {
    /// An oracle with a folder of its own.
    ///
    /// # Errors
    /// Those of making the folder.
    pub fn new() -> io::Result<Oracle> {
        Ok(Oracle { folder: image_folder()? })
    }

    /// Puts an image into the folder; dropped when another of that name comes. Stretches that hold
    /// nothing but junk or zeroes become holes: no metadata looks like either. A journal on a
    /// device of its own becomes a file beside it ([`external::journal_path`]).
    ///
    /// # Errors
    /// Those of writing it.
    pub fn put(&self, device: &MemoryDevice, name: &str) -> io::Result<PathBuf> {
        let path = self.folder.path().join(name);
        save(device, &path)?;
        Ok(path)
    }
}

/// As [`Oracle::put`], at a path.
///
/// # Errors
/// Those of writing it.
pub fn save(device: &MemoryDevice, path: &Path) -> io::Result<()> {
    match external::parts(device) {
        None => save_part(device, 0..device.len(), path),
        Some([data, log]) => {
            save_part(device, log, &external::journal_path(path))?;
            save_part(device, data, path)
        }
    }
}

pub(crate) fn save_part(device: &MemoryDevice, range: Range<u64>, path: &Path) -> io::Result<()> {
    const STEP: usize = 64 << 10;
    let file = fs::File::create(path)?;
    file.set_len(range.end - range.start)?;
    let mut bytes = vec![0; STEP];
    let mut at = range.start;
    while at < range.end {
        let count = STEP.min((range.end - at) as usize);
        let part = &mut bytes[..count];
        device.read_at(at, part)?;
        if !is_all(part, 0) && !is_all(part, JUNK) {
            file.write_all_at(part, at - range.start)?;
        }
        at += count as u64;
    }
    Ok(())
}

/// e2fsck on an image file, with the journal that is beside it.
fn e2fsck_on(path: &Path, flags: &str) -> io::Result<Command> {
    let program = e2fsck().ok_or_else(|| io::Error::other("e2fsck is not installed"))?;
    let mut command = Command::new(program);
    command.arg(flags);
    let journal = external::journal_path(path);
    if journal.exists() {
        command.arg("-j").arg(journal);
    }
    command.arg(path).stdin(Stdio::null());
    Ok(command)
}

/// What free blocks of a fresh file system hold.
pub const JUNK: u8 = 0xa5;

fn is_all(bytes: &[u8], value: u8) -> bool {
    bytes.first() == Some(&value) && bytes[1..] == bytes[..bytes.len() - 1]
}

/// Runs e2fsck with `flags` on an image file.
///
/// # Errors
/// e2fsck cannot be run.
pub fn judge(path: &Path, flags: &str) -> io::Result<Verdict> {
    let output = e2fsck_on(path, flags)?.output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(Verdict { code: output.status.code().unwrap_or(-1), text })
}

/// What [`judge_within`] says of an e2fsck that it had to end.
pub const TIMED_OUT: &str = "e2fsck did not end in time";

/// As [`judge`], for images on which e2fsck may not end: status -1 and [`TIMED_OUT`] then.
///
/// # Errors
/// e2fsck cannot be run.
pub fn judge_within(path: &Path, flags: &str, time: Duration) -> io::Result<Verdict> {
    let said = path.with_extension("said");
    let out = fs::File::create(&said)?;
    let mut command = e2fsck_on(path, flags)?;
    command.stderr(out.try_clone()?).stdout(out);
    let mut child = command.spawn()?;
    let end = Instant::now() + time;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if Instant::now() > end {
            child.kill()?;
            child.wait()?;
            break None;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let mut bytes = Vec::new();
    // One that does not end may say the same for ever.
    fs::File::open(&said)?.take(1 << 20).read_to_end(&mut bytes)?;
    let mut text = String::from_utf8_lossy(&bytes).into_owned();
    if status.is_none() {
        text.push_str(TIMED_OUT);
    }
    Ok(Verdict { code: status.and_then(|status| status.code()).unwrap_or(-1), text })
}

/// Asserts that `e2fsck -fn` finds nothing.
///
/// # Errors
/// What it found.
pub fn expect_clean(path: &Path) -> Result<(), String> {
    let verdict = judge(path, "-fn").map_err(|error| error.to_string())?;
    if verdict.code == 0 {
        return Ok(());
    }
    Err(format!("e2fsck -fn exits {}:\n{}", verdict.code, indent(&verdict.text)))
}

/// Has e2fsck recover an image; it may replay the journal and clean up orphans, nothing else.
/// Returns the inodes that it truncated. `None`: it has failed at one of them, and what it leaves
/// says nothing of the image.
///
/// # Errors
/// What else it did.
pub fn expect_recovery_only(path: &Path) -> Result<Option<Vec<u32>>, String> {
    let verdict = judge(path, "-fy").map_err(|error| error.to_string())?;
    let has_left = leaves_a_tree(&verdict.text)
        && has_clusters(path).map_err(|error| error.to_string())?
        || stumbles_at_a_leaf(&verdict.text);
    if has_left {
        return Ok(None);
    }
    let name = path.to_string_lossy();
    let repairs = repairs(&verdict.text, &name);
    if matches!(verdict.code, 0 | 1) && repairs.is_empty() {
        if verdict.text.contains("Optimize? yes") && verdict.text.contains("Update quota info") {
            // With clusters it has counted too little of what a shorter tree gave back. The usage
            // that it writes now is what it finds, and nothing else is there to be written.
            let again = judge(path, "-fy").map_err(|error| error.to_string())?;
            let other = repairs_but_usage(&again.text, &name);
            if !other.is_empty() {
                let lines = other.join("\n");
                return Err(format!("a second e2fsck -fy repairs:\n{}", indent(&lines)));
            }
        }
        return Ok(Some(truncated(&verdict.text)));
    }
    let lines = repairs.join("\n");
    Err(format!("e2fsck -fy exits {}; repairs:\n{}", verdict.code, indent(&lines)))
}

fn has_clusters(path: &Path) -> io::Result<bool> {
    let mut bytes = [0; 1024];
    fs::File::open(path)?.read_exact_at(&mut bytes, 1024)?;
    let raw = RawSuperblock::read(&bytes).map_err(io::Error::other)?;
    Ok(Features::of(&raw).ro_compat.contains(RoCompat::BIGALLOC))
}

/// Whether e2fsck has truncated an orphan and left its tree. With clusters, and a tree of more than
/// one level, 1.47.0 gives clusters of it back and then gives the file the size of the blocks that
/// it still finds, also on images that debugfs alone has made.
fn leaves_a_tree(text: &str) -> bool {
    let truncated = truncated(text);
    let sizes = text.lines().filter(|line| line.contains(", i_size is "));
    sizes.filter_map(|line| number_after(line, "Inode ")).any(|ino| truncated.contains(&ino))
}

/// Whether e2fsck has come by the only leaf of an orphan's tree twice. 1.47.0 does where the leaf
/// has one extent: it gives the leaf back with that, loses its place, and leaves all other orphans.
/// A file of which the kernel has punched all but one extent shows it, with its size and
/// `s_last_orphan` set by debugfs; the kernel and uext4 truncate it.
fn stumbles_at_a_leaf(text: &str) -> bool {
    let truncated = truncated(text);
    let mut twice = text.lines().filter_map(|line| {
        let rest = line.strip_prefix("Already cleared indirect block (")?;
        number_after(rest.split_once(") ")?.1, "found in orphaned inode ")
    });
    twice.any(|ino| truncated.contains(&ino))
}

fn repairs_but_usage(text: &str, name: &str) -> Vec<String> {
    let mut repairs = repairs(text, name);
    repairs.retain(|line| !line.starts_with("Update quota info for quota type "));
    repairs
}

/// Lines of `e2fsck -fy` on the image `name` that tell of more than recovery: see the module.
#[must_use]
pub fn repairs(text: &str, name: &str) -> Vec<String> {
    let truncated = truncated(text);
    // A shorter tree and a deleted orphan change usage, which is written after them.
    let frees = text.contains("Optimize? yes") || text.contains(" orphaned inode ");
    let mut repairs = Vec::new();
    let mut before = "";
    for line in text.lines() {
        let line = line.strip_prefix(name).map_or(line, |rest| rest.trim_start_matches(':')).trim();
        // The question stands on a line of its own.
        let answers = is_orphan_file(before) && line == "Clear? yes";
        let recounts = line.contains(", i_blocks is ")
            && number_after(line, "Inode ").is_some_and(|ino| truncated.contains(&ino));
        let charges = frees && line.starts_with("Update quota info for quota type ");
        if !answers && !recounts && !charges && !is_recovery(line) && !is_orphan_file(line) {
            repairs.push(line.to_owned());
        }
        before = line;
    }
    repairs
}

/// Inodes of the lines `Truncating orphaned inode N (...)`.
fn truncated(text: &str) -> Vec<u32> {
    text.lines().filter_map(|line| number_after(line, "Truncating orphaned inode ")).collect()
}

fn number_after(line: &str, start: &str) -> Option<u32> {
    let rest = line.strip_prefix(start)?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// The end of orphan clean-up.
fn is_orphan_file(line: &str) -> bool {
    line == "Feature orphan_present is set but orphan file is clean."
        || line.starts_with("Orphan file (inode ") && line.ends_with(" is not clean.")
}

fn is_recovery(line: &str) -> bool {
    let starts = [
        "e2fsck 1.",
        "recovering journal",
        "Clearing orphaned inode ",
        "Truncating orphaned inode ",
        "Pass 1: Checking inodes, blocks, and sizes",
        "Pass 1E: Optimizing extent trees",
        "Pass 2: Checking directory structure",
        "Pass 3: Checking directory connectivity",
        "Pass 4: Checking reference counts",
        "Pass 5: Checking group summary information",
        "***** FILE SYSTEM WAS MODIFIED *****",
    ];
    if line.is_empty() || starts.iter().any(|start| line.starts_with(start)) {
        return true;
    }
    let optimises = line.starts_with("Inode ") && line.contains(" extent tree (at level ");
    let optional = line.contains("could be narrower") || line.contains("could be shorter");
    let summary = line.contains(" files (") && line.ends_with(" blocks");
    optimises && optional || summary || matches!(line, "Optimize? yes")
}

fn indent(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.is_empty());
    lines.map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_orphan_whose_tree_is_left_is_known() {
        let text = "Truncating orphaned inode 14 (uid=0, gid=0, mode=0100644, size=0)\n";
        let size = |ino| format!("{text}Inode {ino}, i_size is 0, should be 106496.  Fix? yes\n");
        assert!(leaves_a_tree(&size(14)));
        assert!(!leaves_a_tree(&size(13)) && !leaves_a_tree(text));
    }

    #[test]
    fn an_orphan_at_whose_leaf_e2fsck_stumbles_is_known() {
        let text = "Truncating orphaned inode 14 (uid=0, gid=0, mode=0100644, size=0)\n";
        let twice = |ino| {
            format!("{text}Already cleared indirect block (3196) found in orphaned inode {ino}.\n")
        };
        assert!(stumbles_at_a_leaf(&twice(14)));
        assert!(!stumbles_at_a_leaf(&twice(13)) && !stumbles_at_a_leaf(text));
        let data = format!("{text}Already cleared block (3196) found in orphaned inode 14.\n");
        assert!(!stumbles_at_a_leaf(&data));
    }

    #[test]
    fn recovery_passes_and_repairs_do_not() {
        let text = "\
/x/a.img: recovering journal
Clearing orphaned inode 13 (uid=0, gid=0, mode=0100644, size=5)
Truncating orphaned inode 14 (uid=0, gid=0, mode=0100644, size=5)
Pass 1: Checking inodes, blocks, and sizes
Inode 12 extent tree (at level 1) could be narrower.  Optimize? yes

Inode 14, i_blocks is 2, should be 0.  Fix? yes

Inode 15, i_blocks is 2, should be 0.  Fix? yes

Pass 1E: Optimizing extent trees
Pass 2: Checking directory structure
Entry 'x' in /a (12) has deleted/unused inode 14.  Clear? yes

Pass 5: Checking group summary information
Free blocks count wrong for group #0 (1, counted=2).
Fix? yes

Orphan file (inode 12) block 8 is not clean.
Clear? yes

/x/a.img: ***** FILE SYSTEM WAS MODIFIED *****
/x/a.img: 12/8192 files (8.3% non-contiguous), 1700/8192 blocks
";
        assert_eq!(
            repairs(text, "/x/a.img"),
            [
                "Inode 15, i_blocks is 2, should be 0.  Fix? yes",
                "Entry 'x' in /a (12) has deleted/unused inode 14.  Clear? yes",
                "Free blocks count wrong for group #0 (1, counted=2).",
                "Fix? yes"
            ]
        );
    }
}
