//! Automation of the uext4 workspace.
//!
//! # What
//! `cargo xtask VERB`. Every verb that somebody has to run stands here and not in a script, so
//! that a developer and continuous integration run the same thing.

#![forbid(unsafe_code)]

mod bisect;
mod conform;
mod crashtest;
mod demo;
mod far;
mod licences;
mod long;
mod machine;
mod package;
mod packages;
mod remote;
mod report;
mod step;
mod test;
mod tidy;
mod tree;
mod workspace;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Automation of the uext4 workspace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Formatting, clippy with warnings denied, and every test: what continuous integration runs.
    Test {
        /// Print every line of the tests, not only results, failures and what was skipped.
        #[arg(long)]
        verbose: bool,
        /// Look for Debian packages but never install any.
        #[arg(long)]
        no_install: bool,
    },
    /// The main job from end to end: make, fill, mount, work, kill, recover, check.
    Demo {
        /// Directory tree to bring in; by default one that every machine with Rust has.
        #[arg(long, value_name = "DIR")]
        tree: Option<PathBuf>,
        /// Work without mounting even where /dev/fuse exists.
        #[arg(long)]
        no_mount: bool,
        /// Keep the image, in .demo/ of the repository.
        #[arg(long)]
        keep: bool,
    },
    /// A slow commit among 32, found by `git bisect run` as docs/lab.md shows it.
    Bisect {
        /// What is searched with.
        #[arg(long, value_enum, default_value = "pair")]
        by: bisect::By,
        /// Which of the commits is slow.
        #[arg(long, default_value_t = 21)]
        slow: u32,
    },
    /// The crash test from seed to seed: recorded loads, cut at every flush, recovered and judged.
    #[command(disable_help_flag = true)]
    Crash {
        /// --seed S, --seconds N and more: see `cargo xtask crash --help`. First --growth: growths
        /// (uext4 resize) in place of loads, with --seed, --seconds and --rounds.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<OsString>,
    },
    /// Databases and their mistakes under `uext4 crashtest`: 10,000 states each, of PostgreSQL 500.
    Crashtest {
        /// Only those with this in their name, such as SQLite.
        #[arg(long, value_name = "TEXT", default_value = "")]
        only: String,
        /// Instead the proof of the model beside the kernel's ext4, with all options; as root.
        #[arg(long, conflicts_with = "only")]
        kernel: bool,
    },
    /// The whole engine from one seed: schedule, device, faults, losses of power, all judged.
    #[command(disable_help_flag = true)]
    Simulate {
        /// --seed S, --seconds N and more: see `cargo xtask simulate --help`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<OsString>,
    },
    /// `kill -9` of the mounting process at random moments under load, 50 times.
    #[command(disable_help_flag = true)]
    Kill9 {
        /// --rounds N, --seed S and more: see `cargo xtask kill9 --help`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<OsString>,
    },
    /// Programs that people run, on mounts by both transports; daemons are killed below databases.
    #[command(disable_help_flag = true)]
    Programs {
        /// --only TEXT, --short and more: see `cargo xtask programs --help`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<OsString>,
    },
    /// Mounts under load for long, killed and mounted again; what their daemons hold.
    #[command(disable_help_flag = true)]
    Soak {
        /// --minutes N, --mounts N and more: see `cargo xtask soak --help`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<OsString>,
    },
    /// Images behind a network: times and syncs a round trip, beside local ones and the kernel's.
    Far(far::Arguments),
    /// Network block devices: nbdkit, qemu-nbd and a cluster of Ceph, killed under mounts at work.
    Remote {
        /// Only the tests of one server.
        #[arg(long, value_name = "NAME", value_parser = remote::SERVERS)]
        only: Option<String>,
    },
    /// A tree of 250,000 entries and 3 GiB through uext4 and the kernel, both ways.
    #[command(disable_help_flag = true)]
    Tree {
        /// --entries N and more: see `cargo xtask tree --help`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<OsString>,
    },
    /// Dirty images of live kernel mounts, recovered by uext4 to what the kernel recovers.
    #[command(disable_help_flag = true)]
    Freeze {
        /// --rounds N, --seed S and more: see `cargo xtask freeze --help`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<OsString>,
    },
    /// Images of every combination of features, by mke2fs, the kernel and uext4 in turns.
    #[command(disable_help_flag = true)]
    Features {
        /// --rounds N, --seed S, --singles and more: see `cargo xtask features --help`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<OsString>,
    },
    /// The checker beside e2fsck on seeded damage: 1,000 images, the verdicts compared.
    #[command(disable_help_flag = true)]
    FsckDiff {
        /// --cases N, --seed S and more: see `cargo xtask fsck-diff --help`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<OsString>,
    },
    /// Every verb of the command on damaged images and archives.
    #[command(disable_help_flag = true)]
    Hostile {
        /// --images N, --seed S and more: see `cargo xtask hostile --help`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<OsString>,
    },
    /// pjdfstest on uext4 and on the kernel's ext4, compared case by case. Needs root.
    Pjdfstest,
    /// Random operations on the bytes of a file, every read compared.
    Fsx {
        /// Operations.
        #[arg(long, default_value_t = 100_000)]
        ops: u64,
        /// Seed of the operations.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// The program fsx through a mount, instead of the engine in a process. Needs root.
        #[arg(long)]
        mount: bool,
    },
    /// pjdfstest, fsx and system calls on Debian 12's own kernel (6.1), under QEMU; or, with
    /// --features, images with casefold, quota, verity, encrypt and more in turns with that kernel.
    OldKernel(conform::old_kernel::Options),
    /// The ioengine of integrations/fio for the installed fio; prints its path.
    Fio {
        /// fio's source tree, of exactly the installed version; Debian's source package if absent.
        #[arg(long, value_name = "DIR")]
        source: Option<PathBuf>,
        /// Run fio's own verification on it, as `cargo xtask test` does.
        #[arg(long, conflicts_with = "source")]
        test: bool,
    },
    /// A Debian package, a static binary, the sources with their crates, a bill of materials.
    Package(package::Options),
    /// Licences, sources and advisories of all packages, by their manifests and by cargo-deny.
    Licences,
    /// One fuzz target under libFuzzer. Needs a nightly compiler.
    Fuzz {
        /// superblock, inode, extent, directory, htree, xattr, journal, structured or nbd.
        target: String,
        /// How long.
        #[arg(long, default_value_t = 120)]
        seconds: u64,
        /// With AddressSanitizer: slower by a factor of four.
        #[arg(long)]
        asan: bool,
        /// Reduce what has been learnt, and keep it in fuzz/corpora.
        #[arg(long)]
        keep: bool,
    },
    /// House rules that no compiler checks: layers, dependencies, banned names, file sizes.
    Tidy,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().verb {
        Verb::Test { verbose, no_install } => test::run(verbose, no_install),
        Verb::Bisect { by, slow } => bisect::run(by, slow),
        Verb::Demo { tree, no_mount, keep } => demo::run(tree.as_deref(), no_mount, keep),
        Verb::Crash { rest } if rest.first().is_some_and(|word| word == "--growth") => {
            long::growths(&rest)
        }
        Verb::Crash { rest } => long::run("crash", &rest),
        Verb::Crashtest { kernel: true, .. } => crashtest::kernel(),
        Verb::Crashtest { only, .. } => crashtest::run(&only),
        Verb::Simulate { rest } => long::run("simulate", &rest),
        Verb::Kill9 { rest } => long::run("kill9", &rest),
        Verb::Programs { rest } => long::run("programs", &rest),
        Verb::Soak { rest } => long::run("soak", &rest),
        Verb::Far(arguments) => far::run(&arguments),
        Verb::Remote { only } => remote::run(only.as_deref().unwrap_or_default()),
        Verb::Tree { rest } => long::run("tree", &rest),
        Verb::Freeze { rest } => long::run("freeze", &rest),
        Verb::Features { rest } => long::run("features", &rest),
        Verb::FsckDiff { rest } => long::run("fsck-diff", &rest),
        Verb::Hostile { rest } => long::run("hostile", &rest),
        Verb::Pjdfstest => conform::release_command().and_then(conform::pjdfstest::verb),
        Verb::Fsx { ops, seed, mount } => {
            conform::fsx::verb(mount, ops, seed, conform::release_command)
        }
        Verb::OldKernel(options) => conform::old_kernel::verb(&options),
        Verb::Fio { test: true, .. } => {
            conform::release_command().and_then(|command| conform::fio::verb(&command))
        }
        Verb::Fio { source, .. } => conform::ioengine::verb(source.as_deref()),
        Verb::Fuzz { target, seconds, asan, keep } => {
            conform::fuzz::run(&target, seconds, asan, keep)
        }
        Verb::Package(options) => package::verb(&options),
        Verb::Licences => licences::all(true).map(|remark| println!("{remark}")),
        Verb::Tidy => tidy::run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
