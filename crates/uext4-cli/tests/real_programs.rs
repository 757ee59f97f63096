//! Programs that people run, on mounts by `/dev/fuse` and by io_uring.
//!
//! Fault models: a program fails, or finds something else than it has written; what a database has
//! acknowledged is gone after the mount's daemon was killed; an image that needs more than a
//! replay.

#[macro_use]
mod common;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use common::transport::on_both;
use common::{Mounted, Scratch, assert_clean, has, run_ok, shell};

/// Repositories, copies with all attributes, archives. `$HOME` of git lies on the mount.
const TREE: &str = r#"
set -e
export HOME=$PWD LC_ALL=C
git init -q -b main repository; cd repository
git config user.email a@example.org; git config user.name a
for d in 1 2 3 4 5; do mkdir $d; for n in $(seq 60); do echo "$d $n" > $d/$n; done; done
git add .; git commit -q -m one; rm -r 1; echo changed > 2/7; git commit -q -a -m two
git gc -q; git fsck --full --strict 2>&1 | grep -v '^$' && exit 1
[ -z "$(git status --porcelain)" ]
git checkout -q HEAD~1; [ "$(cat 2/7)" = "2 7" ]; git checkout -q main
cd ..
ln repository/3/1 hard; ln -s hard soft; setfattr -n user.note -v text hard; setfacl -m u:1:r hard
mkfifo fifo; chmod 4755 soft
rsync -aHAX repository hard soft fifo copy/
[ -z "$(rsync -aHAXin repository hard soft fifo copy/)" ]
diff -r repository copy/repository; [ "$(getfattr --only-values -n user.note copy/hard)" = text ]
tar --xattrs --acls -cf a.tar repository hard soft; mkdir x; tar --xattrs --acls -C x -xf a.tar
diff -r repository x/repository; getfacl -c x/hard | grep -q daemon
rm -rf copy x a.tar
"#;

#[test]
fn repositories_copies_and_archives_come_back() {
    for program in ["git", "rsync", "setfattr", "setfacl"] {
        if !has(program) {
            skip!("needs {program}");
        }
    }
    on_both("repositories", |option| {
        let scratch = Scratch::new();
        let (image, dir) = ready!(&scratch, 64);
        let mount = Mounted::new(&image, &dir, option);
        shell(TREE, &mount.dir);
        mount.end();
        assert_clean(&image);
    });
}

/// Rows that a database has acknowledged before the daemon of its mount is killed.
fn rows_until_killed(mount: &Mounted, mode: &str) -> u64 {
    let daemon = mount.daemon();
    let database = mount.path("rows.db");
    let mut program = Command::new("sqlite3")
        .arg(&database)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("sqlite3");
    let mut questions = program.stdin.take().expect("a pipe");
    let mut answers = BufReader::new(program.stdout.take().expect("a pipe")).lines();
    let head = format!(
        ".bail on\npragma journal_mode={mode};\npragma synchronous=full;\n\
         create table if not exists rows (n integer primary key, filling text);\n"
    );
    questions.write_all(head.as_bytes()).unwrap();
    assert_eq!(answers.next().expect("its mode").unwrap(), mode);
    let mut acknowledged = 0;
    loop {
        let next = acknowledged + 1;
        let row =
            format!("insert into rows values ({next}, hex(randomblob(300)));\nselect {next};\n");
        let asked = questions.write_all(row.as_bytes());
        match answers.next() {
            Some(Ok(answer)) if asked.is_ok() => {
                assert_eq!(answer, next.to_string());
                acknowledged = next;
            }
            _ => break,
        }
        if acknowledged == 40 {
            let killed = Command::new("kill").args(["-9", &daemon.to_string()]).status();
            assert!(killed.expect("kill").success());
        }
    }
    drop(questions);
    let _ = program.wait();
    acknowledged
}

fn ask(database: &Path, question: &str) -> String {
    let output = Command::new("sqlite3").arg(database).arg(question).output().expect("sqlite3");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn a_database_keeps_what_it_has_acknowledged_when_the_daemon_is_killed() {
    if !has("sqlite3") {
        skip!("needs sqlite3");
    }
    on_both("a_database", |option| {
        for mode in ["wal", "delete"] {
            let scratch = Scratch::new();
            let (image, dir) = ready!(&scratch, 64);
            let mount = Mounted::new(&image, &dir, option);
            let acknowledged = rows_until_killed(&mount, mode);
            run_ok(["umount".as_ref(), mount.dir.as_os_str()]);
            mount.forget();
            let mount = Mounted::new(&image, &dir, option);
            let database = mount.path("rows.db");
            assert_eq!(ask(&database, "pragma integrity_check"), "ok");
            let kept: u64 = ask(&database, "select count(*) from rows").parse().unwrap();
            // In rollback mode a commit is the removal of the journal file, and SQLite takes "the
            // directory cannot be opened" for "it is durable" (os_unix.c, unixDelete): the answer
            // that falls together with the kill is worth nothing.
            let lost = u64::from(mode == "delete");
            assert!(kept + lost >= acknowledged, "{mode}: {kept} of {acknowledged}");
            mount.end();
            assert_clean(&image);
        }
    });
}
