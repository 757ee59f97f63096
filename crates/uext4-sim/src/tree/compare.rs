//! Comparison of two directory trees: content, modes, owners, times, attributes, links.

use crate::mount::shown;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Most differences that are told.
const DIFFERENCES_MAX: usize = 20;

/// What is compared.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scope<'a> {
    /// The trees are roots of volumes: `lost+found` and the root's own attributes count.
    pub whole_volume: bool,
    /// Access times, too (nobody has read the trees since they were written).
    pub access_times: bool,
    /// Times of the first tree after this were set by the recovery of a file whose cutting it has
    /// ended, as the kernel does; the other side may have kept the time of the cut.
    pub recovered_after: Option<SystemTime>,
    /// Not the links of directories: the kernel's replay of fast commits miscounts those of new
    /// ones and their parents.
    pub no_directory_links: bool,
    /// Not the times: the inodes of one tree have no room for them.
    pub no_times: bool,
    /// Names, and the bytes of files and links alone: all that a dump of a tree keeps.
    pub content_only: bool,
    /// Inodes of the first tree that may have lost attributes in the other.
    pub stripped: &'a [u64],
}

/// Differences between two trees; empty if they are the same.
///
/// # Errors
/// A tree that cannot be read.
pub fn trees(one: &Path, other: &Path, scope: Scope<'_>) -> Result<Vec<String>, String> {
    let roots = [one.to_owned(), other.to_owned()];
    let (links, differences) = (HashMap::new(), Vec::new());
    let mut comparison = TreeComparison { scope, roots, links, differences };
    comparison.directory(one, other, 0)?;
    Ok(comparison.differences)
}

struct TreeComparison<'a> {
    scope: Scope<'a>,
    roots: [PathBuf; 2],
    /// Device and inode of files with several names, to those of the other tree.
    links: HashMap<(u64, u64), (u64, u64)>,
    differences: Vec<String>,
}

impl TreeComparison<'_> {
    fn is_full(&self) -> bool {
        self.differences.len() >= DIFFERENCES_MAX
    }

    fn tell(&mut self, path: &Path, what: String) {
        if !self.is_full() {
            let root = self.roots.iter().find(|root| path.starts_with(root));
            let path = shown(root.map_or(Path::new("/"), PathBuf::as_path), path);
            self.differences.push(format!("{path}: {what}"));
        }
    }

    fn directory(&mut self, one: &Path, other: &Path, depth: usize) -> Result<(), String> {
        // Access times first: reading a directory changes its own.
        if depth > 0 || self.scope.whole_volume {
            self.node(one, other)?;
        }
        let skipped = if depth == 0 && !self.scope.whole_volume { "lost+found" } else { "" };
        let (names, mut others) = (list(one, skipped)?, list(other, skipped)?);
        for (name, is_directory) in names {
            if self.is_full() {
                return Ok(());
            }
            let (path, other_path) = (one.join(&name), other.join(&name));
            match others.remove(&name) {
                None if self.scope.content_only && is_special(&path)? => {}
                None => self.tell(&path, "only in the first".into()),
                Some(other_is_directory) if is_directory != other_is_directory => {
                    self.tell(&path, "another type".into());
                }
                Some(_) if is_directory => self.directory(&path, &other_path, depth + 1)?,
                Some(_) => self.node(&path, &other_path)?,
            }
        }
        for name in others.keys() {
            self.tell(&other.join(name), "only in the second".into());
        }
        Ok(())
    }

    fn node(&mut self, path: &Path, other: &Path) -> Result<(), String> {
        let at = |error: io::Error| format!("{}: {error}", path.display());
        let (left, right) = (metadata(path)?, metadata(other)?);
        for (what, a, b) in fields(&left, &right, self.scope) {
            if what == "links" && left.is_dir() && self.scope.no_directory_links {
                continue;
            }
            if a != b && (!self.scope.content_only || what == "size") {
                self.tell(path, format!("{what} {a} and {b}"));
            }
        }
        let (a, b) = (xattrs(path).map_err(at)?, xattrs(other).map_err(at)?);
        let is_stripped = self.scope.stripped.contains(&left.ino())
            && b.iter().all(|(name, value)| a.get(name) == Some(value));
        if a != b && !is_stripped && !self.scope.content_only {
            let names = |set: &BTreeMap<Vec<u8>, Vec<u8>>| -> Vec<String> {
                set.keys().map(|name| name.escape_ascii().to_string()).collect()
            };
            self.tell(path, format!("attributes {:?} and {:?}", names(&a), names(&b)));
        }
        if left.is_symlink() {
            let targets = (fs::read_link(path).map_err(at)?, fs::read_link(other).map_err(at)?);
            if targets.0 != targets.1 {
                self.tell(path, format!("target {:?} and {:?}", targets.0, targets.1));
            }
        }
        if left.nlink() > 1 && !left.is_dir() && !self.scope.content_only {
            let id = (right.dev(), right.ino());
            match self.links.insert((left.dev(), left.ino()), id) {
                Some(known) if known != id => {
                    self.tell(path, "is a link to another file".into());
                }
                // Names of one file have one content, which has been compared.
                Some(_) => return Ok(()),
                None => {}
            }
        }
        if left.is_file() && right.is_file() && left.len() == right.len() {
            let length = left.len();
            if let Some(what) = contents(path, other, length).map_err(at)? {
                self.tell(path, what);
            }
        }
        Ok(())
    }
}

