//! Mounts, used by ordinary programs and system calls, then checked by e2fsck.
//!
//! Fault model: killed daemons, busy mounts, wrong users. Not covered: loss of power (the crash
//! tests), many gigabytes (an xtask verb).

#[macro_use]
mod common;
#[path = "common/tree.rs"]
mod tree;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{
    Mounted, Scratch, assert_clean, at, is_mounted, no_mount, run_fails, run_ok, wait_until,
};
use rustix::fs::{CWD, FallocateFlags, RenameFlags, XattrFlags};

/// A fresh image and a place to mount it, or the reason why not.
fn ready(scratch: &Scratch, megabytes: u64) -> Result<(PathBuf, PathBuf), String> {
    if let Some(why) = no_mount() {
        return Err(why.to_owned());
    }
    let image = scratch.image("image", megabytes, &[]).ok_or("no mke2fs")?;
    Ok((image, scratch.path("mnt")))
}

fn shell(script: &str, dir: &Path) {
    let output = Command::new("sh").args(["-ec", script]).current_dir(dir).output().unwrap();
    assert!(
        output.status.success(),
        "{script}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A slice of memory that O_DIRECT takes.
fn aligned(bytes: &mut [u8], len: usize) -> &mut [u8] {
    let skip = bytes.as_ptr().align_offset(4096);
    &mut bytes[skip..skip + len]
}

/// `O_DIRECT` reaches the engine as direct I/O, agrees with what others see through the caches, and
/// is refused where ext4 refuses it.
#[test]
fn direct_access_goes_past_all_caches() {
    use std::os::unix::fs::OpenOptionsExt;
    let scratch = Scratch::new();
    let (image, dir) = match ready(&scratch, 64) {
        Ok(ready) => ready,
        Err(why) => skip!("{why}"),
    };
    let mount = Mounted::new(&image, &dir, "");
    let path = mount.path("file");
    let open = || {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(true).custom_flags(libc::O_DIRECT);
        options.open(&path).unwrap()
    };
    let (mut memory, mut back) = (vec![7; 1 << 20], vec![0; 1 << 20]);
    let data = aligned(&mut memory, 512 << 10);
    let direct = open();
    direct.write_all_at(data, 0).unwrap();
    assert!(fs::read(&path).unwrap() == data, "the cache after a direct write");
    std::thread::scope(|scope| {
        for n in 0..4_u8 {
            let file = open();
            scope.spawn(move || {
                let mut memory = vec![n; 16 << 10];
                let block = aligned(&mut memory, 4096);
                for at in 0..32 {
                    file.write_all_at(block, (u64::from(n) * 32 + at) * 4096).unwrap();
                }
            });
        }
    });
    let seen = fs::read(&path).unwrap();
    for (at, block) in seen.chunks(4096).enumerate() {
        assert!(block.iter().all(|&byte| usize::from(byte) == at / 32), "block {at}");
    }
    let buffered = fs::OpenOptions::new().write(true).open(&path).unwrap();
    buffered.write_all_at(&[9; 100], 4000).unwrap();
    let front = aligned(&mut back, 8192);
    direct.read_exact_at(front, 0).unwrap();
    assert!(front[4000..4100].iter().all(|&byte| byte == 9) && front[4100] == 0);
    let refused = direct.read_at(&mut front[..100], 0).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
    assert_eq!(direct.read_at(&mut front[..512], 512 << 10).unwrap(), 0);
    let stats = run_ok(["stats".into(), "--json".into(), dir.clone().into_os_string()]);
    let mut stats = String::from_utf8(stats).unwrap();
    let at = stats.find("\"direct_overwrites\": ").expect("a figure of direct I/O");
    stats = stats[at..].split([' ', ',']).nth(1).unwrap_or_default().to_owned();
    assert!(stats.parse::<u64>().is_ok_and(|count| count >= 128), "{stats} overwrites");
    drop((direct, buffered));
    mount.end();
    assert_clean(&image);
}

/// With `dax=always` the image is mapped, and files have no page in the engine.
#[test]
fn a_mapped_image_is_mounted() {
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    let (Ok(memory), scratch) = (tempfile::tempdir_in("/dev/shm"), Scratch::new()) else {
        skip!("no /dev/shm");
    };
    let (image, dir) = (memory.path().join("image"), scratch.path("mnt"));
    let Some(made) = scratch.image("image", 32, &[]) else { skip!("no mke2fs") };
    fs::copy(&made, &image).unwrap();
    let mount = Mounted::new(&image, &dir, "dax=always");
    let path = mount.path("file");
    let data: Vec<u8> = (0..300_000_u32).map(|at| (at % 251) as u8).collect();
    fs::write(&path, &data).unwrap();
    let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    file.write_all_at(b"in place", 70_001).unwrap();
    file.sync_all().unwrap();
    let mut seen = fs::read(&path).unwrap();
    assert_eq!(&seen[70_001..70_009], b"in place");
    seen[70_001..70_009].copy_from_slice(&data[70_001..70_009]);
    assert!(seen == data);
    let stats = run_ok(["stats".into(), "--json".into(), dir.clone().into_os_string()]);
    let stats = String::from_utf8(stats).unwrap();
    assert!(!stats.contains("\"dax_overwrites\": 0"), "{stats}");
    assert!(stats.contains("\"pages_dirty\": 0"), "{stats}");
    drop(file);
    mount.end();
    assert_clean(&image);
}

#[test]
fn ordinary_programs_work() {
    let scratch = Scratch::new();
    let (image, dir) = match ready(&scratch, 128) {
        Ok(ready) => ready,
        Err(why) => skip!("{why}"),
    };
    let source = scratch.path("source");
    tree::make(&source);
    let want = tree::describe(&source);
    let mount = Mounted::new(&image, &dir, "");
    let status = Command::new("cp").arg("-a").arg(&source).arg(mount.path("copied")).status();
    assert!(status.unwrap().success());
    tree::assert_same(&want, &tree::describe(&mount.path("copied")));
    shell("tar cf - copied | (mkdir again && cd again && tar xf -)", &mount.dir);
    shell("find . -type f | wc -l; du -s . >/dev/null; df . >/dev/null", &mount.dir);
    shell("cmp copied/big again/copied/big; grep -r leaf again/copied/deep", &mount.dir);
    shell("sort copied/big > sorted; sed -i s/x/y/ 'copied/with space'", &mount.dir);
    shell(
        "dd if=/dev/zero of=dd bs=64k count=40 conv=fsync 2>/dev/null; truncate -s 10M dd",
        &mount.dir,
    );
    shell(
        "mv again moved; rm -rf moved/copied/many; ln dd dd2; ln -s dd dd3; chmod 0711 dd",
        &mount.dir,
    );
    run_ok(["sync".into(), mount.path("copied").into_os_string()]);
    mount.end();
    assert_clean(&image);

    let mount = Mounted::new(&image, &dir, "ro");
    let mut want = want;
    let mut found = tree::describe(&mount.path("copied"));
    for map in [&mut want, &mut found] {
        map.remove(Path::new("with space"));
        map.remove(Path::new(""));
    }
    tree::assert_same(&want, &found);
    assert_eq!(mount.path("dd2").metadata().unwrap().size(), 10 << 20);
    let error = fs::write(mount.path("new"), b"x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc_erofs()));
    mount.end();
    assert_clean(&image);
}

fn libc_erofs() -> i32 {
    rustix::io::Errno::ROFS.raw_os_error()
}

#[test]
fn system_calls_do_what_they_say() {
    let scratch = Scratch::new();
    let (image, dir) = match ready(&scratch, 64) {
        Ok(ready) => ready,
        Err(why) => skip!("{why}"),
    };
    let mount = Mounted::new(&image, &dir, "");
    renames(&mount);
    unlinked_files_stay(&mount);
    holes(&mount);
    attributes(&mount);
    times(&mount);
    set_id_bits(&mount);
    appends(&mount);
    let s = rustix::fs::statvfs(&mount.dir).unwrap();
    assert!(s.f_blocks > 0 && s.f_bfree < s.f_blocks && s.f_namemax == 255);
    let too_long = mount.path("n".repeat(256));
    assert_eq!(File::create(too_long).unwrap_err().raw_os_error(), Some(36));
    mount.end();
    assert_clean(&image);
}

fn renames(mount: &Mounted) {
    let (a, b) = (mount.path("a"), mount.path("b"));
    fs::write(&a, b"a").unwrap();
    fs::write(&b, b"b").unwrap();
    let no_replace = rustix::fs::renameat_with(CWD, &a, CWD, &b, RenameFlags::NOREPLACE);
    assert_eq!(no_replace, Err(rustix::io::Errno::EXIST));
    rustix::fs::renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE).unwrap();
    assert_eq!((fs::read(&a).unwrap(), fs::read(&b).unwrap()), (b"b".to_vec(), b"a".to_vec()));
    fs::rename(&a, &b).unwrap();
    assert!(!a.exists());
    assert_eq!(fs::read(&b).unwrap(), b"b");
    fs::create_dir(mount.path("d1")).unwrap();
    fs::create_dir(mount.path("d2")).unwrap();
    fs::rename(mount.path("d1"), mount.path("d2/d1")).unwrap();
    let up = mount.path("d2/d1/..").metadata().unwrap().ino();
    assert_eq!(up, mount.path("d2").metadata().unwrap().ino());
    assert!(fs::rename(mount.path("d2"), mount.path("d2/d1/x")).is_err());
    assert!(fs::remove_dir(mount.path("d2")).is_err());
}

fn unlinked_files_stay(mount: &Mounted) {
    let path = mount.path("unlinked");
    let mut file =
        File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    file.write_all(b"still here").unwrap();
    fs::remove_file(&path).unwrap();
    assert!(!path.exists());
    file.write_all(b" and growing").unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "still here and growing");
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    let dir = mount.path("gone");
    fs::create_dir(&dir).unwrap();
    let open = File::open(&dir).unwrap();
    fs::remove_dir(&dir).unwrap();
    drop(open);
}

/// Data that a program has just written and not synced is no hole for another.
fn holes(mount: &Mounted) {
    let path = mount.path("holes");
    let writer =
        File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    writer.set_len(1 << 20).unwrap();
    writer.write_all_at(&[1; 4096], 512 << 10).unwrap();
    let reader = File::open(&path).unwrap();
    let data = |from| rustix::fs::seek(&reader, rustix::fs::SeekFrom::Data(from));
    let hole = |from| rustix::fs::seek(&reader, rustix::fs::SeekFrom::Hole(from));
    assert_eq!(data(0), Ok(512 << 10));
    assert_eq!(hole(512 << 10), Ok((512 << 10) + 4096));
    assert_eq!(data(516 << 10), Err(rustix::io::Errno::NXIO));
    assert_eq!(data(2 << 20), Err(rustix::io::Errno::NXIO));
    writer.sync_all().unwrap();
    drop(writer);
    assert_eq!(data(0), Ok(512 << 10));
    assert_eq!(hole(0), Ok(0));
    let file = File::options().write(true).open(&path).unwrap();
    let keep = FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, keep | FallocateFlags::PUNCH_HOLE, 512 << 10, 4096).unwrap();
    rustix::fs::fallocate(&file, keep, 0, 2 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().size(), 1 << 20);
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 2 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().size(), 2 << 20);
    rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE, 4096, 8192).unwrap();
    assert!(fs::read(&path).unwrap().iter().all(|byte| *byte == 0));
}

