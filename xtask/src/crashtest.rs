//! `cargo xtask crashtest`: the long form of the tests of `uext4 crashtest`.
//!
//! # What
//! Fault model: a state among thousands in which a sound program is blamed, or a program with a
//! mistake that the short form finds by luck. The programs are those of the tests. And the long
//! form of the proof of the model beside the kernel's ext4.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::{machine, workspace};

/// A program with its settings.
struct Row {
    name: &'static str,
    setup: &'static str,
    run: &'static str,
    check: &'static str,
    /// States to try of a sound one; `None`: a failure is to be found.
    states: Option<u32>,
}

/// `PYTHON` is Debian's, which has its packages' modules. Paths are below the folder of scripts.
const ROWS: &[Row] = &[
    Row {
        name: "SQLite, write-ahead log, synchronous=full",
        setup: "sh sqlite.sh setup wal",
        run: "PYTHON sqlite.py wal full 60",
        check: "sh sqlite.sh check durable",
        states: Some(10_000),
    },
    Row {
        name: "SQLite, journal truncated, synchronous=full",
        setup: "sh sqlite.sh setup truncate",
        run: "PYTHON sqlite.py truncate full 40",
        check: "sh sqlite.sh check durable",
        states: Some(10_000),
    },
    Row {
        name: "SQLite, journal deleted, synchronous=extra",
        setup: "sh sqlite.sh setup delete",
        run: "PYTHON sqlite.py delete extra 40",
        check: "sh sqlite.sh check durable",
        states: Some(10_000),
    },
    Row {
        name: "SQLite, journal deleted, synchronous=full: consistency",
        setup: "sh sqlite.sh setup delete",
        run: "PYTHON sqlite.py delete full 40",
        check: "sh sqlite.sh check consistent",
        states: Some(10_000),
    },
    Row {
        name: "SQLite, journal deleted, synchronous=off: consistency",
        setup: "sh sqlite.sh setup delete",
        run: "PYTHON sqlite.py delete off 40",
        check: "sh sqlite.sh check consistent",
        states: None,
    },
    Row {
        name: "LevelDB, sync",
        setup: "true",
        run: "PYTHON leveldb.py sync 200",
        check: "PYTHON leveldb.py check",
        states: Some(10_000),
    },
    Row {
        name: "LevelDB, no sync",
        setup: "true",
        run: "PYTHON leveldb.py nosync 200",
        check: "PYTHON leveldb.py check",
        states: None,
    },
    Row {
        name: "PostgreSQL, fsync=on",
        setup: "sh postgres.sh setup",
        run: "sh postgres.sh run on 200",
        check: "sh postgres.sh check",
        states: Some(500),
    },
    Row {
        name: "PostgreSQL, fsync=off",
        setup: "sh postgres.sh setup",
        run: "sh postgres.sh run off 200",
        check: "sh postgres.sh check",
        states: None,
    },
];

/// Longest search for a mistake, in seconds.
const SEARCH: &str = "300";

/// Tests the programs whose name has `only` in it; each is to be as its row says.
pub(crate) fn run(only: &str) -> Result<(), String> {
    let built = workspace::cargo(&["build", "--locked", "--quiet", "--release", "-p", "uext4-cli"])
        .stdin(Stdio::null())
        .status();
    if !built.is_ok_and(|status| status.success()) {
        return Err("crashtest: uext4-cli does not build".to_owned());
    }
    let mut wrong = Vec::new();
    for row in ROWS.iter().filter(|row| row.name.contains(only)) {
        let begin = Instant::now();
        let (status, said) = row.test()?;
        let first = said.lines().next().unwrap_or_default();
        println!("{}: {first} ({:.0} s)", row.name, begin.elapsed().as_secs_f64());
        if status != Some(i32::from(row.states.is_none())) {
            println!("{said}");
            wrong.push(row.name);
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("crashtest: {}", wrong.join("; "))) }
}

/// The proof that the model allows what the kernel's ext4 leaves, with all options.
pub(crate) fn kernel() -> Result<(), String> {
    if let Some(why) = no_kernel(machine::is_root()) {
        return Err(format!("crashtest --kernel: {why}"));
    }
    let status = workspace::cargo(&["test", "--locked", "--quiet", "--release"])
        .args(["-p", "uext4-crashtest", "--test", "kernel", "--", "--ignored", "--nocapture"])
        .stdin(Stdio::null())
        .status()
        .map_err(|error| format!("crashtest: cannot run cargo: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("crashtest --kernel: {status}")) }
}

/// Why there is no kernel's ext4 to compare with, if so.
fn no_kernel(is_root: bool) -> Option<String> {
    if !is_root {
        return Some("it mounts the kernel's ext4, which needs root".to_owned());
    }
    let devices = ["/dev/fuse", "/dev/loop-control"];
    let missing = devices.iter().find(|device| !Path::new(device).exists())?;
    Some(format!("{missing} is missing"))
}

impl Row {
    /// Exit status of the test, and what it printed.
    fn test(&self) -> Result<(Option<i32>, String), String> {
        let folder = workspace::root().join("crates/uext4-cli/tests/crashtest");
        let line = |words: &str| {
            let scripts = |word: &str| match word {
                "PYTHON" => "/usr/bin/python3".to_owned(),
                _ if word.contains('.') => folder.join(word).display().to_string(),
                _ => word.to_owned(),
            };
            words.split(' ').map(scripts).collect::<Vec<_>>().join(" ")
        };
        let limit = match self.states {
            Some(states) => ["--states".to_owned(), states.to_string()],
            None => ["--seconds".to_owned(), SEARCH.to_owned()],
        };
        let output = Command::new(workspace::target().join("release/uext4"))
            .args(["-q", "crashtest", "--setup", &line(self.setup), "--run", &line(self.run)])
            .args(["--check", &line(self.check)])
            .args(limit)
            .env("PATH", machine::search_path())
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("crashtest: cannot run uext4: {error}"))?;
        let both = [output.stdout, output.stderr].concat();
        Ok((output.status.code(), String::from_utf8_lossy(&both).into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::no_kernel;

    #[test]
    fn what_proves_nothing_is_no_proof() {
        assert!(no_kernel(false).is_some_and(|why| why.contains("needs root")));
    }
}
