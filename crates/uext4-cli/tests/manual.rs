//! The manual pages.
//!
//! Fault model: a verb without a page, a page without examples or exit statuses, a mount option
//! that its page lacks, a page of another day than it was told, a page that groff or mandoc warns
//! of. Not covered: how pages look.

#[macro_use]
mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Scratch, UEXT4, has, run, run_fails, run_ok};

/// Writes the pages as a package has them.
fn pages(folder: &Path) -> Vec<PathBuf> {
    let made = Command::new(UEXT4)
        .args(["manual", "--output"])
        .arg(folder)
        .env("SOURCE_DATE_EPOCH", "1764000000")
        .status();
    assert!(made.unwrap().success());
    let sections = ["man1", "man5"].map(|section| fs::read_dir(folder.join(section)).unwrap());
    let mut pages: Vec<_> = sections.into_iter().flatten().map(|it| it.unwrap().path()).collect();
    pages.sort();
    pages
}

#[test]
fn every_verb_has_a_page_and_the_mount_has_its_options() {
    let scratch = Scratch::new();
    let folder = scratch.path("man");
    let pages = pages(&folder);
    let names: Vec<_> = pages.iter().map(|page| page.file_name().unwrap().to_owned()).collect();
    for name in ["uext4.1", "uext4.5", "uext4-mkfs.1", "uext4-umount.1", "uext4-lab-run.1"] {
        assert!(names.iter().any(|page| page == name), "no {name}");
    }
    let options = fs::read_to_string(folder.join("man5/uext4.5")).unwrap().replace("\\-", "-");
    for option in ["commit=SECONDS", "no_space_timeout=SECONDS", "fsname=NAME", "mb_free=sharded"] {
        assert!(options.contains(option), "uext4.5 has no {option}");
    }
    for page in pages.iter().filter(|page| !page.ends_with("uext4.5")) {
        let text = fs::read_to_string(page).unwrap();
        assert!(text.contains(".SH \"EXIT STATUS\""), "{}", page.display());
        let is_verb = page.to_string_lossy().matches('-').count() == 1;
        assert!(!is_verb || text.contains(".SH \"EXAMPLES\""), "{}", page.display());
        assert!(text.starts_with(".TH \"uext4"), "{}", page.display());
        assert!(text.lines().next().unwrap().contains("\"2025-11-24\""), "{}", page.display());
    }
}

#[test]
fn formatters_have_no_warning() {
    let scratch = Scratch::new();
    let pages = pages(&scratch.path("man"));
    let tools: [(&str, &[&str]); 2] =
        [("groff", &["-man", "-Tutf8", "-ww", "-z"]), ("mandoc", &["-Tlint", "-Wwarning"])];
    for (tool, options) in tools {
        if !has(tool) {
            skip!("{tool} is not installed: pages are not formatted");
        }
        let output = common::system(tool).args(options).args(&pages).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        assert!(said.is_empty(), "{tool}: {}", String::from_utf8_lossy(&said));
    }
}

#[test]
fn one_page_is_printed() {
    let of = |name: &str| String::from_utf8(run_ok(["manual", name])).unwrap();
    assert!(of("mkfs").starts_with(".TH \"uext4\\-mkfs\" \"1\""));
    assert!(of("uext4.5").starts_with(".TH \"uext4\" \"5\""));
    let whole = String::from_utf8(run(["manual"]).stdout).unwrap();
    assert!(whole.contains("uext4\\-mkfs(1)"), "{whole}");
    run_fails(["manual", "mkfz"], "manual: mkfz: there is no such page; did you mean 'mkfs'?");
}

#[test]
fn a_folder_that_cannot_be_made_is_one_line() {
    run_fails(["manual", "-o", "/proc/none/man"], "manual: /proc/none/man");
    run_fails(["manual", "-o", "/etc/passwd"], "manual: /etc/passwd/man1");
}
