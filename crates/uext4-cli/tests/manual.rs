//! The manual pages.
//!
//! Fault model: a verb without a page, a mount option that its page lacks, a page that groff warns
//! of. Not covered: how pages look.

#[macro_use]
mod common;

use std::fs;
use std::process::Command;

use common::{Scratch, run_fails, run_ok};

#[test]
fn every_verb_has_a_page_and_the_mount_has_its_options() {
    let scratch = Scratch::new();
    let folder = scratch.path("man/man1");
    run_ok(["manual".as_ref(), folder.as_os_str()]);
    for page in ["uext4.1", "uext4-mkfs.1", "uext4-umount.1", "uext4-lab-run.1"] {
        assert!(folder.join(page).exists(), "no {page}");
    }
    let mount = fs::read_to_string(folder.join("uext4-mount.1")).unwrap().replace("\\-", "-");
    assert!(mount.contains(".SH MOUNT OPTIONS\n.nf\n"), "the options are filled into lines");
    for option in ["commit=SECONDS", "no_space_timeout=SECONDS", "fsname=NAME", "mb_free=sharded"] {
        assert!(mount.contains(option), "uext4-mount.1 has no {option}");
    }
    if Command::new("groff").arg("--version").output().is_err() {
        skip!("groff is not installed: pages are not formatted");
    }
    for page in fs::read_dir(&folder).unwrap() {
        let page = page.unwrap().path();
        let output =
            Command::new("groff").args(["-man", "-Tutf8", "-ww", "-z"]).arg(&page).output();
        let warnings = output.unwrap().stderr;
        assert!(warnings.is_empty(), "{}: {}", page.display(), String::from_utf8_lossy(&warnings));
    }
}

#[test]
fn a_folder_that_cannot_be_made_is_one_line() {
    run_fails(["manual", "/proc/none/man"], "manual: /proc/none/man");
    run_fails(["manual", "/etc/passwd"], "manual: /etc/passwd: is no directory");
}
