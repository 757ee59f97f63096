//! `uext4 manual`: the manual pages, from the command line that this program takes.

use std::fs;
use std::path::{Path, PathBuf};

use crate::examples::{self, Examples};
use crate::failure::{At, Result, Why};
use crate::manual_pages::{self, Page};
use crate::output::Output;
use crate::usage::meant;

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 manual mkfs | man -l -", "read the page of a verb, uext4-mkfs(1)"),
    ("uext4 manual uext4.5 | man -l -", "read about the mount options, uext4(5)"),
    ("uext4 manual --output /usr/local/share/man", "write all pages where man(1) finds them"),
];

/// Print or write the manual pages: uext4(1), a page for each verb, uext4(5) of mount options
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// Write all pages into man1 and man5 of this folder, which are made if they do not exist
    #[arg(short, long, value_name = "DIR", conflicts_with = "page")]
    output: Option<PathBuf>,
    /// Print one page: of a verb, or uext4.5
    #[arg(default_value = "uext4")]
    page: String,
}

/// Runs the verb on the whole command line.
pub(crate) fn run(args: &Args, command: clap::Command) -> Result<()> {
    let pages = manual_pages::all(command).at("manual", "the pages")?;
    match &args.output {
        Some(folder) => pages.iter().try_for_each(|page| write(folder, page)),
        None => print(&args.page, &pages),
    }
}

fn write(folder: &Path, page: &Page) -> Result<()> {
    let section = folder.join(format!("man{}", page.section));
    let made = fs::create_dir_all(&section).map_err(|error| match section.exists() {
        true => Why::new("is no directory"),
        false => Why::from(error),
    });
    made.at("manual", section.display())?;
    let path = section.join(page.file());
    fs::write(&path, &page.text).at("manual", path.display())
}

fn print(name: &str, pages: &[Page]) -> Result<()> {
    let is_it = |page: &&Page| {
        let verb = page.name.strip_prefix("uext4-");
        verb == Some(name) || page.name == name || page.file() == name
    };
    let Some(page) = pages.iter().find(is_it) else {
        let names = pages.iter().filter_map(|page| page.name.strip_prefix("uext4-"));
        let hint = meant(name, names).map(|name| format!("; did you mean '{name}'?"));
        let why = format!("there is no such page{}", hint.unwrap_or_default());
        return Err(Why::new(why).at("manual", name));
    };
    let mut output = Output::new();
    output.bytes(&page.text)?;
    output.finish()
}
