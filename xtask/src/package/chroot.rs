//! `cargo xtask package --try`: what was packed, installed and used in a fresh Debian.
//!
//! # What
//! A minimal Debian by mmdebstrap, kept as an archive, is unpacked for each try and entered in
//! mount, process and network name spaces of its own: there is no network but the loopback, and no
//! daemon outlives the try. In it the README's steps are typed as they stand, as root and as an
//! ordinary user, from the Debian package and from the sources; mount(8), umount(8) and fstab(5)
//! are used; the package is removed, and nothing of it may be left. The static binary works in an
//! empty root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{machine, workspace};

use super::{VERSION, library, output, run, write};

const SUITE: &str = "bookworm";
/// What the README's steps use besides the command.
const TOOLS: &str = "e2fsprogs,fuse3";
/// What the sources are built by, besides the toolchain of Rust.
const COMPILER: &str = "e2fsprogs,fuse3,gcc,libc6-dev,xz-utils";

/// What a program in C is compiled by.
const C: &str = "e2fsprogs,gcc,libc6-dev,pkgconf";

/// Enters the root `$1`: devices, processes, and the toolchain `$2` if there is one; runs its /try.
const ENTER: &str = r#"
mount -t proc proc "$1/proc"
mount -t tmpfs dev "$1/dev"
for device in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0 fuse:10:229; do
    mknod -m 666 "$1/dev/${device%%:*}" c $(echo "${device#*:}" | tr : ' ')
done
# As whatever starts containers makes it; fusermount3 unmounts for no user without.
[ -e "$1/etc/mtab" ] || ln -s /proc/self/mounts "$1/etc/mtab"
if [ "$2" ]; then mkdir "$1/opt/rust"; mount --rbind "$2" "$1/opt/rust"; fi
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin:/opt/rust/bin HOME=/root \
    chroot "$1" sh -ex /try
"#;

/// With `steps USER` the README's steps in /quick, which is left as it was found.
const STEPS: &str = r#"
steps() {
    chown -R "$1" /quick
    cd /quick
    setpriv --reuid="$1" --regid="$1" --clear-groups env HOME=/quick \
        sh -ex /steps >/tmp/said 2>&1 ||
        { cat /tmp/said; exit 1; }
    cat /tmp/said
    test -e done
    if grep '^uext4:' /tmp/said; then exit 1; fi
    rm -rf /quick/done /quick/disk.img /quick/mnt
    ended
}
ended() {
    if ls -l /proc/[0-9]*/exe 2>/dev/null | grep uext4; then exit 1; fi
    if grep uext4 /proc/self/mountinfo; then exit 1; fi
}
"#;

/// With `files` the names of all that packages may have left.
const FILES: &str = r#"
files() {
    find / -xdev \( -path /proc -o -path /dev -o -path /run -o -path /tmp -o -path /quick \
        -o -path /var/lib/dpkg -o -path /var/log -o -path /var/cache \) -prune -o -print | sort
}
files > /tmp/before
"#;

