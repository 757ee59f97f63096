//! What system calls mean: each script of `semantics/` says the same on the kernel's ext4 and on
//! mounts of uext4, by `/dev/fuse` and by io_uring. `docs/semantics.md` is written from them
//! (`UPDATE_DOCS=1`).
//!
//! Fault model: an answer, an error or an effect that differs from the kernel's.

mod common;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::kernel::Kernel;
use common::transport::on_both;
use common::{Mounted, Scratch, assert_clean, is_root};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/semantics");
const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/semantics.md");
const HEAD: &str = "\
# What system calls mean on a mount

Each line is a script of `crates/uext4-cli/tests/semantics/`. The test `semantics` runs it on the
kernel's own ext4 and on uext4, by `/dev/fuse` and by io_uring, and fails where a word differs. This
table is written from the scripts (`UPDATE_DOCS=1 cargo test -p uext4-cli --test semantics`).

| script | what | /dev/fuse | io_uring |
|---|---|---|---|
";

fn scripts() -> Vec<PathBuf> {
    let all = fs::read_dir(FOLDER).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<_> = all.filter(|path| !path.ends_with("preamble.py")).collect();
    all.sort();
    all
}

fn stem(script: &Path) -> &str {
    script.file_stem().unwrap().to_str().unwrap()
}

/// What a script says in `dir`, of which it knows no name.
fn say(script: &Path, dir: &Path) -> String {
    let preamble = fs::read_to_string(Path::new(FOLDER).join("preamble.py")).unwrap();
    let program = preamble + &fs::read_to_string(script).unwrap();
    let output = Command::new("timeout")
        .args(["-k", "5", "60", "/usr/bin/python3", "-c", &program])
        .arg(dir)
        .output()
        .unwrap();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}: {}", stem(script), said(&output.stderr));
    said(&output.stdout)
}

fn run_all(test: &str, wanted: impl Fn(&str) -> bool) {
    if !is_root() {
        skip!("{test}: needs root");
    }
    if !Path::new("/usr/bin/python3").exists() {
        skip!("{test}: needs Debian's python3");
    }
    for script in scripts().iter().filter(|script| wanted(stem(script))) {
        let scratch = Scratch::new();
        let (image, dir) = ready!(&scratch, 64);
        let Some(kernel) = Kernel::mount(&image, &dir) else {
            skip!("{test}: the kernel mounts no image here");
        };
        let kernels = say(script, &dir);
        drop(kernel);
        on_both(test, |option| {
            let scratch = Scratch::new();
            let (image, dir) = ready!(&scratch, 64);
            let mount = Mounted::new(&image, &dir, &format!("allow_other,suid,dev,{option}"));
            let ours = say(script, &dir);
            mount.end();
            assert_eq!(ours, kernels, "{} with {option} (right: the kernel)", stem(script));
            assert_clean(&image);
        });
    }
}

#[test]
fn calls_mean_what_they_mean_on_the_kernels_ext4() {
    run_all("calls_mean", |name| name < "m");
}

#[test]
fn more_calls_mean_what_they_mean_on_the_kernels_ext4() {
    run_all("more_calls_mean", |name| name >= "m");
}

#[test]
fn the_document_names_every_script() {
    let mut text = HEAD.to_owned();
    for script in scripts() {
        let program = fs::read_to_string(&script).unwrap();
        let what = program.lines().next().unwrap().trim_matches('"').to_owned();
        let _ = writeln!(text, "| {} | {what} | same | same |", stem(&script));
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(DOCUMENT, &text).unwrap();
    }
    assert_eq!(fs::read_to_string(DOCUMENT).unwrap(), text, "UPDATE_DOCS=1 writes it");
}
