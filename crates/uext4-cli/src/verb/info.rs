//! `uext4 info`: superblock, journal and groups, as dumpe2fs prints them. Times are UTC.

use std::ffi::OsString;

use serde::Serialize;
use serde_json::{Map, Value, json};
use uext4_device::FileOptions;
use uext4_ondisk::features::external_journal;
use uext4_ondisk::superblock::{
    DEFAULT_MOUNT_ACL, DEFAULT_MOUNT_XATTR_USER, ERRORS_CONTINUE, ERRORS_PANIC, ERRORS_RO,
    FLAG_SIGNED_HASH, FLAG_UNSIGNED_HASH, STATE_ERROR, STATE_VALID,
};
use uext4_ondisk::{
    Compat, GroupFlags, GroupNo, Incompat, Layout, RawGroupDesc, RawSuperblock, RoCompat,
};

use crate::examples::{self, Examples};
use crate::failure::{At, Result};
use crate::image::{self, Access};
use crate::inspect::{Inspected, Journal};
use crate::journal::JournalDevice;
use crate::output::Output;
use crate::place::Place;
use crate::spec::Image;
use crate::text;

mod journal_device;

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 info disk.img", "the superblock, the journal and every group"),
    ("uext4 info -h disk.img@p1", "without the groups, of a partition"),
    ("uext4 info --json disk.img", "everything, for programs"),
];

/// Show the superblock, the journal and the groups of an image
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// The superblock and the journal only
    #[arg(short = 'h', long)]
    header: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: (),
    /// Image file or block device, with @p1 or @OFFSET for a partition in it
    #[arg(value_name = "IMAGE[@PART]")]
    image: OsString,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let image = Image::parse(&args.image);
    let place = Place::of("info", &image)?;
    let options = FileOptions::new(Access::Read.into());
    let device = image::any_device("info", &image, place, &options)?;
    if let Some(journal) = JournalDevice::read(&device).at("info", &image)? {
        let mut output = Output::new();
        journal_device::print(&journal, args.json, &mut output)?;
        return output.finish();
    }
    let device = image::check_format("info", &image, device)?;
    let inspected = Inspected::read(device).at("info", &image)?;
    let journal = inspected.journal().at("info", &image)?;
    let mut output = Output::new();
    if args.json {
        let mut groups = Vec::new();
        if !args.header {
            for group in 0..inspected.layout.group_count {
                let desc = inspected.group(GroupNo(group)).at("info", &image)?;
                groups.push(Group::new(&inspected.layout, GroupNo(group), &desc));
            }
        }
        let shape = InfoShape {
            superblock: superblock_json(&inspected.superblock, &inspected.layout),
            journal: journal.as_ref().map(journal_json),
            groups: (!args.header).then_some(groups),
        };
        output.json(&shape)?;
        return output.finish();
    }
    for (name, value) in superblock_rows(&inspected.superblock, &inspected.layout) {
        output.line(&format!("{:<25} {value}", format!("{name}:")))?;
    }
    for (name, value) in journal.iter().flat_map(journal_rows) {
        output.line(&format!("{:<25} {value}", format!("{name}:")))?;
    }
    if !args.header {
        output.bytes(b"\n\n")?;
        for group in 0..inspected.layout.group_count {
            let desc = inspected.group(GroupNo(group)).at("info", &image)?;
            print_group(&inspected.layout, GroupNo(group), &desc, &mut output)?;
        }
    }
    output.finish()
}

#[derive(Serialize)]
struct InfoShape {
    superblock: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    journal: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    groups: Option<Vec<Group>>,
}

#[derive(Serialize)]
struct Group {
    group: u32,
    first_block: u64,
    blocks: u32,
    has_superblock: bool,
    flags: Vec<&'static str>,
    block_bitmap: u64,
    inode_bitmap: u64,
    inode_table: u64,
    free_blocks: u32,
    free_inodes: u32,
    directories: u32,
    unused_inodes: u32,
}

