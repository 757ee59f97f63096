//! `uext4 mkfs` takes the options of mke2fs: with the same words both make the same image.
//!
//! Fault model: an option that is taken and not heeded, or heeded in another way: any byte that
//! differs, but for `s_kbytes_written` and the superblock's checksum. Our time is that of
//! SOURCE_DATE_EPOCH. Needs mke2fs 1.47; says so and passes where it is missing.

#[macro_use]
mod common;
#[path = "../../uext4-mkfs/tests/common/same_image.rs"]
mod same_image;

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output};

use common::{Scratch, UEXT4, assert_clean, run_fails, run_ok};
use same_image::compare;

const TIME: &str = "1700000000";
const UUID: &str = "11111111-2222-3333-4444-555555555555";
const HASH_SEED: &str = "hash_seed=01020304-0506-0708-090a-0b0c0d0e0f10";

/// Size, and words but those of `-E`, which stand alone.
type Row = (&'static str, &'static str, &'static str);

const ROWS: &[Row] = &[
    // Sizes.
    ("20000", "-t ext4", ""),
    ("20000", "-t ext4 -b 4096", ""),
    ("100000s", "-t ext4", ""),
    ("64M", "-t ext4", ""),
    ("64m", "-t ext2", ""),
    // Blocks, clusters, inodes.
    ("64M", "-t ext4 -b -2048", ""),
    ("64M", "-t ext4 -b 2048 -O bigalloc -C 16384", ""),
    ("64M", "-t ext4 -I 128", ""),
    ("64M", "-t ext4 -i 65536", ""),
    ("64M", "-t ext4 -N 1000", ""),
    ("64M", "-t ext4 -m 0", ""),
    ("64M", "-t ext4 -m 2.5", ""),
    ("64M", "-t ext4 -g 4096 -G 4", ""),
    ("64M", "-j", ""),
    ("64M", "-t ext2 -j", ""),
    ("64M", "-r 0 -t ext2", ""),
    ("64M", "-t ext4 -O none", ""),
    ("64M", "-t ext4 -O ^has_journal,quota", "quotatype=usrquota:prjquota"),
    // Labels.
    ("64M", "-t ext4 -L label -M /mnt/somewhere", ""),
    ("64M", "-t ext4 -e remount-ro", ""),
    ("64M", "-t ext4 -e panic -o linux", ""),
    ("64M", "-t ext4 -D", ""),
    // Types.
    ("64M", "-t ext4 -T floppy", ""),
    ("64M", "-t ext4 -T small", ""),
    ("64M", "-t ext3 -T news", ""),
    ("64M", "-t ext4 -T big", ""),
    ("64M", "-t ext4 -T huge", ""),
    ("64M", "-t ext4 -T largefile", ""),
    ("64M", "-t ext4 -T largefile4", ""),
    ("64M", "-t ext4 -T news,small,huge", ""),
    ("64M", "-t ext4 -T default", ""),
    // Journals.
    ("300M", "-t ext4 -b 4096 -J size=8", ""),
    ("300M", "-t ext4 -b 4096 -J location=5000", ""),
    ("300M", "-t ext4 -b 4096 -J location=40M,size=16", ""),
    ("300M", "-t ext4 -b 1024 -J location=0", ""),
    ("300M", "-t ext4 -O fast_commit -J fast_commit_size=1024", ""),
    ("300M", "-t ext4 -O fast_commit -J size=16,fast_commit_size=1", ""),
    // Extended options.
    ("64M", "-t ext4", "stride=4,stripe_width=8"),
    ("64M", "-t ext4", "stride=16,stripe-width=64"),
    ("160M", "-t ext4 -O ^flex_bg", "stride=16"),
    ("160M", "-t ext2", "stride=700"),
    ("160M", "-t ext4 -b 4096 -g 2048 -O ^flex_bg,^resize_inode,^has_journal", "stride=64"),
    ("160M", "-t ext4", "packed_meta_blocks=1"),
    ("160M", "-t ext4 -G 4", "packed_meta_blocks"),
    ("160M", "-t ext4 -O ^flex_bg", "packed_meta_blocks=1"),
    ("160M", "-t ext4 -b 4096 -g 2048", "packed_meta_blocks=1"),
    ("64M", "-t ext4", "resize=1000000"),
    ("64M", "-t ext4", "resize=70000"),
    ("64M", "-t ext4", "resize=131073"),
    ("64M", "-t ext4", "resize=131072"),
    ("64M", "-t ext4 -g 4096 -O ^64bit", "resize=4G"),
    ("64M", "-t ext4 -O ^resize_inode", "resize=1000000"),
    ("64M", "-t ext4 -O sparse_super2", "num_backup_sb=0"),
    ("64M", "-t ext4 -O sparse_super2", "num_backup_sb=1"),
    ("64M", "-t ext4 -O sparse_super2", "num_backup_sb=2"),
    ("64M", "-t ext4", "num_backup_sb=1"),
    ("10000", "-t ext4 -O sparse_super2", ""),
    ("64M", "-t ext4", "test_fs"),
    ("64M", "-t ext4", "desc_size=64"),
    ("64M", "-t ext4", "root_owner=7:8"),
    ("64M", "-t ext4", "nodiscard,lazy_itable_init=0"),
    ("64M", "-t ext4", "discard,lazy_itable_init=1,lazy_journal_init=1"),
    ("64M", "-t ext4", "lazy_itable_init=0,lazy_journal_init=0"),
    ("64M", "-t ext4", "assume_storage_prezeroed=1"),
    ("64M", "-t ext4", "encoding=utf8,encoding_flags=strict"),
    ("64M", "-t ext4 -O orphan_file", "orphan_file_size=100K"),
    ("64M", "-t ext4 -O orphan_file -b 4096", "orphan_file_size=64"),
];

/// What a file of defaults says, and words. (`-E` is not in such a file here.)
const CONFIGS: &[(&str, &str)] = &[
    ("[fs_types]\next4 = {\n features = has_journal,extent\n}\nsmall = {\n}\n", "-t ext4"),
    (
        "[defaults]\n fs_type = ext4\n base_features = sparse_super,filetype\n blocksize = 2048\n \
         default_features = ^has_journal\n hash_alg = tea\n errors = panic\n \
         reserved_ratio = 2.5\n enable_periodic_fsck = 1\n \
         default_mntopts = journal_data,nobarrier,user_xattr\n \
         flex_bg_size = 4\n inode_size = 512\n[fs_types]\next4 = {\n features = \
         has_journal,extent,flex_bg\n hash_alg = legacy\n}\nsmall = {\n inode_ratio = 2048\n \
         features = extra_isize,^filetype\n}\n",
        "",
    ),
    (
        "[defaults]\n num_backup_sb = 1\n packed_meta_blocks = yes\n cluster_size = 32768\n\
         [fs_types]\next4 = {\n base_features = sparse_super2,extent,flex_bg,bigalloc\n}\n",
        "-t ext4 -O has_journal -T ext4",
    ),
];

/// Runs a command in a folder of its own, where it makes `image`.
fn run(
    dir: &Path,
    program: &str,
    verb: &[&str],
    words: &str,
    extended: &str,
    size: &str,
) -> Output {
    fs::create_dir_all(dir).unwrap();
    let extended = [HASH_SEED, extended].join(",");
    let mut command = Command::new(program);
    command.current_dir(dir).args(verb).args(words.split_whitespace());
    command.args(["-q", "-F", "-U", UUID, "-E", extended.trim_end_matches(','), "image", size]);
    command.env("PATH", format!("/usr/sbin:/sbin:{}", std::env::var("PATH").unwrap()));
    command.env("E2FSPROGS_FAKE_TIME", TIME).env("SOURCE_DATE_EPOCH", TIME);
    if fs::exists(dir.join("../conf")).unwrap() {
        command.env("MKE2FS_CONFIG", "../conf");
    } else {
        command.env_remove("MKE2FS_CONFIG");
    }
    command.output().unwrap()
}

fn has_mke2fs() -> bool {
    let output = common::system("mke2fs").arg("-V").output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stderr).contains("mke2fs 1.47"))
}

