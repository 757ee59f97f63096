//! The C library for its users: two Debian packages, of what cargo-c lays out.
//!
//! # What
//! cargo-c builds `libuext4.so` with its soname, and puts links, header and the file for pkg-config
//! where they belong. `libuext4-0.1` has the library, `libuext4-dev` what programs are compiled
//! with, as Debian has it of libraries. Then both are unpacked, and a program is compiled with what
//! pkg-config says of them, and run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::conform::tool::CARGO_C;
use crate::workspace;

use super::inventory::Inventory;
use super::{VERSION, deb, described, output, run, write};

/// The crate of the library.
const CRATE: &str = "uext4-capi";
/// The package of what programs are compiled with.
const DEVELOPMENT: &str = "libuext4-dev";

/// The version in the soname: before 1.0 each minor version has an interface of its own.
fn interface() -> &'static str {
    VERSION.rsplit_once('.').map_or(VERSION, |(interface, _)| interface)
}

/// The package of the library, which more than one version of is installed at a time.
pub(super) fn runtime() -> String {
    format!("libuext4-{}", interface())
}

/// Where the packages are.
pub(super) fn paths(folder: &Path) -> [PathBuf; 2] {
    let version = format!("{VERSION}-{}_{}", deb::REVISION, deb::architecture());
    [runtime().as_str(), DEVELOPMENT].map(|name| folder.join(format!("{name}_{version}.deb")))
}

/// Builds both packages and compiles a program with them; a remark.
pub(super) fn build(folder: &Path) -> Result<String, String> {
    let triplet = output(Command::new("dpkg-architecture").arg("-qDEB_HOST_MULTIARCH"))?;
    let libraries = Path::new("usr/lib").join(triplet.trim());
    let stage = fresh(folder, "library")?;
    lay_out(&stage, &libraries)?;
    let inventory = Inventory::read_of(CRATE)?;
    let maintainer = deb::maintainer()?;
    let roots = [fresh(folder, "library-runtime")?, fresh(folder, "library-dev")?];
    pack_runtime(folder, &stage, &roots[0], &libraries, &inventory, &maintainer)?;
    pack_development(folder, &stage, &roots[1], &libraries, &inventory, &maintainer)?;
    let [runtime, development] = paths(folder);
    let lintian = deb::lint(&[&runtime, &development], "")?;
    let unpacked = fresh(folder, "library-unpacked")?;
    for package in [&runtime, &development] {
        run(Command::new("dpkg-deb").arg("-x").arg(package).arg(&unpacked))?;
    }
    let soname = prove(&unpacked, &libraries)?;
    for tree in [&stage, &roots[0], &roots[1], &unpacked] {
        fs::remove_dir_all(tree).map_err(|error| format!("{}: {error}", tree.display()))?;
    }
    let both = format!("{}, {}", described(&runtime), described(&development));
    Ok(format!("{both}; {soname}; a program compiled and run; {lintian}"))
}

/// What cargo-c installs, below a folder.
fn lay_out(stage: &Path, libraries: &Path) -> Result<(), String> {
    let mut build = Command::new(CARGO_C.provide()?);
    build.args(["cinstall", "--release", "--locked", "--package", CRATE]);
    build.args(["--library-type", "cdylib", "--prefix", "/usr", "--includedir", "/usr/include"]);
    build.arg("--libdir").arg(Path::new("/").join(libraries)).arg("--destdir").arg(stage);
    // It has no --quiet.
    output(build.current_dir(workspace::root())).map(drop)
}

fn pack_runtime(
    folder: &Path,
    stage: &Path,
    root: &Path,
    libraries: &Path,
    inventory: &Inventory,
    maintainer: &str,
) -> Result<(), String> {
    let package = runtime();
    let file = format!("libuext4.so.{VERSION}");
    let library = root.join(libraries).join(&file);
    write(&library, b"")?;
    let built = stage.join(libraries).join(&file);
    run(Command::new("strip").args(["--strip-unneeded", "-o"]).arg(&library).arg(built))?;
    let link = format!("libuext4.so.{}", interface());
    deb::make_link(&file, &root.join(libraries).join(link))?;
    deb::own_documents(root, &package, inventory, maintainer)?;
    let shlibs = format!("libuext4 {} {package} (>= {VERSION})\n", interface());
    write(&root.join("DEBIAN/shlibs"), shlibs.as_bytes())?;
    write(&root.join("DEBIAN/triggers"), b"activate-noawait ldconfig\n")?;
    let control = control(
        root,
        &package,
        maintainer,
        &format!("Depends: {}\nSection: libs\nMulti-Arch: same\n", deb::depends(folder, &library)?),
        "library of ext4 in user space\n \
         Makes, fills, reads, changes and checks ext4 images in the process that links\n it, \
         without the kernel's driver and without root.",
    )?;
    write(&root.join("DEBIAN/control"), control.as_bytes())?;
    deb::modes(root, Path::new(""))?;
    deb::pack(root, &paths(folder)[0], "-Zxz")
}

