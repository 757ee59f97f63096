//! Programs of the system that a run uses, and whether they are there.

use std::ffi::OsStr;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::{Doing, Error, Result};
use crate::leftovers;

/// Where a program is: administrators' folders count, which a user's PATH may lack.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin", "/bin"];
    std::env::split_paths(&path)
        .chain(usual.iter().map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// Runs a program to its end; what it prints is returned.
///
/// # Errors
/// It is not installed, or ended with another status than 0: its last line says why.
pub(crate) fn run<A: AsRef<OsStr>>(name: &str, args: &[A]) -> Result<String> {
    let (code, output) = status(name, args)?;
    if code == Some(0) {
        return Ok(output);
    }
    Err(failed(name, code, &output))
}

fn failed(name: &str, code: Option<i32>, output: &str) -> Error {
    let last = output.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no message");
    let code = code.map_or("killed by a signal".to_owned(), |code| format!("status {code}"));
    Error::new(format!("{name}: {code}: {last}"))
}

/// How often a program with a limit is asked whether it has ended.
const PERIOD: Duration = Duration::from_millis(1);

/// Runs a program that prints little, and ends it after `limit`; whether it came to its own end.
///
/// # Errors
/// Those of [`run`]; whatever `go_on` says, which is asked meanwhile.
pub(crate) fn run_within<A: AsRef<OsStr>>(
    name: &str,
    args: &[A],
    limit: Duration,
    go_on: &dyn Fn() -> Result<()>,
) -> Result<bool> {
    let began = Instant::now();
    let mut child = command(name)?
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .doing(format_args!("starting {name}"))?;
    loop {
        if let Some(status) = child.try_wait().doing(format_args!("waiting for {name}"))? {
            if status.success() {
                return Ok(true);
            }
            let mut output = Vec::new();
            if let Some(mut errors) = child.stderr.take() {
                // The status alone tells enough.
                let _ = errors.read_to_end(&mut output);
            }
            return Err(failed(name, status.code(), &String::from_utf8_lossy(&output)));
        }
        let is_wanted = go_on();
        if is_wanted.is_err() || began.elapsed() >= limit {
            child.kill().and_then(|()| child.wait()).doing(format_args!("ending {name}"))?;
            return is_wanted.map(|()| false);
        }
        std::thread::sleep(PERIOD);
    }
}

/// Runs a program to its end; its exit status (`None`: a signal) and all that it printed.
///
/// # Errors
/// It cannot be started.
pub(crate) fn status<A: AsRef<OsStr>>(name: &str, args: &[A]) -> Result<(Option<i32>, String)> {
    let output = command(name)?.args(args).output().doing(format_args!("starting {name}"))?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    Ok((output.status.code(), text))
}

fn command(name: &str) -> Result<Command> {
    let program = find(name).ok_or_else(|| Error::new(format!("{name} is not installed")))?;
    let mut command = Command::new(program);
    leftovers::mark(&mut command).env("LC_ALL", "C").stdin(Stdio::null());
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault model: a program that hangs, that fails, or whose run is called off.
    #[test]
    fn a_program_is_ended_after_its_limit() {
        let run = |args: &[&str], limit| run_within("sh", args, limit, &|| Ok(()));
        assert!(!run(&["-c", "exec sleep 1000"], Duration::from_millis(20)).unwrap());
        assert!(run(&["-c", "exit 0"], Duration::from_secs(1000)).unwrap());
        let error = run(&["-c", "echo no room >&2; exit 3"], Duration::from_secs(1000));
        assert_eq!(error.unwrap_err().to_string(), "sh: status 3: no room");
        let no = || Err(Error::new("interrupted"));
        let error = run_within("sleep", &["1000"], Duration::from_secs(1000), &no);
        assert_eq!(error.unwrap_err().to_string(), "interrupted");
    }
}
