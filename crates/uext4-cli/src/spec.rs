//! Names on the command line: `IMAGE`, `IMAGE@OFFSET`, `IMAGE:/path` and host paths.
//!
//! A name is taken apart at the first `:/` whose left side is a file or block device that exists.
//! Where no such split exists but the whole name does, it is a host path; `./a:/b` forces nothing,
//! but a host file whose name has an image's name before `:/` is not a thing to worry about.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// An image: a file or device, and where in it the file system starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Image {
    /// File or block device.
    pub(crate) path: PathBuf,
    /// Start of the file system, in bytes.
    pub(crate) offset: u64,
}

impl Image {
    /// Takes `IMAGE` or `IMAGE@OFFSET` apart; the offset may end in K, M, G or T (powers of 1024).
    /// A file whose own name looks like that wins.
    pub(crate) fn parse(name: &OsStr) -> Self {
        let whole = Self { path: PathBuf::from(name), offset: 0 };
        let bytes = name.as_bytes();
        let Some(at) = bytes.iter().rposition(|b| *b == b'@') else { return whole };
        let offset = std::str::from_utf8(&bytes[at + 1..]).ok().and_then(parse_size);
        match offset {
            Some(offset) if at > 0 && !whole.path.exists() => {
                Self { path: PathBuf::from(OsStr::from_bytes(&bytes[..at])), offset }
            }
            _ => whole,
        }
    }

    fn exists(&self) -> bool {
        self.path.metadata().is_ok_and(|m| m.is_file() || m.file_type().is_block_device())
    }
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if self.offset != 0 {
            write!(f, "@{}", self.offset)?;
        }
        Ok(())
    }
}

/// A path inside an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImagePath {
    /// The image.
    pub(crate) image: Image,
    /// Absolute path in it, as bytes.
    pub(crate) path: Vec<u8>,
}

impl fmt::Display for ImagePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.image, String::from_utf8_lossy(&self.path))
    }
}

/// One operand of a verb that works on both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// A path of the host.
    Host(PathBuf),
    /// A path of an image.
    Image(ImagePath),
}

impl Location {
    /// Takes an operand apart.
    pub(crate) fn parse(name: &OsStr) -> Self {
        let splits = || splits(name.as_bytes());
        if let Some(found) = splits().find(|split| split.image.exists()) {
            return Self::Image(found);
        }
        match splits().next() {
            // The image is missing; say that rather than take the name for a host path.
            Some(first) if !Path::new(name).exists() => Self::Image(first),
            _ => Self::Host(PathBuf::from(name)),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(path) => write!(f, "{}", path.display()),
            Self::Image(path) => path.fmt(f),
        }
    }
}

/// All ways to cut `name` at a `:/`, and at a final `:`.
fn splits(name: &[u8]) -> impl Iterator<Item = ImagePath> {
    (1..name.len()).filter_map(move |colon| {
        let (left, right) = name.split_at(colon);
        let path = match right {
            [b':', b'/', ..] => right[1..].to_vec(),
            [b':'] => b"/".to_vec(),
            _ => return None,
        };
        Some(ImagePath { image: Image::parse(OsStr::from_bytes(left)), path })
    })
}

/// An operand that must lie in an image (`IMAGE:/path`).
pub(crate) fn in_image(verb: &str, name: &OsStr) -> crate::failure::Result<ImagePath> {
    match Location::parse(name) {
        Location::Image(path) => Ok(path),
        Location::Host(path) => {
            let why = crate::failure::Why::new("not of the form IMAGE:/path");
            Err(why.at(verb, path.display()))
        }
    }
}

/// Bytes of `size` with an optional suffix K, M, G or T (powers of 1024).
pub(crate) fn parse_size(size: &str) -> Option<u64> {
    let (digits, shift) = match size.as_bytes().last()? {
        b'k' | b'K' => (&size[..size.len() - 1], 10),
        b'm' | b'M' => (&size[..size.len() - 1], 20),
        b'g' | b'G' => (&size[..size.len() - 1], 30),
        b't' | b'T' => (&size[..size.len() - 1], 40),
        b's' => (&size[..size.len() - 1], 9),
        _ => (size, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// The last part of a path, without slashes at the end; empty for `/`, and `.` and `..` stay.
pub(crate) fn last_part(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|b| *b != b'/').map_or(0, |last| last + 1);
    let start = path[..end].iter().rposition(|b| *b == b'/').map_or(0, |slash| slash + 1);
    &path[start..end]
}

/// `dir/name`.
pub(crate) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = dir.to_vec();
    if path.last() != Some(&b'/') && !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// A name for messages and for text output: bytes as they are, lossily.
pub(crate) fn show(name: &[u8]) -> String {
    OsString::from_vec(name.to_vec()).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_are_taken_apart() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("a:b.img");
        std::fs::write(&image, b"x").unwrap();
        let with = |tail: &str| {
            let mut name = image.clone().into_os_string();
            name.push(tail);
            Location::parse(&name)
        };
        let inside = |offset, path: &str| {
            let image = Image { path: image.clone(), offset };
            Location::Image(ImagePath { image, path: path.as_bytes().to_vec() })
        };
        assert_eq!(with(":/x/y"), inside(0, "/x/y"));
        assert_eq!(with(":/x:/y"), inside(0, "/x:/y"));
        assert_eq!(with(":"), inside(0, "/"));
        assert_eq!(with("@1M:/x"), inside(1 << 20, "/x"));
        assert_eq!(with("@2048s:/x"), inside(1 << 20, "/x"));
        assert_eq!(with(""), Location::Host(image.clone()));
    }

    #[test]
    fn a_missing_image_is_still_an_image() {
        match Location::parse(OsStr::new("no-such.img:/x")) {
            Location::Image(found) => assert_eq!(found.image.path, Path::new("no-such.img")),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn last_parts() {
        for (path, last) in
            [("/", ""), ("/a/b", "b"), ("a//", "a"), ("/a/.", "."), ("..", ".."), ("", "")]
        {
            assert_eq!(last_part(path.as_bytes()), last.as_bytes(), "{path}");
        }
    }
}
