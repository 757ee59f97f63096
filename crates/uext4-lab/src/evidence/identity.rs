//! Whether a run may go on: figures of two builds, or of two machines, are not one run.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// The hash of the program: one that is not known is the same as none.
const PROGRAM: &str = "program_sha256";
/// What must be the same, as `env.json` names it, and in words.
const SAME: &[(&str, &str)] = &[
    (PROGRAM, "program"),
    ("kernel", "kernel"),
    ("cpu", "processor"),
    ("cpus", "number of processors"),
    ("governor", "governor"),
    ("root", "root"),
    ("store", "store"),
    ("store_folder", "folder of images"),
    ("store_device", "device of images"),
    ("store_file_system", "file system of images"),
    ("fio", "fio"),
    ("e2fsprogs", "e2fsprogs"),
    ("fuse2fs", "fuse2fs"),
];
/// What must be the same in each of its parts, but for those that change by themselves.
const SAME_IN_PARTS: &[&str] = &["device", "dir"];
const CHANGING: &[&str] = &["free_bytes"];
/// Part by which the memory of one machine may differ from one start to the next.
const MEMORY_SPREAD: f64 = 0.02;
/// Characters of a hash that tell it apart.
const HASH_SHOWN: usize = 12;

/// Whether another program was run.
pub(super) fn is_other_program(before: &Value, now: &Value) -> bool {
    before[PROGRAM].is_null() || before[PROGRAM] != now[PROGRAM]
}

/// What differs between two environments, in words; nothing if one may go on with the other.
pub(super) fn differences(before: &Value, now: &Value) -> Vec<String> {
    let is_other =
        |name: &str| before[name] != now[name] || name == PROGRAM && is_other_program(before, now);
    let told = |word: &str, before: &Value, now: &Value| {
        format!("{word}: {}, now {}", show(before), show(now))
    };
    let others = SAME.iter().filter(|(name, _)| is_other(name));
    let mut all: Vec<String> =
        others.map(|(name, word)| told(word, &before[*name], &now[*name])).collect();
    for whole in SAME_IN_PARTS {
        let (before, now) = (&before[*whole], &now[*whole]);
        let parts: BTreeSet<&String> =
            [before, now].into_iter().filter_map(Value::as_object).flat_map(Map::keys).collect();
        let others = parts.into_iter().filter(|part| {
            !CHANGING.contains(&part.as_str()) && before[part.as_str()] != now[part.as_str()]
        });
        all.extend(others.map(|part| {
            told(&format!("{whole}, {}", part.replace('_', " ")), &before[part], &now[part])
        }));
    }
    let [then, today] = [before, now].map(|of| of["memory_kib"].as_f64());
    let is_same = match (then, today) {
        (Some(then), Some(today)) => (then - today).abs() <= MEMORY_SPREAD * then,
        _ => then == today,
    };
    if !is_same {
        let [then, today] = [before, now].map(|of| show(&of["memory_kib"]));
        all.push(format!("memory: {then} KiB, now {today}"));
    }
    all
}

fn show(value: &Value) -> String {
    match value {
        Value::Null => "unknown".to_owned(),
        Value::String(hash)
            if hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) =>
        {
            hash[..HASH_SHOWN].to_owned()
        }
        Value::String(word) => word.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn another_build_or_machine_is_told_by_what_differs() {
        let before = json!({"program_sha256": "a".repeat(64), "kernel": "6.1", "cpus": 2,
            "memory_kib": 8_000_000, "begun": "yesterday"});
        let mut now = before.clone();
        now["begun"] = "today".into();
        now["memory_kib"] = 8_000_100.into();
        assert_eq!(differences(&before, &now), [""; 0]);
        now["program_sha256"] = "b".repeat(64).into();
        now["cpus"] = 4.into();
        now["memory_kib"] = 16_000_000.into();
        let wanted = [
            "program: aaaaaaaaaaaa, now bbbbbbbbbbbb",
            "number of processors: 2, now 4",
            "memory: 8000000 KiB, now 16000000",
        ];
        assert_eq!(differences(&before, &now), wanted);
        now = before.clone();
        now["fio"] = "fio-3.33".into();
        assert_eq!(differences(&before, &now), ["fio: unknown, now fio-3.33"]);
    }

    /// Fault model: figures of two disks, or of two directories, that are taken for one run.
    #[test]
    fn another_device_or_directory_is_told() {
        let before = json!({"program_sha256": "a", "device": {"model": "A", "bytes": 512},
            "dir": {"file_system": "ext4", "file_system_options": "rw", "free_bytes": 7}});
        let mut now = before.clone();
        now["dir"]["free_bytes"] = 8.into();
        assert_eq!(differences(&before, &now), [""; 0]);
        now["device"] = json!({"model": "B", "bytes": 512, "serial": "7"});
        now["dir"]["file_system_options"] = "rw,data=writeback".into();
        let wanted = [
            "device, model: A, now B",
            "device, serial: unknown, now 7",
            "dir, file system options: rw, now rw,data=writeback",
        ];
        assert_eq!(differences(&before, &now), wanted);
        now = before.clone();
        now["device"] = Value::Null;
        assert_eq!(differences(&before, &now).len(), 2);
    }

    /// Fault model: two programs of which neither has a hash.
    #[test]
    fn a_program_that_is_not_known_is_another() {
        let unknown = json!({"program_sha256": null});
        assert_eq!(differences(&unknown, &unknown), ["program: unknown, now unknown"]);
    }
}
