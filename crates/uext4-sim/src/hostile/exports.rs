//! What writes files of an image to the host, on images whose checksums are right and whose names
//! and inodes are made to lead out of the target.
//!
//! # Fault model
//! A tree of directories, files and symbolic links, edited in place and sealed: names with slashes,
//! zero bytes and `..`, two entries of one name and different types, names of other inodes (loops,
//! directories with two names, reserved and free inodes), files that become links and links that
//! become directories, sizes beyond the device. Targets that have links in them already.
//!
//! # What else is judged
//! GNU tar reads an archive that was written with status 0, and import makes a sound image of it.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use uext4_device::{Device, MemoryDevice};
use uext4_ondisk::dir_entry::DirBlock;
use uext4_ondisk::{Ino, RawInode};
use zerocopy::little_endian::U32;

use crate::anatomy::{Anatomy, Seal, Structure, bytes};
use crate::hostile::sound::unsound;
use crate::hostile::yard::{Call, Ended};
use crate::hostile::{Effect, Outcome, Yard};
use crate::oracle::image_folder;
use crate::shape::image_of;
use crate::structure_damage::Mutator;

/// Calls on `i.img`. `out-linked` is a directory in which links out of it have the names of files.
pub const CALLS: &[&str] = &[
    "export i.img out",
    "export --devices i.img out-linked",
    "export --numeric --map-owner *:3 i.img out",
    "export i.img out.tar",
    "export --access-times --compress gzip i.img -",
    "export i.img:/dup out",
    "cp -r i.img:/ out",
    "cp -a i.img:/ out-linked",
    "cp -r i.img:/dup i.img:/dirs out-linked",
    "find i.img -ls",
    "find --json i.img",
    "ls -laR i.img:/",
    "stat -c %N i.img:/* i.img:/dirs/../*",
    "du -a i.img",
    "tree i.img",
    "diff i.img sound.img",
    "xattr dump -R i.img",
];

/// The archive of an image comes in again by this.
const AGAIN: &str = "import out.tar i.img:/";

/// Names of files in the tree, and a name that two of them get.
const PLACEHOLDER: &str = "placeholder-for-a-hostile-name-";
const TWICE: &[u8] = b"dup";

/// Edited images by number, and where the command is called on them.
#[derive(Debug)]
pub struct Trial {
    base: MemoryDevice,
    anatomy: Anatomy,
    /// What archives come into.
    empty: MemoryDevice,
    yard: Yard,
}

impl Trial {
    /// Makes the image, for calls of `binary`.
    ///
    /// # Errors
    /// e2fsprogs are missing or fail.
    pub fn new(binary: &Path) -> io::Result<Self> {
        let yard = Yard::new(binary)?;
        let folder = image_folder()?;
        let tree = folder.path().join("tree");
        make(&tree, &yard.sentinel())?;
        // Without hash trees, any name may stand anywhere.
        let base = image_of(&tree, "-t ext4 -b 1024 -N 512 -O ^dir_index,^has_journal", 6)?;
        base.save(&yard.work().join("sound.img"))?;
        let anatomy = Anatomy::of(&base);
        let nothing = folder.path().join("nothing");
        fs::create_dir(&nothing)?;
        let empty = image_of(&nothing, "-t ext4 -b 1024 -N 512", 16)?;
        Ok(Self { base, anatomy, empty, yard })
    }

    /// Calls every verb on the image of a case.
    ///
    /// # Errors
    /// The machinery failed.
    pub fn case(&self, case: u64) -> io::Result<Outcome> {
        let mut mutator = Mutator::new(case);
        let device = self.base.snapshot();
        let mut done = Vec::new();
        for _ in 0..1 + mutator.below(6) {
            done.push(self.edit(&device, &mut mutator, &self.yard.sentinel()));
        }
        let what = format!("case {case}: {}", done.join("; "));
        let mut outcome = Outcome { what, ..Outcome::default() };
        let image = self.yard.work().join("i.img");
        device.save(&image)?;
        for words in CALLS {
            self.prepare(words)?;
            let call = Call { material: "edited image", words, input: None, effect: Effect::Reads };
            let ended = self.yard.call_and_keep(&call, &mut outcome)?;
            if words.ends_with("out.tar") && ended == Ended::Well {
                self.again(&mut outcome)?;
                device.save(&image)?;
            }
            self.yard.clear()?;
        }
        Ok(outcome)
    }

