//! An image on a mount, and what is done with both between the steps of a program.

use super::Size;
use crate::daemon_mount::{DaemonMount, Transport, output, within};
use crate::mount::is_root;
use crate::oracle::{expect_clean, expect_recovery_only, image_folder, program};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Longest time of one script or program.
const PATIENCE: Duration = Duration::from_secs(400);

/// A folder with an image, and its mount.
#[derive(Debug)]
pub struct Bench {
    // Dropped before the folder.
    mount: Option<DaemonMount>,
    binary: PathBuf,
    transport: Transport,
    /// Words of `-o`.
    options: String,
    folder: tempfile::TempDir,
}

impl Bench {
    /// Makes an image of so many MiB and mounts it for all users, where this is root.
    ///
    /// # Errors
    /// mke2fs or the mount failed.
    pub fn new(binary: &Path, transport: Transport, mib: u64) -> Result<Bench, String> {
        let folder = image_folder().map_err(|error| format!("no folder for images: {error}"))?;
        // Ordinary users find the mount.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))
            .map_err(|error| error.to_string())?;
        let options = if is_root() { "allow_other,suid,dev" } else { "" }.to_owned();
        let mut bench =
            Bench { mount: None, binary: binary.to_owned(), transport, options, folder };
        let mke2fs = program("mke2fs").ok_or("mke2fs is missing")?;
        let mut make = within(PATIENCE, mke2fs);
        make.args(["-q", "-F", "-t", "ext4"]);
        if !is_root() {
            make.args(["-E", "root_owner"]);
        }
        output(make.arg(bench.image()).arg(format!("{mib}M")))?;
        bench.mount()?;
        Ok(bench)
    }

    /// Where the image is mounted.
    #[must_use]
    pub fn point(&self) -> PathBuf {
        self.folder.path().join("mnt")
    }

    /// A folder beside the image that is not on the mount.
    #[must_use]
    pub fn outside(&self) -> &Path {
        self.folder.path()
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    fn mount(&mut self) -> Result<(), String> {
        let (image, point) = (self.image(), self.point());
        let (binary, options) = (&self.binary, &self.options);
        let mount = DaemonMount::start(binary, &image, &point, self.transport, options)?;
        self.mount = Some(mount);
        Ok(())
    }

    /// Kills the daemon (SIGKILL).
    ///
    /// # Errors
    /// Nothing is mounted.
    pub fn kill(&self) -> Result<(), String> {
        self.mount.as_ref().ok_or("nothing is mounted")?.signal(Signal::KILL)
    }

    /// After a kill: takes the dead mount away and mounts the image again. e2fsck may do no more
    /// to a copy of it than replay the journal and clean up orphans.
    ///
    /// # Errors
    /// e2fsck did more; the mount failed.
    pub fn recover(&mut self) -> Result<(), String> {
        self.bury()?;
        self.mount()
    }

    /// As [`Bench::recover`], without the mount.
    ///
    /// # Errors
    /// e2fsck did more.
    pub fn bury(&mut self) -> Result<(), String> {
        let mount = self.mount.take().ok_or("nothing is mounted")?;
        mount.bury(&self.binary)?;
        let copy = self.folder.path().join("copy");
        output(within(PATIENCE, "cp").arg("--sparse=always").arg(self.image()).arg(&copy))?;
        // Where it has failed at an orphan, what it leaves says nothing of the image.
        if expect_recovery_only(&copy)?.is_some() {
            expect_clean(&copy)?;
        }
        fs::remove_file(&copy).map_err(|error| error.to_string())
    }

    /// Unmounts; the image must be clean.
    ///
    /// # Errors
    /// It is not, or cannot be unmounted.
    pub fn close(mut self) -> Result<(), String> {
        self.unmount()
    }

    /// As [`Bench::close`], to be mounted again.
    ///
    /// # Errors
    /// The image is not clean, or cannot be unmounted.
    pub fn unmount(&mut self) -> Result<(), String> {
        let mount = self.mount.take().ok_or("nothing is mounted")?;
        mount.unmount(&self.binary)?;
        expect_clean(&self.image())
    }

    /// Mounts the image again, with words of `-o`.
    ///
    /// # Errors
    /// The mount failed.
    pub fn mount_by(&mut self, transport: Transport, options: &str) -> Result<(), String> {
        self.transport = transport;
        options.clone_into(&mut self.options);
        self.mount()
    }

    /// The mount.
    #[must_use]
    pub fn mounted(&self) -> Option<&DaemonMount> {
        self.mount.as_ref()
    }

    /// Runs a script on the mount, called with a number; what it printed. Its name tells its
    /// language.
    ///
    /// # Errors
    /// It fails, or does not end.
    pub fn script(&self, name: &str, text: &str, count: u64) -> Result<String, String> {
        let mut command = self.script_command(name, text)?;
        output(command.arg(count.to_string()))
    }

    /// The command of [`Bench::script`], without arguments.
    ///
    /// # Errors
    /// The script cannot be written down.
    pub fn script_command(&self, name: &str, text: &str) -> Result<Command, String> {
        let path = self.folder.path().join(name);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        // What a script mounts goes with it, however it ends.
        let words: &[&str] = match () {
            () if name.ends_with(".py") => &["python3"],
            () if is_root() => &["unshare", "--mount", "sh", "-eu"],
            () => &["sh", "-eu"],
        };
        // The system's, whatever else stands first in PATH.
        let language = program(words[0]).unwrap_or_else(|| words[0].into());
        let mut command = within(PATIENCE, language);
        command.args(&words[1..]);
        let folders = std::env::var("PATH").unwrap_or_default();
        command.arg(path).current_dir(self.point()).env("LC_ALL", "C");
        command.env("PATH", format!("{folders}:/usr/sbin:/sbin"));
        Ok(command)
    }
}

/// Builds a crate of this project with the target folder on the mount, which also runs build
/// scripts and loads procedural macros from there. A second build finds that nothing has changed.
pub(super) fn cargo(bench: &mut Bench, _size: Size) -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let build = || {
        // cargo tells what it does on standard error.
        let mut command = within(PATIENCE, "sh");
        command.args(["-c", "\"$0\" \"$@\" 2>&1"]);
        command.arg(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(["build", "--verbose", "--offline", "--locked", "-p", "uext4-ondisk"]);
        command.arg("--target-dir").arg(bench.point().join("target")).current_dir(&root);
        output(command.env("CARGO_TERM_COLOR", "never"))
    };
    build()?;
    let again = build()?;
    if again.contains("Compiling") || !again.contains("Fresh uext4-ondisk") {
        return Err(format!("built again, though nothing has changed:\n{again}"));
    }
    Ok(())
}
