//! ioctl(2) on files of a mount: inode flags, projects, label, generation, trimming, shutdown.
//!
//! The kernel has checked the right to change a file's flags: owner, `CAP_FOWNER`, and
//! `CAP_LINUX_IMMUTABLE` for immutable and append-only. The rest is checked here.
//!
//! Numbers and structures: `include/uapi/linux/fs.h` of 64-bit machines. Bytes are in the order of
//! the machine.

use uext4::{InodeRef, Volume};
use uext4_device::{FITRIM, QUESTION, TrimRange};
use uext4_fuse_server::{Caller, Errno};
use uext4_ondisk::InodeFlags;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::failure::{Answer, Failure};
use crate::server::Server;

const GETFLAGS: u32 = 0x8008_6601;
const SETFLAGS: u32 = 0x4008_6602;
const GETVERSION: u32 = 0x8008_7601;
/// `EXT4_IOC_GETVERSION`, ext4's own number for the same.
const EXT4_GETVERSION: u32 = 0x8008_6603;
const FSGETXATTR: u32 = 0x801c_581f;
const FSSETXATTR: u32 = 0x401c_5820;
const GETFSLABEL: u32 = 0x8100_9431;
const SETFSLABEL: u32 = 0x4100_9432;
/// `EXT4_IOC_SHUTDOWN`. The word that says how does not come with it.
const SHUTDOWN: u32 = 0x8004_587d;
/// Inode flags that close a file to changes: immutable, append-only.
const CLOSED: InodeFlags = InodeFlags::IMMUTABLE.union(InodeFlags::APPEND);
/// Bytes of a label's place.
const LABEL_MAX: usize = 256;

/// `struct fsxattr`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct FsXattr {
    xflags: u32,
    extsize: u32,
    nextents: u32,
    projid: u32,
    cowextsize: u32,
    pad: [u8; 8],
}

/// `FS_XFLAG_*` and the inode flags that they stand for.
const XFLAGS: [(u32, InodeFlags); 7] = [
    (XFLAG_IMMUTABLE, InodeFlags::IMMUTABLE),
    (XFLAG_APPEND, InodeFlags::APPEND),
    (0x20, InodeFlags::SYNC),
    (0x40, InodeFlags::NOATIME),
    (0x80, InodeFlags::NODUMP),
    (0x200, InodeFlags::PROJINHERIT),
    (0x8000, InodeFlags::DAX),
];
const XFLAG_IMMUTABLE: u32 = 0x08;
const XFLAG_APPEND: u32 = 0x10;

impl Server {
    /// Answers a request on `node`: the bytes that go back.
    ///
    /// # Errors
    /// `ENOTTY` for one that is not known here, which is what callers take for "no such request".
    pub(crate) fn control(
        &self,
        caller: Caller,
        node: u64,
        command: u32,
        data: &[u8],
    ) -> Answer<Vec<u8>> {
        let volume = &self.ops.volume;
        let inode = self.ops.node(node)?;
        match command {
            GETFLAGS => Ok(volume.flags(&inode).as_bytes().to_vec()),
            SETFLAGS => {
                // A long by its number, an int in truth.
                let flags = word(data)?;
                self.settle(node, InodeFlags::from_bits_retain(flags).intersects(CLOSED));
                self.changed(node, volume.set_flags(&inode, flags))
            }
            GETVERSION | EXT4_GETVERSION => Ok(inode.generation().as_bytes().to_vec()),
            FSGETXATTR => Ok(extended(volume, &inode).as_bytes().to_vec()),
            FSSETXATTR => {
                let (wanted, _) = FsXattr::read_from_prefix(data).map_err(|_| Errno::INVAL)?;
                self.settle(node, wanted.xflags & (XFLAG_IMMUTABLE | XFLAG_APPEND) != 0);
                self.changed(node, set_extended(volume, &inode, &wanted))
            }
            GETFSLABEL => {
                let mut label = volume.label();
                label.resize(LABEL_MAX, 0);
                Ok(label)
            }
            SETFSLABEL => {
                only_root(caller)?;
                let end = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
                volume.set_label(&data[..end])?;
                Ok(Vec::new())
            }
            SHUTDOWN => {
                only_root(caller)?;
                volume.clone().abandon();
                Ok(Vec::new())
            }
            FITRIM => {
                let range = TrimRange::from_bytes(data).ok_or(Errno::INVAL)?;
                Ok(self.trim(caller.uid, range)?.to_bytes().to_vec())
            }
            QUESTION => self.answers.part(caller.uid, data, |question| self.tell(question, caller)),
            _ => Err(Errno::NOTTY.into()),
        }
    }

    /// Before a file is closed to changes: what the kernel holds of it would be refused later.
    fn settle(&self, node: u64, is_closed: bool) {
        if is_closed && self.ops.nodes.has_writers(node) {
            // Without a thread left for that, what the kernel holds is refused later.
            let _ = self.write_back(node);
        }
    }

    /// After a change of flags: the kernel asks for the attributes again, which show them
    /// (statx(2)) and another change time.
    fn changed(&self, node: u64, done: uext4::Result<()>) -> Answer<Vec<u8>> {
        done?;
        if let Some(notifier) = self.ops.notifier.get() {
            // An error: it knows no such inode any more.
            let _ = notifier.forget_attributes(node);
        }
        Ok(Vec::new())
    }
}

fn only_root(caller: Caller) -> Result<(), Errno> {
    if caller.uid == 0 { Ok(()) } else { Err(Errno::PERM) }
}

fn word(data: &[u8]) -> Result<u32, Failure> {
    Ok(u32::read_from_prefix(data).map_err(|_| Errno::INVAL)?.0)
}

fn extended(volume: &Volume, inode: &InodeRef) -> FsXattr {
    let flags = volume.flags(inode);
    let flags = InodeFlags::from_bits_retain(flags);
    let xflags = XFLAGS.iter().filter(|(_, flag)| flags.contains(*flag));
    let xflags = xflags.fold(0, |all, (xflag, _)| all | xflag);
    FsXattr { xflags, projid: volume.project_id(inode), ..FsXattr::default() }
}

fn set_extended(volume: &Volume, inode: &InodeRef, wanted: &FsXattr) -> uext4::Result<()> {
    let known = XFLAGS.iter().fold(0, |all, (xflag, _)| all | xflag);
    if wanted.xflags & !known != 0 {
        return Err(uext4::ErrorKind::Unsupported.into());
    }
    let flags = XFLAGS.iter().fold(volume.flags(inode), |flags, (xflag, flag)| {
        if wanted.xflags & xflag != 0 { flags | flag.bits() } else { flags & !flag.bits() }
    });
    if wanted.projid != volume.project_id(inode) {
        volume.set_project_id(inode, wanted.projid)?;
    }
    match flags == volume.flags(inode) {
        true => Ok(()),
        false => volume.set_flags(inode, flags),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structure_is_as_long_as_its_number_says() {
        for number in [FSGETXATTR, FSSETXATTR] {
            assert_eq!(size_of::<FsXattr>(), (number >> 16 & 0x3fff) as usize);
        }
        assert_eq!(LABEL_MAX, (GETFSLABEL >> 16 & 0x3fff) as usize);
    }
}
