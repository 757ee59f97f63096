//! A disk of the kernel that records what it is told: a loop device over a file of a recorded
//! mount.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use uext4::{FileKind, MountOptions, NewInode, OpenFile, Volume};
use uext4_crashtest::record::{Recorder, Recording};
use uext4_crashtest::trace::{Call, FileId};
use uext4_device::{Device, MemoryDevice};
use uext4_fuse::attach::{self, Detach};
use uext4_fuse::{FuseBlk, FuseOptions, IoUring, Session};

/// What reached the disk.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Write { offset: u64, data: Arc<[u8]> },
    Zero { offset: u64, len: u64 },
    Flush,
    Mark,
}

/// The kernel's ext4 on a disk that is recorded.
pub(crate) struct Disk {
    folder: tempfile::TempDir,
    outer: Volume,
    session: Option<Session>,
    recording: Arc<Recording>,
    marks: Option<File>,
    /// Inode of the file that is the disk.
    number: u32,
    marks_number: u32,
    is_mounted: bool,
}

impl Disk {
    /// Puts an image on a recorded disk, and mounts it by the kernel.
    pub(crate) fn mount(image: &MemoryDevice, options: &str) -> Disk {
        let folder = tempfile::tempdir().unwrap();
        for name in ["outer", "inner"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        let device = MemoryDevice::new(4 * image.len());
        uext4_mkfs::format(&device, &uext4_mkfs::Options::default()).unwrap();
        let outer = Volume::open(Arc::new(device), MountOptions::default()).unwrap();
        let file = new_file(&outer, "disk");
        let mut bytes = vec![0; image.len() as usize];
        image.read_at(0, &mut bytes).unwrap();
        file.write_at(0, &bytes).unwrap();
        let marks = new_file(&outer, "marks");
        let [number, marks_number] = [&file, &marks].map(|file| file.inode().ino().get());
        drop((file, marks));
        let recording = Recording::new(1 << 30, None);
        let fuse = FuseOptions {
            writeback_cache: false,
            io_uring: IoUring::Off,
            sandbox: false,
            fuseblk: FuseBlk::Off,
            fs_name: "uext4-recorded-disk".into(),
            ..FuseOptions::default()
        };
        let recorder = |handler| Recorder::new(handler, Arc::clone(&recording));
        let dir = folder.path().join("outer");
        let session = Session::start_with(outer.clone(), &dir, &fuse, recorder).unwrap();
        let marks = Some(File::options().write(true).open(dir.join("marks")).unwrap());
        let session = Some(session);
        let is_mounted = false;
        let mut disk =
            Disk { folder, outer, session, recording, marks, number, marks_number, is_mounted };
        let options = format!("loop,noatime,noinit_itable,{options}");
        let options = options.trim_end_matches(',');
        run(Command::new("mount")
            .args(["-t", "ext4", "-o", options])
            .arg(dir.join("disk"))
            .arg(disk.dir()));
        disk.is_mounted = true;
        disk
    }

    /// Where the kernel has mounted the disk.
    pub(crate) fn dir(&self) -> PathBuf {
        self.folder.path().join("inner")
    }

    /// The call before this has returned.
    pub(crate) fn mark(&self) {
        self.marks.as_ref().unwrap().write_all_at(b"x", 0).unwrap();
    }

    /// Unmounts, and says what had reached the disk.
    pub(crate) fn end(mut self) -> Vec<Event> {
        run(Command::new("umount").arg(self.dir()));
        self.is_mounted = false;
        let recorded = self.recording.end();
        let file = |number: u32| {
            recorded.trace.before.iter().find(|(_, it)| *it == number).map(|(file, _)| *file)
        };
        let (disk, marks) = (file(self.number).unwrap(), file(self.marks_number));
        let steps = recorded.trace.steps.into_iter();
        steps.filter_map(|step| event(step.call, disk, marks)).collect()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_mounted {
            let _ = Command::new("umount").arg(self.dir()).status();
        }
        self.marks = None;
        let dir = self.folder.path().join("outer");
        // The loop device lets go of its file a moment after the unmount.
        let detached = (0..200).any(|_| {
            let ended = attach::detach(&dir, Detach::WhenIdle).is_ok();
            if !ended {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            ended
        });
        if !detached {
            attach::detach(&dir, Detach::Lazy).unwrap();
        }
        if let Some(session) = self.session.take() {
            let _ = session.join();
        }
        self.outer.clone().abandon();
    }
}

fn event(call: Call, disk: FileId, marks: Option<FileId>) -> Option<Event> {
    match call {
        Call::Write { file, .. } if Some(file) == marks => Some(Event::Mark),
        Call::Write { file, offset, data, .. } if file == disk => {
            Some(Event::Write { offset, data })
        }
        Call::Allocate { file, offset, len, .. } if file == disk => {
            Some(Event::Zero { offset, len })
        }
        Call::Sync { file, .. } if file == disk => Some(Event::Flush),
        Call::SyncAll => Some(Event::Flush),
        _ => None,
    }
}

impl Event {
    pub(crate) fn apply(&self, device: &MemoryDevice) {
        match self {
            Event::Write { offset, data } => device.write_at(*offset, data).unwrap(),
            Event::Zero { offset, len } => {
                device.punch(*offset, *len).unwrap();
            }
            Event::Flush | Event::Mark => {}
        }
    }

    pub(crate) fn changes_bytes(&self) -> bool {
        matches!(self, Event::Write { .. } | Event::Zero { .. })
    }
}

fn new_file(volume: &Volume, name: &str) -> OpenFile {
    let (kind, owner) = (FileKind::Regular, Default::default());
    let new = NewInode { kind, mode: 0o600, owner, rdev: Default::default() };
    let inode = volume.create(&volume.root().unwrap(), name.as_bytes(), &new).unwrap();
    volume.open_file(&inode).unwrap()
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
}

/// Why nothing can be proved here, if so.
pub(crate) fn hindrance() -> Option<&'static str> {
    let has = |path: &str| Path::new(path).exists();
    if !rustix::process::geteuid().is_root() {
        return Some("not root");
    }
    if !has("/dev/fuse") || !has("/dev/loop-control") {
        return Some("no /dev/fuse or no loop devices");
    }
    let systems = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    (!systems.contains("\text4\n")).then_some("the kernel has no ext4")
}
