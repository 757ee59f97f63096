//! The guest: booted from memory, with this machine's files as its root, and followed to its end.
//!
//! # Invariants
//! Nothing of this machine can change but what a [`Task`] lends: its files are exported read-only
//! (9p), and what the guest writes lies in its memory, above them (overlay). What it says comes by
//! a serial console; its last line is [`VERDICT`] and an exit status. A guest that says nothing of
//! the kind has failed.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::package::{self, Kernel};
use crate::conform::Trouble;
use crate::{machine, workspace};

/// Modules that it takes to reach the files.
const MODULES: &[&str] = &["virtio_pci", "9pnet_virtio", "9p", "overlay"];
/// Memory in MiB. Images lie in it, sparse.
const MEMORY_MIB: &str = "4096";
/// Where the guest sees the folder that it is lent.
pub(super) const SHARED: &str = "/run/shared";
/// How: without a cache, so that nothing is lost when it goes off.
const SHARE_OPTIONS: &str = "trans=virtio,version=9p2000.L,msize=262144,cache=none";
/// Begins the guest's last line.
const VERDICT: &str = "old-kernel: exit ";

/// The first program: reaches the files and goes there. Two words are filled in: the modules'
/// folder, and the guest's program.
const INIT: &str = r#"#!/bin/sh
mount -t proc none /proc; mount -t sysfs none /sys; mount -t devtmpfs none /dev
modprobe -a MODULES
mkdir /lower /memory /new
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=loose,ro root /lower
mount -t tmpfs none /memory; mkdir /memory/upper /memory/work
mount -t overlay -o lowerdir=/lower,upperdir=/memory/upper,workdir=/memory/work overlay /new
mkdir -p /new/lib/modules; mount --bind "/new/FOLDER" /new/lib/modules
cp /bin/busybox /new/sbin/; ln -sf busybox /new/sbin/modprobe
umount /proc /sys; mount --move /dev /new/dev
exec switch_root /new /bin/sh "SCRIPT"
"#;

/// The guest's program: a system that is just enough for the suites.
const SCRIPT: &str = r#"mount -t proc none /proc; mount -t sysfs none /sys; mount -t tmpfs none /run
ln -s /proc/self/fd /dev/fd
mkdir -p /dev/shm /dev/pts; mount -t tmpfs -o size=75% none /dev/shm; mount -t devpts none /dev/pts
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TMPDIR=/dev/shm
modprobe -a fuse loop virtio_blk; busybox ip link set lo up
echo "Linux $(uname -r), $(uname -v)"
"#;

/// What a guest is there for.
pub(super) struct Task<'a> {
    /// Words for this program, which runs there.
    pub(super) words: String,
    /// Its disks, image files that it may write, each by its serial number.
    pub(super) disks: Vec<(String, PathBuf)>,
    /// A folder that it may write, at [`SHARED`].
    pub(super) shared: Option<&'a Path>,
    /// Not emulated.
    pub(super) kvm: bool,
    /// It ends after this time, whatever it does.
    pub(super) limit: Duration,
}

/// Boots, prints what the guest says, and returns when it is off.
///
/// # Errors
/// What failed there, or that it did not come to its end in time.
pub(super) fn run(kernel: &Kernel, task: &Task<'_>) -> Result<(), String> {
    let script = write_script(task)?;
    let memory = write_root(kernel, &script).map_err(Trouble::into_error)?;
    let mut guest = Guest(start(kernel, &memory, task)?);
    let console = guest.0.stdout.take().ok_or("no console")?;
    let verdict = follow(&lines(console), Instant::now() + task.limit);
    drop(guest);
    match verdict? {
        Some(0) => Ok(()),
        Some(status) => Err(format!("failed on Linux {}: exit status {status}", kernel.release)),
        None => Err("the guest ended without a verdict".into()),
    }
}

/// A process that ends with this value.
struct Guest(Child);

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(kernel: &Kernel, memory: &Path, task: &Task<'_>) -> Result<Child, String> {
    let processors: &[&str] = if task.kvm {
        &["-accel", "kvm", "-cpu", "host"]
    } else {
        &["-accel", "tcg,thread=multi", "-cpu", "max"]
    };
    // The machine ends with this program, whatever ends that.
    Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "qemu-system-x86_64"])
        .args(processors)
        .args(["-smp", "2", "-m", MEMORY_MIB, "-nodefaults", "-display", "none", "-no-reboot"])
        .args(["-append", "console=ttyS0 quiet panic=-1 mitigations=off"])
        .args(["-serial", "stdio", "-device", "virtio-rng-pci"])
        .args(["-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap"])
        .args(["-device", "virtio-9p-pci,fsdev=root,mount_tag=root"])
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(memory)
        .args(lent(task))
        .env("PATH", machine::search_path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("setpriv: {error}"))
}

/// QEMU's words for what the guest may write.
fn lent(task: &Task<'_>) -> Vec<String> {
    let mut words = Vec::new();
    for (number, (serial, image)) in task.disks.iter().enumerate() {
        let image = image.display();
        // What this machine's page cache holds outlives the guest.
        words.push("-drive".to_owned());
        words.push(format!("file={image},format=raw,if=none,id=disk{number},cache=unsafe"));
        words.push("-device".to_owned());
        words.push(format!("virtio-blk-pci,drive=disk{number},serial={serial}"));
    }
    if let Some(folder) = task.shared {
        let path = folder.display();
        words.push("-fsdev".to_owned());
        words.push(format!("local,id=shared,path={path},security_model=none,multidevs=remap"));
        words.push("-device".to_owned());
        words.push("virtio-9p-pci,fsdev=shared,mount_tag=shared".to_owned());
    }
    words
}

