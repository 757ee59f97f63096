//! `ls`, `stat -c` and flags with projects, beside ls(1), stat(1) and lsattr(1) on the kernel's
//! mount.
//!
//! Fault model: another order, column, mark or number than the programs have; names that JSON
//! loses; a screen that names overflow; control characters on a terminal. Not compared: names of
//! owners in `ls`, colours' exact bytes.

#[macro_use]
mod common;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use common::kernel::Kernel;
use common::{Scratch, at, has, run, run_fails, run_ok, shell, system};

const TREE: &str = "
    mkdir -p t/etc t/d/e t/Dir t/sticky; cd t
    printf root:x:0:0::/root:/bin/sh\\\\nbin:x:7:8::/:/bin/sh\\\\n >etc/passwd
    printf root:x:0:\\\\nstaff:x:8:\\\\n >etc/group
    printf 0123456789 >ten; printf abc >abc; : >empty
    dd if=/dev/zero of=big bs=1k count=30 2>/dev/null
    chmod 755 abc; chmod 4711 empty; chmod 1777 sticky; chown 7:8 ten
    ln -s ten link; ln -s nowhere dangling; mkfifo fifo; mknod char c 5 300; mknod block b 259 70000
    ln -s abc program; ln -s d to-dir
    ln ten hard; printf x >.hidden; printf 1 >'with space'; printf 1 >\"it's\"
    touch -h -d '2001-02-03 04:05:06.789 UTC' ten link; touch -d @-5.5 abc; touch -d @0 Dir
    touch -d '2002-01-01 UTC' d sticky big; touch -d '2003-01-01 UTC' etc .hidden empty
    cp -r etc ..";

/// An image with the tree of a host's folder, and the kernel's mount of it.
fn image(scratch: &Scratch) -> Option<PathBuf> {
    let image = scratch.image("image", 16, &[])?;
    let dir = scratch.path("mnt");
    let mounted = Kernel::mount(&image, &dir)?;
    shell(TREE, &dir);
    drop(mounted);
    Some(image)
}

