//! The tests of `find`: what each word asks of a name.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::time::{SystemTime, UNIX_EPOCH};

use uext4::{Attr, FileKind, Timestamp, Volume};

use crate::failure::Why;
use crate::image_path::{self, Last};
use crate::mode;
use crate::owners;
use crate::pattern::Pattern;
use crate::spec::{self, Location};
use crate::text;
use crate::walk::{self, Node};

type Result<T> = std::result::Result<T, Why>;

/// A number of the command line: `+N` for more, `-N` for fewer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Count {
    Exactly(u64),
    More(u64),
    Fewer(u64),
}

impl Count {
    fn parse(value: &str) -> Result<Self> {
        let (make, digits): (fn(u64) -> Self, _) = match value.as_bytes().first() {
            Some(b'+') => (Self::More, &value[1..]),
            Some(b'-') => (Self::Fewer, &value[1..]),
            _ => (Self::Exactly, value),
        };
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let number = is_number.then(|| digits.parse().ok()).flatten();
        Ok(make(number.ok_or_else(|| unclear("a number", value))?))
    }

    fn holds(self, number: u64) -> bool {
        match self {
            Self::Exactly(wanted) => number == wanted,
            Self::More(bound) => number > bound,
            Self::Fewer(bound) => number < bound,
        }
    }
}

/// Which permissions are asked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bits {
    Exactly(u16),
    All(u16),
    Any(u16),
}

/// One of the times of an inode.
#[derive(Clone, Copy, Debug)]
pub(super) enum Which {
    Access,
    Change,
    Modification,
}

impl Which {
    fn of(self, attr: &Attr) -> Timestamp {
        match self {
            Self::Access => attr.atime,
            Self::Change => attr.ctime,
            Self::Modification => attr.mtime,
        }
    }
}

/// A test.
#[derive(Debug)]
pub(super) enum Test {
    Constant(bool),
    Name(Pattern),
    Path(Pattern),
    Target(Pattern),
    Kind(Vec<FileKind>),
    /// In units of so many bytes, rounded up.
    Size(Count, u64),
    Mode(Bits),
    Uid(Count),
    Gid(Count),
    Links(Count),
    Inode(Count),
    /// In whole units of so many seconds before a moment.
    Age {
        which: Which,
        count: Count,
        unit: i64,
        now: Timestamp,
    },
    /// In minutes, rounded up.
    Minutes {
        which: Which,
        count: Count,
        now: Timestamp,
    },
    Newer(Which, Timestamp),
    Empty,
}

