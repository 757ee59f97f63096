//! What /sys says of a block device.
//!
//! What: model and kind of the disk for `env.json`, and what the kernel counts of a device. A
//! partition has the most of that from the disk that it is a part of.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{major, makedev, minor};
use serde_json::{Value, json};

/// Unit of sizes in /sys.
const SECTOR_BYTES: u64 = 512;
/// Where a device's `stat` has its flushes.
pub(crate) const FLUSHES: usize = 15;

/// The device's folder in /sys, by its number.
pub(crate) fn sys(number: u64) -> PathBuf {
    PathBuf::from(format!("/sys/dev/block/{}:{}", major(number), minor(number)))
}

/// What the kernel counts of a block device: the numbers of its `stat`, with the flushes of the
/// disk that it is a part of, because the kernel counts those of whole disks only.
pub(crate) fn counted(path: &Path) -> Option<Vec<u64>> {
    let found = fs::metadata(path).ok().filter(|found| found.file_type().is_block_device())?;
    counted_in(&sys(found.rdev()))
}

/// The same of the device's folder in /sys.
fn counted_in(sys: &Path) -> Option<Vec<u64>> {
    let read = |dir: &Path| -> Option<Vec<u64>> {
        let text = fs::read_to_string(dir.join("stat")).ok()?;
        Some(text.split_whitespace().map_while(|word| word.parse().ok()).collect())
    };
    let (mut counted, disk) = (read(sys)?, read(&disk_of(sys))?);
    if let (Some(own), Some(all)) = (counted.get_mut(FLUSHES), disk.get(FLUSHES)) {
        *own = *all;
    }
    Some(counted)
}

/// The folder in /sys of the disk that a device is, or is a partition of.
fn disk_of(sys: &Path) -> PathBuf {
    if sys.join("partition").exists() { sys.join("..") } else { sys.to_owned() }
}

/// The number of the disk that a device is, or is a partition of.
pub(crate) fn disk_number(number: u64) -> u64 {
    number_in(&disk_of(&sys(number))).unwrap_or(number)
}

/// The number that a folder in /sys tells, as `8:0`.
fn number_in(sys: &Path) -> Option<u64> {
    let text = fs::read_to_string(sys.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// What `env.json` says of it; null for what is not known.
pub(crate) fn describe(path: &Path) -> Value {
    let number = fs::metadata(path).map_or(0, |found| found.rdev());
    let sys = sys(number);
    let whole = disk_of(&sys);
    let read = |dir: &Path, name: &str| {
        let text = fs::read_to_string(dir.join(name)).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let number_of =
        |dir: &Path, name: &str| read(dir, name).and_then(|text| text.parse::<u64>().ok());
    let scheduler = read(&whole, "queue/scheduler").map(|all| {
        let chosen = all.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
        chosen.map_or(all.clone(), |(name, _)| name.to_owned())
    });
    json!({
        "path": path,
        "model": read(&whole, "device/model"),
        "serial": read(&whole, "serial").or_else(|| read(&whole, "device/serial")),
        "wwid": read(&whole, "wwid").or_else(|| read(&whole, "device/wwid")),
        "backing_file": read(&whole, "loop/backing_file"),
        "bytes": number_of(&sys, "size").map(|sectors| sectors * SECTOR_BYTES),
        "rotational": number_of(&whole, "queue/rotational").map(|word| word == 1),
        "write_cache": read(&whole, "queue/write_cache"),
        "scheduler": scheduler,
        "logical_block_bytes": number_of(&whole, "queue/logical_block_size"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault model: a partition, of which the kernel counts no flush, is told to flush nothing.
    #[test]
    fn flushes_of_a_partition_are_those_of_its_disk() {
        let disk = tempfile::tempdir().unwrap();
        let part = disk.path().join("part");
        fs::create_dir(&part).unwrap();
        let stat = |first: u32, flushes: u32| {
            format!("  {first} 2 3 4 5 6 7 8 0 10 11 12 13 14 15 {flushes} 99\n")
        };
        fs::write(disk.path().join("stat"), stat(1, 77)).unwrap();
        fs::write(part.join("stat"), stat(8, 0)).unwrap();
        let few = |dir: &Path| counted_in(dir).map(|counted| (counted[0], counted[FLUSHES]));
        assert_eq!(few(disk.path()), Some((1, 77)));
        assert_eq!(few(&part), Some((8, 0)), "it is no partition yet");
        fs::write(part.join("partition"), "1\n").unwrap();
        assert_eq!(few(&part), Some((8, 77)));
        assert_eq!(counted(disk.path()), None);
    }

    /// Fault model: runs on two partitions of one disk do not meet.
    #[test]
    fn a_partition_has_the_number_of_its_disk() {
        let disk = tempfile::tempdir().unwrap();
        let part = disk.path().join("part");
        fs::create_dir(&part).unwrap();
        fs::write(disk.path().join("dev"), "259:0\n").unwrap();
        fs::write(part.join("dev"), "259:3\n").unwrap();
        assert_eq!(number_in(&disk_of(&part)), Some(makedev(259, 3)), "it is no partition yet");
        fs::write(part.join("partition"), "3\n").unwrap();
        assert_eq!(number_in(&disk_of(&part)), Some(makedev(259, 0)));
        assert_eq!(disk_number(u64::MAX), u64::MAX, "a device that /sys does not know");
    }
}
