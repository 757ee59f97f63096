//! `cargo xtask fio`: the ioengine of `integrations/fio`, built for the fio that is installed.
//!
//! # What
//! fio loads an engine that was compiled with the headers of exactly its version: they are taken
//! from the source package of the installed Debian package, which apt verifies. Nothing of the
//! system changes: apt works with a configuration and lists of its own, in the build folder.
//!
//! What lies in `target/fio`: `apt` (configuration and lists), `VERSION` (fio's sources), and by
//! profile the engine, `uext4_fio.so`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Trouble;
use crate::{machine, workspace};

/// The engine's folder in the repository.
const FOLDER: &str = "integrations/fio";

/// What fio's own makefile compiles an engine with, and warnings for ours.
const C_FLAGS: &[&str] = &[
    "-std=gnu99",
    "-O2",
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fPIC",
    "-shared",
    "-D_GNU_SOURCE",
    "-D_LARGEFILE_SOURCE",
    "-D_FILE_OFFSET_BITS=64",
    "-DBITS_PER_LONG=64",
];
/// The engine's threads outlive fio's dlclose(3): it is never unmapped.
const LINK_FLAGS: &[&str] = &["-lpthread", "-ldl", "-lm", "-Wl,-z,nodelete"];

/// Which build of the Rust part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// With the engine's assertions, for tests.
    Debug,
    /// For measuring.
    Release,
}

impl Profile {
    fn folder(self) -> &'static str {
        match self {
            Profile::Debug => "debug",
            Profile::Release => "release",
        }
    }
}

/// Builds the engine; its path. `source` is fio's source tree, found by itself if not given.
pub(crate) fn build(profile: Profile, source: Option<&Path>) -> Result<PathBuf, Trouble> {
    for program in ["fio", "cc"] {
        if machine::program(program).is_none() {
            return Err(Trouble::Missing(format!("{program} is not installed")));
        }
    }
    let source = match source {
        Some(source) => source.to_path_buf(),
        None => provide_source()?,
    };
    configure(&source)?;
    let library = compile_rust(profile)?;
    compile_c(profile, &source, &library)
}

