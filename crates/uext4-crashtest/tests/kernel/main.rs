//! The model contains what the kernel does: short sequences of calls on the kernel's own ext4.
//!
//! Fault model: the disk has a volatile cache. When the power fails, it has all writes before its
//! last flush and any of those after it. Each resulting tree must be one that the model allows
//! after the calls that had returned by then, and perhaps the next one. The other way, each state
//! that the model makes of the same calls must be one that it allows; how many of the kernel's
//! trees are among them is told.

#[path = "../common/mod.rs"]
mod common;
mod disk;
mod generated;
mod sequence;

use std::sync::Arc;

use common::{Script, base};
use disk::{Disk, Event, hindrance};
use generated::Generated;
use sequence::{Files, Op, note, sequences};
use uext4::{MountOptions, Volume};
use uext4_crashtest::model::{Node, Tree};
use uext4_crashtest::trace::FileId;
use uext4_device::MemoryDevice;

/// `old` is 1, `data` is 2.
const BASE: [(&str, &[u8]); 2] = [("old", &[b'o'; 10000]), ("data", &[b'p'; 16384])];

/// Options of mount(8), with the mode as the model takes it.
const OPTIONS: &[(&str, &str)] = &[
    ("ordered", ""),
    ("ordered", "noauto_da_alloc"),
    ("ordered", "dioread_lock"),
    ("ordered", "nodelalloc"),
    ("journal", ""),
    ("writeback", ""),
    ("writeback", "dioread_lock"),
    ("writeback", "nodelalloc,noauto_da_alloc"),
];

/// An image whose free blocks hold what was removed: a block that is allocated and not written
/// shows it.
fn stale_base() -> (MemoryDevice, Vec<(FileId, u32)>) {
    let [old, data] = BASE;
    let (device, before) = base(&[old, data, ("removed", &vec![b'S'; 8 << 20])]);
    let device = Arc::new(device);
    let shared = Arc::clone(&device);
    let volume = Volume::open(shared, MountOptions::default()).unwrap();
    volume.unlink(&volume.root().unwrap(), b"removed").unwrap();
    volume.close().unwrap();
    (device.snapshot(), before[..2].to_vec())
}

/// How much is tried of each sequence.
#[derive(Clone, Copy)]
struct Effort {
    /// Subsets of the writes that no flush covers, by chance.
    subsets: usize,
    /// States that the model makes.
    made: usize,
}

/// What came of a sequence.
#[derive(Debug, Default)]
struct Found {
    states: usize,
    trees: usize,
    /// Trees that are among the states that the model makes.
    reached: usize,
    /// States that the model has made.
    made: usize,
    /// States that the model does not allow.
    refused: Vec<String>,
}

/// `marks`: where the calls stand among the writes of the disk is recorded. That makes each call
/// wait for those writes; without it the kernel does more at a time, and less can be demanded.
fn prove(
    name: &str,
    ops: &[Op],
    (mode, options): (&str, &str),
    marks: bool,
    effort: Effort,
    made: &mut Option<Generated>,
) -> Found {
    let image = stale_base();
    let kernel_options = match mode {
        "ordered" => options.to_owned(),
        _ => format!("data={mode},{options}"),
    };
    let disk = Disk::mount(&image.0, &kernel_options);
    let dir = disk.dir();
    let mut files = Files::open(&dir, &BASE.map(|(name, _)| name));
    let mut script = Script::default();
    // The steps that have returned at each mark, and those that may have taken effect before the
    // next one.
    let mut ends = vec![];
    disk.mark();
    for op in ops {
        let before = script.trace.steps.len();
        note(&mut script, *op);
        ends.push((before, script.trace.steps.len()));
        script.print("x");
        files.call(*op);
        if marks {
            disk.mark();
        }
    }
    let all = script.trace.steps.len();
    if marks {
        ends.push((all, all));
    } else {
        ends = vec![(0, all)];
    }
    drop(files);
    let events = disk.end();
    let explorer = script.explorer(&image, mode, options);
    let mut found = Found::default();
    // The trace is the same with marks and without.
    let made = made.get_or_insert_with(|| {
        let mut made = Generated::of(name, &explorer, effort.made);
        found.made = made.states;
        found.refused.append(&mut made.refused);
        made
    });
    let mut seen: Vec<(usize, Tree)> = Vec::new();
    for_each_state(&image.0, &events, effort.subsets, &mut |marks, state, how| {
        found.states += 1;
        let tree = Tree::read(state).unwrap();
        // Before the first mark the kernel only mounts.
        let marks = marks.max(1) - 1;
        if seen.iter().any(|(at, it)| *at == marks && *it == tree) {
            return;
        }
        let (returned, begun) = ends[marks];
        if let Err(why) = explorer.allows(&tree, returned..=begun).unwrap() {
            found.refused.push(format!(
                "{name} ({mode} {options}), {marks} calls of {ops:?} had returned, {how}:\n  \
                 {}\n{why}",
                short(&tree)
            ));
        }
        found.reached += usize::from(made.has(&tree, returned..=begun));
        if std::env::var_os("UEXT4_CRASHTEST_SHOW").is_some() {
            eprintln!("{name} {mode} {options} {marks}: {}", short(&tree));
        }
        seen.push((marks, tree));
    });
    found.trees = seen.len();
    found
}

