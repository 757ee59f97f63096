//! Mounts, used by ordinary programs and threads, then checked by e2fsck.
//!
//! Fault model: content, names or attributes that are not those that were given; a full volume that
//! nobody is told of. Not covered: single system calls (`mount_calls.rs`), ends of mounts
//! (`mount_ends.rs`), users (`mount_users.rs`), loss of power (the crash tests), many gigabytes (an
//! xtask verb).

#[macro_use]
mod common;
#[path = "common/tree.rs"]
mod tree;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use common::{Mounted, Scratch, assert_clean, no_mount, run_ok, shell, wait_until};

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
    let (image, dir) = ready!(&scratch, 128);
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
fn many_threads_at_once() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 128);
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

/// With `-o writeback_cache` the kernel holds what was written: what has no room is told late, but
/// it is told, and what is read back and what a clean end leaves are the bytes that were written.
#[test]
fn with_the_kernels_dirty_pages() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 16);
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
    let (image, dir) = ready!(&scratch, 16);
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

/// What is mounted on a folder, or below it, is taken out of sight when this is dropped.
struct Unmounted<'a>(&'a Path);

impl Drop for Unmounted<'_> {
    fn drop(&mut self) {
        let _ = common::system("umount").args(["-R", "-l"]).arg(self.0).output();
    }
}

/// A sparse image on a host that lacks room for it: told in one line by the mount that can write,
/// and by `stats` of the mount and of the image; not where nothing is written or room is there.
#[test]
fn a_host_without_room_is_told_of() {
    let scratch = Scratch::new();
    if !common::is_root() {
        skip!("needs root for a small tmpfs");
    }
    let (_made, dir) = ready!(&scratch, 64);
    let host = scratch.path("host");
    fs::create_dir(&host).unwrap();
    let _guard = [Unmounted(&host), Unmounted(&dir)];
    shell(
        "mount -t tmpfs -o size=24M none host; cp --sparse=always image host/",
        scratch.dir.path(),
    );
    let image = host.join("image");
    let said = |args: &[&OsStr]| {
        let output = common::run(args);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let (verb, stats) = (OsStr::new("mount"), OsStr::new("stats"));
    let want = |verb: &str, said: &str| {
        let start = format!("uext4: {verb}: {}: sparse: may take ", image.display());
        assert!(said.starts_with(&start) && said.lines().count() == 1, "{said}");
        assert!(said.contains(" more, and its host has "), "{said}");
    };
    fs::create_dir(&dir).unwrap();
    let end = || assert_eq!(said(&[OsStr::new("umount"), dir.as_os_str()]), "");
    want("mount", &said(&[verb, image.as_os_str(), dir.as_os_str()]));
    want("stats", &said(&[stats, dir.as_os_str()]));
    end();
    want("stats", &said(&[stats, image.as_os_str()]));
    assert_eq!(said(&[verb, OsStr::new("-r"), image.as_os_str(), dir.as_os_str()]), "");
    assert_eq!(said(&[stats, dir.as_os_str()]), "");
    end();
    shell("mount -o remount,size=256M none host", scratch.dir.path());
    assert_eq!(said(&[verb, image.as_os_str(), dir.as_os_str()]), "");
    assert_eq!(said(&[stats, dir.as_os_str()]), "");
    end();
}