/// The source tree of the installed fio.
fn provide_source() -> Result<PathBuf, Trouble> {
    let version = installed_version()?;
    let root = workspace::target().join("fio");
    let source = root.join(&version);
    if source.join("ioengines.h").is_file() {
        return Ok(source);
    }
    let why = |what: &str| Trouble::Missing(format!("the sources of fio {version}: {what}"));
    let apt = root.join("apt");
    let folders = ["parts", "lists/partial", "cache/archives/partial", "got"];
    let made = folders.iter().try_for_each(|name| fs::create_dir_all(apt.join(name)));
    made.and_then(|()| write_source_lists(&apt.join("parts"))).map_err(|e| why(&e.to_string()))?;
    if !apt_get(&apt, &["update"]) {
        return Err(why("apt-get update with deb-src fails"));
    }
    let package = format!("fio={version}");
    if !apt_get(&apt, &["source", "--only-source", "--download-only", "--tar-only", &package]) {
        return Err(why("apt-get source fails"));
    }
    let archive = fs::read_dir(apt.join("got"))
        .map_err(|error| why(&error.to_string()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.to_string_lossy().contains(".orig.tar"))
        .ok_or_else(|| why("the source package has no .orig.tar"))?;
    // Under another name until it is whole.
    let partial = root.join(format!("{version}.partial"));
    let _ = fs::remove_dir_all(&partial);
    fs::create_dir_all(&partial).map_err(|error| why(&error.to_string()))?;
    let mut tar = Command::new("tar");
    tar.args(["-x", "--strip-components=1", "-f"]).arg(&archive).arg("-C").arg(&partial);
    if !succeeds(&mut tar) {
        return Err(why("the archive cannot be unpacked"));
    }
    fs::rename(&partial, &source).map_err(|error| why(&error.to_string()))?;
    let _ = fs::remove_dir_all(&apt);
    Ok(source)
}

/// Version of the installed package, if the fio that runs is Debian's.
fn installed_version() -> Result<String, Trouble> {
    let said = |program: &str, words: &[&str]| {
        let output = Command::new(program).args(words).stdin(Stdio::null()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let package = said("dpkg-query", &["-W", "-f", "${Version}", "fio"]).unwrap_or_default();
    let program = said("fio", &["--version"]).unwrap_or_default();
    let upstream = package.split(['-', '+']).next().unwrap_or_default();
    if upstream.is_empty() || program != format!("fio-{upstream}") {
        let line = format!("'{program}' is not Debian's package ('{package}'): use --source DIR");
        return Err(Trouble::Missing(line));
    }
    Ok(package)
}

/// The system's package sources, as sources of source packages.
fn write_source_lists(parts: &Path) -> std::io::Result<()> {
    let system = Path::new("/etc/apt");
    let mut lists = vec![system.join("sources.list")];
    if let Ok(entries) = fs::read_dir(system.join("sources.list.d")) {
        lists.extend(entries.filter_map(|entry| Some(entry.ok()?.path())));
    }
    for list in lists {
        let wanted = list.extension().is_some_and(|e| e == "list" || e == "sources");
        let (true, Some(name), Ok(text)) = (wanted, list.file_name(), fs::read_to_string(&list))
        else {
            continue;
        };
        fs::write(parts.join(name), as_source_list(&text))?;
    }
    Ok(())
}

/// Turns `deb` into `deb-src`, in both of apt's formats.
fn as_source_list(text: &str) -> String {
    let line = |line: &str| match line.split_once(char::is_whitespace) {
        Some(("deb", rest)) => format!("deb-src {rest}\n"),
        Some(("Types:", _)) => "Types: deb-src\n".to_owned(),
        _ => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

fn apt_get(apt: &Path, words: &[&str]) -> bool {
    let option = |name: &str, value: &Path| format!("-o{name}={}", value.display());
    let mut command = Command::new("apt-get");
    command
        .arg("-q")
        .args([
            option("Dir::Etc::sourcelist", Path::new("/dev/null")),
            option("Dir::Etc::sourceparts", &apt.join("parts")),
            option("Dir::State::lists", &apt.join("lists")),
            option("Dir::Cache", &apt.join("cache")),
            // The unprivileged user of apt cannot reach the build folder.
            "-oAPT::Sandbox::User=root".to_owned(),
        ])
        .args(words)
        .current_dir(apt.join("got"));
    succeeds(&mut command)
}

/// Makes `config-host.h`, on which fio's headers depend.
fn configure(source: &Path) -> Result<(), Trouble> {
    if source.join("config-host.h").is_file() {
        return Ok(());
    }
    let mut command = Command::new("./configure");
    command.arg("--disable-native").current_dir(source);
    if succeeds(&mut command) && source.join("config-host.h").is_file() {
        return Ok(());
    }
    Err(Trouble::fault(format!("{}: ./configure fails", source.display())))
}

/// The static library of the Rust part.
fn compile_rust(profile: Profile) -> Result<PathBuf, Trouble> {
    let manifest = workspace::root().join(FOLDER).join("Cargo.toml");
    let mut command = workspace::cargo(&["build", "--locked", "--quiet", "--manifest-path"]);
    command.arg(manifest).arg("--target-dir").arg(workspace::target());
    if profile == Profile::Release {
        command.arg("--release");
    }
    match command.stdin(Stdio::null()).status() {
        Ok(status) if status.success() => {
            Ok(workspace::target().join(profile.folder()).join("libuext4_fio.a"))
        }
        _ => Err(Trouble::fault(format!("{FOLDER} does not build"))),
    }
}

fn compile_c(profile: Profile, source: &Path, library: &Path) -> Result<PathBuf, Trouble> {
    let folder = workspace::target().join("fio").join(profile.folder());
    let engine = folder.join("uext4_fio.so");
    fs::create_dir_all(&folder)
        .map_err(|error| Trouble::fault(format!("{}: {error}", folder.display())))?;
    let own = workspace::root().join(FOLDER);
    let output = Command::new("cc")
        .args(C_FLAGS)
        .arg("-include")
        .arg(source.join("config-host.h"))
        // As a system's headers: their warnings are not ours.
        .arg("-isystem")
        .arg(source)
        .arg("-I")
        .arg(&own)
        .arg(own.join("engine.c"))
        .arg(library)
        .args(LINK_FLAGS)
        .arg("-o")
        .arg(&engine)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Trouble::fault(format!("cc: {error}")))?;
    if output.status.success() {
        return Ok(engine);
    }
    Err(Trouble::fault(String::from_utf8_lossy(&output.stderr).into_owned()))
}

fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// The verb: prints where the engine is.
pub(crate) fn verb(source: Option<&Path>) -> Result<(), String> {
    let engine = build(Profile::Release, source).map_err(Trouble::into_error)?;
    println!("{}", engine.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_become_sources_of_sources() {
        let list = "# main\ndeb [signed-by=/k] http://host/debian bookworm main\ndeb-src x y z\n";
        assert_eq!(
            as_source_list(list),
            "# main\ndeb-src [signed-by=/k] http://host/debian bookworm main\ndeb-src x y z\n"
        );
        let deb822 = "Types: deb\nURIs: http://host/debian\n\nTypes: deb deb-src\nURIs: u\n";
        assert_eq!(
            as_source_list(deb822),
            "Types: deb-src\nURIs: http://host/debian\n\nTypes: deb-src\nURIs: u\n"
        );
    }
}
