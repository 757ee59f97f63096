//! Mounts for checks: by uext4 over FUSE, and by the kernel over a loop device.
//!
//! # Invariants
//! What was mounted is unmounted when its value is dropped, also after a failure; a process that
//! was started is ended, by its own number.

use crate::external;
use crate::oracle::program;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for a mount or an unmount.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(5);

/// Whether this process is root.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Why nothing can be mounted over FUSE here, or `None` if it can.
#[must_use]
pub fn why_no_fuse() -> Option<&'static str> {
    if fs::File::options().read(true).write(true).open("/dev/fuse").is_err() {
        return Some("/dev/fuse is missing or cannot be opened");
    }
    if !is_root() && program("fusermount3").is_none() {
        return Some("fusermount3 (Debian package fuse3) is missing, and this is not root");
    }
    None
}

/// Why the kernel cannot mount an image here, or `None` if it can.
#[must_use]
pub fn why_no_loop() -> Option<&'static str> {
    if !is_root() {
        return Some("not root");
    }
    if !Path::new("/dev/loop-control").exists() {
        return Some("no loop devices");
    }
    let systems = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if !systems.lines().any(|line| line.trim() == "ext4") {
        return Some("the kernel has no ext4");
    }
    None
}

/// Whether something is mounted on a folder.
#[must_use]
pub fn is_mounted(folder: &Path) -> bool {
    let Ok(table) = fs::read_to_string("/proc/self/mountinfo") else { return false };
    let Some(wanted) = folder.to_str() else { return false };
    // The fifth field is the mount point, with blanks as octal escapes.
    let wanted = wanted.replace('\\', "\\134").replace(' ', "\\040");
    table.lines().any(|line| line.split(' ').nth(4) == Some(&wanted))
}

/// Runs a command; an error has its last line.
///
/// # Errors
/// It cannot be run, or fails.
pub fn run(command: &mut Command) -> Result<String, String> {
    let name = Path::new(command.get_program()).display().to_string();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot run {name}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
    let last = said.lines().last().unwrap_or("(it said nothing)");
    Err(format!("{name} {}: {}: {last}", words.join(" "), output.status))
}

/// A mount served by a `uext4 mount --foreground` process.
#[derive(Debug)]
pub struct FuseMount {
    child: Child,
    point: PathBuf,
}

impl FuseMount {
    /// Mounts `image` on `point`, which is made if it is missing. An ordinary user works as root of
    /// the image (`fakeroot`). A journal that is beside the image is used. On return the mount
    /// answers: it stands in the mount table before the kernel and its server have agreed on how.
    ///
    /// # Errors
    /// What the command said; no mount, or no answer, in time.
    pub fn start(binary: &Path, image: &Path, point: &Path) -> Result<FuseMount, String> {
        fs::create_dir_all(point).map_err(|e| format!("{}: {e}", point.display()))?;
        let mut command = Command::new(binary);
        command.args(["mount", "--foreground", "-o", "noatime"]);
        let journal = external::journal_path(image);
        if journal.exists() {
            command.arg("-o").arg(format!("journal_path={}", journal.display()));
        }
        if !is_root() {
            command.args(["-o", "fakeroot"]);
        }
        let child = command
            .arg(image)
            .arg(point)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot run {}: {error}", binary.display()))?;
        let mut mount = FuseMount { child, point: point.to_owned() };
        let deadline = Instant::now() + PATIENCE;
        let mut asked = None;
        loop {
            if is_mounted(point) {
                let asked = match &mut asked {
                    Some(asked) => asked,
                    none => none.insert(Question::ask(point)?),
                };
                match asked.answer()? {
                    Some(true) => return Ok(mount),
                    Some(false) => return Err("the mount answers with an error".into()),
                    None => {}
                }
            }
            if let Ok(Some(status)) = mount.child.try_wait() {
                return Err(format!("uext4 mount ended: {status}"));
            }
            if Instant::now() > deadline {
                return Err("uext4 mount: not mounted, or no answer, in time".into());
            }
            std::thread::sleep(POLL);
        }
    }

    /// Kills the process (SIGKILL). The dead mount goes with the value.
    pub fn kill(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Unmounts and waits until the image is closed.
    ///
    /// # Errors
    /// What `uext4 umount` said; the mounting process failed or does not end.
    pub fn unmount(mut self, binary: &Path) -> Result<(), String> {
        run(Command::new(binary).arg("umount").arg(&self.point))?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(format!("uext4 mount ended: {status}")),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL),
                Ok(None) => return Err("the mounting process does not end".into()),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Largest resident memory of the process so far, in KiB.
    #[must_use]
    pub fn memory_peak_kib(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        line.trim().trim_end_matches("kB").trim().parse().ok()
    }
}

impl Drop for FuseMount {
    fn drop(&mut self) {
        self.kill();
        unmount_by_force(&self.point);
    }
}

/// Whether a mount answers, asked by another process: it would wait for ever in one that does not.
#[derive(Debug)]
struct Question(Child);

impl Question {
    fn ask(point: &Path) -> Result<Self, String> {
        let mut stat = Command::new("stat");
        // Of the file system, and so never from what the kernel has kept.
        stat.arg("-f").arg(point).stdin(Stdio::null()).stdout(Stdio::null());
        Ok(Self(stat.spawn().map_err(|error| format!("cannot run stat: {error}"))?))
    }

