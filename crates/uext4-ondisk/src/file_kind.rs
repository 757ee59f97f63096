//! Types of files and flags of inodes.
//!
//! On disk: `i_mode`, the type byte of directory entries, `i_flags` (inodes.rst, directory.rst).

use bitflags::bitflags;

/// `i_mode`: bits of the file type.
pub const S_IFMT: u16 = 0o170_000;

/// Type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
    /// Symbolic link.
    Symlink,
}

impl FileKind {
    /// Type from `i_mode`; `None` for a number that is no type.
    #[must_use]
    pub const fn from_mode(mode: u16) -> Option<Self> {
        Some(match mode & S_IFMT {
            0o100_000 => Self::Regular,
            0o040_000 => Self::Directory,
            0o020_000 => Self::CharDevice,
            0o060_000 => Self::BlockDevice,
            0o010_000 => Self::Fifo,
            0o140_000 => Self::Socket,
            0o120_000 => Self::Symlink,
            _ => return None,
        })
    }

    /// The type's bits of `i_mode`.
    #[must_use]
    pub const fn mode(self) -> u16 {
        match self {
            Self::Regular => 0o100_000,
            Self::Directory => 0o040_000,
            Self::CharDevice => 0o020_000,
            Self::BlockDevice => 0o060_000,
            Self::Fifo => 0o010_000,
            Self::Socket => 0o140_000,
            Self::Symlink => 0o120_000,
        }
    }

    /// Type from the byte of a directory entry; `None` for unknown.
    #[must_use]
    pub const fn from_dirent(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Regular,
            2 => Self::Directory,
            3 => Self::CharDevice,
            4 => Self::BlockDevice,
            5 => Self::Fifo,
            6 => Self::Socket,
            7 => Self::Symlink,
            _ => return None,
        })
    }

    /// The byte of a directory entry.
    #[must_use]
    pub const fn dirent(self) -> u8 {
        match self {
            Self::Regular => 1,
            Self::Directory => 2,
            Self::CharDevice => 3,
            Self::BlockDevice => 4,
            Self::Fifo => 5,
            Self::Socket => 6,
            Self::Symlink => 7,
        }
    }
}

bitflags! {
    /// `i_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct InodeFlags: u32 {
        /// Secure deletion (not honoured).
        const SECRM = 0x1;
        /// Undelete (not honoured).
        const UNRM = 0x2;
        /// Compressed (not honoured).
        const COMPR = 0x4;
        /// Synchronous updates.
        const SYNC = 0x8;
        /// May not change.
        const IMMUTABLE = 0x10;
        /// May only grow.
        const APPEND = 0x20;
        /// Not dumped by dump(8).
        const NODUMP = 0x40;
        /// Access time is not updated.
        const NOATIME = 0x80;
        /// Not compressed (not honoured).
        const NOCOMPR = 0x400;
        /// Encrypted.
        const ENCRYPT = 0x800;
        /// Directory with a hash tree.
        const INDEX = 0x1000;
        /// AFS magic directory.
        const IMAGIC = 0x2000;
        /// Data goes through the journal.
        const JOURNAL_DATA = 0x4000;
        /// Tails are not merged (not honoured).
        const NOTAIL = 0x8000;
        /// Directory updates are synchronous.
        const DIRSYNC = 0x1_0000;
        /// Top of a directory hierarchy, for the allocator.
        const TOPDIR = 0x2_0000;
        /// `i_blocks` counts file-system blocks.
        const HUGE_FILE = 0x4_0000;
        /// Mapped by extents.
        const EXTENTS = 0x8_0000;
        /// fs-verity.
        const VERITY = 0x10_0000;
        /// Holds the value of a large attribute.
        const EA_INODE = 0x20_0000;
        /// Blocks past the end of the file (no longer used).
        const EOFBLOCKS = 0x40_0000;
        /// Direct access.
        const DAX = 0x200_0000;
        /// Data in the inode.
        const INLINE_DATA = 0x1000_0000;
        /// Children inherit the project id.
        const PROJINHERIT = 0x2000_0000;
        /// Case-insensitive directory.
        const CASEFOLD = 0x4000_0000;
        /// Reserved for the library.
        const RESERVED = 0x8000_0000;
        const _ = !0;
    }
}

impl InodeFlags {
    /// The flags that `FS_IOC_GETFLAGS` shows and `FS_IOC_SETFLAGS` accepts (inodes.rst): all but
    /// those of the format's own use, and bits without a meaning.
    pub const USER_VISIBLE: Self = Self::from_bits_retain(0x725b_dfff);

    /// The flags that a new inode inherits from its directory, as far as its type can have them.
    const INHERITED: Self = Self::SECRM
        .union(Self::UNRM)
        .union(Self::COMPR)
        .union(Self::SYNC)
        .union(Self::NODUMP)
        .union(Self::NOATIME)
        .union(Self::NOCOMPR)
        .union(Self::JOURNAL_DATA)
        .union(Self::NOTAIL)
        .union(Self::DIRSYNC)
        .union(Self::PROJINHERIT)
        .union(Self::CASEFOLD)
        .union(Self::DAX);

    /// Those of the flags that users set which an inode of a type can have.
    #[must_use]
    pub fn of_kind(self, kind: FileKind) -> Self {
        let of_directories = Self::DIRSYNC | Self::TOPDIR | Self::PROJINHERIT | Self::CASEFOLD;
        match kind {
            FileKind::Directory => self,
            FileKind::Regular => self.difference(of_directories),
            _ => self & (Self::NODUMP | Self::NOATIME),
        }
    }

    /// The flags that a new inode of a type inherits from a directory with these.
    #[must_use]
    pub fn inherited(self, kind: FileKind) -> Self {
        (self & Self::INHERITED).of_kind(kind)
    }
}
