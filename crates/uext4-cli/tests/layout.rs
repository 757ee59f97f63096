//! `freefrag`, `frag` and `extents` against e2freefrag, `e4defrag -c` and `filefrag` on the same
//! image: the same lines.
//!
//! Fault model: a figure, a column or an extent that differs from what the tools of e2fsprogs say:
//! a run cut or joined in the wrong place, a hole or unwritten blocks overlooked, a leaf of a deep
//! tree left out. Files are laid out by the kernel through a loop mount, as root; what needs no
//! mount is compared without. The kernel joins extents that continue each other while its extent
//! status cache knows them, which it forgets when memory is short: its tools are asked until they
//! say what we say, some times at most. Not covered: images above 2^32 blocks.

#[macro_use]
mod common;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use common::{Scratch, at, has, is_root, run, run_fails, run_ok, system};
use rustix::fs::FallocateFlags;

/// An image that the kernel has mounted.
struct Kernel {
    dir: PathBuf,
    mounted: bool,
}

impl Kernel {
    /// Mounts, or says why not.
    fn mount(image: &Path, dir: &Path, options: &str) -> Result<Self, String> {
        if !is_root() {
            return Err("needs root, to mount an image by loop".into());
        }
        fs::create_dir_all(dir).unwrap();
        let options = format!("loop,{options}");
        let mount = system("mount").args(["-o", &options]).arg(image).arg(dir).output().unwrap();
        match mount.status.success() {
            true => Ok(Self { dir: dir.to_owned(), mounted: true }),
            false => Err(String::from_utf8_lossy(&mount.stderr).trim().to_owned()),
        }
    }

    fn end(mut self) {
        self.mounted = false;
        let done = system("umount").arg(&self.dir).status().unwrap();
        assert!(done.success(), "umount");
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        if self.mounted {
            // A failed test must not leave a mount behind.
            let _ = system("umount").arg("-l").arg(&self.dir).status();
        }
    }
}

/// Lines of a tool that must succeed, without blanks at their ends.
fn said(program: &str, args: &[&OsStr]) -> Vec<String> {
    let output = system(program).args(args).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {stderr}");
    lines(&output.stdout)
}

fn lines(bytes: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(bytes).lines().map(|line| line.trim_end().to_owned()).collect()
}

fn assert_same_free_space(image: &Path) {
    for chunk in [None, Some("4"), Some("64"), Some("1024"), Some("1048576")] {
        let mut args = Vec::new();
        args.extend(chunk.map(|kb| [OsStr::new("-c"), OsStr::new(kb)]).into_iter().flatten());
        args.push(image.as_os_str());
        let want = said("e2freefrag", &args);
        args.insert(0, OsStr::new("freefrag"));
        assert_eq!(lines(&run_ok(&args)), want, "chunk {chunk:?}");
    }
}

#[test]
fn fresh_images_have_the_free_space_of_e2freefrag() {
    if !has("e2freefrag") {
        skip!("no e2freefrag");
    }
    let scratch = Scratch::new();
    for (name, megabytes, options) in [
        ("default", 256, &[][..]),
        ("small-blocks", 64, &["-b", "1024"]),
        ("big-blocks", 256, &["-b", "4096", "-G", "4"]),
        ("no-flex", 300, &["-b", "4096", "-O", "^flex_bg,^has_journal"]),
        ("old", 64, &["-b", "2048", "-O", "^extent,^64bit,^metadata_csum"]),
        ("meta-groups", 64, &["-b", "1024", "-g", "1024", "-O", "meta_bg,^resize_inode"]),
        ("large", 1 << 20, &["-b", "4096", "-N", "10000", "-O", "^resize_inode,^has_journal"]),
    ] {
        let Some(image) = scratch.image(name, megabytes, options) else { skip!("no mke2fs") };
        println!("{name}");
        assert_same_free_space(&image);
        fs::remove_file(image).unwrap();
    }
    // A last group that is not whole, and one of a length that no chunk divides.
    for (name, blocks) in [("odd", "2999"), ("odder", "32771")] {
        let path = scratch.path(name);
        File::create(&path).unwrap();
        let made = system("mke2fs")
            .args(["-q", "-F", "-b", "4096", "-O", "^has_journal"])
            .arg(&path)
            .arg(blocks)
            .status();
        assert!(made.unwrap().success());
        assert_same_free_space(&path);
    }
}