fn attributes(mount: &Mounted) {
    let path = mount.path("attributes");
    fs::write(&path, b"x").unwrap();
    let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(&path, name, value, flags);
    set("user.one", b"1", XattrFlags::CREATE).unwrap();
    assert_eq!(set("user.one", b"2", XattrFlags::CREATE), Err(rustix::io::Errno::EXIST));
    set("user.one", b"2", XattrFlags::REPLACE).unwrap();
    assert_eq!(set("user.two", b"2", XattrFlags::REPLACE), Err(rustix::io::Errno::NODATA));
    set("user.two", &[b'v'; 600], XattrFlags::empty()).unwrap();
    let mut names = [0; 100];
    let len = rustix::fs::listxattr(&path, &mut names[..]).unwrap();
    let mut names: Vec<&[u8]> = names[..len].split(|b| *b == 0).filter(|n| !n.is_empty()).collect();
    names.sort();
    assert_eq!(names, [&b"user.one"[..], b"user.two"]);
    let mut small = [0; 10];
    let short = rustix::fs::getxattr(&path, "user.two", &mut small[..]);
    assert_eq!(short, Err(rustix::io::Errno::RANGE));
    rustix::fs::removexattr(&path, "user.one").unwrap();
    let gone = rustix::fs::getxattr(&path, "user.one", &mut small[..]);
    assert_eq!(gone, Err(rustix::io::Errno::NODATA));
    assert!(rustix::fs::setxattr(&mount.dir, "uext4.pid", b"1", XattrFlags::empty()).is_err());
}

