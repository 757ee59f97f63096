//! Short sequences of system calls, done on the kernel's mount and written down as a trace.

use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{Advice, FallocateFlags, RenameFlags};
use rustix::io::ReadWriteFlags;
use uext4_crashtest::trace::{Attributes, Call, FileId};

use crate::common::{Script, in_root};

/// A call. Files are numbers; those of the base image are 1 and 2.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Create(u32, &'static str),
    /// Bytes of this kind from an offset on.
    Write(u32, u64, u8, usize),
    Direct(u32, u64, u8, usize),
    /// With `RWF_DSYNC`.
    Synced(u32, u64, u8, usize),
    Sync(u32),
    SyncData(u32),
    SyncAll,
    Rename(u32, &'static str, &'static str, Option<u32>),
    Exchange(u32, &'static str, &'static str, u32),
    Link(u32, &'static str),
    Remove(u32, &'static str),
    Truncate(u32, u64, u64),
    Allocate(u32, u32, u64, u64),
    Mode(u32, u32),
    Close(u32),
    /// The kernel begins to write a file back; no step of the trace.
    WriteBack(u32),
}

/// Files that are open on the kernel's mount.
pub(crate) struct Files<'a> {
    dir: &'a Path,
    open: BTreeMap<u32, File>,
}

impl<'a> Files<'a> {
    pub(crate) fn open(dir: &'a Path, base: &[&str]) -> Files<'a> {
        let mut open = BTreeMap::from([(0, File::open(dir).unwrap())]);
        for (name, number) in base.iter().zip(1..) {
            let file = File::options().read(true).write(true).open(dir.join(name)).unwrap();
            open.insert(number, file);
        }
        Files { dir, open }
    }

    pub(crate) fn call(&mut self, op: Op) {
        let file = |number| &self.open[&number];
        let path = |name: &str| self.dir.join(name);
        match op {
            Op::Create(number, name) => {
                let mut options = File::options();
                options.read(true).write(true).create_new(true).mode(0o644);
                let file = options.open(path(name)).unwrap();
                // Whatever the umask is.
                assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o644);
                self.open.insert(number, file);
            }
            Op::Write(number, offset, byte, len) => {
                file(number).write_all_at(&vec![byte; len], offset).unwrap();
            }
            Op::Direct(number, offset, byte, len) => {
                // A buffer of whole pages that begins on one.
                let buffer = vec![byte; len + 4096];
                let start = buffer.as_ptr().align_offset(4096);
                let place =
                    format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file(number)));
                let mut options = File::options();
                let direct = options.write(true).custom_flags(libc::O_DIRECT).open(place).unwrap();
                direct.write_all_at(&buffer[start..start + len], offset).unwrap();
            }
            Op::Synced(number, offset, byte, len) => {
                let data = vec![byte; len];
                let (data, flags) = ([std::io::IoSlice::new(&data)], ReadWriteFlags::DSYNC);
                let written = rustix::io::pwritev2(file(number), &data, offset, flags).unwrap();
                assert_eq!(written, len);
            }
            Op::Sync(number) => file(number).sync_all().unwrap(),
            Op::SyncData(number) => file(number).sync_data().unwrap(),
            Op::SyncAll => rustix::fs::syncfs(file(0)).unwrap(),
            Op::Rename(_, from, to, _) => std::fs::rename(path(from), path(to)).unwrap(),
            Op::Exchange(_, from, to, _) => {
                let root = file(0);
                rustix::fs::renameat_with(root, from, root, to, RenameFlags::EXCHANGE).unwrap();
            }
            Op::Link(number, name) => {
                let place =
                    format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file(number)));
                let follow = rustix::fs::AtFlags::SYMLINK_FOLLOW;
                rustix::fs::linkat(rustix::fs::CWD, place, file(0), name, follow).unwrap();
            }
            Op::Remove(_, name) => std::fs::remove_file(path(name)).unwrap(),
            Op::Truncate(number, _, size) => file(number).set_len(size).unwrap(),
            Op::Allocate(number, mode, offset, len) => {
                let mode = FallocateFlags::from_bits_retain(mode);
                rustix::fs::fallocate(file(number), mode, offset, len).unwrap();
            }
            Op::Mode(number, mode) => {
                file(number).set_permissions(Permissions::from_mode(mode)).unwrap();
            }
            Op::Close(number) => {
                self.open.remove(&number);
            }
            Op::WriteBack(number) => {
                rustix::fs::fadvise(file(number), 0, None, Advice::DontNeed).unwrap();
            }
        }
    }
}

