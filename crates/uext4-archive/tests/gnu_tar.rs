//! GNU tar as the other side: it writes what [`Reader`] reads, in every format that it has, and
//! reads what [`Writer`] writes.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use uext4_archive::{Acl, Content, Encoder, Entry, Format, Kind, Member, Reader, TarPath, Time};
use uext4_archive::{Writer, Xattr};

/// A tree with what one user can make: names of all lengths, links, holes.
fn tree(root: &Path) {
    fs::create_dir_all(root.join("dir/sub")).unwrap();
    fs::set_permissions(root.join("dir/sub"), fs::Permissions::from_mode(0o2710)).unwrap();
    fs::write(root.join("dir/file"), b"content\n").unwrap();
    fs::set_permissions(root.join("dir/file"), fs::Permissions::from_mode(0o4755)).unwrap();
    fs::write(root.join("empty"), b"").unwrap();
    fs::write(root.join("n".repeat(90)), vec![7; 512]).unwrap();
    fs::hard_link(root.join("dir/file"), root.join("link")).unwrap();
    symlink("../nowhere", root.join("dir/symlink")).unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    for index in 0..40_u8 {
        // More ranges than a header has room for, and than one further block has.
        sparse.write_all_at(&[index + 1; 4096], u64::from(index) * 65_536).unwrap();
    }
    sparse.set_len(5 << 20).unwrap();
    File::create(root.join("hole")).unwrap().set_len(1 << 20).unwrap();
}

fn tar(args: &[&str], dir: &Path) {
    let output = Command::new("tar").args(args).current_dir(dir).output().unwrap();
    assert!(output.status.success(), "tar {args:?}: {output:?}");
}

/// All entries with their contents, filled.
fn read(path: &Path) -> BTreeMap<String, (Entry, Vec<u8>)> {
    let mut reader = Reader::new(Box::new(File::open(path).unwrap())).unwrap();
    let mut found = BTreeMap::new();
    let mut buffer = vec![0; 3000];
    while let Some(member) = reader.next_member().unwrap() {
        let Member::Entry(entry) = member else { panic!("{member:?}") };
        let len = match &entry.kind {
            Kind::File(content) => usize::try_from(content.len()).unwrap(),
            _ => 0,
        };
        let mut bytes = vec![0; len];
        while let Some((at, count)) = reader.read(&mut buffer).unwrap() {
            let at = usize::try_from(at).unwrap();
            bytes[at..at + count].copy_from_slice(&buffer[..count]);
        }
        found.insert(entry.path.to_string(), (*entry, bytes));
    }
    found
}

#[test]
fn every_format_of_gnu_tar_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("tree");
    fs::create_dir(&root).unwrap();
    tree(&root);
    for format in [
        &["--format=v7"][..],
        &["--format=oldgnu"],
        &["--format=gnu"],
        &["--format=gnu", "--sparse"],
        &["--format=ustar", "--numeric-owner"],
        &["--format=posix"],
        &["--format=posix", "--sparse", "--sparse-version=0.0"],
        &["--format=posix", "--sparse", "--sparse-version=0.1"],
        &["--format=posix", "--sparse", "--sparse-version=1.0"],
        &["--format=gnu", "--gzip"],
        &["--format=posix", "--zstd"],
        &["--format=posix", "--xz"],
    ] {
        let archive = dir.path().join("a.tar");
        let mut args = vec!["-cf", archive.to_str().unwrap(), "--sort=name"];
        args.extend(format);
        args.push(".");
        tar(&args, &root);
        let found = read(&archive);
        let has_nanos = format[0] == "--format=posix";
        for (name, (entry, bytes)) in &found {
            let meta = fs::symlink_metadata(root.join(name)).unwrap();
            let nanos = if has_nanos { u32::try_from(meta.mtime_nsec()).unwrap() } else { 0 };
            assert_eq!(entry.mtime, Time { secs: meta.mtime(), nanos }, "{name}, {format:?}");
            assert_eq!(u32::from(entry.mode), meta.mode() & 0o7777, "{name}, {format:?}");
            assert_eq!((entry.uid, entry.gid), (meta.uid(), meta.gid()));
            if let Kind::File(content) = &entry.kind {
                assert_eq!(*bytes, fs::read(root.join(name)).unwrap(), "{name}, {format:?}");
                let is_sparse =
                    format.contains(&"--sparse") && ["hole", "sparse"].contains(&&**name);
                assert_eq!(content.is_sparse(), is_sparse, "{name}, {format:?}");
            }
        }
        let kind = |name: &str| found[name].0.kind.clone();
        assert_eq!(kind("."), Kind::Directory);
        assert_eq!(kind("link"), Kind::HardLink(TarPath::parse(b"dir/file").unwrap()));
        assert_eq!(kind("dir/symlink"), Kind::Symlink(b"../nowhere".to_vec()));
        assert_eq!(found.len(), 10, "{format:?}: {:?}", found.keys());
    }
}

