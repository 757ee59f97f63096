//! Well-formed archives that are made to do harm, entry by entry.
//!
//! Every entry is of a [`Sort`]: what import takes as it is, what an option allows, what is
//! refused. Most archives have but entries of the first two sorts, so that the calls end well and
//! the image that they filled can be judged.

use super::entry::{BLOCK, Entry, number};
use crate::structure_damage::Mutator;

/// What import does with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Sort {
    /// It is taken: hostile, and yet data.
    Taken,
    /// It is taken with `--absolute-names` or `--follow-links`.
    Allowed,
    /// It is refused.
    Refused,
}

/// Of paths with more levels than there are inodes for, or than verbs that walk enter.
pub(super) const TOO_DEEP: &str = "a path that is too deep";

/// Of names that no option allows.
pub(super) const PARENTS: &str = "names with ..";
/// Of archives that may have lost their last entries.
pub(super) const CUT: &str = "cut at the end";

type Recipe = (Sort, &'static str, fn(&mut Mutator) -> Vec<Entry>);

/// What archives are made of.
const RECIPES: &[Recipe] = &[
    (Sort::Taken, "links that lead out", links_out),
    (Sort::Taken, "one name of several types", several_types),
    (Sort::Taken, "a directory that becomes a link", directory_to_link),
    (Sort::Taken, "a link that becomes a directory", link_to_directory),
    (Sort::Taken, "hard links to what came before", hard_links),
    (Sort::Taken, "devices", devices),
    (Sort::Taken, "strange names", strange_names),
    (Sort::Taken, "names of 255 bytes", |m| vec![long(m, 255)]),
    (Sort::Taken, "a deep path", deep),
    (Sort::Taken, "a sparse file", sparse),
    (Sort::Taken, "records of pax", taken_records),
    (Sort::Taken, "numbers at their limits", limits),
    (Sort::Taken, "many small files of one name", one_name),
    (Sort::Taken, "modes of the target itself", target),
    (Sort::Allowed, "absolute names", absolute),
    (Sort::Allowed, "names behind links", behind_links),
    (Sort::Refused, PARENTS, parents),
    (Sort::Refused, "hard links to nothing", dangling),
    (Sort::Refused, "names of 256 bytes", |m| vec![long(m, 256)]),
    (Sort::Refused, "lengths that nothing follows", lengths),
    (Sort::Refused, "maps that overlap", overlaps),
    (Sort::Refused, "records that mean nothing", refused_records),
    (Sort::Refused, "unknown types", unknown),
    (Sort::Refused, TOO_DEEP, too_deep),
];

/// An archive of some recipes, and what it is. `outside`: the path of what nothing may touch.
pub(super) fn crafted(mutator: &mut Mutator, outside: &[u8]) -> (Vec<u8>, String) {
    // Half of the archives are taken as they are.
    let worst = *mutator.pick(&[Sort::Taken, Sort::Taken, Sort::Allowed, Sort::Refused]);
    let recipes: Vec<&Recipe> = RECIPES.iter().filter(|(sort, ..)| *sort <= worst).collect();
    let is_pax = mutator.below(2) == 0;
    let (mut bytes, mut what) = (Vec::new(), Vec::<&str>::new());
    let count = 1 + mutator.below(5);
    for n in 0..count {
        // The last one is of the worst sort: what is behind an entry that ends all is not tried.
        let pool: Vec<&&Recipe> = match n + 1 == count {
            true => recipes.iter().filter(|(sort, ..)| *sort == worst).collect(),
            // One refusal alone, so that a missing one shows in the status.
            false => recipes.iter().filter(|(sort, ..)| *sort != Sort::Refused).collect(),
        };
        let (_, name, make) = **mutator.pick(&pool);
        what.push(name);
        for mut entry in make(mutator) {
            for text in [&mut entry.name, &mut entry.link] {
                if text == b"OUTSIDE" {
                    *text = outside.to_vec();
                }
            }
            entry.write(is_pax, &mut bytes);
        }
    }
    match mutator.below(12) {
        // No end, as archives have that were cut between entries.
        0 => what.push("no end"),
        1 => {
            let cut = mutator.below(bytes.len().min(4 * BLOCK));
            bytes.truncate(bytes.len() - cut);
            what.push(CUT);
        }
        _ => bytes.resize(bytes.len() + 2 * BLOCK, 0),
    }
    (bytes, what.join(", "))
}

const OUT: &[&str] = &["..", "../..", "../sentinel", "/", "/dev/shm", "OUTSIDE", ".", "a", "dir"];
const NAMES: &[&str] = &["a", "b", "dir", "dir/a", "dir/b", "some/x", "names", "target", "fast"];

fn some(mutator: &mut Mutator) -> &'static str {
    let names = ["a", "b", "c", "d/e", "d/f", "dir/g/h", "target", "some/y"];
    names[mutator.below(names.len())]
}

