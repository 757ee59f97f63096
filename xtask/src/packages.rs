//! Debian packages that the tests use.
//!
//! # What
//! A package is looked for by a program of it, so that any distribution that has the programs
//! will do. As root on Debian the missing ones are installed; otherwise one line names them.

use std::process::{Command, Stdio};

use crate::machine;

/// Package, a program that it brings, what the tests do with it.
const PACKAGES: &[(&str, &str, &str)] = &[
    ("e2fsprogs", "e2fsck", "the judge of every image; makes reference images"),
    ("fuse3", "fusermount3", "mounting as an ordinary user"),
    ("fuse2fs", "fuse2fs", "the peer of the comparisons"),
    ("bindfs", "bindfs", "a plain FUSE server in the comparisons"),
    ("attr", "setfattr", "extended attributes through a mount"),
    ("acl", "setfacl", "access control lists through a mount"),
    ("fio", "fio", "verified I/O through a mount and in a process"),
    ("gcc", "cc", "the C part of fio's engine; programs that use the C interface"),
    ("g++", "g++", "the header of the C interface in C++"),
    ("golang-go", "go", "a program in Go that uses the C interface"),
    ("fsverity", "fsverity", "digests of files with a Merkle tree"),
    ("gdisk", "sgdisk", "disk images with a GPT"),
    ("fdisk", "sfdisk", "disk images with an MBR, or with sectors of 4096 bytes"),
    ("openssl", "openssl", "a password in a recipe of the cookbook"),
    ("fakeroot", "fakeroot", "owners that builds pretend"),
    ("jq", "jq", "JSON in recipes of the cookbook"),
    ("zstd", "zstd", "tar unpacks archives of the cookbook"),
    ("parted", "parted", "disk images with logical partitions"),
    ("mount", "losetup", "the kernel's opinion of an image"),
    ("valgrind", "valgrind", "counts instructions of operations"),
    ("python3", "/usr/bin/python3", "scripts of system calls, on mounts and on the kernel's ext4"),
    ("git", "git", "a program that people run, on a mount"),
    ("rsync", "rsync", "the same"),
    ("sqlite3", "sqlite3", "a database whose mount is killed"),
    (
        "python3-plyvel",
        "/usr/lib/python3/dist-packages/plyvel/__init__.py",
        "LevelDB, which crashtest tests",
    ),
    ("python3-pytest", "/usr/bin/pytest-3", "runs the tests of the Python package"),
    (
        "python3-fsspec",
        "/usr/lib/python3/dist-packages/fsspec/__init__.py",
        "programs that open images by URL, which the Python package serves",
    ),
    ("postgresql", "pg_createcluster", "another database, with a server of its own"),
    ("stress-ng", "stress-ng", "the load of `cargo xtask soak`"),
    ("util-linux", "fsfreeze", "a dirty image of a live kernel mount"),
    ("umoci", "umoci", "the judge of layers of OCI images; makes them for the cookbook"),
    ("bsdutils", "script", "a terminal: progress and colours"),
    ("zsh", "zsh", "its completions"),
    ("fish", "fish", "its completions"),
    ("groff", "groff", "formats the manual pages"),
    ("mandoc", "mandoc", "a second opinion of the manual pages"),
    ("chromium", "chromium", "opens the report of the lab"),
    ("nbdkit", "nbdkit", "a server of network block devices"),
    ("qemu-utils", "qemu-nbd", "the same, of qcow2 images"),
    ("libnbd-bin", "nbdcopy", "another client of them: reads images for the judges"),
];

/// What `cargo xtask old-kernel` needs besides, and nothing else does: 200 MB with what they need.
const EMULATOR: &[(&str, &str, &str)] =
    &[("qemu-system-x86", "qemu-system-x86_64", "a machine for a kernel that is not this one's")];

