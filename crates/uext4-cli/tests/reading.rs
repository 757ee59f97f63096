//! `tree`, `find`, `du` and `df` beside the programs whose names they have, on the same image.
//!
//! Fault model: a name left out or told twice, a test of an expression that holds where find(1)
//! says it does not, a figure of space that du(1) or df(1) tells otherwise, damage without end. The
//! image is mounted by the kernel, read-only, as root; what needs no mount is tested without. Not
//! covered: encrypted names.

#[macro_use]
mod common;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use common::kernel::Kernel;
use common::{Scratch, at, has, run_fails, run_ok, shell, system};

/// A tree with names, modes, times, sizes and links for every test.
const MAKE: &str = "
    mkdir -p t/etc/conf.d t/.hidden/deep t/empty t/var/log
    echo conf >t/etc/a.conf; echo Conf >t/etc/B.CONF; echo x >t/etc/conf.d/x.conf
    : >t/etc/nothing; touch -d '2001-02-03 04:05:06 UTC' t/etc/nothing
    dd if=/dev/zero of=t/var/log/big bs=1k count=300 2>/dev/null
    truncate -s 5M t/var/log/sparse
    ln t/var/log/big t/var/second; ln -s ../etc t/var/link; ln -s nowhere t/broken
    chmod 4755 t/etc/a.conf; chmod 600 t/etc/B.CONF; chmod 1777 t/empty
    mkfifo t/fifo; printf 1 >\"t/.hidden/deep/$(printf 'by\\377te')\"; echo 2 >'t/with space'
";

/// An image with the tree at its top.
fn image(scratch: &Scratch) -> Option<PathBuf> {
    shell(MAKE, scratch.dir.path());
    let image = scratch.image("image", 32, &[])?;
    run_ok(["cp".into(), "-r".into(), scratch.path("t").into_os_string(), at(&image, "/")]);
    Some(image)
}

fn lines(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut lines: Vec<Vec<u8>> =
        bytes.split(|byte| *byte == b'\n' || *byte == 0).map(<[u8]>::to_vec).collect();
    lines.sort();
    lines
}

fn uext4<S: AsRef<OsStr>>(verb: &str, place: &OsStr, words: &[S]) -> Vec<u8> {
    let words = words.iter().map(|word| word.as_ref().to_owned());
    let place = [OsString::from(verb), place.to_owned()];
    run_ok(place.into_iter().chain(words))
}

/// What a program says in the top directory of the mounted image, with paths as uext4 has them.
fn program(program: &str, words: &[&str], dir: &Path, place: &str) -> Vec<u8> {
    let output = system(program)
        .args(words.iter().map(|word| if *word == "PLACE" { place } else { word }))
        .current_dir(dir)
        .output()
        .unwrap();
    assert!(output.status.success(), "{program} {words:?}: {output:?}");
    output.stdout
}

/// Expressions that find(1) and `uext4 find` must agree on.
const EXPRESSIONS: &[&str] = &[
    "",
    "-name *.conf",
    "-iname *.conf",
    "-name [!a-z]*",
    "-name *yte",
    "-path */etc/*",
    "-path t/etc/*",
    "-type f",
    "-type d,l",
    "-type p",
    "-size -1k",
    "-size 1",
    "-size +299k -size -301k",
    "-size +1M",
    "-size 1c",
    "-perm 600",
    "-perm -4000",
    "-perm -u+s",
    "-perm /022",
    "-perm /u=s,o+t",
    "-links 2",
    "-links +2",
    "-user 0 -type f",
    "-uid 0 -gid 0 -links -2",
    "-empty",
    "-newer t/etc/nothing",
    "! -newer t/etc/nothing",
    "-mtime +1000",
    "-mtime -1",
    "-mmin -100000",
    "-maxdepth 1",
    "-mindepth 2 -maxdepth 2",
    "-lname *etc",
    "-name etc -prune -o -type f -print",
    "-name etc -prune -o -print0",
    "-depth -name etc -prune -o -print",
    "-name ??",
    "( -name a.conf -o -name x.conf ) -size 1 -print",
    "-not -type f -a -not -type d",
    "-type d -name .hidden -print -o -name fifo",
    "-false , -name fifo",
    "-xdev -depth -name x.conf",
    "-false -o ! ! -name fifo",
];