/// Makes both images; what differs is told with the words.
fn same(scratch: &Scratch, (size, words, extended): Row) {
    let [ours, theirs] = ["ours", "theirs"].map(|side| scratch.path(side));
    let context = format!("{words} -E {extended} {size}");
    let made = run(&ours, UEXT4, &["mkfs"], words, extended, size);
    assert!(made.status.success(), "{context}: {}", String::from_utf8_lossy(&made.stderr));
    fs::create_dir_all(&theirs).unwrap();
    // A file that mke2fs makes itself it does not know to be zero.
    let len = ours.join("image").metadata().unwrap().len();
    File::create(theirs.join("image")).unwrap().set_len(len).unwrap();
    // Its default type is another.
    let verb: &[&str] = if words.contains("-t ") { &[] } else { &["-t", "ext4"] };
    let made = run(&theirs, "mke2fs", verb, words, extended, size);
    assert!(made.status.success(), "{context}: {}", String::from_utf8_lossy(&made.stderr));
    let [ours, theirs] = [ours, theirs].map(|side| side.join("image"));
    compare(&ours, &theirs, &context);
    assert_clean(&ours);
    for image in [ours, theirs] {
        fs::remove_file(image).unwrap();
    }
}

#[test]
fn the_same_words_make_the_same_image() {
    if !has_mke2fs() {
        skip!("mke2fs 1.47 is missing");
    }
    let scratch = Scratch::in_memory();
    for row in ROWS {
        same(&scratch, *row);
    }
}

