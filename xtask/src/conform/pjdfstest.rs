//! `cargo xtask pjdfstest`: POSIX semantics of names and attributes, case by case.
//!
//! # What
//! All cases run on uext4 and on the kernel's ext4 with the same configuration. A case that passes
//! there and not here is a fault, unless [`REASONS`] says why the FUSE protocol makes it so; a
//! reason for a case that passes is a fault as well. Then `e2fsck -fn`.
//!
//! Two runs on each side: all cases but those that remount (`EROFS`), and then those alone: some of
//! the others leave files open, which a remount refuses.
//!
//! Not covered: birth times (the suite looks at them on BSD only), access control lists of NFSv4,
//! file flags.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::stage::{Side, Stage};
use super::{Trouble, obstacle, tool};

/// Cases that cannot pass through FUSE, and why.
const REASONS: &[(&str, &str)] = &[(
    "link::link_count_max",
    "skipped for want of pathconf(_PC_LINK_MAX): the C library looks it up by the magic number of \
     statfs(2), which the kernel sets for all FUSE mounts and knows no limit of; that the 65,001st \
     link fails with EMLINK is tested in crates/uext4-cli/tests/conformance.rs",
)];

/// Room for all that the cases make, some of it preallocated.
const IMAGE_MIB: u64 = 1024;

const SCRIPT: &str = r#"
mount -t tmpfs none second
"$TOOL" -c plain.toml -s "$FOLDER/second" -p "$DIR" >all 2>&1 || true
umount second
"$TOOL" -c remount.toml -p "$DIR" erofs >remount 2>&1 || true
"#;

/// Result of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Passed,
    /// With the first line of why.
    Failed(String),
    Skipped(String),
}

type Verdicts = BTreeMap<String, Verdict>;

/// Runs the suite with the built `command`; a remark for a table. Prints what there is to say.
pub(crate) fn run(command: &Path) -> Result<String, Trouble> {
    if let Some(why) = obstacle() {
        return Err(Trouble::Missing(why));
    }
    let program = tool::PJDFSTEST.provide().map_err(Trouble::Missing)?;
    let mut own = Vec::new();
    for side in Side::own() {
        let ours = one_side(side, command, &program).map_err(Trouble::Fault)?;
        print_counts(side, &ours);
        own.push(ours);
    }
    let theirs = match one_side(Side::Kernel, command, &program) {
        Ok(theirs) => {
            print_counts(Side::Kernel, &theirs);
            theirs
        }
        // Without a loop device every case is wanted.
        Err(why) => {
            println!("the kernel's side is left out: {why}");
            own[0].keys().map(|case| (case.clone(), Verdict::Passed)).collect()
        }
    };
    let faults: Vec<_> = own.iter().flat_map(|ours| compare(ours, &theirs)).collect();
    if !faults.is_empty() {
        return Err(Trouble::fault(faults.join("\n")));
    }
    let ours = &own[0];
    let passed = ours.values().filter(|verdict| **verdict == Verdict::Passed).count();
    Ok(format!("{passed} of {} passed, {} with a reason not", ours.len(), REASONS.len()))
}

fn one_side(side: Side, command: &Path, program: &Path) -> Result<Verdicts, String> {
    let stage = Stage::set_up(side, command, IMAGE_MIB)?;
    stage.write("remount.toml", &configuration(true))?;
    stage.write("plain.toml", &configuration(false))?;
    stage.run(SCRIPT, program)?;
    let mut verdicts = parse(&stage.read("all")?)?;
    verdicts.extend(parse(&stage.read("remount")?)?);
    stage.check()?;
    Ok(verdicts)
}

/// The suite's configuration: what ext4 has of its optional features, and two users that any Linux
/// machine has.
fn configuration(may_remount: bool) -> String {
    let group = group_of_nobody();
    format!(
        "[features]\nposix_fallocate = {{}}\nrename_ctime = {{}}\nstat_st_birthtime = {{}}\n\
         utime_now = {{}}\nutimensat = {{}}\n\
         [settings]\nnaptime = 0.02\nallow_remount = {may_remount}\n\
         [dummy_auth]\nentries = [[\"nobody\", \"{group}\"], [\"daemon\", \"daemon\"]]\n"
    )
}