    /// Makes what the target of a call has in it.
    fn prepare(&self, words: &str) -> io::Result<()> {
        if !words.ends_with("out-linked") {
            return Ok(());
        }
        let out = self.yard.work().join("out-linked");
        fs::create_dir_all(out.join("dirs"))?;
        for (name, to) in [("dup", "../.."), ("sub0", ".."), ("link0", "../../sentinel")] {
            symlink(to, out.join(name))?;
        }
        symlink("../../..", out.join("dirs/sub1"))?;
        symlink(self.yard.sentinel(), out.join("dirs/sentinel"))?;
        symlink("../../sentinel", out.join(format!("{PLACEHOLDER}0")))
    }

    /// Reads the archive of an image by GNU tar, and into a sound image.
    fn again(&self, outcome: &mut Outcome) -> io::Result<()> {
        let out = self.yard.work().join("out.tar");
        let read = Command::new("tar").arg("-tf").arg(&out).stdout(Stdio::null()).output()?;
        if !read.status.success() {
            let said = String::from_utf8_lossy(&read.stderr);
            outcome.faults.push(format!("uext4 export: tar -t: {}", said.trim()));
        }
        let path = self.yard.work().join("i.img");
        self.empty.save(&path)?;
        let material = "exported archive";
        let call = Call { material, words: AGAIN, input: None, effect: Effect::Changes };
        self.yard.call_and_keep(&call, outcome)?;
        outcome.faults.extend(unsound(&path).map(|fault| format!("uext4 {AGAIN}: {fault}")));
        Ok(())
    }

    /// Changes one structure and seals it; tells how.
    fn edit(&self, device: &MemoryDevice, mutator: &mut Mutator, outside: &Path) -> String {
        let targets = &self.anatomy.targets;
        let is_leaf = |it: &&Structure| matches!(it.seal, Seal::DirLeaf(_));
        let is_inode = |it: &&Structure| matches!(it.seal, Seal::Inode(ino) if ino.get() >= 11);
        let is_wanted = mutator.below(4) != 0;
        let fits = |it: &&Structure| if is_wanted { is_leaf(it) } else { is_inode(it) };
        let fitting: Vec<&Structure> = targets.iter().filter(fits).collect();
        let target = *mutator.pick(&fitting);
        let mut image = bytes(device, target.at, target.len);
        let what = match target.seal {
            Seal::Inode(_) => change_inode(&mut image, mutator, outside),
            _ => change_entry(&mut image, mutator, &self.anatomy.inodes),
        };
        device.write_at(target.at, &image).expect("memory");
        self.anatomy.seal(device, target);
        format!("{:?}: {what}", target.seal)
    }
}

/// The tree: directories, files and links, most with names long enough to be changed to any other.
fn make(tree: &Path, outside: &Path) -> io::Result<()> {
    for dir in ["", "dirs", "dirs/below"] {
        let dir = tree.join(dir);
        fs::create_dir_all(&dir)?;
        for n in 0..3 {
            let sub = dir.join(format!("sub{n}"));
            fs::create_dir(&sub)?;
            // What would be overwritten, if the directory were a link out of the target.
            fs::write(sub.join("sentinel"), b"written through a link")?;
            fs::write(dir.join(format!("{PLACEHOLDER}{n}")), vec![1; 3000 * n])?;
            let link = dir.join(format!("{PLACEHOLDER}link-{n}"));
            symlink(["..", "../..", "../sentinel"][n], link)?;
            symlink("sub0", dir.join(format!("link{n}")))?;
        }
        symlink(outside, dir.join(format!("{PLACEHOLDER}outside")))?;
        fs::create_dir(dir.join(format!("{PLACEHOLDER}dir")))?;
        fs::write(dir.join(format!("{PLACEHOLDER}dir/sentinel")), b"written through a link")?;
    }
    // Names so long that other names fit into their places.
    fs::hard_link(tree.join(format!("{PLACEHOLDER}1")), tree.join("dirs/a second name of a file"))
}

