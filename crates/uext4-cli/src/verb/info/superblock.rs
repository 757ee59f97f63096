//! The superblock, row by row in the words of dumpe2fs.

use uext4_ondisk::features::external_journal;
use uext4_ondisk::superblock::{
    DEFAULT_MOUNT_WORDS, ERRORS_CONTINUE, ERRORS_PANIC, ERRORS_RO, FLAG_SIGNED_HASH,
    FLAG_UNSIGNED_HASH, STATE_ERROR, STATE_VALID,
};
use uext4_ondisk::{Compat, Incompat, Layout, RawSuperblock, RoCompat};

use super::{Rows, field, or, time, uuid};

/// The bits of `s_default_mount_opts` that are one number, the mode of the journal.
const JOURNAL_MODE: u32 = 0x60;

/// Every row that dumpe2fs has of a superblock.
pub(super) fn rows(sb: &RawSuperblock, layout: &Layout) -> Rows {
    let flags = sb.s_flags.get();
    let hash_flags = words(&[
        (flags & FLAG_SIGNED_HASH != 0, "signed_directory_hash"),
        (flags & FLAG_UNSIGNED_HASH != 0, "unsigned_directory_hash"),
    ]);
    let at = |lo, hi| time(RawSuperblock::time(lo, hi));
    let revision = match sb.s_rev_level.get() {
        0 => "0 (original)".to_owned(),
        1 => "1 (dynamic)".to_owned(),
        other => format!("{other} (unknown)"),
    };
    // -1, stored unsigned, is never.
    let max_mounts = match sb.s_max_mnt_count.get() {
        0xffff => "-1".to_owned(),
        count => count.to_string(),
    };
    let interval = match sb.s_checkinterval.get() {
        0 => "0 (<none>)".to_owned(),
        seconds => format!("{seconds} ({} days)", seconds / 86_400),
    };
    let mut rows: Rows = vec![
        ("Filesystem volume name", or(field(&sb.s_volume_name), "<none>")),
        ("Last mounted on", or(field(&sb.s_last_mounted), "<not available>")),
        ("Filesystem UUID", uuid(sb.s_uuid)),
        ("Filesystem magic number", format!("0x{:04X}", sb.s_magic.get())),
        ("Filesystem revision #", revision),
        ("Filesystem features", or(layout.features.names().join(" "), "(none)")),
        ("Filesystem flags", hash_flags),
        ("Default mount options", mount_options(sb)),
    ];
    let mount_opts = field(&sb.s_mount_opts);
    if !mount_opts.is_empty() {
        rows.push(("Mount options", mount_opts));
    }
    rows.extend([
        ("Filesystem state", state(sb)),
        ("Errors behavior", errors(sb)),
        ("Filesystem OS type", os_name(sb)),
        ("Inode count", layout.inodes_count.to_string()),
        ("Block count", layout.blocks_count.to_string()),
        ("Reserved block count", sb.reserved_blocks_count().to_string()),
        ("Overhead clusters", sb.s_overhead_clusters.get().to_string()),
        ("Free blocks", sb.free_blocks_count().to_string()),
        ("Free inodes", sb.s_free_inodes_count.get().to_string()),
        ("First block", layout.first_data_block.to_string()),
        ("Block size", layout.block_size.to_string()),
    ]);
    let has_clusters = layout.features.ro_compat.contains(RoCompat::BIGALLOC);
    rows.push(match has_clusters {
        true => ("Cluster size", (layout.block_size * layout.cluster_blocks).to_string()),
        false => ("Fragment size", layout.block_size.to_string()),
    });
    if layout.features.incompat.contains(Incompat::BIT64) {
        rows.push(("Group descriptor size", layout.desc_size.to_string()));
    }
    if layout.reserved_gdt_blocks != 0 {
        rows.push(("Reserved GDT blocks", layout.reserved_gdt_blocks.to_string()));
    }
    rows.extend([
        ("Blocks per group", layout.blocks_per_group.to_string()),
        (
            if has_clusters { "Clusters per group" } else { "Fragments per group" },
            layout.clusters_per_group.to_string(),
        ),
        ("Inodes per group", layout.inodes_per_group.to_string()),
        ("Inode blocks per group", layout.inode_table_blocks().to_string()),
    ]);
    for (name, blocks) in [
        ("RAID stride", sb.s_raid_stride.get().into()),
        ("RAID stripe width", sb.s_raid_stripe_width.get()),
    ] {
        if blocks != 0 {
            rows.push((name, blocks.to_string()));
        }
    }
    if layout.groups_per_flex > 1 {
        rows.push(("Flex block group size", layout.groups_per_flex.to_string()));
    }
    rows.extend([
        ("Filesystem created", at(sb.s_mkfs_time, sb.s_mkfs_time_hi)),
        ("Last mount time", at(sb.s_mtime, sb.s_mtime_hi)),
        ("Last write time", at(sb.s_wtime, sb.s_wtime_hi)),
        ("Mount count", sb.s_mnt_count.get().to_string()),
        ("Maximum mount count", max_mounts),
        ("Last checked", at(sb.s_lastcheck, sb.s_lastcheck_hi)),
        ("Check interval", interval),
    ]);
    if sb.s_checkinterval.get() != 0 {
        let checked = RawSuperblock::time(sb.s_lastcheck, sb.s_lastcheck_hi);
        let next = checked.saturating_add(sb.s_checkinterval.get().into());
        rows.push(("Next check after", time(next)));
    }
    rows.extend([
        ("Lifetime writes", format!("{} kB", sb.s_kbytes_written.get())),
        ("Reserved blocks uid", owner(sb.s_def_resuid.get(), "user")),
        ("Reserved blocks gid", owner(sb.s_def_resgid.get(), "group")),
        ("First inode", layout.first_ino.to_string()),
        ("Inode size", layout.inode_size.to_string()),
    ]);
    if layout.inode_size > 128 {
        rows.push(("Required extra isize", sb.s_min_extra_isize.get().to_string()));
        rows.push(("Desired extra isize", sb.s_want_extra_isize.get().to_string()));
    }
    if sb.s_journal_inum.get() != 0 {
        rows.push(("Journal inode", sb.s_journal_inum.get().to_string()));
    }
    if let Some(uuid) = external_journal(sb) {
        rows.push(("Journal UUID", uuid));
        rows.push(("Journal device", format!("0x{:04x}", sb.s_journal_dev.get())));
    }
    if sb.s_last_orphan.get() != 0 {
        rows.push(("First orphan inode", sb.s_last_orphan.get().to_string()));
    }
    rows.push(("Default directory hash", hash(sb)));
    rows.push(("Directory Hash Seed", uuid(sb.hash_seed_bytes())));
    if sb.s_jnl_backup_type == 1 {
        rows.push(("Journal backup", "inode blocks".to_owned()));
    }
    if layout.features.compat.contains(Compat::SPARSE_SUPER2) {
        let groups = sb.s_backup_bgs.iter().map(|group| group.get()).filter(|group| *group != 0);
        let groups: Vec<String> = groups.map(|group| group.to_string()).collect();
        rows.push(("Backup block groups", groups.join(" ")));
    }
    rows.extend(error_rows(sb));
    if layout.features.incompat.contains(Incompat::MMP) {
        rows.push(("MMP block number", sb.s_mmp_block.to_string()));
        rows.push(("MMP update interval", sb.s_mmp_interval.to_string()));
    }
    for (name, ino) in [
        ("User quota inode", sb.s_usr_quota_inum),
        ("Group quota inode", sb.s_grp_quota_inum),
        ("Project quota inode", sb.s_prj_quota_inum),
    ] {
        if ino.get() != 0 {
            rows.push((name, ino.to_string()));
        }
    }
    if layout.has_metadata_csum() {
        rows.push(("Checksum type", "crc32c".to_owned()));
        rows.push(("Checksum", format!("0x{:08x}", sb.s_checksum.get())));
    }
    if layout.features.incompat.contains(Incompat::CSUM_SEED) {
        rows.push(("Checksum seed", format!("0x{:08x}", sb.s_checksum_seed.get())));
    }
    if layout.encoding.is_some() {
        rows.push(("Character encoding", "utf8-12.1".to_owned()));
    }
    if sb.s_orphan_file_inum.get() != 0 {
        rows.push(("Orphan file inode", sb.s_orphan_file_inum.get().to_string()));
    }
    rows
}

