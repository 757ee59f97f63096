//! Rows as a user reads them.

use super::{Choice, Row, Value};
use std::fmt::Write;

/// Where the explanation begins in a line of `--help`.
const HELP_COLUMN: usize = 32;
/// Width of a line of `--help`.
const HELP_WIDTH: usize = 80;

impl<T> Row<T> {
    /// Its options as a user types them: `commit=SECONDS`, `dax=always|inode|never`, `ro`.
    #[must_use]
    pub fn forms(&self) -> Vec<String> {
        self.options.iter().flat_map(Choice::forms).collect()
    }
}

impl<T> Choice<T> {
    fn forms(&self) -> Vec<String> {
        let value = match &self.value {
            Value::None(_) | Value::Ignored | Value::Refused(_) => String::new(),
            Value::Text(shown, _) => format!("={shown}"),
            Value::OneOf(values) => {
                let words: Vec<&str> = values.iter().map(|(word, _)| *word).collect();
                format!("={}", words.join("|"))
            }
        };
        self.names.iter().map(|name| format!("{name}{value}")).collect()
    }
}

/// The rows for `--help`: forms, one line of help, the default in brackets.
#[must_use]
pub fn help<T>(rows: &[Row<T>]) -> String {
    let mut text = String::new();
    for row in rows {
        let mut lines = wrap(&row.forms(), HELP_WIDTH - 2);
        let last = lines.pop().unwrap_or_default();
        lines.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
        let default = match row.default {
            "" => String::new(),
            default => format!(" [{default}]"),
        };
        let words: Vec<String> =
            format!("{}{default}", row.help).split(' ').map(str::to_owned).collect();
        let mut explained = fill(&words, " ", HELP_WIDTH - HELP_COLUMN).into_iter();
        // The explanation begins in a line of its own where the forms are long.
        let is_short = last.len() + 3 < HELP_COLUMN;
        let first = if is_short { explained.next().unwrap_or_default() } else { String::new() };
        let line = format!("  {last:width$}{first}", width = HELP_COLUMN - 2);
        text.push_str(line.trim_end());
        text.push('\n');
        for line in explained {
            text.push_str(&format!("{:HELP_COLUMN$}{line}\n", ""));
        }
    }
    text
}

/// A row for a manual page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its options as a user types them.
    pub forms: Vec<String>,
    /// What holds where none of them is given; may be empty.
    pub default: &'static str,
    /// One line.
    pub help: &'static str,
}

/// The rows, for a manual page.
#[must_use]
pub fn entries<T>(rows: &[Row<T>]) -> Vec<Entry> {
    let entry = |row: &Row<T>| Entry { forms: row.forms(), default: row.default, help: row.help };
    rows.iter().map(entry).collect()
}

/// The rows as a table of Markdown: option, default, what it does.
#[must_use]
pub fn markdown<T>(rows: &[Row<T>]) -> String {
    let mut text = String::from("| option | default | does |\n|---|---|---|\n");
    for row in rows {
        let forms: Vec<String> = row.forms().iter().map(|form| format!("`{form}`")).collect();
        let default = match row.default {
            "" => String::new(),
            default if default.contains(' ') => default.to_owned(),
            default => format!("`{default}`"),
        };
        let space = if row.more.is_empty() { "" } else { ". " };
        let does = format!("{}{space}{}", row.help, row.more);
        let cells = [forms.join(", "), default, does].map(|cell| cell.replace('|', "\\|"));
        // Writing to a string does not fail.
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    text
}

/// Items with commas between them, in lines of at most `width` characters.
fn wrap(items: &[String], width: usize) -> Vec<String> {
    let last = items.len().saturating_sub(1);
    let with_commas: Vec<String> = items
        .iter()
        .enumerate()
        .map(|(index, item)| if index == last { item.clone() } else { format!("{item},") })
        .collect();
    fill(&with_commas, " ", width)
}

fn fill(words: &[String], between: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words {
        match lines.last_mut() {
            Some(line) if line.len() + between.len() + word.len() <= width => {
                line.push_str(between);
                line.push_str(word);
            }
            _ => lines.push(word.clone()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{flag, one_of};

    const ROWS: &[Row<()>] = &[
        Row { options: &[flag(&["ro"], |()| {})], default: "rw", help: "read-only", more: "" },
        Row {
            options: &[one_of(&["errors"], &[("continue", |()| {}), ("remount-ro", |()| {})])],
            default: "of the superblock",
            help: "on a corrupt structure",
            more: "More.",
        },
    ];

    #[test]
    fn the_help_has_a_column_for_the_words() {
        assert!(help(ROWS).starts_with("  ro                            read-only [rw]\n"));
        assert!(help(ROWS).lines().all(|line| line.len() <= HELP_WIDTH));
    }

    #[test]
    fn the_table_escapes_its_bars() {
        let table = markdown(ROWS);
        assert!(table.contains("| `ro` | `rw` | read-only |\n"), "{table}");
        let row = "| `errors=continue\\|remount-ro` | of the superblock | \
                   on a corrupt structure. More. |\n";
        assert!(table.contains(row), "{table}");
    }
}
