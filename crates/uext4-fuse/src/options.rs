//! Mount options that belong to the FUSE side; the rest go to the engine.

use std::time::Duration;

use uext4_fuse_server::IoUring;
use uext4_options::{Row, apply, flag, ignored, text};

use crate::attach::{Attached, Connection};
use crate::block::FuseBlk;

/// What is told of a mount that is served; each level has those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// What is lost or refused.
    Error,
    /// What may become an error.
    #[default]
    Warn,
    /// When it begins and ends.
    Info,
    /// What a search for a cause needs.
    Debug,
}

impl LogLevel {
    fn parse(level: &str) -> Option<Self> {
        Some(match level {
            "error" => Self::Error,
            "warn" => Self::Warn,
            "info" => Self::Info,
            "debug" => Self::Debug,
            _ => return None,
        })
    }
}

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
    /// The mount can be bound with other owners (idmapped mounts). The kernel then checks
    /// permissions, and no longer says for whom most requests are.
    pub idmap: bool,
    /// No permission checks at all, as fuse2fs: the mounting user acts as root of the image.
    pub fakeroot: bool,
    /// Enforce and inherit POSIX access control lists; `None`: where the kernel checks permissions.
    /// It then asks once for the list of each file whose permissions it checks.
    pub acl: Option<bool>,
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
    /// Show `strictatime` in the mount table, as the absence of `relatime`.
    pub strict_atime: bool,
    /// All writes are synchronous.
    pub sync: bool,
    /// Directory changes are synchronous.
    pub dir_sync: bool,
    /// The kernel may hold dirty pages. Without it, by default, every write(2) reaches the engine
    /// before it returns, so that errors appear there and not at fsync(2) or close(2).
    pub writeback_cache: bool,
    /// Whether the source is a block device.
    pub fuseblk: FuseBlk,
    /// Whether requests come by io_uring.
    pub io_uring: IoUring,
    /// Threads of `/dev/fuse` to keep; `None` is 4.
    pub threads: Option<usize>,
    /// How long the kernel may keep attributes.
    pub attr_timeout: Duration,
    /// How long the kernel may keep names.
    pub entry_timeout: Duration,
    /// How long the kernel may keep the absence of a name.
    pub negative_timeout: Duration,
    /// Source shown in the mount table; the image's path.
    pub fs_name: String,
    /// What the program tells of a mount while it is served. Nothing here does.
    pub log: LogLevel,
    /// The program confines itself before it serves the mount. Nothing here does.
    pub sandbox: bool,
    /// The mount is there, and this is its connection: nothing is mounted, and the mount's flags
    /// are those that another program has chosen.
    pub connection: Option<Connection>,
    /// What is called when the mount is there, before a thread is started that serves it.
    pub attached: Option<Attached>,
}

/// A day: nothing but this mount changes the image, so the kernel's caches never go stale.
const LONG: Duration = Duration::from_secs(86_400);

impl Default for FuseOptions {
    fn default() -> Self {
        Self {
            allow_other: false,
            default_permissions: false,
            idmap: false,
            fakeroot: false,
            acl: None,
            read_only: false,
            remount: false,
            suid: false,
            dev: false,
            exec: true,
            no_atime: false,
            strict_atime: false,
            sync: false,
            dir_sync: false,
            writeback_cache: false,
            fuseblk: FuseBlk::Auto,
            io_uring: IoUring::Auto,
            threads: None,
            attr_timeout: LONG,
            entry_timeout: LONG,
            negative_timeout: LONG,
            fs_name: "uext4".to_owned(),
            log: LogLevel::default(),
            sandbox: true,
            connection: None,
            attached: None,
        }
    }
}

impl FuseOptions {
    /// Most threads that `threads=` takes.
    pub const THREADS_MAX: usize = 256;

    /// Takes one word of `-o`.
    ///
    /// # Errors
    /// A word of this crate with a bad value, in one line.
    pub fn parse(&mut self, word: &str) -> Result<Word, String> {
        if apply(MOUNT_OPTIONS, self, word).map_err(|error| error.to_string())? {
            return Ok(Word::Taken);
        }
        match word {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "noatime" | "atime" | "relatime" | "strictatime" => {
                self.no_atime = word == "noatime";
                self.strict_atime = word == "strictatime";
            }
            _ => return Ok(Word::Unknown),
        }
        Ok(Word::Shared)
    }

