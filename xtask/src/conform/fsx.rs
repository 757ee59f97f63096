//! `cargo xtask fsx`: random operations on the bytes of one file, each read compared.
//!
//! # What
//! With `--mount` the program of the crate `fsx` on a mount of uext4: read, write, both through
//! mmap(2), truncate, fsync, fdatasync, posix_fallocate, punch, sendfile, copy_file_range,
//! posix_fadvise, close and open. Otherwise the driver of `uext4-sim`, which calls the engine in
//! its own process. `e2fsck -fn` after both.

use std::path::{Path, PathBuf};

use super::stage::{Side, Stage};
use super::{Trouble, obstacle, tool};
use crate::long;

/// Operations of one process, the next of which has the next seed: fsx 0.3.2 never unmaps what it
/// maps to read, which makes every truncation slower and ends at the kernel's limit of 65,530.
const ROUND: u64 = 5_000;

const IMAGE_MIB: u64 = 256;

/// Weights of the operations. What waits for a disk is rarer than what does not.
const CONFIGURATION: &str = "flen = 262144\n\
    [opsize]\nmax = 65536\nmin = 1\nalign = 1\n\
    [weights]\nclose_open = 1\ninvalidate = 1\nread = 10\nwrite = 10\nmapread = 10\nmapwrite = 10\n\
    truncate = 10\nfsync = 1\nfdatasync = 1\nposix_fallocate = 1\npunch_hole = 2\nsendfile = 1\n\
    posix_fadvise = 1\ncopy_file_range = 2\n";

/// Runs `operations` operations on a mount by `command`; a remark for a table.
pub(crate) fn on_mount(command: &Path, operations: u64, seed: u64) -> Result<String, Trouble> {
    if let Some(why) = obstacle() {
        return Err(Trouble::Missing(why));
    }
    let program = tool::FSX.provide().map_err(Trouble::Missing)?;
    let mut sides = Vec::new();
    for side in Side::own() {
        one_side(side, command, &program, operations, seed)?;
        sides.push(side.name());
    }
    Ok(format!("{operations} operations on each of {}, seed {seed}: clean", sides.join(", ")))
}

fn one_side(
    side: Side,
    command: &Path,
    program: &Path,
    operations: u64,
    seed: u64,
) -> Result<(), Trouble> {
    let stage = Stage::set_up(side, command, IMAGE_MIB).map_err(Trouble::Fault)?;
    stage.write("fsx.toml", CONFIGURATION).map_err(Trouble::Fault)?;
    let script = format!(
        r#"left={operations}; seed={seed}
while [ $left -gt 0 ]; do
    count=$left; [ $count -le {ROUND} ] || count={ROUND}
    "$TOOL" -f fsx.toml -N $count -S $seed -P "$FOLDER" "$DIR/file" >&2
    left=$((left - count)); seed=$((seed + 1))
done"#
    );
    stage.run(&script, program).map_err(|said| {
        let last: Vec<&str> = said.lines().rev().take(60).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        let again = format!("cargo xtask fsx --mount --ops {operations} --seed {seed}");
        let side = side.name();
        Trouble::Fault(format!("{side}: {}\nagain: {again}", last.join("\n")))
    })?;
    stage.check().map_err(Trouble::Fault)
}

/// The verb.
pub(crate) fn verb(
    mount: bool,
    operations: u64,
    seed: u64,
    command: impl FnOnce() -> Result<PathBuf, String>,
) -> Result<(), String> {
    if mount {
        let remark = on_mount(&command()?, operations, seed).map_err(Trouble::into_error)?;
        println!("{remark}");
        return Ok(());
    }
    let words = ["--ops".to_owned(), operations.to_string(), "--seed".to_owned(), seed.to_string()];
    long::run("fsx", &words.map(Into::into))
}
