//! Random sequences of operations on the engine and on a file system in memory.
//!
//! Compared after every operation: success or failure, and everything that can be reached. After
//! fsync and sync also what a mount of the medium as it then is would show; after a remount; and
//! for a sample what the kernel's mount shows. A sequence that differs is shrunk to the shortest
//! one that does.
//!
//! Not covered: times; owners; which error is told.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use uext4::{FileKind, MountOptions, Volume};
use uext4_device::MemoryDevice;
use uext4_sim::crash::{Checker, Judge};
use uext4_sim::format::{FORMATS, Format, ORDINARY};
use uext4_sim::mount::{KernelMount, why_no_loop};
use uext4_sim::oracle::image_folder;
use uext4_sim::reference::{At, Node, Reference, SHIFT_UNIT, Step, Tree, perform, tree};
use uext4_sim::run::{ABLATIONS, Shape, make};

const CASES: u32 = 1_500;

fn at() -> impl Strategy<Value = At> {
    (0_u8..4, 0_u8..6).prop_map(|(dir, name)| At { dir, name })
}

fn step() -> impl Strategy<Value = Step> {
    // Bytes around blocks of 1 KiB, and some far from them.
    let place = || prop_oneof![4 => 0_u32..12_000, 1 => (0_u32..30).prop_map(|n| n * 1024)];
    let len = || prop_oneof![3 => 1_u16..3_000, 1 => 3_000_u16..40_000];
    prop_oneof![
        6 => at().prop_map(|at| Step::Create { at }),
        3 => at().prop_map(|at| Step::Mkdir { at }),
        1 => (at(), any::<u16>()).prop_map(|(at, len)| Step::Symlink { at, len }),
        2 => (at(), at()).prop_map(|(from, to)| Step::Link { from, to }),
        3 => at().prop_map(|at| Step::Unlink { at }),
        2 => at().prop_map(|at| Step::Rmdir { at }),
        5 => (at(), at(), any::<u8>()).prop_map(|(from, to, how)| Step::Rename { from, to, how }),
        9 => (at(), place(), len(), 1_u8..)
            .prop_map(|(at, offset, len, byte)| Step::Write { at, offset, len, byte }),
        4 => (at(), place()).prop_map(|(at, size)| Step::Resize { at, size }),
        2 => (at(), place(), len(), any::<bool>())
            .prop_map(|(at, offset, len, keep_size)| Step::Allocate { at, offset, len, keep_size }),
        2 => (at(), place(), len()).prop_map(|(at, offset, len)| Step::Punch { at, offset, len }),
        2 => (at(), place(), len(), any::<bool>())
            .prop_map(|(at, offset, len, keep_size)| Step::Zero { at, offset, len, keep_size }),
        1 => (at(), place(), len(), any::<bool>())
            .prop_map(|(at, offset, len, keep_size)| Step::Unshare { at, offset, len, keep_size }),
        3 => (at(), 0_u8..14, 1_u8..6)
            .prop_map(|(at, first, count)| Step::Collapse { at, first, count }),
        3 => (at(), 0_u8..14, 1_u8..6)
            .prop_map(|(at, first, count)| Step::Insert { at, first, count }),
        2 => (at(), any::<u8>(), any::<u16>())
            .prop_map(|(at, name, len)| Step::SetXattr { at, name, len }),
        1 => (at(), any::<u8>()).prop_map(|(at, name)| Step::RemoveXattr { at, name }),
        1 => (at(), any::<u16>()).prop_map(|(at, mode)| Step::Chmod { at, mode }),
        2 => (at(), any::<bool>()).prop_map(|(at, data_only)| Step::Fsync { at, data_only }),
        1 => Just(Step::Sync),
        1 => Just(Step::Remount),
    ]
}

fn options(ablation: &str) -> MountOptions {
    let mut options = MountOptions { cache_bytes: 8 << 20, ..MountOptions::default() };
    options.parse(ablation).expect("a mount option");
    options
}

