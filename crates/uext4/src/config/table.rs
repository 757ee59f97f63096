//! The mount options of the engine: each row is an option with its words, default, documentation
//! and effect. `uext4 mount --help`, the manual page and the table in docs/mount.md come from here.

use super::{
    Atime, CheckpointMode, CreditMode, DataMode, DaxMode, DaxOverwrite, DioCompletion, FreeMode,
    FsyncBatch, JoinMode, MountOptions, OnError, StreamGoal, WritebackMode,
};
use crate::crypt::MasterKey;
use uext4_options::{Row, flag, one_of, text, whole};

/// Options that a user may want.
pub const OPTIONS: &[Row<MountOptions>] = &[
    Row {
        options: &[
            flag(&["ro"], |o| o.read_only = true),
            flag(&["rw"], |o| o.read_only = false),
            flag(&["defaults"], |_| {}),
        ],
        default: "rw",
        help: "read-only, or not",
        more: "With `ro` the image is opened read-only and never written",
    },
    Row {
        options: &[
            flag(&["noatime"], |o| o.atime = Atime::None),
            flag(&["relatime", "atime"], |o| o.atime = Atime::Relative),
            flag(&["strictatime"], |o| o.atime = Atime::Strict),
            flag(&["nodiratime"], |o| o.nodiratime = true),
            flag(&["diratime"], |o| o.nodiratime = false),
        ],
        default: "relatime",
        help: "when reading updates the access time",
        more: "`noatime`: never; `relatime`: when it is older than the last change or than a day; \
               `strictatime`: always; `nodiratime`: never that of a directory. With `strictatime` \
               each read(2), readlink(2) and getdents(2) is a request: the kernel's cache of \
               pages, links and listings serves mappings and sendfile(2) alone",
    },
    Row {
        options: &[text(&["key"], "FILE", key)],
        default: "none",
        help: "a key of encrypted files; may be given more than once",
        more: "32 to 64 bytes, as they are. `key=DESCRIPTOR:FILE`, with 16 hexadecimal digits, is \
               a key of policies of version 1 that name it so. Without its key a file's name is \
               shown encoded, and it can be removed and not read (docs/encryption.md)",
    },
    Row {
        options: &[
            text(&["journal_path"], "PATH", journal_path),
            text(&["journal_dev"], "NUMBER", journal_dev),
        ],
        default: "none",
        help: "the device that has the journal, if that is not the file system's",
        more: "A file, a block device or a partition of a file, which must be the journal of this \
               file system and of no other; not a partition of the file that has the file system. \
               `journal_dev=` is a number of a block device, as the kernel takes it. Without the \
               option such a file system is read-only (docs/journal.md)",
    },
    Row {
        options: &[text(&["commit"], "SECONDS", commit)],
        default: "5",
        help: "a running transaction is committed after this time",
        more: "At most 900; 0 means the default, as in ext4",
    },
    Row {
        options: &[one_of(
            &["errors"],
            &[
                ("continue", |o| o.errors = Some(OnError::Continue)),
                ("remount-ro", |o| o.errors = Some(OnError::RemountReadOnly)),
                ("panic", |o| o.errors = Some(OnError::Panic)),
            ],
        )],
        default: "as the superblock says",
        help: "what a corrupt structure does to the mount",
        more: "`panic` ends the mounting process, and the image needs recovery",
    },
    Row {
        options: &[one_of(
            &["data"],
            &[
                ("ordered", |o| o.data_mode = DataMode::Ordered),
                ("writeback", |o| o.data_mode = DataMode::Writeback),
                ("journal", |o| o.data_mode = DataMode::Journal),
            ],
        )],
        default: "ordered",
        help: "order of data and metadata",
        more: "`ordered`: data is on the device before the metadata that makes it reachable. \
               `writeback` does the same here, and allows `journal_async_commit`. `journal`: data \
               goes through the journal with its mapping, so a crash shows a write whole or not at \
               all (docs/durability.md, D29); data is written twice, blocks are allocated at \
               write(2), `delalloc` given by name is refused, `writeback=` has no effect. `chattr \
               +j`, set by another tool, does the same for one file or directory",
    },
    Row {
        options: &[
            text(&["min_batch_time"], "US", |o, us| batch_time(us, &mut o.min_batch_time_us)),
            text(&["max_batch_time"], "US", |o, us| batch_time(us, &mut o.max_batch_time_us)),
        ],
        default: "0, 15000",
        help: "how long a commit waits for more syncs",
        more: "Where several threads sync, a commit waits the average time of a commit for more of \
               them, within these bounds in microseconds. `max_batch_time=0`: it never waits",
    },
    Row {
        options: &[
            one_of(&["barrier"], &[("0", |o| o.barrier = false), ("1", |o| o.barrier = true)]),
            flag(&["barrier"], |o| o.barrier = true),
            flag(&["nobarrier"], |o| o.barrier = false),
        ],
        default: "1",
        help: "flush the device where the format needs it",
        more: "Without, a crash of the machine may corrupt the file system",
    },
    Row {
        options: &[flag(&["journal_async_commit"], |o| o.journal_async_commit = true)],
        default: "",
        help: "write the commit block together with its transaction",
        more: "Not with `data=ordered`; see D32 of docs/durability.md",
    },
    Row {
        options: &[flag(&["norecovery", "noload"], |o| o.no_recovery = true)],
        default: "",
        help: "do not replay the journal (with ro)",
        more: "Refused without `ro` where the journal needs a replay",
    },
    Row {
        options: &[
            flag(&["delalloc"], |o| (o.delalloc, o.delalloc_given) = (true, true)),
            flag(&["nodelalloc"], |o| (o.delalloc, o.delalloc_given) = (false, false)),
        ],
        default: "delalloc",
        help: "allocate blocks at writeback, or at write(2)",
        more: "At write(2) they are allocated unwritten, and writeback converts them",
    },
    Row {
        options: &[
            flag(&["auto_da_alloc"], |o| o.auto_da_alloc = true),
            flag(&["noauto_da_alloc"], |o| o.auto_da_alloc = false),
        ],
        default: "auto_da_alloc",
        help: "data first where a file is replaced",
        more: "A file is replaced by rename, or by truncation, writing and close",
    },
    Row {
        options: &[
            flag(&["discard"], |o| o.discard = true),
            flag(&["nodiscard"], |o| o.discard = false),
        ],
        default: "nodiscard",
        help: "discard freed blocks on the device",
        more: "Blocks are discarded when their freeing is durable, before they are used again. \
               `fstrim` from time to time is cheaper",
    },
    Row {
        options: &[text(&["extent_max_zeroout_kb"], "KIB", extent_max_zeroout)],
        default: "32",
        help: "longest unwritten neighbour of a write that is zeroed",
        more: "A longer one is split off. It has no effect with `journal_async_commit`, nor with \
               another `writeback=` than `mapped`",
    },
    Row {
        options: &[
            text(&["mb_stream_req"], "N", |o, n| number(n, &mut o.alloc.stream_req)),
            text(&["mb_group_prealloc"], "N", |o, n| number(n, &mut o.alloc.group_prealloc)),
            text(&["mb_max_to_scan"], "N", |o, n| number(n, &mut o.alloc.max_to_scan)),
            text(&["mb_min_to_scan"], "N", |o, n| number(n, &mut o.alloc.min_to_scan)),
            text(&["mb_order2_req"], "ORDER", |o, n| order(n, &mut o.alloc.order2_req)),
            text(&["mb_best_avail_max_trim_order"], "ORDER", |o, n| {
                order(n, &mut o.alloc.best_avail_max_trim_order)
            }),
            text(&["mb_max_linear_groups"], "N", |o, n| number(n, &mut o.alloc.max_linear_groups)),
            text(&["mb_node_pool"], "N", |o, n| number(n, &mut o.alloc.node_pool)),
            text(&["stripe"], "BLOCKS", |o, n| number(n, &mut o.alloc.stripe)),
        ],
        default: "16, 512, 200, 10, 2, 3, 4, 4096, 0",
        help: "the block allocator, by the kernel's names in /sys/fs/ext4",
        more: "See [allocation.md](allocation.md)",
    },
    Row {
        options: &[
            one_of(
                &["dax"],
                &[
                    ("always", |o| (o.dax, o.dax_given) = (DaxMode::Always, true)),
                    ("inode", |o| (o.dax, o.dax_given) = (DaxMode::Inode, true)),
                    ("never", |o| (o.dax, o.dax_given) = (DaxMode::Never, true)),
                ],
            ),
            flag(&["dax"], |o| (o.dax, o.dax_given) = (DaxMode::Always, true)),
        ],
        default: "inode",
        help: "which files are used without the page cache",
        more: "Where the device is byte-addressable: all, those with the DAX flag, or none, \
               and none on a file system with `mmp`, where `always` is refused; `dax` \
               is `dax=always`. Given by name, `always` and `inode` map the image, which must lie \
               on tmpfs, hugetlbfs or a file system with DAX, and give it storage for all of it \
               first (`ENOSPC` if there is none); `always` is refused elsewhere and with \
               `data=journal`, `inode` goes on without ([direct-io.md](direct-io.md))",
    },
    Row {
        options: &[text(&["cache"], "SIZE", cache)],
        default: "256M",
        help: "budget of the page cache and the metadata cache",
        more: "8M to 16T",
    },
    Row {
        options: &[
            flag(&["grpid", "bsdgroups"], |o| o.parent_group = true),
            flag(&["nogrpid", "sysvgroups"], |o| o.parent_group = false),
        ],
        default: "nogrpid",
        help: "the group of a new file: its directory's, or its maker's",
        more: "With `nogrpid` a directory with set-group-id hands its group on, and its bit to new \
               directories; with `grpid` every directory hands on its group, none its bit",
    },
    Row {
        options: &[
            text(&["resuid"], "UID", |o, id| owner(id, &mut o.reserve_uid)),
            text(&["resgid"], "GID", |o, id| owner(id, &mut o.reserve_gid)),
        ],
        default: "as the superblock says",
        help: "the user and the group who may use the blocks reserved for root, beside root",
        more: "Group 0 is nobody's. The superblock stays as it is. Where a group is named, each \
               request that may need blocks looks the caller's groups up in `/proc`",
    },
    Row {
        options: &[text(&["mmp_node"], "NAME", mmp_node)],
        default: "the host's name",
        help: "how other hosts know this one (`mmp`)",
        more: "At most 64 bytes. A file system with `mmp` is claimed before it is changed, which \
               takes a second, or a little more than twice its check interval where a host has not \
               released it (docs/durability.md, D45)",
    },
    Row {
        options: &[
            flag(&["bsddf"], |o| o.minix_df = false),
            flag(&["minixdf"], |o| o.minix_df = true),
        ],
        default: "bsddf",
        help: "the size that df(1) shows: without, or with what the file system itself takes",
        more: "",
    },
    Row {
        options: &[
            flag(&["usrquota", "quota"], |o| o.quota_limits[0] = true),
            flag(&["grpquota"], |o| o.quota_limits[1] = true),
            flag(&["prjquota"], |o| o.quota_limits[2] = true),
            flag(&["noquota"], |o| o.quota_limits = [false; 3]),
        ],
        default: "noquota",
        help: "enforce the limits of users, of groups, of projects; of none",
        more: "The file system needs the feature `quota`; usage is counted with it in any case. \
               Root, and who may use the blocks reserved for root, is not limited",
    },
    Row {
        options: &[flag(&["dioread_nolock", "dioread_lock"], |o| {
            o.writeback = WritebackMode::Mapped;
        })],
        default: "",
        help: "the kernel's two ways of writeback; both are `writeback=mapped` here",
        more: "",
    },
];

