//! An image in huge pages: made, written, read, recovered and checked by its mapping alone.
//!
//! Fault model: what hugetlbfs has not (write(2), holes that can be asked for, storage for
//! everything): a call that does not go by the mapping fails, and a touched page that is not there
//! ends the test program by SIGBUS. Not covered: crashes (category `dax` of the crash kit), huge
//! pages of other sizes than the default.
//!
//! Needs root, to mount, and huge pages, which it asks the system for and gives back; says so
//! without.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;
use uext4::{AllocateMode, FileKind, MountOptions, NewInode, OpenFile, Owner, Volume};
use uext4_device::{Access, Allocate, DaxDevice, Device};

const NUMBER: &str = "/proc/sys/vm/nr_hugepages";
/// Pages of the image.
const PAGES: u64 = 16;

/// A folder of huge pages.
struct Pool {
    folder: TempDir,
    page: u64,
    /// Pages before.
    before: String,
    mounted: bool,
}

impl Pool {
    /// Takes pages beside those that are there; or says why it cannot.
    fn take() -> Result<Self, String> {
        let before = fs::read_to_string(NUMBER).map_err(|e| format!("{NUMBER}: {e}"))?;
        let number: u64 = before.trim().parse().map_err(|_| format!("{NUMBER}: {before}"))?;
        let page = meminfo("Hugepagesize:").ok_or("no huge pages")? << 10;
        let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
        let mut pool = Self { folder, page, before, mounted: false };
        let missing = PAGES.saturating_sub(meminfo("HugePages_Free:").unwrap_or(0));
        fs::write(NUMBER, (number + missing).to_string()).map_err(|e| format!("{NUMBER}: {e}"))?;
        let free = meminfo("HugePages_Free:").unwrap_or(0);
        if free < PAGES {
            return Err(format!("{free} huge pages are free, not {PAGES}"));
        }
        let mount = ["-t", "hugetlbfs", "none"];
        match Command::new("mount").args(mount).arg(pool.folder.path()).output() {
            Ok(output) if output.status.success() => pool.mounted = true,
            other => return Err(format!("mount: {other:?}")),
        }
        Ok(pool)
    }

    fn file(&self, name: &str, pages: u64) -> PathBuf {
        let path = self.folder.path().join(name);
        File::create(&path).unwrap().set_len(pages * self.page).unwrap();
        path
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.mounted {
            let status = Command::new("umount").arg(self.folder.path()).status();
            assert!(std::thread::panicking() || status.unwrap().success());
        }
        let _ = fs::write(NUMBER, self.before.trim());
    }
}