const LIBRARY: &str = r#"
dpkg -i /tmp/runtime.deb /tmp/dev.deb
cd /tmp
for example in /usr/share/doc/libuext4-dev/examples/*.c; do
    cc -Wall -Werror "$example" $(pkg-config --cflags --libs uext4) -o program
    ./program example.img
    e2fsck -fn example.img
    rm example.img
done
test -s /usr/share/man/man3/uext4.3.gz
dpkg -P libuext4-dev "$(dpkg-deb -f runtime.deb Package)"
files > /tmp/after
diff /tmp/before /tmp/after
"#;

const DEBIAN: &str = r#"
dpkg -i /tmp/uext4.deb
steps 0
steps 65534
mkdir /srv/data
uext4 mkfs -q /tmp/data.img 256M
used() {
    head -c 60000000 /dev/urandom > /srv/data/file
    umount "$1"
    flock -n /tmp/data.img true
    e2fsck -fn /tmp/data.img
    uext4 rm /tmp/data.img:/file
    ended
}
cd /srv
for form in 'mount -t uext4' 'mount -t fuse.uext4' mount.fuse.uext4 'uext4 mount'; do
    for dir in /srv/data data; do
        $form /tmp/data.img /srv/data
        used $dir
    done
done
cp /etc/fstab /tmp/fstab
echo '/tmp/data.img /srv/data uext4 noatime,nofail 0 0' >> /etc/fstab
mount /srv/data
mount -a
grep '/srv/data .*noatime' /proc/self/mountinfo
used /srv/data
cp /tmp/fstab /etc/fstab
rmdir /srv/data
dpkg -r uext4
dpkg -P uext4
files > /tmp/after
diff /tmp/before /tmp/after
"#;

const SOURCES: &str = r#"
export CARGO_HOME=/tmp/cargo
mkdir /tmp/cargo
chmod 777 /tmp/cargo
steps 65534
steps 0
"#;

/// Tries a Debian package; a remark.
pub(super) fn try_debian(folder: &Path, deb: &Path) -> Result<String, String> {
    let root = Root::unpack(folder, "debian", TOOLS)?;
    copy(deb, &root.path("tmp/uext4.deb"))?;
    let quick = root.path("quick");
    fs::create_dir_all(&quick).map_err(|error| error.to_string())?;
    let mut archive = Command::new("sh");
    archive.args(["-ec", "git archive HEAD docs crates | tar -x -C \"$1\"", "sh"]).arg(&quick);
    run(archive.current_dir(workspace::root()))?;
    let readme = read(&workspace::root().join("README.md"))?;
    root.enter(&steps(&readme, false)?, &format!("{FILES}{DEBIAN}"), None)?;
    Ok("installed, README's steps by two users, mount(8), fstab(5), removed".to_owned())
}

/// Tries the packages of the C library; a remark.
pub(super) fn try_library(folder: &Path) -> Result<String, String> {
    let root = Root::unpack(folder, "c", C)?;
    let [runtime, development] = library::paths(folder);
    copy(&runtime, &root.path("tmp/runtime.deb"))?;
    copy(&development, &root.path("tmp/dev.deb"))?;
    root.enter("", &format!("{FILES}{LIBRARY}"), None)?;
    Ok("installed, its examples compiled and run, removed".to_owned())
}

/// Tries the packed sources; a remark.
pub(super) fn try_sources(folder: &Path) -> Result<String, String> {
    let root = Root::unpack(folder, "builder", COMPILER)?;
    let archive = folder.join(format!("uext4-{VERSION}.tar.xz"));
    run(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&root.folder))?;
    let quick = root.path("quick");
    fs::rename(root.path(&format!("uext4-{VERSION}")), &quick).map_err(|it| it.to_string())?;
    let sysroot = output(Command::new("rustc").args(["--print", "sysroot"]))?;
    let readme = read(&quick.join("README.md"))?;
    root.enter(&steps(&readme, true)?, SOURCES, Some(Path::new(sysroot.trim())))?;
    Ok("built without a network, README's steps by two users".to_owned())
}

/// Tries the static binary where there is nothing else; a remark.
pub(super) fn try_static(folder: &Path, binary: &Path) -> Result<String, String> {
    let root = Root::make(folder, "empty")?;
    copy(binary, &root.path("uext4"))?;
    for words in [
        &["mkfs", "-q", "disk.img", "64M"][..],
        &["cp", "/uext4", "disk.img:/"],
        &["ls", "-l", "disk.img:/"],
        &["fsck", "disk.img"],
    ] {
        run(Command::new("chroot").arg(&root.folder).arg("/uext4").args(words))?;
    }
    if let Some(why) = machine::why_no_fuse() {
        return Ok(format!("works in an empty root; no mount: {why}"));
    }
    let (command, image, dir) = (root.path("uext4"), root.path("disk.img"), root.path("mnt"));
    fs::create_dir(&dir).map_err(|error| error.to_string())?;
    run(Command::new(&command).arg("mount").args([&image, &dir]))?;
    let same = run(Command::new("cmp").arg(dir.join("uext4")).arg(&command));
    run(Command::new(&command).arg("umount").arg(&dir))?;
    same.map(|()| "works in an empty root, and mounts".to_owned())
}

/// The README's steps as a script; the first builds the command.
fn steps(readme: &str, with_build: bool) -> Result<String, String> {
    let (_, after) = readme.split_once("Or step by step:\n").ok_or("README.md: no steps")?;
    let lines = after.trim_start_matches('\n').lines().take_while(|line| line.starts_with("    "));
    let lines = lines.filter(|line| with_build || !line.contains("cargo build"));
    // `sh -e` alone goes on after the first half of `a && b`.
    let script: String = lines.map(|line| format!("{{ {}\n}} || exit 1\n", line.trim())).collect();
    Ok(format!("{script}touch done\n"))
}

/// A root folder, which is removed with this.
struct Root {
    folder: PathBuf,
}

impl Root {
    fn make(folder: &Path, name: &str) -> Result<Self, String> {
        let root = Self { folder: folder.join(format!("root-{name}")) };
        root.remove();
        fs::create_dir_all(&root.folder).map_err(|error| error.to_string())?;
        Ok(root)
    }

    /// A fresh Debian with some packages, from an archive that is made once.
    fn unpack(folder: &Path, name: &str, packages: &str) -> Result<Self, String> {
        let archive = folder.join(format!("{SUITE}-{name}.tar"));
        if !archive.exists() {
            let part = archive.with_extension("part.tar");
            let mut make = Command::new("mmdebstrap");
            make.args(["--quiet", "--variant=minbase", &format!("--include={packages}"), SUITE]);
            output(make.arg(&part).arg("http://deb.debian.org/debian"))?;
            fs::rename(&part, &archive).map_err(|error| error.to_string())?;
        }
        let root = Self::make(folder, name)?;
        run(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&root.folder))?;
        Ok(root)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Runs a script in it, with a log beside the root.
    fn enter(&self, steps: &str, script: &str, toolchain: Option<&Path>) -> Result<(), String> {
        write(&self.path("steps"), steps.as_bytes())?;
        write(&self.path("try"), format!("{STEPS}{script}").as_bytes())?;
        let mut enter = Command::new("unshare");
        enter.args(["--mount", "--pid", "--net", "--fork", "--kill-child", "sh", "-ec", ENTER]);
        enter.arg("sh").arg(&self.folder).arg(toolchain.unwrap_or(Path::new("")));
        let log = self.folder.with_extension("log");
        let file = fs::File::create(&log).map_err(|it| it.to_string())?;
        enter.stderr(file.try_clone().map_err(|it| it.to_string())?).stdout(file);
        run(&mut enter).map_err(|why| {
            let said = read(&log).unwrap_or_default();
            format!("{why}; {} ends with\n{}", log.display(), last(&said, 30))
        })
    }

    fn remove(&self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        // Mounts were in a name space that is gone.
        self.remove();
    }
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    fs::copy(from, to).map(drop).map_err(|error| format!("{}: {error}", from.display()))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The last lines of a text.
fn last(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::steps;

    #[test]
    fn steps_are_the_indented_lines() {
        let readme =
            "x\nOr step by step:\n\n    cargo build && PATH=a\n    uext4 ls  # why\n\nEnd\n";
        let built = steps(readme, true).unwrap();
        assert!(built.starts_with("{ cargo build && PATH=a\n} || exit 1\n{ uext4 ls  # why\n}"));
        assert!(steps(readme, false).unwrap().starts_with("{ uext4 ls"));
        assert!(steps("nothing", true).is_err());
    }
}