fn links_out(m: &mut Mutator) -> Vec<Entry> {
    (0..1 + m.below(6)).map(|n| Entry::link(format!("out{n}"), m.pick(OUT))).collect()
}

/// One name again and again: the last entry counts, whatever there was. No directory of these
/// has anything in it, for such a one does not give way.
fn several_types(m: &mut Mutator) -> Vec<Entry> {
    let name = format!("several{}", m.below(3));
    let mut kinds = Vec::new();
    for _ in 0..2 + m.below(6) {
        kinds.push(*m.pick(b"0234570"));
    }
    let made = kinds.into_iter().map(|kind| match kind {
        b'0' => Entry::file(&name, m.below(300_000)),
        b'2' => Entry::link(&name, m.pick(OUT)),
        kind => Entry::new(kind, &name),
    });
    made.collect()
}

fn directory_to_link(m: &mut Mutator) -> Vec<Entry> {
    let name = format!("swapped{}", m.below(3));
    vec![Entry::new(b'5', &name), Entry::link(&name, m.pick(OUT)), Entry::file("after", 10)]
}

fn link_to_directory(m: &mut Mutator) -> Vec<Entry> {
    let name = format!("swap{}", m.below(3));
    let below = format!("{name}/sentinel");
    vec![
        Entry::link(&name, m.pick(OUT)),
        Entry::new(b'5', &name),
        Entry::file(below, m.below(2000)),
    ]
}

fn hard_links(m: &mut Mutator) -> Vec<Entry> {
    let first = format!("first{}", m.below(2));
    let mut entries = match m.below(3) {
        0 => vec![Entry::link(&first, m.pick(OUT))],
        1 => vec![Entry { kind: b'6', ..Entry::file(&first, 0) }],
        _ => vec![Entry::file(&first, m.below(400_000))],
    };
    for n in 0..1 + m.below(5) {
        let mut entry = Entry::hard(format!("linked{n}"), &first);
        if m.below(3) == 0 {
            // Of pax: a hard link that brings the content again.
            entry.content = vec![b'h'; m.below(5000)];
        }
        entries.push(entry);
    }
    if m.below(3) == 0 {
        // A link to itself, and the first one replaced after others were linked to it.
        entries.push(Entry::hard(&first, &first));
        entries.push(Entry::file(&first, 5));
    }
    entries
}

fn devices(m: &mut Mutator) -> Vec<Entry> {
    let numbers = [(0, 0), (1, 1), (8, 0), (255, 255), (4095, 1_048_575), (1, 0), (259, 300)];
    let count = 1 + m.below(40);
    let made = (0..count).map(|n| Entry {
        device: *m.pick(&numbers),
        mode: 0o6777,
        ..Entry::new(*m.pick(b"3467"), format!("devices/{n}"))
    });
    made.collect()
}

fn strange_names(m: &mut Mutator) -> Vec<Entry> {
    let names: &[&[u8]] = &[
        b"new\nline",
        b"\x1b[31mred\x07",
        b"\xff\xfe\x80",
        b" ",
        b"-rf",
        b"*",
        b"...",
        b"a\\b",
        b"\xe2\x80\xaegpj.exe",
        b"lost+found",
        b"i.img:/x",
        b".wh.a",
        b".wh..wh..opq",
        b"\x01\x02\x7f",
        b"//dup//./name",
    ];
    let mut entries = Vec::new();
    for _ in 0..1 + m.below(6) {
        let name = *m.pick(names);
        entries.push(match m.below(3) {
            _ if name == b"lost+found" => Entry::new(b'5', name),
            0 => Entry::link(format!("strange{}", m.below(9)), name),
            1 => Entry::file([b"strange/", name].concat(), m.below(100)),
            _ => Entry::new(b'5', [b"stranger/", name].concat()),
        });
    }
    entries
}

