//! The block of multiple mount protection: which host has the file system.
//!
//! On disk: the first 1024 bytes of block `s_mmp_block` (mmp.rst, `struct mmp_struct`).

use crate::checksum::Checksums;
use crate::error::CorruptKind;
use zerocopy::little_endian::{U16, U32, U64};

/// `mmp_magic`.
pub const MMP_MAGIC: u32 = 0x004d_4d50;
/// `mmp_seq` of a file system that no host has.
pub const SEQ_CLEAN: u32 = 0xff4d_4d50;
/// `mmp_seq` while a checker works on it.
pub const SEQ_FSCK: u32 = 0xe24d_4d50;
/// Largest `mmp_seq` of a host that has it mounted.
pub const SEQ_MAX: u32 = 0xe24d_4d4f;
/// Seconds between two writes of the block where the superblock names none.
pub const UPDATE_INTERVAL: u16 = 5;
/// Fewest seconds after which a block that does not change is looked at again.
pub const CHECK_INTERVAL_MIN: u16 = 5;
/// Most seconds between two writes of the block.
pub const INTERVAL_MAX: u16 = 300;
/// Most seconds of the check interval that a block has: the kernel begins with twice the other.
pub const CHECK_INTERVAL_MAX: u16 = 600;
const WHAT: &str = "MMP block";

raw_struct! {
    /// `struct mmp_struct`.
    pub struct RawMmp [1024] {
        mmp_magic: U32,
        mmp_seq: U32,
        mmp_time: U64,
        mmp_nodename: [u8; 64],
        mmp_bdevname: [u8; 32],
        mmp_check_interval: U16,
        mmp_pad1: U16,
        mmp_pad2: [U32; 226],
        mmp_checksum: U32,
    }
}

impl RawMmp {
    /// A block that no host has.
    #[must_use]
    pub fn clean(check_interval: u16) -> Self {
        let mut raw = Self::zeroed();
        raw.mmp_magic.set(MMP_MAGIC);
        raw.mmp_seq.set(SEQ_CLEAN);
        raw.mmp_check_interval.set(check_interval);
        raw
    }

    /// Names the host and the device, as much of them as fits.
    pub fn set_names(&mut self, node: &str, device: &str) {
        set_name(&mut self.mmp_nodename, node);
        set_name(&mut self.mmp_bdevname, device);
    }

    /// The host that wrote it last.
    #[must_use]
    pub fn node(&self) -> String {
        name(&self.mmp_nodename)
    }

    /// What that host calls the device.
    #[must_use]
    pub fn device(&self) -> String {
        name(&self.mmp_bdevname)
    }

    fn checksum(&self, checksums: &Checksums) -> Option<u32> {
        let bytes = self.bytes();
        checksums.of(bytes.get(..bytes.len().saturating_sub(4))?)
    }

    /// Computes the checksum.
    pub fn seal(&mut self, checksums: &Checksums) {
        if let Some(checksum) = self.checksum(checksums) {
            self.mmp_checksum.set(checksum);
        }
    }

    /// Checks magic and checksum.
    ///
    /// # Errors
    /// What is wrong.
    pub fn verify(&self, checksums: &Checksums) -> Result<(), CorruptKind> {
        let found = self.mmp_magic.get();
        if found != MMP_MAGIC {
            return Err(CorruptKind::Magic { what: WHAT, want: MMP_MAGIC, found });
        }
        let found = self.mmp_checksum.get();
        match self.checksum(checksums).filter(|&want| want != found) {
            Some(want) => Err(CorruptKind::Checksum { what: WHAT, want, found }),
            None => Ok(()),
        }
    }
}

/// The bytes up to the first 0, without what would break a line.
fn name(bytes: &[u8]) -> String {
    let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn set_name(field: &mut [u8], name: &str) {
    field.fill(0);
    field.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::ChecksumKind;

    #[test]
    fn every_changed_byte_is_noticed_and_names_stay_in_their_line() {
        let checksums = Checksums { kind: ChecksumKind::Crc32c, seed: 77, uuid: [1; 16] };
        let mut raw = RawMmp::clean(5);
        raw.set_names("host\nwith a line", &"d".repeat(40));
        raw.seal(&checksums);
        assert_eq!(raw.verify(&checksums), Ok(()));
        assert_eq!((raw.node().as_str(), raw.device().len()), ("host?with a line", 32));
        for at in [0, 4, 8, 16, 80, 112, 116, 1019, 1020] {
            let mut bytes = raw.bytes().to_vec();
            bytes[at] ^= 1;
            assert!(RawMmp::from_prefix(&bytes).unwrap().verify(&checksums).is_err(), "{at}");
        }
        let none = Checksums { kind: ChecksumKind::None, ..checksums };
        raw.mmp_checksum.set(0);
        assert!(raw.verify(&none).is_ok() && raw.verify(&checksums).is_err());
    }
}
