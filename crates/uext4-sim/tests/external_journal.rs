//! A journal on a device of its own, through the library.
//!
//! Fault model: the wrong journal; a device of the two that fails at a write or a flush, once or
//! from then on, at any moment of a load; a volume that is opened read-only while its log is dirty;
//! a log whose cache is volatile, or holds what was there before another host wrote.
//! Checked: what was synced is there after the next opening; somebody is told of a failure; a
//! refusal changes neither device. Losses of power are the crash kit's (`--format external`).

use std::io;
use std::sync::{Arc, Mutex};
use uext4::{ErrorKind, InodeRef, MountOptions, NewInode, Owner, Volume};
use uext4_device::{
    Device, Fault, FaultDevice, FaultPlan, MemoryDevice, Operation, SharedDevice, Times,
};
use uext4_mkfs::{JournalDevice, Options, format, format_with_journal};
use uext4_ondisk::FileKind;

/// A file system and its journal.
struct Pair {
    data: Arc<MemoryDevice>,
    log: Arc<MemoryDevice>,
}

impl Pair {
    fn new() -> Pair {
        Pair::made(&Options::default())
    }

    fn made(options: &Options) -> Pair {
        let (data, log) = (MemoryDevice::new(16 << 20), journal());
        let journal = JournalDevice::read(&log, 0).unwrap();
        format_with_journal(&data, options, Some(&journal)).unwrap();
        Pair { data: Arc::new(data), log: Arc::new(log) }
    }

    fn open(&self, options: MountOptions) -> uext4::Result<Volume> {
        Volume::open_with_journal(self.data.clone(), self.log.clone(), options)
    }

    fn copy(&self) -> Pair {
        Pair { data: Arc::new(self.data.snapshot()), log: Arc::new(self.log.snapshot()) }
    }

    fn bytes(&self) -> [Vec<u8>; 2] {
        [bytes(&self.data), bytes(&self.log)]
    }

    fn findings(&self) -> Vec<String> {
        let options = uext4_fsck::Options::default();
        let log: &dyn Device = &*self.log;
        let report = uext4_fsck::check_with_journal(&*self.data, Some(log), &options, &mut ());
        report.unwrap().findings.iter().map(ToString::to_string).collect()
    }
}

/// A journal device without a user.
fn journal() -> MemoryDevice {
    let log = MemoryDevice::new(5 << 20);
    let features = "journal_dev".to_owned();
    let words = Options { block_size: Some(1024), features, ..Options::default() };
    format(&log, &words).unwrap();
    log
}

fn bytes(device: &MemoryDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.len() as usize];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}

fn create(volume: &Volume, name: &str) -> uext4::Result<InodeRef> {
    let owner = Owner { uid: 0, gid: 0 };
    let rdev = uext4::Device::default();
    let new = NewInode { kind: FileKind::Regular, mode: 0o644, owner, rdev };
    volume.create(&volume.root()?, name.as_bytes(), &new)
}

/// Makes a file and syncs it.
fn put(volume: &Volume, name: &str, content: &[u8]) -> uext4::Result<()> {
    let file = volume.open_file(&create(volume, name)?)?;
    file.write_at(0, content)?;
    file.sync(false)
}

fn get(volume: &Volume, name: &str) -> uext4::Result<Vec<u8>> {
    let file = volume.open_file(&volume.lookup(&volume.root()?, name.as_bytes())?)?;
    let mut content = vec![0; 8192];
    let count = file.read_at(0, &mut content)?;
    content.truncate(count);
    Ok(content)
}

fn content(n: usize) -> Vec<u8> {
    vec![n as u8 + 1; 3000]
}