/// Neither a file, a directory nor a symbolic link.
fn is_special(path: &Path) -> Result<bool, String> {
    let kind = metadata(path)?.file_type();
    Ok(!kind.is_file() && !kind.is_dir() && !kind.is_symlink())
}

fn metadata(path: &Path) -> Result<Metadata, String> {
    fs::symlink_metadata(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn fields(a: &Metadata, b: &Metadata, scope: Scope<'_>) -> Vec<(&'static str, String, String)> {
    let recovered_after = scope.recovered_after.and_then(|t| t.duration_since(UNIX_EPOCH).ok());
    let recovered_after =
        recovered_after.map(|t| (t.as_secs().cast_signed(), i64::from(t.subsec_nanos())));
    let times = |name, one: (i64, i64), other: (i64, i64)| {
        let shown = |(seconds, nanos): (i64, i64)| format!("{seconds}.{nanos:09}");
        // That of the other may be from its recovery, too, or from before.
        let is_set_anew = scope.no_times || recovered_after.is_some_and(|after| one > after);
        (name, shown(one), shown(if is_set_anew { one } else { other }))
    };
    let modified = |m: &Metadata| (m.mtime(), m.mtime_nsec());
    let mut fields = vec![
        ("mode", format!("{:o}", a.mode()), format!("{:o}", b.mode())),
        ("owner", format!("{}:{}", a.uid(), a.gid()), format!("{}:{}", b.uid(), b.gid())),
        ("links", a.nlink().to_string(), b.nlink().to_string()),
        times("mtime", modified(a), modified(b)),
        ("device", a.rdev().to_string(), b.rdev().to_string()),
    ];
    // The size of a directory is the file system's own affair.
    if !a.is_dir() {
        fields.push(("size", a.len().to_string(), b.len().to_string()));
    }
    if scope.access_times {
        let changed = |m: &Metadata| (m.ctime(), m.ctime_nsec());
        fields.push(times("ctime", changed(a), changed(b)));
        let read = |m: &Metadata| (m.atime(), m.atime_nsec());
        if !a.is_dir() && !a.is_symlink() {
            fields.push(times("atime", read(a), read(b)));
        }
    }
    fields
}

/// Names of a directory, and whether each is a directory.
fn list(folder: &Path, skipped: &str) -> Result<BTreeMap<OsString, bool>, String> {
    let at = |error: io::Error| format!("{}: {error}", folder.display());
    let mut names = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(at)? {
        let entry = entry.map_err(at)?;
        let name = entry.file_name();
        if name == skipped {
            continue;
        }
        let is_directory = entry.file_type().map_err(at)?.is_dir();
        if names.insert(name.clone(), is_directory).is_some() {
            return Err(format!("{}: listed twice", PathBuf::from(name).display()));
        }
    }
    Ok(names)
}

/// Extended attributes of a file, not followed.
///
/// # Errors
/// Those of the system calls.
pub fn xattrs(path: &Path) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut names = vec![0; 64 << 10];
    let len = match rustix::fs::llistxattr(path, &mut names[..]) {
        Ok(len) => len,
        Err(rustix::io::Errno::OPNOTSUPP) => 0,
        Err(error) => return Err(error.into()),
    };
    let mut set = BTreeMap::new();
    let mut value = vec![0; 64 << 10];
    for name in names[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let len = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..])?;
        set.insert(name.to_vec(), value[..len].to_vec());
    }
    Ok(set)
}

