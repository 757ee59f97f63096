//! What keeps a mount busy, for the message of an unmounting that is refused.
//!
//! Nothing here asks the mount: its paths are read from the links of /proc, which the kernel
//! writes. Mappings are not looked at.

use std::fs;
use std::path::{Path, PathBuf};

use uext4_fuse::mountinfo;

/// So many processes are named.
const NAMED: usize = 3;

/// What uses the mount on `dir`, in a few words; empty where nothing is seen.
pub(crate) fn told(dir: &Path) -> String {
    if let Ok(Some(mount)) = mountinfo::below(dir) {
        return format!("{} is mounted in it", mount.dir.display());
    }
    let own = [Some(rustix::process::getpid()), rustix::process::getppid()];
    let own = own.map(|pid| pid.map_or(0, |pid| pid.as_raw_nonzero().get()));
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let users: Vec<String> = pids
        .filter(|pid| !own.contains(pid) && uses(*pid, dir))
        .map(|pid| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("{} ({pid})", name.trim_end())
        })
        .collect();
    let named = users[..users.len().min(NAMED)].join(", ");
    match users.len() {
        0 => String::new(),
        1..=NAMED => format!("used by {named}"),
        all => format!("used by {named} and {} more", all - NAMED),
    }
}

/// Whether a process has its working directory, its root, its program or an open file there. False
/// for another user's process, which may not be looked at.
fn uses(pid: i32, dir: &Path) -> bool {
    let base = PathBuf::from(format!("/proc/{pid}"));
    let open = fs::read_dir(base.join("fd")).into_iter().flatten().flatten();
    let links = ["cwd", "root", "exe"].map(|name| base.join(name)).into_iter();
    let mut links = links.chain(open.map(|entry| entry.path()));
    links.any(|link| fs::read_link(link).is_ok_and(|target| target.starts_with(dir)))
}
