//! `cargo xtask remote`: the long form of the tests of network block devices.
//!
//! # What
//! Fault model: see `crates/uext4-cli/tests/remote.rs` and `rbd.rs`, whose tests are run one after
//! the other. All of them must run: a cluster of Ceph that cannot be had is a failure.

use std::process::Stdio;

use crate::packages::{self, Found};
use crate::{machine, workspace};

/// Each is in the name of one test.
pub(crate) const SERVERS: [&str; 5] = ["nbdkit", "qemu_nbd", "server_that_forgets", "ceph", LIBRBD];
/// Not a server, but librbd, in a build that links it.
const LIBRBD: &str = "librbd";

/// Runs the tests with `only` in their names; all of them if it is empty.
pub(crate) fn run(only: &str) -> Result<(), String> {
    if let Some(why) = machine::why_no_fuse() {
        return Err(format!("remote: {why}"));
    }
    match packages::provide_ceph() {
        Found::All => {}
        Found::Installed(names) => println!("installed: {names}"),
        Found::Missing(names) => return Err(format!("remote: missing: {names}")),
    }
    if only != LIBRBD {
        test(&["--test", "remote", only])?;
    }
    if only.is_empty() || only == LIBRBD {
        test(&["--features", "rbd", "--test", "rbd"])?;
    }
    Ok(())
}

fn test(which: &[&str]) -> Result<(), String> {
    let status = workspace::cargo(&["test", "--locked", "--quiet", "-p", "uext4-cli"])
        .args(which)
        .args(["--", "--ignored", "--nocapture", "--test-threads=1"])
        .stdin(Stdio::null())
        .status()
        .map_err(|error| format!("remote: cannot run cargo: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("remote: {status}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault model: a name that no test has any more, which would run none of them and succeed.
    #[test]
    fn each_server_has_one_test() {
        let source = |name: &str| {
            let path = workspace::root().join("crates/uext4-cli/tests").join(name);
            std::fs::read_to_string(path).unwrap()
        };
        let source = source("remote.rs") + &source("rbd.rs");
        let tests = source.split("#[ignore = \"cargo xtask remote\"]\nfn ").skip(1);
        let tests: Vec<_> = tests.filter_map(|test| test.split('(').next()).collect();
        assert_eq!(tests.len(), SERVERS.len(), "{tests:?}");
        for server in SERVERS {
            let has = tests.iter().filter(|test| test.contains(server)).count();
            assert_eq!(has, 1, "{server}: {tests:?}");
        }
    }
}
