//! What is timed on a mount: a tree unpacked, walked and removed, a large file written and read.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use super::Stage;
use super::place::{Place, Served, Store};
use crate::machine;

/// Bytes of the large file.
const LARGE: &str = "1024";

/// Times of one place in seconds; `None` where it cannot be measured here.
pub(super) fn measure(stage: &Stage, place: &Place) -> Result<Option<Vec<Time>>, String> {
    if place.is_kernel && !machine::is_root() {
        println!("{}: left out, a loop device needs root", place.name);
        return Ok(None);
    }
    let mut times = Vec::new();
    if !place.is_kernel {
        times.push(import(stage, place)?);
    }
    let folder = Folder::make(stage)?;
    let mut disk = Disk::of(stage, place, &folder.path)?;
    let mut time = |name, line: &[String]| {
        let begun = Instant::now();
        call_words(line)?;
        times.push((name, begun.elapsed().as_secs_f64()));
        Ok::<(), String>(())
    };
    let (at, archive) = (disk.point.clone(), stage.archive.display().to_string());
    let and_sync = |line: String| shell(&format!("{line} && {}", disk.sync.join(" ")));
    let untar = and_sync(format!("tar -xf {archive} -C {at}"));
    let remove = and_sync(format!("rm -r {at}/tree"));
    call_words(&disk.make)?;
    disk.mount()?;
    time("untar, sync", &untar)?;
    let write = format!("dd if=/dev/zero of={at}/large bs=1M count={LARGE} conv=fsync status=none");
    time("write 1 GiB, fsync", &shell(&write))?;
    disk.mount_cold()?;
    time("find", &shell(&format!("find {at}/tree -printf '%s\n' >{at}/../found")))?;
    time("read 1 GiB", &shell(&format!("dd if={at}/large of=/dev/null bs=1M status=none")))?;
    disk.mount_cold()?;
    // tar reads no file if its archive is /dev/null.
    time("tar of all", &shell(&format!("tar -cf - -C {at} tree | cat >/dev/null")))?;
    time("rm -r, sync", &remove)?;
    disk.unmount()?;
    Ok(Some(times))
}