fn program(name: &str, words: &[&str], dir: &Path) -> String {
    let words =
        words.iter().map(|word| if let Some(it) = word.strip_prefix('@') { it } else { word });
    let output = system(name).args(words).env("TZ", "UTC").current_dir(dir).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn uext4(verb: &str, words: &[&str], image: &Path) -> String {
    let place = |path: &str| at(image, &format!("/t/{}", path.trim_start_matches('.')));
    let words = words.iter().map(|word| match word.strip_prefix('@') {
        Some(path) => place(path),
        None => OsString::from(word),
    });
    let said = run_ok([OsString::from(verb)].into_iter().chain(words));
    String::from_utf8_lossy(&said).into_owned()
}

/// Calls of ls; `@` begins a path of the tree, and `@.` is its top.
const LS: &[&str] = &[
    "@.",
    "-a @.",
    "-A @.",
    "-t @.",
    "-tr @.",
    "-S @.",
    "-Sr @.",
    "-r @.",
    "-at @.",
    "-d @d @ten",
    "-1 @.",
    "-C -w 40 @.",
    "-C -w 20 @.",
    "-C -w 1 @.",
    "-C -w 200 @.",
    "-F -C -w 60 @.",
    "-F @.",
    "-p @.",
    "-iC -w 60 @.",
    "-i1 @.",
    "-ln --time-style=long-iso @.",
    "-ln --time-style=full-iso @.",
    "-ln --time-style=iso @.",
    "-ln --time-style=locale @.",
    "-ln --time-style=+%s.%Y @.",
    "-ln --full-time @.",
    "-lnF --time-style=long-iso @.",
    "-lnp --time-style=long-iso @.",
    "-lnh --time-style=long-iso @.",
    "-lni --time-style=long-iso @.",
    "-lnaR --time-style=long-iso @d",
    "@ten @d @abc @Dir",
    "-t @ten @d @abc @Dir",
    "-R @.",
];

#[test]
fn as_ls_lists() {
    let scratch = Scratch::new();
    let Some(image) = image(&scratch) else { skip!("no loop mount") };
    let dir = scratch.path("mnt");
    let mut calls = Vec::new();
    for call in LS {
        let words: Vec<&str> = call.split(' ').collect();
        calls.push((call, words.clone(), uext4("ls", &words, &image)));
    }
    let _mounted = Kernel::mount_with(&image, &dir, "ro").unwrap();
    for (call, words, ours) in calls {
        // Names as they are, without quotes, by their bytes.
        let words: Vec<&str> = ["-N", "-T0"].into_iter().chain(words).collect();
        let theirs = program("ls", &words, &dir.join("t"));
        // Titles and operands are paths of the image.
        let ours = ours
            .replace("/t/:\n", ".:\n")
            .replace("/t/", if call.contains('R') { "./" } else { "" });
        let theirs = if call.contains("-lnaR") {
            theirs
                .replace("d/", "./d/")
                .replace("d:\n", "./d:\n")
                .replace("././", "./")
                .replace("./d/e./", "./d/e")
        } else {
            theirs
        };
        let squeezed = |text: &str| text.replace("./d", "d");
        assert_eq!(squeezed(&ours), squeezed(&theirs), "{call}");
    }
}

const FORMATS: &[&str] = &[
    "%a|%#a|%04a|%A|%b|%B|%f|%#f|%F",
    "%g|%G|%h|%i|%o|%s|%t|%T|%u|%U",
    "%Hr|%Lr|%r|%R",
    "%w|%W|%x|%X|%y|%Y|%z|%Z",
    "%.3X|%.9Y|%.6Z|%-14.1Y|%020.2Y|%+Y|% Y",
    "%10s|%-10s|%010s|%.4s|%5A|%-15A|%.4A|%%",
];

#[test]
fn as_stat_formats() {
    let scratch = Scratch::new();
    let Some(image) = image(&scratch) else { skip!("no loop mount") };
    let dir = scratch.path("mnt");
    let names = ["ten", "abc", "empty", "d", "sticky", "link", "fifo", "char", "block", "big"];
    let places: Vec<String> = names.iter().map(|name| format!("@{name}")).collect();
    let places: Vec<&str> = places.iter().map(String::as_str).collect();
    let ours: Vec<String> = FORMATS
        .iter()
        .map(|format| uext4("stat", &[&["-c", format][..], &places].concat(), &image))
        .collect();
    let printf = r"%s\t\x41\101\n\\\e%%";
    let printed = uext4("stat", &["--printf", printf, "@ten"], &image);
    let mounted = Kernel::mount_with(&image, &dir, "ro,noatime").unwrap();
    let top = dir.join("t");
    for (format, ours) in FORMATS.iter().zip(ours) {
        let mut theirs = program("stat", &[&["-c", format][..], &names].concat(), &top);
        if format.contains("%U") {
            // stat(1) knows the host's names, the verb those of the image.
            let lines: Vec<String> = theirs
                .lines()
                .map(|line| {
                    let mut fields: Vec<&str> = line.split('|').collect();
                    let is_bin = fields[8] == "7";
                    (fields[1], fields[9]) =
                        if is_bin { ("staff", "bin") } else { ("root", "root") };
                    fields.join("|") + "\n"
                })
                .collect();
            theirs = lines.concat();
        }
        assert_eq!(ours, theirs, "{format}");
    }
    assert_eq!(printed, program("stat", &["--printf", printf, "ten"], &top));
    drop(mounted);
    assert_eq!(uext4("stat", &["-c", "%n %N", "@link"], &image), "/t/link '/t/link' -> 'ten'\n");
    assert_eq!(uext4("stat", &["-c", "%N", "@it's"], &image), "\"/t/it's\"\n");
    let wrong = run(["stat".into(), "-c".into(), "%q".into(), at(&image, "/")]);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
}

/// Names that are no text keep their bytes in JSON.
#[test]
fn json_keeps_names() {
    let scratch = Scratch::new();
    let image = scratch.path("image");
    run_ok(["mkfs".as_ref(), "-q".as_ref(), image.as_os_str(), OsStr::new("8M")]);
    let mut name = at(&image, "/dir");
    run_ok([OsStr::new("mkdir"), &name]);
    name.push(<OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"/\xff\x1b"));
    run_ok([OsStr::new("touch"), &name]);
    for verb in ["ls", "stat"] {
        let said = run_ok([OsStr::new(verb), OsStr::new("--json"), &name]);
        let said = String::from_utf8(said).unwrap();
        assert!(said.contains("\"path_hex\": \"2f6469722fff1b\""), "{said}");
    }
    // An image alone is its root.
    assert_eq!(run_ok([OsStr::new("ls"), image.as_os_str()]), b"dir\nlost+found\n");
    let said = run_ok(["ls".into(), "--json".into(), at(&image, "/dir")]);
    assert!(String::from_utf8(said).unwrap().contains("\"name_hex\": \"ff1b\""));
}

