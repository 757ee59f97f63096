//! Which disk an export holds, so that no other one is written to after a reconnect.
//!
//! # What
//! The UUID of an ext4 file system and the GUID of a GPT, as they were when the device was opened.
//! A server that comes back with others has another disk. What this device itself writes over them
//! is not compared any more.

use crate::request::{Action, Request};
use crate::unflushed::Change;

/// How many bytes from the start hold all marks.
pub(crate) const BYTES: u32 = 2048;

const MARK_BYTES: usize = 16;

/// Where a number lies, and what lies where if it is there.
#[derive(Debug)]
struct Place {
    of: &'static str,
    at: usize,
    magic_at: usize,
    magic: &'static [u8],
}

const PLACES: [Place; 2] = [
    // ext4: `s_uuid` and `s_magic` of the superblock, which begins at 1024.
    Place { of: "file system", at: 1024 + 0x68, magic_at: 1024 + 0x38, magic: &[0x53, 0xEF] },
    // UEFI 2.10, 5.3.2: the header in the second sector of 512 bytes.
    Place { of: "partition table", at: 512 + 56, magic_at: 512, magic: b"EFI PART" },
];

/// The numbers of a disk.
#[derive(Debug, Default)]
pub(crate) struct Identity(Vec<(&'static Place, [u8; MARK_BYTES])>);

impl Identity {
    /// Of a disk that begins with these bytes.
    pub(crate) fn of(first: &[u8]) -> Self {
        let mark = |place: &'static Place| {
            let is_there = first.get(place.magic_at..)?.starts_with(place.magic);
            let mark = *first.get(place.at..)?.first_chunk()?;
            (is_there && mark != [0; MARK_BYTES]).then_some((place, mark))
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
            if first.get(place.at..place.at + MARK_BYTES) != Some(mark) {
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
        assert!(!Identity::of(&[0; 2048]).is_known());
        assert!(!Identity::of(&disk(0)).is_known());
    }

    /// Fault model: a disk that this device made anew is taken for another one.
    #[test]
    fn what_is_written_over_is_not_compared() {
        let same: Arc<[u8]> = Arc::from(disk(1));
        for (change, len, is_known) in [
            (Change::Data(same), 2048, true),
            (Change::Data(Arc::from(disk(2))), 2048, false),
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
