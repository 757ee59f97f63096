//! Every way of a file device against one model.
//!
//! # What
//! Buffered and direct, one request at a time and by io_uring, on a file and on a loop device:
//! random requests of any alignment by several threads, each in a region of its own whose borders
//! are not those of sectors, compared with bytes in memory; and what a full store answers.
//!
//! # Fault model
//! A request that is cut, misplaced or lost; a neighbour's bytes undone; a stale page that a later
//! read meets. Not covered: loss of power.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use uext4_device::{Access, Caching, Device, FileDevice, FileOptions, Submission, WriteRun};

const LEN: usize = 8 << 20;
const THREADS: usize = 4;

fn ways(offset: u64) -> impl Iterator<Item = FileOptions> {
    let cachings = [Caching::Buffered, Caching::Direct];
    let submissions = [Submission::Pread, Submission::Uring];
    cachings.into_iter().flat_map(move |caching| {
        submissions.map(|submission| FileOptions {
            offset,
            caching,
            submission,
            ..FileOptions::new(Access::ReadWrite)
        })
    })
}

/// Where regions end: no two threads write the same byte, but they share sectors and pages.
fn region(thread: usize, len: usize) -> std::ops::Range<usize> {
    let border =
        |at: usize| if at.is_multiple_of(THREADS) { at / THREADS * len } else { at * len / 4 + 77 };
    border(thread)..border(thread + 1)
}

/// A range of the region: mostly sectors or blocks, else anything.
fn range(random: &mut StdRng, within: &std::ops::Range<usize>, most: usize) -> (usize, usize) {
    let unit = [1, 512, 1024, 4096][random.random_range(0..4)];
    let len = (random.random_range(0..most) / unit * unit).max(1);
    let at = random.random_range(within.start..within.end - len);
    let aligned = at.next_multiple_of(unit);
    if aligned + len <= within.end { (aligned, len) } else { (at, len) }
}

fn work(device: &FileDevice, thread: usize, model: &mut [u8], start: usize, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed + thread as u64);
    let within = start..start + model.len();
    for step in 0..40 {
        let fill = |random: &mut StdRng, len| -> Vec<u8> {
            let first: u8 = random.random();
            (0..len).map(|at: usize| first.wrapping_add((at / 5) as u8)).collect()
        };
        match random.random_range(0..6) {
            0 => {
                let (at, len) = range(&mut random, &within, 40_000);
                let bytes = fill(&mut random, len);
                device.write_at(at as u64, &bytes).unwrap();
                model[at - start..][..len].copy_from_slice(&bytes);
            }
            1 => {
                let (at, len) = range(&mut random, &within, 9_000);
                let bytes = fill(&mut random, len);
                device.write_fua(at as u64, &bytes).unwrap();
                model[at - start..][..len].copy_from_slice(&bytes);
            }
            2 | 3 => {
                // Neighbours that do not overlap: one range, cut into runs of two buffers.
                let (at, len) = range(&mut random, &within, 600_000);
                let bytes = fill(&mut random, len);
                let cut = [512, 4096, 16384, 5000][random.random_range(0..4)];
                let bufs: Vec<[&[u8]; 2]> =
                    bytes.chunks(cut).map(|run| run.split_at(run.len() / 8 * 4).into()).collect();
                let mut runs: Vec<_> = bufs
                    .iter()
                    .enumerate()
                    .map(|(index, bufs)| WriteRun { offset: (at + index * cut) as u64, bufs })
                    .collect();
                runs.reverse();
                device.write_many(&runs).unwrap();
                model[at - start..][..len].copy_from_slice(&bytes);
            }
            4 => {
                let (at, len) = range(&mut random, &within, 20_000);
                if device.punch(at as u64, len as u64).unwrap() {
                    model[at - start..][..len].fill(0);
                }
            }
            _ => device.flush().unwrap(),
        }
        let (at, len) = range(&mut random, &within, 300_000);
        let mut back = vec![0; len];
        let (one, two) = back.split_at_mut(len / 3);
        device.read_vectored_at(at as u64, &mut [one, two]).unwrap();
        assert!(back == model[at - start..][..len], "thread {thread} step {step}: {at}+{len}");
    }
}

