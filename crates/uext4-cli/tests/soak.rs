//! Mounts that come and go under load, and daemons that are killed while their queues are full.
//!
//! Fault models and what is not covered: `uext4_sim::soak`. `cargo xtask soak` does more of it, and
//! watches what a daemon holds; `cargo xtask soak --minutes 0.5 --mounts 40 --period 3` is short.

use std::path::Path;

use uext4_sim::daemon_mount::Transport;
use uext4_sim::mount::{is_root, why_no_fuse};
use uext4_sim::oracle::e2fsck;
use uext4_sim::soak::{killed_with_full_queues, mounts};

const UEXT4: &str = env!("CARGO_BIN_EXE_uext4");

/// The transports that there are, with the reasons for those that there are not.
fn ways(test: &str) -> Vec<Transport> {
    let why_not = why_no_fuse()
        .or_else(|| (!is_root()).then_some("needs root"))
        .or_else(|| e2fsck().is_none().then_some("needs e2fsck"));
    if let Some(why) = why_not {
        println!("skipped: {test}: {why}");
        return Vec::new();
    }
    let is_there = |way: &Transport| match way.why_not() {
        Some(why) => {
            println!("skipped: {test} by {}: {why}", way.name());
            false
        }
        None => true,
    };
    Transport::ALL.into_iter().filter(is_there).collect()
}

#[test]
fn a_daemon_that_is_killed_with_full_queues_lets_everybody_go() {
    for way in ways("a_daemon_that_is_killed_with_full_queues") {
        let waiting = killed_with_full_queues(Path::new(UEXT4), way)
            .unwrap_or_else(|why| panic!("{}: {why}", way.name()));
        println!("{}: {waiting} requests were waiting", way.name());
    }
}

#[test]
fn mounts_come_and_go_under_load() {
    let ways = ways("mounts_come_and_go");
    if !ways.is_empty() {
        mounts(Path::new(UEXT4), &ways, 16).unwrap();
    }
}
