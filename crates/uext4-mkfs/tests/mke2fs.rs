//! Compares file systems with those that mke2fs makes of the same options, byte for byte, and
//! lets e2fsck judge them.
//!
//! Fault model: any difference in layout, counts, flags, checksums or content. The only field
//! left out is `s_kbytes_written` (and with it the superblock's checksum): mke2fs counts its own
//! writes there; and the time in the MMP block, where it takes no other than now. Not
//! covered: what mke2fs makes with features that this crate refuses.
//!
//! Needs mke2fs 1.47 and e2fsck, and Debian's mke2fs.conf; says so and passes where they are
//! missing.

#[path = "common/same_image.rs"]
mod same_image;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use uext4_device::{Access, FileDevice};
use uext4_mkfs::{FsType, Options, format};
use uext4_ondisk::casefold::Encoding;

use same_image::compare;

const TIME: u32 = 1_700_000_000;
const UUID: &str = "11111111-2222-3333-4444-555555555555";
const HASH_SEED: &str = "01020304-0506-0708-090a-0b0c0d0e0f10";
const MIB: u64 = 1 << 20;

fn tool(name: &str, args: &[&str]) -> Option<Output> {
    tool_in(Path::new("/"), name, args)
}

fn tool_in(dir: &Path, name: &str, args: &[&str]) -> Option<Output> {
    let path = format!("/usr/sbin:/sbin:{}", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new(name);
    command
        .current_dir(dir)
        .args(args)
        .env("PATH", path)
        .env("E2FSPROGS_FAKE_TIME", TIME.to_string());
    match command.output() {
        Ok(output) => Some(output),
        Err(error) => {
            eprintln!("skipped: {name}: {error}");
            None
        }
    }
}

/// Whether mke2fs is the version whose layout is copied.
fn has_mke2fs() -> bool {
    let Some(output) = tool("mke2fs", &["-V"]) else { return false };
    let version = String::from_utf8_lossy(&output.stderr).contains("mke2fs 1.47");
    if !version {
        eprintln!("skipped: mke2fs is not 1.47");
    }
    version
}

fn hex(text: &str) -> [u8; 16] {
    *uuid::Uuid::parse_str(text).unwrap().as_bytes()
}

fn base() -> Options {
    Options {
        uuid: Some(hex(UUID)),
        hash_seed: Some(hex(HASH_SEED)),
        time: Some(TIME),
        ..Options::default()
    }
}

fn type_name(o: &Options) -> &'static str {
    match o.fs_type {
        FsType::Ext2 => "ext2",
        FsType::Ext3 => "ext3",
        FsType::Ext4 => "ext4",
    }
}

/// mke2fs's arguments for the same options.
fn arguments(o: &Options) -> Vec<String> {
    let mut args: Vec<String> =
        ["-q", "-F", "-t", type_name(o), "-U", UUID, "-E"].map(str::to_owned).to_vec();
    let encoding = o.encoding.map_or(String::new(), |encoding| {
        let flags = if encoding.strict { "strict" } else { "nostrict" };
        format!(",encoding=utf8,encoding_flags={flags}")
    });
    let interval =
        o.mmp_update_interval.map_or(String::new(), |v| format!(",mmp_update_interval={v}"));
    args.push(format!("hash_seed={HASH_SEED}{interval}{encoding}"));
    if o.revision_0 {
        args.extend(["-r".to_owned(), "0".to_owned()]);
    }
    let mut add = |flag: &str, value: Option<String>| {
        if let Some(value) = value {
            args.extend([flag.to_owned(), value]);
        }
    };
    add("-b", o.block_size.map(|v| v.to_string()));
    add("-C", o.cluster_size.map(|v| v.to_string()));
    add("-I", o.inode_size.map(|v| v.to_string()));
    add("-i", o.inode_ratio.map(|v| v.to_string()));
    add("-N", o.inodes.map(|v| v.to_string()));
    add("-g", o.blocks_per_group.map(|v| v.to_string()));
    add("-G", o.flex_groups.map(|v| v.to_string()));
    add("-J", o.journal_mib.map(|v| format!("size={v}")));
    add("-m", o.reserved_percent.map(|v| v.to_string()));
    add("-O", (!o.features.is_empty()).then(|| o.features.clone()));
    add("-L", (!o.label.is_empty()).then(|| o.label.clone()));
    args
}

