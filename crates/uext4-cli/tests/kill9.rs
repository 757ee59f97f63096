//! `kill -9` of the mounting process under a load of several threads with fsyncs.
//!
//! Fault model and what is not covered: `uext4_sim::kill9`. `cargo xtask kill9` makes 50 rounds.

use std::path::Path;
use uext4_sim::daemon_mount::Transport;
use uext4_sim::kill9::round;
use uext4_sim::mount::why_no_fuse;
use uext4_sim::oracle::e2fsck;

#[test]
fn what_was_synced_survives_the_death_of_the_mount() {
    if let Some(why) = why_no_fuse() {
        println!("skipped: {why}");
        return;
    }
    if e2fsck().is_none() {
        println!("skipped: e2fsck is not installed");
        return;
    }
    for seed in 901..905 {
        let way = Transport::of(seed);
        if let Some(why) = way.why_not() {
            println!("skipped: seed {seed} by {}: {why}", way.name());
            continue;
        }
        let round = round(Path::new(env!("CARGO_BIN_EXE_uext4")), seed, way, None)
            .unwrap_or_else(|error| panic!("cargo xtask kill9 --rounds 1 --seed {seed}: {error}"));
        println!("{}: {} operations, {} syncs", round.what, round.operations, round.syncs);
        let faults = round.faults.join("\n");
        assert!(faults.is_empty(), "cargo xtask kill9 --rounds 1 --seed {seed}:\n{faults}");
    }
}