/// Names that no directory has.
const NAMES: &[&[u8]] = &[
    b"../sentinel",
    b"../../sentinel",
    b"..",
    b".",
    b"/",
    b"/dev/shm/uext4-hostile",
    b"sub0/sentinel",
    b"a/b",
    b"a\0b",
    b"\0",
    b"",
    b"../\0",
    b"new\nline",
    b"\x1b[31mred",
    b"\xff\xfe",
    b"-rf",
    b"sub0",
    b"link0",
    b"sentinel",
    b"i.img",
];

/// Changes an entry of a directory's block; tells how.
fn change_entry(image: &mut [u8], mutator: &mut Mutator, inodes: &[Ino]) -> String {
    let entries: Vec<(usize, usize)> = DirBlock::new(image)
        .live()
        .map_while(Result::ok)
        .map(|entry| (entry.offset as usize, entry.name.len()))
        .collect();
    if entries.is_empty() {
        return "an empty block".to_owned();
    }
    let (at, len) = *mutator.pick(&entries);
    match mutator.below(8) {
        0 => {
            let ino = match mutator.below(5) {
                0 => mutator.below(13) as u32,
                1 => mutator.below(600) as u32,
                _ => mutator.pick(inodes).get(),
            };
            image[at..at + 4].copy_from_slice(&U32::new(ino).to_bytes());
            format!("entry at {at} is of inode {ino}")
        }
        1 => {
            image[at + 7] = u8::try_from(mutator.below(9)).unwrap_or(0);
            format!("type of the entry at {at}")
        }
        choice => {
            let mut names: Vec<&[u8]> = if choice < 5 { vec![TWICE] } else { NAMES.to_vec() };
            // Names go where there is room for them.
            names.retain(|name| name.len() <= len.next_multiple_of(4));
            let name = *mutator.pick(&names);
            image[at + 6] = u8::try_from(name.len()).unwrap_or(0);
            image[at + 8..at + 8 + name.len()].copy_from_slice(name);
            format!("entry at {at} is called {:?}", name.escape_ascii().to_string())
        }
    }
}

/// Changes an inode; tells how.
fn change_inode(slot: &mut [u8], mutator: &mut Mutator, outside: &Path) -> String {
    let Ok(mut raw) = RawInode::read(slot) else { return "no inode".to_owned() };
    let mode = raw.i_mode.get();
    let what = match mutator.below(7) {
        0 => {
            let size = *mutator.pick(&[1 << 31, 1 << 40, (1 << 44) - 1, (1 << 63) - 1, u64::MAX]);
            raw.set_size(size);
            format!("size {size}")
        }
        1 => {
            let kind = *mutator.pick(&[0x1000, 0x2000, 0x4000, 0x6000, 0x8000, 0xa000, 0xc000, 0]);
            raw.i_mode.set(mode & 0xfff | kind);
            format!("mode {kind:#x}")
        }
        2 | 3 => {
            // A fast symbolic link.
            let texts: [&[u8]; 4] =
                [b"../sentinel", b"..", b"/", outside.as_os_str().as_encoded_bytes()];
            let text = *mutator.pick(&texts);
            let text = &text[..text.len().min(59)];
            raw.i_mode.set(0xa1ff);
            raw.i_flags.set(0);
            raw.i_blocks_lo.set(0);
            raw.i_block = [0; 60];
            raw.i_block[..text.len()].copy_from_slice(text);
            raw.set_size(text.len() as u64);
            format!("a link to {:?}", text.escape_ascii().to_string())
        }
        4 => {
            raw.i_links_count.set(*mutator.pick(&[0, 1, 2, 65_535]));
            "links".to_owned()
        }
        5 => {
            raw.i_mode.set(mode | 0o7777);
            raw.i_flags.set(raw.i_flags.get() | 1 << mutator.below(32));
            "flags and set-id".to_owned()
        }
        _ => {
            raw.i_block[0..12].fill(u8::try_from(mutator.below(256)).unwrap_or(0));
            "start of the map".to_owned()
        }
    };
    let _ = raw.write(slot);
    what
}