struct Case {
    dir: tempfile::TempDir,
    size: u64,
}

impl Case {
    fn new(size: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for side in ["ours", "theirs"] {
            fs::create_dir(dir.path().join(side)).unwrap();
        }
        Self { dir, size }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Makes the image with this crate; checks it with e2fsck.
    fn make(&self, options: &Options) -> Option<PathBuf> {
        let path = self.path("ours/image");
        let device = FileDevice::create(&path, self.size).unwrap();
        format(&device, options).unwrap();
        drop(device);
        let output = tool("e2fsck", &["-fn", path.to_str().unwrap()])?;
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.code() == Some(0), "{options:?}: {told}");
        Some(path)
    }

    fn make_with_mke2fs(&self, options: &Options) -> Option<PathBuf> {
        let path = self.path("theirs/image");
        File::create(&path).unwrap().set_len(self.size).unwrap();
        let args = arguments(options);
        let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
        // With mmp it notes its argument, we the name of the file.
        args.push("image");
        let output = tool_in(&self.path("theirs"), "mke2fs", &args)?;
        assert!(output.status.success(), "{args:?} {output:?}");
        Some(path)
    }
}

/// Both images, whole.
fn same(size: u64, options: &Options) {
    if !has_mke2fs() {
        return;
    }
    let case = Case::new(size);
    if let (Some(ours), Some(theirs)) = (case.make(options), case.make_with_mke2fs(options)) {
        compare(&ours, &theirs, &format!("{} MiB, {:?}", size / MIB, arguments(options)));
    }
}

/// `dumpe2fs` without what may differ.
fn dump(image: &Path) -> Option<Vec<String>> {
    let output = tool("dumpe2fs", &[image.to_str().unwrap()])?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let keep = |line: &&str| !line.starts_with("Lifetime writes") && !line.starts_with("Checksum:");
    Some(text.lines().filter(keep).map(str::to_owned).collect())
}

/// For images too large to be read in whole: what dumpe2fs says.
fn same_dump(size: u64, options: &Options) {
    if !has_mke2fs() {
        return;
    }
    let case = Case::new(size);
    if let (Some(ours), Some(theirs)) = (case.make(options), case.make_with_mke2fs(options)) {
        let (ours, theirs) = (dump(&ours).unwrap(), dump(&theirs).unwrap());
        for (a, b) in ours.iter().zip(&theirs) {
            assert_eq!(a, b, "{options:?}");
        }
        assert_eq!(ours.len(), theirs.len());
    }
}

#[test]
fn default_sizes() {
    for mib in [1, 2, 3, 5, 8, 20, 64, 128, 200, 511, 512, 600] {
        same(mib * MIB, &base());
    }
}

#[test]
fn odd_sizes() {
    for size in [
        1_234_567,
        8 * MIB + 1024,
        // A last group with hardly room for its own metadata, and a little more.
        (8192 * 3 + 1 + 100) * 1024,
        (8192 * 3 + 1 + 400) * 1024,
        (8192 * 3 + 1 + 800) * 1024,
        600 * MIB + 12345,
        640 * MIB + 4096 * 300,
        640 * MIB + 4096 * 800,
        // One group alone in its flex group.
        (17 * 8192 + 1) * 1024,
        (16 * 8192 + 2000) * 1024,
    ] {
        same(size, &base());
    }
}

#[test]
fn block_and_inode_sizes() {
    for block_size in [1024, 2048, 4096] {
        for inode_size in [128, 256, 512, 1024] {
            for mib in [5, 64] {
                let options = Options {
                    block_size: Some(block_size),
                    inode_size: Some(inode_size),
                    ..base()
                };
                same(mib * MIB, &options);
            }
        }
    }
}

/// The share of fast commits is that of the default journal.
#[test]
fn journals_of_a_size_with_fast_commits() {
    for (block_size, journal_mib) in [(1024, 2), (1024, 60), (4096, 8), (4096, 100)] {
        let journal_mib = Some(journal_mib);
        let features = "fast_commit".to_owned();
        same(300 * MIB, &Options { block_size: Some(block_size), features, journal_mib, ..base() });
    }
}

