//! The folder, image and mounting process of a demo.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{machine, workspace};

/// Longest wait for a mount or an unmount.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// Everything a demo leaves on the machine while it runs.
pub(crate) struct Stage {
    /// The tree that is brought in.
    pub(crate) tree: PathBuf,
    /// Digest of the file that was fsynced before the kill.
    pub(crate) acknowledged: String,
    folder: PathBuf,
    mounting: Option<Child>,
    keep: bool,
}

/// The built command.
pub(crate) fn command_path() -> PathBuf {
    workspace::target().join("release/uext4")
}

impl Stage {
    /// Makes an empty folder to work in; removes what an earlier demo left.
    pub(crate) fn set_up(tree: PathBuf, keep: bool) -> Result<Stage, String> {
        let folder = workspace::root().join(".demo");
        let stage = Stage {
            tree,
            acknowledged: String::new(),
            folder: folder.clone(),
            mounting: None,
            keep,
        };
        stage.unmount_by_force();
        if folder.exists() {
            fs::remove_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        }
        fs::create_dir_all(stage.mount_point())
            .map_err(|e| format!("{}: {e}", folder.display()))?;
        Ok(stage)
    }

    /// The image file.
    pub(crate) fn image(&self) -> PathBuf {
        self.folder.join("disk.img")
    }

    /// Where the image is mounted.
    pub(crate) fn mount_point(&self) -> PathBuf {
        self.folder.join("mnt")
    }

    /// A folder outside the image.
    pub(crate) fn outside(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// `IMAGE:/path`, as the verbs take it.
    pub(crate) fn inside(&self, path: &str) -> OsString {
        let mut word = self.image().into_os_string();
        word.push(":");
        word.push(path);
        word
    }

    /// Calls a verb of uext4 and returns what it printed.
    pub(crate) fn uext4<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Result<String, String> {
        let mut command = Command::new(command_path());
        command.args(arguments);
        output(&mut command)
    }

    /// Starts a verb of uext4 and does not wait for it.
    pub(crate) fn start<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Result<Child, String> {
        Command::new(command_path())
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot start uext4: {error}"))
    }

    /// Runs an ordinary program in the mounted image and returns what it printed.
    pub(crate) fn program(&self, line: &[&str]) -> Result<String, String> {
        let (name, arguments) = line.split_first().ok_or("no program")?;
        let mut command = Command::new(name);
        command.args(arguments).current_dir(self.mount_point());
        command.env("PATH", machine::search_path());
        output(&mut command)
    }

    /// Starts the mounting process and waits for the mount.
    pub(crate) fn mount(&mut self) -> Result<(), String> {
        let (image, point) = (self.image(), self.mount_point());
        let words: [&OsStr; 4] =
            ["mount".as_ref(), "--foreground".as_ref(), image.as_ref(), point.as_ref()];
        let mut child = self.start(&words)?;
        let deadline = Instant::now() + PATIENCE;
        while !machine::is_mounted(&point) {
            if let Ok(Some(status)) = child.try_wait() {
                return Err(format!("uext4 mount ended: {status}"));
            }
            if Instant::now() > deadline {
                stop(&mut child);
                return Err(format!("not mounted after {} s", PATIENCE.as_secs()));
            }
            std::thread::sleep(POLL);
        }
        self.mounting = Some(child);
        Ok(())
    }

    /// Kills the mounting process (SIGKILL) and takes the dead mount away.
    pub(crate) fn kill(&mut self) -> Result<(), String> {
        let mut child = self.mounting.take().ok_or("nothing is mounted")?;
        stop(&mut child);
        self.unmount_by_force();
        if machine::is_mounted(&self.mount_point()) {
            return Err("the dead mount cannot be taken away".into());
        }
        Ok(())
    }

    /// Unmounts and waits until the mounting process has ended well.
    pub(crate) fn unmount(&mut self) -> Result<(), String> {
        let mut child = self.mounting.take().ok_or("nothing is mounted")?;
        let done = self.uext4(&[OsStr::new("umount"), self.mount_point().as_ref()]);
        if let Err(error) = done {
            stop(&mut child);
            self.unmount_by_force();
            return Err(error);
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            match child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(format!("uext4 mount ended: {status}")),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL),
                Ok(None) => {
                    stop(&mut child);
                    return Err("the mounting process does not end".into());
                }
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    fn unmount_by_force(&self) {
        let point = self.mount_point();
        if !machine::is_mounted(&point) {
            return;
        }
        let words: &[&str] =
            if machine::is_root() { &["umount", "-l"] } else { &["fusermount3", "-u", "-z"] };
        // Whether it helped is seen in the mount table.
        let _ = Command::new(words[0])
            .args(&words[1..])
            .arg(&point)
            .env("PATH", machine::search_path())
            .stdin(Stdio::null())
            .status();
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(mut child) = self.mounting.take() {
            stop(&mut child);
        }
        self.unmount_by_force();
        if !self.keep && !machine::is_mounted(&self.mount_point()) {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// Ends a process with SIGKILL and takes its status.
pub(crate) fn stop(child: &mut Child) {
    // Both fail only if it has ended already.
    let _ = child.kill();
    let _ = child.wait();
}

/// Runs a command; its standard output, or an error with its last line of standard error.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let name = Path::new(command.get_program()).display().to_string();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot run {name}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last = stderr.lines().last().unwrap_or("(it said nothing)");
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
    Err(format!("{name} {}: {}: {last}", words.join(" "), output.status))
}