/// `nogroup` on Debian, `nobody` elsewhere.
fn group_of_nobody() -> String {
    let said = Command::new("id").args(["-gn", "nobody"]).output();
    said.ok()
        .filter(|output| output.status.success())
        .map_or_else(|| "nobody".into(), |o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
}

/// Takes the suite's output apart. A case is a line of name and verdict; reasons follow indented.
fn parse(output: &str) -> Result<Verdicts, String> {
    let mut verdicts = Verdicts::new();
    let mut lines = output.lines().peekable();
    while let Some(line) = lines.next() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [case, word] = words[..] else { continue };
        if line.starts_with(char::is_whitespace) || !case.contains("::") {
            continue;
        }
        let mut why = || lines.peek().map_or(String::new(), |line| line.trim().to_owned());
        let verdict = match word {
            "ok" => Verdict::Passed,
            "FAILED" => Verdict::Failed(why()),
            "skipped" => Verdict::Skipped(why()),
            _ => continue,
        };
        verdicts.insert(case.to_owned(), verdict);
    }
    if !output.contains("Summary: ") || verdicts.is_empty() {
        return Err(format!("pjdfstest did not come to its end:\n{output}"));
    }
    Ok(verdicts)
}

fn print_counts(side: Side, verdicts: &Verdicts) {
    let count = |wanted: fn(&Verdict) -> bool| verdicts.values().filter(|v| wanted(v)).count();
    println!(
        "{:<12} {:>4} passed {:>4} failed {:>4} skipped, e2fsck -fn clean",
        side.name(),
        count(|v| *v == Verdict::Passed),
        count(|v| matches!(v, Verdict::Failed(_))),
        count(|v| matches!(v, Verdict::Skipped(_))),
    );
}

/// What is wrong; prints the cases with reasons.
fn compare(ours: &Verdicts, theirs: &Verdicts) -> Vec<String> {
    let mut faults = Vec::new();
    for (case, verdict) in ours {
        let reason = REASONS.iter().find(|(name, _)| name == case);
        let kernel_passes = theirs.get(case) == Some(&Verdict::Passed);
        if let Some(Verdict::Failed(why)) = theirs.get(case) {
            println!("{case}: fails on the kernel's ext4: {why}");
        }
        match (verdict, reason) {
            (Verdict::Passed, Some(_)) => faults.push(format!("{case}: passes, but has a reason")),
            (Verdict::Passed, None) => {}
            (_, Some((_, reason))) => println!("{case}: {reason}"),
            (Verdict::Failed(why), None) if kernel_passes => {
                faults.push(format!("{case}: passes on the kernel's ext4, fails here: {why}"));
            }
            (Verdict::Skipped(why), None) if kernel_passes => {
                faults.push(format!("{case}: passes on the kernel's ext4, skipped here: {why}"));
            }
            (Verdict::Failed(why) | Verdict::Skipped(why), None) => {
                println!("{case}: not on the kernel's ext4 either: {why}");
            }
        }
    }
    let missing = theirs.keys().filter(|case| !ours.contains_key(*case));
    faults.extend(missing.map(|case| format!("{case}: did not run here")));
    faults
}

/// The suite as a verb.
pub(crate) fn verb(command: PathBuf) -> Result<(), String> {
    run(&command).map(|remark| println!("{remark}")).map_err(Trouble::into_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "a::b      ok\nc::d   FAILED\n\tassertion failed\nBacktrace:\n  0: x::y\n\
        e::f  skipped\n\tRemounts are not allowed\n\nSummary: 1 failed, 1 skipped, 1 passed\n";

    #[test]
    fn output_is_taken_apart() {
        let verdicts = parse(OUTPUT).unwrap();
        assert_eq!(verdicts.len(), 3);
        assert_eq!(verdicts["a::b"], Verdict::Passed);
        assert_eq!(verdicts["c::d"], Verdict::Failed("assertion failed".into()));
        assert_eq!(verdicts["e::f"], Verdict::Skipped("Remounts are not allowed".into()));
        assert!(parse("a::b ok\n").is_err());
    }

    #[test]
    fn an_injected_difference_is_found() {
        let ours = parse(OUTPUT).unwrap();
        let mut theirs = ours.clone();
        assert!(compare(&ours, &theirs).is_empty());
        theirs.insert("c::d".into(), Verdict::Passed);
        theirs.insert("e::f".into(), Verdict::Passed);
        theirs.insert("g::h".into(), Verdict::Skipped(String::new()));
        assert_eq!(compare(&ours, &theirs).len(), 3);
    }
}
