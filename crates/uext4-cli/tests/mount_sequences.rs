//! What xfstests do to a file system, in short, on a mount and beside it on the kernel's ext4.
//!
//! Each test names those it follows. Fault model: bytes that one way of access does not show to
//! another; times that are kept in memory and not on disk, or clamped where ext4 does not clamp;
//! attributes that go where room for fields comes. Not covered: the rest of xfstests, and their
//! length.

#[macro_use]
mod common;
#[path = "common/tree.rs"]
mod tree;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use common::kernel::Kernel;
use common::{Mounted, Scratch, assert_clean, has, no_mount, system};
use rustix::fs::XattrFlags;

/// Which side has an image mounted.
#[derive(Clone, Copy, Debug)]
enum Side {
    Ours(&'static str),
    Kernels,
}

/// Does `work` on a mount of an image; `None` where the kernel mounts nothing.
fn on<T>(side: Side, image: &Path, dir: &Path, work: impl FnOnce(&Path) -> T) -> Option<T> {
    match side {
        Side::Ours(options) => {
            let mount = Mounted::new(image, dir, options);
            let result = work(dir);
            mount.end();
            Some(result)
        }
        Side::Kernels => {
            let _mount = Kernel::mount(image, dir)?;
            Some(work(dir))
        }
    }
}

/// Random operations on the bytes of one file by every way of access, each read compared with a
/// model. Arguments: file, seed, operations, alignment of direct access, and whether a direct read
/// wants an fsync before it.
const EXERCISER: &str = r#"
import mmap, os, random, sys, ctypes
path, seed, count, align = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
syncs = sys.argv[5] == "True"
MAX = 512 * 1024
PUNCH, KEEP, ZERO = 2, 1, 16
rng = random.Random(seed)
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
plain = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
direct = os.open(path, os.O_RDWR | os.O_DIRECT)
memory = mmap.mmap(-1, 128 * 1024)
model, log = bytearray(), []

def grow(size):
    model.extend(bytes(max(0, size - len(model))))

def span(unit):
    at = rng.randrange(0, MAX, unit)
    return at, min(rng.randrange(unit, 64 * 1024 + unit, unit), MAX - at)

def inside(unit):
    if len(model) < unit:
        return None
    at = rng.randrange(0, len(model) - unit + 1, unit)
    return at, min(rng.randrange(unit, 64 * 1024 + unit, unit), (len(model) - at) // unit * unit)

def check(what, at, got):
    want = bytes(model[at:at + len(got)])
    if got != want:
        bad = next(i for i in range(len(got)) if got[i] != want[i])
        print("\n".join(log[-20:]))
        sys.exit(f"{what}: byte {at + bad} is {got[bad]}, not {want[bad]}")

def write(fd, unit):
    at, length = span(unit)
    data = bytes([rng.randrange(1, 256)]) * length
    log.append(f"write {'direct' if fd == direct else 'plain'} {at} {length} {data[0]}")
    if fd == direct:
        memory[:length] = data
        assert os.pwritev(fd, [memoryview(memory)[:length]], at) == length
    else:
        assert os.pwrite(fd, data, at) == length
    grow(at + length)
    model[at:at + length] = data

def read(fd, unit):
    at, length = span(unit)
    log.append(f"read {'direct' if fd == direct else 'plain'} {at} {length}")
    if fd == direct:
        if syncs:
            os.fsync(plain)
        count = os.preadv(fd, [memoryview(memory)[:length]], at)
        got = memory[:count]
    else:
        got = os.pread(fd, length, at)
    assert len(got) == max(0, min(length, len(model) - at)), (len(got), at, length, len(model))
    check("read", at, got)

def mapped(fd, writes):
    found = inside(1)
    if not found:
        return
    at, length = found
    start = at // 4096 * 4096
    log.append(f"map {'direct' if fd == direct else 'plain'} {at} {length} {writes}")
    with mmap.mmap(fd, at + length - start, mmap.MAP_SHARED, offset=start) as view:
        if writes:
            data = bytes([rng.randrange(1, 256)]) * length
            view[at - start:at - start + length] = data
            model[at:at + length] = data
            if rng.random() < 0.5:
                view.flush()
        check("map", at, view[at - start:at - start + length])

def cut():
    size = rng.randrange(0, MAX, align)
    log.append(f"truncate {size}")
    os.ftruncate(rng.choice([plain, direct]), size)
    del model[size:]
    grow(size)

def allocate(mode):
    at, length = span(1)
    log.append(f"fallocate {mode} {at} {length}")
    assert libc.fallocate(plain, mode, at, length) == 0, os.strerror(ctypes.get_errno())
    if mode in (PUNCH | KEEP, ZERO | KEEP):
        end = min(at + length, len(model))
        model[at:end] = bytes(max(0, end - at))
    elif mode == ZERO:
        grow(at + length)
        model[at:at + length] = bytes(length)
    elif mode == 0:
        grow(at + length)

def sync():
    log.append("sync")
    os.fsync(rng.choice([plain, direct]))

ways = [
    (6, lambda: write(direct, align)), (6, lambda: read(direct, align)),
    (4, lambda: write(plain, 1)), (4, lambda: read(plain, 1)),
    (4, lambda: mapped(plain, True)), (2, lambda: mapped(plain, False)),
    (4, lambda: mapped(direct, True)), (2, lambda: mapped(direct, False)),
    (2, cut), (1, lambda: allocate(PUNCH | KEEP)), (1, lambda: allocate(ZERO)),
    (1, lambda: allocate(ZERO | KEEP)), (1, lambda: allocate(0)), (1, lambda: allocate(KEEP)),
    (1, sync),
]
for _ in range(count):
    rng.choices([way for _, way in ways], [weight for weight, _ in ways])[0]()
got = os.pread(plain, MAX + 1, 0)
assert len(got) == len(model)
check("at the end", 0, got)
"#;

/// generic/091 and generic/263: fsx with `O_DIRECT` beside cached and mapped accesses of the same
/// file. Fault model: a page or a block that is older than what another way wrote. Not covered: a
/// direct read of what the kernel holds dirty (`writeback_cache`), for which the kernel hands over
/// the pages that are read and not the size that later ones give the file (docs/mount.md).
#[test]
fn direct_cached_and_mapped_accesses_agree() {
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    if !has("python3") {
        skip!("no python3");
    }
    let scratch = Scratch::in_memory();
    let dir = scratch.path("mnt");
    for (seed, (block, align, side)) in [
        ("4096", "512", Side::Ours("")),
        ("4096", "4096", Side::Ours("writeback_cache")),
        ("1024", "512", Side::Ours("")),
        ("1024", "512", Side::Ours("writeback_cache")),
        ("1024", "512", Side::Ours("data=journal")),
        ("4096", "4096", Side::Kernels),
    ]
    .into_iter()
    .enumerate()
    {
        let Some(image) = scratch.image("image", 32, &["-b", block]) else { skip!("no mke2fs") };
        let exercised = on(side, &image, &dir, |dir| {
            let mut python = system("python3");
            python.args(["-c", EXERCISER]).arg(dir.join("file"));
            let syncs = matches!(side, Side::Ours("writeback_cache"));
            let syncs = if syncs { "True" } else { "False" };
            python.args([&seed.to_string(), "1500", align, syncs]).output().unwrap()
        });
        let Some(output) = exercised else { skip!("the kernel mounts nothing here") };
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(output.status.success(), "{side:?}, seed {seed}, {block}: {said}");
        assert_clean(&image);
        fs::remove_file(&image).unwrap();
    }
}

/// Times to the second and the nanosecond as a file shows them.
fn times_of(path: &Path) -> [(i64, i64); 2] {
    let meta = path.metadata().unwrap();
    [(meta.atime(), meta.atime_nsec()), (meta.mtime(), meta.mtime_nsec())]
}

/// Seconds at and around the bounds of ext4's times, 1901 to 2446, and of 32 bits.
const SECONDS: [i64; 14] = [
    i64::MIN / 2,
    -0x8000_0001,
    -0x8000_0000,
    -0x7fff_ffff,
    -1,
    0,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x3_7fff_fffe,
    0x3_7fff_ffff,
    0x3_8000_0000,
    i64::MAX / 2,
];

/// generic/402 and ext4/043: times are clamped to what an inode can hold, at once and not only when
/// it is read again, with inodes of 256 bytes and of 128.
#[test]
fn times_are_those_that_an_inode_can_hold() {
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    let scratch = Scratch::new();
    let dir = scratch.path("mnt");
    for inode_size in ["256", "128"] {
        let mut seen = Vec::new();
        for side in [Side::Ours(""), Side::Kernels] {
            let Some(image) = scratch.image("image", 16, &["-I", inode_size]) else {
                skip!("no mke2fs")
            };
            let path = |dir: &Path, n: usize, nanos: i64| dir.join(format!("{n}.{nanos}"));
            let files = || (0..SECONDS.len()).flat_map(|n| [(n, 0), (n, 999_999_999)]);
            let read = |dir: &Path| -> Vec<_> {
                files().map(|(n, nanos)| times_of(&path(dir, n, nanos))).collect()
            };
            let set = on(side, &image, &dir, |dir| {
                for (n, nanos) in files() {
                    fs::write(path(dir, n, nanos), b"x").unwrap();
                    tree::set_time(&path(dir, n, nanos), SECONDS[n], nanos);
                }
                // Of the clock, with what the inode has room for.
                fs::write(dir.join("now"), b"x").unwrap();
                (read(dir), times_of(&dir.join("now")))
            });
            let Some((set, now)) = set else { skip!("the kernel mounts nothing here") };
            for again in [side, Side::Ours("ro"), Side::Kernels] {
                let found = on(again, &image, &dir, |dir| (read(dir), times_of(&dir.join("now"))));
                assert_eq!(found.unwrap(), (set.clone(), now), "{side:?}, then {again:?}");
            }
            assert_eq!(now.iter().all(|time| time.1 == 0), inode_size == "128", "{now:?}");
            assert_clean(&image);
            fs::remove_file(&image).unwrap();
            seen.push(set);
        }
        for ((n, nanos), pair) in (0..SECONDS.len())
            .flat_map(|n| [(n, 0), (n, 999_999_999)])
            .zip(seen[0].iter().zip(&seen[1]))
        {
            assert_eq!(pair.0, pair.1, "{}.{nanos}, inodes of {inode_size} bytes", SECONDS[n]);
        }
    }
}

/// Length of an inode's extra fields, in bytes, and its time of creation.
fn fields_of(image: &Path, name: &str) -> (String, Option<String>) {
    let request = format!("stat {name}");
    let output = system("debugfs").args(["-R", &request]).arg(image).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = |words: &str| said.lines().find(|line| line.contains(words));
    let length = line("extra inode fields").and_then(|line| line.split(' ').next_back());
    (length.unwrap_or("none").to_owned(), line("crtime").map(str::to_owned))
}

/// ext4/022: inodes whose extra fields are short (`i_extra_isize`), as older kernels left them,
/// with attributes behind them, up to what fits: they are read, changed and grown beside longer
/// ones.
#[test]
fn attributes_stand_behind_extra_fields_of_any_length() {
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    if !has("debugfs") {
        skip!("no debugfs");
    }
    let scratch = Scratch::new();
    let dir = scratch.path("mnt");
    let Some(image) = scratch.image("image", 16, &["-I", "256"]) else { skip!("no mke2fs") };
    let set = |path: &Path, name: &str, len: usize| {
        rustix::fs::setxattr(path, name, &vec![b'v'; len], XattrFlags::empty()).unwrap();
    };
    let lengths = [0, 4, 16, 24, 28, 32];
    on(Side::Ours(""), &image, &dir, |dir| {
        for length in lengths {
            fs::write(dir.join(format!("plain{length}")), b"x").unwrap();
            fs::write(dir.join(format!("full{length}")), b"x").unwrap();
        }
    });
    for length in lengths {
        for name in ["plain", "full"] {
            let request = format!("sif {name}{length} extra_isize {length}");
            let status = system("debugfs").args(["-w", "-R", &request]).arg(&image).output();
            assert!(status.unwrap().status.success());
        }
    }
    assert_clean(&image);
    let kernels = scratch.path("kernels");
    fs::copy(&image, &kernels).unwrap();
    on(Side::Ours(""), &image, &dir, |dir| {
        for length in lengths {
            let (plain, full) =
                (dir.join(format!("plain{length}")), dir.join(format!("full{length}")));
            // All of the inode: 128 bytes less the fields, a header, the end, an entry, the value.
            set(&full, "user.a", (128 - length - 4 - 4 - 20) / 4 * 4);
            set(&full, "user.b", 100);
            tree::set_time(&plain, 1_000_000_000, 5);
            assert_eq!(times_of(&plain)[1], (1_000_000_000, 5), "{length}");
            set(&plain, "user.a", 10);
            tree::set_time(&full, 1_000_000_000, 5);
        }
    });
    assert_clean(&image);
    let read = |dir: &Path| -> Vec<_> {
        let mut found = Vec::new();
        for length in lengths {
            for (name, attributes) in [("plain", &["user.a"][..]), ("full", &["user.a", "user.b"])]
            {
                let path = dir.join(format!("{name}{length}"));
                for attribute in attributes {
                    let mut value = [0; 200];
                    let len = rustix::fs::getxattr(&path, *attribute, &mut value[..]).unwrap();
                    found.push(format!("{name}{length} {attribute} {len}"));
                    assert!(value[..len].iter().all(|byte| *byte == b'v'));
                }
                found.push(format!("{:?} {:?}", times_of(&path), fs::read(&path).unwrap()));
            }
        }
        found
    };
    // What was changed has them all: attributes behind short fields make room, in the block.
    for length in lengths {
        assert_eq!(fields_of(&image, &format!("full{length}")).0, "32");
        assert_eq!(fields_of(&image, &format!("plain{length}")).0, "32");
    }
    let changed = on(Side::Kernels, &kernels, &dir, |dir| {
        for length in lengths {
            tree::set_time(&dir.join(format!("plain{length}")), 1_000_000_000, 5);
        }
    });
    if changed.is_some() {
        for length in lengths {
            let name = format!("plain{length}");
            let (ours, theirs) = (fields_of(&image, &name), fields_of(&kernels, &name));
            assert_eq!(ours.0, theirs.0, "{name}");
            // Where no field was in use, the kernel takes what stands there for them.
            assert!(length == 0 || ours.1 == theirs.1, "{name}: {ours:?} {theirs:?}");
        }
    }
    let ours = on(Side::Ours("ro"), &image, &dir, read).unwrap();
    let Some(kernels) = on(Side::Kernels, &image, &dir, read) else {
        skip!("the kernel mounts nothing here");
    };
    assert_eq!(ours, kernels);
    // The kernel lengthens fields where it changes an inode, and may move attributes for that.
    on(Side::Kernels, &image, &dir, |dir| {
        for length in lengths {
            for name in ["plain", "full"] {
                let path = dir.join(format!("{name}{length}"));
                fs::write(&path, b"of the kernel").unwrap();
                set(&path, "user.c", 20);
                tree::set_time(&path, 2_000_000_000, 7);
            }
        }
    });
    assert_clean(&image);
    let ours = on(Side::Ours("ro"), &image, &dir, read).unwrap();
    let kernels = on(Side::Kernels, &image, &dir, read).unwrap();
    assert_eq!(ours, kernels);
}
