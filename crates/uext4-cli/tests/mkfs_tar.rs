//! `uext4 mkfs -d` of a tar archive.
//!
//! Fault model: an attribute that an archive has is lost, contents are read at the wrong place of
//! the archive or of the temporary file, a hostile archive makes it fail otherwise than in one
//! line, hang, or make a damaged image.

#[macro_use]
mod common;
#[path = "common/oci.rs"]
mod oci;
#[path = "common/tree.rs"]
mod tree;

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Stdio;

use common::{Scratch, UEXT4, assert_clean, has, run, run_fails, run_ok, system};
use oci::{compressed, tar};
use uext4_archive::Format;

fn mkfs(words: &[&str], source: &Path, image: &Path) -> Vec<OsString> {
    let words = ["mkfs", "-q"].into_iter().chain(words.iter().copied()).map(OsString::from);
    words.chain(["-d".into(), source.into(), image.into()]).collect()
}

/// Makes an image with a fixed time, from a path or from standard input, and returns its bytes.
fn reproducible(source: &Path, input: Stdio, image: &Path) -> Vec<u8> {
    let mut command = system(UEXT4);
    command.args(mkfs(&[], source, image)).env("SOURCE_DATE_EPOCH", "1700000000");
    assert!(command.stdin(input).status().unwrap().success());
    let bytes = fs::read(image).unwrap();
    fs::remove_file(image).unwrap();
    bytes
}

#[test]
fn an_archive_gives_what_its_directory_gives() {
    if !has("tar") {
        skip!("no tar");
    }
    let scratch = Scratch::new();
    let source = scratch.path("source");
    tree::make(&source);
    // Else it would have the time of each build.
    fs::create_dir(source.join("lost+found")).unwrap();
    let archive = scratch.path("archive.tar");
    let mut pack = system("tar");
    pack.args(["--format=pax", "--xattrs", "--acls", "--sparse", "-C"]).arg(&source);
    assert!(pack.arg("-cf").arg(&archive).arg(".").status().unwrap().success());

    let (image, other) = (scratch.path("image"), scratch.path("other"));
    run_ok(mkfs(&[], &archive, &image));
    assert_clean(&image);
    let top = fs::metadata(&source).unwrap();
    let owner = format!("root_owner={}:{}", top.uid(), top.gid());
    run_ok(mkfs(&["-E", &owner], &source, &other));
    let difference = run(["diff".into(), image.clone().into_os_string(), other.into()]);
    assert_eq!(String::from_utf8_lossy(&difference.stdout), "", "{difference:?}");
    assert!(difference.status.success(), "{difference:?}");
    fs::remove_file(&image).unwrap();

    let plain = fs::read(&archive).unwrap();
    let want = reproducible(&archive, Stdio::null(), &image);
    for format in [Format::Gzip, Format::Zstd, Format::Xz] {
        let path = scratch.path("compressed");
        fs::write(&path, compressed(&plain, format)).unwrap();
        assert!(want == reproducible(&path, Stdio::null(), &image), "{format:?}");
        let mut cat = system("cat").arg(&path).stdout(Stdio::piped()).spawn().unwrap();
        let pipe = cat.stdout.take().unwrap();
        assert!(want == reproducible(Path::new("-"), pipe.into(), &image), "{format:?} piped");
        assert!(cat.wait().unwrap().success());
    }
    let file = File::open(&archive).unwrap();
    assert!(want == reproducible(Path::new("-"), file.into(), &image), "standard input");
}