/// Writes a call down.
pub(crate) fn note(script: &mut Script, op: Op) {
    match op {
        Op::Create(file, name) => script.create(file, name),
        Op::Write(file, offset, byte, len) => script.write(file, offset, &vec![byte; len]),
        Op::Direct(file, offset, byte, len) => script.direct(file, offset, &vec![byte; len]),
        Op::Synced(file, offset, byte, len) => script.write_synced(file, offset, &vec![byte; len]),
        Op::Sync(file) => script.sync(file),
        Op::SyncData(file) => script.sync_data(file),
        Op::SyncAll => script.call(Call::SyncAll),
        Op::Rename(file, from, to, over) => script.rename(file, from, to, over),
        Op::Exchange(file, from, to, other) => {
            let (file, replaced) = (FileId(file), Some(FileId(other)));
            let (from, to) = (in_root(from), in_root(to));
            script.call(Call::Rename { file, from, to, replaced, exchange: true })
        }
        Op::Link(file, name) => script.call(Call::Link { file: FileId(file), name: in_root(name) }),
        Op::Remove(file, name) => script.remove(file, name),
        Op::Truncate(file, before, size) => script.truncate(file, before, size),
        Op::Allocate(file, mode, offset, len) => script.allocate(file, mode, offset, len),
        Op::Mode(file, mode) => {
            let change = Attributes { mode: Some(mode), ..Attributes::default() };
            script.call(Call::SetAttributes { file: FileId(file), change })
        }
        Op::Close(file) => script.close(file),
        Op::WriteBack(_) => script,
    };
}

