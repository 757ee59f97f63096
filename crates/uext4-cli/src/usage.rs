//! Wrong usage: what clap has to say, in the one line of every failure of this command.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, CommandFactory};

use crate::Command;
use crate::failure::say;
use crate::verb::{fsck, lab};

/// Ends the command with what clap has to say of `words`: help that was asked for with status 0,
/// help because no verb was named with status 2, and a wrong word with status 2, or 16 from `fsck`,
/// as of fsck(8), or what ends a search of `lab --bisect`.
pub(crate) fn exit(error: &clap::Error, words: &[OsString]) -> ! {
    let is_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if !error.use_stderr() || is_help {
        std::process::exit(if error.print().is_ok() { error.exit_code() } else { 1 });
    }
    say(&unknown_verb(error, words).unwrap_or_else(|| sentence(error)));
    std::process::exit(status(words).into());
}

/// Exit status of a wrong word.
fn status(words: &[OsString]) -> u8 {
    let own = words.iter().take_while(|word| *word != "--");
    let bisects = || own.clone().any(|word| word.as_encoded_bytes().starts_with(b"--bisect"));
    match verb(words) {
        Some(verb) if verb == "fsck" => fsck::USAGE,
        Some(verb) if verb == "lab" && bisects() => lab::BISECT_END,
        _ => 2,
    }
}

/// The verb. Options of every verb, which take a value, may stand before it.
fn verb(words: &[OsString]) -> Option<&OsString> {
    let command = Command::command();
    let global = command.get_arguments().filter(|arg| arg.is_global_set());
    let global: Vec<String> =
        global.filter_map(Arg::get_long).map(|it| format!("--{it}")).collect();
    let mut words = words.iter().skip(1);
    while let Some(word) = words.next() {
        if global.iter().any(|option| word == option.as_str()) {
            words.next();
        } else if !word.as_encoded_bytes().starts_with(b"-") {
            return Some(word);
        }
    }
    None
}

/// What is said of a verb that there is none of.
fn unknown_verb(error: &clap::Error, words: &[OsString]) -> Option<String> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let Some(ContextValue::String(verb)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    // What the verb would be one of: `lab` has verbs of its own.
    let mut command = Command::command();
    for word in words.iter().skip(1).take_while(|word| *word != verb.as_str()) {
        if let Some(below) = command.find_subcommand(word) {
            command = below.clone();
        }
    }
    let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    let meant = meant(verb, verbs.map(clap::Command::get_name));
    let help = || format!("; `{} --help` lists all", command.get_name());
    let hint = meant.map_or_else(help, |meant| format!("; did you mean '{meant}'?"));
    Some(format!("verb '{}': unknown{hint}", crate::failure::one_line(verb)))
}

/// The one of some names that a word was meant to be: a third of its letters, and one at least, may
/// be wrong.
pub(crate) fn meant<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = names.map(|name| (strsim::damerau_levenshtein(word, name), name)).min();
    let most = (word.chars().count() / 3).max(1);
    near.filter(|(distance, _)| *distance <= most).map(|(_, name)| name)
}

/// What clap has to say, in one line.
pub(crate) fn sentence(error: &clap::Error) -> String {
    joined(&error.render().to_string())
}

/// The paragraphs of a message up to the usage, one after the other.
fn joined(message: &str) -> String {
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let is_said = |line: &&str| !line.starts_with("Usage:") && !line.starts_with("For more info");
    let lines: Vec<&str> = message.lines().map(str::trim).take_while(is_said).collect();
    let paragraphs = lines.split(|line| line.is_empty()).filter(|lines| !lines.is_empty());
    let paragraphs: Vec<String> = paragraphs.map(paragraph).collect();
    crate::failure::one_line(&paragraphs.join("; "))
}

/// A line and what it lists, or tips.
fn paragraph(lines: &[&str]) -> String {
    let tip = |line: &&str| line.strip_prefix("tip: ").unwrap_or(line).to_owned();
    let mut lines = lines.iter().map(tip);
    let first = lines.next().unwrap_or_default();
    let rest: Vec<String> = lines.collect();
    match first.ends_with(':') {
        true => format!("{first} {}", rest.join(", ")),
        false => [vec![first], rest].concat().join("; "),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn a_verb_that_was_meant_is_named() {
        for (words, want) in [
            (&["uext4", "sl"][..], "verb 'sl': unknown; did you mean 'ls'?"),
            (&["uext4", "mkfz", "disk.img"], "verb 'mkfz': unknown; did you mean 'mkfs'?"),
            (&["uext4", "help", "umuont"], "verb 'umuont': unknown; did you mean 'umount'?"),
            (&["uext4", "lab", "rnu"], "verb 'rnu': unknown; did you mean 'run'?"),
            (
                &["uext4", "-q", "frobnicate"],
                "verb 'frobnicate': unknown; `uext4 --help` lists all",
            ),
        ] {
            let error = Command::try_parse_from(words).err().expect("no such verb");
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            assert_eq!(unknown_verb(&error, &words).as_deref(), Some(want));
        }
    }

    #[test]
    fn a_message_of_clap_becomes_one_line() {
        let cases = [
            (
                "error: unexpected argument '--formt' found\n\n  tip: a similar argument exists: \
                 '--format'\n\nUsage: uext4 ls --format\n\nFor more information, try '--help'.\n",
                "unexpected argument '--formt' found; a similar argument exists: '--format'",
            ),
            (
                "error: the following required arguments were not provided:\n  <IMAGE>\n  <DIR>\n\
                 \nUsage: uext4 mount <IMAGE> <DIR>\n",
                "the following required arguments were not provided: <IMAGE>, <DIR>",
            ),
            (
                "error: invalid value 'x' for '--rounds <ROUNDS>': invalid digit found in string\n\
                 \nFor more information, try '--help'.\n",
                "invalid value 'x' for '--rounds <ROUNDS>': invalid digit found in string",
            ),
        ];
        for (message, want) in cases {
            assert_eq!(joined(message), want);
        }
    }
}