fn open(device: &Arc<MemoryDevice>, options: MountOptions) -> Result<Volume, TestCaseError> {
    Volume::open(device.clone(), options).map_err(|error| fail(format!("open: {error}")))
}

fn fail(why: String) -> TestCaseError {
    TestCaseError::fail(why)
}

fn equal(what: &str, found: &Tree, wanted: &Tree) -> Result<(), TestCaseError> {
    if found == wanted {
        return Ok(());
    }
    let shown = |path: &[u8], node: Option<&Node>| {
        let node = node.map(|n| {
            let first = n.data.iter().position(|&byte| byte != 0);
            (n.kind, n.mode, n.links, n.data.len(), first, n.xattrs.len())
        });
        format!("{}: {node:?}", path.escape_ascii())
    };
    let paths =
        found.keys().chain(wanted.keys()).filter(|path| found.get(*path) != wanted.get(*path));
    let lines: Vec<String> = paths
        .take(4)
        .map(|path| {
            let (found, wanted) = (shown(path, found.get(path)), shown(b"", wanted.get(path)));
            format!("{found}, wanted{wanted}")
        })
        .collect();
    Err(fail(format!("{what}: {}", lines.join("; "))))
}

/// What a mount of the medium as it is now shows.
fn after_crash(device: &Arc<MemoryDevice>) -> Result<Tree, TestCaseError> {
    let copy = Arc::new(device.snapshot());
    let volume = open(&copy, MountOptions { read_only: true, ..MountOptions::default() })?;
    tree(&volume).map_err(|error| fail(format!("after a crash: {error}")))
}

/// Whether files of a form have a step: those with block maps are neither preallocated nor
/// shifted, and with clusters the unit of a shift is no block.
fn has_step(format: &Format, step: &Step) -> bool {
    match step {
        Step::Collapse { .. } | Step::Insert { .. } => {
            !format.has_block_maps() && format.cluster_size.is_none()
        }
        Step::Allocate { .. } | Step::Zero { .. } | Step::Unshare { .. } => {
            !format.has_block_maps()
        }
        _ => true,
    }
}

fn run(base: &MemoryDevice, ablation: &str, steps: &[Step]) -> Result<MemoryDevice, TestCaseError> {
    let device = Arc::new(base.snapshot());
    let mut volume = open(&device, options(ablation))?;
    let mut reference = Reference::default();
    for (number, step) in steps.iter().enumerate() {
        if !reference.applies(step) {
            continue;
        }
        let what = format!("{number}: {step:?}");
        if *step == Step::Remount {
            volume.close().map_err(|error| fail(format!("{what}: close: {error}")))?;
            let found = Checker.findings(&device).map_err(fail)?;
            prop_assert!(found.is_empty(), "{what}: {found:?}");
            volume = open(&device, options(ablation))?;
        }
        let done = perform(&volume, &reference, step);
        let wanted = reference.step(step);
        prop_assert!(done.is_ok() == wanted.is_ok(), "{what}: {done:?}, wanted {wanted:?}");
        let found = tree(&volume).map_err(|error| fail(format!("{what}: {error}")))?;
        equal(&what, &found, &reference.tree())?;
        match step {
            Step::Sync => equal(&what, &after_crash(&device)?, &reference.tree())?,
            Step::Fsync { at, .. } => {
                // Its bytes are there, at some name; what else is there is the crash harness's.
                let data = reference.data(*at).unwrap_or_default();
                let is_there = after_crash(&device)?.values().any(|node| node.data == data);
                prop_assert!(is_there, "{what}: what was synced is not there");
            }
            _ => {}
        }
    }
    volume.close().map_err(|error| fail(format!("close: {error}")))?;
    let found = Checker.findings(&device).map_err(fail)?;
    prop_assert!(found.is_empty(), "after close: {found:?}");
    equal("after close", &after_crash(&device)?, &reference.tree())?;
    let image = device.snapshot();
    Ok(image)
}