/// A part of that many bytes.
fn long(m: &mut Mutator, len: usize) -> Entry {
    let name = "l".repeat(len);
    match m.below(3) {
        0 => Entry::new(b'5', name),
        1 => Entry::file(format!("long/{name}"), 10),
        _ => Entry::file(format!("{name}/{name}"), 10),
    }
}

fn deep(m: &mut Mutator) -> Vec<Entry> {
    let levels = *m.pick(&[50, 300, 1000, 3000]);
    vec![Entry::file(format!("{}leaf", "d/".repeat(levels)), 3)]
}

fn too_deep(m: &mut Mutator) -> Vec<Entry> {
    let levels = *m.pick(&[10_000, 16_000, 40_000]);
    vec![Entry::file(format!("{}leaf", "d/".repeat(levels)), 3), Entry::file("after", 3)]
}

/// A sparse file with a map of pax 0.1, 1.0 or GNU's.
fn sparse(m: &mut Mutator) -> Vec<Entry> {
    let name = format!("sparse{}", m.below(3));
    let len: u64 = *m.pick(&[0, 1, 4096, 1 << 20, 1 << 30, (1 << 32) - 4096]);
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    let mut at = 0;
    for _ in 0..m.below(20) {
        let start = at + m.below(70_000) as u64;
        let end = start + m.below(9000) as u64;
        if end > len {
            break;
        }
        ranges.push((start, end - start));
        at = end;
    }
    vec![sparse_of(m, &name, len, &ranges)]
}

fn sparse_of(m: &mut Mutator, name: &str, len: u64, ranges: &[(u64, u64)]) -> Entry {
    let stored = ranges.iter().fold(0_u64, |sum, (_, len)| sum.saturating_add(*len));
    let mut content = vec![b's'; usize::try_from(stored).unwrap_or(0).min(1 << 20)];
    match m.below(3) {
        0 => {
            let map: Vec<String> = ranges.iter().map(|(at, len)| format!("{at},{len}")).collect();
            let entry = Entry { content, ..Entry::new(b'0', name) };
            let entry = entry.with("GNU.sparse.major=0").with("GNU.sparse.minor=1");
            entry
                .with(format!("GNU.sparse.size={len}"))
                .with(format!("GNU.sparse.map={}", map.join(",")))
        }
        1 => {
            let mut map = format!("{}\n", ranges.len());
            ranges.iter().for_each(|(at, len)| map.push_str(&format!("{at}\n{len}\n")));
            let mut map = map.into_bytes();
            map.resize(map.len().next_multiple_of(BLOCK), 0);
            map.append(&mut content);
            let entry = Entry { content: map, ..Entry::new(b'0', "GNUSparseFile.0/x") };
            let entry = entry.with("GNU.sparse.major=1").with("GNU.sparse.minor=0");
            entry.with(format!("GNU.sparse.realsize={len}")).with(format!("GNU.sparse.name={name}"))
        }
        _ => {
            // Four ranges have room in the header; the rest is left out.
            let ranges = &ranges[..ranges.len().min(4)];
            let stored = ranges.iter().fold(0_u64, |sum, (_, len)| sum.saturating_add(*len));
            content.truncate(usize::try_from(stored).unwrap_or(0));
            let mut fields = vec![(257, b"ustar  \0".to_vec()), (483, number(len, 12))];
            for (index, (at, len)) in ranges.iter().enumerate() {
                fields.push((386 + 24 * index, number(*at, 12)));
                fields.push((398 + 24 * index, number(*len, 12)));
            }
            Entry { content, fields, ..Entry::new(b'S', name) }
        }
    }
}

