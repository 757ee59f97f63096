//! Devices that fail, and crashes: the device never has a superblock of an incomplete file system.
//!
//! Fault model: the Nth write or flush fails, for every N; power is lost after any event, with any
//! of the unflushed writes missing. Not covered: a superblock torn between its two sectors.

use std::sync::Arc;
use uext4_device::{
    Device, Fault, FaultDevice, FaultPlan, MemoryDevice, Operation, RecordingDevice, Times,
};
use uext4_mkfs::{MkfsError, Options, format};
use uext4_ondisk::features::support;
use uext4_ondisk::{Layout, RawSuperblock, Support};

const SIZE: u64 = 8 << 20;

fn options() -> Options {
    Options {
        uuid: Some([1; 16]),
        hash_seed: Some([2; 16]),
        time: Some(1_700_000_000),
        discard: Some(false),
        ..Options::default()
    }
}

/// The superblock, if the device holds one that is sound.
fn superblock(device: &dyn Device) -> Option<RawSuperblock> {
    let mut bytes = [0; 1024];
    device.read_at(1024, &mut bytes).unwrap();
    RawSuperblock::read(&bytes).ok()
}

/// A device that held another file system before.
fn used_device() -> MemoryDevice {
    let device = MemoryDevice::new(SIZE);
    format(&device, &Options { uuid: Some([9; 16]), ..options() }).unwrap();
    device
}

#[test]
fn every_failing_request_is_reported_and_leaves_nothing_that_looks_whole() {
    for operation in [Operation::Write, Operation::Flush] {
        let mut nth = 1;
        loop {
            let inner = Arc::new(used_device());
            let device = FaultDevice::new(inner.clone());
            device.arm(FaultPlan { operation, nth, times: Times::Onwards, fault: Fault::Io });
            match format(&device, &options()) {
                Ok(_) => break,
                Err(error) => {
                    assert!(matches!(error, MkfsError::Io { .. }), "{error}");
                    // Before the first write the old file system is complete. After it there
                    // is none. The last flush may fail when everything is written.
                    let left = superblock(inner.as_ref());
                    let old = left.is_some_and(|sb| sb.s_uuid == [9; 16]);
                    let new = left.is_some_and(|sb| sb.s_uuid == [1; 16]);
                    assert!(!old || nth == 1, "{operation:?} {nth}");
                    assert!(!new || operation == Operation::Flush && nth == 3, "{nth}");
                }
            }
            nth += 1;
        }
        assert!(nth > 3);
    }
}

#[test]
fn a_crash_leaves_no_file_system_or_a_whole_one() {
    let recorder = RecordingDevice::over(used_device());
    format(&recorder, &options()).unwrap();
    let recording = recorder.recording();
    let whole = recorder;
    let mut found = [0; 3];
    for state in recording.states().take(4000) {
        let device = &state.device;
        let Some(sb) = superblock(device) else {
            found[0] += 1;
            continue;
        };
        if sb.s_uuid == [9; 16] {
            found[1] += 1;
            continue;
        }
        // If the new superblock is there, everything else is too.
        found[2] += 1;
        assert_eq!(support(&sb), Support::ReadWrite);
        assert!(Layout::new(&sb, Some(SIZE)).is_ok());
        let mut contents = [vec![0; SIZE as usize], vec![0; SIZE as usize]];
        let [a, b] = &mut contents;
        device.read_at(0, a).unwrap();
        whole.read_at(0, b).unwrap();
        assert!(contents[0] == contents[1]);
    }
    assert!(found.iter().all(|&n| n > 0), "{found:?}");
}
