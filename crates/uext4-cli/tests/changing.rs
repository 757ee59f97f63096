//! The verbs that change an image, beside their namesakes of coreutils.
//!
//! Fault model: a verb that sets another mode, owner, length, time or link than its namesake does,
//! follows a link that it should not, stops where that goes on, or fails where it succeeds. Each
//! row is run by coreutils on the kernel's mount of one image and by uext4 on another; then the
//! trees are compared, and e2fsck has to find nothing. Not compared: change times.

mod common;

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use common::kernel::Kernel;
use common::{Scratch, UEXT4, as_nobody, assert_clean, at, has, is_root, run, run_fails, run_ok};
use uext4_sim::tree::compare::{self, Scope};

/// What both images hold at first.
const TREE: &str = "
    mkdir -p d/e/f etc dirs/set
    printf root:x:0:0::/root:/bin/sh\\\\nbin:x:1:7::/:/bin/sh\\\\n >etc/passwd
    printf root:x:0:\\\\nstaff:x:50:\\\\n >etc/group
    printf 0123456789 >ten; printf abc >d/abc; cp ten d/e/ten; printf xyz >d/e/f/xyz
    cp ten set-id; chown 5:5 set-id; chmod 6755 set-id
    cp ten run; chmod 755 run; cp ten other; chown 9:9 other
    ln -s ten link; ln -s d dlink; ln -s nowhere dangling; ln -s ../ten d/up; ln ten ten2
    chown 3:4 dirs; chmod 6775 dirs/set
    touch -d @1000000000.25 d ten dirs; touch -h -d @7 link dlink
    touch -d @1 d/e";

/// Commands as coreutils take them; `@/` begins a path of the image.
const LINKS_TIMES_LENGTHS: &[&str] = &[
    // ln
    "ln @/ten @/ten3",
    "ln @/link @/hard-of-link",
    "ln -L @/link @/hard-of-ten",
    "ln -s ten @/s1",
    "ln -s /etc/passwd @/d",
    "ln -s ten @/ten",
    "ln -sf ten @/run",
    "ln -f @/ten @/other",
    "ln -f @/ten @/ten",
    "ln @/d @/d2",
    "ln @/missing @/m",
    "ln -f @/d/e/ten @/ten @/dirs",
    "ln -sf a/x b/x @/dirs",
    "ln -s http://a/b @/url",
    "ln -sT x @/d",
    "ln -sf x @/d/e",
    "ln -sn x @/dlink",
    "ln -sfn x @/dlink",
    "ln -st @/d one two",
    "ln -s a b c @/d/e",
    "ln -s a b @/ten",
    "ln -s x @/no/dir",
    "ln @/ten @/d/abc @/d/e",
    "ln -s x @/dangling",
    // touch
    "touch -d @5 @/ten",
    "touch -d @5.123456789 @/new",
    "touch -d @-5.5 @/ten",
    "touch -a -d @6 @/ten",
    "touch -m -d @6 @/ten",
    "touch -c -d @6 @/nothing @/ten",
    "touch -d @6 @/no/dir @/ten",
    "touch -d @8 @/link",
    "touch -h -d @8 @/link",
    "touch -d @8 @/dangling",
    "touch -h -d @8 @/missing",
    "touch -t 200102030405.06 @/ten",
    "touch -t 9912312359 @/ten",
    "touch -d 2001-02-03T04:05:06.5Z @/ten",
    "touch -d 2001-02-03 @/d",
    "touch -d 2446-05-10T22:38:55Z @/ten",
    "touch -d 1901-12-13T20:45:52Z @/ten",
    "touch @/new/ @/d/",
    // truncate
    "truncate -s 3 @/ten",
    "truncate -s +3 @/ten",
    "truncate -s -3 @/ten",
    "truncate -s -30 @/ten",
    "truncate -s <4 @/ten",
    "truncate -s >40 @/ten",
    "truncate -s /4 @/ten",
    "truncate -s %4 @/ten",
    "truncate -s 1K @/ten",
    "truncate -s 1KB @/new",
    "truncate -s 20M @/sparse",
    "truncate -c -s 5 @/missing @/link",
    "truncate -s 5 @/d @/ten",
    "truncate -s 5 @/no/dir @/ten",
    "truncate -s 2 @/set-id",
    "truncate -s 4 @/dangling",
];