/// Ranges that overlap, go back, exceed the file, or are more than numbers hold.
fn overlaps(m: &mut Mutator) -> Vec<Entry> {
    let maps: &[(u64, &[(u64, u64)])] = &[
        (8192, &[(0, 4096), (100, 4096)]),
        (8192, &[(4096, 10), (0, 10)]),
        (100, &[(0, 200)]),
        (1 << 62, &[(1 << 61, 10)]),
        (u64::MAX >> 1, &[((u64::MAX >> 1) - 5, 5)]),
        (8192, &[(u64::MAX >> 1, u64::MAX >> 1)]),
        (8192, &[(0, 0), (0, 0), (0, 1 << 40)]),
    ];
    let (len, ranges) = *m.pick(maps);
    vec![sparse_of(m, "overlap", len, ranges), Entry::file("after", 10)]
}

fn with_records(m: &mut Mutator, of: &[&str]) -> Vec<Entry> {
    let mut entry = match m.below(4) {
        0 => Entry::new(b'5', "recorded"),
        1 => Entry::link("recorded link", "a"),
        _ => Entry::file(some(m), m.below(3000)),
    };
    for _ in 0..1 + m.below(5) {
        let text = *m.pick(of);
        // Access lists belong to files and directories.
        if entry.kind != b'2' || !text.starts_with("SCHILY") {
            entry = entry.with(text);
        }
    }
    if m.below(5) == 0 {
        // For all that follow.
        let content = super::entry::record(b"comment=global");
        return vec![Entry { content, ..Entry::new(b'g', "global") }, entry];
    }
    vec![entry]
}

fn taken_records(m: &mut Mutator) -> Vec<Entry> {
    with_records(
        m,
        &[
            "path=renamed/by a record",
            "path=./with\nline",
            "linkpath=../../etc/passwd",
            "mtime=-1",
            "mtime=0.000000001",
            "mtime=9999999999.123456789123",
            "atime=4294967296",
            "ctime=1.5",
            "uid=4294967294",
            "gid=65536",
            "uname=no such name",
            "uname=../../etc",
            "uname=root",
            "gname=\u{fc}",
            "hdrcharset=BINARY",
            "comment=\u{1b}[0m",
            "SCHILY.xattr.user.a=\u{0}\n=",
            "SCHILY.xattr.user.empty=",
            "SCHILY.xattr.trusted.overlay.opaque=y",
            "SCHILY.xattr.security.selinux=x:y:z",
            "SCHILY.acl.access=user::rwx,user:7:rwx,group::r-x,mask::rwx,other::r--",
            "LIBARCHIVE.xattr.user.b%0a=AQID",
            "SCHILY.xattr.com.apple.provenance=x",
            "SCHILY.dev=1",
            "unknown.key=x",
            "LIBARCHIVE.creationtime=1",
        ],
    )
}

fn refused_records(m: &mut Mutator) -> Vec<Entry> {
    let mut entries = with_records(
        m,
        &[
            "path=../../sentinel",
            "path=",
            "path=a\u{0}b",
            "linkpath=",
            "size=99999999999999999999",
            "size=-1",
            "size=9223372036854775808",
            "mtime=nan",
            "mtime=99999999999999",
            "uid=4294967296",
            "uid=-1",
            "SCHILY.xattr.system.data=x",
            "SCHILY.xattr.=x",
            "SCHILY.xattr.user.=x",
            "SCHILY.acl.access=user::rwx,user:7:rwx",
            "SCHILY.acl.default=nonsense",
            "GNU.sparse.major=1",
            "GNU.sparse.major=7",
            "GNU.sparse.realsize=18446744073709551615",
            "GNU.sparse.map=0,1,8191,1",
            "GNU.sparse.name=../sentinel",
            "no key",
        ],
    );
    if m.below(4) == 0 {
        let content = vec![b'9'; 1 + m.below(2000)];
        entries.push(Entry { content, ..Entry::new(b'x', "no records") });
        entries.push(Entry::file("a", 3));
    }
    if m.below(4) == 0 {
        // Two of a kind before one entry, and one before none.
        for kind in [b'L', b'L', b'x', b'g', b'K'] {
            entries.push(Entry { content: b"7 a=bc\n".to_vec(), ..Entry::new(kind, "twice") });
        }
    }
    entries
}

