//! What `uext4 info` says of a journal device, in the words of dumpe2fs.

use serde_json::{Map, Value, json};
use uext4_ondisk::{Features, RawSuperblock, uuid_text};

use super::{Rows, field, journal_rows, key, number_or_text, or, time};
use crate::failure::Result;
use crate::inspect::Journal;
use crate::journal::JournalDevice;
use crate::output::Output;

/// Prints all there is.
pub(super) fn print(device: &JournalDevice, as_json: bool, output: &mut Output) -> Result<()> {
    let (rows, users) = (rows(device), users(device));
    if as_json {
        let mut map: Map<String, Value> =
            rows.into_iter().map(|(name, value)| (key(name), number_or_text(value))).collect();
        map.insert(key("Filesystem features"), json!(Features::of(&device.superblock).names()));
        map.insert(key("Journal features"), json!(device.journal.feature_names()));
        map.insert(key("Journal users"), json!(users));
        return output.json(&map);
    }
    for (name, value) in rows {
        output.line(&format!("{:<25} {value}", format!("{name}:")))?;
    }
    match &users[..] {
        [] => output.line(&format!("{:<25} 0", "Journal number of users:")),
        users => output.line(&format!("{:<25} {}", "Journal users:", users.join(" "))),
    }
}

fn users(device: &JournalDevice) -> Vec<String> {
    device.journal.users().iter().map(uuid_text).collect()
}

fn rows(device: &JournalDevice) -> Rows {
    let JournalDevice { superblock: sb, layout, journal } = device;
    let mut rows: Rows = vec![
        ("Filesystem volume name", or(field(&sb.s_volume_name), "<none>")),
        ("Filesystem UUID", uuid_text(&layout.uuid)),
        ("Filesystem features", Features::of(sb).names().join(" ")),
        ("Block count", sb.blocks_count().to_string()),
        ("Block size", layout.block_size.to_string()),
        ("Filesystem created", time(RawSuperblock::time(sb.s_mkfs_time, sb.s_mkfs_time_hi))),
    ];
    let bytes = u64::from(journal.s_maxlen.get()) * u64::from(layout.block_size);
    rows.extend(journal_rows(&Journal { superblock: *journal, bytes }));
    rows.push(("Journal first block", journal.s_first.get().to_string()));
    rows
}
