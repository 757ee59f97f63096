//! The command under the names that mount(8) and umount(8) call: `mount.TYPE` and `umount.TYPE` of
//! the types `uext4`, `fuse.uext4` and `fuseblk.uext4`, as links in /sbin.
//!
//! What: these names have a command line of their own, with options behind the directory, and the
//! exit statuses of mount(8). With the second kind umount(8) of root returns when the image is
//! closed, since it waits for its helper.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, CommandFactory, FromArgMatches, Parser};
use rustix::thread::LinkNameSpaceType;

use crate::failure::{At, Failure, Result, say};
use crate::usage;
use crate::verb::{mount, umount};

/// Exit status of mount(8) for a wrong command line.
const USAGE: u8 = 1;
/// Exit status of mount(8) for a mount, or an unmounting, that failed.
const FAILED: u8 = 32;

/// What both kinds of helper are given.
#[derive(Args)]
struct Common {
    /// Write no table of mounts: there is none
    #[arg(short = 'n')]
    no_table: bool,
    /// Say what was done
    #[arg(short = 'v')]
    verbose: bool,
    /// Work in the mount namespace of this process, or of this file
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<OsString>,
    /// Type of the file system, where the name of the helper does not say it
    #[arg(short = 't', value_name = "TYPE")]
    fs_type: Option<OsString>,
}

/// Mount helper of uext4, called by mount(8)
#[derive(Parser)]
struct Mount {
    #[command(flatten)]
    common: Common,
    /// Ignore unknown mount options
    #[arg(short = 's')]
    sloppy: bool,
    /// Check the options, and mount nothing
    #[arg(short = 'f')]
    fake: bool,
    /// Mount options, separated by commas
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Image file or block device, with @p1 or @OFFSET for a partition in it
    #[arg(value_name = "IMAGE[@PART]")]
    image: OsString,
    /// Directory to mount on
    dir: PathBuf,
}

/// Unmount helper of uext4, called by umount(8); returns when the image is closed
#[derive(Parser)]
struct Umount {
    #[command(flatten)]
    common: Common,
    /// Cut the connection: programs that use the mount get errors
    #[arg(short = 'f')]
    force: bool,
    /// Take the mount out of sight now, and do not wait
    #[arg(short = 'l')]
    lazy: bool,
    /// Where the mount is busy, make it read-only
    #[arg(short = 'r')]
    read_only: bool,
    /// Directory it is mounted on
    dir: PathBuf,
}

/// Runs the helper that `words`, the program's name first, are a call of; `None`: of none.
pub(crate) fn run(words: &[OsString]) -> Option<ExitCode> {
    let program = Path::new(words.first()?).file_name()?;
    let done = match program.to_str()? {
        "mount.fuse.uext4" | "mount.fuseblk.uext4" | "mount.uext4" => {
            parse("mount.uext4", words).map(mount)
        }
        "umount.fuse.uext4" | "umount.fuseblk.uext4" | "umount.uext4" => {
            parse("umount.uext4", words).map(umount)
        }
        _ => return None,
    };
    Some(match done {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(Failure::Line(line))) => {
            say(&line);
            ExitCode::from(FAILED)
        }
        Ok(Err(_)) => ExitCode::from(FAILED),
        Err(error) => {
            if error.use_stderr() {
                say(&usage::sentence(&error));
                return Some(ExitCode::from(USAGE));
            }
            // Nobody is left to tell when standard output is closed.
            let _ = error.print();
            ExitCode::SUCCESS
        }
    })
}

fn parse<T: CommandFactory + FromArgMatches>(
    name: &'static str,
    words: &[OsString],
) -> std::result::Result<T, clap::Error> {
    let command = T::command().name(name).version(env!("CARGO_PKG_VERSION"));
    T::from_arg_matches(&command.try_get_matches_from(words)?)
}

fn mount(call: Mount) -> Result<()> {
    let Mount { common, sloppy, fake, mut options, image, dir } = call;
    if sloppy {
        options = mount::without_unknown(&options);
    }
    let done = format!("{} mounted on {}", image.display(), dir.display());
    let args = mount::Args::new(options, image, dir);
    if fake {
        return mount::check(&args);
    }
    common.enter("mount")?;
    // `mount -a` passes over what is mounted. It cannot tell where the table has a loop device.
    if !mount::is_done(&args) {
        mount::run(args)?;
    }
    common.tell(&done);
    Ok(())
}

fn umount(call: Umount) -> Result<()> {
    let Umount { common, force, lazy, read_only, dir } = call;
    let done = format!("{} unmounted", dir.display());
    common.enter("umount")?;
    umount::run(&umount::Args::new(dir, lazy, force, read_only))?;
    common.tell(&done);
    Ok(())
}

impl Common {
    /// Joins the mount namespace that was named. The process has one thread still.
    fn enter(&self, verb: &str) -> Result<()> {
        let Some(name) = &self.namespace else { return Ok(()) };
        let path = match name.to_str().filter(|name| name.bytes().all(|b| b.is_ascii_digit())) {
            Some(pid) => PathBuf::from(format!("/proc/{pid}/ns/mnt")),
            None => PathBuf::from(name),
        };
        let file = File::open(&path).at(verb, path.display())?;
        let kind = Some(LinkNameSpaceType::Mount);
        rustix::thread::move_into_link_name_space(file.as_fd(), kind).at(verb, path.display())
    }

    fn tell(&self, done: &str) {
        if self.verbose {
            println!("uext4: {done}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_lines_are_consistent() {
        Mount::command().debug_assert();
        Umount::command().debug_assert();
    }

    /// The words of libmount, options behind the directory.
    #[test]
    fn words_are_those_of_mount_8() {
        let words = ["mount.uext4", "/i", "/d", "-sfnv", "-N", "7", "-o", "rw,acl", "-t", "uext4"];
        let call = Mount::try_parse_from(words).unwrap();
        assert!(call.sloppy && call.fake && call.common.verbose && call.common.no_table);
        assert_eq!((call.image, call.dir), ("/i".into(), "/d".into()));
        assert_eq!(call.options, ["rw,acl"]);
        assert_eq!(call.common.namespace, Some("7".into()));
        let call = Umount::try_parse_from(["umount.uext4", "/d", "-flrnv", "-N", "/n"]).unwrap();
        assert!(call.force && call.lazy && call.read_only && call.common.verbose);
        assert!(Umount::try_parse_from(["umount.uext4"]).is_err());
    }

    #[test]
    fn other_names_are_no_helpers() {
        for name in ["uext4", "/sbin/mount.uext4x", "mount.fuse", "umount", ""] {
            assert!(run(&[name.into(), "/i".into(), "/d".into()]).is_none(), "{name}");
        }
        assert!(run(&[]).is_none());
    }
}