    /// Whether the kernel is to check permissions by owner and mode. It always is where that can
    /// matter. A mount by root that nobody else may enter has nobody to refuse, and the check is
    /// not free: the kernel asks for a directory's attributes again after each change in it.
    #[must_use]
    pub fn kernel_checks(&self, is_root: bool) -> bool {
        let for_root_alone = is_root && !self.allow_other && self.acl != Some(true);
        self.default_permissions || self.idmap || !(self.fakeroot || for_root_alone)
    }

    /// Whether access control lists are enforced.
    #[must_use]
    pub fn enforces_lists(&self, is_root: bool) -> bool {
        self.acl.unwrap_or_else(|| self.kernel_checks(is_root))
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
        if self.fakeroot && self.idmap {
            return Err("mount option 'fakeroot' checks no permissions and cannot go with 'idmap'"
                .to_owned());
        }
        if self.fakeroot && self.acl == Some(true) {
            return Err(
                "mount option 'fakeroot' checks no permissions and cannot go with 'acl'".to_owned()
            );
        }
        if self.writeback_cache && self.strict_atime {
            return Err("mount option 'writeback_cache': not with 'strictatime', which has reads \
                        pass the kernel's cache by: they would miss what it holds"
                .to_owned());
        }
        if (self.suid || self.dev) && !is_root {
            let name = if self.suid { "suid" } else { "dev" };
            return Err(format!("mount option '{name}': only root may give it"));
        }
        if self.fuseblk == FuseBlk::On && !is_root {
            return Err("mount option 'fuseblk=on': only root may give it".to_owned());
        }
        Ok(())
    }

    /// Whether these options, given to a remount, ask for what it cannot change: all but the
    /// kernel's flags. mount(8) repeats the words of the mount table, which are no request.
    #[must_use]
    pub fn exceeds_remount(&self) -> bool {
        let &Self { allow_other, default_permissions, read_only, remount, suid, .. } = self;
        let &Self { dev, exec, no_atime, strict_atime, sync, dir_sync, .. } = self;
        let flags = Self {
            allow_other,
            default_permissions,
            read_only,
            remount,
            suid,
            dev,
            exec,
            no_atime,
            strict_atime,
            sync,
            dir_sync,
            ..Self::default()
        };
        *self != flags
    }

    /// The words of these options that the kernel takes for a new mount alone, and shows in the
    /// mount table where they are in effect.
    pub fn fixed_words(&self) -> impl Iterator<Item = &'static str> {
        let words = [
            (self.allow_other, "allow_other"),
            (self.default_permissions, "default_permissions"),
            (self.dir_sync, "dirsync"),
        ];
        words.into_iter().filter(|(given, _)| *given).map(|(_, word)| word)
    }
}