impl Test {
    /// Whether it holds of a name.
    pub(super) fn holds(&self, node: &Node, volume: &Volume) -> Result<bool> {
        let attr = &node.attr;
        Ok(match self {
            Self::Constant(value) => *value,
            Self::Name(pattern) => pattern.matches(match spec::last_part(&node.path()) {
                b"" => b"/",
                name => name,
            }),
            Self::Path(pattern) => pattern.matches(&node.path()),
            Self::Target(pattern) => {
                let target = walk::target(volume, attr)?;
                target.is_some_and(|target| pattern.matches(&target))
            }
            Self::Kind(kinds) => kinds.contains(&attr.kind),
            Self::Size(count, unit) => count.holds(attr.size.div_ceil(*unit)),
            Self::Mode(bits) => match bits {
                Bits::Exactly(wanted) => attr.mode & 0o7777 == *wanted,
                Bits::All(wanted) => attr.mode & wanted == *wanted,
                Bits::Any(wanted) => *wanted == 0 || attr.mode & wanted != 0,
            },
            Self::Uid(count) => count.holds(attr.uid.into()),
            Self::Gid(count) => count.holds(attr.gid.into()),
            Self::Links(count) => count.holds(attr.links.into()),
            Self::Inode(count) => count.holds(attr.ino.get().into()),
            Self::Age { which, count, unit, now } => {
                let units = age(which.of(attr), *now).0.div_euclid(*unit);
                holds_of_age(*count, units)
            }
            Self::Minutes { which, count, now } => {
                let (seconds, nanos) = age(which.of(attr), *now);
                let minutes = seconds.div_euclid(60);
                let is_whole = seconds.rem_euclid(60) == 0 && nanos == 0;
                match count {
                    Count::More(bound) => {
                        minutes >= signed(*bound) && !(minutes == signed(*bound) && is_whole)
                    }
                    Count::Fewer(bound) => minutes < signed(*bound),
                    Count::Exactly(_) => holds_of_age(*count, minutes + i64::from(!is_whole)),
                }
            }
            Self::Newer(which, than) => {
                let time = which.of(attr);
                (time.secs, time.nanos) > (than.secs, than.nanos)
            }
            Self::Empty => match attr.kind {
                FileKind::Regular => attr.size == 0,
                FileKind::Directory => {
                    let dir = volume.inode(attr.ino)?;
                    let mut is_empty = true;
                    volume.read_dir(&dir, 0, &mut |entry| {
                        is_empty = entry.name == b"." || entry.name == b"..";
                        is_empty
                    })?;
                    is_empty
                }
                _ => false,
            },
        })
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A count of an age, which is negative for a time to come.
fn holds_of_age(count: Count, units: i64) -> bool {
    match count {
        Count::Exactly(wanted) => units == signed(wanted),
        Count::More(bound) => units > signed(bound),
        Count::Fewer(bound) => units < signed(bound),
    }
}

/// Seconds and nanoseconds from a time to now.
fn age(time: Timestamp, now: Timestamp) -> (i64, u32) {
    let seconds = now.secs.saturating_sub(time.secs);
    match now.nanos.checked_sub(time.nanos) {
        Some(nanos) => (seconds, nanos),
        None => (seconds - 1, now.nanos + 1_000_000_000 - time.nanos),
    }
}

fn exactly(id: Option<u32>, value: &str) -> Result<Count> {
    let id = id.ok_or_else(|| unclear("a name or a number", value))?;
    Ok(Count::Exactly(id.into()))
}

fn unclear(wanted: &str, found: &str) -> Why {
    Why::new(format!("want {wanted}, not '{found}'"))
}

/// How the value of a test is read.
#[derive(Clone, Copy)]
pub(super) enum Parse {
    Bare(fn() -> Test),
    Pattern(fn(Pattern) -> Test, bool),
    Count(fn(Count) -> Test),
    Text(fn(&str) -> Result<Test>),
    User,
    Group,
    Newer(Which),
    Age(Which, i64),
}

/// How a word is read; `None` where it is no test.
pub(super) fn parser(name: &str) -> Option<Parse> {
    const DAY: i64 = 86_400;
    const MINUTE: i64 = 60;
    use Which::{Access, Change, Modification};
    Some(match name {
        "-true" => Parse::Bare(|| Test::Constant(true)),
        "-false" => Parse::Bare(|| Test::Constant(false)),
        "-empty" => Parse::Bare(|| Test::Empty),
        "-name" => Parse::Pattern(Test::Name, false),
        "-iname" => Parse::Pattern(Test::Name, true),
        "-path" | "-wholename" => Parse::Pattern(Test::Path, false),
        "-ipath" | "-iwholename" => Parse::Pattern(Test::Path, true),
        "-lname" => Parse::Pattern(Test::Target, false),
        "-ilname" => Parse::Pattern(Test::Target, true),
        "-type" => Parse::Text(kinds),
        "-size" => Parse::Text(size),
        "-perm" => Parse::Text(permissions),
        "-uid" => Parse::Count(Test::Uid),
        "-gid" => Parse::Count(Test::Gid),
        "-user" => Parse::User,
        "-group" => Parse::Group,
        "-links" => Parse::Count(Test::Links),
        "-inum" => Parse::Count(Test::Inode),
        "-newer" => Parse::Newer(Modification),
        "-anewer" => Parse::Newer(Access),
        "-cnewer" => Parse::Newer(Change),
        "-mtime" => Parse::Age(Modification, DAY),
        "-atime" => Parse::Age(Access, DAY),
        "-ctime" => Parse::Age(Change, DAY),
        "-mmin" => Parse::Age(Modification, MINUTE),
        "-amin" => Parse::Age(Access, MINUTE),
        "-cmin" => Parse::Age(Change, MINUTE),
        _ => return None,
    })
}

impl Parse {
    /// Whether a word follows.
    pub(super) fn takes_value(self) -> bool {
        !matches!(self, Self::Bare(_))
    }

    /// The test.
    pub(super) fn parse(self, value: &[u8], volume: &Volume) -> Result<Test> {
        let words = String::from_utf8_lossy(value);
        Ok(match self {
            Self::Bare(make) => make(),
            Self::Pattern(make, ignores_case) => make(Pattern::new(value, ignores_case)?),
            Self::Count(make) => make(Count::parse(&words)?),
            Self::Text(make) => make(&words)?,
            Self::User => {
                let found = owners::parse(volume, words.split(':').next().unwrap_or_default())?;
                Test::Uid(exactly(found.uid, &words)?)
            }
            Self::Group => Test::Gid(exactly(owners::parse_group(volume, &words)?.gid, &words)?),
            Self::Newer(which) => Test::Newer(which, time_of(value)?),
            Self::Age(which, 60) => {
                Test::Minutes { which, count: Count::parse(&words)?, now: now() }
            }
            Self::Age(which, unit) => {
                Test::Age { which, count: Count::parse(&words)?, unit, now: now() }
            }
        })
    }
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp { secs: signed(since.as_secs()), nanos: since.subsec_nanos() }
}

fn kinds(value: &str) -> Result<Test> {
    let kind = |letter: &str| {
        text::KINDS.into_iter().find(|kind| match kind {
            FileKind::Regular => letter == "f",
            kind => letter.chars().eq([text::kind_letter(*kind)]),
        })
    };
    let kinds: Option<Vec<FileKind>> = value.split(',').map(kind).collect();
    kinds.map(Test::Kind).ok_or_else(|| unclear("letters of f, d, l, b, c, p, s", value))
}

fn size(value: &str) -> Result<Test> {
    let unit = match value.as_bytes().last() {
        Some(b'c') => 1,
        Some(b'w') => 2,
        Some(b'k') => 1 << 10,
        Some(b'M') => 1 << 20,
        Some(b'G') => 1 << 30,
        _ => 512,
    };
    let count = value.strip_suffix(['b', 'c', 'w', 'k', 'M', 'G']).unwrap_or(value);
    let wanted = "a number, with a suffix b, c, w, k, M or G";
    Ok(Test::Size(Count::parse(count).map_err(|_| unclear(wanted, value))?, unit))
}

fn permissions(value: &str) -> Result<Test> {
    let (make, words): (fn(u16) -> Bits, _) = match value.as_bytes().first() {
        Some(b'-') => (Bits::All, &value[1..]),
        Some(b'/') => (Bits::Any, &value[1..]),
        _ => (Bits::Exactly, value),
    };
    let change = mode::parse(words);
    let change = change.map_err(|_| unclear("a mode such as 644, -u+x or /222", value))?;
    Ok(Test::Mode(make(change.apply(0, false, 0))))
}

/// The time of the last modification of a file of an image or of the host.
fn time_of(name: &[u8]) -> Result<Timestamp> {
    let place = |why: Why| Why::new(format!("{}: {why}", spec::show(name)));
    match Location::parse(OsStr::from_bytes(name)) {
        Location::Host(path) => {
            let found = path.symlink_metadata().map_err(|error| place(error.into()))?;
            let nanos = u32::try_from(found.mtime_nsec()).unwrap_or_default();
            Ok(Timestamp { secs: found.mtime(), nanos })
        }
        Location::Image(path) => {
            let access = crate::image::Access::Read;
            let volume = crate::image::volume("find", &path.image, access);
            let volume = volume.map_err(|failure| match failure {
                crate::failure::Failure::Line(line) => Why::new(line),
                _ => place(Why::new("cannot be read")),
            })?;
            let found = image_path::resolve(&volume, &path.path, Last::Keep).map_err(place)?;
            Ok(volume.attr(found.inode()).mtime)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_octal_or_symbolic() {
        let bits = |value: &str| match permissions(value) {
            Ok(Test::Mode(Bits::Exactly(bits))) => Some(('=', bits)),
            Ok(Test::Mode(Bits::All(bits))) => Some(('-', bits)),
            Ok(Test::Mode(Bits::Any(bits))) => Some(('/', bits)),
            _ => None,
        };
        assert_eq!(bits("644"), Some(('=', 0o644)));
        assert_eq!(bits("-4000"), Some(('-', 0o4000)));
        assert_eq!(bits("/222"), Some(('/', 0o222)));
        assert_eq!(bits("-u+s,g=wx"), Some(('-', 0o4030)));
        assert_eq!(bits("a+x"), Some(('=', 0o111)));
        for bad in ["", "8", "77777", "u", "u+q", "z=r"] {
            assert_eq!(bits(bad), None, "{bad}");
        }
    }

    #[test]
    fn ages_are_whole_units() {
        let at = |secs, nanos| Timestamp { secs, nanos };
        assert_eq!(age(at(10, 5), at(12, 4)), (1, 999_999_999));
        assert_eq!(age(at(10, 5), at(9, 5)), (-1, 0));
        assert!(holds_of_age(Count::Fewer(1), -3));
        assert!(!holds_of_age(Count::More(1), 1));
    }
}
