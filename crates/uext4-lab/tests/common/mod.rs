//! What the tests of the loads share.

use std::path::{Path, PathBuf};

use uext4_lab::{Event, Measurement, Plan, run};

/// The uext4 command: what `UEXT4` names, else what cargo has built beside this program.
#[allow(dead_code)] // not every test runs mounts
pub(crate) fn built_command() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("UEXT4") {
        return Some(named.into());
    }
    let own = std::env::current_exe().ok()?;
    Some(own.parent()?.parent()?.join("uext4")).filter(|path| path.is_file())
}

/// What a plan gave: no target may fail.
#[allow(dead_code)] // not every test reads all
pub(crate) struct Told {
    pub(crate) figures: Vec<Measurement>,
    pub(crate) notes: Vec<String>,
    pub(crate) skipped: Vec<String>,
}

/// Runs a plan.
#[allow(dead_code)] // not every test has a plan of its own
pub(crate) fn measure(plan: &Plan) -> Told {
    let mut told = Told { figures: Vec::new(), notes: Vec::new(), skipped: Vec::new() };
    run(plan, &mut |event| match event {
        Event::Run(_) | Event::Ended(_) | Event::Found(..) => {}
        Event::Note(load, text) => told.notes.push(format!("{}: {text}", load.id)),
        Event::Measured(figure) => told.figures.push(figure.clone()),
        Event::Skipped(_, target, reason) => {
            println!("skipped: {}: {reason}", target.name());
            told.skipped.push(reason);
        }
        Event::Failed(name, error) => panic!("{name}: {error}"),
    })
    .expect("the run");
    told.notes.iter().for_each(|note| println!("{note}"));
    told
}

pub(crate) fn assert_empty(folder: &Path) {
    let left: Vec<_> = folder.read_dir().unwrap().collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}
