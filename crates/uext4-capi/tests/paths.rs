//! What paths of every shape mean, and the errno of each: those of the kernel.
//!
//! Fault model: a rule of the kernel's for slashes, `.`, `..`, `/` and symbolic links at the end of
//! a path, or for which of two errors is told, that the engine does not have or that changes. The
//! same calls (`paths.txt`) go to the kernel, on a tmpfs, and to uext4, each answer compared. The
//! kernel is asked anew each time. Not covered: permissions, and mounts in the middle of a path.

mod harness;

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use harness::{Programs, folder, ok};

/// What a list of calls gives, a line for each.
fn answers(command: &mut Command) -> String {
    ok(command.stdin(File::open(folder().join("tests/paths.txt")).unwrap()))
}

/// A command that may mount in a namespace of its own, and has no `CAP_FSETID`.
fn mounting(program: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--map-root-user"]);
    command.args(["setpriv", "--bounding-set", "-fsetid"]).arg(program);
    command
}

#[test]
fn paths_mean_what_they_mean_to_the_kernel() {
    let programs = Programs::new();
    let may_mount = mounting(Path::new("true")).output();
    if !may_mount.is_ok_and(|output| output.status.success()) {
        println!("skipped: no mounts in a user namespace here, to ask the kernel");
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
