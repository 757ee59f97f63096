//! The Debian package, by dpkg-deb: the command under its names, pages, completions, documents.
//!
//! cargo-deb would pack the same files from a list in a manifest. The pages and completions are
//! written by the command itself, so that the tree must be made here in any case; and dpkg-deb is
//! there on every Debian, where cargo-deb is built for a minute and a half.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace;

use super::inventory::Inventory;
use super::{VERSION, date, output, run, write};

/// The revision of the package.
pub(super) const REVISION: &str = "1";
/// The names that mount(8) and umount(8) call, and the page of each.
pub(super) const HELPERS: &[(&str, &str)] = &[
    ("mount.uext4", "uext4-mount"),
    ("mount.fuse.uext4", "uext4-mount"),
    ("mount.fuseblk.uext4", "uext4-mount"),
    ("umount.uext4", "uext4-umount"),
    ("umount.fuse.uext4", "uext4-umount"),
    ("umount.fuseblk.uext4", "uext4-umount"),
];
const DESCRIPTION: &str = "\
ext4 in user space: image tools and FUSE mount
 Makes, fills, changes, checks and mounts ext4 images without the kernel's
 driver and without root: files go in and out of an image by one command, a
 mount is served by FUSE. The journal is ext4's own, so that a crash leaves an
 image that any ext4 recovers.";

/// Where the package is.
pub(super) fn path(folder: &Path) -> PathBuf {
    folder.join(format!("uext4_{VERSION}-{REVISION}_{}.deb", architecture()))
}

/// Packs a built command, with an option of dpkg-deb for the compression; the package's path.
pub(super) fn build(
    folder: &Path,
    command: &Path,
    inventory: &Inventory,
    compression: &str,
) -> Result<PathBuf, String> {
    let root = folder.join("deb");
    if root.exists() {
        fs::remove_dir_all(&root).map_err(|error| format!("{}: {error}", root.display()))?;
    }
    let binary = root.join("usr/bin/uext4");
    write(&binary, b"")?;
    run(Command::new("strip").args(["--strip-unneeded", "-o"]).arg(&binary).arg(command))?;
    pages(&root, command)?;
    completions(&root, command)?;
    helpers(&root)?;
    let maintainer = maintainer()?;
    documents(&root, inventory, &maintainer)?;
    let depends = depends(folder, &binary)?;
    let control = control(&root, &depends, &maintainer)?;
    write(&root.join("DEBIAN/control"), control.as_bytes())?;
    modes(&root, &binary)?;
    let deb = path(folder);
    pack(&root, &deb, compression)?;
    Ok(deb)
}

/// Packs a tree.
pub(super) fn pack(root: &Path, deb: &Path, compression: &str) -> Result<(), String> {
    let mut pack = Command::new("dpkg-deb");
    pack.args(["--root-owner-group", compression, "--build"]).arg(root).arg(deb);
    output(pack.env("SOURCE_DATE_EPOCH", date().to_string())).map(drop)
}

/// lintian's opinion but for the tags in `ignored`, with commas: an error fails, warnings are told.
pub(super) fn lint(debs: &[&Path], ignored: &str) -> Result<String, String> {
    let mut lintian = Command::new("lintian");
    lintian.args(["--allow-root", "--fail-on", "none", "--suppress-tags", ignored]);
    let said = output(lintian.args(debs))?;
    let of = |letter: &str| said.lines().filter(|line| line.starts_with(letter)).count();
    if of("E:") > 0 {
        return Err(said);
    }
    said.lines().for_each(|line| println!("{line}"));
    Ok(format!("lintian: no error, {} warnings", of("W:")))
}

fn pages(root: &Path, command: &Path) -> Result<(), String> {
    let folder = root.join("usr/share/man");
    let mut write = Command::new(command);
    write.args(["manual", "--output"]).arg(&folder);
    run(write.env("SOURCE_DATE_EPOCH", date().to_string()))?;
    let mut pages = Vec::new();
    for section in ["man1", "man5"] {
        let entries = fs::read_dir(folder.join(section)).map_err(|error| error.to_string())?;
        pages.extend(entries.flatten().map(|entry| entry.path()));
    }
    run(Command::new("gzip").arg("-9n").args(pages))?;
    for (name, page) in HELPERS {
        let link = folder.join(format!("man8/{name}.8.gz"));
        make_link(&format!("../man1/{page}.1.gz"), &link)?;
    }
    Ok(())
}