/// What `cargo xtask remote` needs for a cluster of Ceph, and nothing else does: 250 MB with what
/// they need.
const CEPH: &[(&str, &str, &str)] = &[
    ("ceph-mon", "ceph-mon", "the monitor of a cluster on this host"),
    ("ceph-mgr", "ceph-mgr", "its manager"),
    ("ceph-osd", "ceph-osd", "its store"),
    ("ceph-common", "rbd", "makes images and snapshots on it"),
    (
        "qemu-block-extra",
        "/usr/lib/x86_64-linux-gnu/qemu/block-rbd.so",
        "images of Ceph by qemu-nbd",
    ),
    ("librbd-dev", "/usr/include/rbd/librbd.h", "images of Ceph by librbd"),
];

/// What `cargo xtask package` needs, and the step of the tests that packs.
const PACKAGING: &[(&str, &str, &str)] = &[
    ("dpkg-dev", "dpkg-shlibdeps", "the libraries that a binary needs"),
    ("binutils", "strip", "binaries without what is for debuggers"),
    ("lintian", "lintian", "judges the Debian package"),
    ("xz-utils", "xz", "packs the sources"),
];

/// What it needs with `--try`, or for the static binary, the C library and the Python wheel.
const TRYING: &[(&str, &str, &str)] = &[
    ("pkgconf", "pkg-config", "tells how programs are compiled with the C library"),
    ("libssl-dev", "/usr/include/openssl/ssl.h", "cargo-c, which lays out the C library, links it"),
    ("mmdebstrap", "mmdebstrap", "a fresh Debian, in which packages are tried"),
    ("musl-tools", "musl-gcc", "the C parts of a static binary"),
    (
        "python3-venv",
        "/usr/lib/python3.11/ensurepip/__init__.py",
        "a place for what builds the Python wheel, and one to install it in",
    ),
];

/// What came of looking for the packages.
pub(crate) enum Found {
    /// All programs are there; nothing was done.
    All,
    /// These packages were installed.
    Installed(String),
    /// These are missing, and why nothing was installed.
    Missing(String),
}

/// Looks for the packages and installs the missing ones as root, unless `install` is false.
pub(crate) fn provide(install: bool) -> Found {
    provide_from(&[PACKAGES, PACKAGING].concat(), install)
}

/// The same for the packages of `cargo xtask old-kernel`.
pub(crate) fn provide_emulator() -> Found {
    provide_from(EMULATOR, true)
}

/// The same for the packages of `cargo xtask remote`, and those of the tests.
pub(crate) fn provide_ceph() -> Found {
    provide_from(&[PACKAGES, CEPH].concat(), true)
}

/// The same for the packages of `cargo xtask package`.
pub(crate) fn provide_packaging() -> Found {
    provide_from(&[PACKAGING, TRYING].concat(), true)
}

/// Has apt-get(8) read what there is, as root and without a word; whether it did.
pub(crate) fn update() -> bool {
    let silent = || Command::new("apt-get").args(["-q", "update"]).stdin(Stdio::null()).output();
    machine::is_root() && silent().is_ok_and(|output| output.status.success())
}

fn provide_from(packages: &[(&'static str, &str, &str)], install: bool) -> Found {
    let missing = missing(packages);
    if missing.is_empty() {
        return Found::All;
    }
    let names = missing.join(" ");
    let by_hand = format!("apt-get install -y --no-install-recommends {names}");
    if !install {
        return Found::Missing(format!("{names} (not installed: --no-install)"));
    }
    if !machine::is_root() {
        return Found::Missing(format!("{names} (as root: {by_hand})"));
    }
    if machine::program("apt-get").is_none() {
        return Found::Missing(format!("{names} (no apt-get here)"));
    }
    let installed = apt_get(&["update"])
        && apt_get(&[&["install", "-y", "--no-install-recommends"], &missing[..]].concat());
    let still = self::missing(packages);
    if installed && still.is_empty() {
        Found::Installed(names)
    } else {
        Found::Missing(format!("{} (failed: {by_hand})", still.join(" ")))
    }
}

fn missing(packages: &[(&'static str, &str, &str)]) -> Vec<&'static str> {
    packages
        .iter()
        .filter(|(_, program, _)| machine::program(program).is_none())
        .map(|(package, _, _)| *package)
        .collect()
}

fn apt_get(arguments: &[&str]) -> bool {
    Command::new("apt-get")
        .arg("-q")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
