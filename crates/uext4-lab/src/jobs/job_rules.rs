//! What may not stand in a job file of the lab.
//!
//! Invariants: jobs write to the file system under test and nowhere else, and run no program.

/// Engines that read and write files by their names, or nothing at all. Others run programs, write
/// to devices, or talk to other machines.
const ENGINES: [&str; 21] = [
    "sync",
    "psync",
    "vsync",
    "pvsync",
    "pvsync2",
    "libaio",
    "linuxaio",
    "posixaio",
    "io_uring",
    "mmap",
    "splice",
    "falloc",
    "ftruncate",
    "filecreate",
    "filestat",
    "filedelete",
    "dircreate",
    "dirstat",
    "dirdelete",
    "cpuio",
    "null",
];
/// Options whose values are names of files that jobs write.
const FILES: [&str; 2] = ["filename", "filename_format"];
/// Options that run programs, read or write other files of the host, or change its disks.
const OUTSIDE: [&str; 18] = [
    "exec_prerun",
    "exec_postrun",
    "write_bw_log",
    "write_lat_log",
    "write_iops_log",
    "write_hist_log",
    "write_iolog",
    "read_iolog",
    "merge_blktrace_file",
    "replay_redirect",
    "opendir",
    "ioscheduler",
    "profile",
    "cgroup",
    "cgroup_weight",
    "cgroup_nodelete",
    "verify_state_save",
    "verify_state_load",
];
/// Options whose value may name a file behind a colon.
const MEMORY: [&str; 2] = ["mem", "iomem"];
/// Options whose value may name a file in quotes.
const PATTERNS: [&str; 2] = ["buffer_pattern", "verify_pattern"];

/// Why an option cannot stand in a job file of the lab.
pub(super) fn objection(name: &str, value: &str) -> Option<&'static str> {
    if name.contains("${") || value.contains("${") {
        return Some("write the value in place of the environment variable");
    }
    let is_outside = OUTSIDE.contains(&name)
        || MEMORY.contains(&name) && value.contains(':')
        || PATTERNS.contains(&name) && value.contains('\'');
    if is_outside {
        return Some("it runs a program, or reads or writes files of the host");
    }
    if name == "ioengine" && !ENGINES.contains(&value) {
        return Some("an engine that may run programs or write elsewhere");
    }
    let is_outside = FILES.contains(&name) && value.split(':').any(leaves);
    is_outside.then_some("it leaves the file system under test: name files from its root")
}

/// Why a section cannot have that name: fio makes names of files from it, and `filename_format`
/// may put something before and behind it.
pub(super) fn objection_to_section(name: &str) -> Option<&'static str> {
    let is_outside = name.contains('/') || name.bytes().all(|byte| byte == b'.');
    is_outside.then_some("fio names files after it: it needs a name without a slash")
}

/// Whether a name of a file leads out of the directory that it is taken from.
fn leaves(name: &str) -> bool {
    name.starts_with('/') || name.split('/').any(|part| part == "..")
}
