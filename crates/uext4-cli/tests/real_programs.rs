//! Programs that people run, on mounts by `/dev/fuse` and by io_uring.
//!
//! Fault models and what is not covered: `uext4_sim::programs`. `cargo xtask programs` gives them
//! more to do, and builds a crate besides.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use uext4_sim::daemon_mount::Transport;
use uext4_sim::mount::why_no_fuse;
use uext4_sim::oracle::e2fsck;
use uext4_sim::programs::{Size, find};

/// One at a time: handles are opened after the kernel has dropped names, and an overlay cannot go
/// on where it has (docs/mount.md).
static NAMES: Mutex<()> = Mutex::new(());

/// One program, by both transports.
fn run(name: &str) {
    let program = find(name).expect("a program of this name");
    let why_not = why_no_fuse().map(str::to_owned).or_else(|| program.why_not());
    if let Some(why) = why_not.or_else(|| e2fsck().is_none().then(|| "needs e2fsck".into())) {
        println!("skipped: {name}: {why}");
        return;
    }
    for transport in Transport::ALL {
        if let Some(why) = transport.why_not() {
            println!("skipped: {name} by {}: {why}", transport.name());
            continue;
        }
        program
            .run(Path::new(env!("CARGO_BIN_EXE_uext4")), transport, Size::Short)
            .unwrap_or_else(|why| panic!("{name} by {}: {why}", transport.name()));
    }
}

#[test]
fn git_finds_what_it_has_committed() {
    run("git");
}

#[test]
fn copies_and_archives_have_everything() {
    run("rsync and tar");
}

#[test]
fn sqlite_keeps_what_it_has_acknowledged_when_the_daemon_is_killed() {
    run("SQLite");
}

#[test]
fn postgresql_keeps_what_it_has_acknowledged_when_the_daemon_is_killed() {
    run("PostgreSQL");
}

#[test]
fn an_overlay_shows_what_an_ordinary_folder_does() {
    let _alone = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    run("overlayfs");
}

#[test]
fn layers_of_containers_are_unpacked() {
    let _alone = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    run("layers");
}

#[test]
fn handles_open_files_whose_names_were_dropped() {
    let _alone = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    run("file handles");
}

#[test]
fn a_file_that_an_editor_saves_is_always_whole() {
    run("editors");
}

#[test]
fn locks_exclude_others() {
    run("locks");
}

#[test]
fn two_processes_share_a_mapped_file() {
    run("shared memory");
}
