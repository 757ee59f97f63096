//! Mounts of type `fuseblk`: whether to make one.
//!
//! Kernel counterpart: `fs/fuse/inode.c` (`fuseblk_fs_type`, `FUSE_SYNCFS`).

use std::fs;

/// Whether a mount has the type `fuseblk`: its source is a block device, a loop device that stands
/// for the image ([`uext4_device::LoopSource`]). The kernel waits at the unmounting until such a
/// mount has written everything, and since 6.18 passes sync(2) and syncfs(2) on to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FuseBlk {
    /// For root, where sync(2) is passed on, and where it works.
    #[default]
    Auto,
    /// Or no mount.
    On,
    /// The type `fuse`.
    Off,
}

impl FuseBlk {
    /// The value of the mount option.
    pub(crate) fn parse(how: &str) -> Option<Self> {
        Some(match how {
            "auto" => Self::Auto,
            "on" => Self::On,
            "off" => Self::Off,
            _ => return None,
        })
    }

    /// Whether root is to try it.
    pub(crate) fn is_wanted(self) -> bool {
        match self {
            Self::Auto => passes_sync_on(),
            Self::On => true,
            Self::Off => false,
        }
    }
}

/// Whether the kernel passes sync(2) on to mounts from block devices: since 6.18.
pub(crate) fn passes_sync_on() -> bool {
    fs::read_to_string("/proc/sys/kernel/osrelease").is_ok_and(|text| is_since_6_18(&text))
}

fn is_since_6_18(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        return false;
    };
    (major, minor) >= (6, 18)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_numbers() {
        for release in ["6.18.0\n", "6.18-rc3", "6.100.1", "7.0"] {
            assert!(is_since_6_18(release), "{release}");
        }
        for release in ["6.17.9-generic", "5.19", "6", "", "x.y"] {
            assert!(!is_since_6_18(release), "{release}");
        }
    }
}