/// As on machines with large pages.
#[test]
fn large_blocks() {
    for block_size in [8192, 16384, 32768, 65536] {
        for features in ["", "^metadata_csum,^64bit,^flex_bg", "orphan_file"] {
            // With the largest, mke2fs has the block of the resize inode elsewhere.
            let no_resize = if block_size == 65536 { "^resize_inode," } else { "" };
            let features = format!("{no_resize}{features}");
            same(300 * MIB, &Options { block_size: Some(block_size), features, ..base() });
        }
    }
}

#[test]
fn features() {
    for features in [
        "^has_journal",
        "^64bit",
        "^resize_inode",
        "^metadata_csum",
        "^metadata_csum,uninit_bg",
        "^metadata_csum,uninit_bg,^64bit",
        "^flex_bg",
        "^flex_bg,^metadata_csum",
        "^flex_bg,^metadata_csum,uninit_bg",
        "sparse_super2",
        "sparse_super2,^sparse_super,^resize_inode",
        "^sparse_super,^resize_inode",
        "metadata_csum_seed",
        "mmp",
        "mmp,orphan_file,^metadata_csum",
        "meta_bg,^resize_inode",
        "meta_bg,^resize_inode,^flex_bg,^64bit",
        "meta_bg,^resize_inode,sparse_super2,^metadata_csum",
        "inline_data",
        "inline_data,^extent,^64bit",
        "quota",
        "quota,project",
        "quota,project,orphan_file,^flex_bg",
        "quota,^extent,^64bit",
        "large_dir",
        "ea_inode",
        "ea_inode,quota,project",
        "orphan_file",
        "orphan_file,^metadata_csum",
        "orphan_file,metadata_csum_seed,^flex_bg",
        "fast_commit",
        "fast_commit,orphan_file,^64bit",
        "fast_commit,^has_journal",
        "^dir_index,^filetype,^large_file,^huge_file,^dir_nlink,^ext_attr,^extra_isize",
    ] {
        for mib in [40, 300] {
            same(mib * MIB, &Options { features: features.to_owned(), ..base() });
        }
    }
}

/// Fault model: another encoding, flags that are not those that were asked for.
#[test]
fn encodings() {
    for strict in [None, Some(false), Some(true)] {
        let encoding = strict.map(|strict| Encoding { strict, ..Encoding::default() });
        // The word for the encoding adds the feature.
        let features = if strict.is_some() { "" } else { "casefold" }.to_owned();
        same(40 * MIB, &Options { features, encoding, ..base() });
    }
    same(300 * MIB, &Options { features: "casefold,inline_data".to_owned(), ..base() });
}

/// Fault model: a table or a file that shares a cluster with another, a count in blocks that is in
/// clusters, a group of another size.
#[test]
fn clusters() {
    let shape = |features: &str, block_size, cluster_size| Options {
        features: format!("bigalloc{features}"),
        block_size,
        cluster_size,
        ..base()
    };
    for (mib, options) in [
        (40, shape("", None, None)),
        (40, shape("", Some(1024), Some(2048))),
        (300, shape("", Some(4096), Some(16384))),
        (700, shape("", Some(4096), Some(1 << 20))),
        (300, shape(",^resize_inode,meta_bg", Some(1024), Some(4096))),
        (300, shape(",orphan_file,metadata_csum_seed", Some(4096), Some(8192))),
        (300, shape(",^flex_bg,^metadata_csum,uninit_bg", Some(2048), None)),
        (300, shape(",^has_journal,^64bit,sparse_super2", Some(4096), Some(131_072))),
        (100, Options { journal_mib: Some(5), ..shape("", None, None) }),
        (100, shape(",quota", Some(1024), Some(2048))),
        (300, shape(",quota,project", Some(4096), Some(16384))),
        (100, shape(",quota", Some(1024), None)),
    ] {
        same(mib * MIB, &options);
        same(mib * MIB + 12345, &options);
    }
}