#[test]
fn colours_are_those_of_ls_colors() {
    let scratch = Scratch::new();
    let Some(image) = image(&scratch) else { skip!("no loop mount") };
    let call = |colour: &str, place: OsString| {
        let output = std::process::Command::new(common::UEXT4)
            .args(["ls", colour])
            .arg(place)
            .env("LS_COLORS", "di=01;34:ex=01;32:ln=01;36:*.conf=00;33:su=37;41")
            .env_remove("NO_COLOR")
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let all = call("--color", at(&image, "/t"));
    for coloured in ["\u{1b}[1;34md\u{1b}[0m", "\u{1b}[1;32mabc\u{1b}[0m", "\nten\n"] {
        assert!(all.contains(coloured), "{coloured:?} in {all:?}");
    }
    for colour in ["--color=auto", "--color=never"] {
        assert!(!call(colour, at(&image, "/t")).contains('\u{1b}'));
    }
    // On a terminal: columns, colours, and control characters that do nothing.
    if !has("script") {
        skip!("no script(1)");
    }
    let mut odd = at(&image, "/t/d/");
    odd.push("\u{1b}[31mred");
    run_ok([OsStr::new("touch"), &odd]);
    let place = at(&image, "/t/d");
    let line = format!("stty cols 40; {} ls {}", common::UEXT4, place.display());
    let output = system("script").args(["-qec", &line, "/dev/null"]).env("TERM", "xterm").output();
    let said = String::from_utf8_lossy(&output.unwrap().stdout).into_owned();
    assert!(said.contains("?[31mred  ") && said.contains("me\u{1b}[0m"), "{said:?}");
}

#[test]
fn projects_and_flags() {
    let scratch = Scratch::new();
    let image = scratch.path("image");
    let words = ["mkfs", "-q", "-O", "project"].iter().map(OsString::from);
    run_ok(words.chain([image.clone().into(), "16M".into()]));
    uext4("mkdir", &["-p", "@d/e"], &image);
    uext4("touch", &["@ten", "@abc", "@big"], &image);
    uext4("chattr", &["-R", "-p", "7", "+P", "@d"], &image);
    uext4("chattr", &["-p", "4000000000", "@ten"], &image);
    uext4("chattr", &["+id", "@abc"], &image);
    uext4("chattr", &["-i", "-p", "9", "@abc"], &image);
    uext4("chattr", &["=A", "@big"], &image);
    let said = uext4("stat", &["@ten"], &image);
    assert!(said.contains(" Flags: e               Project: 4000000000\n"), "{said}");
    let said = uext4("stat", &["--json", "@d"], &image);
    assert!(said.contains("\"flags\": \"Pe\"") && said.contains("\"project\": 7"), "{said}");
    uext4("touch", &["@d/inherits"], &image);
    let projects = uext4("stat", &["@d/inherits", "@d/e"], &image);
    assert_eq!(projects.matches("Project: 7\n").count(), 2, "{projects}");
    common::assert_clean(&image);
    wrong_flags_are_told(&scratch, &at(&image, "/t/abc"));

    let dir = scratch.path("mnt");
    let Some(_mounted) = Kernel::mount_with(&image, &dir, "ro") else { skip!("no loop mount") };
    let files = ["t/d", "t/ten", "t/abc", "t/big", "t/d/e"];
    let theirs = program("lsattr", &[&["-pd"][..], &files].concat(), &dir);
    let words = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words[0].to_owned(), words[1].replace('-', ""))
    };
    let theirs: Vec<(String, String)> = theirs.lines().map(words).collect();
    let want = [("7", "eP"), ("4000000000", "e"), ("9", "de"), ("0", "Ae"), ("7", "eP")];
    assert_eq!(theirs, want.map(|(project, flags)| (project.to_owned(), flags.to_owned())));
}

fn wrong_flags_are_told(scratch: &Scratch, file: &OsStr) {
    for (words, want) in [
        (&["+y"][..], "no flag has the letter y"),
        (&["+d", "-d"], "same flag"),
        (&[], "want + or -"),
    ] {
        let words = ["chattr"].iter().chain(words).map(OsString::from).chain([file.into()]);
        let output = run(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
        assert!(said.contains(want), "{said}");
    }
    let plain = scratch.path("plain");
    run_ok(["mkfs".as_ref(), "-q".as_ref(), plain.as_os_str(), OsStr::new("8M")]);
    run_fails(["chattr".into(), "-p1".into(), at(&plain, "/")], "without projects");
    let limits = run(["quota", "-u", "--set", "5:20:10:0:0", "none"]);
    let said = String::from_utf8_lossy(&limits.stderr).into_owned();
    assert_eq!((limits.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.contains("a soft limit is above its hard one"), "{said}");
}

/// Each of 40 directories has two names of the next one: a trillion listings, if names count.
#[test]
fn a_directory_with_two_names_is_listed_once() {
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 16, &[]) else { skip!("no mke2fs") };
    let mut commands = String::new();
    for _ in 0..40 {
        commands += "mkdir a\nlink a b\ncd a\n";
    }
    let file = scratch.path("commands");
    std::fs::write(&file, commands).unwrap();
    let output = system("debugfs").args(["-w", "-f"]).arg(file).arg(&image).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let output = run(["ls".into(), OsString::from("-R"), at(&image, "/a")]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), told.lines().count()), (Some(1), 39), "{told}");
    assert!(told.lines().all(|line| line.ends_with("a second name of a directory; run fsck")));
    let listed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(listed.lines().filter(|line| line.ends_with(':')).count(), 40);
}
