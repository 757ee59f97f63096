//! Threads beside the callers: look-ups by number, syncs, trims, and those of other modules.

use super::around::Around;
use super::onlooker::look_on;
use super::part::{Part, Parts};
use super::racer::{collide, race};
use super::refuse::be_refused;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use uext4::{Error, ErrorKind, FileKind, Ino, Volume};
use uext4_schedule::thread::{self, JoinHandle};

type Work = fn(&Around, &mut StdRng) -> Result<(), Error>;

/// What runs beside the callers, and the longest pause between its iterations in microseconds.
const NEIGHBOURS: &[(Part, Work, u64)] = &[
    (Part::Peek, peek, 3_000),
    (Part::Sync, sync, 60_000),
    (Part::Trim, trim, 200_000),
    (Part::Share, race, 2_000),
    (Part::Share, race, 5_000),
    (Part::Share, race, 20_000),
    (Part::Collide, collide, 1_000),
    (Part::Collide, collide, 5_000),
    (Part::Refuse, be_refused, 4_000),
    (Part::Onlook, look_on, 1_000),
    (Part::Onlook, look_on, 8_000),
    (Part::Onlook, look_on, 2_000),
    (Part::Onlook, look_on, 20_000),
];

/// Turns after which pauses grow.
const ITERATIONS: u64 = 200;

/// Starts those that are part of the run.
pub(super) fn start(around: &Arc<Around>) -> Vec<JoinHandle<()>> {
    let mut parts = around.plan.parts;
    if around.life.tenancy.is_some() {
        // Those take blocks, if only for a moment.
        parts = parts.without(Parts::of(&[Part::Share, Part::Trim, Part::Onlook, Part::Refuse]));
    }
    NEIGHBOURS
        .iter()
        .filter(|(part, _, _)| parts.has(*part))
        .map(|&(part, work, pause)| {
            let around = Arc::clone(around);
            thread::spawn(&part.to_string(), move || repeat(&around, part, work, pause))
        })
        .collect()
}

fn repeat(around: &Around, part: Part, work: Work, pause: u64) {
    let seed = around.plan.case.seed ^ (around.number as u64) << 32 ^ (part as u64) << 56 ^ pause;
    let mut rng = StdRng::seed_from_u64(seed);
    // A device without latency, and callers without pauses: time stands nearly still.
    let pause = if around.plan.parts.has(Part::Pauses) { pause } else { pause / 10 };
    let mut iterations = 0;
    while !around.enough.load(Ordering::Relaxed) {
        match work(around, &mut rng) {
            Ok(()) => {}
            Err(error) if around.excuses(&error) => return,
            Err(error) => return around.progress.fault(format!("{part}: {error}")),
        }
        uext4_schedule::iteration();
        // Callers may wait for long: a run is not to be filled by others meanwhile.
        iterations += 1;
        let pause = pause * (1 + iterations / ITERATIONS).pow(2);
        thread::sleep(Duration::from_micros(rng.random_range(0..pause)));
    }
}

/// Looks inodes up by number, as a server of file handles does, and uses what it finds.
fn peek(around: &Around, rng: &mut StdRng) -> Result<(), Error> {
    let volume = &around.volume;
    let space = volume.stat_fs();
    let used = (space.inodes - space.inodes_free) as u32;
    for _ in 0..rng.random_range(1..8) {
        let ino = Ino(rng.random_range(11..used.max(12) + 12));
        match use_number(volume, ino) {
            // It was removed meanwhile.
            Err(error) if *error.kind() == ErrorKind::NotFound => {}
            // A volume for reading believes the inode, not the bitmap: this one was never written.
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt(_)) && volume.read_only() => {}
            other => other?,
        }
    }
    Ok(())
}

fn use_number(volume: &Volume, ino: Ino) -> Result<(), Error> {
    let inode = volume.inode(ino)?;
    match volume.attr(&inode).kind {
        FileKind::Directory => volume.read_dir(&inode, 0, &mut |_| true)?,
        FileKind::Regular => {
            volume.open_file(&inode)?.read_at(0, &mut [0; 512])?;
        }
        FileKind::Symlink => drop(volume.read_link(&inode)?),
        _ => {}
    }
    Ok(())
}

/// Syncs and commits.
fn sync(around: &Around, rng: &mut StdRng) -> Result<(), Error> {
    match rng.random_range(0..3) {
        0 => around.volume.sync(),
        _ => around.volume.space().journal().commit_all(),
    }
}

/// Trims a part of the volume.
fn trim(around: &Around, rng: &mut StdRng) -> Result<(), Error> {
    let layout = around.volume.layout();
    let bytes = layout.blocks_count * u64::from(layout.block_size);
    let start = rng.random_range(0..bytes);
    let len = bytes / [4, 16, 64][rng.random_range(0..3)];
    around.volume.trim(start, len, u64::from(layout.block_size)).map(drop)
}