#[test]
fn free_space_is_that_of_e2freefrag_after_changes() {
    if !has("e2freefrag") {
        skip!("no e2freefrag");
    }
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 64, &["-b", "1024"]) else { skip!("no mke2fs") };
    let files = scratch.path("files");
    fs::create_dir(&files).unwrap();
    for n in 0..200_usize {
        fs::write(files.join(format!("f{n}")), vec![b'x'; 500 + n * 977 % 70_000]).unwrap();
    }
    run_ok([OsString::from("cp"), "-r".into(), files.into(), at(&image, "/")]);
    assert_same_free_space(&image);
    for n in (0..200).filter(|n| n % 3 != 0) {
        run_ok([OsString::from("rm"), at(&image, &format!("/files/f{n}"))]);
    }
    assert_same_free_space(&image);
    let json = run_ok([
        OsString::from("freefrag"),
        "-c".into(),
        "4".into(),
        "--json".into(),
        image.into(),
    ]);
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let classes = json["histogram"].as_array().unwrap();
    let sum = |key: &str| classes.iter().map(|class| class[key].as_u64().unwrap()).sum::<u64>();
    assert_eq!(json["free_blocks"], sum("free_blocks"));
    assert_eq!(json["free_extents"], sum("free_extents"));
    assert!(json["chunks"]["free"].as_u64().unwrap() > 0);
}

/// Bytes of a block of the images that files are laid out in.
const BLOCK: usize = 4096;

/// Writes blocks of a file, and has them placed before it returns.
fn write_blocks(file: &File, first: usize, count: usize) {
    file.write_all_at(&vec![b'x'; count * BLOCK], (first * BLOCK) as u64).unwrap();
    file.sync_all().unwrap();
}

/// Files of many shapes, their names.
fn lay_out(dir: &Path, has_unwritten: bool) -> Vec<&'static str> {
    let create = |name: &str| File::create(dir.join(name)).unwrap();
    // Files that grow alternately.
    let grown: Vec<File> = (0..4).map(|n| create(&format!("grown{n}"))).collect();
    for round in 0..30 {
        for (n, file) in grown.iter().enumerate().filter(|(n, _)| round % (n + 1) == 0) {
            let end = file.metadata().unwrap().len() as usize / BLOCK;
            write_blocks(file, end, n + 1);
        }
    }
    create("tiny").write_all(b"x").unwrap();
    create("whole").write_all(&vec![b'w'; 300 * BLOCK + 5]).unwrap();
    fs::create_dir_all(dir.join("below/further")).unwrap();
    let sparse = create("below/sparse");
    (0..40).for_each(|n| write_blocks(&sparse, n * 6, 1));
    // Begins with a hole; ends with one.
    let late = create("below/further/late");
    write_blocks(&late, 10, 3);
    write_blocks(&late, 3000, 2);
    late.set_len(40 << 20).unwrap();
    // More extents than four leaves hold: two levels of index nodes.
    let deep = create("deep");
    for n in 0..2500 {
        deep.write_all_at(b"deep", (n * 2 * BLOCK) as u64).unwrap();
    }
    deep.sync_all().unwrap();
    create("empty");
    create("hole").set_len(1 << 20).unwrap();
    let mut names = vec![
        "grown0",
        "grown1",
        "grown2",
        "grown3",
        "tiny",
        "whole",
        "below/sparse",
        "below/further/late",
        "deep",
    ];
    if has_unwritten {
        let allocate = |file: &File, flags, first: usize, count: usize| {
            let (from, len) = ((first * BLOCK) as u64, (count * BLOCK) as u64);
            rustix::fs::fallocate(file, flags, from, len).unwrap();
        };
        let unwritten = create("unwritten");
        allocate(&unwritten, FallocateFlags::empty(), 0, 100);
        write_blocks(&unwritten, 10, 20);
        let past = create("past");
        write_blocks(&past, 0, 1);
        allocate(&past, FallocateFlags::KEEP_SIZE, 1, 500);
        let punched = create("punched");
        write_blocks(&punched, 0, 72);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        (0..8).for_each(|n| allocate(&punched, punch, n * 8 + 3, 2));
        // Longer than an extent, and than a flex group.
        allocate(&create("long"), FallocateFlags::empty(), 0, 300_000);
        names.extend(["unwritten", "past", "punched", "long"]);
    }
    names
}

