//! `uext4 completions`: scripts for shells, from the command line that this program takes.

use clap_complete::Shell;

use crate::examples::{self, Examples};
use crate::failure::Result;
use crate::output::Output;

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 completions bash > /etc/bash_completion.d/uext4", "for every user of bash"),
    ("uext4 completions zsh > ~/.zfunc/_uext4", "for zsh, with ~/.zfunc in fpath"),
    ("uext4 completions fish > ~/.config/fish/completions/uext4.fish", "for a user of fish"),
];

/// Print a script with which a shell completes verbs and options
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// The shell: bash, zsh or fish
    #[arg(value_parser = ["bash", "zsh", "fish"])]
    shell: String,
}

/// Runs the verb on the whole command line.
pub(crate) fn run(args: &Args, mut command: clap::Command) -> Result<()> {
    let shell = match args.shell.as_str() {
        "zsh" => Shell::Zsh,
        "fish" => Shell::Fish,
        _ => Shell::Bash,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "uext4", &mut script);
    // Both end in an empty line or in none, by shell.
    while script.ends_with(b"\n\n") {
        script.pop();
    }
    let mut output = Output::new();
    output.bytes(&script)?;
    output.finish()
}
