//! What paths of every shape mean, and the errno of each: those of the kernel.
//!
//! Fault model: a rule of the kernel's for slashes, `.`, `..`, `/` and symbolic links at the end of
//! a path, for which of two errors is told, or for what takes set-id bits, that the engine does not
//! have or that changes. The same calls (`paths.txt`) go to the kernel, on a tmpfs, and to uext4,
//! each answer compared. The kernel is asked anew each time. Not covered: permissions, and mounts
//! in the middle of a path.

mod harness;

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use harness::{Programs, folder, ok};

/// What a list of calls gives, a line for each.
fn answers(command: &mut Command) -> String {
    ok(command.stdin(File::open(folder().join("tests/paths.txt")).unwrap()))
}

/// A command that may mount in a namespace of its own, and has no `CAP_FSETID`. What the host
/// unmounts is unmounted there as well.
fn mounting(program: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "slave"]);
    if !may_mount() {
        command.arg("--map-root-user");
    }
    command.args(["setpriv", "--bounding-set", "-fsetid"]).arg(program);
    command
}

/// Whether this process may mount without a user namespace, as root in continuous integration.
fn may_mount() -> bool {
    const CAP_SYS_ADMIN: u64 = 1 << 21;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    effective.unwrap_or_default() & CAP_SYS_ADMIN != 0
}

/// Why the kernel cannot be asked here, if it cannot.
fn refused() -> Option<String> {
    match mounting(Path::new("true")).output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            Some(said.lines().last().unwrap_or("unshare failed").to_owned())
        }
        Err(error) => Some(format!("unshare: {error}")),
    }
}

#[test]
fn paths_mean_what_they_mean_to_the_kernel() {
    let programs = Programs::new();
    if let Some(why) = refused() {
        assert!(!may_mount(), "{why}");
        println!("skipped: no mount namespace here, to ask the kernel: {why}");
        return;
    }
    let program = programs.build("tests/c/paths.c", &["-fsanitize=address"]);
    let root = programs.path("root");
    fs::create_dir(&root).unwrap();
    let mut kernel = mounting(&program);
    for (name, value) in programs.command(&program).get_envs() {
        kernel.env(name, value.unwrap());
    }
    // In its root there is no /proc, which the search for leaks needs.
    kernel.env("ASAN_OPTIONS", "detect_leaks=0");
    let expected = answers(kernel.arg("kernel").arg(&root));
    let image = programs.empty_image("paths.img");
    let given = answers(programs.command(&program).arg("uext4").arg(&image));
    let pairs = expected.lines().zip(given.lines());
    let different: Vec<_> = pairs.filter(|(kernel, ours)| kernel != ours).collect();
    assert!(different.is_empty(), "the kernel, and uext4: {different:#?}");
    assert!(expected.lines().count() == given.lines().count() && expected.lines().count() > 300);
    harness::e2fsck(&image);
}
