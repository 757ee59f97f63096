//! A folder of evidence that somebody made to harm its reader: a page comes all the same, soon, and
//! says what it leaves out.
//!
//! Fault model: links, FIFOs and folders in place of files; numbers, names and lists that are huge;
//! any value of JSON in place of any other; lines that are cut off.
//!
//! Not covered: a folder that changes while it is read.

use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};

const EVIDENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/evidence");
const LINE: &str = concat!(
    r#"{"experiment":"E3","target":"uext4","variant":"default","store":"ram","path":"natural","#,
    r#""threads":16,"bs":16384,"metric":"iops","value":1000.0,"unit":"1/s","round":1}"#,
    "\n"
);
/// Pages of mutated evidence.
const MUTATIONS: u64 = 60;

fn page(folder: &Path) -> String {
    let html = uext4_report::render(folder).unwrap();
    assert!(html.ends_with("</html>"), "{html}");
    html
}

fn folder(raw: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("raw.jsonl"), raw).unwrap();
    folder
}

#[test]
fn what_is_no_file_is_neither_followed_nor_waited_for() {
    let secret = tempfile::tempdir().unwrap();
    let path = secret.path().join("secret");
    std::fs::write(&path, "{\"states\":7,\"secret\":1}").unwrap();
    let folder = folder(LINE);
    let at = |name: &str| folder.path().join(name);
    symlink(&path, at("crash.json")).unwrap();
    symlink(secret.path(), at("tools")).unwrap();
    std::fs::create_dir(at("latency")).unwrap();
    symlink(&path, at("latency/a.jsonl")).unwrap();
    symlink("/dev/zero", at("explain.json")).unwrap();
    std::fs::create_dir(at("guard.json")).unwrap();
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    for fifo in ["env.json", "latency/b.jsonl"] {
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, at(fifo), kind, mode, 0).unwrap();
    }
    let html = page(folder.path());
    assert!(!html.contains("secret"), "{html}");
    let told = [
        "crash.json: a symbolic link, it is left out",
        "latency/a.jsonl: a symbolic link",
        "explain.json: a symbolic link",
        "env.json: no regular file, it is left out",
        "latency/b.jsonl: no regular file",
        "guard.json: no regular file",
        "tools: a symbolic link",
    ];
    for text in told {
        assert!(html.contains(text), "{text}");
    }
}