/// The mount options of the FUSE side alone.
pub const MOUNT_OPTIONS: &[Row<FuseOptions>] = &[
    Row {
        options: &[flag(&["allow_other"], |o| o.allow_other = true)],
        default: "",
        help: "other users may enter",
        more: "",
    },
    Row {
        options: &[flag(&["default_permissions"], |o| o.default_permissions = true)],
        default: "where others may enter",
        help: "the kernel checks owners and modes",
        more: "Always on for ordinary users, `allow_other` and `acl`, less `fakeroot`",
    },
    Row {
        options: &[flag(&["idmap"], |o| o.idmap = true), flag(&["noidmap"], |o| o.idmap = false)],
        default: "noidmap",
        help: "the mount may be bound with other owners",
        more: "Idmapped mounts (mount_setattr(2), `X-mount.idmap` of mount(8)), Linux 6.12. The \
               kernel then checks permissions and no longer says for whom most requests are, so \
               that `/proc` is asked",
    },
    Row {
        options: &[flag(&["fakeroot"], |o| o.fakeroot = true)],
        default: "",
        help: "no permission checks",
        more: "The mounting user works as root of the image; not with `allow_other`",
    },
    Row {
        options: &[
            flag(&["acl"], |o| o.acl = Some(true)),
            flag(&["noacl"], |o| o.acl = Some(false)),
        ],
        default: "where the kernel checks permissions",
        help: "enforce and inherit POSIX access control lists",
        more: "The kernel asks once for the list of each file whose permissions it checks",
    },
    Row {
        options: &[
            flag(&["suid"], |o| o.suid = true),
            flag(&["nosuid"], |o| o.suid = false),
            flag(&["dev"], |o| o.dev = true),
            flag(&["nodev"], |o| o.dev = false),
            flag(&["exec"], |o| o.exec = true),
            flag(&["noexec"], |o| o.exec = false),
        ],
        default: "nosuid, nodev, exec",
        help: "as mount(8)",
        more: "`suid` and `dev` are for root only",
    },
    Row {
        options: &[
            flag(&["sync"], |o| o.sync = true),
            flag(&["async"], |o| o.sync = false),
            flag(&["dirsync"], |o| o.dir_sync = true),
        ],
        default: "async",
        help: "as mount(8)",
        more: "",
    },
    Row {
        options: &[
            flag(&["writeback_cache"], |o| o.writeback_cache = true),
            flag(&["nowriteback_cache"], |o| o.writeback_cache = false),
        ],
        default: "nowriteback_cache",
        help: "whether the kernel may hold dirty pages",
        more: "See below",
    },
    Row {
        options: &[text(&["threads"], "N", |o, threads| match threads.parse() {
            Ok(threads @ 1..=FuseOptions::THREADS_MAX) => {
                o.threads = Some(threads);
                Ok(())
            }
            _ => Err(format!("1 to {} threads", FuseOptions::THREADS_MAX)),
        })],
        default: "4",
        help: "threads of /dev/fuse that are kept",
        more: "1 to 256. More are started for requests that sleep, and end when not needed",
    },
    Row {
        options: &[text(&["fuseblk"], "auto|on|off", |o, how| {
            o.fuseblk = FuseBlk::parse(how).ok_or("auto, on or off")?;
            Ok(())
        })],
        default: "auto",
        help: "whether sync(1) and umount(8) wait until all is durable",
        more: "A mount of type `fuseblk`, with a loop device as its source. `auto`: for root on \
               Linux 6.18 and later, where there are loop devices; `on`: or no mount. See below",
    },
    Row {
        options: &[text(&["io_uring"], "auto|on|off", |o, how| {
            o.io_uring = match how {
                "auto" => IoUring::Auto,
                "on" => IoUring::On,
                "off" => IoUring::Off,
                _ => return Err("auto, on or off".to_owned()),
            };
            Ok(())
        })],
        default: "auto",
        help: "whether requests come by io_uring",
        more: "`auto`: where the kernel offers it, else by /dev/fuse; `on`: or no mount. See below",
    },
    Row {
        options: &[
            text(&["attr_timeout"], "SECONDS", |o, s| seconds(s, &mut o.attr_timeout)),
            text(&["entry_timeout"], "SECONDS", |o, s| seconds(s, &mut o.entry_timeout)),
            text(&["negative_timeout"], "SECONDS", |o, s| seconds(s, &mut o.negative_timeout)),
        ],
        default: "a day",
        help: "how long the kernel keeps attributes, names and missing names",
        more: "A day, because nothing else changes the image",
    },
    Row {
        options: &[text(&["fsname"], "NAME", |o, name| {
            if name.is_empty() {
                return Err("needs a name".to_owned());
            }
            name.clone_into(&mut o.fs_name);
            Ok(())
        })],
        default: "the image",
        help: "source shown in the mount table",
        more: "Of a mount of type `fuseblk` the name of its loop device's memory",
    },
    Row {
        options: &[text(&["log"], "error|warn|info|debug", |o, level| {
            o.log = LogLevel::parse(level).ok_or("error, warn, info or debug")?;
            Ok(())
        })],
        default: "warn",
        help: "what the daemon tells of the mount",
        more: "To standard error in the foreground, else to the system's log; each level has \
               those before it. See docs/system.md",
    },
    Row {
        options: &[
            flag(&["sandbox"], |o| o.sandbox = true),
            flag(&["no_sandbox"], |o| o.sandbox = false),
        ],
        default: "sandbox",
        help: "whether the daemon keeps itself from other files, programs and the network",
        more: "By Landlock and seccomp, as far as the kernel has them. See below",
    },
    Row {
        options: &[flag(&["remount"], |o| o.remount = true)],
        default: "",
        help: "change ro, rw and the flags of a mount that is there",
        more: "Without `ro` the mount becomes writable. `allow_other`, `default_permissions` and \
               `dirsync` are refused where they are not in effect; other words that differ from \
               the defaults are named, and ignored",
    },
    Row {
        options: &[
            flag(&["auto", "noauto", "user", "nouser", "users", "owner", "group"], |_| {}),
            ignored(&["nofail", "_netdev", "subtype", "comment", "helper", "uhelper", "x-..."]),
        ],
        default: "",
        help: "for fstab(5) and mount(8); ignored here",
        more: "",
    },
    Row {
        options: &[
            flag(&["kernel_cache", "big_writes", "splice_read"], |_| {}),
            text(&["user_id", "group_id", "blksize", "max_read"], "N", |_, _| Ok(())),
        ],
        default: "",
        help: "of other FUSE mounts and of the mount table; ignored here",
        more: "",
    },
];

