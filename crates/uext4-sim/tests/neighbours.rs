//! Unwritten blocks beside data that is on its way to the device.
//!
//! Fault model: a device whose free blocks hold junk, and that sits on a data write; others read
//! the file meanwhile, in each order of writing and mapping. Nobody may see the junk (D9).

use std::io;
use std::sync::{Arc, Condvar, Mutex};
use uext4::{AllocateMode, FileKind, MountOptions, NewInode, Owner, Volume};
use uext4_device::{Device, MemoryDevice, SharedDevice};
use uext4_sim::format::ORDINARY;
use uext4_sim::run::{Shape, make};

/// What each block of data begins with.
const MARK: [u8; 16] = [0xd7; 16];

/// A device whose writes of marked data wait while it is told so.
#[derive(Debug)]
struct Gate {
    inner: MemoryDevice,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_closed: bool,
    /// A write waits.
    is_met: bool,
}

impl Gate {
    fn set(&self, is_closed: bool) {
        self.state.lock().unwrap().is_closed = is_closed;
        self.changed.notify_all();
    }

    fn wait_until_met(&self) {
        let mut state = self.state.lock().unwrap();
        while !state.is_met {
            state = self.changed.wait(state).unwrap();
        }
    }
}

impl Device for Gate {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        if buf.starts_with(&MARK) {
            let mut state = self.state.lock().unwrap();
            while state.is_closed {
                state.is_met = true;
                self.changed.notify_all();
                state = self.changed.wait(state).unwrap();
            }
        }
        self.inner.write_at(offset, buf)
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.inner.punch(offset, len)
    }
}

#[test]
fn nobody_sees_what_a_neighbour_of_data_on_its_way_held() {
    for mode in ["writeback=mapped", "writeback=ordered", "writeback=unwritten"] {
        let shape = Shape {
            block_size: 1024,
            journal_mib: 1,
            image_mib: 8,
            features: "",
            format: &ORDINARY,
        };
        let gate = Arc::new(Gate {
            inner: make(&shape, 1).unwrap(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let mut options = MountOptions::default();
        options.parse(mode).unwrap();
        let volume = Volume::open(gate.clone() as SharedDevice, options).unwrap();
        let owner = Owner { uid: 0, gid: 0 };
        let new =
            NewInode { kind: FileKind::Regular, mode: 0o644, owner, rdev: Default::default() };
        let inode = volume.create(&volume.root().unwrap(), b"file", &new).unwrap();
        let file = volume.open_file(&inode).unwrap();
        file.allocate(AllocateMode::Allocate { keep_size: false }, 0, 4096).unwrap();
        file.write_at(0, &[MARK[0]; 1024]).unwrap();
        gate.set(true);
        let mut read = [1; 3072];
        std::thread::scope(|scope| {
            let sync = scope.spawn(|| file.sync(false));
            gate.wait_until_met();
            file.read_at(1024, &mut read).unwrap();
            gate.set(false);
            sync.join().unwrap().unwrap();
        });
        assert!(read.iter().all(|&byte| byte == 0), "{mode}: {:02x?}", &read[..16]);
        volume.close().unwrap();
    }
}