/// Modes and owners, and new directories.
const MODES_OWNERS: &[&str] = &[
    // chmod
    "chmod 600 @/ten",
    "chmod 4711 @/ten",
    "chmod 755 @/dirs/set",
    "chmod 0755 @/dirs/set",
    "chmod 00755 @/dirs/set",
    "chmod =755 @/dirs/set",
    "chmod +2000 @/dirs",
    "chmod u+x @/ten",
    "chmod +x @/ten",
    "chmod -r @/run",
    "chmod a=r,u+wX,g=u @/run @/ten @/d",
    "chmod go= @/run",
    "chmod g=u-w,o=g @/run",
    "chmod u=s,g+s,o+t @/ten @/dirs/set",
    "chmod u+t,g+t @/ten",
    "chmod = @/ten",
    "chmod ug-s @/set-id @/dirs/set",
    "chmod -R a+rX,o-w @/d",
    "chmod -R 750 @/d",
    "chmod 640 @/link",
    "chmod 640 @/dangling @/ten",
    "chmod 640 @/missing @/ten",
    "chmod --reference=@/run @/ten",
    "chmod -R go-rwx @/d @/missing @/dirs",
    // chown, chgrp
    "chown 7 @/ten",
    "chown 7:8 @/ten",
    "chown :8 @/ten",
    "chown : @/set-id",
    "chown 7 @/set-id",
    "chown 5 @/set-id",
    "chown 7:7 @/dirs/set",
    "chown 70000:4294967294 @/ten",
    "chown 4294967295 @/ten",
    "chown nobody-of-this-name @/ten",
    "chown 7 @/link",
    "chown -h 7 @/link @/ten",
    "chown -R 7:8 @/d",
    "chown -R 7 @/dlink",
    "chown --from=9 7 @/other @/ten",
    "chown --from=:9 7:8 @/other @/ten",
    "chown -R --from=0:0 7 @/d @/dirs",
    "chown 7 @/missing @/ten",
    "chown 7 @/dangling @/ten",
    "chown --reference=@/other @/ten",
    "chgrp 8 @/ten @/set-id",
    "chgrp -R 8 @/d",
    "chgrp -h 8 @/link",
    "chgrp --reference=@/other @/ten",
    // mkdir
    "mkdir @/new @/new/er",
    "mkdir @/d @/new",
    "mkdir -p @/d/x/y/z @/d",
    "mkdir -m 1777 @/new",
    "mkdir -m u=rwx,go= @/new",
    "mkdir -p -m 711 @/n/m",
    "mkdir -p @/ten/x @/n",
    "mkdir @/no/dir @/n",
];

