//! The longer checks: `cargo xtask crash`, `kill9`, `tree` and `freeze` call this program.

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
}

fn main() -> ExitCode {
    let result = match Command::parse().verb {
        Verb::Crash(args) => verb::crash::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("uext4-sim: {message}");
            ExitCode::FAILURE
        }
    }
}
