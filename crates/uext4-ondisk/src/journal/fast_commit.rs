//! Fast commits: what a kernel wrote behind the log since its last transaction.
//!
//! On disk: the last blocks of the journal ([`super::superblock::fast_commit_blocks`]) hold records
//! of a type, a length and a value, little-endian (`struct ext4_fc_tl` and what follows it in the
//! kernel documentation's journal.rst). A fast commit fills whole blocks and ends in a record with
//! a checksum of all its records. The first one names the transaction that it belongs to, the one
//! after the last of the log.
//!
//! Invariants: only the records of fast commits that are whole are returned, in their order. A
//! record that is returned has a value of the length that its type asks for. Memory is bounded by
//! the area.

use crate::checksum::crc32c;
use crate::extent::{Extent, RawExtent};
use crate::units::{FileBlock, Ino, Tid};
use zerocopy::little_endian::{U16, U32};

raw_struct! {
    /// `struct ext4_fc_tl`.
    pub struct RawFastCommitTag [4] {
        fc_tag: U16,
        fc_len: U16,
    }
}

const ADD_RANGE: u16 = 1;
const DEL_RANGE: u16 = 2;
const CREATE: u16 = 3;
const LINK: u16 = 4;
const UNLINK: u16 = 5;
const INODE: u16 = 6;
const PAD: u16 = 7;
const TAIL: u16 = 8;
const HEAD: u16 = 9;

const TAG_SIZE: usize = size_of::<RawFastCommitTag>();
/// Bytes of the value of a tail in front of its checksum.
const TAIL_SUMMED: usize = 4;
/// Longest name.
const NAME_MAX: usize = 255;
/// Bytes of an inode without its extra fields.
const INODE_MIN: usize = 128;

/// A change of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameChange {
    /// The inode is made and gets its first name.
    Create,
    /// It gets another name.
    Link,
    /// It loses a name.
    Unlink,
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Blocks of a file are mapped.
    AddRange {
        /// The file.
        ino: Ino,
        /// The mapping.
        extent: Extent,
    },
    /// Blocks of a file are not mapped any more.
    DelRange {
        /// The file.
        ino: Ino,
        /// First block.
        first: FileBlock,
        /// Number of blocks.
        len: u32,
    },
    /// A name.
    Name {
        /// What happens to it.
        change: NameChange,
        /// The directory.
        parent: Ino,
        /// The inode that is named.
        ino: Ino,
        /// The name: 1 to 255 bytes.
        name: Vec<u8>,
    },
    /// An inode as it is then.
    Inode {
        /// Its number.
        ino: Ino,
        /// At least 128 bytes, and those of the extra fields.
        bytes: Vec<u8>,
    },
}

/// Features of the area that nobody knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("fast commits with unknown features {0:#x}")]
pub struct UnknownFeatures(pub u32);

/// Collects the records of the area's blocks, which are given in their order.
#[derive(Debug)]
pub struct Scan {
    tid: Tid,
    inode_size: usize,
    crc: u32,
    /// The area has begun with a head.
    has_head: bool,
    /// Records of the fast commit that is not whole yet.
    open: Vec<Record>,
    whole: Vec<Record>,
    commits: u32,
}

impl Scan {
    /// A scan for fast commits that follow transaction `tid - 1`. `inode_size` in bytes.
    #[must_use]
    pub fn new(tid: Tid, inode_size: u32) -> Self {
        let inode_size = crate::num::idx(inode_size);
        let (open, whole) = (Vec::new(), Vec::new());
        Self { tid, inode_size, crc: 0, has_head: false, open, whole, commits: 0 }
    }