#[test]
fn a_file_of_defaults_is_read_as_mke2fs_reads_it() {
    if !has_mke2fs() {
        skip!("mke2fs 1.47 is missing");
    }
    let scratch = Scratch::in_memory();
    for (text, words) in CONFIGS {
        fs::write(scratch.path("conf"), text).unwrap();
        same(&scratch, ("64M", words, ""));
    }
}

/// What a command line of mkfs says, under an epoch; it succeeds.
fn make(dir: &Path, epoch: Option<&str>, words: &[&str]) -> String {
    let mut command = Command::new(UEXT4);
    command.current_dir(dir).arg("mkfs").args(words).env_remove("SOURCE_DATE_EPOCH");
    if let Some(epoch) = epoch {
        command.env("SOURCE_DATE_EPOCH", epoch);
    }
    // Another time of others is not ours.
    let output = command.env("E2FSPROGS_FAKE_TIME", "1").output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{words:?}: {told}");
    told + &String::from_utf8(output.stdout).unwrap()
}

/// Fault model: an image that depends on the clock, on chance, on the host's names, or on what was
/// in the file before; an epoch that is not heeded.
#[test]
fn an_epoch_makes_images_reproducible() {
    let scratch = Scratch::in_memory();
    let dir = scratch.dir.path();
    let image = |name: &str, epoch, words: &[&str]| {
        make(dir, epoch, &[&["-q", "-F", "-O", "mmp"], words, &[name, "8M"]].concat());
        fs::read(dir.join(name)).unwrap()
    };
    let first = image("a", Some(TIME), &[]);
    assert!(first == image("b", Some(TIME), &[]), "another name");
    assert!(first == image("b", Some(TIME), &[]), "a file that was there");
    for (what, epoch, words) in [
        ("another epoch", Some("1700000001"), &[][..]),
        ("another label", Some(TIME), &["-L", "label"]),
        ("no epoch", None, &[]),
    ] {
        let other = image("c", epoch, words);
        assert!(first[1024 + 0x68..][..16] != other[1024 + 0x68..][..16], "{what}: the same UUID");
    }
    let time = u32::from_le_bytes(first[1024 + 0x108..][..4].try_into().unwrap());
    assert_eq!(time.to_string(), TIME);
    let mut command = Command::new(UEXT4);
    command.current_dir(dir).args(["mkfs", "x", "8M"]).env("SOURCE_DATE_EPOCH", "1e9");
    let fails = command.output().unwrap();
    assert!(!fails.status.success() && !dir.join("x").exists());
}