/// A tree as names with runs of bytes.
fn short(tree: &Tree) -> String {
    let run = |run: &[u8]| format!("{}{}", run[0].escape_ascii(), run.len());
    let file = |(path, node): (&Vec<u8>, &Node)| {
        let runs: Vec<String> = node.content.chunk_by(|a, b| a == b).take(8).map(run).collect();
        format!("{} {}", String::from_utf8_lossy(path), runs.join(" "))
    };
    tree.nodes.iter().map(file).collect::<Vec<_>>().join(", ")
}

/// All states of a disk: at each mark and flush, with subsets of the writes since the last flush.
fn for_each_state(
    base: &MemoryDevice,
    events: &[Event],
    many: usize,
    visit: &mut dyn FnMut(usize, &MemoryDevice, &str),
) {
    let durable = base.snapshot();
    let (mut marks, mut cached): (usize, Vec<&Event>) = (0, Vec::new());
    let mut random = 1;
    for event in events {
        match event {
            Event::Flush => {
                with_subsets(&durable, &cached, many, &mut random, &mut |state, how| {
                    visit(marks, state, how);
                });
                cached.iter().for_each(|event| event.apply(&durable));
                cached.clear();
            }
            Event::Mark => {
                with_subsets(&durable, &cached, many, &mut random, &mut |state, how| {
                    visit(marks, state, how);
                });
                marks += 1;
            }
            event if event.changes_bytes() => cached.push(event),
            _ => {}
        }
    }
    with_subsets(&durable, &cached, many, &mut random, &mut |state, how| visit(marks, state, how));
}

/// No, every and each single write, prefixes, and others by chance; all subsets of a few.
fn with_subsets(
    durable: &MemoryDevice,
    cached: &[&Event],
    many: usize,
    random: &mut u64,
    visit: &mut dyn FnMut(&MemoryDevice, &str),
) {
    let count = cached.len();
    let mut subsets: Vec<Vec<bool>> = Vec::new();
    if count <= 4 {
        subsets.extend(
            (0..1 << count).map(|set: u32| (0..count).map(|at| set >> at & 1 == 1).collect()),
        );
    } else {
        subsets.extend((0..=count).map(|end| (0..count).map(|at| at < end).collect()));
        subsets.extend((0..count).map(|one| (0..count).map(|at| at == one).collect()));
        subsets.extend((0..count).map(|one| (0..count).map(|at| at != one).collect()));
        for _ in 0..many {
            let mut bit = || {
                *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *random >> 63 == 1
            };
            subsets.push((0..count).map(|_| bit()).collect());
        }
    }
    for subset in subsets {
        let state = durable.snapshot();
        let chosen = cached.iter().zip(&subset).filter(|(_, is_there)| **is_there);
        chosen.for_each(|(event, _)| event.apply(&state));
        let how: String = subset.iter().map(|there| if *there { '1' } else { '0' }).collect();
        visit(&state, &format!("cached writes {how}"));
    }
}

fn prove_all(options: &[(&str, &str)], effort: Effort) {
    if let Some(why) = hindrance() {
        eprintln!("skipped: {why}");
        return;
    }
    let only = std::env::var("UEXT4_CRASHTEST_ONLY").unwrap_or_default();
    let mut refused = Vec::new();
    for (mode, options) in options {
        let mut sum = Found::default();
        for (name, ops) in sequences() {
            if !name.contains(&only) {
                continue;
            }
            let mut made = None;
            for marks in [true, false] {
                let found = prove(name, &ops, (mode, options), marks, effort, &mut made);
                sum.states += found.states;
                sum.trees += found.trees;
                sum.reached += found.reached;
                sum.made += found.made;
                refused.extend(found.refused);
            }
        }
        let Found { states, trees, reached, made, .. } = sum;
        eprintln!(
            "{mode} {options}: {states} states, {trees} trees, {reached} of them among {made} \
             states that the model made"
        );
    }
    let few: Vec<&String> = refused.iter().take(12).collect();
    assert!(refused.is_empty(), "{} states:\n{few:#?}", refused.len());
}

#[test]
fn the_model_allows_what_the_kernel_leaves() {
    prove_all(&OPTIONS[..1], Effort { subsets: 10, made: 20 });
}

/// The long form: every combination of options.
#[test]
#[ignore = "long; as root"]
fn the_model_allows_what_the_kernel_leaves_with_all_options() {
    assert_eq!(hindrance(), None, "nothing can be proved here");
    prove_all(OPTIONS, Effort { subsets: 200, made: 200 });
}