/// Compares with what a tool says on the kernel's mount. Each time it is asked for extents the
/// kernel learns all of them, and what it says the next time has them joined, unless it has
/// forgotten some (see above): then one that is too long for the tree's format counts as several.
fn assert_said_by_the_kernel(ours: &[String], ask: impl Fn() -> Vec<String>, what: &str) {
    const TIMES: usize = 50;
    let mut said = Vec::new();
    for _ in 0..TIMES {
        said = ask();
        if said == ours {
            return;
        }
    }
    assert_eq!(ours, said, "{what}");
}

/// What filefrag says, in our spelling: it begins a list of flags that has only `eof` with a
/// comma, and tells more of old files than it is asked for.
fn filefrag(dir: &Path, name: &str) -> Vec<String> {
    let path = dir.join(name);
    let whole = path.to_str().unwrap().to_owned();
    said("filefrag", &[OsStr::new("-v"), path.as_os_str()])
        .into_iter()
        .filter(|line| !line.starts_with("Filesystem cylinder groups"))
        .map(|line| {
            line.replace(" ,eof", "  eof")
                .replace(":,eof", ": eof")
                .replace(&whole, &format!("/{name}"))
        })
        .collect()
}

/// What e4defrag says of a path, with names as they are in the image.
fn e4defrag(kernel: &Kernel, path: &Path, ours: &str) -> Vec<String> {
    let dir = format!("{}/", kernel.dir.display());
    let given = format!("({})", path.display());
    let all = said("e4defrag", &[OsStr::new("-c"), path.as_os_str()]);
    let mut whole: Vec<String> = Vec::new();
    for line in all {
        match whole.last_mut() {
            // The figures of a long name stand on a line of their own.
            Some(name)
                if name.contains(&dir) && !name.ends_with(" KB") && line.ends_with(" KB") =>
            {
                name.push_str(&line);
            }
            _ => whole.push(line),
        }
    }
    whole
        .into_iter()
        .filter(|line| !line.starts_with("e4defrag ") && line != " Done.")
        .map(|line| line.replace(&given, &format!("({ours})")))
        // Names are padded: what a name loses, its line gains.
        .map(|line| match line.find(&dir) {
            Some(at) => {
                let name = line[at + dir.len() - 1..].split(' ').next().unwrap().to_owned();
                let numbers = line[at + dir.len() - 1 + name.len()..].trim_start();
                format!("{}{name} {numbers}", &line[..at])
            }
            None => line,
        })
        .collect()
}

/// Our lines without the padding behind names.
fn unpadded(all: Vec<String>) -> Vec<String> {
    let unpad = |line: String| match line.find('/') {
        Some(at) if line[..at].trim_end_matches(". ").parse::<u32>().is_ok() || at == 0 => {
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        }
        _ => line,
    };
    all.into_iter().map(unpad).collect()
}

/// Lines in any order, without the ranks of files.
fn unranked(mut all: Vec<String>) -> Vec<String> {
    for line in &mut all {
        if let Some((rank, rest)) = line.split_once(". /")
            && rank.parse::<u32>().is_ok()
        {
            *line = format!("/{rest}");
        }
    }
    all.sort();
    all
}

/// Compares the three tools on an image that was laid out by the kernel.
fn compare(image: &Path, mnt: &Path, names: &[&str], is_ext4: bool) {
    assert_same_free_space(image);
    let kernel = Kernel::mount(image, mnt, "ro").unwrap();
    for name in names.iter().copied().chain(["empty", "hole", "below"]) {
        let path = at(image, &format!("/{name}"));
        let ours = lines(&run_ok([OsStr::new("extents"), OsStr::new("-v"), &path]));
        assert_said_by_the_kernel(&ours, || filefrag(mnt, name), &format!("extents {name}"));
        let short = run_ok([OsStr::new("extents"), &path]);
        assert_eq!(lines(&short).last(), ours.last(), "{name}");
    }
    if !is_ext4 {
        kernel.end();
        return;
    }
    for name in names {
        let inside = at(image, &format!("/{name}"));
        let ours = unpadded(lines(&run_ok([OsStr::new("frag"), &inside])));
        let ask = || unpadded(e4defrag(&kernel, &mnt.join(name), inside.to_str().unwrap()));
        assert_said_by_the_kernel(&ours, ask, &format!("frag {name}"));
    }
    let inside = at(image, "/below");
    let ours = unpadded(lines(&run_ok([OsStr::new("frag"), &inside])));
    let ask = || unpadded(e4defrag(&kernel, &mnt.join("below"), inside.to_str().unwrap()));
    assert_said_by_the_kernel(&ours, ask, "/below");
    let mut find = ["-n", "-o", "SOURCE"].map(OsStr::new).to_vec();
    find.push(mnt.as_os_str());
    let source = said("findmnt", &find);
    let whole = image.to_str().unwrap();
    // Files with equal scores stand in any order; that the worst come first is seen above.
    let ours = unranked(unpadded(lines(&run_ok([OsStr::new("frag"), image.as_os_str()]))));
    let ask = || unranked(unpadded(e4defrag(&kernel, Path::new(&source[0]), whole)));
    assert_said_by_the_kernel(&ours, ask, "the whole image");
    kernel.end();
}

