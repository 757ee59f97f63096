//! Everything that callers do with a volume, within bounds, and minding no error but `Internal`.

use crate::common::new;
use std::collections::HashSet;
use std::fmt::Debug;
use uext4::{
    AllocateMode, ErrorKind, InodeRef, OpenFile, Owner, RenameMode, SetAttr, SetTime, Timestamp,
    Volume, XattrMode,
};
use uext4_ondisk::{FileKind, Ino};

/// How much of an image is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) inodes: usize,
    pub(crate) entries_per_directory: usize,
    pub(crate) bytes_per_file: usize,
    /// Names that are changed.
    pub(crate) changes: usize,
}

/// What was met.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) inodes: usize,
    pub(crate) bytes: usize,
    pub(crate) errors: usize,
    pub(crate) first_error: Option<String>,
    /// Errors that say that uext4 itself is at fault.
    pub(crate) internal: Vec<String>,
}

impl Report {
    pub(crate) fn note<T: Debug>(&mut self, result: uext4::Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.errors += 1;
                let text = format!("{error} ({:?})", error.kind());
                if matches!(error.kind(), ErrorKind::Internal) {
                    self.internal.push(text.clone());
                }
                self.first_error.get_or_insert(text);
                None
            }
        }
    }
}

/// A name that was found.
pub(crate) struct Found {
    pub(crate) dir: InodeRef,
    pub(crate) name: Vec<u8>,
    pub(crate) inode: InodeRef,
}

impl Found {
    pub(crate) fn again(&self) -> Self {
        Self { dir: self.dir.clone(), name: self.name.clone(), inode: self.inode.clone() }
    }
}

/// Reads what one inode has.
pub(crate) fn look_at(volume: &Volume, ino: Ino, bounds: Bounds, report: &mut Report) {
    let Some(inode) = report.note(volume.inode(ino)) else { return };
    read_one(volume, &inode, bounds, report);
    if inode.kind() == FileKind::Directory {
        entries(volume, &inode, bounds, report);
    }
}

/// Reads all there is; returns the names, breadth first.
pub(crate) fn walk(volume: &Volume, bounds: Bounds, report: &mut Report) -> Vec<Found> {
    let mut found = Vec::new();
    let Some(root) = report.note(volume.root()) else { return found };
    let mut seen = HashSet::from([root.ino()]);
    let mut dirs = std::collections::VecDeque::from([root]);
    let _ = (volume.stat_fs(), volume.superblock(), volume.read_only_reason());
    while let Some(dir) = dirs.pop_front() {
        report.note(volume.lookup(&dir, b".."));
        for name in entries(volume, &dir, bounds, report) {
            if found.len() >= bounds.inodes {
                return found;
            }
            let Some(inode) = report.note(volume.lookup(&dir, &name)) else { continue };
            report.inodes += 1;
            if seen.insert(inode.ino()) {
                read_one(volume, &inode, bounds, report);
                if inode.kind() == FileKind::Directory {
                    dirs.push_back(inode.clone());
                }
            }
            found.push(Found { dir: dir.clone(), name, inode });
        }
    }
    found
}

fn entries(volume: &Volume, dir: &InodeRef, bounds: Bounds, report: &mut Report) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let mut cursor = 0;
    // In pieces, as a mount reads.
    loop {
        let before = names.len();
        let result = volume.read_dir(dir, cursor, &mut |entry| {
            assert!(entry.next > cursor, "cursors rise");
            cursor = entry.next;
            names.push(entry.name.to_vec());
            names.len() - before < 700.min(bounds.entries_per_directory)
        });
        report.note(result);
        if names.len() == before || names.len() >= bounds.entries_per_directory {
            break;
        }
    }
    names.retain(|name| name != b"." && name != b"..");
    names
}

fn read_one(volume: &Volume, inode: &InodeRef, bounds: Bounds, report: &mut Report) {
    let attr = volume.attr(inode);
    for name in report.note(volume.xattr_list(inode)).unwrap_or_default() {
        report.note(volume.xattr_get(inode, &name));
    }
    match inode.kind() {
        FileKind::Symlink => {
            report.note(volume.read_link(inode));
        }
        FileKind::Regular => {
            let Some(file) = report.note(volume.open_file(inode)) else { return };
            let mut buf = vec![0; bounds.bytes_per_file];
            report.bytes += report.note(file.read_at(0, &mut buf)).unwrap_or(0);
            buf.truncate(5000);
            for at in [attr.size / 2, attr.size.saturating_sub(3000), attr.size, u64::MAX - 9] {
                report.bytes += report.note(file.read_at(at, &mut buf)).unwrap_or(0);
                // A hole's end, or none: both are answers.
                let _ = (file.seek_data(at), file.seek_hole(at));
            }
        }
        _ => {}
    }
}

