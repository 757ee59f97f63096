//! `cargo xtask old-kernel`: the mount's conformance on Debian 12's own kernel, Linux 6.1.
//!
//! # What
//! [`package`] fetches that kernel, [`boot`] starts it under QEMU, [`guest`] is what runs there:
//! this same program, from this machine's own files. It mounts and compares with the kernel's
//! ext4 of 6.1, as the suites do on the machine's kernel: [`pjdfstest`](super::pjdfstest),
//! [`fsx`](super::fsx) and scripts of system calls and of NFS ([`scripts`]).
//!
//! # Why
//! The FUSE client of each kernel answers and keeps other things: what was only tried on one
//! kernel has been wrong on another (stale pages beside direct writes, before 6.6).
//!
//! `--features` has that kernel judge images instead ([`features`]).
//!
//! Not covered: io_uring, which comes with Linux 6.14; times, since the processor is emulated.

mod boot;
mod features;
mod guest;
mod package;
mod scripts;

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use super::{Trouble, debug_command, tool};
use crate::workspace;

/// What the verb was asked for.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Operations of fsx.
    #[arg(long, default_value_t = 10_000)]
    ops: u64,
    /// Give up after so many minutes.
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// Have the processor's virtualisation do it (/dev/kvm), not an emulation.
    #[arg(long)]
    kvm: bool,
    /// Not the suites, but images with features that few kernels have: it fills, reads, changes.
    #[arg(long)]
    features: bool,
    /// Seeded combinations of features, besides the fixed ones.
    #[arg(long, default_value_t = 6, requires = "features", value_parser = mixes())]
    mixes: u64,
    /// Seed of the first combination.
    #[arg(long, default_value_t = 1, requires = "features")]
    seed: u64,
    /// Only images whose names have this text.
    #[arg(long, requires = "features")]
    only: Option<String>,
    /// This is the guest: run the suites.
    #[arg(long, hide = true)]
    inside: bool,
    /// Or this phase of the images.
    #[arg(long, hide = true, requires = "inside")]
    phase: Option<String>,
}

/// A guest has room for so many combinations: each is a disk.
fn mixes() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(..=8)
}

/// The verb; on a machine that lacks something, one line and no error.
pub(crate) fn verb(options: &Options) -> Result<(), String> {
    match &options.phase {
        Some(phase) => return features::inside(phase),
        None if options.inside => return guest::run(options.ops),
        None => {}
    }
    let done = if options.features { features::run(options) } else { outside(options) };
    match done {
        Ok(()) => Ok(()),
        Err(Trouble::Missing(why)) => {
            println!("skipped: old-kernel: {why}");
            Ok(())
        }
        Err(Trouble::Fault(what)) => Err(what),
    }
}

fn outside(options: &Options) -> Result<(), Trouble> {
    let kernel = package::provide()?;
    // There is no network in the guest, and no compiler that is fast enough.
    for tool in [&tool::PJDFSTEST, &tool::FSX] {
        tool.provide().map_err(Trouble::Missing)?;
    }
    build()?;
    let words = format!("--ops {}", options.ops);
    let task = boot::Task {
        words,
        disks: Vec::new(),
        shared: None,
        kvm: options.kvm,
        limit: Duration::from_secs(options.minutes * 60),
    };
    boot::run(&kernel, &task).map_err(Trouble::Fault)
}

/// Builds uext4 and copies it and this program to where guests run them.
fn build() -> Result<(), Trouble> {
    let built = workspace::cargo(&["build", "--locked", "--quiet", "-p", "uext4-cli"])
        .stdin(Stdio::null())
        .status();
    if !built.is_ok_and(|status| status.success()) || !debug_command().exists() {
        return Err(Trouble::fault("uext4-cli does not build"));
    }
    // Copies, which the guest has open while others build.
    let own = std::env::current_exe().map_err(|error| Trouble::fault(error.to_string()))?;
    for (from, to) in [(debug_command(), command()), (own, program())] {
        fs::copy(&from, &to).map_err(|error| package::fault(&from, &error))?;
    }
    Ok(())
}

/// Where all of this lies.
fn folder() -> PathBuf {
    workspace::target().join("old-kernel")
}

/// uext4 in the guest.
fn command() -> PathBuf {
    folder().join("uext4")
}

/// This program in the guest.
fn program() -> PathBuf {
    folder().join("xtask")
}
