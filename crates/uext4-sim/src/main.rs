//! The longer checks: `cargo xtask crash`, `kill9`, `programs`, `soak`, `tree`, `features`,
//! `freeze`, `fsck-diff`, `fsx` and `hostile` call this program.

#![forbid(unsafe_code)]

mod verb;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Longer checks of uext4
#[derive(Parser)]
#[command(name = "uext4-sim")]
struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Crash(verb::crash::Args),
    Kill9(verb::kill9::Args),
    Programs(verb::programs::Args),
    Soak(verb::soak::Args),
    Tree(verb::tree::Args),
    Features(verb::features::Args),
    Freeze(verb::freeze::Args),
    FsckDiff(verb::fsck_diff::Args),
    Fsx(verb::fsx::Args),
    Hostile(verb::hostile::Args),
    #[cfg(feature = "simulate")]
    Simulate(verb::simulate::Args),
}

fn main() -> ExitCode {
    let result = match Command::parse().verb {
        Verb::Crash(args) => verb::crash::run(&args),
        Verb::Kill9(args) => verb::kill9::run(&args),
        Verb::Programs(args) => verb::programs::run(&args),
        Verb::Soak(args) => verb::soak::run(&args),
        Verb::Tree(args) => verb::tree::run(&args),
        Verb::Features(args) => verb::features::run(&args),
        Verb::Freeze(args) => verb::freeze::run(&args),
        Verb::FsckDiff(args) => verb::fsck_diff::run(&args),
        Verb::Fsx(args) => verb::fsx::run(&args),
        Verb::Hostile(args) => verb::hostile::run(&args),
        #[cfg(feature = "simulate")]
        Verb::Simulate(args) => verb::simulate::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("uext4-sim: {message}");
            ExitCode::FAILURE
        }
    }
}
