//! What /proc tells of a process.

use std::fs;

/// The name of its program.
pub(super) fn name(pid: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

/// Whether a process descends from this one, and is another.
pub(super) fn is_descendant(pid: u32) -> bool {
    let own = std::process::id();
    let mut pid = pid;
    // Longer chains are loops of numbers that were reused meanwhile.
    for _ in 0..64 {
        match parent(pid) {
            Some(parent) if parent == own => return true,
            Some(parent) if parent > 1 => pid = parent,
            _ => return false,
        }
    }
    false
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    line.trim().parse().ok()
}
