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
//! Not covered: io_uring, which comes with Linux 6.14; times, since the processor is emulated.

mod boot;
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
    /// This is the guest: run the suites.
    #[arg(long, hide = true)]
    inside: bool,
}

/// The verb; on a machine that lacks something, one line and no error.
pub(crate) fn verb(options: &Options) -> Result<(), String> {
    if options.inside {
        return guest::run(options.ops);
    }
    match outside(options) {
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
    let limit = Duration::from_secs(options.minutes * 60);
    boot::run(&kernel, options.ops, options.kvm, limit).map_err(Trouble::Fault)
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
