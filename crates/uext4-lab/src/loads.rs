//! Every load, as a row of one table.

use crate::load::{Beside, Form, Forms, How, Load, Quick, RunTime, SMALL_FILE_DIRS, Start, Work};
use crate::plan::Plan;
use crate::target::Target;
use crate::tree::Tree;
use crate::{append, queued, stage, stored, storm};

/// Most threads of a load: 2 GiB of address space for their stacks.
const THREADS_MAX: u32 = 8192;
/// Most threads that store: each has a table of all blocks.
const STORE_THREADS_MAX: u32 = 64;
/// An image with the tree in it.
const TREE_IMAGE: u64 = 942_000_000;
/// An image with the small files in it.
const SMALL_IMAGE: u64 = 300_000_000;
/// Two images with the tree in them, and what making them takes.
const TREE_SPACE: u64 = 3 * TREE_IMAGE;
/// Scale of the tree with `--quick`: one for all loads on it, which share its images.
const TREE_QUICK: f64 = 0.05;
/// The same of the smallest tree.
const TREE_SPACE_MIN: u64 = 64 << 20;

/// Space of a load on the tree, or on small files.
fn tree_room(plan: &Plan, _: Option<Form>, _: u32, _: u32) -> u64 {
    // The images that runs start from stay for all loads: of each kind of file system one with the
    // tree and one with the small files, where there are loads that start so.
    let has = |wanted: Start| {
        let start = |load: &&Load| matches!(load.how, How::Tree(_, start) if start == wanted);
        u64::from(plan.loads.iter().copied().any(|load| start(&load)))
    };
    let kind = has(Start::Tree) * TREE_IMAGE + has(Start::Files) * SMALL_IMAGE;
    let bytes = TREE_SPACE + u64::from(plan.kinds() - 1) * kind;
    ((bytes as f64 * plan.scale) as u64).max(TREE_SPACE_MIN * u64::from(plan.kinds()))
}

/// Length of an image of such a load.
fn tree_length(plan: &Plan, _: Option<Form>, _: u32) -> u64 {
    stage::tree_image_bytes(&Tree::new(plan.scale), plan.scale)
}

/// The quick form of a load with these threads.
const fn quick(scale: f64, seconds: f64, rounds: u32, threads: &'static [u32]) -> Quick {
    Quick { scale, seconds, rounds, threads, sizes: &[] }
}

/// The library, the kernel and no file system.
const BARE: &[Target] = &[Target::Uext4, Target::Kernel, Target::Raw];
/// Those, or a directory: what threads sync on.
const SYNCING: &[Target] = &[Target::Uext4, Target::Kernel, Target::Dir, Target::Raw];
/// What threads of ours allocate on.
const ALLOCATING: &[Target] = &[Target::Uext4, Target::Uext4Mount, Target::Kernel, Target::Dir];
/// What programs work on.
pub(crate) const MOUNTED: &[Target] = &[
    Target::Uext4,
    Target::Uext4Mount,
    Target::Kernel,
    Target::Dir,
    Target::Fuse2fs,
    Target::Bindfs,
];
/// The same, and the library of a peer: small files.
const SMALL_FILES: &[Target] = &[
    Target::Uext4,
    Target::Uext4Mount,
    Target::Kernel,
    Target::Dir,
    Target::Fuse2fs,
    Target::Bindfs,
    Target::RustFsExt4,
];
const MOUNTED_OR_RAW: &[Target] = &[
    Target::Uext4,
    Target::Uext4Mount,
    Target::Kernel,
    Target::Dir,
    Target::Fuse2fs,
    Target::Bindfs,
    Target::Raw,
];

