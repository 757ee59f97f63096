//! Tests of the file device.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use super::*;
use crate::open_error::OpenError;
use crate::options::{Access, Caching, FileOptions};

fn image(folder: &tempfile::TempDir, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join("image");
    fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn created_file_is_sparse_fresh_and_keeps_its_length() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new");
    let device = FileDevice::create(&path, 1 << 40).unwrap();
    assert!(device.fresh_zeroes() && !device.read_only() && !device.is_block_device());
    assert_eq!(device.len(), 1 << 40);
    device.write_at((1 << 40) - 3, b"end").unwrap();
    assert!(!device.fresh_zeroes());
    assert!(device.write_at((1 << 40) - 3, b"more").is_err());
    assert!(device.read_at(1 << 40, &mut [0]).is_err());
    assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 40);
    assert!(fs::metadata(&path).unwrap().blocks() < 1024);
    drop(device);
    // Creating over it empties it.
    let device = FileDevice::create(&path, 10).unwrap();
    let mut all = [1; 10];
    device.read_at(0, &mut all).unwrap();
    assert_eq!(all, [0; 10]);
}

/// Fault model: a caller that gives up removes what is not its own: a link, or what another program
/// has renamed to the path meanwhile.
#[test]
fn only_a_file_that_was_made_at_its_path_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let (path, link) = (folder.path().join("new"), folder.path().join("link"));
    FileDevice::create(&path, 10).unwrap().put_back();
    assert!(!path.exists());
    let device = FileDevice::create(&path, 10).unwrap();
    let undo = device.undo().unwrap();
    assert!(undo.is_created() && undo.is_at_path());
    fs::write(folder.path().join("other"), b"other").unwrap();
    fs::rename(folder.path().join("other"), &path).unwrap();
    assert!(!undo.is_at_path());
    device.put_back();
    drop(device);
    undo.run();
    undo.run_if_unused();
    assert_eq!(fs::read(&path).unwrap(), b"other");
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&path, &link).unwrap();
    // The second finds what the first has made behind the link.
    for _ in 0..2 {
        let device = FileDevice::create(&link, 10).unwrap();
        assert!(!device.undo().unwrap().is_created());
        device.put_back();
        assert!(link.is_symlink() && path.exists());
    }
}

/// Fault model: a caller that gives up leaves a file longer or shorter than it was, or with what it
/// has written; one that is not its own any more.
#[test]
fn a_file_that_was_there_gets_its_length_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = image(&folder, b"");
    fs::File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
    for len in [100, 1 << 20] {
        let device = FileDevice::create_unless_filled(&path, len).unwrap().unwrap();
        device.write_at(0, b"half a file system").unwrap();
        device.put_back();
        assert_eq!(fs::read(&path).unwrap(), [0; 4096]);
    }
    let too_long = FileDevice::create_unless_filled(&path, u64::MAX).unwrap_err();
    assert!(matches!(too_long, OpenError::Io { .. }), "{too_long}");
    assert_eq!(fs::read(&path).unwrap(), [0; 4096]);
    fs::write(&path, b"data").unwrap();
    assert!(FileDevice::create_unless_filled(&path, 100).unwrap().is_none());
    assert!(FileDevice::create(&path, u64::MAX).is_err());
    assert!(FileDevice::open_lengthened(&path, u64::MAX).is_err());
    let device = FileDevice::open_lengthened(&path, 100).unwrap();
    assert_eq!((device.len(), fs::metadata(&path).unwrap().len()), (100, 100));
    let undo = device.undo().unwrap();
    drop(device);
    let other = FileDevice::open(&path, Access::ReadWrite, 0).unwrap();
    undo.run_if_unused();
    assert_eq!(fs::metadata(&path).unwrap().len(), 100);
    drop(other);
    undo.run_if_unused();
    assert_eq!(fs::read(&path).unwrap(), b"data");
    // What is long enough stays as it is.
    FileDevice::open_lengthened(&path, 3).unwrap().put_back();
    assert_eq!(fs::read(&path).unwrap(), b"data");
}