/// Changes what was found, and adds to it.
pub(crate) fn rewrite(volume: &Volume, found: &[Found], bounds: Bounds, report: &mut Report) {
    let root = report.note(volume.root());
    for (index, name) in found.iter().take(bounds.changes).enumerate() {
        match name.inode.kind() {
            FileKind::Regular => change_file(volume, &name.inode, index, report),
            FileKind::Directory => fill_directory(volume, &name.inode, index, report),
            _ => {}
        }
        change_attributes(volume, &name.inode, index, report);
        if index % 16 == 3 {
            report.note(volume.sync());
        }
    }
    if let Some(root) = &root {
        fill_directory(volume, root, found.len(), report);
    }
    for (index, pair) in found[..found.len().min(bounds.changes)].windows(2).enumerate() {
        move_names(volume, &pair[0], &pair[1], index, report);
    }
    for (index, name) in found.iter().take(bounds.changes).enumerate().rev() {
        if index % 3 != 0 {
            report.note(match name.inode.kind() {
                FileKind::Directory => volume.rmdir(&name.dir, &name.name),
                _ => volume.unlink(&name.dir, &name.name),
            });
        }
    }
    report.note(volume.sync());
}

fn change_file(volume: &Volume, inode: &InodeRef, index: usize, report: &mut Report) {
    let Some(file) = report.note(volume.open_file(inode)) else { return };
    let size = volume.attr(inode).size;
    let bytes = vec![0xa5; 9000];
    let cut = |to| SetAttr { size: Some(to), ..SetAttr::default() };
    report.note(file.write_at(size / 3, &bytes));
    report.note(file.append(&bytes[..10]));
    match index % 6 {
        0 => drop(report.note(volume.set_attr(inode, &cut(size / 2)))),
        1 => drop(report.note(file.allocate(AllocateMode::PunchHole, size / 4, 70_000))),
        2 => {
            let mode = AllocateMode::Allocate { keep_size: false };
            report.note(file.allocate(mode, size, 40_000));
        }
        3 => {
            let mode = AllocateMode::ZeroRange { keep_size: true };
            report.note(file.allocate(mode, size / 8, 40_000));
        }
        4 => drop(report.note(volume.set_attr(inode, &cut(0)))),
        _ => {}
    }
    sync(&file, index, report);
    report.note(volume.set_attr(inode, &cut(size + 100_000)));
    report.note(file.flush());
}

fn sync(file: &OpenFile, index: usize, report: &mut Report) {
    if index % 5 == 1 {
        report.note(file.sync(index.is_multiple_of(2)));
    }
}

fn fill_directory(volume: &Volume, dir: &InodeRef, index: usize, report: &mut Report) {
    for n in 0..6 {
        let name = format!("hostile-{index}-{n}{}", "x".repeat(n * 30));
        let kind = [FileKind::Regular, FileKind::Directory, FileKind::Fifo][n % 3];
        let created = volume.create(dir, name.as_bytes(), &new(kind, 0o644));
        let Some(inode) = report.note(created) else { continue };
        if kind == FileKind::Regular
            && let Some(file) = report.note(volume.open_file(&inode))
        {
            report.note(file.write_at(0, &vec![n as u8; 20_000]));
            report.note(file.write_at(90_000, b"far"));
            sync(&file, index, report);
            report.note(volume.link(&inode, dir, format!("hostile-link-{n}").as_bytes()));
        }
    }
    report.note(volume.symlink(dir, b"hostile-fast", b"target", Owner::default()));
    report.note(volume.symlink(dir, b"hostile-slow", &[b't'; 400], Owner::default()));
    report.note(volume.rename(dir, b"hostile-fast", dir, b"hostile-slow", RenameMode::Replace));
}

fn change_attributes(volume: &Volume, inode: &InodeRef, index: usize, report: &mut Report) {
    let time = Timestamp { secs: 1 << 33, nanos: 5 };
    let change = SetAttr {
        mode: Some(0o4711),
        uid: Some(70_000),
        mtime: Some(SetTime::At(time)),
        ..SetAttr::default()
    };
    report.note(volume.set_attr(inode, &change));
    let value = vec![7; [3, 60, 300, 700][index % 4]];
    report.note(volume.xattr_set(inode, b"user.hostile", &value, XattrMode::Any));
    report.note(volume.xattr_set(inode, b"security.hostile", b"v", XattrMode::Any));
    for name in report.note(volume.xattr_list(inode)).unwrap_or_default() {
        if index.is_multiple_of(3) {
            report.note(volume.xattr_remove(inode, &name));
        }
    }
}

fn move_names(volume: &Volume, a: &Found, b: &Found, index: usize, report: &mut Report) {
    let moved = [&a.name[..], b"~"].concat();
    report.note(match index % 5 {
        0 => volume.rename(&a.dir, &a.name, &b.dir, &b.name, RenameMode::Exchange),
        1 => volume.rename(&a.dir, &a.name, &b.dir, &moved, RenameMode::NoReplace),
        2 => volume.rename(&a.dir, &a.name, &a.dir, &moved, RenameMode::Replace),
        3 => volume.rename(&a.dir, &a.name, &b.inode, &moved, RenameMode::Replace),
        _ => volume.rename(&a.dir, &a.name, &b.dir, &b.name, RenameMode::Replace),
    });
}
