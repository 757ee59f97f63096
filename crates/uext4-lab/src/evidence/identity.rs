//! Whether a run may go on: figures of two builds, or of two machines, are not one run.

use serde_json::Value;

/// What must be the same, as `env.json` names it, and in words.
const SAME: &[(&str, &str)] = &[
    ("program_sha256", "program"),
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
/// Part by which the memory of one machine may differ from one start to the next.
const MEMORY_SPREAD: f64 = 0.02;
/// Characters of a hash that tell it apart.
const HASH_SHOWN: usize = 12;

/// What differs between two environments, in words; nothing if one may go on with the other.
pub(super) fn differences(before: &Value, now: &Value) -> Vec<String> {
    let same = SAME.iter().filter(|(name, _)| before[*name] != now[*name]);
    let mut all: Vec<String> = same
        .map(|(name, word)| format!("{word}: {}, now {}", show(&before[*name]), show(&now[*name])))
        .collect();
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
}