/// The errors that were noted, if there were some.
fn error_rows(sb: &RawSuperblock) -> Rows {
    if sb.s_error_count.get() == 0 {
        return Rows::new();
    }
    let mut rows = vec![("FS Error count", sb.s_error_count.get().to_string())];
    let mut error = |names: [&'static str; 6], at: u64, func: &[u8], numbers: [u64; 4]| {
        let [time_name, func_name, line, ino, block, code] = names;
        let [line_number, ino_number, block_number, code_number] = numbers;
        rows.push((time_name, time(at)));
        rows.push((func_name, field(func)));
        for (name, number) in
            [(line, line_number), (ino, ino_number), (block, block_number), (code, code_number)]
        {
            if number != 0 {
                rows.push((name, number.to_string()));
            }
        }
    };
    error(
        [
            "First error time",
            "First error function",
            "First error line #",
            "First error inode #",
            "First error block #",
            "First error code",
        ],
        RawSuperblock::time(sb.s_first_error_time, sb.s_first_error_time_hi),
        &sb.s_first_error_func,
        [
            sb.s_first_error_line.get().into(),
            sb.s_first_error_ino.get().into(),
            sb.s_first_error_block.get(),
            sb.s_first_error_errcode.into(),
        ],
    );
    error(
        [
            "Last error time",
            "Last error function",
            "Last error line #",
            "Last error inode #",
            "Last error block #",
            "Last error code",
        ],
        RawSuperblock::time(sb.s_last_error_time, sb.s_last_error_time_hi),
        &sb.s_last_error_func,
        [
            sb.s_last_error_line.get().into(),
            sb.s_last_error_ino.get().into(),
            sb.s_last_error_block.get(),
            sb.s_last_error_errcode.into(),
        ],
    );
    rows
}