/// Options that exist for comparison alone: each switches on what the engine is built to avoid.
pub const ABLATION: &[Row<MountOptions>] = &[
    Row {
        options: &[one_of(
            &["writeback"],
            &[
                ("mapped", |o| o.writeback = WritebackMode::Mapped),
                ("ordered", |o| o.writeback = WritebackMode::Ordered),
                ("unwritten", |o| o.writeback = WritebackMode::Unwritten),
            ],
        )],
        default: "mapped",
        help: "when delayed data is mapped",
        more: "`mapped`: after the data is on the device; `ordered`: before, and the commit writes \
               the data; `unwritten`: before, as unwritten extents that a reserved handle converts",
    },
    Row {
        options: &[one_of(
            &["journal_join"],
            &[
                ("fifo", |o| o.journal_join = JoinMode::Fifo),
                ("herd", |o| o.journal_join = JoinMode::Herd),
            ],
        )],
        default: "fifo",
        help: "how handles wait for credits",
        more: "`fifo`: in order of arrival; `herd`: all are woken at each opportunity and try \
               again",
    },
    Row {
        options: &[one_of(
            &["journal_credits"],
            &[
                ("exact", |o| o.journal_credits = CreditMode::Exact),
                ("worst", |o| o.journal_credits = CreditMode::Worst),
            ],
        )],
        default: "exact",
        help: "how many credits a handle asks for",
        more: "`exact`: for the tree as it is; `worst`: for the worst tree, as a handle of the \
               kernel",
    },
    Row {
        options: &[one_of(
            &["checkpoint"],
            &[
                ("background", |o| o.checkpoint = CheckpointMode::Background),
                ("inline", |o| o.checkpoint = CheckpointMode::Inline),
            ],
        )],
        default: "background",
        help: "which thread frees log space",
        more: "`background`: one of its own; `inline`: the one that finds no room",
    },
    Row {
        options: &[one_of(
            &["fsync_batch"],
            &[
                ("single", |o| o.fsync_batch = FsyncBatch::Single),
                ("rescan", |o| o.fsync_batch = FsyncBatch::Rescan),
            ],
        )],
        default: "single",
        help: "what concurrent syncs of one file do",
        more: "`single`: they share writeback passes; `rescan`: each makes its own, 15 pages at a \
               time, and looks again",
    },
    Row {
        options: &[one_of(
            &["dio_completion"],
            &[
                ("inline", |o| o.dio_completion = DioCompletion::Inline),
                ("deferred", |o| o.dio_completion = DioCompletion::Deferred),
            ],
        )],
        default: "inline",
        help: "where a queued direct overwrite completes",
        more: "`inline`: where it is reaped; `deferred`: on a worker thread \
               ([direct-io.md](direct-io.md)). A mount has no queue; this is for programs that \
               embed the engine",
    },
    Row {
        options: &[one_of(
            &["dax_overwrite"],
            &[
                ("direct", |o| o.dax_overwrite = DaxOverwrite::Direct),
                ("journal", |o| o.dax_overwrite = DaxOverwrite::Journal),
            ],
        )],
        default: "direct",
        help: "whether a DAX overwrite starts a handle",
        more: "",
    },
    Row {
        options: &[
            one_of(
                &["mb_optimize_scan"],
                &[
                    ("0", |o| o.alloc.ablation.optimize_scan = false),
                    ("1", |o| o.alloc.ablation.optimize_scan = true),
                ],
            ),
            one_of(
                &["mb_trylock"],
                &[
                    ("0", |o| o.alloc.ablation.trylock = false),
                    ("1", |o| o.alloc.ablation.trylock = true),
                ],
            ),
            one_of(
                &["mb_stream_goal"],
                &[
                    ("inode", |o| o.alloc.ablation.stream_goal = StreamGoal::Inode),
                    ("global", |o| o.alloc.ablation.stream_goal = StreamGoal::Global),
                ],
            ),
            one_of(
                &["mb_free"],
                &[
                    ("sharded", |o| o.alloc.ablation.free = FreeMode::Sharded),
                    ("global", |o| o.alloc.ablation.free = FreeMode::Global),
                ],
            ),
            one_of(
                &["mb_reserve"],
                &[
                    ("on", |o| o.alloc.ablation.preallocate = true),
                    ("off", |o| o.alloc.ablation.preallocate = false),
                ],
            ),
        ],
        default: "1, 1, inode, sharded, on",
        help: "what the block allocator avoids, one by one",
        more: "Scans of all groups, waits for a busy group, one goal for all streams, one lock for \
               all frees, no preallocation: see [allocation.md](allocation.md)",
    },
];

