//! SQLite: rows acknowledged before the daemon is killed are there.

use super::{Bench, Size};
use crate::daemon_mount::{output, within};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Longest time that SQLite may take for a question, or for all of a load.
const PATIENCE: Duration = Duration::from_secs(120);

pub(super) fn work(bench: &mut Bench, size: Size) -> Result<(), String> {
    for mode in ["wal", "delete"] {
        let database = bench.point().join(format!("{mode}.db"));
        let mut before = 0;
        for _ in 0..size.of(1, 3) {
            let acknowledged = rows_until_killed(bench, &database, mode, before, size.of(40, 500))?;
            bench.recover()?;
            let integrity = ask(&database, "pragma integrity_check")?;
            if integrity != "ok" {
                return Err(format!("{mode}: integrity_check: {integrity}"));
            }
            // In rollback mode a commit is the removal of the journal file, and SQLite takes "the
            // directory cannot be opened" for "it is durable" (os_unix.c, unixDelete): the answer
            // that falls together with the kill is worth nothing.
            let due = acknowledged - u64::from(mode == "delete");
            let kept = ask(&database, "select count(*), max(n) from rows")?;
            let number = |text: Option<&str>| text.and_then(|text| text.parse::<u64>().ok());
            let mut words = kept.split('|');
            let (count, last) = (number(words.next()), number(words.next()));
            if count != last || last.is_none_or(|last| last < due) {
                return Err(format!("{mode}: {kept} of {acknowledged} rows"));
            }
            before = last.unwrap_or_default();
        }
    }
    Ok(())
}

/// Adds rows behind `before` until the daemon is killed, after `count` of them; number of the last
/// one that was acknowledged.
fn rows_until_killed(
    bench: &Bench,
    database: &Path,
    mode: &str,
    before: u64,
    count: u64,
) -> Result<u64, String> {
    let failed = |error: std::io::Error| format!("sqlite3: {error}");
    let mut program = Command::new("timeout")
        .args(["-k", "5", &PATIENCE.as_secs().to_string(), "sqlite3"])
        .arg(database)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    let mut questions = program.stdin.take().ok_or("no pipe")?;
    let mut answers = BufReader::new(program.stdout.take().ok_or("no pipe")?).lines();
    let head = format!(
        ".bail on\npragma journal_mode={mode};\npragma synchronous=full;\n\
         create table if not exists rows (n integer primary key, filling text);\n"
    );
    questions.write_all(head.as_bytes()).map_err(failed)?;
    match answers.next() {
        Some(Ok(answer)) if answer == mode => {}
        other => return Err(format!("the journal's mode is {other:?}")),
    }
    let mut acknowledged = before;
    loop {
        let next = acknowledged + 1;
        let row =
            format!("insert into rows values ({next}, hex(randomblob(300)));\nselect {next};\n");
        let asked = questions.write_all(row.as_bytes());
        match answers.next() {
            Some(Ok(answer)) if asked.is_ok() && answer == next.to_string() => acknowledged = next,
            _ => break,
        }
        if acknowledged == before + count {
            bench.kill()?;
        }
    }
    drop(questions);
    program.wait().map_err(failed)?;
    if acknowledged < before + count {
        return Err(format!("{mode}: SQLite failed before the kill, at row {acknowledged}"));
    }
    Ok(acknowledged)
}

fn ask(database: &Path, question: &str) -> Result<String, String> {
    let answer = output(within(PATIENCE, "sqlite3").arg(database).arg(question))?;
    Ok(answer.trim().to_owned())
}