/// Copies, moves and removals.
const NAMES: &[&str] = &[
    // cp
    "cp -a @/d @/new",
    "cp -a @/d @/dirs",
    "cp -aT @/d @/dirs",
    "cp -a @/d/. @/dirs",
    "cp -a @/d/. @/new",
    "cp -a @/ten @/ten2 @/link @/dirs",
    "cp -a @/ten @/set-id @/run @/d/e",
    "cp -at @/dirs @/ten @/d",
    "cp -p @/set-id @/new",
    "cp -p @/link @/new",
    "cp -pP @/link @/new",
    "cp -p @/d @/new",
    "cp -p @/d @/ten @/dirs",
    "cp -pT @/ten @/d",
    "cp -aT @/d @/ten",
    "cp -a @/ten @/missing @/set-id @/dirs",
    "cp -a @/ten @/set-id @/run",
    "cp -an @/ten @/run @/d/e",
    "cp -au @/ten @/run @/d/e",
    "cp -au @/run @/ten @/dirs/set",
    "cp -a @/ten @/ten",
    "cp -a @/ten @/ten2",
    "cp -af @/ten @/no/dir",
    "cp -a @/ten @/run @/dirs/set/",
    "cp -a @/ten @/new/",
    "cp -a @/dangling @/link @/d/e",
    "cp -a @/d @/d/e/f @/dirs",
    "cp -a @/d/e/ten @/ten @/dirs",
    "cp -au @/d/e/ten @/ten @/dirs",
    "cp -a @/dlink/ @/new",
    // mv
    "mv @/ten @/new",
    "mv @/ten @/run",
    "mv @/ten @/ten2",
    "mv @/ten @/ten",
    "mv @/ten @/d",
    "mv @/ten @/run @/d",
    "mv @/d/e/ten @/ten @/dirs",
    "mv -f @/d/e/ten @/ten @/run @/dirs",
    "mv -T @/ten @/d",
    "mv -T @/d @/dirs",
    "mv -T @/d @/dirs/set",
    "mv -t @/d @/ten @/missing @/run",
    "mv @/d @/d/e",
    "mv @/d @/ten",
    "mv @/d @/new/",
    "mv @/ten @/new/",
    "mv @/link/ @/new",
    "mv @/link @/dangling",
    "mv @/dlink @/new",
    "mv @/run @/set-id @/dlink",
    "mv -n @/ten @/run",
    "mv -u @/run @/ten",
    "mv -u @/ten @/run",
    "mv -f @/ten @/no/dir",
    "mv @/ten @/run @/set-id",
    "mv @/d/abc @/d",
    // rm
    "rm @/ten",
    "rm @/d @/ten",
    "rm -r @/d @/ten",
    "rm -rf @/d @/missing @/no/dir @/ten",
    "rm @/missing @/ten",
    "rm -f @/ten/x @/run",
    "rm -d @/dirs/set",
    "rm -d @/d @/ten",
    "rm @/link @/dangling @/dlink",
    "rm -r @/dlink",
    "rm @/ten/",
    "rm -r @/d/e",
    "rm -r @/d/. @/ten",
    "rm -fd @/dirs @/ten",
];

/// Words of a row, with `@/` replaced.
fn words(row: &str, inside: impl Fn(&str) -> OsString) -> Vec<OsString> {
    let word = |word: &str| match word.split_once("@/") {
        Some((before, path)) => {
            let mut whole = OsString::from(before);
            whole.push(inside(&format!("/{path}")));
            whole
        }
        None => word.into(),
    };
    row.split(' ').map(word).collect()
}

/// Runs all rows both ways on fresh copies of an image; each row begins with the same tree.
fn compare_rows(rows: &[&str]) {
    let scratch = Scratch::in_memory();
    let Some(first) = scratch.image("first", 4, &["-O", "^has_journal"]) else {
        skip!("no mke2fs");
    };
    if !is_root() || !has("e2fsck") {
        skip!("loop mounts are root's");
    }
    let (one, other) = (scratch.path("one"), scratch.path("other"));
    {
        let Some(_kernel) = Kernel::mount(&first, &one) else { skip!("no loop mounts here") };
        common::shell(TREE, &one);
    }
    // Inodes get times of a clock that is some milliseconds old.
    std::thread::sleep(Duration::from_millis(40));
    let start = SystemTime::now() - Duration::from_millis(20);
    let mut faults = Vec::new();
    for row in rows {
        if let Err(why) = one_row(row, &first, &scratch, (&one, &other), start) {
            faults.push(format!("{row}: {why}"));
        }
    }
    assert!(faults.is_empty(), "{} rows differ:\n{}", faults.len(), faults.join("\n"));
}

