//! Paths of entries, checked.

use std::fmt;

/// Longest name of one part in ext4.
const NAME_MAX: usize = 255;
/// Longest path. Far above what a call of the kernel takes, and low enough that no path makes
/// millions of directories.
const PATH_MAX: usize = 32 << 10;

/// A path relative to the directory that an archive is unpacked into; empty for that itself.
///
/// As tar(1) does, slashes at the start and empty and `.` parts are left out. A path with `..` is
/// refused, because no such path is in an archive but to leave the target.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TarPath {
    bytes: Vec<u8>,
}

/// Why a path is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathFault {
    /// It is empty.
    #[error("has an empty name")]
    Empty,
    /// A part is `..`.
    #[error("has '..' in its name, which could leave the target")]
    Parent,
    /// A zero byte.
    #[error("has a zero byte in its name")]
    Zero,
    /// A part above 255 bytes.
    #[error("has a part of more than 255 bytes in its name")]
    LongPart,
    /// All in all too long.
    #[error("has a name of more than 32 KiB")]
    Long,
}

impl TarPath {
    /// Checks the path of an entry.
    pub fn parse(raw: &[u8]) -> std::result::Result<Self, PathFault> {
        if raw.is_empty() {
            return Err(PathFault::Empty);
        }
        if raw.contains(&0) {
            return Err(PathFault::Zero);
        }
        if raw.len() > PATH_MAX {
            return Err(PathFault::Long);
        }
        let mut path = Self::default();
        for part in raw.split(|byte| *byte == b'/') {
            match part {
                b"" | b"." => {}
                b".." => return Err(PathFault::Parent),
                part if part.len() > NAME_MAX => return Err(PathFault::LongPart),
                part => path = path.join(part),
            }
        }
        Ok(path)
    }

    /// The parts from the target down.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.split(|byte| *byte == b'/').filter(|part| !part.is_empty())
    }

    /// The parts with slashes between them; empty for the target itself.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether it is the directory that is unpacked into.
    pub fn is_root(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The directory and the name in it; `None` for the root.
    pub fn split(&self) -> Option<(&[u8], &[u8])> {
        if self.is_root() {
            return None;
        }
        Some(match self.bytes.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&self.bytes[..slash], &self.bytes[slash + 1..]),
            None => (&[], &self.bytes),
        })
    }

    /// This path and one part more, which must be a name: not empty, without slash or zero byte.
    #[must_use]
    pub fn join(&self, name: &[u8]) -> Self {
        let mut bytes = self.bytes.clone();
        if !bytes.is_empty() {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(name);
        Self { bytes }
    }
}

impl fmt::Display for TarPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = if self.is_root() { b"." } else { &self.bytes[..] };
        f.write_str(&String::from_utf8_lossy(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_relative_and_stay_below_the_target() {
        for (raw, want) in [
            (&b"a/b"[..], Ok(&b"a/b"[..])),
            (b"/etc/passwd", Ok(b"etc/passwd")),
            (b"//a//./b/", Ok(b"a/b")),
            (b"./", Ok(b"")),
            (b"/", Ok(b"")),
            (b"...", Ok(b"...")),
            (b"", Err(PathFault::Empty)),
            (b"..", Err(PathFault::Parent)),
            (b"a/../b", Err(PathFault::Parent)),
            (b"a/..", Err(PathFault::Parent)),
            (b"a\0b", Err(PathFault::Zero)),
        ] {
            let found = TarPath::parse(raw);
            assert_eq!(found.as_ref().map(TarPath::as_bytes).map_err(|f| *f), want, "{raw:?}");
        }
        assert!(TarPath::parse(&[b'x'; 255]).is_ok());
        assert_eq!(TarPath::parse(&[b'x'; 256]), Err(PathFault::LongPart));
        assert_eq!(TarPath::parse(&b"x/".repeat(20_000)), Err(PathFault::Long));
    }
}
