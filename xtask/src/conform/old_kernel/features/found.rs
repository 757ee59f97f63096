//! What both sides wrote down of an image: listings, and usage by owner.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

/// The flag of sealed files.
const VERITY: u32 = 0x10_0000;
/// Most lines of a difference that are told.
const TOLD: usize = 6;

pub(super) fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

pub(super) fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Paths of a listing's sealed files, which have no name but of ASCII.
pub(super) fn sealed(listing: &str) -> Vec<String> {
    let is_sealed = |line: &str| {
        let flags = line.split_once(" flags ").and_then(|(_, rest)| rest.split(' ').next());
        flags
            .and_then(|flags| u32::from_str_radix(flags, 16).ok())
            .is_some_and(|all| all & VERITY != 0)
    };
    let path = |line: &str| format!("/{}", plain(line.split(' ').next().unwrap_or("")).trim_end());
    listing.lines().filter(|line| is_sealed(line)).map(path).collect()
}

pub(super) fn hexadecimal(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

/// How many lines two listings have, which must be the same.
pub(super) fn same_lines(kernel: &Path, own: &Path) -> Result<usize, String> {
    let (kernel, own) = (read(kernel)?, read(own)?);
    let differences = differences(&kernel, &own);
    match (differences.is_empty(), kernel.lines().count()) {
        (true, 0) => Err("an empty listing".to_owned()),
        (true, count) => Ok(count),
        (false, _) => {
            let count = differences.len();
            let told: Vec<String> = differences.into_iter().take(TOLD).collect();
            Err(format!("{count} lines differ:\n    {}", told.join("\n    ")))
        }
    }
}

/// Lines that one listing alone has, in order, paths in plain letters.
fn differences(kernel: &str, own: &str) -> Vec<String> {
    let mut lines: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
    for (side, text) in [kernel, own].into_iter().enumerate() {
        for line in text.lines() {
            lines.entry(line).or_default()[side] += 1;
        }
    }
    let told = lines.into_iter().filter(|(_, [kernel, own])| kernel != own);
    told.map(|(line, [kernel, own])| {
        let side = if kernel > own { "kernel" } else { "uext4 " };
        format!("{side} {}", plain(line))
    })
    .collect()
}

/// A line whose words of hexadecimal digits are shown as what they mean.
fn plain(line: &str) -> String {
    let (path, rest) = line.split_once(' ').unwrap_or((line, ""));
    let bytes: Option<Vec<u8>> = (0..path.len() / 2)
        .map(|at| u8::from_str_radix(path.get(2 * at..2 * at + 2)?, 16).ok())
        .collect();
    let path = bytes.map_or_else(|| path.to_owned(), |bytes| bytes.escape_ascii().to_string());
    format!("{path} {rest}")
}

/// Kind and id, to usage and limits: bytes, soft, hard, inodes, soft, hard.
pub(super) type Usage = BTreeMap<(String, u64), Vec<u64>>;

/// Entries that say something: uext4 keeps those whose usage has become zero.
fn counted(usage: Usage) -> Usage {
    usage.into_iter().filter(|(_, counts)| counts.iter().any(|count| *count != 0)).collect()
}

pub(super) fn usage_of_kernel(text: &str) -> Result<Usage, String> {
    let kinds: BTreeMap<String, Vec<Vec<u64>>> =
        serde_json::from_str(text).map_err(|error| format!("usage of the kernel: {error}"))?;
    let rows = kinds.into_iter().flat_map(|(kind, rows)| {
        rows.into_iter().map(move |row| ((kind.clone(), row[0]), row[1..].to_vec()))
    });
    Ok(counted(rows.collect()))
}

pub(super) fn usage_of_uext4(text: &str) -> Result<Usage, String> {
    let tables: Vec<Value> =
        serde_json::from_str(text).map_err(|error| format!("usage of uext4: {error}"))?;
    let mut usage = Usage::new();
    for table in &tables {
        let kind = table["kind"].as_str().unwrap_or("");
        for row in table["owners"].as_array().into_iter().flatten() {
            let names = ["space_used", "space_soft", "space_hard"];
            let inodes = ["inodes_used", "inodes_soft", "inodes_hard"];
            let counts = names.iter().chain(&inodes).map(|name| row[name].as_u64().unwrap_or(0));
            let id = row["id"].as_u64().unwrap_or(u64::MAX);
            usage.insert((kind.to_owned(), id), counts.collect());
        }
    }
    Ok(counted(usage))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_one_side_are_differences() {
        assert!(differences("61 x\n62 y\n", "61 x\n62 y\n").is_empty());
        assert_eq!(differences("61 x\n", "61 z\n"), ["kernel a x", "uext4  a z"]);
        assert_eq!(differences("61 x\n61 x\n", "61 x\n"), ["kernel a x"]);
    }

    #[test]
    fn usage_is_read_alike() {
        let kernel =
            usage_of_kernel(r#"{"user": [[0, 4096, 0, 0, 2, 0, 0], [7, 0, 0, 0, 0, 0, 0]]}"#);
        let own = usage_of_uext4(
            r#"[{"kind": "user", "owners": [{"id": 0, "space_used": 4096, "space_soft": 0,
            "space_hard": 0, "inodes_used": 2, "inodes_soft": 0, "inodes_hard": 0}]}]"#,
        );
        assert_eq!(kernel, own);
        assert_eq!(own.unwrap().len(), 1);
    }
}
