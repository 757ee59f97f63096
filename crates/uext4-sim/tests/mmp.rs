//! Multiple mount protection: hosts that share a device.
//!
//! Fault model: two hosts that open one device, one after the other and at the same moment; a host
//! that dies; one that does not hear of the other; one whose writes of the MMP block fail or are
//! late; hostile MMP blocks. Hosts are volumes of one process with different node names, and a
//! second is 100 ms long.
//! Demanded: two hosts never change the device at once, and what one wrote is whole for the next.
//! Not covered: a change that the store executes after it has been acknowledged to nobody; stores
//! that answer a read with old bytes. Two processes are in `mmp.rs` of uext4-cli.

#![cfg(not(any(feature = "shuttle", feature = "simulate")))]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use uext4::{Error, ErrorKind, FileKind, MountOptions, NewInode, Owner, Volume};
use uext4_device::{Device, MemoryDevice, SharedDevice};
use uext4_fsck::check;
use uext4_ondisk::mmp::{SEQ_CLEAN, SEQ_FSCK, SEQ_MAX};
use uext4_ondisk::{Layout, RawGroupDesc, RawMmp, RawSuperblock};

const SECOND: Duration = Duration::from_millis(100);

fn made() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    let options = uext4_mkfs::Options {
        features: "mmp".to_owned(),
        mmp_update_interval: Some(2),
        ..uext4_mkfs::Options::default()
    };
    uext4_mkfs::format(&*device, &options).unwrap();
    device
}

fn open(device: &SharedDevice, node: &str) -> Result<Volume, Error> {
    let options = MountOptions {
        mmp_node: Some(node.to_owned()),
        mmp_second: SECOND,
        commit_interval_ms: 5,
        ..MountOptions::default()
    };
    Volume::open(Arc::clone(device), options)
}

fn create(volume: &Volume, name: &str) -> Result<(), Error> {
    let (kind, owner) = (FileKind::Regular, Owner::default());
    let new = NewInode { kind, mode: 0o644, owner, rdev: Default::default() };
    volume.create(&volume.root()?, name.as_bytes(), &new).map(drop)
}

/// Superblock, and offset and content of the MMP block.
fn block(device: &dyn Device) -> (RawSuperblock, Layout, u64, RawMmp) {
    let mut bytes = [0; 1024];
    device.read_at(1024, &mut bytes).unwrap();
    let sb = RawSuperblock::read(&bytes).unwrap();
    let layout = Layout::new(&sb, None).unwrap();
    let at = sb.s_mmp_block.get() * u64::from(layout.block_size);
    device.read_at(at, &mut bytes).unwrap();
    (sb, layout, at, RawMmp::from_prefix(&bytes).unwrap())
}

fn assert_clean(device: &dyn Device) {
    let report = check(device, &uext4_fsck::Options::default(), &mut ()).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}

fn assert_in_use(result: Result<Volume, Error>, node: &str) {
    let error = result.expect_err("the device has another host");
    assert_eq!(*error.kind(), ErrorKind::InUse, "{error}");
    assert!(error.to_string().contains(&format!("node '{node}'")), "{error}");
}

#[test]
fn a_second_host_is_refused_while_the_first_lives() {
    let device: SharedDevice = made();
    let first = open(&device, "one").unwrap();
    create(&first, "a").unwrap();
    assert_in_use(open(&device, "two"), "one");
    create(&first, "b").unwrap();
    first.close().unwrap();
    assert_eq!(block(&*device).3.mmp_seq.get(), SEQ_CLEAN);
    let second = open(&device, "two").unwrap();
    let root = second.root().unwrap();
    for name in ["a", "b"] {
        second.lookup(&root, name.as_bytes()).unwrap();
    }
    second.close().unwrap();
    assert_clean(&*device);
}

#[test]
fn readers_neither_claim_nor_ask() {
    let device: SharedDevice = made();
    let writer = open(&device, "one").unwrap();
    let before = block(&*device).3.mmp_nodename;
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let reader = Volume::open(Arc::clone(&device), options).unwrap();
    reader.close().unwrap();
    assert_eq!(block(&*device).3.mmp_nodename, before);
    create(&writer, "a").unwrap();
    writer.close().unwrap();
}