/// Fault model: an indirect block in another place, or missing from a count; a log of more blocks
/// than one indirect block leads to, and one with a gap.
#[test]
fn block_maps() {
    for (fs_type, features, block_size) in [
        (FsType::Ext2, "", None),
        (FsType::Ext2, "^resize_inode,^dir_index,^filetype,^sparse_super,^large_file", None),
        (FsType::Ext3, "", None),
        (FsType::Ext3, "", Some(4096)),
        (FsType::Ext3, "^sparse_super,^resize_inode,^filetype", Some(1024)),
        (FsType::Ext3, "uninit_bg", Some(2048)),
        (FsType::Ext3, "orphan_file", Some(1024)),
        (FsType::Ext4, "^extent,^64bit", None),
        (FsType::Ext4, "^extent,^64bit,^flex_bg,orphan_file", Some(1024)),
    ] {
        for mib in [5, 40, 300] {
            let features = features.to_owned();
            same(mib * MIB, &Options { fs_type, features, block_size, ..base() });
        }
    }
}

/// Fault model: a field that revision 0 does not have, a feature that comes along.
#[test]
fn revision_0() {
    for block_size in [1024, 4096] {
        for mib in [5, 40, 300] {
            let options = Options { revision_0: true, block_size: Some(block_size), ..base() };
            same(mib * MIB, &options);
        }
    }
}

#[test]
fn counts_and_shapes() {
    let cases = [
        Options { inodes: Some(1), ..base() },
        Options { inodes: Some(20_000), ..base() },
        Options { inodes: Some(100_000), block_size: Some(1024), ..base() },
        Options { inode_ratio: Some(65536), ..base() },
        Options { inode_ratio: Some(1024), ..base() },
        Options { reserved_percent: Some(0.0), ..base() },
        Options { reserved_percent: Some(12.5), ..base() },
        Options { flex_groups: Some(1), ..base() },
        Options { flex_groups: Some(4), ..base() },
        Options { flex_groups: Some(2), ..base() },
        Options { flex_groups: Some(64), block_size: Some(1024), ..base() },
        Options { blocks_per_group: Some(8192), ..base() },
        Options {
            blocks_per_group: Some(1024),
            features: "meta_bg,^resize_inode".to_owned(),
            ..base()
        },
        Options {
            blocks_per_group: Some(2048),
            features: "meta_bg,^resize_inode,^flex_bg".to_owned(),
            ..base()
        },
        Options { features: "mmp".to_owned(), mmp_update_interval: Some(1), ..base() },
        Options { features: "mmp".to_owned(), mmp_update_interval: Some(30), ..base() },
        Options { journal_mib: Some(8), ..base() },
        Options { journal_mib: Some(30), block_size: Some(1024), ..base() },
        Options { label: "a label".to_owned(), ..base() },
        Options { label: "sixteen bytes ab".to_owned(), ..base() },
    ];
    for options in cases {
        same(150 * MIB, &options);
    }
}

/// Journals of more extents than the inode holds. mke2fs leaves old entries behind in the unused
/// part of the inode's map, so the images are not the same byte for byte.
#[test]
fn journals_with_a_tree() {
    if !has_mke2fs() {
        return;
    }
    let no_flex = "^flex_bg".to_owned();
    for (mib, options) in [
        (150, Options { journal_mib: Some(60), features: no_flex.clone(), ..base() }),
        (300, Options { journal_mib: Some(90), features: no_flex, ..base() }),
        (3072, Options { journal_mib: Some(600), ..base() }),
        (3072, Options { journal_mib: Some(600), flex_groups: Some(64), ..base() }),
    ] {
        let options = Options { block_size: Some(1024), ..options };
        let case = Case::new(mib * MIB);
        let Some(ours) = case.make(&options) else { return };
        let Some(theirs) = case.make_with_mke2fs(&options) else { return };
        assert_eq!(dump(&ours), dump(&theirs));
        let [a, b] = [ours, theirs].map(|image| {
            let output = tool("debugfs", &["-R", "ex <8>", image.to_str().unwrap()]).unwrap();
            String::from_utf8_lossy(&output.stdout).into_owned()
        });
        assert!(a.lines().count() > 5);
        assert_eq!(a, b);
    }
    // More extents than one node holds: no comparison, e2fsck judges.
    let options = Options { journal_mib: Some(1000), block_size: Some(1024), ..base() };
    let options = Options { features: "^flex_bg".to_owned(), ..options };
    Case::new(3072 * MIB).make(&options);
}