fn words(list: &[(bool, &str)]) -> String {
    let words: Vec<&str> = list.iter().filter(|(on, _)| *on).map(|(_, word)| *word).collect();
    or(words.join(" "), "(none)")
}

fn state(sb: &RawSuperblock) -> String {
    let state = sb.s_state.get();
    let clean = if state & STATE_VALID != 0 { "clean" } else { "not clean" };
    if state & STATE_ERROR != 0 { format!("{clean} with errors") } else { clean.to_owned() }
}

fn errors(sb: &RawSuperblock) -> String {
    match sb.s_errors.get() {
        ERRORS_CONTINUE => "Continue".to_owned(),
        ERRORS_RO => "Remount read-only".to_owned(),
        ERRORS_PANIC => "Panic".to_owned(),
        other => format!("Unknown ({other})"),
    }
}

fn hash(sb: &RawSuperblock) -> String {
    match sb.s_def_hash_version {
        0 => "legacy".to_owned(),
        1 => "half_md4".to_owned(),
        2 => "tea".to_owned(),
        other => format!("unknown ({other})"),
    }
}

/// The words of `tune2fs -o`, the mode of the journal first, as dumpe2fs has them.
fn mount_options(sb: &RawSuperblock) -> String {
    let bits = sb.s_default_mount_opts.get();
    let is_mode = |mask: u32| mask & !JOURNAL_MODE == 0;
    let (modes, others): (Vec<_>, Vec<_>) =
        DEFAULT_MOUNT_WORDS.into_iter().partition(|(_, mask)| is_mode(*mask));
    let mode = modes.into_iter().filter(|(_, mask)| bits & JOURNAL_MODE == *mask);
    let others = others.into_iter().filter(|(_, mask)| bits & mask != 0);
    let words: Vec<&str> = mode.chain(others).map(|(word, _)| word).collect();
    or(words.join(" "), "(none)")
}

fn os_name(sb: &RawSuperblock) -> String {
    match sb.s_creator_os.get() {
        0 => "Linux".to_owned(),
        1 => "Hurd".to_owned(),
        3 => "FreeBSD".to_owned(),
        other => format!("(unknown {other})"),
    }
}

fn owner(id: u16, what: &str) -> String {
    if id == 0 { format!("0 ({what} root)") } else { id.to_string() }
}