fn completions(root: &Path, command: &Path) -> Result<(), String> {
    for (shell, path) in [
        ("bash", "usr/share/bash-completion/completions/uext4"),
        ("zsh", "usr/share/zsh/vendor-completions/_uext4"),
        ("fish", "usr/share/fish/vendor_completions.d/uext4.fish"),
    ] {
        let script = output(Command::new(command).args(["completions", shell]))?;
        write(&root.join(path), script.as_bytes())?;
    }
    Ok(())
}

fn helpers(root: &Path) -> Result<(), String> {
    HELPERS
        .iter()
        .try_for_each(|(name, _)| make_link("../bin/uext4", &root.join("usr/sbin").join(name)))
}

pub(super) fn make_link(target: &str, link: &Path) -> Result<(), String> {
    let parent = link.parent().unwrap_or(link);
    fs::create_dir_all(parent).map_err(|error| format!("{}: {error}", parent.display()))?;
    symlink(target, link).map_err(|error| format!("{}: {error}", link.display()))
}

/// The packager, as Debian's tools are told; otherwise the author of what is packed.
pub(super) fn maintainer() -> Result<String, String> {
    if let (Ok(name), Ok(mail)) = (std::env::var("DEBFULLNAME"), std::env::var("DEBEMAIL")) {
        return Ok(format!("{name} <{mail}>"));
    }
    let mut git = Command::new("git");
    git.args(["log", "-1", "--format=%an <%ae>"]).current_dir(workspace::root());
    let author = output(&mut git).map_err(|why| format!("{why}: set DEBFULLNAME and DEBEMAIL"))?;
    Ok(author.trim().to_owned())
}

fn documents(root: &Path, inventory: &Inventory, maintainer: &str) -> Result<(), String> {
    own_documents(root, "uext4", inventory, maintainer)?;
    let folder = root.join("usr/share/doc/uext4");
    for name in
        ["mount.md", "system.md", "images.md", "exit-status.md", "durability.md", "cookbook.md"]
    {
        write(&folder.join(name), read(&format!("docs/{name}"))?.as_bytes())?;
    }
    Ok(())
}

/// What every package has of itself: its copyright, its changes, and the texts of licences.
pub(super) fn own_documents(
    root: &Path,
    package: &str,
    inventory: &Inventory,
    maintainer: &str,
) -> Result<(), String> {
    let folder = root.join("usr/share/doc").join(package);
    let mit = read("LICENSE-MIT")?;
    write(&folder.join("copyright"), copyright(&mit, inventory)?.as_bytes())?;
    let changes = format!(
        "uext4 ({VERSION}-{REVISION}) unstable; urgency=medium\n\n  \
         * Of the sources; what has changed is in changelog.gz.\n\n -- {maintainer}  {}\n",
        date_mail(date())?
    );
    write(&folder.join("changelog.Debian"), changes.as_bytes())?;
    write(&folder.join("changelog"), read("CHANGELOG.md")?.as_bytes())?;
    write(&folder.join("third-party.txt"), inventory.texts().as_bytes())?;
    let overrides = format!(
        "# Not made for Debian's archive: no request for it was filed there.\n\
         {package}: initial-upload-closes-no-bugs *\n"
    );
    write(&root.join("usr/share/lintian/overrides").join(package), overrides.as_bytes())?;
    let packed = ["changelog.Debian", "changelog", "third-party.txt"].map(|it| folder.join(it));
    run(Command::new("gzip").arg("-9n").args(packed))
}

/// A file of the sources.
fn read(name: &str) -> Result<String, String> {
    let path = workspace::root().join(name);
    fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))
}

/// The copyright of the package, in the form that machines read.
fn copyright(mit: &str, inventory: &Inventory) -> Result<String, String> {
    let year = date_by(date(), "+%Y")?;
    let licence: String = mit
        .lines()
        .skip_while(|line| !line.starts_with("Permission"))
        .map(|line| if line.is_empty() { " .\n".to_owned() } else { format!(" {line}\n") })
        .collect();
    let mut linked = String::new();
    for (expression, crates) in inventory.by_licence() {
        linked.push_str(&format!("  {expression}: {}\n", crates.join(", ")));
    }
    Ok(format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
         Upstream-Name: uext4\n\
         Comment: It is linked of crates of others. Their licences, whose texts are in\n \
         third-party.txt.gz beside this file, are:\n{linked}\n\
         Files: *\n\
         Copyright: {year} the uext4 developers\n\
         License: MIT or Apache-2.0\n\n\
         License: MIT\n{licence}\n\
         License: Apache-2.0\n \
         On Debian systems its text is in /usr/share/common-licenses/Apache-2.0.\n"
    ))
}

