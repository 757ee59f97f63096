//! A fresh image, mounted by uext4 or by the kernel for the time of a script.
//!
//! # Invariants
//! Everything is mounted in a mount namespace that ends with the script, and the image lies in a
//! folder that is removed with the [`Stage`]. The kernel calls `uext4` for a remount by way of
//! mount.fuse(8), which looks in the system's folders only: one of them shows ours in the
//! namespace.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{machine, workspace};

/// Who serves the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The kernel's ext4 on a loop device.
    Kernel,
    /// `uext4 mount`, by `/dev/fuse`.
    Uext4,
    /// The same by io_uring.
    Uring,
}

/// Switches the kernel's side of io_uring on for new mounts.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

impl Side {
    pub(super) fn name(self) -> &'static str {
        match self {
            Side::Kernel => "kernel ext4",
            Side::Uext4 => "uext4",
            Side::Uring => "uext4 by io_uring",
        }
    }

    /// The sides of uext4 that this kernel has; says which it has not.
    pub(super) fn own() -> Vec<Side> {
        let forbidden = fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
        if forbidden.is_ok_and(|text| text.trim() != "0") || !Path::new(PARAMETER).exists() {
            println!("skipped: {}: needs Linux 6.14 and io_uring allowed", Side::Uring.name());
            return vec![Side::Uext4];
        }
        vec![Side::Uext4, Side::Uring]
    }

    /// How `$IMAGE` gets on and off `$DIR`.
    fn mounting(self) -> (&'static str, &'static str) {
        match self {
            Side::Kernel => (r#"mount -t ext4 -o loop "$IMAGE" "$DIR""#, r#"umount "$DIR""#),
            Side::Uext4 => (
                r#"uext4 mount -o io_uring=off,allow_other,default_permissions "$IMAGE" "$DIR""#,
                r#"uext4 umount "$DIR""#,
            ),
            // As it was before, whatever the mount says.
            Side::Uring => (
                r#"was=$(cat "$PARAMETER"); echo Y > "$PARAMETER"; failed=0
uext4 mount -o io_uring=on,allow_other,default_permissions "$IMAGE" "$DIR" || failed=1
echo "$was" > "$PARAMETER"; [ "$failed" = 0 ]"#,
                r#"uext4 umount "$DIR""#,
            ),
        }
    }
}

/// Folder of system programs that mount.fuse(8) looks in first.
const SHADOWED: &str = "/usr/local/sbin";

/// A folder with an image.
pub(super) struct Stage {
    pub(super) folder: PathBuf,
    image: PathBuf,
    command: PathBuf,
    side: Side,
}

impl Stage {
    /// Makes a folder and an image of `mib` MiB in it by mke2fs. `command` is the built uext4.
    pub(super) fn set_up(side: Side, command: &Path, mib: u64) -> Result<Stage, String> {
        let base = Path::new("/dev/shm");
        let base = if base.is_dir() { base.to_path_buf() } else { workspace::target() };
        // Short: the path of a socket has at most 107 bytes.
        let word = match side {
            Side::Kernel => "kernel",
            Side::Uext4 => "uext4",
            Side::Uring => "uring",
        };
        let folder = base.join(format!("uext4-conform-{}-{word}", std::process::id()));
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        for name in ["mnt", "second", "bin"] {
            fs::create_dir_all(folder.join(name)).map_err(failed)?;
        }
        let image = folder.join("image");
        fs::File::create(&image).and_then(|file| file.set_len(mib << 20)).map_err(failed)?;
        let stage = Stage { folder: folder.clone(), image, command: command.to_owned(), side };
        fs::copy(&stage.command, folder.join("bin/uext4")).map_err(failed)?;
        let made = stage.call("mke2fs", &["-q", "-F", "-t", "ext4"])?;
        if made.status.success() { Ok(stage) } else { Err(format!("mke2fs: {made:?}")) }
    }

    /// Runs the lines of `script` with sh(1) while the image is mounted on `$DIR`. `$FOLDER` is the
    /// stage's own, `$TOOL` the program given. A line that fails ends it.
    ///
    /// # Errors
    /// What was said on standard error.
    pub(super) fn run(&self, script: &str, tool: &Path) -> Result<(), String> {
        let (mount, unmount) = self.side.mounting();
        let whole = format!(
            "set -e\nmount --bind \"$FOLDER/bin\" {SHADOWED}\nPATH={SHADOWED}:$PATH\n{mount}\n\
             {script}\n{unmount}\n"
        );
        let output = Command::new("unshare")
            .args(["--mount", "sh", "-c", &whole])
            .env("PATH", machine::search_path())
            .env("FOLDER", &self.folder)
            .env("DIR", self.folder.join("mnt"))
            .env("IMAGE", &self.image)
            .env("TOOL", tool)
            .env("PARAMETER", PARAMETER)
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .output()
            .map_err(|error| format!("unshare: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(format!("{}: {}: {said}", self.side.name(), output.status))
    }

    /// What a script left in the folder.
    pub(super) fn read(&self, name: &str) -> Result<String, String> {
        let path = self.folder.join(name);
        let bytes = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(super) fn write(&self, name: &str, text: &str) -> Result<(), String> {
        let path = self.folder.join(name);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// `e2fsck -fn` of the image, which must find nothing.
    pub(super) fn check(&self) -> Result<(), String> {
        let output = self.call("e2fsck", &["-fn"])?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        Err(format!("{}: e2fsck -fn: {}\n{said}", self.side.name(), output.status))
    }

    fn call(&self, program: &str, words: &[&str]) -> Result<std::process::Output, String> {
        Command::new(program)
            .args(words)
            .arg(&self.image)
            .env("PATH", machine::search_path())
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("{program}: {error}"))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // The namespace is gone, and every mount with it.
        let _ = fs::remove_dir_all(&self.folder);
    }
}