/// Fault model: a file that is made, changed or emptied although nothing is to be written; a plan
/// that is not what is made then.
#[test]
fn a_plan_writes_nothing_and_is_what_is_made() {
    let scratch = Scratch::in_memory();
    let dir = scratch.dir.path();
    let plan = make(dir, Some(TIME), &["-n", "image", "64M"]);
    assert!(plan.contains("65536 1k blocks and 16384 inodes"), "{plan}");
    assert!(!dir.join("image").exists());
    assert_eq!(make(dir, Some(TIME), &["image", "64M"]), plan);
    let before = fs::read(dir.join("image")).unwrap();
    // What is there is no obstacle; that it would be is told.
    let again = make(dir, Some(TIME), &["-n", "image"]);
    assert!(again.ends_with(&plan) && again.contains("use -F to overwrite it"), "{again}");
    assert_eq!(make(dir, Some(TIME), &["-n", "-F", "image", "64M"]), plan);
    assert!(make(dir, None, &["-n", "-F", "image", "1G"]).contains("262144 4k blocks"));
    let told = make(dir, None, &["-n", "-v", "-F", "-E", "stride=3", "image"]);
    assert!(told.contains("Stride=3 blocks") && told.contains("8192 blocks per group"), "{told}");
    assert!(before == fs::read(dir.join("image")).unwrap(), "changed all the same");
}

/// Each is refused by name, in one line, before anything is made.
#[test]
fn what_is_refused_is_refused_by_name() {
    let scratch = Scratch::new();
    let image = scratch.path("image");
    let conf = scratch.path("conf");
    fs::write(&conf, "[fs_types]\next4 = {\n make_hugefiles = true\n}\n").unwrap();
    let conf = conf.to_str().unwrap();
    for (words, want) in [
        (&["-c"][..], "badblocks(8)"),
        (&["-c", "-c"], "-c:"),
        (&["-l", "list"], "-l:"),
        (&["-S"], "e2fsck -b"),
        (&["-z", "undo"], "-z:"),
        (&["-o", "hurd"], "-o hurd"),
        (&["-T", "hurd"], "-T hurd"),
        (&["-T", "small,nonsense"], "unknown usage type nonsense"),
        (&["-e", "explode"], "-e explode"),
        (&["-E", "stride=70000"], "stride"),
        (&["-E", "test_fs=1"], "takes no value"),
        (&["-E", "resize=100"], "resize"),
        (&["-E", "resize=1G", "-O", "meta_bg,^resize_inode"], "meta_bg"),
        (&["-E", "num_backup_sb=3"], "want 0, 1 or 2"),
        (&["-E", "desc_size=128"], "desc_size"),
        (&["-E", "root_perms=9"], "octal"),
        (&["-E", "orphan_file_size=1G", "-O", "orphan_file"], "orphan_file_size"),
        (&["-J", "location=1T"], "location"),
        (&["-J", "nonsense=1"], "-J nonsense=1: not supported"),
        (&["-b", "-3000"], "invalid block size 3000"),
        (&["--config", "/no/such"], "/no/such"),
        (&["--config", conf], "make_hugefiles"),
    ] {
        let all = ["mkfs"].iter().chain(words).map(|word| (*word).into());
        let all: Vec<std::ffi::OsString> =
            all.chain([image.clone().into(), "64M".into()]).collect();
        run_fails(all, want);
        assert!(!image.exists(), "{words:?} left a file");
    }
    let version = run_ok(["mkfs", "-V"]);
    assert!(version.starts_with(b"uext4"), "{version:?}");
}

#[test]
fn the_top_directory_has_the_mode_that_was_asked_for() {
    let scratch = Scratch::new();
    let image = scratch.path("image");
    let words = ["mkfs", "-q", "-E", "root_perms=1777", image.to_str().unwrap(), "8M"];
    run_ok(words);
    assert_clean(&image);
    let told = run_ok(["stat".into(), common::at(&image, "/")]);
    let told = String::from_utf8(told).unwrap();
    assert!(told.contains("1777"), "{told}");
}