/// Sequences, each with a name: the classic mistakes, and each kind of call around a commit that
/// another file causes.
pub(crate) fn sequences() -> Vec<(&'static str, Vec<Op>)> {
    use Op::*;
    /// A commit of all metadata, by the sync of a file that is new each time.
    fn commit(number: u32, name: &'static str) -> [Op; 2] {
        [Create(number, name), Sync(number)]
    }
    let then = |ops: &[Op], more: [Op; 2]| [ops, &more].concat();
    let mut all = vec![
        (
            "rename-new",
            then(
                &[Create(3, "t"), Write(3, 0, b'n', 9000), Rename(3, "t", "n", None)],
                commit(4, "c"),
            ),
        ),
        (
            "rename-over",
            then(
                &[
                    Create(3, "t"),
                    Write(3, 0, b'n', 9000),
                    Close(3),
                    Rename(3, "t", "old", Some(1)),
                ],
                commit(4, "c"),
            ),
        ),
        // The data is still on its way when the rename is committed.
        (
            "rename-over-large",
            [
                &[Create(3, "t"), Write(3, 0, b'n', 6 << 20), Rename(3, "t", "old", Some(1))][..],
                &commit(4, "c"),
            ]
            .concat(),
        ),
        (
            "rename-over-synced",
            vec![
                Create(3, "t"),
                Write(3, 0, b'n', 9000),
                Sync(3),
                Rename(3, "t", "old", Some(1)),
                Sync(0),
            ],
        ),
        (
            "rename-fdatasync",
            vec![Rename(1, "old", "moved", None), SyncData(1), Mode(1, 0o600), SyncData(1)],
        ),
        (
            "truncate-rewrite",
            then(&[Truncate(1, 10000, 0), Write(1, 0, b'n', 9000), Close(1)], commit(4, "c")),
        ),
        (
            "append",
            [
                &[Write(1, 10000, b'a', 1000), Write(1, 11000, b'b', 9000)][..],
                &commit(4, "c"),
                &[Write(1, 20000, b'c', 100), SyncData(1), Write(1, 20100, b'd', 100)],
            ]
            .concat(),
        ),
        (
            "log-and-data",
            vec![
                Create(3, "log"),
                Write(3, 0, b'l', 512),
                SyncData(3),
                Write(2, 0, b'd', 8192),
                Write(3, 512, b'm', 512),
                SyncData(3),
                Write(2, 4096, b'e', 4096),
                SyncData(2),
                Truncate(3, 1024, 0),
                Sync(3),
            ],
        ),
        (
            "overwrite",
            vec![
                Write(1, 0, b'1', 4096),
                Write(1, 4096, b'2', 4096),
                WriteBack(1),
                Write(1, 0, b'3', 4096),
                Mode(1, 0o600),
                Sync(2),
                Sync(1),
            ],
        ),
        ("data-first", vec![Create(3, "later"), Write(1, 0, b'1', 4096), WriteBack(1)]),
        (
            "sparse",
            then(
                &[Create(3, "s"), Write(3, 40000, b'x', 5000), WriteBack(3), Write(3, 0, b'y', 10)],
                commit(4, "c"),
            ),
        ),
        (
            "names",
            [
                &[Link(1, "second"), Remove(1, "old"), Exchange(1, "second", "data", 2)][..],
                &commit(4, "c"),
                &[Remove(1, "data"), Close(1), Sync(0), Remove(4, "c")],
            ]
            .concat(),
        ),
        (
            "truncate",
            [
                &[Truncate(1, 10000, 5000), Write(1, 5000, b't', 100), Truncate(1, 5100, 9000)][..],
                &commit(4, "c"),
                &[Truncate(1, 9000, 100), Sync(1)],
            ]
            .concat(),
        ),
        (
            "holes",
            [
                // KEEP_SIZE | PUNCH_HOLE; ZERO_RANGE; nothing.
                &[
                    Allocate(1, 3, 1000, 5000),
                    Allocate(2, 16, 4096, 8192),
                    Allocate(2, 0, 16384, 8192),
                ][..],
                &[Write(2, 16384, b'f', 4096)],
                &commit(4, "c"),
                &[Write(2, 4096, b'g', 4096), Sync(2)],
            ]
            .concat(),
        ),
        (
            "shift",
            [
                // COLLAPSE_RANGE, INSERT_RANGE.
                &[Write(2, 8192, b'n', 4096), Allocate(2, 8, 4096, 4096)][..],
                &commit(4, "c"),
                &[Write(2, 0, b'm', 4096), Allocate(2, 32, 4096, 4096), Sync(2)],
            ]
            .concat(),
        ),
        // Blocks that are cleared or allocated stay where they are; their data is on its way
        // before the journal knows.
        (
            "zero-range",
            [
                &[Allocate(2, 16, 4096, 8192), Write(2, 4096, b'g', 4096), WriteBack(2)][..],
                &[Write(1, 0, b'1', 4096)],
                &commit(4, "c"),
                &[Allocate(2, 16, 0, 8192), Write(2, 100, b'h', 5000), WriteBack(2)],
            ]
            .concat(),
        ),
        // With some options the rest of the marked blocks is zeroed before the journal knows.
        (
            "zero-range-neighbours",
            [
                &[Write(1, 10000, b'q', 50000), Sync(1), Allocate(1, 16, 0, 57344)][..],
                &[Write(1, 20480, b'g', 4096), WriteBack(1)],
                &[Allocate(2, 16, 0, 16384), Write(2, 4096, b'h', 100), WriteBack(2)],
                &commit(4, "c"),
            ]
            .concat(),
        ),
        (
            "zero-range-unaligned",
            [
                &[Allocate(2, 16, 1000, 14000), WriteBack(2), Allocate(1, 16, 5000, 12000)][..],
                &commit(4, "c"),
                &[Write(1, 9000, b'z', 100), Allocate(1, 17, 100, 300), SyncData(1)],
            ]
            .concat(),
        ),
        (
            "unwritten",
            [
                &[Create(3, "u"), Allocate(3, 0, 0, 16384), Sync(3), Write(3, 0, b'u', 9000)][..],
                &[WriteBack(3), Allocate(3, 3, 4096, 4096), Write(3, 4096, b'v', 4096)],
                &commit(4, "c"),
            ]
            .concat(),
        ),
        (
            "sync-range-old-block",
            vec![
                Create(3, "new"),
                Write(2, 16384, b'a', 4096),
                Synced(2, 0, b'c', 4096),
                Synced(2, 16384, b'e', 100),
            ],
        ),
        // Of the block that it syncs everything has its place already.
        (
            "sync-range-beside-new-block",
            vec![
                Create(3, "new"),
                Write(2, 12288, b'a', 8192),
                Synced(2, 12288, b'c', 4096),
                Synced(2, 16384, b'e', 100),
            ],
        ),
        (
            "sync-range-after-rename",
            then(
                &[
                    Create(3, "t"),
                    Write(3, 0, b'a', 4096),
                    Sync(3),
                    Write(3, 4096, b'b', 4096),
                    Rename(3, "t", "old", Some(1)),
                    Synced(3, 0, b'c', 4096),
                ],
                commit(4, "c"),
            ),
        ),
        (
            "direct",
            [
                &[Create(3, "d"), Direct(3, 0, b'1', 8192), Direct(1, 0, b'2', 4096)][..],
                &commit(4, "c"),
                &[Direct(3, 0, b'3', 4096), SyncData(3), Direct(3, 4096, b'4', 8192)],
            ]
            .concat(),
        ),
        (
            "sync-nothing",
            vec![
                Create(3, "n"),
                Write(3, 0, b'n', 100),
                Sync(2),
                Write(2, 0, b'o', 100),
                SyncData(2),
            ],
        ),
        (
            "sync-range",
            vec![
                Write(2, 0, b'd', 4096),
                Synced(2, 8192, b'c', 4096),
                Create(3, "log"),
                Write(3, 0, b'a', 4096),
                Synced(3, 4096, b'b', 4096),
                Write(3, 8192, b'e', 100),
                Synced(3, 8292, b'f', 100),
            ],
        ),
        (
            "sync-directory",
            vec![
                Mode(1, 0o600),
                SyncData(0),
                Rename(1, "old", "moved", None),
                SyncData(0),
                Sync(0),
            ],
        ),
        (
            "sync-all",
            vec![Create(3, "n"), Write(3, 0, b'n', 5000), SyncAll, Write(3, 0, b'm', 5000)],
        ),
    ];
    // The first commit into an empty log writes the log's superblock before it takes the
    // transaction, so all data that is on its way arrives, too. Later commits do not.
    for (_, ops) in &mut all {
        ops.splice(0..0, commit(5, "begin"));
    }
    all
}
