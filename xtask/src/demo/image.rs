//! Steps on the image through the verbs, without a mount.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::StepResult;
use super::stage::{Stage, output, stop};
use crate::machine;

/// Size of the image, as mkfs takes it. The file is sparse.
const IMAGE_SIZE: &str = "2G";

pub(super) fn make(stage: &mut Stage) -> StepResult {
    let image = stage.image();
    stage.uext4(&[OsStr::new("mkfs"), image.as_ref(), IMAGE_SIZE.as_ref()])?;
    Ok(format!("{} of {IMAGE_SIZE}", image.display()))
}

pub(super) fn bring_in(stage: &mut Stage) -> StepResult {
    let to = stage.inside("/tree");
    stage.uext4(&["cp".as_ref(), "-r".as_ref(), stage.tree.as_os_str(), &to])?;
    Ok(format!("cp -r {} disk.img:/tree", stage.tree.display()))
}

pub(super) fn look(stage: &mut Stage) -> StepResult {
    stage.uext4(&[OsStr::new("info"), stage.image().as_ref()])?;
    let names = stage.uext4(&[OsStr::new("ls"), &stage.inside("/tree")])?;
    let original = fs::read_dir(&stage.tree).map_err(|error| error.to_string())?.count();
    if names.lines().count() != original {
        return Err(format!("{} names, the original has {original}", names.lines().count()));
    }
    Ok(format!("info, ls: {original} names in disk.img:/tree"))
}

/// Copies the tree out and compares it, then changes names.
pub(super) fn work(stage: &mut Stage) -> StepResult {
    let back = stage.outside("back");
    let from = stage.inside("/tree");
    stage.uext4(&["cp".as_ref(), "-r".as_ref(), from.as_os_str(), back.as_os_str()])?;
    compare(&stage.tree, &back)?;
    fs::remove_dir_all(&back).map_err(|error| error.to_string())?;

    let kept = stage.outside("kept");
    let text = "kept through the kill\n".repeat(1000);
    fs::write(&kept, &text).map_err(|error| error.to_string())?;
    let at = |path| stage.inside(path);
    stage.uext4(&[OsStr::new("mkdir"), &at("/new")])?;
    stage.uext4(&[OsStr::new("cp"), kept.as_ref(), &at("/new/kept")])?;
    stage.uext4(&[OsStr::new("mv"), &at("/new/kept"), &at("/new/renamed")])?;
    stage.uext4(&[OsStr::new("cp"), kept.as_ref(), &at("/new/removed")])?;
    stage.uext4(&[OsStr::new("rm"), &at("/new/removed")])?;
    if stage.uext4(&[OsStr::new("cat"), &at("/new/renamed")])? != text {
        return Err("cat gives other bytes than were copied in".into());
    }
    Ok("copied out and compared; mkdir, cp, mv, rm, cat".into())
}

pub(super) fn kill_under_load(stage: &mut Stage) -> StepResult {
    let to = stage.inside("/second");
    let mut child = stage.start(&["cp".as_ref(), "-r".as_ref(), stage.tree.as_os_str(), &to])?;
    std::thread::sleep(Duration::from_millis(400));
    let ended = matches!(child.try_wait(), Ok(Some(_)));
    stop(&mut child);
    Ok(if ended { "it was faster than the kill".into() } else { "killed after 0.4 s".into() })
}

/// A writing verb replays the journal; what was there before the kill is there.
pub(super) fn recover(stage: &mut Stage) -> StepResult {
    stage.uext4(&[OsStr::new("mkdir"), &stage.inside("/after")])?;
    let text = stage.uext4(&[OsStr::new("cat"), &stage.inside("/new/renamed")])?;
    if text != "kept through the kill\n".repeat(1000) {
        return Err("a file that was complete before the kill has changed".into());
    }
    let back = stage.outside("back");
    let from = stage.inside("/tree");
    stage.uext4(&["cp".as_ref(), "-r".as_ref(), from.as_os_str(), back.as_os_str()])?;
    compare(&stage.tree, &back)?;
    Ok("everything from before the kill is unchanged".into())
}

pub(super) fn judge(stage: &mut Stage) -> StepResult {
    if machine::program("e2fsck").is_none() {
        return Ok("skipped: e2fsck (Debian package e2fsprogs) is not installed".into());
    }
    let mut command = Command::new("e2fsck");
    command.args(["-f", "-n"]).arg(stage.image()).env("PATH", machine::search_path());
    let said = output(&mut command)?;
    Ok(said.lines().last().unwrap_or("clean").trim().to_owned())
}

/// Compares two trees: names, types and contents.
pub(super) fn compare(one: &PathBuf, other: &PathBuf) -> Result<(), String> {
    let mut command = Command::new("diff");
    command.args(["-r", "--no-dereference", "-q"]).args([one, other]);
    output(&mut command).map(drop)
}