fn times(mount: &Mounted) {
    let path = mount.path("times");
    fs::write(&path, b"x").unwrap();
    for (secs, nanos) in [(-2, 800_000_000), (-1, 1), (0, 0), (1, 999_999_999), (5_000_000_000, 5)]
    {
        tree::set_time(&path, secs, nanos);
        let meta = path.metadata().unwrap();
        assert_eq!((meta.mtime(), meta.mtime_nsec()), (secs, nanos));
        assert_eq!((meta.atime(), meta.atime_nsec()), (secs, nanos));
    }
    // The time of a write is the write's, and not that of its way to the server.
    let file = File::options().append(true).open(&path).unwrap();
    (&file).write_all(b"y").unwrap();
    let at_write = file.metadata().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(30));
    file.sync_all().unwrap();
    drop(file);
    let later = path.metadata().unwrap();
    assert_eq!((at_write.mtime(), at_write.mtime_nsec()), (later.mtime(), later.mtime_nsec()));
}

fn set_id_bits(mount: &Mounted) {
    if !common::is_root() {
        return;
    }
    let path = mount.path("set-id");
    fs::write(&path, b"x").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).unwrap();
    std::os::unix::fs::chown(&path, Some(1000), Some(1000)).unwrap();
    assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o755);
}

fn appends(mount: &Mounted) {
    let path = mount.path("log");
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let path = &path;
            scope.spawn(move || {
                let mut log = File::options().append(true).create(true).open(path).unwrap();
                for _ in 0..200 {
                    log.write_all(&[b'a' + thread; 100]).unwrap();
                }
            });
        }
    });
    let text = fs::read(&path).unwrap();
    assert_eq!(text.len(), 4 * 200 * 100);
    assert!(text.chunks(100).all(|chunk| chunk.iter().all(|byte| *byte == chunk[0])));
}

