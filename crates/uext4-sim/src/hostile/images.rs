//! Every verb on damaged images.

use std::io;
use std::path::Path;

use crate::fsck_diff::Cases;
use crate::hostile::{Effect, Outcome, Yard};

use Effect::{Changes, Reads};

/// Calls on `i.img` in the yard; a sound image of the same sort is `sound.img`, a file `one`.
const CALLS: &[(Effect, &str)] = &[
    (Reads, "info i.img"),
    (Reads, "journal -bO i.img"),
    (Reads, "journal --json -b i.img"),
    (Reads, "label i.img"),
    (Reads, "xattr dump -R i.img"),
    (Reads, "ls -ltC i.img:/**/* i.img:/{target,d*}"),
    (Reads, "stat -c %N%C%U i.img:/* i.img:/*/*"),
    (Reads, "ls -laR i.img:/"),
    (Reads, "ls --json -R i.img:/"),
    (Reads, "cat i.img:/target i.img:/fragments i.img:/slow"),
    (Reads, "stat i.img:/ i.img:/sparse i.img:/fifo i.img:/names"),
    (Reads, "stats i.img"),
    (Reads, "extents -v i.img:/fragments i.img:/sparse"),
    (Reads, "frag i.img"),
    (Reads, "freefrag i.img"),
    (Reads, "quota i.img"),
    (Reads, "fsck -n i.img"),
    (Reads, "cp -r i.img:/ out"),
    (Changes, "mkdir -p i.img:/some/new/directory"),
    (Changes, "cp one i.img:/some/one"),
    (Changes, "cp -r i.img:/some i.img:/dir1"),
    (Changes, "mv i.img:/some i.img:/dir2/moved"),
    (Changes, "chattr +i i.img:/target"),
    (Changes, "label i.img other"),
    (Changes, "xattr set i.img:/target user.new value"),
    (Changes, "tune --extents i.img"),
    (Changes, "trim i.img"),
    (Changes, "rm -r i.img:/names i.img:/a i.img:/fragments"),
];

/// Damaged images by number, and where the command is called on them.
#[derive(Debug)]
pub struct Trial {
    cases: Cases,
    yard: Yard,
}

impl Trial {
    /// Makes the sound images, for calls of `binary`.
    ///
    /// # Errors
    /// e2fsprogs are missing or fail.
    pub fn new(binary: &Path) -> io::Result<Self> {
        Ok(Self { cases: Cases::new()?, yard: Yard::new(binary)? })
    }

    /// Calls every verb on the image of a case; one that changes gets the image as it was.
    ///
    /// # Errors
    /// The machinery failed.
    pub fn case(&self, case: u64) -> io::Result<Outcome> {
        let (device, what) = self.cases.damaged(case);
        let mut outcome = Outcome { what, ..Outcome::default() };
        let work = self.yard.work();
        std::fs::write(work.join("one"), b"one")?;
        let image = work.join("i.img");
        device.save(&image)?;
        for (effect, words) in CALLS {
            self.yard.call(words, None, ("i.img", *effect), &mut outcome)?;
            if *effect == Changes {
                device.save(&image)?;
            }
        }
        Ok(outcome)
    }
}