fn pack_development(
    folder: &Path,
    stage: &Path,
    root: &Path,
    libraries: &Path,
    inventory: &Inventory,
    maintainer: &str,
) -> Result<(), String> {
    let header = Path::new("usr/include/uext4.h");
    for name in [header, &libraries.join("pkgconfig/uext4.pc")] {
        let text = fs::read(stage.join(name)).map_err(|it| format!("{}: {it}", name.display()))?;
        write(&root.join(name), &text)?;
    }
    let target = format!("libuext4.so.{VERSION}");
    deb::make_link(&target, &root.join(libraries).join("libuext4.so"))?;
    let source = workspace::root().join("crates").join(CRATE);
    let copy = |name: &str, to: &str| {
        let text = fs::read(source.join(name)).map_err(|error| format!("{name}: {error}"))?;
        write(&root.join(to), &text)
    };
    copy("man/uext4.3", "usr/share/man/man3/uext4.3")?;
    run(Command::new("gzip").arg("-9n").arg(root.join("usr/share/man/man3/uext4.3")))?;
    for name in ["tree.c", "memory.c"] {
        let to = format!("usr/share/doc/{DEVELOPMENT}/examples/{name}");
        copy(&format!("examples/{name}"), &to)?;
    }
    deb::own_documents(root, DEVELOPMENT, inventory, maintainer)?;
    let needs = format!("{} (= {VERSION}-{})", runtime(), deb::REVISION);
    let control = control(
        root,
        DEVELOPMENT,
        maintainer,
        &format!("Depends: {needs}\nSection: libdevel\nMulti-Arch: same\n"),
        "library of ext4 in user space, for programs in C\n \
         Header, manual page, examples and a file for pkg-config, with which programs\n are \
         compiled that make, read, change and check ext4 images.",
    )?;
    write(&root.join("DEBIAN/control"), control.as_bytes())?;
    deb::modes(root, Path::new(""))?;
    deb::pack(root, &paths(folder)[1], "-Zxz")
}

fn control(
    root: &Path,
    package: &str,
    maintainer: &str,
    fields: &str,
    description: &str,
) -> Result<String, String> {
    let size = deb::installed_kib(&root.join("usr"))?;
    Ok(format!(
        "Package: {package}\nSource: uext4\nVersion: {VERSION}-{}\nArchitecture: {}\n\
         Maintainer: {maintainer}\nInstalled-Size: {size}\n{fields}Priority: optional\n\
         Description: {description}\n",
        deb::REVISION,
        deb::architecture()
    ))
}

/// Compiles a program with what pkg-config says of an unpacked library, and runs it; the soname.
fn prove(root: &Path, libraries: &Path) -> Result<String, String> {
    let folder = root.join(libraries);
    let soname = format!("libuext4.so.{}", interface());
    let told = output(Command::new("readelf").arg("-d").arg(folder.join(&soname)))?;
    if !told.contains(&format!("Library soname: [{soname}]")) {
        return Err(format!("the library has no soname {soname}: {told}"));
    }
    let ask = |words: &[&str]| {
        let mut ask = Command::new("pkg-config");
        ask.args(words).arg("uext4").env("PKG_CONFIG_LIBDIR", folder.join("pkgconfig"));
        // It is not installed: what is below /usr is below the folder.
        ask.env("PKG_CONFIG_SYSROOT_DIR", root).env("PKG_CONFIG_ALLOW_SYSTEM_CFLAGS", "1");
        output(ask.env("PKG_CONFIG_ALLOW_SYSTEM_LIBS", "1"))
    };
    let version = ask(&["--modversion"])?;
    if version.trim() != VERSION {
        return Err(format!("uext4.pc is of version {version}"));
    }
    let flags = ask(&["--cflags", "--libs"])?;
    let example = root.join("usr/share/doc").join(DEVELOPMENT).join("examples/tree.c");
    let (program, image) = (root.join("tree"), root.join("tree.img"));
    let mut compile = Command::new("cc");
    compile.args(["-Wall", "-Werror"]).arg(example).args(flags.split_whitespace());
    run(compile.arg("-o").arg(&program))?;
    output(Command::new(&program).arg(&image).env("LD_LIBRARY_PATH", &folder))?;
    output(Command::new("/sbin/e2fsck").arg("-fn").arg(&image))?;
    Ok(soname)
}

/// An empty folder.
fn fresh(folder: &Path, name: &str) -> Result<PathBuf, String> {
    let path = folder.join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}