/// A load of our own threads: what most of them have.
pub(crate) const THREADS: Load = Load {
    id: "",
    what: "",
    metric: "iops",
    threads: &[1],
    threads_max: THREADS_MAX,
    block_bytes: 16 << 10,
    sizes: &[],
    space_bytes: 0,
    targets: BARE,
    has_journals: false,
    room: tree_room,
    length: tree_length,
    on_device: true,
    time: RunTime { timed: 1.0, full_s: 1.0 },
    quick: quick(1.0, 0.5, 6, &[1]),
    beside: &[],
    obstacle: |_| None,
    forms: Forms::One,
    how: How::Tree(Work::Build, Start::Nothing),
};
/// A load on the tree.
const TREE: Load = Load {
    metric: "wall_s",
    threads_max: 1,
    block_bytes: 0,
    space_bytes: TREE_SPACE,
    time: RunTime { timed: 0.0, full_s: 12.0 },
    quick: quick(TREE_QUICK, 1.0, 5, &[1]),
    targets: MOUNTED,
    ..THREADS
};
/// A load on small files.
const SMALL: Load = Load {
    metric: "ops_per_s",
    threads: &[1, 2],
    threads_max: SMALL_FILE_DIRS,
    quick: quick(TREE_QUICK, 1.0, 5, &[1, 2]),
    targets: SMALL_FILES,
    ..TREE
};

