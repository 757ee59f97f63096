//! Mounts by `/dev/fuse` and by io_uring: the same answers, and no request waits behind one that
//! sleeps.
//!
//! Fault models: a request that waits behind one that sleeps; a queue that nobody serves any more;
//! threads or rings that outlive the mount; a difference between the transports.

mod common;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::Duration;

use common::transport::on_both;
use common::{Mounted, Scratch, assert_clean, run_ok, wait_until};
use serde_json::Value;

fn stats(mount: &Mounted) -> Value {
    let json = run_ok(["stats".as_ref(), "--json".as_ref(), mount.dir.as_os_str()]);
    serde_json::from_slice(&json).expect("JSON")
}

#[test]
fn requests_are_counted_by_kind_and_the_way_is_shown() {
    on_both("requests_are_counted", |option| {
        let scratch = Scratch::new();
        let (image, dir) = ready!(&scratch, 64);
        let mount = Mounted::new(&image, &dir, option);
        fs::create_dir(mount.path("made")).unwrap();
        fs::write(mount.path("written"), vec![7; 3 << 20]).unwrap();
        let stats = stats(&mount);
        assert_eq!(stats["requests"]["mkdir"], 1, "{stats:#}");
        // In pieces of a mebibyte.
        assert_eq!(stats["requests"]["write"], 3, "{stats:#}");
        let transport = stats["transport"].as_str().expect("a word");
        let wanted = if option.ends_with("on") { "io_uring" } else { "/dev/fuse (switched off)" };
        assert_eq!(transport, wanted);
        // The time of birth is that of the image.
        let born = fs::metadata(mount.path("made")).unwrap().created().expect("statx has it");
        let since = born.duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs();
        assert_eq!(since, fs::metadata(mount.path("made")).unwrap().ctime().unsigned_abs());
        mount.end();
        assert_clean(&image);
    });
}

/// Fault model: a request that a read-only mount does not need, or a file that cannot be read
/// without.
#[test]
fn a_read_only_mount_reads_files_without_opening_them() {
    on_both("a_read_only_mount", |option| {
        let scratch = Scratch::new();
        let (image, dir) = ready!(&scratch, 64);
        let mount = Mounted::new(&image, &dir, option);
        fs::write(mount.path("file"), b"content").unwrap();
        mount.end();
        let mount = Mounted::new(&image, &dir, &format!("ro,{option}"));
        for _ in 0..10 {
            assert_eq!(fs::read(mount.path("file")).unwrap(), b"content");
        }
        let file = File::open(mount.path("file")).unwrap();
        file.sync_all().unwrap();
        assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)), Ok(7));
        let refused = File::options().write(true).open(mount.path("file")).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()));
        drop(file);
        let requests = &stats(&mount)["requests"];
        // The one that was answered "never ask again".
        assert_eq!(requests["open"], 1, "{requests:#}");
        assert_eq!(requests["release"], 0, "{requests:#}");
        mount.end();
    });
}

/// Many programs wait for commits at once, on all processors, and others go on.
#[test]
fn everybody_is_served_while_many_sync() {
    const PROGRAMS: usize = 64;
    on_both("everybody_is_served", |option| {
        let scratch = Scratch::new();
        let (image, dir) = ready!(&scratch, 64);
        let mount = Mounted::new(&image, &dir, option);
        std::thread::scope(|scope| {
            for n in 0..PROGRAMS {
                let path = mount.path(n.to_string());
                scope.spawn(move || {
                    let mut file = File::create(path).unwrap();
                    for _ in 0..5 {
                        file.write_all(&[n as u8; 5000]).unwrap();
                        file.sync_all().unwrap();
                    }
                });
            }
        });
        for n in 0..PROGRAMS {
            assert_eq!(fs::read(mount.path(n.to_string())).unwrap(), vec![n as u8; 25_000]);
        }
        mount.end();
        assert_clean(&image);
    });
}

