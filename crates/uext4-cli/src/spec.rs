//! Names on the command line: `IMAGE`, a part of it (`IMAGE@p1`, `IMAGE#1`, `IMAGE@OFFSET`),
//! `IMAGE:/path` and host paths.
//!
//! A name is taken apart at the first `:/` whose left side is a file or block device that exists,
//! or a whole name of a network block device (`nbd://HOST/EXPORT:/path`, `rbd:POOL/IMAGE:/path`).
//! Where no such split exists but the whole name does, it is a host path; `./a:/b` forces nothing,
//! but a host file whose name has an image's name before `:/` is not a thing to worry about.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::Metadata;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use uext4_nbd::NbdUri;
use uext4_rbd::RbdName;

use crate::failure::Why;
use crate::network;
use crate::rbd;

/// Where in a file a file system lies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Part {
    /// All of it.
    Whole,
    /// What starts at a byte.
    At(u64),
    /// A partition, by its number.
    Partition(u32),
    /// Words behind the file's name that mean nothing, with the mark before them.
    Unclear(String),
}

/// An image: a file, device or network block device, and where in it the file system lies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Image {
    /// File or block device, or a URI: see [`Image::uri`].
    pub(crate) path: PathBuf,
    /// What of it is meant.
    pub(crate) part: Part,
    /// Size of the disk's sectors in bytes, where the user has said it.
    pub(crate) sector: Option<u64>,
}

impl Image {
    /// Takes a name apart. A file whose own name looks like that of a part wins; words that name no
    /// part are a part of the file's name, unless there is a file without them.
    pub(crate) fn parse(name: &OsStr) -> Self {
        let whole = Self { path: PathBuf::from(name), part: Part::Whole, sector: None };
        let bytes = name.as_bytes();
        let Some(mark) = bytes.iter().rposition(|b| matches!(b, b'@' | b'#')) else { return whole };
        let (file, words) = bytes.split_at(mark);
        let path = || PathBuf::from(OsStr::from_bytes(file));
        let image = |part| Self { path: path(), part, sector: None };
        if file.is_empty() || whole.path.exists() {
            return whole;
        }
        let words = String::from_utf8_lossy(words);
        match Part::parse(&words) {
            Some(part) => image(part),
            // A snapshot is a part of an image's name.
            None if whole.path.to_str().is_some_and(RbdName::is_meant) => whole,
            None => Some(image(Part::Unclear(words.into()))).filter(Self::exists).unwrap_or(whole),
        }
    }

    /// The URI of a network block device, good or bad, if it is named by one.
    pub(crate) fn uri(&self) -> Option<&str> {
        self.path.to_str().filter(|text| is_network(text))
    }

    /// The same under a name that does not depend on the working directory.
    pub(crate) fn absolute(&self) -> io::Result<Self> {
        let path = match self.uri() {
            Some(uri) => network::absolute(uri)?.into(),
            None => self.path.canonicalize()?,
        };
        Ok(Self { path, ..self.clone() })
    }

    /// Whether a file is to be made of it: there is none, or an empty one.
    pub(crate) fn is_to_be_made(&self) -> bool {
        let is_empty = |found: Metadata| found.is_file() && found.len() == 0;
        self.uri().is_none() && self.path.metadata().map_or(true, is_empty)
    }

    /// Whether there is something of that name; of a network block device, whether it is a name.
    pub(crate) fn exists(&self) -> bool {
        if let Some(uri) = self.uri() {
            return rbd::is_name(uri) || uri.parse::<NbdUri>().is_ok();
        }
        self.path.metadata().is_ok_and(|m| m.is_file() || m.file_type().is_block_device())
    }
}

