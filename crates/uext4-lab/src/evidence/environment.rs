//! The machine and the command, for `env.json`.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::command;
use crate::directory;
use crate::disk;
use crate::mount_table;
use crate::plan::Plan;

/// What figures depend on beside the plan; null for what is not known.
pub(super) fn describe(plan: &Plan) -> Value {
    let read = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let field = |path: &str, name: &str| {
        let text = read(path)?;
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let memory = field("/proc/meminfo", "MemTotal")
        .and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    let governor = read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    let store = store(&plan.folder());
    json!({
        "kernel": read("/proc/sys/kernel/osrelease"),
        "cpu": field("/proc/cpuinfo", "model name"),
        "cpus": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        "governor": governor,
        "memory_kib": memory,
        "store": plan.store_name(),
        "device": plan.device().map(disk::describe),
        "dir": plan.dir.as_deref().map(directory::describe),
        "store_folder": plan.folder(),
        "store_device": store.as_ref().map(|store| &store.0),
        "store_file_system": store.as_ref().map(|store| &store.1),
        "fio": version("fio", "-v"),
        "e2fsprogs": version("mke2fs", "-V"),
        "fuse2fs": version("fuse2fs", "-V"),
        "uext4": env!("CARGO_PKG_VERSION"),
        // The file that runs, whatever lies at its path by now.
        "program_sha256": File::open("/proc/self/exe").ok().and_then(hash_of),
        "checkout_head": plan.command.as_deref().and_then(checkout_head),
        "command_line": std::env::args().collect::<Vec<_>>(),
        "root": rustix::process::geteuid().is_root(),
        "options": plan.options_json(),
        "begun": Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        "seconds": null,
    })
}

/// Device and file system that a folder lies on.
fn store(folder: &Path) -> Option<(String, String)> {
    let table = fs::read_to_string(mount_table::FILE).ok()?;
    let folder = fs::canonicalize(folder).ok()?;
    let mounts = table.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let dir = mount_table::path(before.split(' ').nth(4)?);
        let mut words = after.split(' ');
        let (kind, device) = (words.next()?, words.next()?);
        folder.starts_with(&dir).then(|| (dir, device.to_owned(), kind.to_owned()))
    });
    mounts.max_by_key(|mount| mount.0.as_os_str().len()).map(|(_, device, kind)| (device, kind))
}

fn version(program: &str, flag: &str) -> Option<String> {
    let (_, text) = command::status(program, &[flag]).ok()?;
    text.lines().find(|line| line.contains(program)).map(str::to_owned)
}

/// The hash of a program: a version stands for many builds.
pub(crate) fn hash_of(mut program: File) -> Option<String> {
    let mut hash = Sha256::new();
    io::copy(&mut program, &mut hash).ok()?;
    Some(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The commit that is checked out now where a program lies. The program may be older: which it is
/// says its hash.
fn checkout_head(program: &Path) -> Option<String> {
    let dir = program.parent()?.to_str()?;
    let args = ["-C", dir, "rev-parse", "--short=12", "HEAD"];
    let text = command::run("git", &args).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}
