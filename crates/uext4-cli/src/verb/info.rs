//! `uext4 info`: superblock, journal and groups, as dumpe2fs prints them. Times are UTC.

use std::ffi::OsString;

use serde::Serialize;
use serde_json::{Map, Value, json};
use uext4_device::FileOptions;
use uext4_ondisk::{GroupFlags, GroupNo, Layout, RawGroupDesc, RawSuperblock};

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
mod superblock;

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
    for (name, value) in superblock::rows(&inspected.superblock, &inspected.layout) {
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

type Rows = Vec<(&'static str, String)>;

fn journal_rows(journal: &Journal) -> Rows {
    let sb = &journal.superblock;
    let blocks = sb.s_maxlen.get();
    let longest = match sb.s_max_transaction.get() {
        // Without those of fast commits.
        0 => blocks.saturating_sub(sb.s_num_fc_blks.get()),
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
    if sb.format().has_crc32c() {
        rows.push(("Journal checksum type", "crc32c".to_owned()));
        rows.push(("Journal checksum", format!("0x{:08x}", sb.s_checksum.get())));
    }
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
    let mut map: Map<String, Value> = superblock::rows(sb, layout)
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