#[test]
fn as_find_finds() {
    let scratch = Scratch::new();
    let Some(image) = image(&scratch) else { skip!("no mke2fs") };
    let top = at(&image, "/t");
    for expression in EXPRESSIONS {
        let words: Vec<&str> = expression.split_whitespace().collect();
        // The tree on the host: cp keeps names, modes, owners and times.
        let mut theirs = vec!["PLACE"];
        theirs.extend(&words);
        if !common::is_root() && expression.contains(" 0") {
            continue;
        }
        let want = program("find", &theirs, scratch.dir.path(), "t");
        let ours: Vec<OsString> = words
            .iter()
            .map(|word| match *word {
                "t/etc/nothing" => at(&image, "/t/etc/nothing"),
                "t/etc/*" => "/t/etc/*".into(),
                word => word.into(),
            })
            .collect();
        let found = uext4("find", &top, &ours);
        let with_slash =
            |line: Vec<u8>| if line.is_empty() { line } else { [b"/", &line[..]].concat() };
        let want: Vec<_> = lines(&want).into_iter().map(with_slash).collect();
        assert_eq!(lines(&found), want, "{expression}");
    }
    // The order is that of the bytes, and -depth and -quit are obeyed in it.
    let found = uext4("find", &at(&image, "/t/etc"), &["-depth", "-type", "f,d"]);
    let want =
        "/t/etc/B.CONF /t/etc/a.conf /t/etc/conf.d/x.conf /t/etc/conf.d /t/etc/nothing /t/etc ";
    assert_eq!(String::from_utf8(found).unwrap().replace('\n', " "), want);
    let found = uext4("find", &top, &["-name", "*.conf", "-print", "-quit"]);
    assert_eq!(found, b"/t/etc/a.conf\n");
    // An image without a path is its root; several places are searched one after the other.
    let found = uext4("find", image.as_os_str(), &["-maxdepth", "1"]);
    assert_eq!(found, b"/\n/lost+found\n/t\n");
}

#[test]
fn expressions_that_are_none() {
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 8, &[]) else { skip!("no mke2fs") };
    for (expression, want) in [
        ("-nme x", "unknown word '-nme'"),
        ("-name", "-name needs a value"),
        ("-type x", "-type: want letters of f, d, l, b, c, p, s, not 'x'"),
        ("-size 1q", "-size: want a number, with a suffix"),
        ("-size ++1", "-size: want a number"),
        ("-links many", "-links: want a number, not 'many'"),
        ("-perm rwx", "-perm: want a mode"),
        ("-user nobody9", "-user: invalid user: 'nobody9'"),
        ("-newer /no/such/file", "/no/such/file: no such file"),
        ("( -true", "a ')' is missing"),
        ("-true )", "unexpected ')'"),
        ("-true -o", "ends where a test is wanted"),
        ("-exec rm {} ;", "-exec: runs programs"),
        ("-delete", "-delete: changes the image"),
        ("-maxdepth x", "-maxdepth wants a number"),
    ] {
        let words = expression.split_whitespace().map(OsString::from);
        run_fails(["find".into(), image.clone().into_os_string()].into_iter().chain(words), want);
    }
    let deep = std::iter::repeat_n(OsString::from("("), 5000);
    let find = [OsString::from("find"), image.clone().into_os_string()];
    run_fails(find.into_iter().chain(deep), "too many parentheses");
    run_fails(["find", "-name", "x"].map(OsString::from), "no image is named");
    run_fails([OsString::from("find"), at(&image, "/no")], "not found");
}

