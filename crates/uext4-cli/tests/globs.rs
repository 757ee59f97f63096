//! Globs of paths inside images, beside those of bash on the same tree of the host.
//!
//! Fault model: a name that a pattern leaves out or takes besides, an order that is another, a dot
//! that is matched, a link or a loop that is followed, a name with such characters that cannot be
//! named any more, a verb that takes no globs; damage that ends a
//! verb or is passed over in silence.

#[macro_use]
mod common;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Scratch, at, has, run, run_fails, run_ok, shell, system};

const TREE: &str = "
    mkdir -p t/etc/conf.d/deep t/.hidden/sub t/var/log t/empty
    for f in etc/a.conf etc/b.conf etc/c.d etc/conf.d/x.conf etc/conf.d/deep/y.conf etc/.dot.conf \\
        .hidden/sub/z.conf var/log/1 var/log/2 var/log/10 top.conf
    do echo $f >t/$f; done
    ln -s etc t/link; ln -s nowhere t/dangling; ln -s . t/var/loop
    echo star >'t/var/a*b'; echo b >'t/var/a-b'; echo q >'t/var/[q]'; echo r >'t/var/{x,y}'
    printf 1 >\"t/var/$(printf 'by\\377te')\"; echo u >'t/var/\u{e9}'";

/// Patterns below the top of the tree.
const PATTERNS: &[&str] = &[
    "*",
    "etc/*",
    "etc/*.conf",
    "etc/?.conf",
    "etc/[ab].conf",
    "etc/[!a].conf",
    "etc/[a-b]*",
    "etc/{a,b}.conf",
    "etc/{b,a}.conf",
    "{etc,var/log}/*",
    "etc/{a.conf,missing}",
    "etc/{*.conf,*.d}",
    "*/*.conf",
    "*/*/*.conf",
    "**",
    "**/*.conf",
    "**/deep",
    "etc/**",
    "etc/**/*.conf",
    "**/**/x.conf",
    "*/**/[xy].conf",
    ".*/*/*",
    ".hidden/**/*.conf",
    "link/*.conf",
    "d*",
    "*/",
    "etc/*/",
    "var/log/[0-9]",
    "var/log/[0-9]*",
    "var/by*",
    "var/?",
    "var/a\\*?",
    "var/a[*]b",
    "var/[[]q]",
    "var/{\\{x\\,y\\},log}",
    "no*such",
    "no/such/*",
];

fn tree(scratch: &Scratch) -> Option<PathBuf> {
    shell(&TREE.replace("\\u{e9}", "\u{e9}"), scratch.dir.path());
    let image = scratch.path("image");
    run_ok(["mkfs".into(), "-q".into(), image.clone().into_os_string(), OsString::from("16M")]);
    run_ok(["cp".into(), "-r".into(), scratch.path("t").into_os_string(), at(&image, "/")]);
    has("bash").then_some(image)
}

/// What bash makes of a pattern in a directory.
fn bash(pattern: &str, dir: &Path) -> Vec<u8> {
    // Brackets of a pattern that nothing matches stay; a name that is there wins, as everywhere.
    let script = "shopt -s globstar; cd -- \"$1\"; eval \"set -- t/$2\"; printf '/%s\\n' \"$@\"";
    let output = Command::new("bash")
        .args(["-c", script, "bash"])
        .arg(dir)
        .arg(pattern)
        .env("LC_ALL", "C.UTF-8")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

/// Paths by the bytes of their names, as `C.UTF-8` has them too, without a slash at the end.
fn sorted(lines: &[u8]) -> Vec<Vec<u8>> {
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let mut lines: Vec<Vec<u8>> =
        lines.map(|it| it.strip_suffix(b"/").unwrap_or(it).into()).collect();
    lines.sort();
    lines
}

#[test]
fn as_bash() {
    let scratch = Scratch::new();
    let Some(image) = tree(&scratch) else { skip!("no bash") };
    for pattern in PATTERNS {
        let place = at(&image, &format!("/t/{pattern}"));
        let output = run(["find".into(), place, "-maxdepth".into(), "0".into()]);
        let want = sorted(&bash(pattern, scratch.dir.path()));
        let exists = |path: &Vec<u8>| {
            use std::os::unix::ffi::OsStrExt;
            let path = std::ffi::OsStr::from_bytes(path.get(1..).unwrap_or_default());
            scratch.path(path).symlink_metadata().is_ok()
        };
        // What stays as it is written is missing, in one line each.
        let missing = want.iter().filter(|path| !exists(path)).count();
        let mut want: Vec<_> = want.into_iter().filter(exists).collect();
        // bash takes a link for one directory that `**` stands for.
        let through_link = |path: &Vec<u8>| {
            [&b"/t/link/"[..], b"/t/var/loop/"].iter().any(|it| path.starts_with(it))
        };
        want.retain(|path| !pattern.starts_with("**") || !through_link(path));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said.lines().count(), missing, "{pattern}: {said}");
        assert_eq!(output.status.code(), Some(i32::from(missing != 0)), "{pattern}");
        let mut found = sorted(&output.stdout);
        // bash names the directory itself with a final `**`.
        if let (true, Some(top)) = (pattern.ends_with("**"), want.first()) {
            found.push(top.clone());
            found.sort();
        }
        let lossy = |all: &[Vec<u8>]| -> Vec<String> {
            all.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect()
        };
        assert_eq!(lossy(&found), lossy(&want), "{pattern}");
    }
}

