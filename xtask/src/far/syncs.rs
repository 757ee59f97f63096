//! Syncs counted against round trips, by the example `far_syncs`.

use std::process::Command;

use super::Stage;
use super::place::{Place, Store};
use super::trial::{Folder, call};

/// A column, threads, shape, and whether the figure is round trips a sync, not syncs a round trip.
const SHAPES: &[(&str, &str, &str, bool)] = &[
    ("overwrite + fsync, round trips", "1", "overwrite", true),
    ("append + fsync, round trips", "1", "append", true),
    ("16 threads on one file, syncs a round trip", "16", "storm", false),
    ("16 files overwritten, syncs a round trip", "16", "overwrite", false),
    ("16 files appended, syncs a round trip", "16", "append", false),
];

pub(super) fn measure(stage: &Stage, place: &Place) -> Result<Vec<(&'static str, f64)>, String> {
    let folder = Folder::make(stage)?;
    let served = place.begin(stage, &folder.path, Store::Memory)?;
    call(Command::new(stage.programs.join("uext4")).args(["-q", "mkfs", &served.name()]))?;
    let one = |&(column, threads, shape, per_sync): &(&'static str, &str, &str, bool)| {
        let mut command = Command::new(stage.programs.join("examples/far_syncs"));
        let said = call(command.args([&served.name(), threads, "3", shape]))?;
        let before = if per_sync { " round trips a sync" } else { " syncs a round trip" };
        let words = said.split_once(before).and_then(|(words, _)| words.rsplit(' ').next());
        let figure = words.and_then(|word| word.parse().ok());
        figure.map(|figure| (column, figure)).ok_or_else(|| format!("far_syncs said: {said}"))
    };
    SHAPES.iter().map(one).collect()
}