    /// Reads the next block. False if the fast commits end in it.
    ///
    /// # Errors
    /// [`UnknownFeatures`].
    pub fn block(&mut self, block: &[u8]) -> Result<bool, UnknownFeatures> {
        let mut rest = block;
        while let Some((tag, behind)) = rest.split_first_chunk::<TAG_SIZE>() {
            let Some(raw) = RawFastCommitTag::ref_from_prefix(tag) else { return Ok(false) };
            let len = usize::from(raw.fc_len.get());
            let Some((value, next)) = behind.split_at_checked(len) else { return Ok(false) };
            let is_taken = match raw.fc_tag.get() {
                TAIL => self.tail(tag, value),
                kind => {
                    let is_taken = self.record(kind, value)?;
                    self.crc = crc32c(crc32c(self.crc, tag), value);
                    is_taken
                }
            };
            if !is_taken {
                return Ok(false);
            }
            rest = next;
        }
        Ok(true)
    }

    /// The records of all whole fast commits, and the number of these.
    #[must_use]
    pub fn finish(self) -> (Vec<Record>, u32) {
        (self.whole, self.commits)
    }

    /// Ends a fast commit. False if it is not whole.
    fn tail(&mut self, tag: &[u8], value: &[u8]) -> bool {
        let (Some(tid), Some(crc)) = (le32(value, 0), le32(value, TAIL_SUMMED)) else {
            return false;
        };
        let summed = value.get(..TAIL_SUMMED).unwrap_or_default();
        self.crc = crc32c(crc32c(self.crc, tag), summed);
        if !self.has_head || Tid(tid) != self.tid || crc != self.crc {
            return false;
        }
        self.crc = 0;
        self.commits = self.commits.saturating_add(1);
        self.whole.append(&mut self.open);
        true
    }

    /// Takes a record. False if there is no such record here.
    fn record(&mut self, kind: u16, value: &[u8]) -> Result<bool, UnknownFeatures> {
        if kind == HEAD {
            let (Some(features), Some(tid)) = (le32(value, 0), le32(value, 4)) else {
                return Ok(false);
            };
            if Tid(tid) != self.tid {
                return Ok(false);
            }
            self.has_head = true;
            return if features == 0 { Ok(true) } else { Err(UnknownFeatures(features)) };
        }
        if !self.has_head {
            return Ok(false);
        }
        if kind == PAD {
            return Ok(true);
        }
        let record = self.parse(kind, value);
        let is_known = record.is_some();
        self.open.extend(record);
        Ok(is_known)
    }

    fn parse(&self, kind: u16, value: &[u8]) -> Option<Record> {
        let ino = || le32(value, 0).map(Ino);
        match kind {
            ADD_RANGE if value.len() == 16 => {
                let extent = Extent::from(RawExtent::ref_from_prefix(value.get(4..)?)?);
                Some(Record::AddRange { ino: ino()?, extent })
            }
            DEL_RANGE if value.len() == 12 => {
                let first = FileBlock(le32(value, 4)?);
                Some(Record::DelRange { ino: ino()?, first, len: le32(value, 8)? })
            }
            CREATE | LINK | UNLINK if (9..=8 + NAME_MAX).contains(&value.len()) => {
                let change = match kind {
                    CREATE => NameChange::Create,
                    LINK => NameChange::Link,
                    _ => NameChange::Unlink,
                };
                let (parent, ino) = (ino()?, Ino(le32(value, 4)?));
                Some(Record::Name { change, parent, ino, name: value.get(8..)?.to_vec() })
            }
            INODE => {
                let bytes = value.get(4..)?;
                let fits = (INODE_MIN..=self.inode_size).contains(&bytes.len());
                fits.then_some(Record::Inode { ino: ino()?, bytes: bytes.to_vec() })
            }
            _ => None,
        }
    }
}