#[test]
fn many_threads_at_once() {
    let scratch = Scratch::new();
    let (image, dir) = match ready(&scratch, 128) {
        Ok(ready) => ready,
        Err(why) => skip!("{why}"),
    };
    let mount = Mounted::new(&image, &dir, "");
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let mount = &mount;
            scope.spawn(move || {
                let own = mount.path(format!("t{thread}"));
                fs::create_dir(&own).unwrap();
                for i in 0..100 {
                    let path = own.join(format!("f{i}"));
                    tree::write_all(&path, thread * 1000 + i, (i as usize * 977) % 40_000);
                    if i % 3 == 0 {
                        fs::rename(&path, mount.path(format!("shared-{thread}-{i}"))).unwrap();
                    } else if i % 7 == 0 {
                        fs::remove_file(&path).unwrap();
                    } else if i % 5 == 0 {
                        File::open(&path).unwrap().sync_all().unwrap();
                    }
                }
            });
        }
    });
    for thread in 0..8 {
        for i in (0..100).filter(|i| i % 3 != 0 && i % 7 != 0) {
            let len = fs::read(mount.path(format!("t{thread}/f{i}"))).unwrap().len();
            assert_eq!(len, (i * 977) % 40_000);
        }
    }
    let names = fs::read_dir(&mount.dir).unwrap().count();
    assert_eq!(names, 8 * 34 + 8 + 1);
    mount.end();
    assert_clean(&image);
}