#[test]
fn long_names_and_targets_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let name = format!("{}/{}", "d".repeat(200), "f".repeat(250));
    let root = dir.path().join("tree");
    fs::create_dir_all(root.join("d".repeat(200))).unwrap();
    fs::write(root.join(&name), b"x").unwrap();
    symlink("t".repeat(900), root.join("link")).unwrap();
    for format in ["--format=gnu", "--format=oldgnu", "--format=posix"] {
        let archive = dir.path().join("a.tar");
        tar(&["-cf", archive.to_str().unwrap(), format, "."], &root);
        let found = read(&archive);
        assert_eq!(found[&name].1, b"x", "{format}");
        assert_eq!(found["link"].0.kind, Kind::Symlink("t".repeat(900).into_bytes()), "{format}");
    }
}

/// Entries with what a header cannot hold; GNU tar unpacks them, and reading gives them back.
#[test]
fn what_is_written_is_read_by_tar_and_by_the_reader() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| TarPath::parse(name.as_bytes()).unwrap();
    let long = "l".repeat(180);
    let content = Content::sparse(1 << 20, [4096..8192, 65_536..65_600]).unwrap();
    let mut entries = vec![
        Entry::new(path("."), Kind::Directory),
        Entry::new(path("dir"), Kind::Directory),
        Entry::new(path(&format!("dir/{long}")), Kind::File(Content::whole(5))),
        Entry::new(path("sparse"), Kind::File(content)),
        Entry::new(path("again"), Kind::HardLink(path(&format!("dir/{long}")))),
        Entry::new(path("symlink"), Kind::Symlink("t".repeat(300).into_bytes())),
        Entry::new(path("fifo"), Kind::Fifo),
        Entry::new(path("null"), Kind::CharDevice(1, 3)),
        Entry::new(path("disk"), Kind::BlockDevice(259, 1 << 22)),
    ];
    for entry in &mut entries {
        entry.mode = if entry.kind == Kind::Directory { 0o755 } else { 0o640 };
        (entry.uid, entry.gid) = (3_000_000_000, 5);
        entry.mtime = Time { secs: 1_700_000_000, nanos: 123_456_789 };
        entry.uname = b"someone".to_vec();
    }
    // With the letter that ends a key, and with what stands for it.
    entries[2].xattrs = [&b"user.note"[..], b"user.a=b", b"user.a%3Db"]
        .map(|name| Xattr { name: name.to_vec(), value: b"a=b\0\n".to_vec() })
        .to_vec();
    entries[2].acl_access = Acl::parse(b"user::rw-,user:7:r--,group::r--,mask::r--,other::---");
    entries[2].atime = Some(Time { secs: -2, nanos: 500_000_000 });
    for (name, format) in [
        ("a.tar", Format::Plain),
        ("a.tar.gz", Format::Gzip),
        ("a.tar.zst", Format::Zstd),
        ("a.tar.xz", Format::Xz),
    ] {
        let archive = dir.path().join(name);
        let mut writer =
            Writer::new(Encoder::new(format, File::create(&archive).unwrap()).unwrap());
        for entry in &entries {
            writer.entry(entry).unwrap();
            if let Kind::File(content) = &entry.kind {
                for range in content.ranges() {
                    let len = usize::try_from(range.end - range.start).unwrap();
                    writer.data(&vec![b'a'; len]).unwrap();
                }
            }
        }
        writer.finish().unwrap().finish().unwrap();
        let found = read(&archive);
        assert_eq!(found.len(), entries.len());
        for entry in &entries {
            assert_eq!(found[&entry.path.to_string()].0, *entry);
        }
    }
    let output =
        Command::new("tar").args(["--xattrs", "-tvvf"]).arg(dir.path().join("a.tar")).output();
    let told = String::from_utf8(output.unwrap().stdout).unwrap();
    for name in ["user.note", "user.a=b", "user.a%3Db"] {
        assert!(told.lines().any(|line| line == format!("  x: 5 {name}")), "{name}: {told}");
    }
    // As an ordinary user: no devices.
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    let archive = dir.path().join("a.tar.zst");
    let args =
        ["-xf", archive.to_str().unwrap(), "--no-same-owner", "--exclude=null", "--exclude=disk"];
    tar(&args, &out);
    let sparse = fs::read(out.join("sparse")).unwrap();
    assert_eq!(sparse.len(), 1 << 20);
    assert!(sparse[4096..8192].iter().all(|byte| *byte == b'a') && sparse[8192] == 0);
    assert_eq!(fs::read(out.join("again")).unwrap(), b"aaaaa");
    let meta = fs::metadata(out.join("dir").join(&long)).unwrap();
    assert_eq!((meta.nlink(), meta.mtime_nsec(), meta.mode() & 0o777), (2, 123_456_789, 0o640));
}

/// A file above 8 GiB, of which only the header is looked at.
#[test]
fn a_size_beyond_octal_is_written_and_read() {
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("a.tar");
    let entry = Entry::new(TarPath::parse(b"big").unwrap(), Kind::File(Content::whole(9 << 30)));
    let mut file = File::create(&archive).unwrap();
    let mut writer = Writer::new(&mut file);
    writer.entry(&entry).unwrap();
    let header = fs::metadata(&archive).unwrap().len();
    file.set_len(header + (9 << 30) + 1024).unwrap();
    file.seek(SeekFrom::End(0)).unwrap();
    file.flush().unwrap();
    let mut reader = Reader::new(Box::new(File::open(&archive).unwrap())).unwrap();
    let Some(Member::Entry(found)) = reader.next_member().unwrap() else { panic!("no entry") };
    assert_eq!(*found, entry);
}
