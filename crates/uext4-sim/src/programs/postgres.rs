//! PostgreSQL: what it has committed is there after the daemon of its mount was killed, and its own
//! checks find nothing.
//!
//! pgbench runs beside sessions that note each commit that was acknowledged to them. The server is
//! that of an ordinary user, as it must be.

use super::{Bench, Size};
use crate::daemon_mount::{output, within};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Longest time of one program, and of a recovery.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(50);

/// User of the server: nobody's.
const USER: u32 = 65_534;

/// Sessions that note what was acknowledged to them.
const SESSIONS: u64 = 3;

/// The same of all four tables is what each transaction of pgbench keeps.
const BALANCES: &str = "select (select sum(abalance) from pgbench_accounts),
    (select sum(tbalance) from pgbench_tellers), (select sum(bbalance) from pgbench_branches),
    (select coalesce(sum(delta), 0) from pgbench_history)";

pub(super) fn work(bench: &mut Bench, size: Size) -> Result<(), String> {
    let server = Installed::find(bench)?;
    server
        .call("initdb", &["--data-checksums", "--no-locale", "--encoding=UTF8", "-A", "trust"])?;
    let mut running = server.start()?;
    server.call("pgbench", &["-q", "-i", "-s", &size.of(1, 10).to_string()])?;
    server.ask("create table acknowledged (session int, n int, primary key (session, n))")?;
    let mut before = vec![0; SESSIONS as usize];
    for _ in 0..size.of(1, 3) {
        let acknowledged = server.commits_until_killed(bench, &before, size.of(300, 6000))?;
        // Its programs have the mount in use.
        running.stop(Signal::QUIT)?;
        bench.recover()?;
        running = server.start()?;
        before = server.compare(&acknowledged)?;
    }
    let status = running.stop(Signal::INT)?;
    if !status.success() {
        return Err(format!("the server ended: {status}: {}", server.log()));
    }
    server.call("pg_checksums", &["--check"]).map(drop)
}

/// The installed programs, and where the database lies.
struct Installed {
    programs: PathBuf,
    data: PathBuf,
    /// For sockets and the log; not on the mount.
    folder: PathBuf,
}

impl Installed {
    fn find(bench: &Bench) -> Result<Installed, String> {
        let failed = |error: std::io::Error| format!("a place for PostgreSQL: {error}");
        let programs = programs().ok_or("no programs of PostgreSQL")?;
        let (data, folder) = (bench.point().join("postgres"), bench.outside().join("run"));
        for path in [&data, &folder] {
            fs::create_dir(path).map_err(failed)?;
            chown(path, Some(USER), Some(USER)).map_err(failed)?;
        }
        Ok(Installed { programs, data, folder })
    }

    /// A program of PostgreSQL by the server's user.
    fn command(&self, name: &str) -> Command {
        let mut command = within(PATIENCE, self.programs.join(name));
        self.environment(&mut command);
        command
    }

    fn environment(&self, command: &mut Command) {
        command.uid(USER).gid(USER).current_dir(&self.folder).env("LC_ALL", "C");
        command.env("PGDATA", &self.data).env("PGHOST", &self.folder).env("PGUSER", "postgres");
        command.env("PGDATABASE", "postgres").env("HOME", &self.folder);
    }

    fn call(&self, name: &str, words: &[&str]) -> Result<String, String> {
        let mut command = self.command(name);
        if name == "initdb" {
            command.args(["-U", "postgres"]);
        }
        output(command.args(words)).map_err(|why| format!("{why}\n{}", self.log()))
    }

    fn ask(&self, question: &str) -> Result<String, String> {
        self.call("psql", &["-qAt", "-F", " ", "-c", question])
    }