fn one_row(
    row: &str,
    first: &Path,
    scratch: &Scratch,
    (one, other): (&Path, &Path),
    start: SystemTime,
) -> Result<(), String> {
    let images = ["kernel.img", "uext4.img"].map(|name| scratch.path(name));
    for image in &images {
        fs::copy(first, image).unwrap();
    }
    let mounted = Kernel::mount(&images[0], one).expect("it was mounted before");
    let theirs = words(row, |path| one.join(&path[1..]).into());
    let coreutils = Command::new(&theirs[0]).args(&theirs[1..]).output().unwrap();
    let ours = run(words(row, |path| at(&images[1], path)));
    let [want, found] = [&coreutils, &ours].map(|output| output.status.success());
    let said = String::from_utf8_lossy(&ours.stderr);
    if want != found {
        let theirs = String::from_utf8_lossy(&coreutils.stderr);
        return Err(format!("success is {found}, not {want}: {said} instead of {theirs}"));
    }
    if !found && (said.is_empty() || said.contains("panicked")) {
        return Err(format!("does not tell its failure: {said}"));
    }
    if coreutils.stderr.split(|byte| *byte == b'\n').count() != said.split('\n').count() {
        let theirs = String::from_utf8_lossy(&coreutils.stderr);
        return Err(format!("tells of other failures: {said} instead of {theirs}"));
    }
    assert_clean(&images[1]);
    let _result = Kernel::mount(&images[1], other).expect("it was mounted before");
    // What is set to now is so in both, at times that are not the same.
    let scope = Scope { whole_volume: true, recovered_after: Some(start), ..Scope::default() };
    let mut differences = compare::trees(one, other, scope)?;
    differences.extend(compare::trees(other, one, scope)?);
    drop(mounted);
    if differences.is_empty() { Ok(()) } else { Err(differences.join("; ")) }
}

#[test]
fn links_times_and_lengths_are_those_of_coreutils() {
    compare_rows(LINKS_TIMES_LENGTHS);
}

#[test]
fn modes_and_owners_are_those_of_coreutils() {
    compare_rows(MODES_OWNERS);
}

#[test]
fn copies_moves_and_removals_are_those_of_coreutils() {
    compare_rows(NAMES);
}

/// `-` is standard input and output. An existing file keeps its owner, mode and attributes, and
/// loses rights that were given to its old content; a failed copy leaves the old one.
#[test]
fn pipes_go_in_and_out() {
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 4, &[]) else { skip!("no mke2fs") };
    let pipe = |script: &str| {
        let words = ["-c".into(), script.into(), "sh".into(), UEXT4.into(), image.clone()];
        let output = Command::new("sh").args(words).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let list = || String::from_utf8(run_ok(["ls".into(), "-lA".into(), at(&image, "/")])).unwrap();
    let good = (Some(0), String::new());
    assert_eq!(pipe("umask 027; printf one | $1 cp - $2:/f"), good);
    assert!(list().contains("-rw-r----- 1 "), "{}", list());
    assert_eq!(run_ok(["cp".into(), at(&image, "/f"), "-".into()]), b"one");
    assert_eq!(pipe("$1 chown 5:6 $2:/f; $1 chmod 4640 $2:/f; $1 ln -s f $2:/link"), good);
    // The new content comes from the old one by the same pipe, whose first half still reads the
    // image when the second one starts.
    assert_eq!(pipe("(sleep 0.1; $1 cp $2:/f -) | $1 cp - $2:/f"), good);
    assert_eq!(pipe("$1 cp $2:/f - | cat - /etc/passwd | $1 cp - $2:/link"), good);
    assert!(list().contains("-rw-r----- 1 5 6 "), "{}", list());
    assert_eq!(list().lines().count(), 3 + usize::from(list().contains("total")), "{}", list());
    let want = [&b"one"[..], &fs::read("/etc/passwd").unwrap()].concat();
    assert_eq!(run_ok(["cat".into(), at(&image, "/link")]), want);
    for (script, why) in [
        ("$1 cp - $2:/ </dev/null", "is the root directory"),
        ("$1 cp - $2:/lost+found </dev/null", "/lost+found: Is a directory"),
        ("$1 cp - - </dev/null", "-: not of the form"),
        ("$1 cp - $2:/no/f </dev/null", "/no/f: not found"),
        ("$1 cp - $2:/f < /", "standard input: Is a directory"),
        ("head -c 9M /dev/zero | $1 cp - $2:/f", "/f: no space left"),
    ] {
        let (status, said) = pipe(script);
        assert_eq!((status, said.lines().count()), (Some(1), 1), "{script}: {said}");
        assert!(said.contains(why), "{script}: {said}");
    }
    assert_eq!(run_ok(["cat".into(), at(&image, "/f")]), want);
    assert!(!list().contains(".uext4"), "{}", list());
    assert_clean(&image);
}