#[test]
fn an_opened_sparse_file_is_known_to_be_zero() {
    let folder = tempfile::tempdir().unwrap();
    let path = image(&folder, b"");
    fs::File::options().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
    assert!(FileDevice::open(&path, Access::ReadWrite, 0).unwrap().fresh_zeroes());
    fs::write(&path, [0; 8192]).unwrap();
    assert!(!FileDevice::open(&path, Access::ReadWrite, 0).unwrap().fresh_zeroes());
}

#[test]
fn offset_moves_byte_zero() {
    let folder = tempfile::tempdir().unwrap();
    let path = image(&folder, b"0123456789");
    let device = FileDevice::open(&path, Access::ReadWrite, 4).unwrap();
    assert_eq!(device.len(), 6);
    device.write_at(0, b"ab").unwrap();
    device.write_vectored_at(2, &[b"c", b"", b"d"]).unwrap();
    device.write_fua(5, b"z").unwrap();
    let (mut one, mut two) = ([0; 2], [0; 3]);
    device.read_vectored_at(1, &mut [&mut one, &mut [], &mut two]).unwrap();
    assert_eq!((&one, &two), (b"bc", b"d8z"));
    assert!(device.write_at(5, b"xx").is_err());
    assert!(device.write_fua(5, b"xx").is_err());
    assert!(device.write_vectored_at(5, &[b"x", b"x"]).is_err());
    device.flush().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"0123abcd8z");
}

#[test]
fn vectors_longer_than_a_system_call_takes() {
    let folder = tempfile::tempdir().unwrap();
    let device = FileDevice::create(&folder.path().join("v"), 1 << 20).unwrap();
    let blocks: Vec<[u8; 16]> = (0..3000_u32).map(|i| [(i % 256) as u8; 16]).collect();
    let bufs: Vec<&[u8]> = blocks.iter().map(|block| &block[..]).collect();
    device.write_vectored_at(7, &bufs).unwrap();
    let mut back = vec![[0_u8; 16]; 3000];
    let mut bufs: Vec<&mut [u8]> = back.iter_mut().map(|block| &mut block[..]).collect();
    device.read_vectored_at(7, &mut bufs).unwrap();
    assert_eq!(back, blocks);
    device.write_vectored_at(0, &[]).unwrap();
    device.write_vectored_at(0, &[b"", b""]).unwrap();
}

#[test]
fn punch_reads_as_zero() {
    let folder = tempfile::tempdir().unwrap();
    let path = image(&folder, &[7; 16384]);
    let device = FileDevice::open(&path, Access::ReadWrite, 0).unwrap();
    if !device.punch(100, 9000).unwrap() {
        println!("skipped: the temporary folder's file system cannot punch holes");
        return;
    }
    let mut all = [1; 16384];
    device.read_at(0, &mut all).unwrap();
    assert!(all[..100].iter().chain(&all[9100..]).all(|byte| *byte == 7));
    assert!(all[100..9100].iter().all(|byte| *byte == 0));
    assert!(device.punch(16000, 400).is_err());
}

#[test]
fn readers_share_and_writers_are_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = image(&folder, b"data");
    let open = |access| FileDevice::open(&path, access, 0);
    let reader = open(Access::ReadOnly).unwrap();
    let second = open(Access::ReadOnly).unwrap();
    assert!(matches!(open(Access::ReadWrite), Err(OpenError::InUse { .. })));
    drop((reader, second));
    let writer = open(Access::ReadWrite).unwrap();
    assert!(matches!(open(Access::ReadOnly), Err(OpenError::InUse { .. })));
    assert!(matches!(open(Access::ReadWrite), Err(OpenError::InUse { .. })));
    assert!(matches!(FileDevice::create(&path, 9), Err(OpenError::InUse { .. })));
    assert_eq!(fs::read(&path).unwrap(), b"data");
    drop(writer);
    let reader = open(Access::ReadOnly).unwrap();
    assert!(reader.read_only());
    assert_eq!(reader.write_at(0, b"x").unwrap_err().raw_os_error(), Some(libc::EROFS));
    assert_eq!(reader.write_fua(0, b"x").unwrap_err().raw_os_error(), Some(libc::EROFS));
    reader.flush().unwrap();
}