#[test]
fn one_mount_an_image_and_busy_mounts() {
    let scratch = Scratch::new();
    let (image, dir) = match ready(&scratch, 16) {
        Ok(ready) => ready,
        Err(why) => skip!("{why}"),
    };
    let mount = Mounted::new(&image, &dir, "");
    let other = scratch.path("other");
    fs::create_dir(&other).unwrap();
    run_fails(["mount".into(), image.clone().into_os_string(), other.into()], "in use");
    run_fails(["rm".into(), at(&image, "/x")], "in use");
    let open = File::create(mount.path("open")).unwrap();
    run_fails([OsString::from("umount"), dir.clone().into()], "busy");
    drop(open);
    mount.end();
    assert!(!is_mounted(&dir));
    // Closed when umount returned: the lock is free and the image is whole.
    File::open(&image).unwrap().try_lock().unwrap();
    assert_clean(&image);
    run_fails([OsString::from("umount"), dir.into()], "not mounted");
}

#[test]
fn signals_end_a_mount() {
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let scratch = Scratch::new();
        let (image, dir) = match ready(&scratch, 16) {
            Ok(ready) => ready,
            Err(why) => skip!("{why}"),
        };
        let mount = Mounted::new(&image, &dir, "");
        fs::write(mount.path("file"), b"written before the signal").unwrap();
        let daemon = rustix::process::Pid::from_raw(mount.daemon()).unwrap();
        rustix::process::kill_process(daemon, signal).unwrap();
        wait_until("unmounted", || !is_mounted(&dir));
        wait_until("closed", || File::open(&image).unwrap().try_lock().is_ok());
        mount.forget();
        assert_clean(&image);
        let text = run_ok(["cat".into(), at(&image, "/file")]);
        assert_eq!(text, b"written before the signal");
    }
}

#[test]
fn a_busy_mount_is_served_to_the_end_or_to_the_second_signal() {
    for signals in [1, 2] {
        let scratch = Scratch::new();
        let (image, dir) = match ready(&scratch, 16) {
            Ok(ready) => ready,
            Err(why) => skip!("{why}"),
        };
        let mount = Mounted::new(&image, &dir, "");
        let mut file = File::create(mount.path("file")).unwrap();
        file.write_all(b"before").unwrap();
        file.sync_all().unwrap();
        let daemon = rustix::process::Pid::from_raw(mount.daemon()).unwrap();
        rustix::process::kill_process(daemon, rustix::process::Signal::TERM).unwrap();
        wait_until("out of sight", || !is_mounted(&dir));
        mount.forget();
        file.write_all(b" and after").unwrap();
        file.sync_all().unwrap();
        if signals == 2 {
            rustix::process::kill_process(daemon, rustix::process::Signal::TERM).unwrap();
            wait_until("closed", || File::open(&image).unwrap().try_lock().is_ok());
            assert!(file.write_all(b"lost").and_then(|()| file.sync_all()).is_err());
        } else {
            drop(file);
            wait_until("closed", || File::open(&image).unwrap().try_lock().is_ok());
        }
        assert_clean(&image);
        assert_eq!(run_ok(["cat".into(), at(&image, "/file")]), b"before and after");
    }
}