/// Lays out files on an image by mke2fs with `options`, and compares.
fn lay_out_and_compare(options: &[&str], mount_options: &str, is_ext4: bool) {
    for program in ["e2freefrag", "filefrag", "e4defrag", "findmnt"] {
        if !has(program) {
            skip!("no {program}");
        }
    }
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 2048, options) else { skip!("no mke2fs") };
    let mnt = scratch.path("mnt");
    let kernel = match Kernel::mount(&image, &mnt, mount_options) {
        Ok(kernel) => kernel,
        Err(why) => skip!("{why}"),
    };
    let names = lay_out(&mnt, is_ext4);
    // Free space in pieces.
    let many = mnt.join("many");
    fs::create_dir(&many).unwrap();
    (0..600).for_each(|n: usize| {
        fs::write(many.join(n.to_string()), vec![1; n * 700 % 30_000 + 1]).unwrap();
    });
    rustix::fs::sync();
    (0..600).filter(|n| n % 5 < 3).for_each(|n: usize| {
        fs::remove_file(many.join(n.to_string())).unwrap();
    });
    kernel.end();
    compare(&image, &mnt, &names, is_ext4);
}

#[test]
fn the_kernels_layout_is_told_as_by_e2fsprogs() {
    lay_out_and_compare(&["-b", "4096"], "rw", true);
}

#[test]
fn without_flex_groups_a_group_bounds_the_best() {
    lay_out_and_compare(&["-b", "4096", "-O", "^flex_bg"], "rw", true);
}

#[test]
fn small_blocks() {
    lay_out_and_compare(&["-b", "1024"], "rw", true);
}

#[test]
fn block_maps_are_listed_like_extents() {
    let features = "^extent,^64bit,^metadata_csum,^flex_bg,^huge_file,^extra_isize,^dir_nlink";
    lay_out_and_compare(&["-b", "1024", "-O", features], "rw", false);
}

#[test]
fn json_has_the_figures_of_the_text() {
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 32, &["-b", "1024"]) else { skip!("no mke2fs") };
    let file = scratch.path("file");
    let sparse = File::create(&file).unwrap();
    (0..10).for_each(|n| sparse.write_all_at(&[b'x'; BLOCK], n << 16).unwrap());
    run_ok([OsString::from("cp"), file.into(), at(&image, "/file")]);
    let json = |verb: &str, path: &str| -> serde_json::Value {
        let args = [OsString::from(verb), "--json".into(), at(&image, path)];
        serde_json::from_slice(&run_ok(args)).unwrap()
    };
    let listed = json("extents", "/file");
    let extents = listed[0]["extents"].as_array().unwrap();
    assert_eq!(extents.len(), 10);
    let blocks: u64 = extents.iter().map(|extent| extent["length"].as_u64().unwrap()).sum();
    assert_eq!(extents[9]["logical"], 9 * 64);
    assert_eq!(extents.last().unwrap()["flags"][0], "last");
    for path in ["/file", "/"] {
        let frag = json("frag", path);
        assert_eq!(frag["files"], 1);
        assert_eq!(frag["worst"][0]["path"], "/file");
        assert_eq!(frag["total"]["extents"], extents.len());
        assert_eq!(frag["total"]["blocks"], blocks);
    }
}