#[test]
fn beside_the_kernel() {
    let scratch = Scratch::new();
    let Some(image) = image(&scratch) else { skip!("no mke2fs") };
    let dir = scratch.path("mnt");
    let Some(_kernel) = Kernel::mount_with(&image, &dir, "ro,noload") else {
        skip!("no loop mount")
    };
    let top = at(&image, "/t");
    for words in [
        &[][..],
        &["-a"],
        &["-s"],
        &["-ah"],
        &["-sc"],
        &["-d1"],
        &["-ab"],
        &["-a", "--apparent-size"],
        &["-al"],
        &["-Sl"],
        &["-am"],
        &["--inodes"],
        &["-s0"],
    ] {
        let want = program("du", &[words, &["PLACE"]].concat(), &dir, "t");
        let want: Vec<_> = lines(&want)
            .into_iter()
            .map(|line| {
                let tab = line.iter().position(|byte| *byte == b'\t').unwrap_or(line.len());
                let (figure, name) = line.split_at(tab);
                let is_path = name.starts_with(b"\tt") && !name.starts_with(b"\ttotal");
                let slash = if is_path { &b"\t/"[..] } else { b"" };
                [figure, slash, if is_path { &name[1..] } else { name }].concat()
            })
            .collect();
        let mut found = lines(&uext4("du", &top, words));
        let mut want = want;
        // Which name of a file counts is up to the order of the directory.
        for line in found.iter_mut().chain(&mut want) {
            if line.ends_with(b"/t/var/second") {
                *line = line.strip_suffix(b"second").unwrap().to_vec();
            } else if line.ends_with(b"/t/var/log/big") {
                *line = line.strip_suffix(b"log/big").unwrap().to_vec();
            }
        }
        let is_about_dirs =
            |line: &Vec<u8>| !line.ends_with(b"/t/var/log") && !line.ends_with(b"/t/var/");
        found.retain(is_about_dirs);
        want.retain(is_about_dirs);
        found.sort();
        want.sort();
        assert_eq!(found, want, "du {words:?}");
    }
    for words in [&[][..], &["-h"], &["-i"], &["-ih"], &["-B1"], &["-m"], &["-T"]] {
        let want = program("df", &[words, &["PLACE"]].concat(), &dir, ".");
        let found = uext4("df", image.as_os_str(), words);
        // All but the name in front and the mount at the end; df's titles change with options.
        let figures = |bytes: &[u8]| {
            let text = String::from_utf8(bytes.to_vec()).unwrap();
            let last = text.lines().last().unwrap().split_whitespace();
            last.skip(1).map(str::to_owned).collect::<Vec<_>>()
        };
        let (mut want, mut found) = (figures(&want), figures(&found));
        want.pop();
        found.pop();
        assert_eq!(found, want, "df {words:?}");
    }
    if !has("tree") {
        skip!("no tree(1)")
    }
    for words in
        [&[][..], &["-a"], &["-d"], &["-L", "2"], &["-psa"], &["-ah"], &["-f"], &["--dirsfirst"]]
    {
        let want =
            program("tree", &[words, &["--charset=utf-8", "-N", "PLACE"]].concat(), &dir, "t");
        let ours = [words, &["--charset=utf-8"]].concat();
        let found = String::from_utf8_lossy(&uext4("tree", &top, &ours)).into_owned();
        let want = String::from_utf8_lossy(&want).into_owned();
        // A path there begins without a slash.
        assert_eq!(found.replace("/t", "t"), want.replace("/t", "t"), "tree {words:?}");
    }
}

/// A directory with a second name, which no file system has by right, is entered once.
#[test]
fn a_loop_ends() {
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 8, &[]) else { skip!("no mke2fs") };
    if !has("debugfs") {
        skip!("no debugfs");
    }
    run_ok(["mkdir".into(), "-p".into(), at(&image, "/a/b")]);
    for request in ["ln a a/b/up", "ln a/b twin"] {
        let made = system("debugfs").args(["-w", "-R", request]).arg(&image).output().unwrap();
        assert!(made.status.success());
    }
    let (find, tree, du) = (&["find"][..], &["tree"], &["du"]);
    for words in [find, tree, du, &["chmod", "-R", "go-w"], &["chown", "-R", "7:7"]] {
        let verb = words[0];
        let root = at(&image, "/");
        let output = common::run(words.iter().map(OsStr::new).chain([root.as_os_str()]));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{verb}: {said}");
        assert_eq!(said.lines().count(), 2, "{verb}: {said}");
        assert!(said.contains("/a/b/up: a second name of a directory; run fsck"), "{said}");
    }
}

/// What `--json` says of names that are no text, in all of its words.
#[test]
fn json_loses_no_byte() {
    let scratch = Scratch::new();
    let Some(image) = image(&scratch) else { skip!("no mke2fs") };
    let top = at(&image, "/t");
    let parse = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).unwrap();
    let found = parse(&uext4("find", &top, &["-name", "by*", "--json"]));
    let name = OsStr::from_bytes(b"/t/.hidden/deep/by\xffte");
    let hex: String = name.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(found[0]["path_hex"], hex.as_str());
    assert_eq!(found[0]["kind"], "file");
    assert_eq!(found.as_array().unwrap().len(), 1);
    assert_eq!(parse(&uext4("find", &top, &["-false", "--json"])), serde_json::json!([]));
    let tree = parse(&uext4("tree", &top, &["--json", "-a"]));
    assert_eq!(tree["report"], serde_json::json!({ "directories": 9, "files": 11 }));
    assert_eq!(tree["entries"].as_array().unwrap().len(), 20);
    let du = parse(&uext4("du", &top, &["--json", "-a"]));
    let big = du.as_array().unwrap().iter().find(|row| row["path"] == "/t/var/log/big").unwrap();
    assert_eq!((&big["bytes"], &big["apparent_bytes"]), (&307_200.into(), &307_200.into()));
    let df = parse(&uext4("df", image.as_os_str(), &["--json"]));
    let sum = |key: &str| df[0][key].as_u64().unwrap();
    assert_eq!(sum("used") + sum("available") + sum("reserved"), sum("size"));
}