impl Part {
    /// Takes `@OFFSET`, `@pNUMBER` or `#NUMBER`.
    fn parse(words: &str) -> Option<Self> {
        let number = words.strip_prefix("@p").or_else(|| words.strip_prefix('#'));
        match number {
            Some(number) => number.parse().ok().filter(|n| *n > 0).map(Self::Partition),
            None => match parse_size(words.strip_prefix('@')?)? {
                0 => Some(Self::Whole),
                offset => Some(Self::At(offset)),
            },
        }
    }
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        match &self.part {
            Part::Whole => Ok(()),
            Part::At(offset) => write!(f, "@{offset}"),
            Part::Partition(number) => write!(f, "@p{number}"),
            Part::Unclear(words) => f.write_str(words),
        }
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

impl ImagePath {
    /// The path of a name in this directory.
    pub(crate) fn below(&self, name: &[u8]) -> Self {
        Self { image: self.image.clone(), path: join(&self.path, name) }
    }
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
        // A URI is never a path of the host, and what is before its first `:/` no image.
        if name.to_str().is_some_and(is_network) {
            let found = splits(name.as_bytes()).find(|split| split.image.exists());
            let whole = || ImagePath { image: Image::parse(name), path: b"/".to_vec() };
            return Self::Image(found.unwrap_or_else(whole));
        }
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

/// Whether a text is meant as the name of a network block device, good or bad.
fn is_network(text: &str) -> bool {
    NbdUri::is_meant(text) || RbdName::is_meant(text)
}

/// All ways to cut `name` at a `:/`, and at a final `:`.
fn splits(name: &[u8]) -> impl Iterator<Item = ImagePath> {
    let scheme = str::from_utf8(name).ok().filter(|text| is_network(text));
    let after = scheme.and_then(|text| text.find("://")).map_or(1, |at| at + "://".len());
    (after..name.len()).filter_map(move |colon| {
        let (left, right) = name.split_at(colon);
        let path = match right {
            [b':', b'/', ..] => right[1..].to_vec(),
            [b':'] => b"/".to_vec(),
            _ => return None,
        };
        Some(ImagePath { image: Image::parse(OsStr::from_bytes(left)), path })
    })
}

/// What is wrong with an operand that lies in no image.
pub(crate) const NOT_IN_IMAGE: &str =
    "not of the form IMAGE:/path; the root of an image is IMAGE:/";

/// Whether a name that nothing has begins with a file and a colon: `IMAGE:path`.
pub(crate) fn has_relative_part(path: &Path) -> bool {
    let name = path.as_os_str().as_bytes();
    if path.to_str().is_some_and(is_network) {
        return false;
    }
    let is_image = |left: &[u8]| Image::parse(OsStr::from_bytes(left)).exists();
    let mut colons = (1..name.len()).filter(|at| name[*at] == b':');
    path.symlink_metadata().is_err() && colons.any(|at| is_image(&name[..at]))
}

/// An operand that must lie in an image (`IMAGE:/path`).
pub(crate) fn in_image(verb: &str, name: &OsStr) -> crate::failure::Result<ImagePath> {
    match Location::parse(name) {
        Location::Image(path) => Ok(path),
        Location::Host(path) => {
            let why = crate::failure::Why::new(NOT_IN_IMAGE);
            Err(why.at(verb, path.display()))
        }
    }
}

/// An operand that is an image, of which the root is meant, or a path in one (`IMAGE[:/path]`).
pub(crate) fn image_or_inside(name: &OsStr) -> ImagePath {
    match Location::parse(name) {
        Location::Image(path) => path,
        Location::Host(_) => ImagePath { image: Image::parse(name), path: b"/".to_vec() },
    }
}

/// How a size is written, for messages.
pub(crate) const SIZE_FORMS: &str = "bytes, or with a suffix s (sectors), K, M, G or T";

/// Bytes of `size`, with an optional suffix: K, M, G or T (powers of 1024), or s (512).
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

/// Bytes of the longest path of a directory that a walk enters: four times what Linux takes in one
/// call. So the memory for the paths of a hostile image stays within bounds.
const PATH_MAX: usize = 16 << 10;

/// Refuses to enter a directory whose path is too long.
pub(crate) fn check_path(path: &[u8]) -> Result<(), Why> {
    match path.len() > PATH_MAX {
        true => Err(Why::new("path is too long; not entered")),
        false => Ok(()),
    }
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
        let inside = |part, path: &str| {
            let image = Image { path: image.clone(), part, sector: None };
            Location::Image(ImagePath { image, path: path.as_bytes().to_vec() })
        };
        assert_eq!(with(":/x/y"), inside(Part::Whole, "/x/y"));
        assert_eq!(with(":/x:/y"), inside(Part::Whole, "/x:/y"));
        assert_eq!(with(":"), inside(Part::Whole, "/"));
        assert_eq!(with("@1M:/x"), inside(Part::At(1 << 20), "/x"));
        assert_eq!(with("@2048s:/x"), inside(Part::At(1 << 20), "/x"));
        assert_eq!(with("@0:/x"), inside(Part::Whole, "/x"));
        assert_eq!(with("@p1:/x"), inside(Part::Partition(1), "/x"));
        assert_eq!(with("#12:/x"), inside(Part::Partition(12), "/x"));
        for words in ["@p0", "@p", "#", "#p1", "@1X", "@-1", "#99999999999", "@99999999T"] {
            let part = Part::Unclear(words.to_owned());
            assert_eq!(with(&format!("{words}:/x")), inside(part, "/x"));
        }
        assert_eq!(with(""), Location::Host(image.clone()));
    }

    #[test]
    fn a_file_whose_own_name_looks_like_a_part_wins() {
        let dir = tempfile::tempdir().unwrap();
        let whole = |path| Image { path, part: Part::Whole, sector: None };
        for (name, part) in [("a@p1", Part::Partition(1)), ("b#2", Part::Partition(2))] {
            let path = dir.path().join(name);
            let split = Image { path: dir.path().join(&name[..1]), part, sector: None };
            assert_eq!(Image::parse(path.as_os_str()), split);
            assert_eq!(split.to_string(), path.display().to_string().replace("#2", "@p2"));
            std::fs::write(&path, b"x").unwrap();
            assert_eq!(Image::parse(path.as_os_str()), whole(path));
        }
        // Nothing is there: the name stays as it was given.
        let path = dir.path().join("c@home");
        assert_eq!(Image::parse(path.as_os_str()), whole(path));
    }

    /// Fault model: the scheme of a URI is taken for the name of an image that is there.
    #[test]
    fn a_uri_is_cut_behind_its_whole_name() {
        let of = |text: &str| match Location::parse(OsStr::new(text)) {
            Location::Image(found) => (found.image.to_string(), show(&found.path)),
            other => panic!("{other:?}"),
        };
        let unix = "nbd+unix:///d?socket=/run/s";
        for (name, path) in [("", "/"), (":/", "/"), (":/a:/b", "/a:/b"), ("@p2:/x", "/x")] {
            let image = if name.starts_with('@') { format!("{unix}@p2") } else { unix.to_owned() };
            assert_eq!(of(&format!("{unix}{name}")), (image, path.to_owned()));
        }
        assert_eq!(of("nbd://h:9/d:/x"), ("nbd://h:9/d".to_owned(), "/x".to_owned()));
        assert_eq!(of("nbd://h"), ("nbd://h".to_owned(), "/".to_owned()));
        assert!(!has_relative_part(Path::new("nbd://h:9/d")));
        for image in ["rbd:pool/image", "rbd:pool/image@snap", "rbd:p/i:conf=/etc/c.conf"] {
            assert_eq!(of(image), (image.to_owned(), "/".to_owned()));
            assert_eq!(of(&format!("{image}:/x")), (image.to_owned(), "/x".to_owned()));
        }
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