    /// The end of what the server has said.
    fn log(&self) -> String {
        let text = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        let lines: Vec<_> = text.lines().rev().take(10).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// Starts the server, and returns when it has recovered and answers.
    fn start(&self) -> Result<Server, String> {
        let failed = |error: std::io::Error| format!("the server: {error}");
        let log = File::options().create(true).append(true).open(self.folder.join("log"));
        let log = log.map_err(failed)?;
        let mut command = Command::new(self.programs.join("postgres"));
        self.environment(&mut command);
        command.args(["-c", "listen_addresses=", "-c", "shared_buffers=32MB"]);
        command.args(["-c", "restart_after_crash=off", "-k"]).arg(&self.folder);
        let log_too = log.try_clone().map_err(failed)?;
        command.stdin(Stdio::null()).stdout(log_too).stderr(log);
        let mut server = Server(command.spawn().map_err(failed)?);
        let deadline = Instant::now() + PATIENCE;
        loop {
            if self.call("pg_isready", &["-q"]).is_ok() {
                return Ok(server);
            }
            if let Ok(Some(status)) = server.0.try_wait() {
                return Err(format!("the server ended: {status}: {}", self.log()));
            }
            if Instant::now() > deadline {
                return Err(format!("the server does not answer: {}", self.log()));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Kills the daemon after `count` commits, beside pgbench; number of the last commit that was
    /// acknowledged to each session. They go on from `before`.
    fn commits_until_killed(
        &self,
        bench: &Bench,
        before: &[u64],
        count: u64,
    ) -> Result<Vec<u64>, String> {
        let log = File::create(self.folder.join("pgbench.log")).map_err(|e| e.to_string())?;
        let time = PATIENCE.as_secs().to_string();
        let mut load = self.command("pgbench");
        load.args(["-n", "-c", "4", "-j", "2", "-T", &time]).stdout(Stdio::null()).stderr(log);
        let mut load = load.spawn().map_err(|error| format!("pgbench: {error}"))?;
        let made = AtomicU64::new(0);
        let acknowledged = std::thread::scope(|scope| {
            let sessions: Vec<_> = (0u64..)
                .zip(before)
                .map(|(session, before)| {
                    let made = &made;
                    scope.spawn(move || {
                        self.session(session, *before, || {
                            if made.fetch_add(1, Ordering::Relaxed) + 1 == count {
                                bench.kill()?;
                            }
                            Ok(())
                        })
                    })
                })
                .collect();
            let ended = |session: std::thread::ScopedJoinHandle<'_, _>| {
                session.join().unwrap_or_else(|_| Err("a session panicked".to_owned()))
            };
            sessions.into_iter().map(ended).collect::<Result<Vec<_>, String>>()
        });
        let status = load.wait().map_err(|error| error.to_string())?;
        let made = made.into_inner();
        if status.success() || made < count {
            // Else the daemon goes on below a server that has failed.
            return Err(format!("{made} commits before the kill, {status}: {}", self.log()));
        }
        acknowledged
    }

    /// One session: commits until one fails; number of the last that did not.
    fn session(
        &self,
        session: u64,
        before: u64,
        each: impl Fn() -> Result<(), String>,
    ) -> Result<u64, String> {
        let failed = |error: std::io::Error| format!("psql: {error}");
        let mut command = self.command("psql");
        command.args(["-qAt", "-v", "ON_ERROR_STOP=1"]).stderr(Stdio::null());
        let mut psql =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let mut questions = psql.stdin.take().ok_or("no pipe")?;
        let answers = BufReader::new(psql.stdout.take().ok_or("no pipe")?);
        let mut acknowledged = before;
        let insert = |n: u64| {
            format!("insert into acknowledged values ({session}, {n}) returning n;\n").into_bytes()
        };
        questions.write_all(&insert(before + 1)).map_err(failed)?;
        // psql prints the row when the server has said that the transaction is complete.
        for answer in answers.lines() {
            if answer.map_err(failed)? != (acknowledged + 1).to_string() {
                break;
            }
            acknowledged += 1;
            each()?;
            if questions.write_all(&insert(acknowledged + 1)).is_err() {
                break;
            }
        }
        drop(questions);
        psql.wait().map_err(failed)?;
        Ok(acknowledged)
    }

    /// What PostgreSQL has, beside what it acknowledged; how far each session has come.
    fn compare(&self, acknowledged: &[u64]) -> Result<Vec<u64>, String> {
        let mut reached = Vec::new();
        for (session, due) in (0..).zip(acknowledged) {
            let question = "select count(*), coalesce(max(n), 0) from acknowledged where session";
            let found = self.ask(&format!("{question} = {session}"))?;
            let numbers: Vec<u64> = found.split_whitespace().flat_map(str::parse).collect();
            let [count, last] = numbers[..] else { return Err(format!("psql said {found}")) };
            if count != last || last < *due {
                return Err(format!("session {session}: rows {found} of {due} acknowledged"));
            }
            reached.push(last);
        }
        let balances = self.ask(BALANCES)?;
        let mut sums = balances.split_whitespace();
        let first = sums.next();
        if first.is_none() || sums.any(|sum| Some(sum) != first) {
            return Err(format!("sums of pgbench's tables: {balances}"));
        }
        self.call("pg_amcheck", &["--install-missing", "--heapallindexed", "--all"])?;
        Ok(reached)
    }
}

/// The folder of the newest version that Debian has installed.
pub(super) fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let number = |path: &Path| -> Option<u32> { path.file_name()?.to_str()?.parse().ok() };
    versions
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.join("bin/initdb").is_file())
        .max_by_key(|path| number(path))
        .map(|path| path.join("bin"))
}

/// A running server, ended with its value.
struct Server(Child);

impl Server {
    /// Ends it by a signal: SIGQUIT at once, as after a crash; SIGINT in good order.
    fn stop(&mut self, signal: Signal) -> Result<ExitStatus, String> {
        // It may have ended by itself.
        let _ = kill_process(Pid::from_child(&self.0), signal);
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.0.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL),
                Ok(None) => return Err("the server does not end".into()),
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