/// In the documented time: twice the check interval and 2 seconds.
#[test]
fn the_claim_of_a_dead_host_is_taken_over() {
    let device: SharedDevice = made();
    let first = open(&device, "one").unwrap();
    create(&first, "a").unwrap();
    first.sync().unwrap();
    first.abandon();
    let check_interval = u32::from(block(&*device).3.mmp_check_interval.get());
    let start = Instant::now();
    let second = open(&device, "two").unwrap();
    let took = start.elapsed();
    assert!(took >= SECOND * (2 * check_interval + 1), "{took:?} is too early");
    assert!(took < SECOND * (2 * check_interval + 3) + Duration::from_secs(2), "{took:?}");
    second.lookup(&second.root().unwrap(), b"a").unwrap();
    second.close().unwrap();
    assert_clean(&*device);
}

#[test]
fn of_hosts_that_come_at_the_same_moment_one_gets_it() {
    for round in 0..4 {
        let device: SharedDevice = made();
        if round % 2 == 1 {
            open(&device, "dead").unwrap().abandon();
        }
        let (inside, most) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for node in ["one", "two", "three"] {
                let (device, inside, most) = (&device, &inside, &most);
                scope.spawn(move || match open(device, node) {
                    Ok(volume) => {
                        let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                        most.fetch_max(now, Ordering::SeqCst);
                        create(&volume, node).unwrap();
                        std::thread::sleep(SECOND * 4);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        volume.close().unwrap();
                    }
                    Err(error) => assert_eq!(*error.kind(), ErrorKind::InUse, "{error}"),
                });
            }
        });
        assert!(most.load(Ordering::SeqCst) <= 1, "round {round}: two hosts at once");
        assert_clean(&*device);
    }
}

/// A host that has lost the device changes nothing any more, and leaves the other's block alone.
#[test]
fn a_host_that_another_has_overrun_stops() {
    let memory = made();
    let device: SharedDevice = Arc::clone(&memory) as SharedDevice;
    let volume = open(&device, "one").unwrap();
    create(&volume, "a").unwrap();
    volume.sync().unwrap();
    let (_, layout, at, mut other) = block(&*device);
    other.mmp_seq.set(4711);
    other.set_names("two", "d");
    other.seal(&layout.checksums);
    memory.write_at(at, other.bytes()).unwrap();
    std::thread::sleep(SECOND * 4 + Duration::from_millis(200));
    let image = |memory: &MemoryDevice| {
        let mut bytes = vec![0; memory.len() as usize];
        memory.read_at(0, &mut bytes).unwrap();
        bytes
    };
    let before = image(&memory);
    let why = volume.read_only_reason().expect("the volume is read-only");
    assert!(why.contains("node 'two'"), "{why}");
    create(&volume, "b").unwrap_err();
    volume.close().unwrap_err();
    assert!(image(&memory) == before, "a change after the loss");
}

/// Fails or delays the writes of the MMP block.
#[derive(Debug)]
struct Troubled {
    memory: Arc<MemoryDevice>,
    at: u64,
    fails: AtomicU32,
    delay_ms: AtomicU64,
    others: AtomicU64,
}

impl Troubled {
    fn trouble(&self, offset: u64) -> io::Result<()> {
        if offset != self.at {
            self.others.fetch_add(1, Ordering::SeqCst);
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(self.delay_ms.load(Ordering::SeqCst)));
        let less = |left: u32| left.checked_sub(1);
        match self.fails.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less) {
            Ok(_) => Err(io::Error::from_raw_os_error(5)),
            Err(_) => Ok(()),
        }
    }
}

impl Device for Troubled {
    fn len(&self) -> u64 {
        self.memory.len()
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.memory.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.trouble(offset)?;
        self.memory.write_at(offset, buf)
    }

    fn flush(&self) -> io::Result<()> {
        self.memory.flush()
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.memory.punch(offset, len)
    }
}

