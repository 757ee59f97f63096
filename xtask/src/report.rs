//! What test programs say, reduced to what a reader needs.
//!
//! # What
//! Results, failures, the reasons of tests that did not run, and the time of each program, read
//! from the lines of `cargo test -- --show-output`, its own included.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

/// Programs that the table of the slowest has.
const SLOWEST: usize = 5;

/// What the test programs have said so far.
#[derive(Default)]
pub(crate) struct Report {
    passed: u64,
    failed: u64,
    /// Inside the section that repeats the output of tests that passed.
    in_successes: bool,
    /// The test whose output is being repeated.
    current: String,
    /// Tests that did not run, each with its reason.
    skipped: Vec<(String, String)>,
    /// The crate whose programs run, and the program.
    crate_name: String,
    program: String,
    pub(crate) times: Times,
}

/// Programs, each with its seconds.
#[derive(Default)]
pub(crate) struct Times(Vec<(f64, String)>);

impl Report {
    /// Runs a test command and shows what is worth showing, or all; true if it succeeded.
    pub(crate) fn follow(command: &mut Command, verbose: bool) -> std::io::Result<(bool, Self)> {
        // One pipe, since cargo names a program on one stream and the program uses the other.
        let (output, input) = std::io::pipe()?;
        command.stdin(Stdio::null()).stdout(input.try_clone()?).stderr(input);
        let mut child = command.spawn()?;
        // The command holds the pipe's other end, which would never end.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut report = Self::default();
        let mut screen = std::io::stdout();
        for line in BufReader::new(output).split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            if report.show(&line) || verbose {
                writeln!(screen, "{line}")?;
            }
        }
        let success = child.wait()?.success();
        for (test, reason) in &report.skipped {
            println!("skipped {test}: {reason}");
        }
        Ok((success, report))
    }

    /// Takes in one line; true if it is worth showing.
    fn show(&mut self, line: &str) -> bool {
        if let Some(program) = line.trim_start().strip_prefix("Running ") {
            self.begin_program(program);
        } else if let Some(name) = line.trim_start().strip_prefix("Doc-tests ") {
            self.program = format!("{name} doc-tests");
        }
        if line == "successes:" {
            self.in_successes = true;
            return false;
        }
        if line == "failures:" || line.starts_with("test result:") {
            self.in_successes = false;
        }
        if let Some(counts) = line.strip_prefix("test result:") {
            self.end_program(counts);
            return number_before(counts, "passed") + number_before(counts, "failed") > 0;
        }
        if self.in_successes {
            if let Some(name) = line.strip_prefix("---- ") {
                self.current = name.split(' ').next().unwrap_or(name).to_owned();
            } else if let Some(reason) = skip_reason(line) {
                self.skipped.push((self.current.clone(), reason.to_owned()));
            }
            return false;
        }
        if let Some(test) = line.strip_prefix("test ") {
            if let Some(ignored) = ignored(test) {
                self.skipped.push(ignored);
                return false;
            }
            return !line.ends_with("... ok");
        }
        !line.is_empty() && !line.starts_with("running ")
    }

    /// `unittests src/lib.rs (target/debug/deps/uext4-0123456789abcdef)`, or `tests/full.rs (...)`.
    /// The tests of a crate follow its own.
    fn begin_program(&mut self, words: &str) {
        self.in_successes = false;
        let (source, file) = words.split_once(" (").unwrap_or((words, ""));
        let file = file.rsplit('/').next().unwrap_or(file);
        if source.starts_with("unittests") || self.crate_name.is_empty() {
            self.crate_name = file.split('-').next().unwrap_or(file).to_owned();
        }
        self.program = format!("{} {}", self.crate_name, source.trim_start_matches("unittests "));
    }

    fn end_program(&mut self, counts: &str) {
        self.passed += number_before(counts, "passed");
        self.failed += number_before(counts, "failed");
        let seconds = counts
            .rsplit_once("finished in ")
            .and_then(|(_, time)| time.trim().strip_suffix('s')?.parse().ok());
        self.times.0.extend(seconds.map(|seconds| (seconds, std::mem::take(&mut self.program))));
    }

    /// The remark of the step.
    pub(crate) fn summary(&self) -> String {
        format!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped.len())
    }
}

impl Times {
    pub(crate) fn extend(&mut self, more: Self) {
        self.0.extend(more.0);
    }

