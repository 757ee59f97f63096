//! Hostile streams: each costs little memory, ends, and is told in one line.

use std::io::{Cursor, Write};

use super::*;
use crate::compression::Encoder;
use crate::entry::Xattr;
use crate::extended::record;
use crate::header::NewHeader;
use crate::writer::Writer;

/// A header and its content.
fn member(type_byte: u8, name: &str, content: &[u8]) -> Vec<u8> {
    let mut header = NewHeader::new(type_byte, name.as_bytes());
    header.size(content.len() as u64);
    blocks(header, content)
}

fn linked(type_byte: u8, name: &str, target: &[u8]) -> Vec<u8> {
    let mut header = NewHeader::new(type_byte, name.as_bytes());
    header.link(target);
    header.finish().to_vec()
}

fn blocks(header: NewHeader, content: &[u8]) -> Vec<u8> {
    let mut bytes = header.finish().to_vec();
    bytes.extend(content);
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    bytes
}

fn pax(records: &[(&str, &[u8])]) -> Vec<u8> {
    let records: Vec<u8> =
        records.iter().flat_map(|(key, value)| record(key.as_bytes(), value)).collect();
    member(b'x', "PaxHeaders/x", &records)
}

/// What came: names, bytes of contents, refusals, and the error.
fn outcome(bytes: Vec<u8>) -> (Vec<String>, u64, Option<Error>) {
    let mut reader = match Reader::new(Box::new(Cursor::new(bytes))) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), 0, Some(error)),
    };
    let (mut told, mut total) = (Vec::new(), 0);
    let mut buffer = [0; 700];
    loop {
        let member = match reader.next_member() {
            Ok(Some(member)) => member,
            Ok(None) => return (told, total, None),
            Err(error) => return (told, total, Some(error)),
        };
        match member {
            Member::Entry(entry) => told.push(entry.path.to_string()),
            Member::Refused(Refused { name, why }) => {
                told.push(format!("{} {why}", String::from_utf8_lossy(&name)));
            }
        }
        loop {
            match reader.read(&mut buffer) {
                Ok(Some((_, count))) => total += count as u64,
                Ok(None) => break,
                Err(error) => return (told, total, Some(error)),
            }
        }
    }
}

fn ended(parts: &[Vec<u8>]) -> Vec<u8> {
    [&parts.concat()[..], &[0; 2 * BLOCK]].concat()
}

/// An entry that is refused; the one behind it comes all the same.
#[test]
fn entries_are_refused_one_by_one() {
    let overlapping = [("GNU.sparse.size", &b"100"[..]), ("GNU.sparse.map", b"0,20,10,20")];
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (member(b'0', "../x", b"1"), "../x has '..' in its name"),
        (member(b'0', "a/../../x", b"1"), "has '..' in its name"),
        (member(b'0', "", b"1"), " has an empty name"),
        (member(b'0', ".", b"1"), ". is the target directory itself"),
        ([pax(&[("path", b"a\0b")]), member(b'0', "x", b"1")].concat(), "has a zero byte"),
        ([pax(&[("path", &[b'n'; 256])]), member(b'0', "x", b"")].concat(), "more than 255 bytes"),
        (linked(b'1', "x", b"../../etc/passwd"), "is a hard link to a file that has '..'"),
        (linked(b'1', "x", b"/"), "is a hard link to the target directory"),
        (linked(b'2', "x", b""), "is a symbolic link with an unusable target"),
        (
            [pax(&[("linkpath", &[b'n'; 5000])]), linked(b'2', "x", b"y")].concat(),
            "longer than 4095",
        ),
        ([pax(&[("uid", b"4294967296")]), member(b'0', "x", b"1")].concat(), "has an owner"),
        ([pax(&[("gid", b"-1")]), member(b'0', "x", b"1")].concat(), "a value of 'gid'"),
        ([pax(&[("mtime", b"soon")]), member(b'0', "x", b"1")].concat(), "a value of 'mtime'"),
        ([pax(&[("SCHILY.acl.access", b"x")]), member(b'0', "x", b"")].concat(), "an unusable ACL"),
        ([pax(&overlapping), member(b'0', "x", &[1; 40])].concat(), "overlap or exceed"),
        (
            [
                pax(&[("GNU.sparse.size", b"5"), ("GNU.sparse.map", b"0,9")]),
                member(b'0', "x", b"123456789"),
            ]
            .concat(),
            "overlap or exceed",
        ),
        (
            [
                pax(&[("GNU.sparse.size", b"50"), ("GNU.sparse.map", b"0,9")]),
                member(b'0', "x", b"12"),
            ]
            .concat(),
            "has 2 bytes, but a map of 9",
        ),
        (
            [pax(&[("SCHILY.xattr.a", &[1; (64 << 10) + 1])]), member(b'0', "x", b"")].concat(),
            "more than 64 KiB",
        ),
        ([pax(&[("uname", &[b'n'; 256])]), member(b'0', "x", b"")].concat(), "a value of 'uname'"),
        (member(b'Z', "x", b"1"), "is of an unknown type, 'Z'"),
        (member(b'M', "x", b"1"), "is the rest of a file from another volume"),
    ];
    for (bytes, want) in cases {
        let (told, _, error) = outcome(ended(&[bytes, member(b'0', "next", b"")]));
        assert!(error.is_none(), "{want}: {error:?}");
        assert!(told.len() == 2 && told[0].contains(want), "{want}: {told:?}");
        assert_eq!(told[1], "next", "{want}");
    }
}