/// The libraries that the command needs, as dpkg-shlibdeps tells.
pub(super) fn depends(folder: &Path, binary: &Path) -> Result<String, String> {
    let work = folder.join("shlibs");
    write(&work.join("debian/control"), b"Source: uext4\n\nPackage: uext4\nArchitecture: any\n")?;
    let mut ask = Command::new("dpkg-shlibdeps");
    let said = output(ask.arg("-O").arg("-e").arg(binary).current_dir(&work))?;
    let depends = said.lines().find_map(|line| line.strip_prefix("shlibs:Depends="));
    depends.map(str::to_owned).ok_or_else(|| format!("dpkg-shlibdeps says: {said}"))
}

fn control(root: &Path, depends: &str, maintainer: &str) -> Result<String, String> {
    let size = installed_kib(&root.join("usr"))?;
    Ok(format!(
        "Package: uext4\nVersion: {VERSION}-{REVISION}\nArchitecture: {}\n\
         Maintainer: {maintainer}\nInstalled-Size: {size}\nDepends: {depends}\n\
         Recommends: fuse3\nSuggests: e2fsprogs\nSection: admin\nPriority: optional\n\
         Description: {DESCRIPTION}\n",
        architecture()
    ))
}

/// Debian's name of the machine that this runs on, which builds for itself.
pub(super) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// KiB of a tree as Debian's policy counts them: each file rounded up, 1 for anything else.
pub(super) fn installed_kib(path: &Path) -> Result<u64, String> {
    let found = fs::symlink_metadata(path).map_err(|it| format!("{}: {it}", path.display()))?;
    if !found.is_dir() {
        return Ok(if found.is_file() { found.len().div_ceil(1024) } else { 1 });
    }
    let entries = fs::read_dir(path).map_err(|error| error.to_string())?;
    entries.flatten().try_fold(1, |sum, entry| Ok(sum + installed_kib(&entry.path())?))
}

/// Modes of a package, whatever the umask; and sums of its files.
pub(super) fn modes(root: &Path, binary: &Path) -> Result<(), String> {
    let mut sums = String::new();
    let mut waiting = vec![root.to_path_buf()];
    while let Some(folder) = waiting.pop() {
        set_mode(&folder, 0o755)?;
        let entries = fs::read_dir(&folder).map_err(|error| error.to_string())?;
        for entry in entries.flatten() {
            let (path, kind) = (entry.path(), entry.file_type().map_err(|it| it.to_string())?);
            if kind.is_dir() {
                waiting.push(path);
            } else if kind.is_file() {
                set_mode(&path, if path == binary { 0o755 } else { 0o644 })?;
                let name = path.strip_prefix(root).unwrap_or(&path);
                if !name.starts_with("DEBIAN") {
                    let sum = output(Command::new("md5sum").arg(name).current_dir(root))?;
                    sums.push_str(&sum);
                }
            }
        }
    }
    let mut lines: Vec<&str> = sums.lines().collect();
    lines.sort_by_key(|line| line.get(34..));
    let sums = root.join("DEBIAN/md5sums");
    write(&sums, (lines.join("\n") + "\n").as_bytes())?;
    set_mode(&sums, 0o644)
}

fn set_mode(path: &Path, mode: u32) -> Result<(), String> {
    let mode = fs::Permissions::from_mode(mode);
    fs::set_permissions(path, mode).map_err(|error| format!("{}: {error}", path.display()))
}

/// `Fri, 27 Nov 2026 05:33:44 +0000`.
fn date_mail(seconds: u64) -> Result<String, String> {
    date_by(seconds, "+%a, %d %b %Y %H:%M:%S +0000")
}

/// `2026-11-27T05:33:44Z`.
pub(super) fn date_iso(seconds: u64) -> Result<String, String> {
    date_by(seconds, "+%Y-%m-%dT%H:%M:%SZ")
}

fn date_by(seconds: u64, form: &str) -> Result<String, String> {
    let mut command = Command::new("date");
    command.env("LC_ALL", "C").args(["-u", "-d", &format!("@{seconds}"), form]);
    output(&mut command).map(|text| text.trim().to_owned())
}