/// Fault model: holes follow the map of the archive, or zeros are found at another place than that
/// of the file.
#[test]
fn holes_are_what_is_zeros_however_the_archive_has_them() {
    if !has("tar") {
        skip!("no tar");
    }
    let scratch = Scratch::new();
    let (source, image) = (scratch.path("source"), scratch.path("image"));
    fs::create_dir(&source).unwrap();
    // With holes of the host, zeros that it stores, and data that begins within a unit.
    let mut large = vec![0; 3 << 20];
    large[5000] = 1;
    large[(1 << 20) - 1..(1 << 20) + 9000].fill(2);
    *large.last_mut().unwrap() = 3;
    fs::write(source.join("stored"), &large).unwrap();
    for (name, bytes) in [("sparse", &large[..]), ("small", &large[..40_000])] {
        let file = File::create(source.join(name)).unwrap();
        file.set_len(bytes.len() as u64).unwrap();
        for (index, unit) in bytes.chunks(4096).enumerate().filter(|(_, unit)| *unit != [0; 4096]) {
            file.write_all_at(unit, index as u64 * 4096).unwrap();
        }
    }
    fs::write(source.join("zeros"), vec![0; 1 << 20]).unwrap();
    let mut images = Vec::new();
    for (words, format) in [
        (&["--sparse"][..], Format::Plain),
        (&[], Format::Plain),
        (&["--sparse", "--format=gnu"], Format::Plain),
        (&["--sparse"], Format::Gzip),
        (&[], Format::Zstd),
    ] {
        let archive = scratch.path("archive");
        let mut pack = system("tar");
        pack.args(["--mtime=@1600000000", "--sort=name", "-C"]).arg(&source).args(words);
        assert!(pack.arg("-cf").arg(&archive).arg(".").status().unwrap().success());
        if format != Format::Plain {
            let plain = fs::read(&archive).unwrap();
            fs::write(&archive, compressed(&plain, format)).unwrap();
        }
        images.push(reproducible(&archive, Stdio::null(), &image));
    }
    assert!(
        images.iter().all(|one| *one == images[0]),
        "an image follows the holes of its archive"
    );
    fs::write(&image, &images[0]).unwrap();
    assert_clean(&image);
    let cat = |name: &str| run_ok(["cat".into(), common::at(&image, name)]);
    assert!(cat("/stored") == large && cat("/sparse") == large && cat("/small") == large[..40_000]);
    assert!(cat("/zeros") == vec![0; 1 << 20]);
    let blocks = |name: &str| {
        let stat = ["stat".into(), "--json".into(), common::at(&image, name)];
        let stat: serde_json::Value = serde_json::from_slice(&run_ok(stat)).unwrap();
        stat[0]["blocks_512"].as_u64().unwrap()
    };
    // Units 1, 255 to 258 and the last one; in small files all.
    let of = ["/stored", "/sparse", "/zeros", "/small"].map(blocks);
    assert_eq!(of, [6 * 8, 6 * 8, 0, 10 * 8]);
}

#[test]
fn a_slash_before_names_is_told() {
    if !has("tar") {
        skip!("no tar");
    }
    let scratch = Scratch::new();
    let (archive, image, file) =
        (scratch.path("archive"), scratch.path("image"), scratch.path("file"));
    fs::write(&file, "text").unwrap();
    let mut pack = system("tar");
    assert!(pack.arg("-Pcf").arg(&archive).arg(&file).status().unwrap().success());
    let words = ["mkfs".into(), "-d".into(), archive.into_os_string(), image.clone().into()];
    let said = String::from_utf8(run(words).stderr).unwrap();
    assert_eq!(said.lines().filter(|line| line.contains("slash before them")).count(), 1, "{said}");
    assert_eq!(run_ok(["cat".into(), common::at(&image, file.to_str().unwrap())]), b"text");
}

/// Members that are unusual, and what the tree has of them.
#[test]
fn names_resolve_within_the_tree() {
    let scratch = Scratch::new();
    let (archive, image) = (scratch.path("archive"), scratch.path("image"));
    let members = [
        ("/absolute", "1"),
        ("no/parent/here", "2"),
        ("out -> ../../../..", ""),
        ("out/in the top", "3"),
        ("lib -> /usr/lib", ""),
        ("lib/x", "4"),
        ("twice", "first"),
        ("kept == twice", ""),
        ("twice", "second"),
        ("dir/a", "5"),
        ("dir/", ""),
        ("gone/a", "6"),
        ("gone", "a file"),
        ("self", "7"),
        ("self == self", ""),
        (".wh.kept", "no layer: a name as any"),
    ];
    fs::write(&archive, tar(&members)).unwrap();
    run_ok(mkfs(&["--shrink"], &archive, &image));
    assert_clean(&image);
    let cat = |path: &str| String::from_utf8(run_ok(["cat".into(), common::at(&image, path)]));
    for (path, want) in [
        ("/absolute", "1"),
        ("/no/parent/here", "2"),
        ("/in the top", "3"),
        ("/usr/lib/x", "4"),
        ("/twice", "second"),
        ("/kept", "first"),
        ("/dir/a", "5"),
        ("/gone", "a file"),
        ("/self", "7"),
        ("/.wh.kept", "no layer: a name as any"),
    ] {
        assert_eq!(cat(path).unwrap(), want, "{path}");
    }
    // It has what the archive says of it, and implied directories are root's.
    let owner = |path: &str| {
        let stat = ["stat".into(), "--json".into(), common::at(&image, path)];
        let stat: serde_json::Value = serde_json::from_slice(&run_ok(stat)).unwrap();
        (stat[0]["uid"].as_u64(), stat[0]["gid"].as_u64())
    };
    assert_eq!(owner("/dir"), (Some(10), Some(110)));
    assert_eq!(owner("/no/parent"), (Some(0), Some(0)));
}

