//! Mount options that belong to the FUSE side; the rest go to the engine.

use std::time::Duration;

/// What [`FuseOptions::parse`] did with a word of `-o`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Taken here; the engine must not see it.
    Taken,
    /// Noted here, and the engine must see it too (`ro`, `noatime`, ...).
    Shared,
    /// Not of this crate.
    Unknown,
}

/// Options of the mount itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FuseOptions {
    /// Users other than the mounting one may enter (the kernel allows this to root, and to others
    /// when `/etc/fuse.conf` has `user_allow_other`).
    pub allow_other: bool,
    /// The kernel checks permissions even where only root may enter.
    pub default_permissions: bool,
    /// No permission checks at all, as fuse2fs: the mounting user acts as root of the image.
    pub fakeroot: bool,
    /// Enforce and inherit POSIX access control lists. Off by default, as in fuse2fs: the kernel
    /// then asks for the list of every file whose permissions it checks.
    pub acl: bool,
    /// Read-only mount.
    pub read_only: bool,
    /// Change the flags of a mount that is there (mount(8) `-o remount`).
    pub remount: bool,
    /// Honour set-user-id and set-group-id bits (root only).
    pub suid: bool,
    /// Honour device nodes (root only).
    pub dev: bool,
    /// Allow programs to be run.
    pub exec: bool,
    /// Show `noatime` in the mount table.
    pub no_atime: bool,
    /// All writes are synchronous.
    pub sync: bool,
    /// Directory changes are synchronous.
    pub dir_sync: bool,
    /// The kernel may hold dirty pages. Without it, by default, every write(2) reaches the engine
    /// before it returns, so that errors appear there and not at fsync(2) or close(2).
    pub writeback_cache: bool,
    /// Worker threads; `None` picks by the number of processors.
    pub threads: Option<usize>,
    /// How long the kernel may keep attributes.
    pub attr_timeout: Duration,
    /// How long the kernel may keep names.
    pub entry_timeout: Duration,
    /// How long the kernel may keep the absence of a name.
    pub negative_timeout: Duration,
    /// Source shown in the mount table; the image's path.
    pub fs_name: String,
}

/// A day: nothing but this mount changes the image, so the kernel's caches never go stale.
const LONG: Duration = Duration::from_secs(86_400);

impl Default for FuseOptions {
    fn default() -> Self {
        Self {
            allow_other: false,
            default_permissions: false,
            fakeroot: false,
            acl: false,
            read_only: false,
            remount: false,
            suid: false,
            dev: false,
            exec: true,
            no_atime: false,
            sync: false,
            dir_sync: false,
            writeback_cache: false,
            threads: None,
            attr_timeout: LONG,
            entry_timeout: LONG,
            negative_timeout: LONG,
            fs_name: "uext4".to_owned(),
        }
    }
}

impl FuseOptions {
    /// Most worker threads that `threads=` takes.
    pub const THREADS_MAX: usize = 256;

    /// Takes one word of `-o`.
    ///
    /// # Errors
    /// A word of this crate with a bad value, in one line.
    pub fn parse(&mut self, word: &str) -> Result<Word, String> {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        match (name, value) {
            ("allow_other", None) => self.allow_other = true,
            ("default_permissions", None) => self.default_permissions = true,
            ("kernel_cache" | "big_writes" | "splice_read", None) => {}
            ("fakeroot", None) => self.fakeroot = true,
            ("acl", None) => self.acl = true,
            ("noacl", None) => self.acl = false,
            ("suid", None) => self.suid = true,
            ("nosuid", None) => self.suid = false,
            ("dev", None) => self.dev = true,
            ("nodev", None) => self.dev = false,
            ("exec", None) => self.exec = true,
            ("noexec", None) => self.exec = false,
            ("sync", None) => self.sync = true,
            ("async", None) => self.sync = false,
            ("dirsync", None) => self.dir_sync = true,
            ("writeback_cache", None) => self.writeback_cache = true,
            ("nowriteback_cache", None) => self.writeback_cache = false,
            ("threads", Some(value)) => self.threads = Some(parse_threads(word, value)?),
            ("attr_timeout", Some(value)) => self.attr_timeout = parse_seconds(word, value)?,
            ("entry_timeout", Some(value)) => self.entry_timeout = parse_seconds(word, value)?,
            ("negative_timeout", Some(value)) => {
                self.negative_timeout = parse_seconds(word, value)?;
            }
            ("remount", None) => self.remount = true,
            // Of the mount table, handed back by mount(8) on a remount.
            ("user_id" | "group_id" | "blksize" | "max_read", Some(_)) => {}
            ("fsname", Some(value)) => value.clone_into(&mut self.fs_name),
            // What mount(8) and fstab(5) keep for themselves.
            ("auto" | "noauto" | "user" | "nouser" | "users" | "owner" | "group", None)
            | ("nofail" | "_netdev" | "subtype" | "comment", _) => {}
            _ if name.starts_with("x-") => {}
            ("ro", None) => {
                self.read_only = true;
                return Ok(Word::Shared);
            }
            ("rw", None) => {
                self.read_only = false;
                return Ok(Word::Shared);
            }
            ("noatime", None) => {
                self.no_atime = true;
                return Ok(Word::Shared);
            }
            ("atime" | "relatime" | "strictatime", None) => {
                self.no_atime = false;
                return Ok(Word::Shared);
            }
            _ => return Ok(Word::Unknown),
        }
        Ok(Word::Taken)
    }

