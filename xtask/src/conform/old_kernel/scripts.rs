//! The scripts of system calls (`crates/uext4-cli/tests/semantics`) and one of NFS, each judged.
//!
//! # What
//! Each says what its calls return and do, on the kernel's ext4 and on uext4, and the words must be
//! the same but for lines that [`REASONS`] has. The test `semantics` runs them on the machine's
//! kernel and ends at the first difference; here each script has a verdict. That of NFS has the
//! kernel's server (nfsd) export the mount to the guest itself.

use std::fs;
use std::path::{Path, PathBuf};

use crate::conform::stage::{Side, Stage};
use crate::conform::{Trouble, obstacle};
use crate::{machine, workspace};

/// What differs on Linux 6.1: script, how the lines begin, why.
const REASONS: &[(&str, &[&str], &str)] = &[
    (
        "statx",
        &["f was born just now", "d was born just now"],
        "the kernel's FUSE client asks a server for birth times since Linux 6.6",
    ),
    (
        "nfs",
        &["xattr"],
        "nfsd passes attributes of users on where the file system has a handler for them alone; \
         the kernel's FUSE client has one for all attributes",
    ),
];

const NFS: &str = include_str!("nfs.py");

/// Comes before each script.
const PREAMBLE: &str = "preamble";
const IMAGE_MIB: u64 = 64;
/// Not the python3 of a path: scripts change users, who may not see it.
const PYTHON: &str = "/usr/bin/python3";

/// Runs all scripts on both sides; a remark for a table.
pub(super) fn run(command: &Path) -> Result<String, Trouble> {
    if let Some(why) = obstacle() {
        return Err(Trouble::Missing(why));
    }
    if machine::program(PYTHON).is_none() {
        return Err(Trouble::Missing(format!("{PYTHON} is not installed")));
    }
    let mut scripts = scripts().map_err(Trouble::Fault)?;
    scripts.push(("nfs".into(), NFS.into()));
    let mut faults = Vec::new();
    for (name, program) in &scripts {
        let theirs = say(Side::Kernel, command, program).map_err(Trouble::Fault)?;
        let found = match say(Side::Uext4, command, program) {
            Ok(ours) => compare(name, &ours, &theirs),
            Err(why) => vec![why],
        };
        let reason = REASONS.iter().find(|(script, ..)| script == name);
        let word = reason.map_or("same", |(_, _, reason)| reason);
        println!("{name:<12} {}", if found.is_empty() { word } else { "DIFFERS" });
        faults.extend(found.iter().map(|what| format!("{name}: {what}")));
    }
    if faults.is_empty() {
        let (all, reasons) = (scripts.len(), REASONS.len());
        Ok(format!("{} of {all} scripts the same, {reasons} with a reason not", all - reasons))
    } else {
        Err(Trouble::fault(faults.join("\n")))
    }
}

/// Name and program of each script.
fn scripts() -> Result<Vec<(String, String)>, String> {
    let folder = workspace::root().join("crates/uext4-cli/tests/semantics");
    let said = |error: std::io::Error| format!("{}: {error}", folder.display());
    let preamble = fs::read_to_string(folder.join(PREAMBLE).with_extension("py")).map_err(said)?;
    let mut paths = Vec::<PathBuf>::new();
    for entry in fs::read_dir(&folder).map_err(said)? {
        paths.push(entry.map_err(said)?.path());
    }
    paths.sort();
    let mut scripts = Vec::new();
    for path in paths {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if name != PREAMBLE {
            let program = fs::read_to_string(&path).map_err(said)?;
            scripts.push((name, format!("{preamble}\n{program}")));
        }
    }
    Ok(scripts)
}

/// What a script says on a fresh image.
fn say(side: Side, command: &Path, program: &str) -> Result<String, String> {
    let stage = Stage::set_up(side, command, IMAGE_MIB)?;
    stage.write("script.py", program)?;
    stage.run(
        r#"timeout -k 5 300 "$TOOL" script.py "$DIR" "$FOLDER/second" >said"#,
        Path::new(PYTHON),
    )?;
    let said = stage.read("said")?;
    stage.check()?;
    Ok(said)
}

/// What is wrong with a script's words: lines that differ without a reason, and reasons for lines
/// that do not.
fn compare(script: &str, ours: &str, theirs: &str) -> Vec<String> {
    let reasons = REASONS.iter().filter(|(name, ..)| *name == script);
    let begins: Vec<&str> = reasons.flat_map(|(_, begins, _)| begins.iter().copied()).collect();
    let mut faults = Vec::new();
    if ours.lines().count() != theirs.lines().count() {
        faults.push(format!("not the kernel's number of lines:\n{ours}"));
    }
    for (own, other) in ours.lines().zip(theirs.lines()) {
        let excused = begins.iter().any(|begin| own.starts_with(begin) && other.starts_with(begin));
        match (own == other, excused) {
            (false, false) => faults.push(format!("{own} (kernel: {other})")),
            (true, true) => faults.push(format!("{own}: the same, but has a reason not to be")),
            _ => {}
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_differ_for_a_reason_or_are_faults() {
        assert!(compare("label", "a\nb\n", "a\nb\n").is_empty());
        assert_eq!(compare("label", "a\nb\n", "a\nc\n"), ["b (kernel: c)"]);
        assert_eq!(compare("label", "a\n", "a\nc\n").len(), 1);
        let (ours, theirs) = ("link 2\nxattr ENOTSUP\n", "link 2\nxattr b'1'\n");
        assert!(compare("nfs", ours, theirs).is_empty());
        assert_eq!(compare("label", ours, theirs).len(), 1);
        assert_eq!(
            compare("nfs", theirs, theirs),
            ["xattr b'1': the same, but has a reason not to be"]
        );
    }
}