#[test]
fn five_gib() {
    for features in ["", "^flex_bg", "^metadata_csum", "orphan_file,sparse_super2"] {
        same_dump(5120 * MIB, &Options { features: features.to_owned(), ..base() });
    }
}

#[test]
fn two_hundred_gib() {
    for features in ["", "orphan_file,metadata_csum_seed"] {
        same_dump(200 * 1024 * MIB, &Options { features: features.to_owned(), ..base() });
    }
}

#[test]
fn a_device_with_old_content_is_overwritten() {
    // Without discard every byte that matters is written: the result does not depend on what the
    // device held.
    let case = Case::new(20 * MIB);
    for lazy in [false, true] {
        let path = case.path("dirty");
        fs::write(&path, vec![0xa5; 20 << 20]).unwrap();
        let device = FileDevice::open(&path, Access::ReadWrite, 0).unwrap();
        let options = Options {
            discard: Some(false),
            lazy_itable_init: Some(lazy),
            lazy_journal_init: Some(lazy),
            ..base()
        };
        let report = format(&device, &options).unwrap();
        assert_eq!(report.journal_blocks, 1024);
        drop(device);
        let Some(output) = tool("e2fsck", &["-fn", path.to_str().unwrap()]) else { return };
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
}

#[test]
fn sparse_files_stay_sparse() {
    use std::os::unix::fs::MetadataExt;
    let case = Case::new(64 * MIB);
    let path = case.path("sparse");
    let device = FileDevice::create(&path, 64 * MIB).unwrap();
    let report = format(&device, &base()).unwrap();
    drop(device);
    assert!(report.bytes_written < MIB, "{report:?}");
    let held = fs::metadata(&path).unwrap().blocks() * 512;
    assert!(held < 2 * MIB, "{held} bytes held");
}

#[test]
fn wrong_options_are_one_line() {
    let case = Case::new(64 * MIB);
    let wrong = [
        Options { block_size: Some(512), ..base() },
        Options { block_size: Some(131_072), ..base() },
        Options { block_size: Some(3000), ..base() },
        Options { inode_size: Some(64), ..base() },
        Options { inode_size: Some(300), ..base() },
        Options { inode_ratio: Some(512), ..base() },
        Options { inodes: Some(100_000_000), ..base() },
        Options { reserved_percent: Some(60.0), ..base() },
        Options { reserved_percent: Some(f64::NAN), ..base() },
        Options { journal_mib: Some(40), ..base() },
        Options { journal_mib: Some(100_000), ..base() },
        Options { flex_groups: Some(3), ..base() },
        Options { blocks_per_group: Some(1025), ..base() },
        Options { features: "meta_bg".to_owned(), ..base() },
        Options { features: "mmp".to_owned(), mmp_update_interval: Some(301), ..base() },
        Options { size: Some(65 * MIB), ..base() },
        Options { size: Some(30 * 1024), ..base() },
        Options { size: Some(0), ..base() },
        Options { features: "inline_data".to_owned(), inode_size: Some(128), ..base() },
        Options { features: "no_such".to_owned(), ..base() },
        Options { cluster_size: Some(65536), ..base() },
        Options { features: "bigalloc,^extent,^64bit".to_owned(), ..base() },
        Options { features: "^extent".to_owned(), ..base() },
        Options { fs_type: FsType::Ext3, features: "64bit".to_owned(), ..base() },
        Options { revision_0: true, features: "extent".to_owned(), ..base() },
        Options { revision_0: true, inode_size: Some(256), ..base() },
        Options { features: "^sparse_super".to_owned(), ..base() },
        Options { features: "^has_journal,orphan_file".to_owned(), ..base() },
        Options { features: "^metadata_csum,metadata_csum_seed".to_owned(), ..base() },
        Options { features: "^flex_bg".to_owned(), flex_groups: Some(4), ..base() },
    ];
    let path = case.path("image");
    let device = FileDevice::create(&path, case.size).unwrap();
    for options in wrong {
        let error = format(&device, &options).unwrap_err().to_string();
        assert!(!error.contains('\n') && !error.is_empty(), "{error}");
    }
    let mut bytes = [0; 4096];
    File::open(&path).unwrap().read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, [0; 4096], "a refused run wrote to the device");
}
