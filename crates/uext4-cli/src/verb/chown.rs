//! `uext4 chown`: owners and groups of files of an image.

use std::ffi::OsString;

use uext4::{FileKind, InodeRef, Privs, SetAttr, Volume};

use crate::examples::{self, Examples};
use crate::failure::{At, Result, Why};
use crate::image::{self, Access};
use crate::image_path::{Last, resolve};
use crate::operands::{self, Images, Try, Visited};
use crate::output::Told;
use crate::owners::{self, Owners};
use crate::spec::{ImagePath, Location};

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 chown 1000:1000 disk.img:/home/user", "by numbers"),
    ("uext4 chown -R www-data: disk.img:/var/www", "by names of the image, with all below"),
    ("uext4 chown -hR --from=0 1000 disk.img:/srv", "what belongs to root alone"),
];

/// What the help shows.
const GROUP_EXAMPLES: Examples = &[
    ("uext4 chgrp 100 disk.img:/srv", "by number"),
    ("uext4 chgrp -R users disk.img:/srv", "by a name of the image, with all below"),
    ("uext4 chgrp -h 0 disk.img:/etc/link", "a symbolic link itself"),
];

/// Change owners and groups of files of an image
///
/// Names are those of /etc/passwd and /etc/group of the image itself. As with chown(1), files lose
/// their set-id bits and capabilities.
#[derive(clap::Args)]
#[command(disable_help_flag = true, after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    #[command(flatten)]
    rest: Rest,
    /// Only files that belong to these
    #[arg(long, value_name = "USER:GROUP")]
    from: Option<String>,
    /// USER, USER:GROUP, :GROUP or USER: (with that user's group), then files as IMAGE:/path
    #[arg(required = true, value_name = "USER:GROUP IMAGE:/PATH")]
    words: Vec<OsString>,
}

/// Change groups of files of an image
#[derive(clap::Args)]
#[command(disable_help_flag = true, after_help = examples::help(GROUP_EXAMPLES))]
pub(crate) struct GroupArgs {
    #[command(flatten)]
    rest: Rest,
    /// GROUP, then files as IMAGE:/path
    #[arg(required = true, value_name = "GROUP IMAGE:/PATH")]
    words: Vec<OsString>,
}

#[derive(clap::Args)]
struct Rest {
    /// All that is below directories, too; symbolic links are changed themselves then
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Symbolic links themselves
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// Say what is done to each file
    #[arg(short, long)]
    verbose: bool,
    /// Say what is done to each file that changes
    #[arg(short, long)]
    changes: bool,
    /// The owners of this file of the host, or of an image; none are given before the files then
    #[arg(long, value_name = "FILE")]
    reference: Option<OsString>,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: (),
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let job = Job { verb: "chown", rest: &args.rest, from: args.from.as_deref() };
    job.run(&args.words, owners::parse)
}

/// Runs the verb `chgrp`.
pub(crate) fn run_group(args: &GroupArgs) -> Result<()> {
    Job { verb: "chgrp", rest: &args.rest, from: None }.run(&args.words, owners::parse_group)
}

struct Job<'a> {
    verb: &'static str,
    rest: &'a Rest,
    from: Option<&'a str>,
}

/// What is asked for, read with the tables of one image.
#[derive(Clone, Copy)]
struct Wanted {
    from: Owners,
    to: Owners,
}

impl Job<'_> {
    fn run(&self, words: &[OsString], parse: fn(&Volume, &str) -> Try<Owners>) -> Result<()> {
        let verb = self.verb;
        let reference =
            self.rest.reference.as_ref().map(|name| reference(verb, name)).transpose()?;
        let (owners, names) = match (words.split_first(), reference) {
            (Some((owners, names)), None) => (owners.to_string_lossy(), names),
            _ => ("".into(), words),
        };
        let mut images = Images::new(verb);
        let paths = images.paths(names)?;
        if paths.is_empty() {
            return Err(Why::new("no file after it").at(verb, &owners));
        }
        for path in &paths {
            images.among(path, |volume, outcome| {
                let of_reference = |mut found: Owners| {
                    if verb == "chgrp" {
                        found.uid = None;
                    }
                    found
                };
                let to = match reference {
                    Some(found) => of_reference(found),
                    None => parse(volume, &owners)?,
                };
                let from = self.from.map_or(Ok(Owners::default()), |from| parse(volume, from))?;
                let wanted = Wanted { from, to };
                let follows = !self.rest.no_dereference && !self.rest.recursive;
                let last = if follows { Last::Follow } else { Last::Keep };
                let found = resolve(volume, &path.path, last)?;
                let top = found.inode();
                self.change(volume, top, path, wanted)?;
                if self.rest.recursive && top.kind() == FileKind::Directory {
                    let visited = Visited { inode: top, path };
                    operands::below(verb, volume, visited, outcome, &mut |found| {
                        self.change(volume, found.inode, found.path, wanted)
                    });
                }
                Ok(())
            });
        }
        images.finish()
    }

    fn change(
        &self,
        volume: &Volume,
        inode: &InodeRef,
        path: &ImagePath,
        Wanted { from, to }: Wanted,
    ) -> Try<()> {
        let old = volume.attr(inode);
        let is_other = |wanted: Option<u32>, found| wanted.is_some_and(|wanted| wanted != found);
        if is_other(from.uid, old.uid) || is_other(from.gid, old.gid) {
            return Ok(());
        }
        let kill_priv = (old.kind != FileKind::Directory).then_some(Privs::All);
        let change = SetAttr { uid: to.uid, gid: to.gid, kill_priv, ..SetAttr::default() };
        volume.set_attr(inode, &change)?;
        let is_same = !is_other(to.uid, old.uid) && !is_other(to.gid, old.gid);
        let (uid, gid) = (to.uid.unwrap_or(old.uid), to.gid.unwrap_or(old.gid));
        Told::new(self.rest.verbose || self.rest.changes && !is_same).say(&match is_same {
            true => format!("ownership of '{path}' retained as {uid}:{gid}"),
            false => {
                let (old_uid, old_gid) = (old.uid, old.gid);
                format!("changed ownership of '{path}' from {old_uid}:{old_gid} to {uid}:{gid}")
            }
        });
        Ok(())
    }
}

fn reference(verb: &str, name: &OsString) -> Result<Owners> {
    match Location::parse(name) {
        Location::Host(path) => {
            let stat = rustix::fs::stat(&path).at(verb, path.display())?;
            Ok(Owners { uid: Some(stat.st_uid), gid: Some(stat.st_gid) })
        }
        Location::Image(path) => {
            let volume = image::volume(verb, &path.image, Access::Read)?;
            let found = resolve(&volume, &path.path, Last::Follow).at(verb, &path)?;
            let attr = volume.attr(found.inode());
            Ok(Owners { uid: Some(attr.uid), gid: Some(attr.gid) })
        }
    }
}
