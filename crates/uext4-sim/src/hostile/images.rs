//! Every verb on damaged images.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::fsck_diff::Cases;
use crate::hostile::yard::Call;
use crate::hostile::{Effect, Outcome, Yard};

use Effect::{Changes, Reads};

/// Calls on `i.img` in the yard; `sound.img` is a sound image, `one` a file, `given` a directory,
/// `given.tar` the same as an archive, `dump` one of attributes, `key` a key.
pub const CALLS: &[(Effect, &str)] = &[
    (Reads, "info i.img"),
    (Reads, "info --json i.img"),
    (Reads, "journal -bO i.img"),
    (Reads, "journal --json -b i.img"),
    (Reads, "label i.img"),
    (Reads, "xattr list i.img:/target i.img:/with*"),
    (Reads, "xattr get i.img:/with%20small user.first"),
    (Reads, "xattr dump -R i.img"),
    (Reads, "ls -ltC i.img:/**/* i.img:/{target,d*}"),
    (Reads, "stat -c %N%C%U i.img:/* i.img:/*/*"),
    (Reads, "ls -laR i.img:/"),
    (Reads, "ls --json -R i.img:/"),
    (Reads, "tree -asD i.img"),
    (Reads, "tree --json i.img"),
    (Reads, "find i.img:/ -size +0 -newer one -ls -o -print0"),
    (Reads, "find --json i.img:/"),
    (Reads, "du -a i.img"),
    (Reads, "du -S --inodes --json i.img:/*"),
    (Reads, "df -i i.img"),
    (Reads, "cat i.img:/target i.img:/fragments i.img:/fast"),
    (Reads, "stat i.img:/ i.img:/sparse i.img:/fifo i.img:/names"),
    (Reads, "verity i.img:/target"),
    (Reads, "stats i.img"),
    (Reads, "extents -v i.img:/fragments i.img:/sparse"),
    (Reads, "frag i.img"),
    (Reads, "freefrag i.img"),
    (Reads, "quota i.img"),
    (Reads, "diff i.img sound.img"),
    (Reads, "diff --renames --json sound.img i.img"),
    (Reads, "fsck -n i.img"),
    (Reads, "cp -r i.img:/ out"),
    (Reads, "cp i.img:/target -"),
    (Reads, "export --devices i.img out"),
    (Reads, "export --access-times i.img out.tar.gz"),
    (Reads, "export i.img:/some -"),
    (Reads, "resize -n i.img 64M"),
    (Changes, "mkdir -p i.img:/some/new/directory"),
    (Changes, "cp one i.img:/some/one"),
    (Changes, "cp -a i.img:/dir1 i.img:/copy"),
    (Changes, "cp -r i.img:/some i.img:/dir1"),
    (Changes, "import given i.img:/"),
    (Changes, "import --map-owner *:0 given.tar i.img:/dir1"),
    (Changes, "ln i.img:/target i.img:/dir1/linked"),
    (Changes, "ln -s /target i.img:/dir2/symlink"),
    (Changes, "touch i.img:/new i.img:/target i.img:/sparse"),
    (Changes, "truncate -s 1M i.img:/fragments i.img:/target"),
    (Changes, "truncate -s 0 i.img:/sparse i.img:/fragments"),
    (Changes, "chmod -R u+w,go-w i.img:/"),
    (Changes, "chown -R 7:8 i.img:/"),
    (Changes, "chgrp -R 9 i.img:/"),
    (Changes, "mv i.img:/dir1 i.img:/dir2/moved"),
    (Changes, "chattr +i i.img:/target"),
    (Changes, "label i.img other"),
    (Changes, "xattr set i.img:/target user.new value"),
    (Changes, "xattr rm i.img:/with%20large user.first"),
    (Changes, "xattr restore i.img dump"),
    (Changes, "encrypt --key key i.img:/dir3/sub"),
    (Changes, "verity --enable i.img:/target"),
    (Changes, "quota -u --set 7:100:200:10:20 i.img"),
    (Changes, "tune --extents i.img"),
    (Changes, "tune --clear-mmp i.img"),
    (Changes, "trim i.img"),
    (Changes, "resize i.img 64M"),
    (Changes, "resize i.img 2G"),
    (Changes, "rm -r i.img:/names i.img:/a i.img:/fragments i.img:/dir1"),
    (Changes, "mkfs -q -F i.img 8M"),
];

/// Damaged images by number, and where the command is called on them.
#[derive(Debug)]
pub struct Trial {
    cases: Cases,
    yard: Yard,
}

impl Trial {
    /// Makes the sound images whose mke2fs options contain `word`, for calls of `binary`.
    ///
    /// # Errors
    /// None of them does; e2fsprogs are missing or fail.
    pub fn new(binary: &Path, word: &str) -> io::Result<Self> {
        let yard = Yard::new(binary)?;
        furnish(&yard.work())?;
        Ok(Self { cases: Cases::with(word)?, yard })
    }

    /// Calls every verb on the image of a case; one that changes gets the image as it was.
    ///
    /// # Errors
    /// The machinery failed.
    pub fn case(&self, case: u64) -> io::Result<Outcome> {
        let (device, what) = self.cases.damaged(case);
        let mut outcome = Outcome { what, ..Outcome::default() };
        let work = self.yard.work();
        if let Some((_, sound)) = self.cases.bases().next() {
            sound.save(&work.join("sound.img"))?;
        }
        let image = work.join("i.img");
        device.save(&image)?;
        for (effect, words) in CALLS {
            let call = Call { material: "image", words, input: None, effect: *effect };
            self.yard.call(&call, &mut outcome)?;
            if *effect == Changes {
                device.save(&image)?;
            }
        }
        Ok(outcome)
    }
}

/// Makes what calls bring into the image.
fn furnish(work: &Path) -> io::Result<()> {
    fs::write(work.join("one"), b"one")?;
    fs::write(work.join("key"), [7; 64])?;
    let dump = "# file: target\nuser.restored=\"1\"\n\n# file: names\nuser.restored=0x00ff\n";
    fs::write(work.join("dump"), dump)?;
    let given = work.join("given");
    fs::create_dir_all(given.join("dir1/inner"))?;
    fs::write(given.join("target"), [5; 3000])?;
    fs::write(given.join("dir1/inner/file"), [6; 70_000])?;
    symlink("target", given.join("link"))?;
    let status =
        Command::new("tar").args(["-cf", "given.tar", "given"]).current_dir(work).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other("tar failed")) }
}
