//! `cargo xtask far`: images behind a network, measured beside a local one and beside the kernel.
//!
//! # What
//! A tree is unpacked, walked and read on a local image, on the same behind `nbdkit` at once and
//! behind round trips of 1 ms and 5 ms (`far_server`), with FUA and without; and on the kernel's
//! ext4, which reaches the same exports by `nbdfuse` and a loop device. Then syncs are counted
//! against round trips (`far_syncs`). All places take turns; the figures are medians of the rounds,
//! and the smallest and largest behind them. It measures and judges nothing.

mod place;
mod syncs;
mod tree;
mod trial;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;

use place::Place;

use crate::{machine, workspace};

/// What is measured, and where.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Rounds; each place is measured once in each.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Files of the tree; it has a directory for each 15.
    #[arg(long, default_value_t = 45_000)]
    files: u32,
    /// Folder of the images, on the disk that the local image is to be measured on.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Only places with one of these in their name; may be given several times.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
}

/// The programs that are measured, and the folder of the images.
struct Stage {
    folder: PathBuf,
    programs: PathBuf,
    archive: PathBuf,
}

/// Figures of one kind, a list for each place and column.
struct Figures {
    rows: Vec<&'static str>,
    columns: Vec<&'static str>,
    values: BTreeMap<(&'static str, &'static str), Vec<f64>>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    if let Some(why) = machine::why_no_fuse() {
        return Err(format!("far: {why}"));
    }
    let mut places: Vec<&Place> =
        place::ALL.iter().filter(|place| is_wanted(place, &arguments.only)).collect();
    if places.is_empty() {
        return Err(format!("far: no place has {} in its name", arguments.only.join(" or ")));
    }
    println!("mounts by io_uring: {}", if has_rings() { "yes" } else { "no" });
    let stage = Stage::make(arguments)?;
    let (mut times, mut ratios) = (Figures::of(&places), Figures::of(&places));
    for round in 1..=arguments.rounds {
        for place in &places {
            let Some(measured) = trial::measure(&stage, place)? else { continue };
            println!("round {round}: {}: {}", place.name, told(&measured));
            times.add(place.name, &measured);
        }
        for place in places.iter().filter(|place| place.counts_syncs()) {
            let measured = syncs::measure(&stage, place)?;
            println!("round {round}: {}: {}", place.name, told(&measured));
            ratios.add(place.name, &measured);
        }
        // No place is always the first.
        places.rotate_left(1);
    }
    times.print("seconds");
    ratios.print("syncs");
    Ok(())
}

fn is_wanted(place: &Place, only: &[String]) -> bool {
    only.is_empty() || only.iter().any(|text| place.name.contains(text))
}

/// Whether the kernel takes requests of mounts by io_uring, which uext4 then does by itself.
fn has_rings() -> bool {
    let parameter = std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    parameter.is_ok_and(|value| value.trim() == "Y")
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.archive);
        let _ = std::fs::remove_dir_all(self.folder.join("tree"));
        // Only if nothing is mounted in it any more.
        let _ = std::fs::remove_dir(&self.folder);
    }
}

impl Stage {
    fn make(arguments: &Arguments) -> Result<Self, String> {
        let status = workspace::cargo(&["build", "--locked", "--quiet", "--release"])
            .args(["-p", "uext4-cli", "-p", "uext4-nbd", "--bins", "--examples"])
            .stdin(Stdio::null())
            .status();
        if !status.is_ok_and(|status| status.success()) {
            return Err("far: uext4-cli or uext4-nbd does not build".into());
        }
        // As the table of mounts has it.
        let below = arguments.dir.clone().unwrap_or_else(workspace::target);
        let below =
            below.canonicalize().map_err(|error| format!("{}: {error}", below.display()))?;
        let folder = below.join("far");
        std::fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let archive = folder.join("tree.tar");
        let programs = workspace::target().join("release");
        let stage = Self { folder, programs, archive };
        tree::pack(&stage, arguments.files)?;
        Ok(stage)
    }
}

impl Figures {
    fn of(places: &[&Place]) -> Self {
        let rows = places.iter().map(|place| place.name).collect();
        Self { rows, columns: Vec::new(), values: BTreeMap::new() }
    }

    fn add(&mut self, row: &'static str, measured: &[(&'static str, f64)]) {
        for &(column, value) in measured {
            if !self.columns.contains(&column) {
                self.columns.push(column);
            }
            self.values.entry((row, column)).or_default().push(value);
        }
    }

    /// A table in Markdown.
    fn print(&mut self, title: &str) {
        let has_figures = |row: &&str| self.values.keys().any(|(of, _)| of == row);
        let rows: Vec<&str> = self.rows.iter().copied().filter(has_figures).collect();
        if rows.is_empty() {
            return;
        }
        println!("\n| {title} | {} |", self.columns.join(" | "));
        println!("|---{}|", "|---".repeat(self.columns.len()));
        for row in rows {
            let cells = self.columns.iter().map(|&column| {
                let values = self.values.get_mut(&(row, column));
                values.map_or_else(|| "-".to_owned(), |values| cell(values))
            });
            let cells: Vec<String> = cells.collect();
            println!("| {row} | {} |", cells.join(" | "));
        }
    }
}

/// The median, the smallest and the largest.
fn cell(values: &mut [f64]) -> String {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
    let median = f64::midpoint(low, high);
    format!("{median:.2} ({:.2} to {:.2})", values[0], values[values.len() - 1])
}

fn told(measured: &[(&'static str, f64)]) -> String {
    let words: Vec<String> =
        measured.iter().map(|(name, value)| format!("{name} {value:.2}")).collect();
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_has_the_median() {
        assert_eq!(cell(&mut [3.0, 1.0, 2.0]), "2.00 (1.00 to 3.00)");
        assert_eq!(cell(&mut [4.0, 1.0]), "2.50 (1.00 to 4.00)");
    }
}