#[test]
fn the_report_is_not_written_through_a_link() {
    let victim = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(victim.path(), "mine").unwrap();
    let links: [fn(&Path, &Path) -> std::io::Result<()>; 2] =
        [|from, to| symlink(from, to), |from, to| std::fs::hard_link(from, to)];
    for link in links {
        let folder = folder(&own_and_peer());
        let [report, picture] = [uext4_report::FILE, "ratios.svg"].map(|n| folder.path().join(n));
        for name in [&report, &picture] {
            link(victim.path(), name).unwrap();
        }
        uext4_report::write(folder.path()).unwrap();
        uext4_report::write_picture(folder.path(), &picture).unwrap();
        assert_eq!(std::fs::read(victim.path()).unwrap(), b"mine");
        assert!(std::fs::read_to_string(&report).unwrap().ends_with("</html>"));
        assert!(std::fs::read_to_string(&picture).unwrap().starts_with("<svg"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
    }
}

/// A reader of the old report never sees half of a new one.
#[test]
fn a_report_that_cannot_be_written_leaves_nothing() {
    let folder = folder(LINE);
    std::fs::create_dir(folder.path().join(uext4_report::FILE)).unwrap();
    assert!(uext4_report::write(folder.path()).is_err());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

fn own_and_peer() -> String {
    format!("{LINE}{}", LINE.replace("\"uext4\"", "\"kernel\""))
}

#[test]
fn what_is_too_much_is_left_out_and_told() {
    let folder = folder("");
    let at = |name: &str| folder.path().join(name);
    // 2 GiB that take no room.
    let file = std::fs::File::create(at("plan.json")).unwrap();
    file.set_len(2 << 30).unwrap();
    // As a value of JSON it would take thirty times as much.
    let file = std::fs::File::create(at("explain.json")).unwrap();
    file.set_len(9 << 20).unwrap();
    std::fs::write(at("events.jsonl"), format!("[{}1]\n", "1,".repeat(600_000))).unwrap();
    let mut raw = String::new();
    for round in [1, 2, 1_000_000_000] {
        raw += &LINE.replace("\"round\":1", &format!("\"round\":{round}"));
    }
    for number in 0..5_000 {
        raw += &LINE.replace("E3", &format!("X{number}"));
        raw += &LINE.replace("iops", &format!("metric_{number}"));
    }
    raw += &LINE.replace("E3", &"x".repeat(1000));
    std::fs::write(at("raw.jsonl"), raw).unwrap();
    let many: Vec<Value> = (0..5_000).map(|n| json!({ "figure": n.to_string() })).collect();
    std::fs::write(at("compare.json"), json!({ "rows": many }).to_string()).unwrap();
    std::fs::create_dir_all(at("tools/k")).unwrap();
    for number in 0..3_000 {
        std::fs::write(at(&format!("tools/k/{number}")), "").unwrap();
    }
    let html = page(folder.path());
    let told = [
        "plan.json: 2147483648 bytes are too many",
        "explain.json: 9437184 bytes are too many",
        "events.jsonl, line 1: 1200003 bytes are too many",
        "more than 64 experiments; ",
        "more than 400 metrics; ",
        "left out for names of more than 200 bytes: 1 figure",
        "the first 2000 rows of 5000 are shown",
        "and what follows is not in the report",
        "round 1000000000",
    ];
    for text in told {
        assert!(html.contains(text), "{text}");
    }
    assert!(html.len() < 20_000_000, "{}", html.len());
}

/// The same numbers in every run (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end.max(1) as u64) as usize
    }
}

/// Text of a value in place of another. 1e999 is no number of JSON's readers.
fn strange(random: &mut Random) -> &'static str {
    let all = [
        "null",
        "true",
        "-1",
        "0",
        "1e308",
        "5e-324",
        "-1e308",
        "1e999",
        "1000000000",
        "18446744073709551615",
        "\"\"",
        "\"<b>&\\u0000\"",
        "[]",
        "{}",
        "[[[[[1]]]]]",
        "[null,-1]",
        "{\"a\":{\"b\":[1,{\"c\":null}]}}",
    ];
    all[random.below(all.len())]
}

/// A text with some of its values replaced, or cut off.
fn mutated(text: &str, random: &mut Random) -> String {
    let mut out = text.to_owned();
    for _ in 0..=random.below(6) {
        // What begins behind a colon, a comma or a bracket and ends before the next is a value.
        let ends: Vec<usize> =
            out.match_indices([':', ',', '[', ']', '}']).map(|(at, _)| at).collect();
        if ends.len() < 2 {
            break;
        }
        let at = random.below(ends.len() - 1);
        out.replace_range(ends[at] + 1..ends[at + 1], strange(random));
    }
    if random.below(8) == 0 {
        let mut end = random.below(out.len() + 1);
        while !out.is_char_boundary(end) {
            end -= 1;
        }
        out.truncate(end);
    }
    out
}

/// The files of a folder, with their paths in it.
fn files(folder: &Path, prefix: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type().unwrap().is_dir() {
            all.extend(files(&entry.path(), &format!("{name}/")));
        } else {
            all.push((name, std::fs::read_to_string(entry.path()).unwrap()));
        }
    }
    all
}

#[test]
fn any_value_in_place_of_any_other_gives_a_page() {
    let mut originals = files(Path::new(EVIDENCE), "");
    originals.sort();
    for seed in 1..=MUTATIONS {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in &originals {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            // A few lines of the figures of each experiment are enough, each mutated for itself.
            let text: String = if name.ends_with("raw.jsonl") {
                let lines = text.lines().step_by(5).map(|line| match random.below(4) {
                    0 => mutated(line, &mut random),
                    _ => line.to_owned(),
                });
                lines.map(|line| line + "\n").collect()
            } else {
                mutated(text, &mut random)
            };
            std::fs::write(path, text).unwrap();
        }
        println!("seed {seed}");
        let html = page(folder.path());
        // Packed data may hold these letters, but none of the characters before them.
        let has_no_number = [">", " ", "\"", ",", "("].map(|before| format!("{before}NaN"));
        assert!(!has_no_number.iter().any(|text| html.contains(text)), "seed {seed}");
        assert!(!html.contains(">inf"), "seed {seed}");
    }
}