#[test]
fn a_volume_is_written_closed_and_recovered() {
    let pair = Pair::new();
    let volume = pair.open(MountOptions::default()).unwrap();
    assert!(!volume.read_only());
    put(&volume, "a", &content(0)).unwrap();
    volume.close().unwrap();
    assert_eq!(pair.findings(), [""; 0]);
    let volume = pair.open(MountOptions::default()).unwrap();
    assert_eq!(volume.recovery().transactions, 0);
    put(&volume, "b", &content(1)).unwrap();
    volume.abandon();

    // Read-only it is replayed into memory, and neither device is written.
    let before = pair.bytes();
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let volume = pair.open(options.clone()).unwrap();
    assert!(volume.recovery().transactions > 0);
    assert_eq!(get(&volume, "b").unwrap(), content(1));
    volume.close().unwrap();
    assert!(pair.bytes() == before, "a read-only volume has written");
    // Without the journal what needs it is not read.
    let error = Volume::open(pair.data.clone(), options).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unsupported, "{error}");

    let volume = pair.open(MountOptions::default()).unwrap();
    assert_eq!(get(&volume, "b").unwrap(), content(1));
    volume.close().unwrap();
    assert_eq!(pair.findings(), [""; 0]);
    let volume = Volume::open(pair.data.clone(), MountOptions::default()).unwrap();
    let reason = volume.read_only_reason().unwrap();
    assert!(
        reason.starts_with("its journal ") && reason.contains(" is on another device: name it")
    );
}

/// Each is one line, and no byte of a device has changed.
#[test]
fn wrong_journals_are_refused() {
    let pair = Pair::new();
    let other = Pair::new();
    let plain = MemoryDevice::new(16 << 20);
    format(&plain, &Options::default()).unwrap();
    // The right UUID, and another user.
    let stolen = pair.log.snapshot();
    let at = 2048 + 0x100;
    stolen.write_at(at, &[7; 16]).unwrap();
    // Cut off.
    let short = MemoryDevice::new(4 << 20);
    short.write_at(0, &bytes(&pair.log)[..4 << 20]).unwrap();
    let cases: [(&MemoryDevice, &str); 6] = [
        (&other.log, "is the journal "),
        (&stolen, "is the journal of 07070707-0707-0707-0707-070707070707, not of this"),
        (&short, "truncated: the file system has 5120 blocks of 1024 bytes"),
        (&pair.data, "holds a file system, not a journal"),
        (&journal(), "is the journal "),
        (&MemoryDevice::new(1000), "no ext4 superblock"),
    ];
    for (log, want) in cases {
        let before = [bytes(&pair.data), bytes(log)];
        let log = Arc::new(log.snapshot());
        let opened =
            Volume::open_with_journal(pair.data.clone(), log.clone(), MountOptions::default());
        let line = opened.unwrap_err().to_string();
        assert!(line.contains(want) && !line.contains('\n'), "{line}");
        assert!([bytes(&pair.data), bytes(&log)] == before, "{line}");
    }
    let opened =
        Volume::open_with_journal(Arc::new(plain), pair.log.clone(), MountOptions::default());
    let line = opened.unwrap_err().to_string();
    assert!(line.contains("has its journal inside"), "{line}");
}

/// The checker names the faults of a journal device.
#[test]
fn the_checker_looks_at_the_journal_device() {
    let pair = Pair::new();
    assert_eq!(pair.findings(), [""; 0]);
    // Of nobody, and of another.
    pair.log.write_at(2048 + 0x40, &[0; 4]).unwrap();
    assert!(pair.findings()[0].ends_with("[journal.device_user]"), "{:?}", pair.findings());
    pair.log.write_at(2048 + 0x40, &[0, 0, 0, 1]).unwrap();
    pair.log.write_at(2048 + 0x100, &[7; 16]).unwrap();
    assert!(pair.findings()[0].ends_with("[journal.device_user]"), "{:?}", pair.findings());
    pair.log.write_at(1024 + 0x68, &[7; 16]).unwrap();
    assert!(pair.findings()[0].ends_with("[journal.device]"), "{:?}", pair.findings());
}