#[test]
fn a_killed_daemon_loses_nothing_synced() {
    let scratch = Scratch::new();
    let (image, dir) = match ready(&scratch, 32) {
        Ok(ready) => ready,
        Err(why) => skip!("{why}"),
    };
    let mount = Mounted::new(&image, &dir, "");
    let mut file = File::create(mount.path("synced")).unwrap();
    file.write_all(&[7; 100_000]).unwrap();
    file.sync_all().unwrap();
    fs::create_dir(mount.path("dir")).unwrap();
    File::open(&mount.dir).unwrap().sync_all().unwrap();
    fs::write(mount.path("maybe"), b"not synced").unwrap();
    let daemon = rustix::process::Pid::from_raw(mount.daemon()).unwrap();
    rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();
    drop(file);
    wait_until("lock free", || File::open(&image).unwrap().try_lock().is_ok());
    // The dead mount is still in the table; umount takes it away.
    mount.end();
    // A dirty journal: verbs that read replay it into memory and leave the image alone.
    let before = fs::read(&image).unwrap();
    assert_eq!(run_ok(["cat".into(), at(&image, "/synced")]), vec![7; 100_000]);
    let listed = run_ok(["ls".into(), at(&image, "/")]);
    assert!(String::from_utf8(listed).unwrap().lines().any(|line| line == "dir"));
    assert!(before == fs::read(&image).unwrap(), "reading changed the image");
    // The next mount replays it for good.
    let mount = Mounted::new(&image, &dir, "");
    assert_eq!(fs::read(mount.path("synced")).unwrap(), vec![7; 100_000]);
    mount.end();
    assert_clean(&image);
}

/// With `-o writeback_cache` the kernel holds what was written: what has no room is told late, but
/// it is told, and what is read back and what a clean end leaves are the bytes that were written.
#[test]
fn with_the_kernels_dirty_pages() {
    let scratch = Scratch::new();
    let (image, dir) = match ready(&scratch, 16) {
        Ok(ready) => ready,
        Err(why) => skip!("{why}"),
    };
    let mount = Mounted::new(&image, &dir, "writeback_cache,threads=2");
    let mut log = File::create(mount.path("log")).unwrap();
    let lines: Vec<String> = (0..3000).map(|n| format!("line {n}\n")).collect();
    for line in &lines {
        log.write_all(line.as_bytes()).unwrap();
    }
    assert_eq!(fs::read(mount.path("log")).unwrap(), lines.concat().as_bytes());
    log.sync_all().unwrap();
    let mut big = File::create(mount.path("big")).unwrap();
    let chunk = vec![5; 1 << 16];
    let written = (0..512).try_for_each(|_| big.write_all(&chunk)).and_then(|()| big.sync_all());
    assert_eq!(written.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    drop((big, log));
    fs::remove_file(mount.path("big")).unwrap();
    mount.end();
    assert_clean(&image);
    let again = Mounted::new(&image, &dir, "ro");
    assert_eq!(fs::read(again.path("log")).unwrap(), lines.concat().as_bytes());
    again.end();
}

#[test]
fn without_the_kernels_dirty_pages() {
    let scratch = Scratch::new();
    let (image, dir) = match ready(&scratch, 16) {
        Ok(ready) => ready,
        Err(why) => skip!("{why}"),
    };
    let mount = Mounted::new(&image, &dir, "nowriteback_cache,threads=2,noatime");
    // A full volume is told at write(2), and work goes on after something is removed.
    let mut big = File::create(mount.path("big")).unwrap();
    let chunk = vec![5; 1 << 16];
    let error = loop {
        if let Err(error) = big.write_all(&chunk) {
            break error;
        }
    };
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    drop(big);
    fs::remove_file(mount.path("big")).unwrap();
    wait_until("space again", || fs::write(mount.path("small"), [1; 1 << 18]).is_ok());
    mount.end();
    assert_clean(&image);
}

/// `/dev/fuse` open to everybody, as udev makes it; as before when dropped.
struct FuseOpenToAll {
    before: fs::Permissions,
}

impl FuseOpenToAll {
    fn now() -> std::io::Result<Self> {
        let before = fs::metadata("/dev/fuse")?.permissions();
        fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(0o666))?;
        Ok(Self { before })
    }
}