/// The first difference of two files of one length; holes on both sides are not read.
fn contents(one: &Path, other: &Path, length: u64) -> io::Result<Option<String>> {
    const STEP: u64 = 1 << 20;
    if length == 0 {
        return Ok(None);
    }
    let (left, right) = (File::open(one)?, File::open(other)?);
    let (mut a, mut b) = (vec![0; STEP as usize], vec![0; STEP as usize]);
    let mut at = 0;
    while at < length {
        at = next_data(&left, at, length)?.min(next_data(&right, at, length)?);
        let count = STEP.min(length - at) as usize;
        left.read_exact_at(&mut a[..count], at)?;
        right.read_exact_at(&mut b[..count], at)?;
        if a[..count] != b[..count] {
            let wrong = a.iter().zip(&b).position(|(a, b)| a != b).unwrap_or(0);
            return Ok(Some(format!("byte {} differs", at + wrong as u64)));
        }
        at += count as u64;
    }
    Ok(None)
}

fn next_data(file: &File, at: u64, length: u64) -> io::Result<u64> {
    use rustix::fs::SeekFrom;
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(data) => Ok(data.min(length)),
        Err(rustix::io::Errno::NXIO) => Ok(length),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    fn make(root: &Path) {
        fs::create_dir(root).unwrap();
        fs::write(root.join("file"), "content").unwrap();
        fs::hard_link(root.join("file"), root.join("same file")).unwrap();
        std::os::unix::fs::symlink("target", root.join("link")).unwrap();
        fs::create_dir(root.join("directory")).unwrap();
        for name in ["file", "directory"] {
            let time = SystemTime::UNIX_EPOCH + Duration::new(4_000_000_000, 5);
            File::open(root.join(name)).unwrap().set_modified(time).unwrap();
        }
        let link = rustix::fs::Timestamps {
            last_access: rustix::fs::Timespec { tv_sec: 1, tv_nsec: 1 },
            last_modification: rustix::fs::Timespec { tv_sec: 1, tv_nsec: 1 },
        };
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::utimensat(rustix::fs::CWD, root.join("link"), &link, flags).unwrap();
    }

    /// Each injected difference must be found: else the trees of a check agree by blindness.
    #[test]
    fn injected_differences_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let one = folder.path().join("one");
        make(&one);
        type Change = (&'static str, fn(&Path));
        let changes: &[Change] = &[
            ("", |_| {}),
            ("byte 3 differs", |root| {
                let file = File::options().write(true).open(root.join("file")).unwrap();
                let time = file.metadata().unwrap().modified().unwrap();
                file.write_all_at(b"T", 3).unwrap();
                file.set_modified(time).unwrap();
            }),
            ("mode", |root| {
                let mode = fs::Permissions::from_mode(0o640);
                fs::set_permissions(root.join("directory"), mode).unwrap();
            }),
            ("mtime", |root| {
                let time = SystemTime::UNIX_EPOCH + Duration::new(4_000_000_000, 6);
                File::open(root.join("file")).unwrap().set_modified(time).unwrap();
            }),
            ("links 2 and 1", |root| {
                fs::remove_file(root.join("same file")).unwrap();
                fs::copy(root.join("file"), root.join("same file")).unwrap();
            }),
            ("another type", |root| {
                fs::remove_dir(root.join("directory")).unwrap();
                fs::write(root.join("directory"), "").unwrap();
            }),
            ("target", |root| {
                fs::remove_file(root.join("link")).unwrap();
                std::os::unix::fs::symlink("tarGet", root.join("link")).unwrap();
            }),
            ("only in the first", |root| fs::remove_file(root.join("link")).unwrap()),
            ("only in the second", |root| fs::write(root.join("new"), "").unwrap()),
        ];
        for (number, (what, change)) in changes.iter().enumerate() {
            let other = folder.path().join(format!("other {number}"));
            make(&other);
            change(&other);
            let found = trees(&one, &other, Scope::default()).unwrap();
            let is_found = found.iter().any(|line| line.contains(what));
            assert_eq!(found.is_empty(), what.is_empty(), "{what}: {found:?}");
            assert!(is_found || what.is_empty(), "{what}: {found:?}");
        }
    }
}