fn mmp_node(options: &mut MountOptions, name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > 64 {
        return Err("want a name of at most 64 bytes".to_owned());
    }
    options.mmp_node = Some(name.to_owned());
    Ok(())
}

fn owner(id: &str, of: &mut Option<u32>) -> Result<(), String> {
    // The largest is nobody's number.
    let id = whole(id, 0..=u64::from(u32::MAX) - 1, "")?;
    *of = u32::try_from(id).ok();
    Ok(())
}

fn commit(options: &mut MountOptions, seconds: &str) -> Result<(), String> {
    let seconds = whole(seconds, 0..=900, "seconds")?;
    // As ext4: 0 means the default.
    options.commit_interval_ms = if seconds == 0 { 5_000 } else { seconds * 1_000 };
    Ok(())
}

/// Largest cache: more memory than a machine has today.
const CACHE_BYTES_MAX: u64 = 16 << 40;

fn key(options: &mut MountOptions, name: &str) -> Result<(), String> {
    options.keys.push(MasterKey::from_file(name)?);
    Ok(())
}

fn journal_path(options: &mut MountOptions, path: &str) -> Result<(), String> {
    if path.is_empty() {
        return Err("names no device".to_owned());
    }
    options.journal_path = Some(path.into());
    Ok(())
}

/// The number is of 32 bits: 12 bits of the major one above the low 8 of the minor one.
fn journal_dev(options: &mut MountOptions, number: &str) -> Result<(), String> {
    let parsed = match number.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => number.parse(),
    };
    let number = parsed.map_err(|_| "not a number of a device".to_owned())?;
    let (major, minor) = (number >> 8 & 0xfff, number & 0xff | number >> 12 & 0xf_ff00);
    options.journal_path = Some(format!("/dev/block/{major}:{minor}").into());
    Ok(())
}