    /// The slowest first, a line each.
    pub(crate) fn slowest(&mut self) -> Vec<String> {
        self.0.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        let slowest = self.0.iter().take(SLOWEST);
        slowest.map(|(seconds, program)| format!("  {program:<30}{seconds:>7.1} s")).collect()
    }
}

/// Name and reason of a test that is not run: `a::b ... ignored, REASON`.
fn ignored(test: &str) -> Option<(String, String)> {
    let (name, rest) = test.split_once(" ... ignored")?;
    let reason = rest.strip_prefix(", ").unwrap_or("ignored, without a reason");
    Some((name.to_owned(), reason.to_owned()))
}

fn skip_reason(line: &str) -> Option<&str> {
    let line = line.trim_start();
    ["skipped:", "SKIPPED:", "skip:", "SKIP:"]
        .iter()
        .find_map(|word| line.strip_prefix(word))
        .map(str::trim)
}

/// The number before a word in `ok. 3 passed; 0 failed; ...`.
fn number_before(counts: &str, word: &str) -> u64 {
    counts
        .split([';', '.'])
        .filter_map(|part| part.trim().strip_suffix(word))
        .find_map(|number| number.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes in a run's output; what is shown of it.
    fn shown<'a>(report: &mut Report, output: &'a str) -> Vec<&'a str> {
        output.lines().filter(|line| report.show(line)).collect()
    }

    #[test]
    fn output_is_reduced_to_results_failures_and_reasons() {
        let output = "\nrunning 3 tests\ntest a::one ... ok\ntest b ... ok\ntest c ... FAILED\n\n\
            successes:\n\n---- b stdout ----\nnoise\nskipped: needs root\n\n\nsuccesses:\n    \
            a::one\n    b\n\nfailures:\n\n---- c stdout ----\nboom\n\nfailures:\n    c\n\n\
            test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; \
            finished in 0.01s\n";
        let mut report = Report::default();
        let shown = shown(&mut report, output);
        assert_eq!(
            shown[..6],
            ["test c ... FAILED", "failures:", "---- c stdout ----", "boom", "failures:", "    c"]
        );
        assert_eq!(shown.len(), 7);
        assert_eq!(report.summary(), "2 passed, 1 failed, 1 skipped");
        assert_eq!(report.skipped, [("b".to_owned(), "needs root".to_owned())]);
    }

    #[test]
    fn ignored_tests_are_skipped_with_their_reasons() {
        let output = "running 3 tests\ntest a::slow ... ignored, takes a minute\n\
            test bare ... ignored\ntest c ... ok\n\n\
            test result: ok. 1 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; \
            finished in 0.00s\n";
        let mut report = Report::default();
        assert_eq!(shown(&mut report, output).len(), 1);
        let skipped = [("a::slow", "takes a minute"), ("bare", "ignored, without a reason")];
        assert_eq!(report.skipped, skipped.map(|(a, b)| (a.to_owned(), b.to_owned())));
        assert_eq!(report.summary(), "1 passed, 0 failed, 2 skipped");
    }

    #[test]
    fn each_program_has_its_time() {
        let result = "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; ";
        let program = |running: &str, seconds: &str| {
            format!("     Running {running}\nrunning 1 test\n{result}finished in {seconds}s\n")
        };
        let output = [
            program("unittests src/lib.rs (target/debug/deps/uext4-0a)", "1.50"),
            program("tests/full.rs (target/debug/deps/full-0b)", "20.25"),
            program("unittests src/lib.rs (target/debug/deps/uext4_sim-0c)", "0.00"),
            program("tests/full.rs (target/debug/deps/full-0d)", "3.00"),
            format!("   Doc-tests uext4\n{result}finished in 2.00s\n"),
        ];
        let mut report = Report::default();
        shown(&mut report, &output.concat());
        let mut times = Times::default();
        times.extend(report.times);
        let slowest = times.slowest();
        let words: Vec<Vec<&str>> =
            slowest.iter().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            words,
            [
                ["uext4", "tests/full.rs", "20.2", "s"],
                ["uext4_sim", "tests/full.rs", "3.0", "s"],
                ["uext4", "doc-tests", "2.0", "s"],
                ["uext4", "src/lib.rs", "1.5", "s"],
                ["uext4_sim", "src/lib.rs", "0.0", "s"],
            ]
        );
    }
}