/// What loses the rest of the stream.
#[test]
fn streams_end_with_one_error() {
    let mut exabytes = NewHeader::new(b'0', b"x");
    exabytes.size(1);
    let exabytes = [pax(&[("size", b"6000000000000000000")]), exabytes.finish().to_vec()].concat();
    let mut gigabytes = NewHeader::new(b'x', b"x");
    gigabytes.size(1 << 32);
    let mut name = NewHeader::new(b'L', b"x");
    name.size(1 << 32);
    let map = blocks_of(b"99999999999\n");
    let version = [("GNU.sparse.major", &b"1"[..]), ("GNU.sparse.realsize", b"9")];
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (Vec::new(), "is empty"),
        (vec![b'x'; 4096], "is not a tar archive"),
        (b"PK\x03\x04and more".to_vec(), "is a zip archive"),
        (exabytes, "truncated"),
        ([pax(&[("size", b"18446744073709551615")]), member(b'0', "x", b"")].concat(), "8 EiB"),
        (gigabytes.finish().to_vec(), "extended headers of more than 16 MiB"),
        (pax(&[("comment", &[b'c'; 1 << 20])]).repeat(17), "extended headers of more than 16 MiB"),
        (ended(&[member(b'0', "x", b""), vec![0; BLOCK], member(b'0', "y", b"")]), "zeros in the"),
        ([vec![0; BLOCK], vec![1; BLOCK]].concat(), "is not a tar archive"),
        (name.finish().to_vec(), "name of more than 1 MiB"),
        (member(b'x', "x", b"99 path=a\n"), "malformed record"),
        (ended(&[pax(&version), member(b'0', "x", &map)]), "more than 4194304 ranges"),
        (ended(&[pax(&version), member(b'0', "x", &blocks_of(b"one\n"))]), "malformed map"),
        (ended(&[pax(&[("GNU.sparse.map", b"1,2,3")])]), "malformed map"),
        (ended(&[pax(&[("GNU.sparse.numbytes", b"1")])]), "malformed map"),
        (ended(&[pax(&[("GNU.sparse.map", b"1,18446744073709551615")])]), "malformed map"),
        ([member(b'0', "x", b"1"), vec![b'x'; BLOCK]].concat(), "wrong checksum"),
        (member(b'0', "x", b"1"), "truncated after 1024 bytes"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\x03garbage garbage".to_vec(), "gzip stream is damaged"),
        (b"\x28\xb5\x2f\xfdgarbage garbage".to_vec(), "zstd stream is damaged"),
    ];
    for (bytes, want) in cases {
        let (_, _, error) = outcome(bytes);
        let error = error.unwrap_or_else(|| panic!("{want}: no error")).to_string();
        assert!(error.contains(want) && !error.contains('\n'), "{want}: {error}");
    }
}

/// Fault model: one bit of the last checksum, or the last byte is lost, behind more zeros than tar
/// itself writes.
#[test]
fn checksums_at_the_end_are_compared() {
    let whole = [ended(&[member(b'0', "x", b"1")]), vec![0; 3 << 20]].concat();
    for format in [Format::Gzip, Format::Zstd, Format::Xz] {
        let mut encoder = Encoder::new(format, Vec::new()).unwrap();
        encoder.write_all(&whole).unwrap();
        let bytes = encoder.finish().unwrap();
        let error = |bytes: &[u8]| outcome(bytes.to_vec()).2.map(|error| error.to_string());
        assert_eq!(error(&bytes), None, "{format:?}");
        assert!(error(&bytes[..bytes.len() - 1]).unwrap().contains("truncated"), "{format:?}");
        let mut damaged = bytes.clone();
        damaged[bytes.len() - 4] ^= 1;
        assert!(error(&damaged).unwrap().contains("stream is damaged"), "{format:?}");
        if format != Format::Zstd {
            // As programs fill them that write whole blocks; zstd(1) refuses it.
            assert_eq!(error(&[bytes, vec![0; 600]].concat()), None, "{format:?}");
        }
    }
}