/// The server is killed while many requests are under way: all of them fail, the mount point says
/// so, and can be unmounted and mounted again.
#[test]
fn a_server_that_is_killed_leaves_nobody_hanging() {
    on_both("a_server_that_is_killed", |option| {
        let scratch = Scratch::new();
        let (image, dir) = ready!(&scratch, 64);
        let mount = Mounted::new(&image, &dir, option);
        let daemon = mount.daemon().to_string();
        std::thread::scope(|scope| {
            for n in 0..32 {
                let path = mount.path(n.to_string());
                scope.spawn(move || {
                    // Until the mount is gone.
                    while let Ok(mut file) = File::create(&path) {
                        if file.write_all(&[1; 5000]).and_then(|()| file.sync_all()).is_err() {
                            break;
                        }
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(200));
            let killed = Command::new("kill").args(["-9", &daemon]).status();
            assert!(killed.expect("kill").success());
        });
        wait_until("the mount point says so", || {
            let error = fs::read_dir(&mount.dir).err().and_then(|error| error.raw_os_error());
            error == Some(rustix::io::Errno::NOTCONN.raw_os_error())
        });
        run_ok(["umount".as_ref(), mount.dir.as_os_str()]);
        mount.forget();
        let again = Mounted::new(&image, &dir, option);
        assert!(again.path("0").exists());
        again.end();
        assert_clean(&image);
    });
}

/// A program that asks for data of a file that it has just written has the kernel write the file's
/// pages back before it is answered: the server takes WRITE requests while it answers LSEEK.
#[test]
fn a_look_for_data_sees_what_was_just_written_by_mapping() {
    on_both("a_look_for_data", |option| {
        let scratch = Scratch::new();
        let (image, dir) = ready!(&scratch, 64);
        let mount = Mounted::new(&image, &dir, &format!("{option},writeback_cache"));
        std::thread::scope(|scope| {
            for n in 0..8 {
                let path = mount.path(n.to_string());
                scope.spawn(move || {
                    let file = File::create(&path).unwrap();
                    for round in 0..40 {
                        let at = 8192 * round + 4096;
                        rustix::io::pwrite(&file, &[1; 4096], at).unwrap();
                        let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at - 4096));
                        assert_eq!(data, Ok(at));
                    }
                });
            }
        });
        mount.end();
        assert_clean(&image);
    });
}

/// Fault model: a daemon that keeps to the limit of the shell that it was started from.
#[test]
fn a_server_may_have_as_many_descriptors_as_the_system_allows() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 64);
    fs::create_dir(&dir).unwrap();
    let script = "ulimit -Sn 99; ulimit -Hn 777; exec \"$0\" mount \"$1\" \"$2\"";
    let mut mount = Command::new("sh");
    mount.args(["-c", script, common::UEXT4]).args([&image, &dir]);
    assert!(mount.status().unwrap().success());
    let mount = Mounted::of(&dir);
    let limits = fs::read_to_string(format!("/proc/{}/limits", mount.daemon())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("a line");
    let numbers: Vec<&str> = line.split_whitespace().skip(3).take(2).collect();
    assert_eq!(numbers, ["777", "777"]);
    mount.end();
}

/// The server can open nothing more, so that no thread of a ring can be had. Fault models: threads
/// that ended at once are counted, and kept, for ever; all threads wait for WRITE requests that
/// nobody is left to take.
#[test]
fn a_server_without_descriptors_goes_on() {
    const PROGRAMS: usize = 100;
    on_both("a_server_without_descriptors", |option| {
        let scratch = Scratch::new();
        let (image, dir) = ready!(&scratch, 64);
        let mount = Mounted::new(&image, &dir, &format!("{option},writeback_cache"));
        let daemon = mount.daemon();
        let few = rustix::process::Rlimit { current: Some(24), maximum: Some(24) };
        let process = rustix::process::Pid::from_raw(daemon);
        rustix::process::prlimit(process, rustix::process::Resource::Nofile, few).expect("prlimit");
        let path = |n: usize| mount.path(n.to_string());
        let work = |n: usize, rounds: u64| {
            let mut processors = rustix::thread::CpuSet::new();
            processors.set(0);
            rustix::thread::sched_setaffinity(None, &processors).unwrap();
            let file = File::create(path(n)).unwrap();
            for round in 0..rounds {
                let at = 8192 * round + 4096;
                rustix::io::pwrite(&file, &[1; 4096], at).unwrap();
                file.sync_all().unwrap();
                rustix::io::pwrite(&file, &[2; 4096], at).unwrap();
                let seek = || rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at - 4096));
                let mut data = seek();
                while data == Err(rustix::io::Errno::AGAIN) {
                    data = seek();
                }
                assert_eq!(data, Ok(at));
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..PROGRAMS).map(|n| scope.spawn(move || work(n, 10))).collect();
            let ended = || threads.iter().all(|thread| thread.is_finished());
            let until = std::time::Instant::now() + Duration::from_secs(60);
            while !ended() && std::time::Instant::now() < until {
                std::thread::sleep(Duration::from_millis(50));
            }
            if !ended() {
                // Else the threads, and the unmount, would wait for ever.
                Command::new("kill").args(["-9", &daemon.to_string()]).status().expect("kill");
                panic!("nobody is left to serve");
            }
        });
        let threads = stats(&mount)["levels"]["fuse_threads"].as_u64();
        assert!(threads.is_some_and(|count| count <= 2 * PROGRAMS as u64), "{threads:?}");
        mount.end();
        assert_clean(&image);
    });
}