fn cache(options: &mut MountOptions, size: &str) -> Result<(), String> {
    let bytes = parse_size(size).ok_or("not a size (like 64M)")?;
    if !(MountOptions::CACHE_BYTES_MIN..=CACHE_BYTES_MAX).contains(&bytes) {
        return Err("8M to 16T".to_owned());
    }
    options.cache_bytes = bytes;
    Ok(())
}

/// Bytes of the longest extent that may be unwritten, with blocks of 4 KiB.
const ZEROOUT_KIB_MAX: u64 = 128 << 10;

fn extent_max_zeroout(options: &mut MountOptions, kib: &str) -> Result<(), String> {
    options.extent_max_zeroout = narrow(whole(kib, 0..=ZEROOUT_KIB_MAX, "KiB")?) * 1024;
    Ok(())
}

/// Longest wait of a commit for more syncs: a minute.
const BATCH_US_MAX: u64 = 60_000_000;

fn batch_time(us: &str, of: &mut u32) -> Result<(), String> {
    *of = narrow(whole(us, 0..=BATCH_US_MAX, "microseconds")?);
    Ok(())
}

/// Largest number of blocks or groups: 16 TiB of blocks of 4 KiB would be more.
const NUMBER_MAX: u64 = i32::MAX as u64;

fn number(value: &str, of: &mut u32) -> Result<(), String> {
    *of = narrow(whole(value, 0..=NUMBER_MAX, "")?);
    Ok(())
}

/// Largest order of a request: more blocks than a group has.
const ORDER_MAX: u64 = 16;

fn order(value: &str, of: &mut u32) -> Result<(), String> {
    *of = narrow(whole(value, 0..=ORDER_MAX, "")?);
    Ok(())
}

/// A number whose range was checked.
fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Bytes of `size` with an optional suffix K, M, G or T (powers of 1024). Sizes above any limit
/// are the largest number.
fn parse_size(size: &str) -> Option<u64> {
    let (digits, shift) = match size.as_bytes().last()? {
        b'k' | b'K' => (&size[..size.len() - 1], 10),
        b'm' | b'M' => (&size[..size.len() - 1], 20),
        b'g' | b'G' => (&size[..size.len() - 1], 30),
        b't' | b'T' => (&size[..size.len() - 1], 40),
        _ => (size, 0),
    };
    let all_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    all_digits
        .then(|| digits.parse::<u64>().map_or(u64::MAX, |size| size.saturating_mul(1 << shift)))
}