#[test]
fn names_are_not_taken_for_formats_and_end_at_a_zero_byte() {
    for name in ["070701", "BZh", "hsqs", "LZIP", "!<arch>\n"] {
        let (told, _, error) = outcome(ended(&[member(b'0', name, b"1")]));
        assert!(told == [name] && error.is_none(), "{name}: {told:?}, {error:?}");
    }
    let long = ended(&[member(b'L', "L", b"name\0\0rest\0"), member(b'0', "x", b"")]);
    assert_eq!(outcome(long).0, ["name"]);
}

/// GNU tar ends there as well.
#[test]
fn one_block_of_zeros_at_the_end_of_the_stream_is_enough() {
    for zeros in [BLOCK, BLOCK + 100] {
        let (told, _, error) = outcome([member(b'0', "x", b""), vec![0; zeros]].concat());
        assert!(told == ["x"] && error.is_none(), "{error:?}");
    }
}

/// An archive with every kind of header.
fn full() -> Vec<u8> {
    let mut writer = Writer::new(Vec::new());
    let path = |name: &[u8]| TarPath::parse(name).unwrap();
    let sparse = Content::sparse(1 << 40, [0..700, 1 << 30..(1 << 30) + 5]).unwrap();
    for (name, kind, data) in [
        (&b"dir"[..], Kind::Directory, 0),
        (b"dir/file", Kind::File(Content::whole(1500)), 1500),
        (b"sparse", Kind::File(sparse), 705),
        (&[b'n'; 200][..], Kind::File(Content::default()), 0),
        (b"link", Kind::HardLink(path(b"dir/file")), 0),
        (b"symlink", Kind::Symlink(vec![b't'; 150]), 0),
        (b"null", Kind::CharDevice(1, 3), 0),
    ] {
        let mut entry = Entry::new(path(name), kind);
        entry.mtime = Time { secs: 5, nanos: 7 };
        entry.acl_access = Acl::parse(b"user::rwx,user:7:r-x,group::r-x,mask::r-x,other::r-x");
        entry.xattrs = vec![Xattr { name: b"user.a".to_vec(), value: vec![1; 30] }];
        writer.entry(&entry).unwrap();
        writer.data(&vec![b'd'; data]).unwrap();
    }
    let mut old = NewHeader::new(b'S', b"old").finish();
    old[257..265].copy_from_slice(b"ustar  \0");
    old[386..410].copy_from_slice(b"00000001000\x0000000000010\0");
    old[124..136].copy_from_slice(b"00000000010\0");
    old[483..495].copy_from_slice(b"00000010000\0");
    old[148..156].copy_from_slice(b"        ");
    let sum: u32 = old.iter().map(|byte| u32::from(*byte)).sum();
    old[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut bytes = member(b'L', "././@LongLink", &[b'g'; 120]);
    bytes.extend(member(b'0', "g", b"12"));
    bytes.extend(old);
    bytes.extend(blocks_of(b"8 bytes!"));
    bytes.extend(writer.finish().unwrap());
    bytes
}

fn blocks_of(content: &[u8]) -> Vec<u8> {
    let mut bytes = content.to_vec();
    bytes.resize(BLOCK, 0);
    bytes
}

#[test]
fn an_archive_cut_anywhere_is_truncated() {
    let bytes = full();
    let (told, total, error) = outcome(bytes.clone());
    assert!(error.is_none(), "{error:?}");
    assert_eq!((told.len(), total), (9, 2 + 8 + 1500 + 705));
    // Two zero blocks and what fills the record.
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() / BLOCK * BLOCK + BLOCK;
    for len in (0..end).step_by(BLOCK / 4) {
        let (told, _, error) = outcome(bytes[..len].to_vec());
        let error = error.unwrap_or_else(|| panic!("{len} bytes: no error")).to_string();
        let want = match len {
            0 => "is empty",
            1..BLOCK => "is not a tar archive",
            _ => "truncated",
        };
        assert!(error.contains(want), "{len} bytes: {error}");
        assert!(told.iter().all(|told| !told.contains(' ')), "{told:?}");
    }
}

/// Fault model: up to eight bytes are changed anywhere, checksums of headers put right half of the
/// time. No panic, no endless loop, no more content than the stream has.
#[test]
fn mutated_archives_end() {
    let whole = full();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).unwrap()
    };
    let mut fine = 0;
    for _ in 0..4000 {
        let mut bytes = whole.clone();
        for _ in 0..=random(8) {
            let at = random(bytes.len());
            bytes[at] = [0, b'0', b'7', b'=', b'\n', 0xff, b'9', b'/'][random(8)];
        }
        if random(2) == 0 {
            bytes
                .chunks_exact_mut(BLOCK)
                .filter(|block| block[257..].starts_with(b"ustar"))
                .for_each(|block| {
                    block[148..156].copy_from_slice(b"        ");
                    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
                    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
                });
        }
        let len = bytes.len() as u64;
        let (_, total, error) = outcome(bytes);
        assert!(total <= len);
        fine += usize::from(error.is_none());
    }
    assert!(fine > 500, "{fine} of 4000 archives were read to their end");
}