const YEAR: Duration = Duration::from_secs(365 * 86_400);

fn seconds(text: &str, of: &mut Duration) -> Result<(), String> {
    let seconds = text.parse::<f64>().ok();
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    *of = duration
        .filter(|duration| *duration <= YEAR)
        .ok_or("not a number of seconds, 0 to a year")?;
    Ok(())
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
            ("fuseblk=off", Word::Taken),
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
        assert!(options.parse("fuseblk=yes").unwrap_err().contains("auto, on or off"));
        assert!(options.parse("log=loud").unwrap_err().contains("error, warn, info or debug"));
        assert!(options.parse("threads=0").unwrap_err().contains("threads=0"));
        for word in ["attr_timeout=-1", "attr_timeout=soon", "attr_timeout=1e99"] {
            let error = options.parse(word).unwrap_err();
            assert!(
                error.contains(word) && error.contains("not a number of seconds, 0 to a year"),
                "{error}"
            );
        }
    }

    #[test]
    fn no_word_is_in_two_rows() {
        assert!(uext4_options::duplicates(MOUNT_OPTIONS).is_empty());
    }

    #[test]
    fn options_that_need_root_are_refused_to_others() {
        let mut options = FuseOptions::default();
        options.parse("suid").unwrap();
        assert!(options.check(true).is_ok());
        assert!(options.check(false).unwrap_err().contains("suid"));
        let options = FuseOptions { fuseblk: FuseBlk::On, ..FuseOptions::default() };
        assert!(options.check(true).is_ok());
        assert!(options.check(false).unwrap_err().contains("fuseblk=on"));
    }

    #[test]
    fn permissions_are_checked_wherever_somebody_could_be_refused() {
        let root_alone = FuseOptions::default();
        assert!(!root_alone.kernel_checks(true));
        assert!(root_alone.kernel_checks(false));
        for word in ["allow_other", "acl", "default_permissions", "idmap"] {
            let mut options = FuseOptions::default();
            options.parse(word).unwrap();
            assert!(options.kernel_checks(true), "{word}");
        }
        let fakeroot = FuseOptions { fakeroot: true, ..FuseOptions::default() };
        assert!(!fakeroot.kernel_checks(false));
    }

    #[test]
    fn reads_past_the_kernels_cache_do_not_go_with_dirty_pages_there() {
        let mut options = FuseOptions::default();
        for word in ["writeback_cache", "strictatime"] {
            assert!(options.check(true).is_ok());
            options.parse(word).unwrap();
        }
        assert!(options.check(true).unwrap_err().contains("strictatime"));
        options.parse("relatime").unwrap();
        assert!(options.check(true).is_ok());
    }

    #[test]
    fn fakeroot_is_for_one_user() {
        let options = FuseOptions { fakeroot: true, allow_other: true, ..FuseOptions::default() };
        assert!(options.check(true).is_err());
        let options = FuseOptions { fakeroot: true, idmap: true, ..FuseOptions::default() };
        assert!(options.check(true).is_err());
    }
}