fn le32(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..)?.first_chunk::<4>()?;
    Some(U32::from_bytes(*four).get())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TID: Tid = Tid(7);

    /// A block of records, sealed by a tail that fills it.
    struct Writer {
        bytes: Vec<u8>,
        crc: u32,
    }

    impl Writer {
        fn new() -> Self {
            Self { bytes: Vec::new(), crc: 0 }
        }

        fn record(mut self, kind: u16, value: &[u8]) -> Self {
            let at = self.bytes.len();
            self.bytes.extend(kind.to_le_bytes());
            self.bytes.extend((value.len() as u16).to_le_bytes());
            self.bytes.extend(value);
            self.crc = crc32c(self.crc, &self.bytes[at..]);
            self
        }

        fn head(self, tid: u32) -> Self {
            self.record(HEAD, &[[0; 4], tid.to_le_bytes()].concat())
        }

        fn seal(mut self, tid: u32) -> Vec<u8> {
            let at = self.bytes.len();
            self.bytes.extend(TAIL.to_le_bytes());
            self.bytes.extend((1024 - at as u16 - 4).to_le_bytes());
            self.bytes.extend(tid.to_le_bytes());
            self.crc = crc32c(self.crc, &self.bytes[at..]);
            self.bytes.extend(self.crc.to_le_bytes());
            self.bytes.resize(1024, 0);
            self.bytes
        }
    }

    fn range(len: u32) -> Vec<u8> {
        [5_u32, 1, len].map(u32::to_le_bytes).concat()
    }

    fn scan(blocks: &[Vec<u8>]) -> (Vec<Record>, u32) {
        let mut scan = Scan::new(TID, 256);
        for block in blocks {
            if !scan.block(block).unwrap() {
                break;
            }
        }
        scan.finish()
    }

    #[test]
    fn whole_fast_commits_are_read() {
        let name = [[2, 0, 0, 0], [12, 0, 0, 0], *b"name"].concat();
        let first = Writer::new().head(7).record(LINK, &name).record(DEL_RANGE, &range(3)).seal(7);
        let second = Writer::new().record(INODE, &[&[9, 0, 0, 0][..], &[1; 160]].concat()).seal(7);
        let (records, commits) = scan(&[first.clone(), second.clone()]);
        assert_eq!((records.len(), commits), (3, 2));
        let name = b"name".to_vec();
        let (change, parent, ino) = (NameChange::Link, Ino(2), Ino(12));
        assert_eq!(records[0], Record::Name { change, parent, ino, name });
        assert_eq!(records[1], Record::DelRange { ino: Ino(5), first: FileBlock(1), len: 3 });
        assert_eq!(records[2], Record::Inode { ino: Ino(9), bytes: vec![1; 160] });
        // A bit that has changed ends them in front of the fast commit that has it.
        for bit in 0..1024 * 8 {
            let mut damaged = second.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let (records, _) = scan(&[first.clone(), damaged]);
            // Nothing covers what is behind the tail.
            let is_behind =
                bit / 8 >= 4 + 164 + 12 || (4 + 164 + 2..4 + 164 + 4).contains(&(bit / 8));
            assert!(records.len() == 2 || is_behind, "bit {bit}: {records:?}");
        }
    }

    #[test]
    fn those_of_another_transaction_are_none() {
        for tid in [6, 8] {
            assert_eq!(
                scan(&[Writer::new().head(tid).record(DEL_RANGE, &range(3)).seal(tid)]).1,
                0
            );
            assert_eq!(scan(&[Writer::new().head(7).record(DEL_RANGE, &range(3)).seal(tid)]).1, 0);
        }
        assert_eq!(scan(&[Writer::new().record(DEL_RANGE, &range(3)).seal(7)]).1, 0, "no head");
        assert_eq!(scan(&[vec![0; 1024], vec![0xff; 1024]]).1, 0);
    }

    #[test]
    fn values_of_a_wrong_length_are_not_taken() {
        let wrong: &[(u16, usize)] = &[
            (ADD_RANGE, 15),
            (DEL_RANGE, 13),
            (CREATE, 8),
            (UNLINK, 264),
            (INODE, 131),
            (INODE, 261),
            (10, 4),
            (0, 0),
        ];
        for &(kind, len) in wrong {
            let block = Writer::new().head(7).record(kind, &vec![1; len]).seal(7);
            assert_eq!(scan(&[block]), (Vec::new(), 0), "{kind} {len}");
        }
        let unknown = Writer::new().record(HEAD, &[1, 0, 0, 0, 7, 0, 0, 0]).seal(7);
        assert_eq!(Scan::new(TID, 256).block(&unknown), Err(UnknownFeatures(1)));
    }
}