#[test]
fn a_host_that_cannot_write_its_block_in_time_stops() {
    // Errors of a moment are borne; those that last end the claim, and so does a slow store.
    for (fails, delay_ms, ends) in [(1, 0, false), (u32::MAX, 0, true), (0, 1500, true)] {
        let memory = made();
        let at = block(&*memory).2;
        let troubled = Arc::new(Troubled {
            memory: Arc::clone(&memory),
            at,
            fails: AtomicU32::new(0),
            delay_ms: AtomicU64::new(0),
            others: AtomicU64::new(0),
        });
        let device: SharedDevice = Arc::clone(&troubled) as SharedDevice;
        let volume = open(&device, "one").unwrap();
        create(&volume, "a").unwrap();
        volume.sync().unwrap();
        troubled.fails.store(fails, Ordering::SeqCst);
        troubled.delay_ms.store(delay_ms, Ordering::SeqCst);
        // The check interval is 5 seconds.
        std::thread::sleep(SECOND * 10 + Duration::from_millis(100));
        let before = troubled.others.load(Ordering::SeqCst);
        assert_eq!(create(&volume, "b").and_then(|()| volume.sync()).is_err(), ends);
        let wrote = troubled.others.load(Ordering::SeqCst) != before;
        assert_eq!(wrote, !ends, "({fails}, {delay_ms})");
        troubled.fails.store(0, Ordering::SeqCst);
        assert_eq!(volume.close().is_err(), ends);
    }
}

/// Hostile or broken blocks, and a check under way: one line, and nothing is changed.
#[test]
fn blocks_that_cannot_be_trusted_are_refused() {
    type Change = fn(&mut RawSuperblock, &mut RawMmp, &Layout);
    let cases: [(&str, Change); 9] = [
        ("outside the file system", |sb, _, _| sb.s_mmp_block.set(0)),
        ("outside the file system", |sb, _, _| sb.s_mmp_block.set(u64::MAX)),
        ("outside the file system", |sb, _, _| sb.s_mmp_block.set(1 << 40)),
        ("outside the file system", |sb, _, _| sb.s_mmp_block.set(2)),
        ("magic", |_, mmp, _| mmp.mmp_magic.set(1)),
        ("checksum", |_, mmp, _| mmp.mmp_checksum.set(1)),
        ("mmp_check_interval", |_, mmp, layout| {
            mmp.mmp_check_interval.set(u16::MAX);
            mmp.seal(&layout.checksums);
        }),
        ("s_mmp_update_interval", |sb, _, _| sb.s_mmp_interval.set(u16::MAX)),
        ("uext4 tune --clear-mmp", |_, mmp, layout| {
            mmp.mmp_seq.set(SEQ_FSCK);
            mmp.seal(&layout.checksums);
        }),
    ];
    for (want, change) in cases {
        let memory = made();
        let (mut sb, layout, at, mut mmp) = block(&*memory);
        change(&mut sb, &mut mmp, &layout);
        sb.seal();
        memory.write_at(1024, sb.bytes()).unwrap();
        memory.write_at(at, mmp.bytes()).unwrap();
        let whole = |device: &MemoryDevice| {
            let mut bytes = vec![0; device.len() as usize];
            device.read_at(0, &mut bytes).unwrap();
            bytes
        };
        let before = whole(&memory);
        let device: SharedDevice = Arc::clone(&memory) as SharedDevice;
        let error = open(&device, "one").unwrap_err().to_string();
        assert!(error.contains(want) && !error.contains('\n'), "{want}: {error}");
        assert!(whole(&memory) == before, "{want}: the image was changed");
    }
}

/// States that no host writes, and that of a check, are findings; a host's claim is none. So it is
/// with e2fsck (`cargo xtask fsck-diff --only mmp`).
#[test]
fn the_checker_knows_the_states_of_the_block() {
    let cases =
        [(SEQ_CLEAN, true), (1, true), (SEQ_MAX, true), (SEQ_FSCK, false), (SEQ_FSCK + 1, false)];
    for (seq, is_clean) in cases {
        let memory = made();
        let (_, layout, at, mut mmp) = block(&*memory);
        mmp.mmp_seq.set(seq);
        mmp.seal(&layout.checksums);
        memory.write_at(at, mmp.bytes()).unwrap();
        let report = check(&*memory, &Default::default(), &mut ()).unwrap();
        assert_eq!(report.is_clean(), is_clean, "{seq:#x}: {:?}", report.findings);
    }
}