/// What mounts cannot judge, and needs no root.
#[test]
fn names_of_owners_are_those_of_the_image() {
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 4, &[]) else { skip!("no mke2fs") };
    let owner = |path: &str| {
        let said =
            String::from_utf8(run_ok(["ls".into(), "-ld".into(), at(&image, path)])).unwrap();
        let words: Vec<String> = said.split_whitespace().map(str::to_owned).collect();
        format!("{}:{}", words[2], words[3])
    };
    run_ok(["touch".into(), at(&image, "/f")]);
    let chown = |who: &str| ["chown".into(), who.into(), at(&image, "/f")];
    run_fails(chown("user"), "/f: invalid user: 'user': the image has no /etc/passwd");
    run_ok(chown("4:3"));
    assert_eq!(owner("/f"), "4:3");
    run_ok(["mkdir".into(), at(&image, "/etc")]);
    let tables = [
        ("passwd", "root:x:0:0::\nuser:x:77:78::\n5:x:6:6::\nodd:x:z:1::\n"),
        ("group", "staff:x:50:user\n"),
    ];
    for (name, text) in tables {
        fs::write(scratch.path(name), text).unwrap();
        run_ok(["cp".into(), scratch.path(name).into(), at(&image, "/etc")]);
    }
    for (who, want) in [
        ("user", "77:3"),
        ("root:staff", "0:50"),
        ("user:", "77:78"),
        (":9", "77:9"),
        ("5", "6:9"),
        ("+5", "5:9"),
        ("4000000000:0", "4000000000:0"),
    ] {
        run_ok(chown(who));
        assert_eq!(owner("/f"), want, "{who}");
    }
    for (who, why) in [
        ("nobody", "/f: invalid user: 'nobody' is not in /etc/passwd of the image"),
        ("user:wheel", "'wheel' is not in /etc/group"),
        ("odd", "/etc/passwd: a line of odd is no entry"),
        ("4294967295", "invalid user"),
        ("99999999999", "invalid user"),
    ] {
        run_fails(chown(who), why);
    }
    run_ok(["rm".into(), at(&image, "/etc/passwd")]);
    run_ok(["mkdir".into(), at(&image, "/etc/passwd")]);
    run_fails(chown("user"), "/etc/passwd: not a regular file");
    assert_eq!(owner("/f"), "4000000000:0");
    assert_clean(&image);
}