impl Drop for FuseOpenToAll {
    fn drop(&mut self) {
        let _ = fs::set_permissions("/dev/fuse", self.before.clone());
    }
}

#[test]
fn an_ordinary_user_mounts() {
    if !common::is_root() {
        skip!("the other tests run as an ordinary user already");
    }
    if !common::has("setpriv") || !common::has("fusermount3") {
        skip!("setpriv or fusermount3 is missing");
    }
    let _open = match FuseOpenToAll::now() {
        Ok(open) => open,
        Err(error) => skip!("/dev/fuse: {error}"),
    };
    let scratch = Scratch::new();
    let (image, dir) = match ready(&scratch, 32) {
        Ok(ready) => ready,
        Err(why) => skip!("{why}"),
    };
    let (uid, program) = (65_534, scratch.path("uext4"));
    fs::copy(common::UEXT4, &program).unwrap();
    fs::create_dir(&dir).unwrap();
    for path in [scratch.dir.path(), &image, &dir] {
        std::os::unix::fs::chown(path, Some(uid), Some(uid)).unwrap();
    }
    let as_user = |script: &str| {
        Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-ec", script])
            .current_dir(scratch.dir.path())
            .output()
            .unwrap()
    };
    let script = "./uext4 mount -o fakeroot image mnt
        trap './uext4 umount -l mnt' EXIT
        echo hello > mnt/file; mkdir mnt/dir; touch -d '2001-02-03 04:05:06.789' mnt/file
        test \"$(cat mnt/file)\" = hello
        ./uext4 sync mnt
        ./uext4 umount mnt; trap - EXIT
        test \"$(./uext4 cat image:/file)\" = hello";
    let output = as_user(script);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let refused = as_user("./uext4 mount -o suid image mnt");
    assert_eq!(refused.status.code(), Some(1));
    assert_clean(&image);
}

/// An access control list in the form of xattr(7): version 2, then tag, permissions and id.
fn access_list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(permissions.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}

#[test]
fn access_lists_decide_when_asked_to() {
    if !common::is_root() || !common::has("setpriv") {
        skip!("needs root and setpriv");
    }
    let scratch = Scratch::new();
    let (image, dir) = match ready(&scratch, 32) {
        Ok(ready) => ready,
        Err(why) => skip!("{why}"),
    };
    fs::set_permissions(scratch.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // Owner rw, user 65534 r, group none, mask r, others none.
    let none = u32::MAX;
    let list =
        access_list(&[(1, 6, none), (2, 4, 65_534), (4, 0, none), (16, 4, none), (32, 0, none)]);
    let may_read = |path: &Path| {
        let status = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "cat"])
            .arg(path)
            .output()
            .unwrap();
        status.status.success()
    };
    let mount = Mounted::new(&image, &dir, "acl,allow_other");
    let file = mount.path("file");
    fs::write(&file, b"x").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(!may_read(&file));
    rustix::fs::setxattr(&file, "system.posix_acl_access", &list, XattrFlags::empty()).unwrap();
    assert!(may_read(&file));
    // A directory's default list is what its new files get, whatever the umask is.
    let below = mount.path("below");
    fs::create_dir(&below).unwrap();
    fs::set_permissions(&below, fs::Permissions::from_mode(0o755)).unwrap();
    rustix::fs::setxattr(&below, "system.posix_acl_default", &list, XattrFlags::empty()).unwrap();
    shell("umask 077; echo x > below/new; echo x > plain", &mount.dir);
    assert!(may_read(&below.join("new")));
    assert_eq!(mount.path("plain").metadata().unwrap().mode() & 0o777, 0o600);
    mount.end();
    assert_clean(&image);
    let mount = Mounted::new(&image, &dir, "allow_other");
    assert!(!may_read(&mount.path("file")));
    mount.end();
}

