//! The sources of a commit with all crates that they are built from: built without a network.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::workspace;

use super::{VERSION, date, described, output, run, write};

/// Packs what is committed; a remark on the archive.
pub(super) fn build(folder: &Path) -> Result<String, String> {
    let name = format!("uext4-{VERSION}");
    let tree = folder.join(&name);
    if tree.exists() {
        fs::remove_dir_all(&tree).map_err(|error| format!("{}: {error}", tree.display()))?;
    }
    let plain = folder.join("plain.tar");
    let mut archive = Command::new("git");
    archive.args(["archive", "--format=tar", &format!("--prefix={name}/"), "-o"]).arg(&plain);
    run(archive.arg("HEAD").current_dir(workspace::root()))?;
    run(Command::new("tar").arg("-xf").arg(&plain).arg("-C").arg(folder))?;
    // With --quiet it would keep the configuration to itself.
    let mut vendor = workspace::cargo(&["vendor", "--locked", "vendor"]);
    let config = output(vendor.current_dir(&tree))?;
    if !config.contains("replace-with") {
        return Err(format!("cargo vendor says nothing of its folder: {config}"));
    }
    write(&tree.join(".cargo/vendor.toml"), config.as_bytes())?;
    let own = tree.join(".cargo/config.toml");
    let own_text = fs::read_to_string(&own).unwrap_or_default();
    write(&own, format!("{own_text}\n{config}").as_bytes())?;
    let packed = folder.join(format!("{name}.tar.xz"));
    let mut pack = Command::new("tar");
    pack.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    // What umask and threads of xz there are must not show.
    pack.args(["--mode=u+rw,go=rX", "-cJf"]).arg(&packed).env("XZ_OPT", "-T1");
    run(pack.arg(format!("--mtime=@{}", date())).arg("-C").arg(folder).arg(&name))?;
    let _ = fs::remove_file(plain);
    Ok(described(&packed))
}
