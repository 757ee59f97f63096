//! Operations, and what their small numbers stand for.

use uext4::{Owner, RenameMode};

/// A name in a directory: both modulo what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// Number of a directory, in the order of their making.
    pub dir: u8,
    /// Number of a name.
    pub name: u8,
}

/// The block size of the volumes that steps are done on, in bytes.
pub const SHIFT_UNIT: u32 = 1024;

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the fields are those of the system calls
pub enum Step {
    Create {
        at: At,
    },
    Mkdir {
        at: At,
    },
    Symlink {
        at: At,
        len: u16,
    },
    Link {
        from: At,
        to: At,
    },
    Unlink {
        at: At,
    },
    Rmdir {
        at: At,
    },
    Rename {
        from: At,
        to: At,
        how: u8,
    },
    Write {
        at: At,
        offset: u32,
        len: u16,
        byte: u8,
    },
    Resize {
        at: At,
        size: u32,
    },
    Allocate {
        at: At,
        offset: u32,
        len: u16,
        keep_size: bool,
    },
    Punch {
        at: At,
        offset: u32,
        len: u16,
    },
    Zero {
        at: At,
        offset: u32,
        len: u16,
        keep_size: bool,
    },
    Unshare {
        at: At,
        offset: u32,
        len: u16,
        keep_size: bool,
    },
    /// In units of [`SHIFT_UNIT`].
    Collapse {
        at: At,
        first: u8,
        count: u8,
    },
    /// fallocate(2), `INSERT_RANGE`: in units of shifts.
    Insert {
        at: At,
        first: u8,
        count: u8,
    },
    SetXattr {
        at: At,
        name: u8,
        len: u16,
    },
    RemoveXattr {
        at: At,
        name: u8,
    },
    Chmod {
        at: At,
        mode: u16,
    },
    Fsync {
        at: At,
        data_only: bool,
    },
    Sync,
    Remount,
}

const NAMES: u8 = 6;

pub(super) fn name(number: u8) -> Vec<u8> {
    let number = number % NAMES;
    let mut name = format!("n{number}").into_bytes();
    if number == NAMES - 1 {
        name.resize(255, b'l');
    }
    name
}

pub(super) fn xattr_name(number: u8) -> Vec<u8> {
    format!("user.x{}", number % 3).into_bytes()
}

pub(super) fn target(len: u16) -> Vec<u8> {
    vec![b't'; usize::from(len % 900) + 1]
}

pub(super) fn rename_mode(how: u8) -> RenameMode {
    match how % 6 {
        0 | 1 => RenameMode::Replace,
        2 => RenameMode::NoReplace,
        3 => RenameMode::Exchange,
        4 => RenameMode::Whiteout(Owner::default()),
        _ => RenameMode::WhiteoutNoReplace(Owner::default()),
    }
}

/// Offset and length in bytes.
pub(super) fn shift_range(first: u8, count: u8) -> (usize, usize) {
    let unit = SHIFT_UNIT as usize;
    (usize::from(first) * unit, usize::from(count).max(1) * unit)
}
