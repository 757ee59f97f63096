//! Which disk an export holds, so that no other one is written to after a reconnect.
//!
//! # What
//! The UUID of an ext4 file system, the GUID of a GPT and the signature of an MBR, as they were
//! when the device was opened. A server that comes back with others has another disk. What this
//! device itself writes over them is not compared any more: the server may have forgotten it.

use crate::request::{Action, Request};
use crate::unflushed::Change;

/// How many bytes from the start hold all marks.
pub(crate) const BYTES: u32 = 8192;

/// Where a number lies, and what lies where if it is there.
#[derive(Debug)]
struct Place {
    of: &'static str,
    at: usize,
    len: usize,
    magic_at: usize,
    magic: &'static [u8],
}

const PLACES: [Place; 4] = [
    // ext4: `s_uuid` and `s_magic` of the superblock, which begins at 1024.
    Place {
        of: "file system",
        at: 1024 + 0x68,
        len: 16,
        magic_at: 1024 + 0x38,
        magic: &[0x53, 0xEF],
    },
    // UEFI 2.10, 5.3.2: the header in the second sector, of 512 or of 4096 bytes.
    Place { of: "partition table", at: 512 + 56, len: 16, magic_at: 512, magic: b"EFI PART" },
    Place { of: "partition table", at: 4096 + 56, len: 16, magic_at: 4096, magic: b"EFI PART" },
    // UEFI 2.10, 5.2.1: the disk signature.
    Place { of: "partition table", at: 440, len: 4, magic_at: 510, magic: &[0x55, 0xAA] },
];

/// The numbers of a disk.
#[derive(Debug, Default)]
pub(crate) struct Identity(Vec<(&'static Place, Vec<u8>)>);

impl Identity {
    /// Of a disk that begins with these bytes.
    pub(crate) fn of(first: &[u8]) -> Self {
        let mark = |place: &'static Place| {
            let is_there = first.get(place.magic_at..)?.starts_with(place.magic);
            let mark = first.get(place.at..place.at + place.len)?;
            (is_there && mark.iter().any(|byte| *byte != 0)).then(|| (place, mark.to_vec()))
        };
        Self(PLACES.iter().filter_map(mark).collect())
    }

    /// Whether there is anything to compare.
    pub(crate) fn is_known(&self) -> bool {
        !self.0.is_empty()
    }

    /// Forgets what a request changes.
    pub(crate) fn forget_changed(&mut self, request: &Request) {
        let Action::Change { change, .. } = &request.action else { return };
        let begin = request.offset;
        let end = begin.saturating_add(request.len.into());
        self.0.retain(|(place, mark)| {
            (place.at as u64..).zip(mark).all(|(at, byte)| match change {
                _ if at < begin || at >= end => true,
                Change::Data(data) => {
                    usize::try_from(at - begin).is_ok_and(|at| data.get(at) == Some(byte))
                }
                Change::Zeroes | Change::Trim => false,
            })
        });
    }

    /// # Errors
    /// A disk that begins with these bytes is another one: in words.
    pub(crate) fn require(&self, first: &[u8]) -> Result<(), String> {
        for (place, mark) in &self.0 {
            if first.get(place.at..place.at + place.len) != Some(mark) {
                return Err(format!("the server has another disk now: not the same {}", place.of));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn disk(uuid: u8) -> Vec<u8> {
        let mut first = vec![0; BYTES as usize];
        first[1024 + 0x38..][..2].copy_from_slice(&[0x53, 0xEF]);
        first[1024 + 0x68..][..16].fill(uuid);
        first
    }

    fn write(offset: u64, change: Change, len: u32) -> Request {
        Request { action: Action::Change { change, durable: false }, offset, len }
    }

    /// Fault model: changes are made again on another file system of the same size.
    #[test]
    fn another_file_system_is_refused() {
        let identity = Identity::of(&disk(1));
        assert_eq!(identity.require(&disk(1)), Ok(()));
        let why = identity.require(&disk(2)).unwrap_err();
        assert_eq!(why, "the server has another disk now: not the same file system");
        assert!(identity.require(&[]).is_err());
        assert!(!Identity::of(&[0; BYTES as usize]).is_known());
        assert!(!Identity::of(&disk(0)).is_known());
    }

    /// Fault model: of a table of partitions only one kind is looked at.
    #[test]
    fn tables_of_partitions_are_compared() {
        for (magic_at, magic, at) in
            [(512, &b"EFI PART"[..], 568), (4096, b"EFI PART", 4152), (510, &[0x55, 0xAA], 440)]
        {
            let mut first = vec![0; BYTES as usize];
            first[magic_at..][..magic.len()].copy_from_slice(magic);
            first[at] = 1;
            let identity = Identity::of(&first);
            assert_eq!(identity.require(&first), Ok(()));
            first[at] = 2;
            let why = identity.require(&first).unwrap_err();
            assert_eq!(why, "the server has another disk now: not the same partition table");
        }
    }

    /// Fault model: a disk that this device made anew is taken for another one.
    #[test]
    fn what_is_written_over_is_not_compared() {
        let same: Arc<[u8]> = Arc::from(disk(1));
        for (change, len, is_known) in [
            (Change::Data(same), 8192, true),
            (Change::Data(Arc::from(disk(2))), 8192, false),
            (Change::Data(Arc::from(disk(2))), 1024 + 0x68, true),
            (Change::Data(Arc::from(disk(2))), 1024 + 0x69, false),
            (Change::Zeroes, 2048, false),
            (Change::Trim, 2048, false),
        ] {
            let mut identity = Identity::of(&disk(1));
            identity.forget_changed(&write(0, change, len));
            assert_eq!(identity.is_known(), is_known, "{len}");
        }
        let mut identity = Identity::of(&disk(1));
        identity.forget_changed(&write(2048, Change::Zeroes, 4096));
        assert!(identity.is_known());
    }
}