/// Every load: the only place that names them. Help, documents and comparisons go by it.
pub static LOADS: &[Load] = &[
    Load {
        id: "E0",
        what: "fsync-storm: random writes into allocated files, one a thread, fsync after each",
        threads: &[2048],
        space_bytes: 60_300_000_000,
        has_journals: true,
        room: |p, _, threads, _| storm::room(storm::StormKind::Own, p, threads),
        targets: SYNCING,
        length: |p, _, threads| storm::length(storm::StormKind::Own, p, threads),
        time: RunTime { timed: 3.0, full_s: 20.0 },
        quick: quick(0.05, 1.0, 5, &[2048]),
        beside: &[(Target::Kernel, Beside::Options("dioread_lock"))],
        how: How::Bench(|p, l, t, tell| storm::run(storm::StormKind::Own, p, l, t, tell)),
        ..THREADS
    },
    Load {
        id: "E1a",
        what: "fallocate2: threads append 8 KiB by fallocate up to 1 MiB, cut off, again (2 forms)",
        metric: "ops_per_s",
        threads: &[1, 2, 4, 8, 16, 32, 64],
        block_bytes: 8 << 10,
        space_bytes: 2 << 30,
        targets: ALLOCATING,
        room: |p, form, threads, n| append::room(append::AppendKind::Recycle, p, form, threads, n),
        length: |p, form, threads| append::length(append::AppendKind::Recycle, p, form, threads),
        quick: quick(0.1, 0.3, 6, &[1, 2, 16]),
        forms: Forms::Each(&[Form::Own, Form::Foreign]),
        how: How::Bench(|p, l, t, tell| append::run(append::AppendKind::Recycle, p, l, t, tell)),
        ..THREADS
    },
    Load {
        id: "E1b",
        what: "append-frag: threads append 4 KiB by fallocate to 1 GiB each (--aged: when aged)",
        metric: "bytes_per_s",
        threads: &[64],
        block_bytes: 4 << 10,
        space_bytes: 3 << 30,
        targets: ALLOCATING,
        room: |p, form, threads, n| append::room(append::AppendKind::Fill, p, form, threads, n),
        length: |p, form, threads| append::length(append::AppendKind::Fill, p, form, threads),
        time: RunTime { timed: 0.0, full_s: 80.0 },
        quick: quick(0.01, 1.0, 6, &[64]),
        beside: &[(Target::Kernel, Beside::Options("mb_optimize_scan=0"))],
        forms: Forms::OnDemand(Form::Aged),
        how: How::Bench(|p, l, t, tell| append::run(append::AppendKind::Fill, p, l, t, tell)),
        ..THREADS
    },
    Load {
        id: "E2",
        what: "dax-overwrite: random overwrites of 4 KiB in 32 written files of a mapped image",
        threads: &[1, 2, 4, 8, 16],
        threads_max: STORE_THREADS_MAX,
        block_bytes: 4 << 10,
        space_bytes: 700 << 20,
        room: |p, _, _, _| stored::room(p),
        on_device: false,
        time: RunTime { timed: 1.5, full_s: 1.0 },
        quick: quick(0.25, 0.3, 6, &[1, 2]),
        beside: &[(Target::Uext4, Beside::Options("dax_overwrite=journal"))],
        obstacle: stored::obstacle,
        how: How::Bench(stored::run),
        ..THREADS
    },
    Load {
        id: "E3",
        what: "fsync-batch: random overwrites of one file of 1 MiB by all, fsync after each",
        threads: &[16],
        space_bytes: 2 << 30,
        targets: MOUNTED_OR_RAW,
        room: |p, _, threads, _| storm::room(storm::StormKind::Shared, p, threads),
        length: |p, _, threads| storm::length(storm::StormKind::Shared, p, threads),
        quick: quick(1.0, 1.0, 8, &[16]),
        how: How::Bench(|p, l, t, tell| storm::run(storm::StormKind::Shared, p, l, t, tell)),
        ..THREADS
    },
    Load {
        id: "E4",
        what: "aio-dio: 64 direct requests of 4 to 16 KiB in flight, one thread (2 forms)",
        threads_max: 1,
        block_bytes: 4 << 10,
        sizes: &[4 << 10, 8 << 10, 12 << 10, 16 << 10],
        space_bytes: 2_500_000_000,
        room: |p, _, _, _| queued::room(p),
        length: |p, _, _| queued::room(p),
        quick: Quick { sizes: &[4 << 10, 16 << 10], ..quick(0.1, 0.5, 6, &[1]) },
        beside: &[
            (Target::Uext4, Beside::Options("dio_completion=deferred")),
            (Target::Kernel, Beside::Driver(Beside::IO_URING)),
            (Target::Kernel, Beside::Driver(Beside::LIBAIO)),
        ],
        // Reads first: fio leaves blocks that name no write.
        forms: Forms::Each(&[Form::Read, Form::Write]),
        how: How::Bench(queued::run),
        ..THREADS
    },
    Load {
        id: "S1",
        what: "appends of 16 KiB to a new file, fsync after each: what one thread alone pays",
        space_bytes: 3 << 29,
        has_journals: true,
        room: |p, _, threads, _| storm::room(storm::StormKind::Append, p, threads),
        targets: SYNCING,
        length: |p, _, threads| storm::length(storm::StormKind::Append, p, threads),
        time: RunTime { timed: 1.5, full_s: 2.0 },
        quick: quick(0.2, 0.5, 8, &[1]),
        how: How::Bench(|p, l, t, tell| storm::run(storm::StormKind::Append, p, l, t, tell)),
        ..THREADS
    },
    Load {
        id: "M1",
        what: "unpack a source tree of 45,313 entries and 757 MB (tar -xf; library: import)",
        how: How::Tree(Work::Unpack, Start::Empty),
        ..TREE
    },
    Load {
        id: "M2",
        what: "read every file of that tree back, freshly mounted, then again (variant warm)",
        how: How::Tree(Work::ReadTree, Start::Tree),
        ..TREE
    },
    Load {
        id: "M3",
        what: "remove that tree (rm -rf), freshly mounted",
        how: How::Tree(Work::RemoveTree, Start::Tree),
        ..TREE
    },
    Load {
        id: "M4",
        what: "create 60,000 files and write 4 KiB into each",
        block_bytes: 4096,
        forms: Forms::OnDemand(Form::Shared),
        how: How::Tree(Work::Create, Start::Empty),
        ..SMALL
    },
    Load {
        id: "M5",
        what: "stat 60,000 files twice after a first pass (variant fresh: that first pass)",
        how: How::Tree(Work::Stat, Start::Files),
        ..SMALL
    },
    Load {
        id: "M6",
        what: "unlink 60,000 files of 4 KiB, freshly mounted",
        forms: Forms::OnDemand(Form::Shared),
        how: How::Tree(Work::Unlink, Start::Files),
        ..SMALL
    },
    Load {
        id: "M7",
        what: "build an image from that tree by mkfs -d (peer: mke2fs -d)",
        targets: &[Target::Uext4, Target::Mke2fs],
        on_device: false,
        forms: Forms::OnDemand(Form::Shared),
        how: How::Tree(Work::Build, Start::Nothing),
        ..TREE
    },
];
