//! Automation of the uext4 workspace.
//!
//! # What
//! `cargo xtask VERB`. Every verb that somebody has to run stands here and not in a script, so
//! that a developer and continuous integration run the same thing.

#![forbid(unsafe_code)]

mod demo;
mod machine;
mod packages;
mod step;
mod test;
mod tidy;
mod tree;
mod workspace;

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
    /// House rules that no compiler checks: layers, dependencies, banned names, file sizes.
    Tidy,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().verb {
        Verb::Test { verbose, no_install } => test::run(verbose, no_install),
        Verb::Demo { tree, no_mount, keep } => demo::run(tree.as_deref(), no_mount, keep),
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
