//! The examples of the verbs: `uext4 help VERB`, `--help` and the manual pages show them.
//!
//! What: a verb has a table `EXAMPLES` beside its arguments, and
//! `#[command(after_help = examples::help(EXAMPLES))]` attaches it. A test parses every example by
//! the definition of the command line.

use std::fmt::Write;

use clap::Command;
use clap::builder::{StyledStr, Styles};

/// Commands as they are typed, and what each does.
pub(crate) type Examples = &'static [(&'static str, &'static str)];

/// The line above the examples.
const TITLE: &str = "Examples:";

/// The examples as the help shows them, a line each.
pub(crate) fn help(examples: Examples) -> StyledStr {
    let mut text = StyledStr::new();
    let header = *Styles::styled().get_header();
    // Writing to memory does not fail.
    let _ = write!(text, "{header}{TITLE}{header:#}");
    let width = examples.iter().map(|(command, _)| command.len()).max().unwrap_or(0);
    for (command, what) in examples {
        let _ = write!(text, "\n  {command:width$}  {what}");
    }
    text
}

/// The same behind other text of the help.
pub(crate) fn help_after(text: &str, examples: Examples) -> StyledStr {
    let mut all = StyledStr::from(text.trim_end().to_owned());
    let _ = write!(all, "\n\n{}", help(examples).ansi());
    all
}

/// The lines of a verb's help that are examples.
fn lines(verb: &Command) -> Vec<String> {
    let (_, examples) = split(verb);
    examples.lines().map(str::to_owned).collect()
}

/// What stands below the options of a verb's help: without the examples, and the examples.
fn split(verb: &Command) -> (String, String) {
    let help = verb.get_after_long_help().or(verb.get_after_help());
    let help = help.map(ToString::to_string).unwrap_or_default();
    let (text, examples) = help.split_once(&format!("{TITLE}\n")).unwrap_or((&help, ""));
    (text.trim_end().to_owned(), examples.to_owned())
}

/// The command of an example and what it does.
fn example(line: &str) -> (&str, &str) {
    let (command, what) = line.trim_start().split_once("  ").unwrap_or_default();
    (command, what.trim_start())
}

/// The examples in the help of a verb, and the other text below its options.
pub(crate) fn of(verb: &Command) -> (Vec<(String, String)>, String) {
    let owned = |line: &String| {
        let (command, what) = example(line);
        (command.to_owned(), what.to_owned())
    };
    (lines(verb).iter().map(owned).collect(), split(verb).0)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::{example, lines};

    /// Columns of a line of help.
    const COLUMNS: usize = 100;

    /// The words of the part of a shell's command that calls uext4.
    fn words(command: &str) -> Vec<String> {
        let mut calls = command.split(" | ").map(|part| {
            let end = part.find(['>', '<', '&']).unwrap_or(part.len());
            part[..end].trim().to_owned()
        });
        let call = calls.find(|part| part.contains("uext4 ")).expect("a call of uext4");
        let words = call.split_whitespace().map(|word| word.trim_matches('\'').to_owned());
        words.skip_while(|word| word != "uext4").collect()
    }

    #[test]
    fn every_verb_has_three_examples_that_parse() {
        let mut problems = Vec::new();
        for verb in crate::Command::command().get_subcommands().filter(|verb| !verb.is_hide_set()) {
            let name = verb.get_name();
            let lines = lines(verb);
            if lines.len() < 3 {
                problems.push(format!("{name}: {} examples", lines.len()));
            }
            for line in lines {
                let (command, what) = example(&line);
                if what.is_empty() || line.len() > COLUMNS {
                    problems.push(format!("{name}: says nothing, or is too long: {line}"));
                }
                let words = words(command);
                if words.get(1).map(String::as_str) != Some(name) {
                    problems.push(format!("{name}: is of another verb: {line}"));
                }
                if let Err(error) = crate::Command::try_parse_from(&words) {
                    problems.push(format!("{name}: {line}: {}", crate::usage::sentence(&error)));
                }
            }
        }
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }
}
