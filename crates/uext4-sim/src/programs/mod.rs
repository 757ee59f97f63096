//! Programs that people run, on a mount.
//!
//! # Fault models
//! A program fails, hangs, or finds something else than it has written. What a program has
//! acknowledged is gone after the mount's daemon was killed; the image needs more than a replay of
//! its journal and the end of its orphans then. An image that was unmounted is not clean.
//!
//! # Not covered
//! Loss of what the host's page cache held: see [`crate::crash`].

mod bench;
mod postgres;
mod saves;
mod sqlite;

pub use bench::Bench;

use crate::daemon_mount::Transport;
use crate::mount::is_root;
use crate::oracle::program;
use std::path::Path;

/// How much a program is given to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Seconds, in a suite of tests.
    Short,
    /// A minute or so.
    Long,
}

impl Size {
    /// One of two numbers.
    #[must_use]
    pub fn of(self, short: u64, long: u64) -> u64 {
        match self {
            Size::Short => short,
            Size::Long => long,
        }
    }
}

type Work = fn(&mut Bench, Size) -> Result<(), String>;

/// A program, or some that do one kind of thing.
#[derive(Debug)]
pub struct Program {
    /// Name in tables and for [`find`].
    pub name: &'static str,
    /// What it does.
    pub what: &'static str,
    /// Programs of the system that it calls.
    needs: &'static [&'static str],
    needs_root: bool,
    /// Size of the image, short and long.
    mib: (u64, u64),
    work: Work,
}

/// A script of the shell or of Python below `scripts/`, with what it is called with.
macro_rules! script {
    ($file:literal, $short:expr, $long:expr) => {
        |bench, size| {
            let count = size.of($short, $long);
            bench.script($file, include_str!(concat!("scripts/", $file)), count).map(drop)
        }
    };
}

/// All of them.
pub const PROGRAMS: &[Program] = &[
    Program {
        name: "git",
        what: "add, commit, gc, fsck, check-out, clone",
        needs: &["git"],
        needs_root: false,
        mib: (64, 512),
        work: script!("git.sh", 300, 5000),
    },
    Program {
        name: "rsync and tar",
        what: "copies with all attributes; the second transfers nothing",
        needs: &["rsync", "setfattr", "setfacl"],
        needs_root: false,
        mib: (64, 512),
        work: script!("copies.sh", 300, 5000),
    },
    Program {
        name: "cargo",
        what: "build of a crate with the target folder on the mount",
        needs: &[],
        needs_root: false,
        mib: (512, 1024),
        work: bench::cargo,
    },
    Program {
        name: "SQLite",
        what: "WAL and rollback, the daemon killed",
        needs: &["sqlite3"],
        needs_root: false,
        mib: (64, 128),
        work: sqlite::work,
    },
    Program {
        name: "PostgreSQL",
        what: "pgbench, the daemon killed, recovery, pg_amcheck, pg_checksums",
        needs: &["postgres"],
        needs_root: true,
        mib: (512, 2048),
        work: postgres::work,
    },
    Program {
        name: "overlayfs",
        what: "lower, upper and work folders on the mount",
        needs: &[],
        needs_root: true,
        mib: (64, 256),
        work: script!("overlay.sh", 100, 1000),
    },
    Program {
        name: "layers",
        what: "archives with whiteouts unpacked as containers do",
        needs: &["setfattr"],
        needs_root: true,
        mib: (64, 256),
        work: script!("layers.sh", 100, 1000),
    },
    Program {
        name: "file handles",
        what: "open_by_handle_at of names that the kernel has dropped",
        needs: &["python3"],
        needs_root: true,
        mib: (64, 256),
        work: script!("handles.py", 200, 10_000),
    },
    Program {
        name: "editors",
        what: "atomic saves, the daemon killed",
        needs: &["python3"],
        needs_root: false,
        mib: (64, 128),
        work: saves::work,
    },
    Program {
        name: "locks",
        what: "flock, fcntl, of processes and of open files",
        needs: &["python3"],
        needs_root: false,
        mib: (64, 64),
        work: script!("locks.py", 100, 5000),
    },
    Program {
        name: "shared memory",
        what: "a file mapped by two processes",
        needs: &["python3"],
        needs_root: false,
        mib: (64, 64),
        work: script!("mapped.py", 500, 50_000),
    },
];

/// The program of a name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Program> {
    PROGRAMS.iter().find(|program| program.name == name)
}

impl Program {
    /// Why it cannot be run here, or `None` if it can.
    #[must_use]
    pub fn why_not(&self) -> Option<String> {
        if self.needs_root && !is_root() {
            return Some("needs root".into());
        }
        let is_there = |name| match name {
            "postgres" => postgres::programs().is_some(),
            _ => program(name).is_some(),
        };
        let missing = self.needs.iter().find(|name| !is_there(name));
        missing.map(|name| format!("needs {name}"))
    }

    /// Runs it on a fresh image, which must be clean at the end. `binary` is the `uext4` command.
    ///
    /// # Errors
    /// What went wrong.
    pub fn run(&self, binary: &Path, transport: Transport, size: Size) -> Result<(), String> {
        let once = || {
            let mut bench = Bench::new(binary, transport, size.of(self.mib.0, self.mib.1))?;
            (self.work)(&mut bench, size)?;
            bench.close()
        };
        let mut before = drops();
        let mut result = once();
        // An overlay cannot go on where somebody has the kernel drop names (docs/mount.md).
        for _ in 0..5 {
            if result.is_ok() || !OVERLAYS.contains(&self.name) || drops() == before {
                break;
            }
            before = drops();
            result = once();
        }
        result
    }
}

/// Programs that mount overlays.
const OVERLAYS: [&str; 2] = ["overlayfs", "layers"];

/// How often somebody on this machine had the kernel drop names (`drop_caches`).
fn drops() -> Option<String> {
    let counts = std::fs::read_to_string("/proc/vmstat").ok()?;
    counts.lines().find(|line| line.starts_with("drop_slab ")).map(str::to_owned)
}