fn limits(m: &mut Mutator) -> Vec<Entry> {
    let mut entry = Entry::file(some(m), m.below(600_000));
    match m.below(5) {
        0 => entry.owner = *m.pick(&[0, 65_535, 65_536, 0o7_777_777, (1 << 32) - 2]),
        1 => {
            entry.mtime =
                *m.pick(&[0, (1 << 31) - 1, 1 << 31, (1 << 33) - 1, (1 << 34) - (1 << 31) - 1])
        }
        2 => entry.mode = *m.pick(&[0, 0o7777, 0o100_644, 0o6755]),
        3 => entry.kind = *m.pick(&[0, b'7', b'0']),
        _ => {
            entry.content.clear();
            entry.name.push(b'/');
            entry.kind = *m.pick(&[0, b'5', b'0']);
        }
    }
    vec![entry]
}

fn one_name(m: &mut Mutator) -> Vec<Entry> {
    let count = 2 + m.below(200);
    (0..count).map(|n| Entry::file("again", n * 7 % 3000)).collect()
}

fn target(m: &mut Mutator) -> Vec<Entry> {
    let name = *m.pick(&[".", "./", "./."]);
    vec![Entry { mode: *m.pick(&[0, 0o1777, 0o755]), owner: 12, ..Entry::new(b'5', name) }]
}

fn absolute(m: &mut Mutator) -> Vec<Entry> {
    let first = *m.pick(&["/absolute", "//absolute", "/./absolute"]);
    vec![
        Entry::file(first, 100),
        Entry::file("OUTSIDE", m.below(100)),
        Entry::hard(*m.pick(&["linked absolute", "/linked absolute"]), first),
        Entry::link("link absolute", "/absolute"),
    ]
}

fn behind_links(m: &mut Mutator) -> Vec<Entry> {
    let to = *m.pick(&["dirs", "./dirs", "/dirs", "../dirs", "../../dirs", "/..", "/", "."]);
    vec![
        Entry::new(b'5', "dirs"),
        Entry::link("behind", to),
        Entry::file("behind/sentinel", m.below(100)),
        Entry::new(b'5', "behind/below"),
        Entry::file("behind/below/x", 10),
    ]
}

fn parents(m: &mut Mutator) -> Vec<Entry> {
    let names = ["../sentinel", "..", "dir/../../sentinel", "a/..", "./../x", "/../x"];
    let name = *m.pick(&names);
    match m.below(3) {
        0 => vec![Entry::hard("linked out", name)],
        1 => vec![Entry::new(b'5', name), Entry::file("after", 10)],
        _ => vec![Entry::file(name, 100), Entry::file("after", 10)],
    }
}

fn dangling(m: &mut Mutator) -> Vec<Entry> {
    let to = *m.pick(&["not yet", "dir", ".", "", "/", "target/x", "missing/x", "OUTSIDE"]);
    vec![Entry::new(b'5', "dir"), Entry::hard("dangling", to), Entry::file("not yet", 10)]
}

fn lengths(m: &mut Mutator) -> Vec<Entry> {
    let mut entry = match m.below(3) {
        0 => Entry::file(m.pick(NAMES), m.below(5000)),
        1 => Entry::new(*m.pick(b"12345"), m.pick(NAMES)),
        _ => Entry::new(*m.pick(b"xgLKS"), "a"),
    };
    entry.len = Some(*m.pick(&[1 << 13, 1 << 33, 1 << 62, (1 << 63) - 1, 1 << 63, u64::MAX]));
    if m.below(4) == 0 {
        entry.fields.push((124, b"-0000000001\0".to_vec()));
    }
    vec![entry, Entry::file("after", 10)]
}

fn unknown(m: &mut Mutator) -> Vec<Entry> {
    let kind = *m.pick(b"VMDNAXZI8\x01\xff");
    vec![Entry { kind, ..Entry::file("unknown", m.below(2000)) }, Entry::file("after", 10)]
}