/// An inode table that lies in a group of its flex group, and bitmaps, are no places for the block,
/// even if they hold one.
#[test]
fn the_block_in_a_table_is_refused() {
    let memory = Arc::new(MemoryDevice::new(64 << 20));
    let options = uext4_mkfs::Options {
        features: "mmp".to_owned(),
        block_size: Some(1024),
        ..uext4_mkfs::Options::default()
    };
    uext4_mkfs::format(&*memory, &options).unwrap();
    let (mut sb, layout, _, mmp) = block(&*memory);
    let mut descs = vec![0; 1024];
    memory.read_at(layout.byte_of(layout.desc_block_no(0)), &mut descs).unwrap();
    let size = usize::from(layout.desc_size);
    let desc = RawGroupDesc::read(&descs[3 * size..4 * size], layout.desc_size).unwrap();
    let last = u64::from(layout.inode_table_blocks()) - 1;
    let table = desc.inode_table().get();
    for at in [table, table + last, desc.block_bitmap().get(), desc.inode_bitmap().get()] {
        let memory = Arc::new(memory.snapshot());
        memory.write_at(at * 1024, mmp.bytes()).unwrap();
        sb.s_mmp_block.set(at);
        sb.seal();
        memory.write_at(1024, sb.bytes()).unwrap();
        let before = block(&*memory).3;
        let device: SharedDevice = Arc::clone(&memory) as SharedDevice;
        let error = open(&device, "one").unwrap_err().to_string();
        assert!(error.contains("s_mmp_block"), "{error}");
        assert!(block(&*memory).3 == before, "block {at} was written");
    }
}

/// The kernel begins with twice the update interval, which may be 300 s.
#[test]
fn long_check_intervals_of_a_kernel_are_known() {
    let memory = made();
    let (_, layout, at, mut mmp) = block(&*memory);
    mmp.mmp_check_interval.set(600);
    mmp.seal(&layout.checksums);
    memory.write_at(at, mmp.bytes()).unwrap();
    let device: SharedDevice = memory;
    open(&device, "one").unwrap().close().unwrap();
}

/// A host whose first write is slow, and another one that comes right behind its second.
#[derive(Debug)]
struct Overtaken {
    memory: Arc<MemoryDevice>,
    at: u64,
    writes: AtomicU32,
    other: Vec<u8>,
}

impl Device for Overtaken {
    fn len(&self) -> u64 {
        self.memory.len()
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.memory.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        let number = (offset == self.at).then(|| self.writes.fetch_add(1, Ordering::SeqCst));
        if number == Some(0) {
            std::thread::sleep(SECOND);
        }
        self.memory.write_at(offset, buf)?;
        if number == Some(1) {
            self.memory.write_at(offset, &self.other)?;
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.memory.flush()
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.memory.punch(offset, len)
    }
}

#[test]
fn a_slow_host_looks_again_after_its_second_write() {
    let memory = made();
    let (_, layout, at, mut other) = block(&*memory);
    other.mmp_seq.set(4711);
    other.set_names("two", "d");
    other.seal(&layout.checksums);
    let (writes, other) = (AtomicU32::new(0), other.bytes().to_vec());
    let device: SharedDevice = Arc::new(Overtaken { memory, at, writes, other });
    assert_in_use(open(&device, "one"), "two");
}

#[test]
fn a_claim_that_nobody_keeps_can_be_cleared() {
    let device: SharedDevice = made();
    assert_eq!(uext4::clear_mmp(&device).unwrap(), None);
    open(&device, "one").unwrap().abandon();
    let had = uext4::clear_mmp(&device).unwrap().unwrap();
    assert!(had.contains("node 'one'"), "{had}");
    let start = Instant::now();
    open(&device, "two").unwrap().close().unwrap();
    assert!(start.elapsed() < SECOND * 8, "it waited");
}