#[test]
fn each_failure_to_open_has_its_own_line() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let error = FileDevice::open(&missing, Access::ReadOnly, 0).unwrap_err();
    assert!(matches!(error, OpenError::NotFound { .. }));
    assert_eq!(error.to_string(), format!("{}: no such file or device", missing.display()));

    let error = FileDevice::open(folder.path(), Access::ReadWrite, 0).unwrap_err();
    assert!(matches!(error, OpenError::IsDirectory { .. }));
    let error = FileDevice::create(folder.path(), 1).unwrap_err();
    assert!(matches!(error, OpenError::IsDirectory { .. }));
    let error = FileDevice::create(&missing.join("below"), 1).unwrap_err();
    assert!(matches!(error, OpenError::NotFound { .. }), "{error}");

    let path = image(&folder, b"");
    let error = FileDevice::open(&path, Access::ReadOnly, 0).unwrap_err();
    assert!(matches!(error, OpenError::Empty { .. }));
    let path = image(&folder, b"four");
    let error = FileDevice::open(&path, Access::ReadOnly, 4).unwrap_err();
    assert!(matches!(error, OpenError::OffsetPastEnd { offset: 4, len: 4, .. }));

    let error = FileDevice::open(Path::new("/dev/null"), Access::ReadWrite, 0).unwrap_err();
    assert!(matches!(error, OpenError::WrongKind { found: "character device", .. }));
    let fifo = folder.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let error = FileDevice::open(&fifo, Access::ReadOnly, 0).unwrap_err();
    assert!(matches!(error, OpenError::WrongKind { found: "fifo", .. }));

    let too_large = folder.path().join("large");
    assert!(FileDevice::create(&too_large, i64::MAX as u64 - 4096).is_err());
    assert!(!too_large.exists(), "a file that could not be made whole is left behind");
}

#[test]
fn no_permission_is_named() {
    use std::os::unix::fs::PermissionsExt;
    if rustix::process::geteuid().is_root() {
        // Root may open everything.
        return as_nobody("file::tests::no_permission_is_named");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = image(&folder, b"data");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
    let error = FileDevice::open(&path, Access::ReadWrite, 0).unwrap_err();
    assert!(matches!(error, OpenError::NoPermission { writing: true, .. }), "{error}");
}

/// Runs one test of this program again, as a user without rights.
fn as_nobody(test: &str) {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    // Where cargo builds need not be open to others.
    let program = folder.path().join("tests");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let output = Command::new(&program)
        .args(["--exact", test])
        .env("TMPDIR", folder.path())
        .current_dir(folder.path())
        .uid(65_534)
        .gid(65_534)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
}

/// Needs root and a free loop device; says so where it has none.
#[test]
fn a_loop_device_is_held_alone_and_its_image_is_refused() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: attaching a loop device needs root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = image(&folder, &[3; 1 << 20]);
    let Ok(output) = Command::new("losetup").args(["-f", "--show"]).arg(&path).output() else {
        println!("skipped: no losetup");
        return;
    };
    if !output.status.success() {
        println!("skipped: {}", String::from_utf8_lossy(&output.stderr).trim());
        return;
    }
    let name = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
    let checks = std::panic::catch_unwind(|| {
        let error = FileDevice::open(&path, Access::ReadWrite, 0).unwrap_err();
        assert!(matches!(&error, OpenError::BacksLoop { device, .. } if *device == name));
        assert!(matches!(FileDevice::create(&path, 5), Err(OpenError::BacksLoop { .. })));
        FileDevice::open(&path, Access::ReadOnly, 0).unwrap();

        let device = FileDevice::open(&name, Access::ReadWrite, 0).unwrap();
        assert!(device.is_block_device() && !device.fresh_zeroes());
        assert_eq!(device.len(), 1 << 20);
        let second = FileDevice::open(&name, Access::ReadWrite, 0).unwrap_err();
        assert!(matches!(second, OpenError::InUse { .. }), "{second}");
        device.write_at(1000, b"odd range").unwrap();
        device.write_fua(5, b"fua").unwrap();
        device.flush().unwrap();
        let mut back = [0; 9];
        device.read_at(1000, &mut back).unwrap();
        assert_eq!(&back, b"odd range");
        device.punch(1, 3).unwrap();
        device.read_at(0, &mut back[..6]).unwrap();
    });
    let detached = Command::new("losetup").arg("-d").arg(&name).status().unwrap();
    assert!(detached.success());
    if let Err(panic) = checks {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn parallel_writers_flushes_and_readers() {
    const THREADS: u64 = 6;
    let folder = tempfile::tempdir().unwrap();
    let device = FileDevice::create(&folder.path().join("p"), THREADS << 16).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let device = &device;
            scope.spawn(move || {
                let bytes = [thread as u8 + 1; 512];
                for index in 0..128 {
                    let at = (index * THREADS + thread) * 512;
                    if index % 2 == 0 {
                        device.write_at(at, &bytes).unwrap();
                    } else {
                        device.write_vectored_at(at, &[&bytes[..100], &bytes[100..]]).unwrap();
                    }
                    let mut back = [0; 512];
                    device.read_at(at, &mut back).unwrap();
                    assert_eq!(back, bytes);
                    if index % 32 == 0 {
                        device.flush().unwrap();
                        device.write_fua(at, &bytes).unwrap();
                    }
                }
            });
        }
    });
}