#[test]
fn what_cannot_be_used_is_one_line_and_leaves_nothing() {
    let scratch = Scratch::new();
    let (archive, image) = (scratch.path("archive"), scratch.path("image"));
    let mut parent = tar(&[("ab/x", "")]);
    // With the sum of its bytes, a header of another path.
    parent[..2].copy_from_slice(b"..");
    let sum: u32 = parent[..512].iter().map(|byte| u32::from(*byte)).sum::<u32>()
        - parent[148..156].iter().map(|byte| u32::from(*byte)).sum::<u32>()
        + 8 * 32;
    parent[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut cut = tar(&[("a", "content")]);
    cut.truncate(700);
    let bad = [
        (parent, "'..' in its name"),
        (cut, "truncated"),
        (tar(&[("a == b", "")]), "a: is a hard link to b, which is not there"),
        (tar(&[("d/", ""), ("a == d", "")]), "hard link to a directory"),
        (tar(&[("a", ""), ("a/b", "")]), "a/b: lies below what is no directory"),
        (tar(&[("a -> b", ""), ("b -> a", ""), ("a/x", "")]), "too many symbolic links"),
        (vec![b'x'; 1024], "not a tar archive"),
        (b"short".to_vec(), "not a tar archive"),
        (Vec::new(), "is empty"),
        (b"BZh91AY&SY".to_vec(), "bzip2"),
        (tar(&[("./oci-layout", ""), ("blobs/", ""), ("index.json", "")]), "tar -C DIR -xf"),
        (tar(&[("x/layer.tar", ""), ("manifest.json", "")]), "skopeo copy docker-archive:"),
    ];
    for (bytes, why) in bad {
        fs::write(&archive, bytes).unwrap();
        run_fails(mkfs(&[], &archive, &image), why);
        assert!(!image.exists(), "{why}");
    }
    run_fails(mkfs(&[], &scratch.path("none"), &image), "no such file");
    run_fails(mkfs(&["--ref", "x"], &archive, &image), "no OCI image layout");
}

/// Damaged archives give an image that is whole, or one line.
#[test]
fn damaged_archives_make_no_damaged_image() {
    let scratch = Scratch::new();
    let (archive, image) = (scratch.path("archive"), scratch.path("image"));
    let whole = tar(&[
        ("./", ""),
        ("dir/", ""),
        ("dir/file", "some content"),
        ("dir/link -> ../file", ""),
        ("again == dir/file", ""),
        (&format!("{}/long", "x".repeat(120)), "a name in a header of its own"),
    ]);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        usize::try_from(random % below as u64).unwrap()
    };
    let mut made = 0;
    for round in 0..60 {
        let mut bytes = whole.clone();
        let header = next(bytes.len() / 512) * 512;
        for _ in 0..=next(16) {
            bytes[header + next(345)] = [0, b'/', b'.', b'7', 0xff, b'1'][next(6)];
        }
        // Else nearly all would end at the sum of the header's bytes.
        let block = &mut bytes[header..header + 512];
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        fs::write(&archive, &bytes).unwrap();
        let output = run(mkfs(&[], &archive, &image));
        let said = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(0) => {
                made += 1;
                assert_clean(&image);
                fs::remove_file(&image).unwrap();
            }
            code => {
                assert_eq!((code, said.lines().count()), (Some(1), 1), "round {round}: {said}");
                assert!(said.starts_with("uext4: mkfs: "), "round {round}: {said}");
                assert!(!image.exists(), "round {round}");
            }
        }
    }
    assert!((5..55).contains(&made), "{made} of 60 archives were taken");
}