/// Runs every way on what `path` names, of `LEN` bytes from `offset`.
fn every_way(path: &Path, offset: u64) {
    let mut model = vec![0_u8; LEN];
    for (number, options) in ways(offset).enumerate() {
        let device = FileDevice::open_with(path, &options).unwrap();
        let seed = 40 + number as u64;
        let way = format!("{:?} {:?} seed {seed}", options.caching, options.submission);
        println!(
            "{way}: direct {}, uring {}, {:?}",
            device.is_direct(),
            device.uses_uring(),
            device.notice()
        );
        // Half the rounds begin with what the last way left in the page cache.
        std::thread::scope(|scope| {
            let mut rest = &mut model[..];
            for thread in 0..THREADS {
                let region = region(thread, LEN);
                let (mine, others) = rest.split_at_mut(region.len());
                rest = others;
                let device = &device;
                scope.spawn(move || work(device, thread, mine, region.start, seed));
            }
        });
        device.flush().unwrap();
        let mut back = vec![1; LEN];
        device.read_at(0, &mut back).unwrap();
        assert!(back == model, "{way}");

        let run = |offset| WriteRun { offset, bufs: &[&[9; 512], &[9; 512]] };
        let error = device.write_many(&[run(0), run(LEN as u64 - 512)]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{way}");
        device.read_at(0, &mut back).unwrap();
        if device.uses_uring() {
            assert!(back == model, "{way}: nothing is written when a range is wrong");
        } else {
            model[..1024].fill(9);
        }
        drop(device);
        // Through the page cache, as e2fsck reads it.
        let all = fs::read(path).unwrap();
        assert!(all[offset as usize..] == model, "{way}: read by others");
    }
}

#[test]
fn a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    fs::write(&path, vec![0; LEN]).unwrap();
    every_way(&path, 0);
}

#[test]
fn a_part_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    // At a sector: direct. At no sector: through the page cache.
    for offset in [512, 100] {
        fs::write(&path, vec![0; LEN + offset]).unwrap();
        every_way(&path, offset as u64);
    }
}

/// What a command prints; `None`, said so, where it cannot be run.
fn output(words: &[&str]) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: {} needs root", words[0]);
        return None;
    }
    let output = Command::new(words[0]).args(&words[1..]).output();
    match output {
        Ok(output) if output.status.success() => {
            Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
        other => {
            println!("skipped: {words:?}: {other:?}");
            None
        }
    }
}

/// Undoes a loop device or a mount when the test ends, however it ends.
struct Undo(Vec<String>);

impl Drop for Undo {
    fn drop(&mut self) {
        let undone = Command::new(&self.0[0]).args(&self.0[1..]).status();
        assert!(undone.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

#[test]
fn a_loop_device() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    for sector in ["512", "4096"] {
        fs::write(&path, vec![0; LEN]).unwrap();
        let image = path.to_str().unwrap();
        let Some(name) = output(&["losetup", "-f", "--show", "-b", sector, image]) else { return };
        let _undo = Undo(vec!["losetup".into(), "-d".into(), name.clone()]);
        every_way(Path::new(&name), 0);
    }
}

/// A store that is full: the caller gets ENOSPC, and what was written before is there.
#[test]
fn a_full_store() {
    let folder = tempfile::tempdir().unwrap();
    let (store, dir) = (folder.path().join("store"), folder.path().join("dir"));
    fs::create_dir(&dir).unwrap();
    fs::File::create(&store).unwrap().set_len(16 << 20).unwrap();
    let (from, to) = (store.to_str().unwrap(), dir.to_str().unwrap());
    if output(&["mke2fs", "-q", "-t", "ext4", "-F", "-O", "^has_journal", from]).is_none()
        || output(&["mount", "-o", "loop", from, to]).is_none()
    {
        return;
    }
    let _undo = Undo(vec!["umount".into(), to.into()]);
    for (number, options) in ways(0).enumerate() {
        let path: PathBuf = dir.join(format!("image{number}"));
        drop(FileDevice::create(&path, 64 << 20).unwrap());
        let device = FileDevice::open_with(&path, &options).unwrap();
        let bytes = vec![7; 1 << 20];
        let mut result = Ok(());
        let mut written = 0;
        for batch in 0..64 {
            let bufs = [&bytes[..1 << 14]];
            let runs: Vec<_> = (0..64)
                .map(|run| WriteRun { offset: (batch << 20) + (run << 14), bufs: &bufs })
                .collect();
            result = device.write_many(&runs);
            if result.is_err() {
                break;
            }
            written = (batch as usize + 1) << 20;
        }
        let error = result.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOSPC.raw_os_error()));
        assert!(written >= 4 << 20);
        let mut back = vec![0; written];
        device.read_at(0, &mut back).unwrap();
        assert!(back.iter().all(|byte| *byte == 7), "{options:?}");
        drop(device);
        fs::remove_file(&path).unwrap();
    }
}