/// The system refuses io_uring: the device works as before and says so, once, and only if asked.
#[test]
fn without_io_uring_writes_go_one_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = image(&folder, &[0; 65536]);
    for (errno, word) in [(libc::EPERM, "not allowed"), (libc::ENOSYS, "kernel has none")] {
        let submission = Submission::Uring;
        let options = FileOptions { submission, ..FileOptions::new(Access::ReadWrite) };
        let device = FileDevice::open_where(&path, &options, Some(errno)).unwrap();
        assert!(!device.uses_uring());
        let notice = device.notice().unwrap();
        assert!(notice.contains(word) && notice.lines().count() == 1, "{notice}");
        let runs = [(0, [&b"one"[..]]), (512, [&b"two"[..]])];
        let runs = runs.each_ref().map(|(offset, bufs)| WriteRun { offset: *offset, bufs });
        device.write_many(&runs).unwrap();
        device.flush().unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!((&bytes[..3], &bytes[512..515]), (&b"one"[..], &b"two"[..]));
        fs::write(&path, [0; 65536]).unwrap();
    }
    let options = FileOptions::new(Access::ReadWrite);
    let device = FileDevice::open_where(&path, &options, Some(libc::EPERM)).unwrap();
    assert_eq!(device.notice(), None);
}

/// Without direct I/O on the store, or for an image that is no multiple of the unit, the page cache
/// is used. A notice says so only if direct was requested.
#[test]
fn where_direct_io_cannot_be_it_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = image(&folder, &[0; 1000]);
    let with = |caching| {
        let options = FileOptions { caching, ..FileOptions::new(Access::ReadWrite) };
        FileDevice::open_with(&path, &options).unwrap()
    };
    let device = with(Caching::Direct);
    assert!(!device.is_direct());
    assert!(device.notice().unwrap().ends_with("using the page cache"));
    device.write_at(990, b"to the end").unwrap();
    assert!(device.write_at(991, b"to the end").is_err());
    drop(device);
    assert_eq!(with(Caching::Auto).notice(), None);
    assert_eq!(fs::metadata(&path).unwrap().len(), 1000);
}

#[test]
fn what_is_discarded_becomes_a_hole_in_whole_units() {
    let folder = tempfile::tempdir().unwrap();
    let path = image(&folder, &[7; 1 << 20]);
    let device = FileDevice::open(&path, Access::ReadWrite, 0).unwrap();
    device.flush().unwrap();
    let used = || std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&path).unwrap());
    let before = used();
    if !device.discard(1, (1 << 20) - 2).unwrap() {
        println!("skipped: the temporary folder's file system cannot punch holes");
        return;
    }
    assert!(used() < before / 2, "{} of {before} sectors are left", used());
    let (mut first, mut last) = ([0; 4096], [0; 4096]);
    device.read_at(0, &mut first).unwrap();
    device.read_at((1 << 20) - 4096, &mut last).unwrap();
    assert_eq!((first, last), ([7; 4096], [7; 4096]), "parts of units stay");
    // Nothing to give back is no failure.
    assert!(device.discard(100, 50).unwrap());
    assert!(device.discard(1 << 20, 1).is_err());
}