impl Group {
    fn new(layout: &Layout, group: GroupNo, desc: &RawGroupDesc) -> Self {
        Self {
            group: group.get(),
            first_block: layout.group_first_block(group).get(),
            blocks: layout.blocks_in_group(group),
            has_superblock: layout.has_super(group),
            flags: flag_names(desc.flags()),
            block_bitmap: desc.block_bitmap().get(),
            inode_bitmap: desc.inode_bitmap().get(),
            inode_table: desc.inode_table().get(),
            free_blocks: desc.free_blocks(),
            free_inodes: desc.free_inodes(),
            directories: desc.used_dirs(),
            unused_inodes: desc.itable_unused(),
        }
    }
}

fn flag_names(flags: GroupFlags) -> Vec<&'static str> {
    [
        (GroupFlags::INODE_UNINIT, "INODE_UNINIT"),
        (GroupFlags::BLOCK_UNINIT, "BLOCK_UNINIT"),
        (GroupFlags::INODE_ZEROED, "ITABLE_ZEROED"),
    ]
    .into_iter()
    .filter(|(flag, _)| flags.contains(*flag))
    .map(|(_, name)| name)
    .collect()
}

fn uuid(bytes: [u8; 16]) -> String {
    if bytes == [0; 16] {
        return "<none>".to_owned();
    }
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// Text of a fixed field that ends at its first zero byte.
fn field(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let text = String::from_utf8_lossy(&bytes[..end]);
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn or(text: String, other: &str) -> String {
    if text.is_empty() { other.to_owned() } else { text }
}

fn time(seconds: u64) -> String {
    match i64::try_from(seconds) {
        Ok(0) | Err(_) => "n/a".to_owned(),
        Ok(seconds) => text::time_ctime(seconds),
    }
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

fn mount_options(sb: &RawSuperblock) -> String {
    let bits = sb.s_default_mount_opts.get();
    words(&[
        (bits & DEFAULT_MOUNT_XATTR_USER != 0, "user_xattr"),
        (bits & DEFAULT_MOUNT_ACL != 0, "acl"),
    ])
}

type Rows = Vec<(&'static str, String)>;

fn superblock_rows(sb: &RawSuperblock, layout: &Layout) -> Rows {
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
    ];
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
    if sb.s_error_count.get() != 0 {
        rows.extend([
            ("FS Error count", sb.s_error_count.get().to_string()),
            ("First error time", at(sb.s_first_error_time, sb.s_first_error_time_hi)),
            ("First error function", field(&sb.s_first_error_func)),
            ("Last error time", at(sb.s_last_error_time, sb.s_last_error_time_hi)),
            ("Last error function", field(&sb.s_last_error_func)),
        ]);
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

fn journal_rows(journal: &Journal) -> Rows {
    let sb = &journal.superblock;
    let blocks = sb.s_maxlen.get();
    let longest = match sb.s_max_transaction.get() {
        0 => blocks,
        limit => limit,
    };
    let mut rows = vec![
        ("Journal features", or(sb.feature_names().join(" "), "(none)")),
        ("Total journal size", kib_or_mib(journal.bytes)),
        ("Total journal blocks", blocks.to_string()),
        ("Max transaction length", longest.to_string()),
        ("Fast commit length", sb.s_num_fc_blks.get().to_string()),
        ("Journal sequence", format!("0x{:08x}", sb.s_sequence.get())),
        ("Journal start", sb.s_start.get().to_string()),
    ];
    if sb.s_errno.get() != 0 {
        // Stored as a negative errno.
        rows.push(("Journal errno", sb.s_errno.get().cast_signed().to_string()));
    }
    rows
}

/// As dumpe2fs: whole MiB from 8 MiB on.
fn kib_or_mib(bytes: u64) -> String {
    let kib = bytes >> 10;
    if kib >= 8192 { format!("{}M", kib >> 10) } else { format!("{kib}k") }
}

/// The rows as JSON: names in snake case, numbers as numbers, features as a list.
fn superblock_json(sb: &RawSuperblock, layout: &Layout) -> Map<String, Value> {
    let mut map: Map<String, Value> = superblock_rows(sb, layout)
        .into_iter()
        .map(|(name, value)| (key(name), number_or_text(value)))
        .collect();
    map.insert(key("Filesystem features"), json!(layout.features.names()));
    map.insert(key("Lifetime writes kb"), json!(sb.s_kbytes_written.get()));
    map.remove(&key("Lifetime writes"));
    map
}

fn journal_json(journal: &Journal) -> Value {
    let mut map: Map<String, Value> = journal_rows(journal)
        .into_iter()
        .map(|(name, value)| (key(name), number_or_text(value)))
        .collect();
    map.insert(key("Journal features"), json!(journal.superblock.feature_names()));
    map.insert(key("Total journal size"), json!(journal.bytes));
    Value::Object(map)
}

fn key(name: &str) -> String {
    name.trim_end_matches(" #").to_lowercase().replace(' ', "_")
}

fn number_or_text(value: String) -> Value {
    match value.parse::<i64>() {
        Ok(number) => json!(number),
        Err(_) => json!(value),
    }
}

fn print_group(
    layout: &Layout,
    group: GroupNo,
    desc: &RawGroupDesc,
    output: &mut Output,
) -> Result<()> {
    let first = layout.group_first_block(group);
    let last = first.plus(u64::from(layout.blocks_in_group(group)).saturating_sub(1));
    let mut title = format!("Group {group}: (Blocks {first}-{last})");
    if layout.checksums.kind != uext4_ondisk::ChecksumKind::None {
        title.push_str(&format!(" csum 0x{:04x}", desc.bg_checksum.get()));
        // Without checksums the flags are not to be trusted.
        let flags = flag_names(desc.flags());
        if !flags.is_empty() {
            title.push_str(&format!(" [{}]", flags.join(", ")));
        }
    }
    output.line(&title)?;
    print_copies(layout, group, output)?;
    let at = |block: uext4_ondisk::BlockNo| place(layout, group, block);
    let sum = |value: u32| {
        if layout.has_metadata_csum() { format!(", csum 0x{value:08x}") } else { String::new() }
    };
    let (blocks, inodes, table) = (desc.block_bitmap(), desc.inode_bitmap(), desc.inode_table());
    let table_end = table.plus(u64::from(layout.inode_table_blocks()).saturating_sub(1));
    let sums = (sum(desc.block_bitmap_csum()), sum(desc.inode_bitmap_csum()));
    output.line(&format!("  Block bitmap at {blocks}{}{}", at(blocks), sums.0))?;
    output.line(&format!("  Inode bitmap at {inodes}{}{}", at(inodes), sums.1))?;
    output.line(&format!("  Inode table at {table}-{table_end}{}", at(table)))?;
    let unused = match desc.itable_unused() {
        0 => String::new(),
        count => format!(", {count} unused inodes"),
    };
    let unit = if layout.cluster_blocks > 1 { "clusters" } else { "blocks" };
    output.line(&format!(
        "  {} free {unit}, {} free inodes, {} directories{unused}",
        desc.free_blocks(),
        desc.free_inodes(),
        desc.used_dirs()
    ))
}

/// Copies of the superblock and of group descriptors.
fn print_copies(layout: &Layout, group: GroupNo, output: &mut Output) -> Result<()> {
    let (descs, count) = layout.desc_copies(group);
    let last = |first: uext4_ondisk::BlockNo, count: u32| first.plus(u64::from(count) - 1);
    let copy = layout.super_copy(group).map(|copy| {
        let which = if group.get() == 0 { "Primary" } else { "Backup" };
        format!("{which} superblock at {copy}")
    });
    let tables = (count != 0).then(|| match layout.has_meta_bg() {
        true => format!("Group descriptor at {descs}"),
        false => format!("Group descriptors at {descs}-{}", last(descs, count)),
    });
    let parts: Vec<String> = copy.into_iter().chain(tables).collect();
    if !parts.is_empty() {
        output.line(&format!("  {}", parts.join(", ")))?;
    }
    let reserved = layout.reserved_desc_blocks(group);
    if reserved != 0 {
        let from = descs.plus(u64::from(count));
        output.line(&format!("  Reserved GDT blocks at {from}-{}", last(from, reserved)))?;
    }
    Ok(())
}

/// Where a block stands: in its own group, or in which other.
fn place(layout: &Layout, group: GroupNo, block: uext4_ondisk::BlockNo) -> String {
    match layout.group_of(block) {
        Some((found, offset)) if found == group => format!(" (+{offset})"),
        Some((found, offset)) => format!(" (bg #{found} + {offset})"),
        None => " (outside the file system)".to_owned(),
    }
}