/// The nth write or flush of a device fails, once or from then on.
#[test]
fn a_device_that_fails_loses_nothing_that_was_synced() {
    let base = Pair::new();
    let mut struck = 0;
    for (of_log, operation, times) in [
        (true, Operation::Write, Times::Once),
        (true, Operation::Write, Times::Onwards),
        (true, Operation::Flush, Times::Once),
        (true, Operation::Flush, Times::Onwards),
        (false, Operation::Write, Times::Onwards),
        (false, Operation::Flush, Times::Onwards),
    ] {
        for nth in 1..24 {
            let pair = base.copy();
            let inner: SharedDevice = if of_log { pair.log.clone() } else { pair.data.clone() };
            let faulty = Arc::new(FaultDevice::new(inner));
            faulty.arm(FaultPlan { operation, nth, times, fault: Fault::Io });
            let (data, log): (SharedDevice, SharedDevice) = match of_log {
                true => (pair.data.clone(), faulty.clone()),
                false => (faulty.clone(), pair.log.clone()),
            };
            let mut synced = 0;
            let mut told = false;
            match Volume::open_with_journal(data, log, MountOptions::default()) {
                Err(_) => told = true,
                Ok(volume) => {
                    while synced < 6 && put(&volume, &format!("{synced}"), &content(synced)).is_ok()
                    {
                        synced += 1;
                    }
                    told |= synced < 6;
                    told |= volume.close().is_err();
                }
            }
            let what = format!("log {of_log}, {operation:?} {nth} {times:?}: {synced} synced");
            struck += u64::from(faulty.struck() > 0);
            assert!(told || faulty.struck() == 0, "{what}: nobody was told");
            let volume = pair.open(MountOptions::default()).expect(&what);
            for n in 0..synced {
                assert_eq!(get(&volume, &format!("{n}")).expect(&what), content(n), "{what}");
            }
            volume.close().expect(&what);
            let mut findings = pair.findings();
            findings.retain(|line| !line.ends_with("[superblock.errors]"));
            assert_eq!(findings, [""; 0], "{what}");
        }
    }
    assert!(struck > 60, "only {struck} faults struck");
}

/// A log with a cache of its own.
#[derive(Debug)]
struct Cached {
    log: Arc<MemoryDevice>,
    /// What the medium has.
    medium: Mutex<MemoryDevice>,
    /// What reads see until the cache is dropped.
    stale: Mutex<Option<MemoryDevice>>,
}

impl Cached {
    fn new(log: &Arc<MemoryDevice>, medium: MemoryDevice, stale: Option<MemoryDevice>) -> Self {
        Cached { log: Arc::clone(log), medium: Mutex::new(medium), stale: Mutex::new(stale) }
    }

    fn medium(&self) -> Arc<MemoryDevice> {
        Arc::new(self.medium.lock().unwrap().snapshot())
    }
}

impl Device for Cached {
    fn len(&self) -> u64 {
        self.log.len()
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let stale = self.stale.lock().unwrap();
        stale.as_ref().unwrap_or(&self.log).read_at(offset, buf)
    }

    fn drop_cached(&self) {
        *self.stale.lock().unwrap() = None;
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.log.write_at(offset, buf)
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.log.write_at(offset, buf)?;
        self.medium.lock().unwrap().write_at(offset, buf)
    }

    fn flush(&self) -> io::Result<()> {
        *self.medium.lock().unwrap() = self.log.snapshot();
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.log.punch(offset, len)
    }
}

/// The log of a killed process is in a cache alone, and power fails at the nth write of its replay.
#[test]
fn a_replay_that_is_cut_short_can_be_repeated() {
    let base = Pair::new();
    let old = base.log.snapshot();
    let volume = base.open(MountOptions::default()).unwrap();
    put(&volume, "a", &content(0)).unwrap();
    volume.abandon();
    for nth in 1..4 {
        let pair = base.copy();
        let faulty = Arc::new(FaultDevice::new(pair.data.clone()));
        let (operation, times, fault) = (Operation::Write, Times::Onwards, Fault::Io);
        faulty.arm(FaultPlan { operation, nth, times, fault });
        let log = Arc::new(Cached::new(&pair.log, old.snapshot(), None));
        Volume::open_with_journal(faulty, log.clone(), MountOptions::default()).unwrap_err();
        let left = Pair { data: pair.data, log: log.medium() };
        let volume = left.open(MountOptions::default()).unwrap();
        assert_eq!(get(&volume, "a").unwrap(), content(0), "write {nth}");
        volume.close().unwrap();
        assert_eq!(left.findings(), [""; 0], "write {nth}");
    }
}

