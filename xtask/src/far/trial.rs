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
pub(super) fn measure(
    stage: &Stage,
    place: &Place,
) -> Result<Option<Vec<(&'static str, f64)>>, String> {
    if place.is_kernel && !machine::is_root() {
        println!("{}: left out, a loop device needs root", place.name);
        return Ok(None);
    }
    let folder = Folder::make(stage)?;
    let point = folder.path.join("mnt");
    fs::create_dir(&point).map_err(|error| format!("{}: {error}", point.display()))?;
    let served = place.begin(stage, &folder.path, Store::Disk)?;
    let mut disk = match place.is_kernel {
        true => Disk::of_kernel(served, &folder.path, &point)?,
        false => Disk::of_uext4(stage, served, &point),
    };
    let mut times = Vec::new();
    let mut time = |name: &'static str, commands: &[&[&str]]| {
        let begun = Instant::now();
        for words in commands {
            call(Command::new(words[0]).args(&words[1..]))?;
        }
        times.push((name, begun.elapsed().as_secs_f64()));
        Ok::<(), String>(())
    };
    let at = point.display().to_string();
    let (large, tree) = (format!("{at}/large"), format!("{at}/tree"));
    let archive = stage.archive.display().to_string();
    if let Some(import) = disk.import.clone() {
        disk.make()?;
        let import: Vec<&str> = import.iter().map(String::as_str).collect();
        time("import", &[&import])?;
    }
    disk.make()?;
    disk.mount()?;
    time("untar, sync", &[&["tar", "-xf", &archive, "-C", &at], &["sync", "-f", &at]])?;
    let (count, to) = (format!("count={LARGE}"), format!("of={large}"));
    time("write 1 GiB, fsync", &[&["dd", "if=/dev/zero", &to, "bs=1M", &count, "conv=fsync"]])?;
    disk.unmount()?;
    forget_caches();
    disk.mount()?;
    time("find", &[&["find", &tree, "-printf", "%s\n"]])?;
    let from = format!("if={large}");
    time("read 1 GiB", &[&["dd", &from, "of=/dev/null", "bs=1M"]])?;
    disk.unmount()?;
    forget_caches();
    disk.mount()?;
    time("tar of all", &[&["tar", "-cf", "-", "-C", &at, "tree"]])?;
    time("rm -r, sync", &[&["rm", "-r", &tree], &["sync", "-f", &at]])?;
    disk.unmount()?;
    Ok(Some(times))
}

/// What lies in memory of any disk, the loop device's and the servers' among them, which outlives a
/// mount. As an ordinary user nothing is forgotten; then no place is the kernel's.
fn forget_caches() {
    rustix::fs::sync();
    let _ = fs::write("/proc/sys/vm/drop_caches", "3");
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
    make: Vec<String>,
    mount: Vec<String>,
    unmount: Vec<String>,
    /// Unpacks the archive without a mount.
    import: Option<Vec<String>>,
    /// When all is over.
    end: Vec<Vec<String>>,
    is_mounted: bool,
    _served: Served,
}

fn words(line: &[&str]) -> Vec<String> {
    line.iter().map(|&word| word.to_owned()).collect()
}

impl Disk {
    fn of_uext4(stage: &Stage, served: Served, point: &Path) -> Self {
        let program = stage.programs.join("uext4").display().to_string();
        let (name, point) = (served.name(), point.display().to_string());
        let archive = stage.archive.display().to_string();
        Self {
            make: words(&[&program, "-q", "mkfs", "-F", &name]),
            mount: words(&[&program, "mount", &name, &point]),
            unmount: words(&[&program, "umount", &point]),
            import: Some(words(&[&program, "-q", "import", &archive, &name])),
            end: Vec::new(),
            is_mounted: false,
            _served: served,
        }
    }

    /// By a loop device on the image, or on the file that nbdfuse shows of the server.
    fn of_kernel(mut served: Served, folder: &Path, point: &Path) -> Result<Self, String> {
        let mut end = Vec::new();
        let image = match served.socket.clone() {
            None => served.image.clone(),
            Some(socket) => {
                let shown = folder.join("nbd");
                fs::create_dir(&shown).map_err(|error| format!("{}: {error}", shown.display()))?;
                let file = shown.join("disk");
                let mut nbdfuse = Command::new("nbdfuse");
                served.start(nbdfuse.arg(&file).arg("--unix").arg(&socket), &file)?;
                end.push(words(&["umount", &shown.display().to_string()]));
                file
            }
        };
        let device = call(Command::new("losetup").args(["--find", "--show"]).arg(&image))?;
        let device = device.trim().to_owned();
        end.insert(0, words(&["losetup", "--detach", &device]));
        let point = point.display().to_string();
        Ok(Self {
            make: words(&["mkfs.ext4", "-q", "-F", &device]),
            mount: words(&["mount", "-t", "ext4", &device, &point]),
            unmount: words(&["umount", &point]),
            import: None,
            end,
            is_mounted: false,
            _served: served,
        })
    }

    fn make(&self) -> Result<(), String> {
        call_words(&self.make)
    }

    fn mount(&mut self) -> Result<(), String> {
        call_words(&self.mount)?;
        self.is_mounted = true;
        Ok(())
    }

    fn unmount(&mut self) -> Result<(), String> {
        self.is_mounted = false;
        call_words(&self.unmount)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let unmount = self.is_mounted.then_some(&self.unmount);
        for words in unmount.into_iter().chain(&self.end) {
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
