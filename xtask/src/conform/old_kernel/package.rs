//! Debian 12's kernel and what boots it: fetched and unpacked, never installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Trouble;
use crate::machine;
use crate::packages::{self, Found};

/// Depends on the newest kernel of its series. The one for clouds has no 9p.
const NEWEST: &str = "linux-image-amd64";
/// What a package of the series is called.
const SERIES: &str = "linux-image-6.1.";
/// A shell, modprobe and mount in one program that needs no library.
const BUSYBOX: &str = "busybox-static";

/// What is needed to boot.
pub(super) struct Kernel {
    /// As `uname -r` says it.
    pub(super) release: String,
    pub(super) image: PathBuf,
    /// Holds a folder for each release.
    pub(super) modules: PathBuf,
    pub(super) busybox: PathBuf,
}

/// Looks for QEMU and the packages, and fetches what is missing.
pub(super) fn provide() -> Result<Kernel, Trouble> {
    if !cfg!(target_arch = "x86_64") {
        return Err(Trouble::Missing("runs the programs of this machine, on x86-64 alone".into()));
    }
    if let Found::Missing(names) = packages::provide_emulator() {
        return Err(Trouble::Missing(format!("missing: {names}")));
    }
    let needed = ["apt-get", "apt-cache", "dpkg-deb", "mke2fs", "e2fsck", "unshare", "setpriv"];
    if let Some(name) = needed.into_iter().find(|name| machine::program(name).is_none()) {
        return Err(Trouble::Missing(format!("{name} is not installed")));
    }
    let folder = super::folder();
    fs::create_dir_all(&folder).map_err(|error| fault(&folder, &error))?;
    let busybox = unpacked(&folder, BUSYBOX)?.join("bin/busybox");
    let package = newest()?;
    let files = unpacked(&folder, &package)?;
    let release = package.trim_start_matches("linux-image-").to_owned();
    let image = files.join("boot").join(format!("vmlinuz-{release}"));
    let modules = files.join("lib/modules");
    if !modules.join(&release).join("modules.dep").exists() {
        // A package's list of what module needs which is made where it is installed.
        run(Command::new(&busybox).args(["depmod", "-b"]).arg(&files).arg(&release))?;
    }
    if image.exists() && busybox.exists() {
        Ok(Kernel { release, image, modules, busybox })
    } else {
        Err(Trouble::fault(format!("{package}: not the files that were expected")))
    }
}

/// Name of the package that the newest kernel of the series is in.
fn newest() -> Result<String, Trouble> {
    let depends = || {
        let said = Command::new("apt-cache").args(["depends", NEWEST]).output().ok()?;
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        said.split_whitespace().find(|word| word.starts_with(SERIES)).map(str::to_owned)
    };
    depends().or_else(|| packages::update().then(depends).flatten()).ok_or_else(|| {
        Trouble::Missing(format!("the package archive of this system has no {SERIES}* (Debian 12)"))
    })
}

/// The files of a package, in a folder of its name.
fn unpacked(folder: &Path, package: &str) -> Result<PathBuf, Trouble> {
    let wanted = folder.join(package);
    if wanted.is_dir() {
        return Ok(wanted);
    }
    let downloads = folder.join("download");
    let _ = fs::remove_dir_all(&downloads);
    fs::create_dir_all(&downloads).map_err(|error| fault(&downloads, &error))?;
    let download = || {
        let mut command = Command::new("apt-get");
        run(command.args(["-q", "download", package]).current_dir(&downloads)).is_ok()
    };
    let fetched = download() || (packages::update() && download());
    if !fetched {
        return Err(Trouble::Missing(format!("{package} cannot be fetched (apt-get download)")));
    }
    let file = fs::read_dir(&downloads)
        .map_err(|error| fault(&downloads, &error))?
        .find_map(|entry| Some(entry.ok()?.path()))
        .ok_or_else(|| Trouble::fault(format!("{package}: nothing was fetched")))?;
    let fresh = downloads.join("files");
    run(Command::new("dpkg-deb").arg("-x").arg(&file).arg(&fresh))?;
    fs::rename(&fresh, &wanted).map_err(|error| fault(&wanted, &error))?;
    let _ = fs::remove_dir_all(&downloads);
    Ok(wanted)
}

pub(super) fn fault(path: &Path, error: &std::io::Error) -> Trouble {
    Trouble::fault(format!("{}: {error}", path.display()))
}

/// Runs a program to its end, without a word unless it fails.
pub(super) fn run(command: &mut Command) -> Result<(), Trouble> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| Trouble::fault(format!("{name}: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Trouble::fault(format!("{name}: {}: {said}", output.status)))
}