/// Durable writes go on beside each other: no two share an open file or a lock while they are made.
#[test]
fn durable_writes_have_an_open_file_each_and_no_lock() {
    let folder = tempfile::tempdir().unwrap();
    let device = FileDevice::create(&folder.path().join("image"), 8192).unwrap();
    let files = device.durable.as_ref().unwrap();
    let both = std::sync::Barrier::new(2);
    let numbers: Vec<_> = std::thread::scope(|scope| {
        let write = || {
            let own = files.take(&device.file)?;
            both.wait();
            let number = own.as_raw_fd();
            files.put(own);
            Some(number)
        };
        [scope.spawn(write), scope.spawn(write)].map(|thread| thread.join().unwrap()).to_vec()
    });
    assert!(numbers[0].is_some() && numbers[0] != numbers[1], "{numbers:?}");
    // They are kept for the next.
    let next = files.take(&device.file).map(|own| own.as_raw_fd());
    assert!(numbers.contains(&next));
}

/// Fault model: a device of a partition that some way of writing, or of discarding, gets past.
/// What lies before it and behind it stays as it was, byte for byte.
#[test]
fn a_device_with_a_length_ends_there() {
    const START: u64 = 64 << 10;
    const LEN: u64 = 128 << 10;
    let folder = tempfile::tempdir().unwrap();
    let path = image(&folder, &[7; 1 << 20]);
    let mut options = FileOptions::new(Access::ReadWrite);
    options.offset = START;
    for (caching, submission) in [
        (Caching::Buffered, Submission::Pread),
        (Caching::Direct, Submission::Uring),
        (Caching::Direct, Submission::Pread),
    ] {
        let options = FileOptions { len: Some(LEN), caching, submission, ..options };
        let device = Arc::new(FileDevice::open_with(&path, &options).unwrap());
        assert_eq!(device.len(), LEN);
        let (block, part) = ([1; 4096], [1; 100]);
        for at in [LEN - 4095, LEN, LEN + 4096, u64::MAX - 4096] {
            assert!(device.read_at(at, &mut [0; 4096]).is_err(), "{at}");
            assert!(device.write_at(at, &block).is_err(), "{at}");
            assert!(device.write_fua(at, &block).is_err(), "{at}");
            assert!(device.write_vectored_at(at, &[&part, &block]).is_err(), "{at}");
            let run = WriteRun { offset: at, bufs: &[&block] };
            let fits = WriteRun { offset: 0, bufs: &[&block] };
            assert!(device.write_many(&[fits, run]).is_err(), "{at}");
            assert!(device.punch(at, 4096).is_err() && device.discard(at, 4096).is_err(), "{at}");
        }
        // The last bytes, in a part of a unit, and all of it.
        device.write_at(LEN - 100, &part).unwrap();
        device.write_fua(LEN - 4096, &block).unwrap();
        device.punch(0, LEN).unwrap();
        device.flush().unwrap();
        drop(device);
        let bytes = fs::read(&path).unwrap();
        let (start, end) = (START as usize, (START + LEN) as usize);
        assert!(bytes[..start].iter().chain(&bytes[end..]).all(|byte| *byte == 7));
        // A hole of just this range is known as zeroes.
        if bytes[start..end].iter().all(|byte| *byte == 0) {
            assert!(FileDevice::open_with(&path, &options).unwrap().fresh_zeroes());
        }
    }
    for len in [(1 << 20) - START + 1, u64::MAX] {
        let error = FileDevice::open_with(&path, &FileOptions { len: Some(len), ..options });
        assert!(matches!(error, Err(OpenError::EndPastEnd { .. })), "{error:?}");
    }
}