#[test]
fn bad_input_gets_one_line() {
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 32, &["-b", "1024"]) else { skip!("no mke2fs") };
    let file = scratch.path("file");
    let holes = File::create(&file).unwrap();
    (0..400).for_each(|n| holes.write_all_at(&[b'x'; BLOCK], n * 8192).unwrap());
    run_ok([OsString::from("cp"), file.clone().into(), at(&image, "/file")]);
    let pipes = scratch.path("pipes");
    fs::create_dir(&pipes).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, pipes.join("pipe"), fifo, mode, 0).unwrap();
    run_ok([OsString::from("cp"), "-r".into(), pipes.into(), at(&image, "/")]);
    for verb in ["extents", "frag"] {
        run_fails([OsString::from(verb), at(&image, "/missing")], "not found");
        run_fails([OsString::from(verb), at(&image, "/file/x")], "not a directory");
        run_fails([OsString::from(verb), at(&image, "/pipes/pipe")], "special file");
        run_fails([OsString::from(verb), at(&scratch.path("gone"), "/file")], "gone");
    }
    run_fails([OsStr::new("extents"), image.as_os_str()], "IMAGE:/path");
    run_fails(["freefrag", "-c", "1", "/dev/null"].map(OsString::from), "/dev/null");
    for chunk in ["0", "3", "x", "-4"] {
        let output =
            run([OsStr::new("freefrag"), OsStr::new("-c"), OsStr::new(chunk), image.as_os_str()]);
        assert_eq!(output.status.code(), Some(2), "-c {chunk}");
    }
    // A damaged leaf: found by both that read it, and `frag` goes on to tell of the rest.
    let shown = system("debugfs").args(["-R", "ex /file"]).arg(&image).output();
    let Some(leaf) = shown.ok().and_then(|out| first_leaf(&lines(&out.stdout))) else {
        skip!("no debugfs")
    };
    let damaged = File::options().write(true).open(&image).unwrap();
    damaged.write_all_at(&[0xff; 64], leaf * 1024).unwrap();
    run_fails([OsString::from("extents"), at(&image, "/file")], "file");
    run_fails([OsString::from("frag"), at(&image, "/file")], "file");
    let output = run([OsStr::new("frag"), image.as_os_str()]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(lines(&output.stderr).len(), 1, "{output:?}");
    // A damaged bitmap of blocks.
    let shown = system("dumpe2fs").arg(&image).output().unwrap();
    let bitmap = lines(&shown.stdout).iter().find_map(|line| {
        line.trim().strip_prefix("Block bitmap at ")?.split([' ', ',']).next()?.parse::<u64>().ok()
    });
    damaged.write_all_at(&[0x55; 64], bitmap.unwrap() * 1024).unwrap();
    run_fails([OsStr::new("freefrag"), image.as_os_str()], "bitmap");
}

/// Device block of the first leaf in what debugfs says of an extent tree.
fn first_leaf(lines: &[String]) -> Option<u64> {
    // Level, entries, logical range, physical block, length.
    let root = lines.iter().find(|line| line.trim_start().starts_with("0/ "))?;
    let words: Vec<&str> = root.split_whitespace().collect();
    words.get(words.len().checked_sub(2)?)?.parse().ok()
}

#[test]
fn nothing_is_written_and_a_dirty_journal_is_replayed() {
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 64, &[]) else { skip!("no mke2fs") };
    let mnt = scratch.path("mnt");
    let kernel = match Kernel::mount(&image, &mnt, "rw") {
        Ok(kernel) => kernel,
        Err(why) => skip!("{why}"),
    };
    fs::create_dir(mnt.join("d")).unwrap();
    let file = File::create(mnt.join("d/file")).unwrap();
    file.write_all_at(&[b'x'; 50_000], 0).unwrap();
    file.sync_all().unwrap();
    // A copy of a mounted image: its journal holds what it does not show.
    let dirty = scratch.path("dirty");
    fs::copy(&image, &dirty).unwrap();
    drop(file);
    kernel.end();
    let before = fs::read(&dirty).unwrap();
    let found = lines(&run_ok([OsString::from("extents"), at(&dirty, "/d/file")]));
    assert_eq!(found, ["/d/file: 1 extent found"]);
    let total = lines(&run_ok([OsStr::new("frag"), dirty.as_os_str()]));
    assert!(total.iter().any(|line| line.ends_with("\t1/1")), "{total:?}");
    run_ok([OsStr::new("freefrag"), dirty.as_os_str()]);
    assert!(fs::read(&dirty).unwrap() == before, "the image was changed");
}