    /// `None`: not yet.
    fn answer(&mut self) -> Result<Option<bool>, String> {
        let ended = self.0.try_wait().map_err(|error| error.to_string())?;
        Ok(ended.map(|status| status.success()))
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        // It may have ended. One that a request holds ends with the mount: nobody waits for it.
        let _ = self.0.kill();
    }
}

/// A mount by the kernel over a loop device.
#[derive(Debug)]
pub struct KernelMount {
    image: PathBuf,
    point: PathBuf,
    /// Of a journal on a device of its own; let go after the mount.
    _journal: Option<LoopDevice>,
}

/// A loop device over a file, until it is dropped.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
}

impl LoopDevice {
    /// Attaches one.
    ///
    /// # Errors
    /// What losetup(8) said.
    pub fn attach(file: &Path) -> Result<LoopDevice, String> {
        let path = run(Command::new("losetup").args(["-f", "--show"]).arg(file))?;
        Ok(LoopDevice { path: PathBuf::from(path.trim()) })
    }

    /// The device.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // One that is still in use goes with its last user.
        let _ = run(Command::new("losetup").arg("-d").arg(&self.path));
    }
}

impl KernelMount {
    /// Mounts `image` on `point`, which is made if it is missing, with the journal that is beside
    /// it ([`external::journal_path`]).
    ///
    /// # Errors
    /// What mount(8) said.
    pub fn start(image: &Path, point: &Path, read_only: bool) -> Result<KernelMount, String> {
        Self::start_with(image, point, if read_only { "ro" } else { "rw" })
    }

    /// As [`KernelMount::start`] with mount options.
    ///
    /// # Errors
    /// What mount(8) said.
    pub fn start_with(image: &Path, point: &Path, options: &str) -> Result<KernelMount, String> {
        fs::create_dir_all(point).map_err(|e| format!("{}: {e}", point.display()))?;
        let mut options = format!("loop,noatime,{options}");
        let journal = external::journal_path(image);
        let journal = journal.exists().then(|| LoopDevice::attach(&journal)).transpose()?;
        if let Some(journal) = &journal {
            options.push_str(&format!(",journal_path={}", journal.path.display()));
        }
        run(Command::new("mount").args(["-t", "ext4", "-o", &options]).arg(image).arg(point))?;
        Ok(KernelMount { image: image.to_owned(), point: point.to_owned(), _journal: journal })
    }

    /// Unmounts. A process that another thread is just making has our files open until it runs its
    /// program, so that a busy mount is tried again. The loop device goes with its last user, which
    /// may be one that looks at all of them.
    ///
    /// # Errors
    /// What umount(8) said; the image still backs a loop device.
    pub fn unmount(self) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match run(Command::new("umount").arg(&self.point)) {
                Err(why) if why.contains("busy") && Instant::now() < deadline => {
                    std::thread::sleep(POLL);
                }
                Err(why) => return Err(why),
                Ok(_) => break,
            }
        }
        loop {
            let backs = run(Command::new("losetup").arg("-j").arg(&self.image))?;
            if backs.trim().is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(format!("unmounted, but still attached: {backs}"));
            }
            std::thread::sleep(POLL);
        }
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        unmount_by_force(&self.point);
    }
}

/// A path for a message: below `root`, escaped, shortened in the middle.
#[must_use]
pub fn shown(root: &Path, path: &Path) -> String {
    let inside = path.strip_prefix(root).unwrap_or(path);
    let text = inside.as_os_str().as_encoded_bytes().escape_ascii().to_string();
    if text.len() <= 120 {
        return text;
    }
    format!("{}...{}", &text[..60], &text[text.len() - 40..])
}

/// Takes a mount away, lazily if it is in use. Whether it helped is seen in the mount table.
pub fn unmount_by_force(point: &Path) {
    let ways: &[&[&str]] = if is_root() {
        &[&["umount"], &["umount", "-l"]]
    } else {
        &[&["fusermount3", "-u"], &["fusermount3", "-u", "-z"]]
    };
    for words in ways {
        if !is_mounted(point) {
            return;
        }
        let _ = Command::new(words[0])
            .args(&words[1..])
            .arg(point)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }
}
