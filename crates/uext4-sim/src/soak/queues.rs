//! A daemon that is killed while its queues are full.

use super::stress::wait;
use crate::daemon_mount::{Transport, output, within};
use crate::programs::Bench;
use rustix::fs::{major, minor};
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Programs that each wait for a request: more than the entries of the rings of some processors.
const CLIENTS: u64 = 96;
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

/// Stops a daemon (SIGSTOP) so that requests of many programs pile up, and kills it. All programs
/// must end, the mount point must answer `ENOTCONN`, and the image must need nothing but recovery.
/// Returns how many requests were waiting, by the kernel's count.
///
/// # Errors
/// One of these is not so.
pub fn killed_with_full_queues(binary: &Path, way: Transport) -> Result<u64, String> {
    let mut bench = Bench::new(binary, way, 64)?;
    let point = bench.point();
    let control = Control::mount(&bench)?;
    let script = "mkdir files; seq -f 'files/%g' $1 | xargs touch; sync files";
    bench.script("files.sh", script, CLIENTS)?;
    bench.mounted().ok_or("nothing is mounted")?.signal(Signal::STOP)?;
    let mut clients = Vec::new();
    for n in 0..CLIENTS {
        // Each asks for something else: none waits for a lock of the kernel that another holds.
        let line = match n % 3 {
            0 => format!("echo text > files/{}", n + 1),
            1 => format!("cat files/{} files/{}", n + 1, n + 2),
            _ => format!("mv files/{} new{n}; ls -l new{n}", n + 1),
        };
        let mut client = Command::new("sh");
        client.args(["-c", &format!("cd \"$0\" && {line}")]).arg(&point);
        client.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        clients.push(client.spawn().map_err(|error| error.to_string())?);
    }
    let waiting = control.wait_for_requests()?;
    bench.kill()?;
    for client in &mut clients {
        wait(&bench, client, PATIENCE)?;
    }
    let said = output(within(PATIENCE, "ls").arg(&point).env("LC_ALL", "C"));
    match said {
        Err(why) if why.contains("Transport endpoint is not connected") => {}
        other => return Err(format!("the mount point says {other:?}")),
    }
    drop(control);
    bench.recover()?;
    bench.script("look.sh", "[ \"$(ls -d files)\" = files ]", 0)?;
    bench.close()?;
    Ok(waiting)
}

/// The kernel's file system of FUSE connections, where it can be mounted.
struct Control {
    folder: PathBuf,
    /// How many requests wait, or are being served.
    waiting: PathBuf,
}

impl Control {
    fn mount(bench: &Bench) -> Result<Control, String> {
        let folder = bench.outside().join("connections");
        fs::create_dir(&folder).map_err(|error| error.to_string())?;
        let mut mount = within(PATIENCE, "mount");
        output(mount.args(["-t", "fusectl", "none"]).arg(&folder))?;
        let device = rustix::fs::stat(bench.point()).map_err(|error| error.to_string())?.st_dev;
        // The kernel's form of a device number.
        let number = (major(device) << 20) | minor(device);
        let waiting = folder.join(number.to_string()).join("waiting");
        Ok(Control { folder, waiting })
    }

    /// Waits until no more requests come; their number.
    fn wait_for_requests(&self) -> Result<u64, String> {
        let deadline = Instant::now() + PATIENCE;
        let mut last = 0;
        let mut same = 0;
        loop {
            std::thread::sleep(POLL);
            let text = fs::read_to_string(&self.waiting).map_err(|error| error.to_string())?;
            let now: u64 = text.trim().parse().map_err(|_| format!("waiting: {text}"))?;
            same = if now == last { same + 1 } else { 0 };
            last = now;
            // Some wait for locks of the kernel.
            if now >= CLIENTS / 4 && same > 20 {
                return Ok(now);
            }
            if Instant::now() > deadline {
                return Err(format!("only {now} requests of {CLIENTS} programs"));
            }
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = within(PATIENCE, "umount").arg(&self.folder).status();
    }
}