/// The program that the guest runs on its files, which are ours.
fn write_script(task: &Task<'_>) -> Result<PathBuf, String> {
    let shared = task.shared.map_or_else(String::new, |_| {
        format!("mkdir -p {SHARED}\nmount -t 9p -o {SHARE_OPTIONS} shared {SHARED}\n")
    });
    let text = format!(
        "{SCRIPT}{shared}export CARGO_TARGET_DIR='{}'\ncd '{}'\n'{}' old-kernel --inside {}\n\
         echo \"{VERDICT}$?\"; sleep 1\necho o > /proc/sysrq-trigger; sleep 60\n",
        workspace::target().display(),
        workspace::root().display(),
        super::program().display(),
        task.words
    );
    let path = super::folder().join("guest.sh");
    fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

/// What the kernel unpacks into memory at its start: busybox, the modules, the first program.
fn write_root(kernel: &Kernel, script: &Path) -> Result<PathBuf, Trouble> {
    let root = super::folder().join("memory");
    let _ = fs::remove_dir_all(&root);
    let made = |error: std::io::Error| package::fault(&root, &error);
    for name in ["bin", "dev", "proc", "sys"] {
        fs::create_dir_all(root.join(name)).map_err(made)?;
    }
    fs::copy(&kernel.busybox, root.join("bin/busybox")).map_err(made)?;
    for name in ["sh", "mount", "umount", "mkdir", "cp", "ln", "modprobe", "switch_root"] {
        symlink("busybox", root.join("bin").join(name)).map_err(made)?;
    }
    let init = INIT
        .replace("MODULES", &MODULES.join(" "))
        .replace("FOLDER", &kernel.modules.display().to_string())
        .replace("SCRIPT", &script.display().to_string());
    fs::write(root.join("init"), init).map_err(made)?;
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755)).map_err(made)?;
    let from = kernel.modules.join(&kernel.release);
    let to = root.join("lib/modules").join(&kernel.release);
    let list = fs::read_to_string(from.join("modules.dep")).map_err(made)?;
    for file in needed(&list).into_iter().chain(["modules.dep", "modules.alias"]) {
        let copy = to.join(file);
        fs::create_dir_all(copy.parent().unwrap_or(&to)).map_err(made)?;
        fs::copy(from.join(file), copy).map_err(made)?;
    }
    let archive = super::folder().join("memory.cpio");
    let pack = "find . | ./bin/busybox cpio -o -H newc > \"$0\"";
    package::run(Command::new("sh").args(["-c", pack]).arg(&archive).current_dir(&root))?;
    Ok(archive)
}

/// Files of the modules and of all that they need, by a list of modprobe(8).
fn needed(list: &str) -> Vec<&str> {
    let wanted = |file: &str| MODULES.iter().any(|name| file.ends_with(&format!("/{name}.ko")));
    let lines = list.lines().filter_map(|line| line.split_once(':'));
    let lines = lines.filter(|(file, _)| wanted(file));
    let mut all: Vec<&str> =
        lines.flat_map(|(file, needs)| needs.split_whitespace().chain([file])).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// The console's lines, from a thread, so that waiting for one can end.
fn lines(console: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(console).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

/// Prints what comes; the exit status of the guest's program, if it got so far.
fn follow(lines: &Receiver<String>, deadline: Instant) -> Result<Option<i32>, String> {
    let mut verdict = None;
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => match line.strip_prefix(VERDICT) {
                Some(status) => verdict = status.parse().ok(),
                None if verdict.is_none() => println!("{line}"),
                None => {}
            },
            Err(RecvTimeoutError::Disconnected) => return Ok(verdict),
            Err(RecvTimeoutError::Timeout) => return Err("the guest's time is over".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_with_what_they_need() {
        let list = "kernel/fs/9p/9p.ko: kernel/net/9p/9pnet.ko\nkernel/net/9p/9pnet.ko:\n\
                    kernel/fs/overlayfs/overlay.ko:\nkernel/fs/other/not9p.ko: kernel/x.ko\n";
        let files =
            ["kernel/fs/9p/9p.ko", "kernel/fs/overlayfs/overlay.ko", "kernel/net/9p/9pnet.ko"];
        assert_eq!(needed(list), files);
    }

    #[test]
    fn a_guest_that_dies_has_no_verdict() {
        let soon = || Instant::now() + Duration::from_secs(60);
        let (sender, receiver) = channel();
        sender.send("Kernel panic".to_owned()).unwrap();
        drop(sender);
        assert_eq!(follow(&receiver, soon()), Ok(None));
        let (sender, receiver) = channel();
        sender.send(format!("{VERDICT}1")).unwrap();
        drop(sender);
        assert_eq!(follow(&receiver, soon()), Ok(Some(1)));
        let (_sender, receiver) = channel();
        assert!(follow(&receiver, Instant::now()).is_err());
    }
}