fn explore(ablation: &str) {
    explore_on(&ORDINARY, ablation, CASES);
}

fn explore_on(format: &'static Format, ablation: &str, cases: u32) {
    let shape =
        Shape { block_size: SHIFT_UNIT, journal_mib: 1, image_mib: 8, features: "", format };
    let base = make(&shape, 5).expect("an image");
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let step = step().prop_filter("the form has no such step", |step| has_step(format, step));
    let steps = prop::collection::vec(step, 1..60);
    let result = runner.run(&steps, |steps| run(&base, ablation, &steps).map(drop));
    match result {
        Ok(()) => {}
        Err(TestError::Fail(why, steps)) => {
            panic!("{format}, {ablation}: {why}\nsteps: {steps:#?}")
        }
        Err(error) => panic!("{format}, {ablation}: {error}"),
    }
}

#[test]
fn delalloc_is_the_reference() {
    explore(ABLATIONS[0]);
}

#[test]
fn nodelalloc_is_the_reference() {
    explore(ABLATIONS[1]);
}

#[test]
fn noauto_da_alloc_is_the_reference() {
    explore(ABLATIONS[2]);
}

#[test]
fn ordered_writeback_is_the_reference() {
    explore("writeback=ordered");
}

#[test]
fn unwritten_writeback_is_the_reference() {
    explore("writeback=unwritten");
}

#[test]
fn rescanning_syncs_are_the_reference() {
    explore("fsync_batch=rescan");
}

#[test]
fn journaled_data_is_the_reference() {
    explore("data=journal");
}

/// Fewer cases each; the load of the crash test has more of what is special to a form.
#[test]
fn every_form_is_the_reference() {
    let others = FORMATS.iter().filter(|format| **format != &ORDINARY);
    for format in others.filter(|format| !format.has_journal_device) {
        for ablation in ["delalloc", "nodelalloc"] {
            explore_on(format, ablation, CASES / 15);
        }
    }
}

/// The same images through the kernel's mount.
#[test]
fn the_kernel_shows_the_reference() {
    if let Some(why) = why_no_loop() {
        println!("skipped: the kernel cannot mount images here: {why}");
        return;
    }
    let shape = Shape {
        block_size: SHIFT_UNIT,
        journal_mib: 1,
        image_mib: 8,
        features: "",
        format: &ORDINARY,
    };
    let base = make(&shape, 6).expect("an image");
    let folder = image_folder().expect("a folder");
    let mut runner = TestRunner::deterministic();
    let steps = prop::collection::vec(step(), 30..60);
    for round in 0..4 {
        let steps = steps.new_tree(&mut runner).expect("steps").current();
        let image =
            run(&base, ABLATIONS[0], &steps).unwrap_or_else(|why| panic!("{why}: {steps:#?}"));
        let mut reference = Reference::default();
        for step in &steps {
            if reference.applies(step) {
                // Whether it succeeds was compared above.
                let _ = reference.step(step);
            }
        }
        let path = folder.path().join("kernel.img");
        image.save(&path).expect("an image file");
        let point = folder.path().join("mnt");
        let mount = KernelMount::start(&path, &point, true).expect("the kernel mounts it");
        let mut count = 0;
        for (name, node) in reference.tree() {
            let name = Path::new(std::ffi::OsStr::from_bytes(&name[1..]));
            let path = point.join(name);
            let meta = std::fs::symlink_metadata(&path).expect("the name is there");
            match node.kind {
                FileKind::Directory => assert!(meta.is_dir()),
                FileKind::Regular => assert!(std::fs::read(&path).expect("it reads") == node.data),
                FileKind::CharDevice => assert!(meta.file_type().is_char_device()),
                _ => {
                    let target = std::fs::read_link(&path).expect("a target");
                    assert!(target.as_os_str().as_bytes() == node.data);
                }
            }
            count += 1;
        }
        println!("round {round}: {count} names");
        mount.unmount().expect("it unmounts");
    }
}