    /// Whether the kernel is to check permissions by owner and mode. It always is where that can
    /// matter. A mount by root that nobody else may enter has nobody to refuse, and the check is
    /// not free: the kernel asks for a directory's attributes again after each change in it.
    #[must_use]
    pub fn kernel_checks(&self, is_root: bool) -> bool {
        let for_root_alone = is_root && !self.allow_other && !self.acl;
        self.default_permissions || !(self.fakeroot || for_root_alone)
    }

    /// Whether the words fit together and fit the user.
    ///
    /// # Errors
    /// One line that says which do not.
    pub fn check(&self, is_root: bool) -> Result<(), String> {
        if self.fakeroot && self.allow_other {
            return Err("mount option 'fakeroot' checks no permissions and cannot go with \
                        'allow_other'"
                .to_owned());
        }
        if self.fakeroot && self.acl {
            return Err(
                "mount option 'fakeroot' checks no permissions and cannot go with 'acl'".to_owned()
            );
        }
        if (self.suid || self.dev) && !is_root {
            let name = if self.suid { "suid" } else { "dev" };
            return Err(format!("mount option '{name}': only root may give it"));
        }
        Ok(())
    }

    /// Worker threads to start. More than processors: a worker that waits for a commit must not
    /// keep others from joining that commit. Those that nobody needs rest (see `crew`). At least
    /// two: the last one never waits but hands its requests over (see `overflow`).
    #[must_use]
    pub fn worker_threads(&self) -> usize {
        let by_processors = || {
            let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
            (4 * processors).clamp(16, 64)
        };
        self.threads.unwrap_or_else(by_processors).max(2)
    }
}

fn parse_threads(word: &str, value: &str) -> Result<usize, String> {
    match value.parse() {
        Ok(threads @ 1..=FuseOptions::THREADS_MAX) => Ok(threads),
        _ => Err(format!("mount option '{word}': 1 to {} threads", FuseOptions::THREADS_MAX)),
    }
}

fn parse_seconds(word: &str, value: &str) -> Result<Duration, String> {
    value
        .parse::<f64>()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| format!("mount option '{word}': not a number of seconds"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_go_where_they_belong() {
        let mut options = FuseOptions::default();
        for (word, goes) in [
            ("allow_other", Word::Taken),
            ("nowriteback_cache", Word::Taken),
            ("threads=3", Word::Taken),
            ("x-systemd.automount", Word::Taken),
            ("ro", Word::Shared),
            ("noatime", Word::Shared),
            ("commit=5", Word::Unknown),
            ("frobnicate", Word::Unknown),
        ] {
            assert_eq!(options.parse(word), Ok(goes), "{word}");
        }
        assert!(options.allow_other && options.read_only && !options.writeback_cache);
        assert_eq!(options.threads, Some(3));
    }

    #[test]
    fn bad_values_are_named() {
        let mut options = FuseOptions::default();
        assert!(options.parse("threads=0").unwrap_err().contains("threads=0"));
        assert!(options.parse("attr_timeout=-1").unwrap_err().contains("attr_timeout=-1"));
    }

    #[test]
    fn options_that_need_root_are_refused_to_others() {
        let mut options = FuseOptions::default();
        options.parse("suid").unwrap();
        assert!(options.check(true).is_ok());
        assert!(options.check(false).unwrap_err().contains("suid"));
    }

    #[test]
    fn permissions_are_checked_wherever_somebody_could_be_refused() {
        let root_alone = FuseOptions::default();
        assert!(!root_alone.kernel_checks(true));
        assert!(root_alone.kernel_checks(false));
        for word in ["allow_other", "acl", "default_permissions"] {
            let mut options = FuseOptions::default();
            options.parse(word).unwrap();
            assert!(options.kernel_checks(true), "{word}");
        }
        let fakeroot = FuseOptions { fakeroot: true, ..FuseOptions::default() };
        assert!(!fakeroot.kernel_checks(false));
    }

    #[test]
    fn fakeroot_is_for_one_user() {
        let options = FuseOptions { fakeroot: true, allow_other: true, ..FuseOptions::default() };
        assert!(options.check(true).is_err());
    }
}