/// What was measured, and seconds.
pub(super) type Time = (&'static str, f64);

/// The tree without a mount, on an image of its own.
fn import(stage: &Stage, place: &Place) -> Result<Time, String> {
    let folder = Folder::make(stage)?;
    let disk = Disk::of(stage, place, &folder.path)?;
    call_words(&disk.make)?;
    let begun = Instant::now();
    let program = stage.programs.join("uext4");
    call(Command::new(program).args(["-q", "import"]).arg(&stage.archive).arg(&disk.name))?;
    Ok(("import", begun.elapsed().as_secs_f64()))
}

fn shell(line: &str) -> Vec<String> {
    words(&["sh", "-ec", line])
}

/// What lies in memory of any disk, the loop device's and the servers' among them, which outlives a
/// mount. An ordinary user cannot have it forgotten.
fn forget_caches() -> Result<(), String> {
    if !machine::is_root() {
        println!("not root: what is read next may lie in memory");
        return Ok(());
    }
    rustix::fs::sync();
    let file = "/proc/sys/vm/drop_caches";
    fs::write(file, "3").map_err(|error| format!("far: {file}: {error}"))
}

/// A folder of one measurement, which is removed with it.
pub(super) struct Folder {
    pub(super) path: PathBuf,
}

impl Folder {
    pub(super) fn make(stage: &Stage) -> Result<Self, String> {
        let path = stage.folder.join("place");
        fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self { path })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let point = self.path.join("mnt");
        if machine::is_mounted(&point) || machine::is_mounted(&self.path.join("nbd")) {
            println!("{}: still mounted, left", self.path.display());
        } else {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// A file system that can be made and mounted. What is mounted is unmounted with it, before the
/// servers end.
struct Disk {
    /// What is made and mounted: an image, its URI, or a loop device.
    name: String,
    point: String,
    make: Vec<String>,
    mount: Vec<String>,
    unmount: Vec<String>,
    sync: Vec<String>,
    /// When all is over, from the last to the first.
    end: Vec<Vec<String>>,
    is_mounted: bool,
    served: Served,
}

fn words(line: &[&str]) -> Vec<String> {
    line.iter().map(|&word| word.to_owned()).collect()
}

impl Disk {
    fn of(stage: &Stage, place: &Place, folder: &Path) -> Result<Self, String> {
        let point = folder.join("mnt");
        fs::create_dir(&point).map_err(|error| format!("{}: {error}", point.display()))?;
        let served = place.begin(stage, folder, Store::Disk)?;
        let (name, point) = (served.name(), point.display().to_string());
        let mut disk = Self {
            name,
            point,
            make: Vec::new(),
            mount: Vec::new(),
            unmount: Vec::new(),
            sync: Vec::new(),
            end: Vec::new(),
            is_mounted: false,
            served,
        };
        if place.is_kernel {
            disk.attach(folder)?;
            let (device, point) = (&disk.name, &disk.point);
            // What mkfs leaves to the mount would be written while it is measured.
            let lazy = "lazy_itable_init=0,lazy_journal_init=0";
            disk.make = words(&["mkfs.ext4", "-q", "-F", "-E", lazy, device]);
            disk.mount = words(&["mount", "-t", "ext4", device, point]);
            disk.unmount = words(&["umount", point]);
            disk.sync = words(&["sync", "-f", point]);
        } else {
            let program = stage.programs.join("uext4").display().to_string();
            let (name, point) = (&disk.name, &disk.point);
            disk.make = words(&[&program, "-q", "mkfs", name]);
            disk.mount = words(&[&program, "mount", name, point]);
            disk.unmount = words(&[&program, "umount", point]);
            disk.sync = words(&[&program, "sync", point]);
        }
        Ok(disk)
    }

    /// A loop device on the image, or on the file that nbdfuse shows of the server.
    fn attach(&mut self, folder: &Path) -> Result<(), String> {
        let mut image = self.served.image.clone();
        if let Some(socket) = self.served.socket.clone() {
            let shown = folder.join("nbd");
            fs::create_dir(&shown).map_err(|error| format!("{}: {error}", shown.display()))?;
            image = shown.join("disk");
            // Not there yet, the folder is no mount point, and that is told.
            self.end.push(words(&["umount", &shown.display().to_string()]));
            let mut nbdfuse = Command::new("nbdfuse");
            self.served.start(nbdfuse.arg(&image).arg("--unix").arg(&socket), &image)?;
        }
        let device = call(Command::new("losetup").args(["--find", "--show"]).arg(&image))?;
        device.trim().clone_into(&mut self.name);
        self.end.push(words(&["losetup", "--detach", &self.name]));
        Ok(())
    }

    fn mount(&mut self) -> Result<(), String> {
        call_words(&self.mount)?;
        self.is_mounted = true;
        Ok(())
    }

    /// Mounts it again, with nothing of it in memory.
    fn mount_cold(&mut self) -> Result<(), String> {
        self.unmount()?;
        forget_caches()?;
        self.mount()
    }

    fn unmount(&mut self) -> Result<(), String> {
        call_words(&self.unmount)?;
        self.is_mounted = false;
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let unmount = self.is_mounted.then_some(&self.unmount);
        for words in unmount.into_iter().chain(self.end.iter().rev()) {
            if let Err(why) = call_words(words) {
                println!("{why}");
            }
        }
    }
}

fn call_words(words: &[String]) -> Result<(), String> {
    call(Command::new(&words[0]).args(&words[1..])).map(drop)
}

/// Runs a command; what it printed.
pub(super) fn call(command: &mut Command) -> Result<String, String> {
    let name = format!("{command:?}");
    let output = command.env("PATH", machine::search_path()).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("far: {name}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("far: {name}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}
