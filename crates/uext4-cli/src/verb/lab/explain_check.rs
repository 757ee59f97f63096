//! `uext4 lab explain-check`: whether explanations name the counter that an option moves.

use std::io::Write;
use std::path::PathBuf;

use uext4_lab::explain::FILE;
use uext4_lab::explain::cases::CASES;
use uext4_lab::{Event, Plan};

use crate::failure::{Failure, Result, Why, say};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder for what is seen, instead of one that goes
    #[arg(long)]
    out: Option<PathBuf>,
    /// Folder for images; on a disk, as the kernel's collapse is one of flushes
    #[arg(long)]
    folder: Option<PathBuf>,
}

/// Runs the verb.
pub(super) fn run(args: &Args) -> Result<()> {
    // What an earlier run has explained must not be judged for this one.
    if let Some(before) = args.out.as_ref().map(|dir| dir.join(FILE)).filter(|file| file.exists()) {
        return Err(Why::new("an explanation of an earlier run: name a new folder")
            .at("lab", before.display()));
    }
    let (mut right, mut all) = (0, 0);
    let mut out = std::io::stdout();
    for case in CASES {
        let plan = Plan {
            // E2 maps its image, which a disk does not allow.
            folder: args.folder.clone().filter(|_| case.name() != ("E2", "uext4")),
            explain: args.out.clone(),
            command: std::env::current_exe().ok(),
            ..Plan::default()
        };
        let checked = case.check(plan, &mut |event| match event {
            Event::Note(load, text) => say(&format!("lab: {}: {text}", load.id)),
            Event::Failed(name, error) => say(&format!("lab: {name}: {error}")),
            _ => {}
        });
        match checked {
            Ok(checked) => {
                all += checked.len();
                right += checked.iter().filter(|one| one.is_right).count();
                for one in checked {
                    writeln!(out, "{one}").map_err(crate::output::failed)?;
                }
            }
            Err(error) => {
                let (load, target) = case.name();
                say(&format!("lab: {load} on {target} is left out: {error}"));
            }
        }
    }
    writeln!(out, "{right} of {all} options are explained").map_err(crate::output::failed)?;
    if right == all && all > 0 { Ok(()) } else { Err(Failure::Reported) }
}
