//! Archives that are made to do harm, header by header.

use crate::structure_damage::Mutator;

/// Bytes of a header, and the unit of everything in an archive.
pub(super) const BLOCK: usize = 512;

/// Where a ustar header has its checksum.
const CHECKSUM: std::ops::Range<usize> = 148..156;

/// Names that an entry may have.
const NAMES: &[&str] = &[
    "a",
    "dir",
    "dir/",
    "dir/b",
    "dir/b/c",
    "./dir/./b",
    "/etc/passwd",
    "//sentinel",
    "../sentinel",
    "dir/../../sentinel",
    "..",
    ".",
    "",
    "/",
    "link",
    "link/x",
    "link/../x",
    "lost+found",
    "lost+found/x",
    "target",
    "names/x",
];
/// Targets of links.
const TARGETS: &[&str] =
    &["a", "dir", "dir/b", "..", "../..", "../sentinel", "/", "/tmp", "link", ".", "", "missing/x"];
/// Types: files, links, devices, directories, sparse and extended headers, unknown ones.
const TYPES: &[u8] = b"00000\x001122345556671SKLxgVMDNAXZ";

/// An archive of up to 40 such entries, and what it is.
pub(super) fn crafted(mutator: &mut Mutator) -> (Vec<u8>, String) {
    let mut bytes = Vec::new();
    let count = 1 + mutator.below(40);
    for _ in 0..count {
        let kind = *mutator.pick(TYPES);
        let content = match kind {
            b'x' | b'g' => records(mutator),
            b'L' | b'K' => long_name(mutator),
            b'0' | 0 | b'7' | b'S' => vec![b'c'; mutator.below(3 * BLOCK)],
            _ => Vec::new(),
        };
        let mut header = header(kind, content.len(), mutator);
        match mutator.below(12) {
            // Lengths that nothing follows.
            0 => header[124..136].copy_from_slice(LENGTHS[mutator.below(LENGTHS.len())]),
            // The fields of GNU's sparse header.
            1 => header[386..512].fill(u8::try_from(mutator.below(256)).unwrap_or(0)),
            // A prefix.
            2 => header[345..355].copy_from_slice(b"../../pre\0"),
            _ => {}
        }
        seal(&mut header);
        bytes.extend(header);
        bytes.extend(&content);
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    }
    if mutator.below(4) != 0 {
        bytes.resize(bytes.len() + 2 * BLOCK, 0);
    }
    (bytes, format!("{count} crafted entries"))
}

/// Lengths that a header cannot mean: in octal, in base 256, negative.
const LENGTHS: [&[u8; 12]; 5] = [
    b"77777777777\0",
    b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    b"-0000000001\0",
    b"00010000000\0",
];

/// A ustar header without its checksum.
fn header(kind: u8, len: usize, mutator: &mut Mutator) -> Vec<u8> {
    let mut header = vec![0; BLOCK];
    put(&mut header, 0, one(mutator, NAMES));
    put(&mut header, 100, one(mutator, &["0000644\0", "0006755\0", "7777777\0", "zzzz"]));
    put(&mut header, 108, "0000000\0");
    put(&mut header, 116, one(mutator, &["0000000\0", "7777777\0"]));
    put(&mut header, 124, &format!("{len:011o}\0"));
    put(&mut header, 136, one(mutator, &["00000000000\0", "77777777777\0"]));
    header[156] = kind;
    put(&mut header, 157, one(mutator, TARGETS));
    put(&mut header, 257, "ustar\x0000");
    put(&mut header, 265, one(mutator, &["root", "nobody", "no such name"]));
    put(&mut header, 329, "0000010\0");
    put(&mut header, 337, one(mutator, &["0000003\0", "7777777\0"]));
    header
}

/// One of some texts.
fn one(mutator: &mut Mutator, of: &[&'static str]) -> &'static str {
    of[mutator.below(of.len())]
}

fn put(header: &mut [u8], at: usize, text: &str) {
    header[at..at + text.len()].copy_from_slice(text.as_bytes());
}

/// Records of an extended header.
fn records(mutator: &mut Mutator) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..1 + mutator.below(4) {
        let text = one(
            mutator,
            &[
                "path=../../sentinel",
                "path=/abs",
                "path=dir/b",
                "path=",
                "linkpath=/etc/passwd",
                "size=99999999999999999999",
                "size=-1",
                "mtime=9999999999999.5",
                "mtime=nan",
                "uid=4294967296",
                "SCHILY.xattr.security.capability=x",
                "SCHILY.xattr.system.data=x",
                "SCHILY.xattr.=x",
                "SCHILY.acl.access=user::rwx,user:7:rwx",
                "SCHILY.acl.default=nonsense",
                "GNU.sparse.major=1",
                "GNU.sparse.minor=0",
                "GNU.sparse.realsize=18446744073709551615",
                "GNU.sparse.size=8192",
                "GNU.sparse.map=0,1,8191,1",
                "GNU.sparse.map=5,1,0,9",
                "GNU.sparse.name=../sentinel",
                "hdrcharset=BINARY",
            ],
        );
        let record = match mutator.below(6) {
            0 => format!("{} {text}\n", mutator.below(200)),
            _ => record(text),
        };
        bytes.extend(record.into_bytes());
    }
    bytes
}

/// A record with its own length before it.
fn record(text: &str) -> String {
    let mut len = text.len() + 3;
    loop {
        let record = format!("{len} {text}\n");
        if record.len() == len {
            return record;
        }
        len = record.len();
    }
}

/// The content of a long name of GNU's.
fn long_name(mutator: &mut Mutator) -> Vec<u8> {
    let part = "p".repeat(1 + mutator.below(300));
    let name = match mutator.below(3) {
        0 => format!("{}sentinel\0", "../".repeat(mutator.below(40))),
        1 => format!("{part}/{part}\0"),
        _ => "d/".repeat(mutator.below(3000)),
    };
    name.into_bytes()
}

/// Gives a header the checksum that its bytes have.
pub(super) fn seal(header: &mut [u8]) {
    header[CHECKSUM].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}