fn meminfo(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn map(path: &Path, access: Access) -> DaxDevice {
    DaxDevice::open(path, 0, access).unwrap()
}

fn open(path: &Path, words: &[&str]) -> Volume {
    let mut options = MountOptions::default();
    words.iter().for_each(|word| assert!(options.parse(word).is_ok(), "{word}"));
    let access = if options.read_only { Access::ReadOnly } else { Access::ReadWrite };
    Volume::open(Arc::new(map(path, access)), options).unwrap()
}

fn find(volume: &Volume) -> OpenFile {
    let inode = volume.lookup(&volume.root().unwrap(), b"file").unwrap();
    volume.open_file(&inode).unwrap()
}

fn expect(volume: &Volume, model: &[u8]) {
    let mut back = vec![0; model.len() + 1];
    assert_eq!(find(volume).read_at(0, &mut back).unwrap(), model.len());
    assert!(back[..model.len()] == *model, "bytes differ");
}

fn expect_clean(path: &Path) {
    let options = uext4_fsck::Options { threads: 1, findings_max: 10 };
    let report = uext4_fsck::check(&map(path, Access::ReadOnly), &options, &mut ()).unwrap();
    let findings: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
    assert_eq!(findings, [""; 0]);
}

#[test]
fn an_image_in_huge_pages() {
    let pool = match Pool::take() {
        Ok(pool) => pool,
        Err(why) => return println!("skipped: {why}"),
    };
    overwrites_and_a_remount(&pool);
    too_few_pages(&pool);
    pages_when_they_are_written(&pool);
}

fn overwrites_and_a_remount(pool: &Pool) {
    let path = pool.file("image", PAGES);
    assert!(DaxDevice::is_only_way(&path));
    {
        let device = map(&path, Access::ReadWrite);
        assert!(device.fresh_zeroes() && device.len() == PAGES * pool.page);
        uext4_mkfs::format(&device, &uext4_mkfs::Options::default()).unwrap();
    }
    expect_clean(&path);
    let mut random = StdRng::seed_from_u64(6);
    let mut model = vec![0_u8; 3 << 20];
    random.fill(&mut *model);
    let volume = open(&path, &["dax=always"]);
    let new = NewInode {
        kind: FileKind::Regular,
        mode: 0o644,
        owner: Owner::default(),
        rdev: Default::default(),
    };
    let inode = volume.create(&volume.root().unwrap(), b"file", &new).unwrap();
    let file = volume.open_file(&inode).unwrap();
    assert_eq!(file.write_at(0, &model).unwrap(), model.len());
    for round in 0..200 {
        let at = random.random_range(0..model.len() - 9000);
        let len = random.random_range(1..9000);
        model[at..at + len].fill(round);
        assert_eq!(file.write_at(at as u64, &model[at..at + len]).unwrap(), len);
    }
    assert!(volume.stats().number("dax_overwrites").unwrap() >= 200);
    file.allocate(AllocateMode::PunchHole, 5000, 100_000).unwrap();
    model[5000..105_000].fill(0);
    file.sync(false).unwrap();
    expect(&volume, &model);
    drop((file, inode));
    volume.close().unwrap();
    expect_clean(&path);
    for words in [&["dax=always"][..], &["dax=always", "ro"], &["dax=never"]] {
        let volume = open(&path, words);
        expect(&volume, &model);
        volume.close().unwrap();
    }
    expect_clean(&path);
    fs::remove_file(&path).unwrap();
}

/// More pages than there are: an error, and nothing is kept.
fn too_few_pages(pool: &Pool) {
    let free = meminfo("HugePages_Free:").unwrap();
    let path = pool.file("large", free + 8);
    let error = DaxDevice::open(&path, 0, Access::ReadWrite).unwrap_err();
    assert_eq!(error.errno(), rustix::io::Errno::NOSPC.raw_os_error(), "{error}");
    assert!(error.to_string().contains("cannot allocate storage"), "{error}");
    assert_eq!(meminfo("HugePages_Free:").unwrap(), free);
    // Holes are read without pages.
    let mut back = [1; 10_000];
    map(&path, Access::ReadOnly).read_at(pool.page - 5000, &mut back).unwrap();
    assert_eq!((back, meminfo("HugePages_Free:").unwrap()), ([0; 10_000], free));
    fs::remove_file(&path).unwrap();
}

fn pages_when_they_are_written(pool: &Pool) {
    let free = meminfo("HugePages_Free:").unwrap();
    let path = pool.file("sparse", free + 8);
    let device = DaxDevice::open_with(&path, 0, Access::ReadWrite, Allocate::AtWrite).unwrap();
    let mut written = 0;
    let error = loop {
        match device.write_at(written * pool.page + 100, &[7; 4096]) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((error.raw_os_error(), written), (Some(28), free), "{error}");
    let mut back = [1; 4096];
    device.read_at((written - 1) * pool.page + 100, &mut back).unwrap();
    assert_eq!(back, [7; 4096]);
    device.read_at(written * pool.page, &mut back).unwrap();
    assert_eq!(back, [0; 4096]);
    device.flush().unwrap();
    drop(device);
    fs::remove_file(&path).unwrap();
}