#[test]
fn every_kind_of_verb_takes_them() {
    let scratch = Scratch::new();
    let Some(image) = tree(&scratch) else { skip!("no bash") };
    let call = |verb: &str, words: &[&str]| {
        let words = words.iter().map(|word| match word.strip_prefix('@') {
            Some(path) => at(&image, path),
            None => word.into(),
        });
        let said = run_ok([OsString::from(verb)].into_iter().chain(words));
        String::from_utf8_lossy(&said).into_owned()
    };
    assert_eq!(call("cat", &["@/t/etc/{a,b}.conf"]), "etc/a.conf\netc/b.conf\n");
    assert_eq!(call("ls", &["@/t/etc/?.conf"]), "/t/etc/a.conf\n/t/etc/b.conf\n");
    assert_eq!(call("stat", &["@/t/**/deep"]).lines().count(), 9);
    // A name that is there wins over what it could mean.
    assert_eq!(call("cat", &["@/t/var/a*b"]), "star\n");
    assert_eq!(call("cat", &["@/t/var/{x,y}", "@/t/var/[q]"]), "r\nq\n");
    let out = scratch.path("out");
    std::fs::create_dir(&out).unwrap();
    call("cp", &["@/t/**/*.conf", out.to_str().unwrap()]);
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 5);
    call("chmod", &["600", "@/t/etc/*.conf"]);
    let modes = call("ls", &["-l", "@/t/etc"]);
    assert_eq!(modes.lines().filter(|line| line.starts_with("-rw-------")).count(), 2, "{modes}");
    call("touch", &["-d", "2001-01-01T00:00Z", "@/t/var/log/*"]);
    call("mv", &["@/t/var/log/*", "@/t/empty"]);
    assert_eq!(call("ls", &["@/t/empty"]), "1\n10\n2\n");
    call("rm", &["-r", "@/t/{etc,var}/*"]);
    assert_eq!(call("du", &["-s", "--inodes", "@/t/*/"]).lines().count(), 4);
    call("rm", &["-f", "@/t/none*"]);
    run_fails(["rm".into(), at(&image, "/t/none*")], "/t/none*: not found");
    let many = format!("/t/{}", "{a,b}".repeat(30));
    run_fails(["ls".into(), at(&image, &many)], "more than 10000 paths");
}

#[test]
fn what_cannot_be_read_is_told_and_the_rest_is_found() {
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 16, &[]) else { skip!("no mke2fs") };
    run_ok(["mkdir".into(), OsString::from("-p"), at(&image, "/d/lost"), at(&image, "/d/kept")]);
    run_ok(["touch".into(), at(&image, "/d/kept/a.conf"), at(&image, "/d/lost/b.conf")]);
    let output = system("debugfs").args(["-w", "-R", "clri /d/lost"]).arg(&image).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    for pattern in ["/d/**/*.conf", "/**/a.conf"] {
        let output = run(["ls".into(), at(&image, pattern), at(&image, "/d/kept")]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
        assert!(said.contains("/d/lost: "), "{said}");
        assert!(String::from_utf8_lossy(&output.stdout).starts_with("/d/kept/a.conf\n"));
    }
    // The memory for the paths of a chain of directories is that of its longest path.
    let deep = "/".to_owned() + &vec!["n".repeat(250); 80].join("/");
    let output = run(["mkdir".into(), "-p".into(), at(&image, &deep)]);
    assert!(output.status.success(), "{output:?}");
    run_fails(["ls".into(), OsString::from("-d"), at(&image, "/n*/**")], "path is too long");
}
