//! System calls on a mount do what they say, and what they say is what ext4 says.
//!
//! Fault model: a wrong answer, a wrong errno, bytes that one way of access does not show to
//! another. Not covered: everything that pjdfstest covers (`cargo xtask pjdfstest`).

#[macro_use]
mod common;
#[path = "common/tree.rs"]
mod tree;

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::process::Command;

use common::{Mounted, Scratch, assert_clean, run_ok};
use rustix::fs::{CWD, FallocateFlags, RenameFlags, XattrFlags};

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
    let (image, dir) = ready!(&scratch, 64);
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

#[test]
fn system_calls_do_what_they_say() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 64);
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

/// Opening a running program with `O_TRUNC` is refused, and leaves it whole.
#[test]
fn a_running_program_is_not_cut() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 16);
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

/// Maps files that are open with `O_DIRECT`, and prints what each way of access sees of the others.
const MAPPED: &str = r#"
import ctypes, mmap, os, sys
path = sys.argv[1]
open(path, "wb").write(b"0" * 65536)
fd = os.open(path, os.O_RDWR | os.O_DIRECT)
plain = os.open(path, os.O_RDWR)
block = mmap.mmap(-1, 4096)  # aligned, as O_DIRECT wants it
def direct(at):
    os.preadv(fd, [block], at)
    return block[:4]
def put(at, text):
    block[:] = text * 1024
    os.pwritev(fd, [block], at)
shared = mmap.mmap(fd, 65536, mmap.MAP_SHARED)
private = mmap.mmap(fd, 65536, mmap.MAP_PRIVATE)
print("mapped", shared[:4], private[:4])
shared[0:4] = b"shar"
shared.flush()
print("direct after the mapping", direct(0))
shared[4096:4100] = b"dirt"
print("direct after a dirty page", direct(4096))
print("plain after a dirty page", os.pread(plain, 4, 4096))
put(8192, b"dire")
print("the mapping after direct", shared[8192:8196])
print(shared[12288:12292])
put(12288, b"agai")
print("the mapping after direct over a page that it had", shared[12288:12292])
os.pwrite(plain, b"plai", 16384)
print("the mapping after a plain write", shared[16384:16388], "direct", direct(16384))
shared[20480:20484] = b"mine"
put(20480, b"thei")
print("direct over a dirty page", shared[20480:20484], direct(20480))
libc = ctypes.CDLL(None, use_errno=True)
os.ftruncate(fd, 24576)
os.ftruncate(fd, 65536)
print("after a cut", shared[24576:24580], direct(24576))
other = os.open(path, os.O_RDWR | os.O_DIRECT)
second = mmap.mmap(other, 65536, mmap.MAP_SHARED)
second[28672:28676] = b"two!"
print("two mappings", shared[28672:28676])
shared.close(); private.close(); second.close()
os.close(fd); os.close(other); os.close(plain)
print(open(path, "rb").read().replace(b"0", b"").replace(b"\0", b""))
"#;

/// mmap(2) of a file that is open with `O_DIRECT` works, and agrees with direct and other accesses
/// as far as on the kernel's ext4. Fault model: a refusal; a page or a block that is older than
/// what the other way wrote.
#[test]
fn files_open_for_direct_access_are_mapped() {
    if !common::has("python3") {
        skip!("no python3");
    }
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 32);
    let seen = |dir: &std::path::Path| {
        let output =
            common::system("python3").args(["-c", MAPPED]).arg(dir.join("file")).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        String::from_utf8(output.stdout).unwrap()
    };
    let mount = Mounted::new(&image, &dir, "");
    let ours = seen(&dir);
    mount.end();
    assert_clean(&image);
    assert!(ours.contains("direct after the mapping b'shar'"), "{ours}");
    let status = common::system("mount").args(["-o", "loop"]).arg(&image).arg(&dir).status();
    if !common::is_root() || !status.is_ok_and(|status| status.success()) {
        skip!("the kernel mounts nothing here");
    }
    let kernel = seen(&dir);
    assert!(common::system("umount").arg(&dir).status().unwrap().success());
    assert_eq!(ours, kernel);
}

/// What a program holds of a file or directory without a name, not open in the sense of open(2):
/// its number stays its own. Fault model: a number that is given to another file while the kernel
/// still knows it.
#[test]
fn what_has_lost_its_name_is_known_until_it_is_let_go() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 16);
    let mount = Mounted::new(&image, &dir, "");
    let hold = |name: &str| {
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
        rustix::fs::open(mount.path(name), flags, rustix::fs::Mode::empty()).unwrap()
    };
    fs::write(mount.path("file"), b"content").unwrap();
    fs::write(mount.path("replaced"), b"older").unwrap();
    fs::write(mount.path("new"), b"newer").unwrap();
    fs::create_dir(mount.path("directory")).unwrap();
    let held = ["file", "replaced", "directory"].map(|name| (name, hold(name)));
    let before = held.each_ref().map(|(_, fd)| rustix::fs::fstat(fd).unwrap());
    fs::remove_file(mount.path("file")).unwrap();
    fs::rename(mount.path("new"), mount.path("replaced")).unwrap();
    fs::remove_dir(mount.path("directory")).unwrap();
    let mut numbers = Vec::new();
    for n in 0..300 {
        let path = mount.path(format!("other{n}"));
        fs::write(&path, b"x").unwrap();
        numbers.push(path.metadata().unwrap().ino());
        fs::remove_file(&path).unwrap();
    }
    for ((name, fd), before) in held.iter().zip(&before) {
        let now = rustix::fs::fstat(fd).unwrap();
        assert_eq!((now.st_ino, now.st_nlink), (before.st_ino, 0), "{name}");
        assert_eq!((now.st_mode, now.st_mtime_nsec > 0), (before.st_mode, true), "{name}");
        assert!(!numbers.contains(&now.st_ino), "the number of {name} was given away");
    }
    let text = |fd| {
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(fd));
        fs::read(path).unwrap()
    };
    assert_eq!(text(&held[0].1), b"content");
    assert_eq!(text(&held[1].1), b"older");
    let used = || rustix::fs::statvfs(&mount.dir).unwrap().f_ffree;
    let before = used();
    drop(held);
    common::wait_until("the last forgets", || used() == before + 3);
    mount.end();
    assert_clean(&image);
}