/// What `-m` of mke2fs keeps for root is not for others: fault model, a mount that counts for all
/// callers alike. The kernel's ext4 gives the same answers.
#[test]
fn blocks_reserved_for_root_are_not_for_others() {
    if !common::is_root() || !common::has("setpriv") {
        skip!("needs root and setpriv");
    }
    let scratch = Scratch::new();
    let (image, dir) = match ready(&scratch, 64) {
        Ok(ready) => ready,
        Err(why) => skip!("{why}"),
    };
    fs::set_permissions(scratch.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mount = Mounted::new(&image, &dir, "allow_other");
    let all = mount.path("all");
    fs::create_dir(&all).unwrap();
    fs::set_permissions(&all, fs::Permissions::from_mode(0o777)).unwrap();
    let write = |prefix: &[&str], name: &str| {
        let script = format!("exec dd if=/dev/zero of={name} bs=64k count=1600 conv=fsync");
        let mut command = Command::new(prefix.first().unwrap_or(&"sh"));
        command.args(prefix.iter().skip(1));
        if !prefix.is_empty() {
            command.arg("sh");
        }
        let output = command.args(["-ec", &script]).current_dir(&all).output().unwrap();
        assert!(String::from_utf8_lossy(&output.stderr).contains("No space left"), "{output:?}");
        fs::metadata(all.join(name)).unwrap().len()
    };
    let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let reserved = 64 * 1024 * 1024 / 20;
    write(&user, "user");
    let left = rustix::fs::statvfs(&all).unwrap();
    assert!(left.f_bfree * left.f_frsize >= reserved, "{} blocks", left.f_bfree);
    assert!(write(&user, "more") < 65_536, "the user got all there was before");
    assert!(write(&[], "root") > reserved * 8 / 10);
    // What comes free is root's first.
    fs::remove_file(all.join("root")).unwrap();
    assert!(write(&user, "again") < 65_536);
    mount.end();
    assert_clean(&image);
}

/// A mount that only root may enter has no permission checks; what root cannot do either, run a
/// file that nobody may run, is refused all the same.
#[test]
fn root_alone_may_do_all_but_run_what_is_no_program() {
    if !rustix::process::geteuid().is_root() {
        skip!("needs root");
    }
    let scratch = Scratch::new();
    let (image, dir) = match ready(&scratch, 16) {
        Ok(ready) => ready,
        Err(why) => skip!("{why}"),
    };
    let mount = Mounted::new(&image, &dir, "rw");
    let script = mount.path("script");
    fs::write(&script, "#!/bin/sh\nexit 7\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o000)).unwrap();
    let access = |flags| rustix::fs::access(&script, flags);
    assert!(access(rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK).is_ok());
    assert_eq!(access(rustix::fs::Access::EXEC_OK), Err(rustix::io::Errno::ACCESS));
    assert_eq!(
        Command::new(&script).status().unwrap_err().kind(),
        std::io::ErrorKind::PermissionDenied
    );
    fs::set_permissions(&script, fs::Permissions::from_mode(0o010)).unwrap();
    assert!(access(rustix::fs::Access::EXEC_OK).is_ok());
    assert_eq!(Command::new(&script).status().unwrap().code(), Some(7));
    mount.end();
    assert_clean(&image);
}

/// Opening a running program with `O_TRUNC` is refused, and leaves it whole.
#[test]
fn a_running_program_is_not_cut() {
    let scratch = Scratch::new();
    let (image, dir) = match ready(&scratch, 16) {
        Ok(ready) => ready,
        Err(why) => skip!("{why}"),
    };
    let mount = Mounted::new(&image, &dir, "rw");
    let program = mount.path("sleep");
    fs::copy("/bin/sleep", &program).unwrap();
    let length = fs::metadata(&program).unwrap().len();
    let mut child = Command::new(&program).arg("1000").spawn().unwrap();
    let error = File::create(&program).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ExecutableFileBusy);
    assert_eq!(fs::metadata(&program).unwrap().len(), length);
    child.kill().unwrap();
    child.wait().unwrap();
    File::create(&program).unwrap();
    assert_eq!(fs::metadata(&program).unwrap().len(), 0);
    mount.end();
    assert_clean(&image);
}
