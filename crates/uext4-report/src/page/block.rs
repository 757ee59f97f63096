//! What pages are put together from: a plot with its legend and the table under it.

use maud::{Markup, PreEscaped, html};

use crate::plot::{Plot, ROWS_MAX as PLOT_ROWS_MAX};

/// Rows and columns of a table that a page shows.
pub(super) const ROWS_MAX: usize = 2_000;
pub(super) const COLUMNS_MAX: usize = 60;
/// Rows of a table under a plot that stand open.
const OPEN_MAX: usize = 40;

/// A table; the first column names its rows.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    pub(super) caption: String,
    pub(super) head: Vec<String>,
    pub(super) rows: Vec<Vec<Cell>>,
    /// Rows and columns that were not even made.
    rows_left_out: usize,
    columns_left_out: usize,
}

/// A cell, with what it is marked as: `win`, `loss` or nothing.
#[derive(Clone, Debug, Default)]
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) class: &'static str,
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.into(), class: "" }
    }
}

impl Cell {
    /// Words, which begin at the left.
    pub(super) fn words(text: impl Into<String>) -> Self {
        Self::marked(text, "text")
    }

    pub(super) fn marked(text: impl Into<String>, class: &'static str) -> Self {
        Self { text: text.into(), class }
    }
}

impl Table {
    pub(super) fn new(caption: impl Into<String>, head: &[&str]) -> Self {
        let head = head.iter().map(ToString::to_string).collect();
        Self { caption: caption.into(), head, ..Self::default() }
    }

    /// Adds a row, which is made only if it is shown.
    pub(super) fn push(&mut self, row: impl FnOnce() -> Vec<Cell>) {
        if self.rows.len() < ROWS_MAX {
            self.rows.push(row());
        } else {
            self.rows_left_out += 1;
        }
    }

    /// Adds columns, and returns how many of them are shown.
    pub(super) fn columns<'n>(&mut self, names: impl ExactSizeIterator<Item = &'n str>) -> usize {
        let shown = names.len().min(COLUMNS_MAX.saturating_sub(self.head.len()));
        self.columns_left_out += names.len() - shown;
        self.head.extend(names.take(shown).map(str::to_owned));
        shown
    }

    /// How many rows there are, whether they are shown or not.
    pub(super) fn count(&self) -> usize {
        self.rows.len() + self.rows_left_out
    }

    /// The same without columns in which nothing is known.
    pub(super) fn known(mut self) -> Self {
        let is_known = |at: usize| {
            at == 0 || self.rows.iter().any(|row| row.get(at).is_some_and(|cell| cell.text != "-"))
        };
        let kept: Vec<bool> = (0..self.head.len()).map(is_known).collect();
        let of = |at: usize| kept.get(at).copied().unwrap_or(true);
        for row in &mut self.rows {
            let mut at = 0..;
            row.retain(|_| at.next().is_some_and(of));
        }
        let mut at = 0..;
        self.head.retain(|_| at.next().is_some_and(of));
        self
    }

    /// What a column holds.
    fn kind(&self, column: usize) -> &'static str {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        // Verdicts are words, too.
        if cells.clone().any(|cell| !cell.class.is_empty()) { "text" } else { "" }
    }

    pub(super) fn markup(&self) -> Markup {
        html! {
            div.scroll tabindex="0" role="region" aria-label=(self.caption) {
                table {
                    caption { (self.caption) (self.cut()) }
                    thead {
                        tr {
                            @for (at, name) in self.head.iter().enumerate().take(COLUMNS_MAX) {
                                th.(self.kind(at)) scope="col" { (breakable(name)) }
                            }
                        }
                    }
                    tbody { @for row in self.rows.iter().take(ROWS_MAX) { (row_markup(row)) } }
                }
            }
        }
    }

    /// What of it is not shown, in words.
    fn cut(&self) -> String {
        let mut words = String::new();
        let (rows, columns) = (self.count(), self.head.len() + self.columns_left_out);
        if rows > ROWS_MAX {
            words += &format!("; the first {ROWS_MAX} rows of {rows} are shown");
        }
        if columns > COLUMNS_MAX {
            words += &format!("; the first {COLUMNS_MAX} columns of {columns} are shown");
        }
        words
    }
}

fn row_markup(row: &[Cell]) -> Markup {
    html! {
        tr {
            @for (at, cell) in row.iter().enumerate().take(COLUMNS_MAX) {
                @if at == 0 {
                    th scope="row" { (breakable(&cell.text)) }
                } @else {
                    td class=(cell.class) { (breakable(&cell.text)) }
                }
            }
        }
    }
}

/// A list of options may be broken after each.
pub(super) fn breakable(text: &str) -> Markup {
    html! {
        @for (at, part) in text.split(',').enumerate() {
            @if at > 0 {
                ","
                // A comma within a number is none of a list.
                @if !part.starts_with(|c: char| c.is_ascii_digit()) { wbr; }
            }
            (part)
        }
    }
}

/// A line of a legend: a sign (SVG) and what it means.
pub(super) type Legend = Vec<(String, String)>;

/// A plot, and the same numbers as a table.
pub(super) struct Block {
    pub(super) title: String,
    pub(super) note: String,
    pub(super) plot: Plot,
    pub(super) legend: Legend,
    pub(super) table: Table,
}

impl Block {
    pub(super) fn markup(&self) -> Markup {
        html! {
            figure.block {
                figcaption {
                    h3 { (self.title) }
                    @if !self.note.is_empty() { p.note { (self.note) } }
                }
                @if !self.legend.is_empty() {
                    ul.legend {
                        @for (sign, name) in &self.legend {
                            li { (PreEscaped(sign)) span { (name) } }
                        }
                    }
                }
                div.plot.wide { (PreEscaped(&self.plot.wide)) }
                div.plot.narrow { (PreEscaped(&self.plot.narrow)) }
                @if self.plot.rows > PLOT_ROWS_MAX {
                    @let rows = self.plot.rows;
                    p.note { "The plot has the first " (PLOT_ROWS_MAX) " of " (rows) " rows." }
                }
                @if self.table.rows.len() > OPEN_MAX {
                    details {
                        summary { "The numbers (" (self.table.count()) " rows)" }
                        (self.table.markup())
                    }
                } @else {
                    (self.table.markup())
                }
            }
        }
    }
}

/// What is special about a panel, as a heading; nothing where there is but one.
pub(super) fn heading(label: &str) -> Markup {
    html! { @if !label.is_empty() { h2.panel { (label) } } }
}