/// With barrier=0 too: what a clean close leaves on the medium is an empty log.
#[test]
fn a_clean_close_empties_the_log_durably() {
    let pair = Pair::new();
    let log = Arc::new(Cached::new(&pair.log, pair.log.snapshot(), None));
    let options = MountOptions { barrier: false, ..MountOptions::default() };
    let volume = Volume::open_with_journal(pair.data.clone(), log.clone(), options).unwrap();
    put(&volume, "a", &content(0)).unwrap();
    // The log as it is now reaches the medium, the rest does only if it is flushed.
    log.flush().unwrap();
    volume.close().unwrap();
    let left = Pair { data: pair.data, log: log.medium() };
    assert_eq!(left.findings(), [""; 0]);
    let superblock = |log: &MemoryDevice| bytes(log)[2048..3072].to_vec();
    assert!(superblock(&left.log) == superblock(&pair.log), "the log is not empty on the medium");
}

/// With mmp: another host has written the log, and this one has read it before that.
#[cfg(not(any(feature = "shuttle", feature = "simulate")))]
#[test]
fn a_claim_drops_what_was_read_of_the_log_before() {
    let features = "mmp".to_owned();
    let pair = Pair::made(&Options { features, ..Options::default() });
    let old = pair.log.snapshot();
    let options = || {
        let mmp_second = std::time::Duration::from_millis(20);
        MountOptions { mmp_second, ..MountOptions::default() }
    };
    let volume = pair.open(options()).unwrap();
    put(&volume, "a", &content(0)).unwrap();
    volume.abandon();
    let data: SharedDevice = pair.data.clone();
    uext4::clear_mmp(&data).unwrap();
    let log = Arc::new(Cached::new(&pair.log, pair.log.snapshot(), Some(old)));
    let volume = Volume::open_with_journal(data, log, options()).unwrap();
    assert_eq!(get(&volume, "a").unwrap(), content(0));
    volume.close().unwrap();
}

/// Whether what was synced reached the medium is not known then.
#[test]
fn a_failed_flush_of_the_log_is_not_forgotten() {
    let pair = Pair::new();
    let faulty = Arc::new(FaultDevice::new(pair.log.clone()));
    let options = MountOptions::default();
    let volume = Volume::open_with_journal(pair.data.clone(), faulty.clone(), options).unwrap();
    put(&volume, "a", &content(0)).unwrap();
    let nth = faulty.count(Operation::Flush) + 1;
    let (operation, times, fault) = (Operation::Flush, Times::Once, Fault::Io);
    faulty.arm(FaultPlan { operation, nth, times, fault });
    put(&volume, "b", &content(1)).unwrap_err();
    volume.sync().unwrap_err();
    volume.remount_read_only().unwrap_err();
    assert_eq!(faulty.struck(), 1);
    assert!(volume.has_lost_changes());
}

/// Without a replay a read-only volume needs nothing of its journal.
#[test]
fn a_damaged_journal_is_left_alone() {
    let pair = Pair::new();
    let volume = pair.open(MountOptions::default()).unwrap();
    put(&volume, "a", &content(0)).unwrap();
    volume.abandon();
    pair.log.write_at(1024, &[0; 2048]).unwrap();
    let options = MountOptions { read_only: true, no_recovery: true, ..MountOptions::default() };
    pair.open(options.clone()).unwrap().close().unwrap();
    pair.open(MountOptions { no_recovery: false, ..options }).unwrap_err();
}