/// Ownership that lives in the image alone is anybody's to give.
#[test]
fn an_ordinary_user_changes_an_image() {
    if is_root() {
        return as_nobody("an_ordinary_user_changes_an_image");
    }
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 4, &[]) else { skip!("no mke2fs") };
    run_ok(["touch".into(), "-d@5".into(), at(&image, "/su"), at(&image, "/f")]);
    run_ok(["chown".into(), "0:0".into(), at(&image, "/su")]);
    run_ok(["chmod".into(), "4755".into(), at(&image, "/su")]);
    run_ok(["ln".into(), "-s".into(), "su".into(), at(&image, "/link")]);
    run_ok(["truncate".into(), "-s1M".into(), at(&image, "/f")]);
    let said = String::from_utf8(run_ok(["ls".into(), "-l".into(), at(&image, "/")])).unwrap();
    assert!(said.contains("-rwsr-xr-x") && said.contains("1048576"), "{said}");
    fs::set_permissions(&image, std::os::unix::fs::PermissionsExt::from_mode(0o444)).unwrap();
    run_fails(["touch".into(), at(&image, "/new")], "no permission to write");
    assert_clean(&image);
}

/// A failure is one line with the path and why, and the other operands are done.
#[test]
fn failures_are_told_and_the_rest_is_done() {
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 4, &[]) else { skip!("no mke2fs") };
    let all = |verb: &[&str], paths: &[&str]| -> Vec<OsString> {
        let paths = paths.iter().map(|path| at(&image, path));
        verb.iter().map(OsString::from).chain(paths).collect()
    };
    run_ok(all(&["touch"], &["/a", "/fixed", "/log", "/z"]));
    run_ok(all(&["chattr", "+i"], &["/fixed"]));
    run_ok(all(&["chattr", "+a"], &["/log"]));
    for verb in
        [&["chmod", "600"][..], &["chown", "5"], &["truncate", "-s", "4"], &["touch", "-d@1"]]
    {
        run_fails(all(verb, &["/a", "/fixed", "/z"]), ":/fixed: ");
    }
    run_fails(all(&["truncate", "-s", "5"], &["/log", "/a"]), ":/log: ");
    run_fails(all(&["ln", "-f"], &["/a", "/fixed"]), ":/fixed: ");
    run_ok(all(&["ln"], &["/a", "/a2"]));
    // Another name of the same file already.
    run_ok(all(&["ln", "-f"], &["/a", "/a2"]));
    run_ok(all(&["rm"], &["/a2"]));
    run_fails(all(&["truncate", "-s", "1K"], &["/z", "/d/x", "/a"]), ":/d/x: not found");
    let said = String::from_utf8(run_ok(all(&["ls", "-lA"], &["/"]))).unwrap();
    let lines: Vec<&str> = said.lines().filter(|line| line.contains(" 1024 ")).collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(
        lines.iter().all(|line| line.starts_with("-rw-------") && line.contains(" 5 ")),
        "{said}"
    );
    assert!(!said.contains(".uext4-"), "{said}");
    run_ok(all(&["mkdir", "-p"], &["/t/a", "/t/b/c"]));
    run_ok(all(&["touch"], &["/t/a/x", "/t/b/c/keep", "/t/b/c/y", "/t/z"]));
    run_ok(all(&["chattr", "+i"], &["/t/b/c/keep"]));
    run_fails(all(&["rm", "-r"], &["/t"]), ":/t/b/c/keep: ");
    assert_eq!(
        run_ok(all(&["ls", "-A"], &["/t", "/t/b/c"]))
            .split(|b| *b == b'\n')
            .filter(|l| [&b"b"[..], b"keep"].contains(l))
            .count(),
        2
    );
    run_ok(all(&["chattr", "-i"], &["/t/b/c/keep"]));
    run_ok(all(&["rm", "-r"], &["/t"]));
    // Wrong by its form: nothing is done.
    run_fails(all(&["chmod", "0", "no-image"], &["/a"]), "not of the form");
    run_fails(all(&["chmod", "u+q"], &["/a"]), "not a mode");
    run_fails(all(&["touch", "-d", "soon"], &["/a"]), "soon: not a date");
    run_fails(all(&["truncate", "-o", "-s1"], &["/a"]), "-o: not supported");
    assert_eq!(said, String::from_utf8(run_ok(all(&["ls", "-lA"], &["/"]))).unwrap());
    assert_clean(&image);
}
