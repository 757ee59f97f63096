//! What pages are put together from: a plot with its legend and the table under it.

use maud::{Markup, PreEscaped, html};

use crate::plot::Plot;

/// A table; the first column names its rows.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    pub(super) caption: String,
    pub(super) head: Vec<String>,
    pub(super) rows: Vec<Vec<Cell>>,
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
        Self { caption: caption.into(), head, rows: Vec::new() }
    }

    /// What a column holds.
    fn kind(&self, column: usize) -> &'static str {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        if cells.clone().any(|cell| cell.class == "text") { "text" } else { "" }
    }

    pub(super) fn markup(&self) -> Markup {
        html! {
            div.scroll tabindex="0" role="region" aria-label=(self.caption) {
                table {
                    caption { (self.caption) }
                    thead {
                        tr {
                            @for (at, name) in self.head.iter().enumerate() {
                                th.(self.kind(at)) scope="col" { (breakable(name)) }
                            }
                        }
                    }
                    tbody {
                        @for row in &self.rows {
                            tr {
                                @for (at, cell) in row.iter().enumerate() {
                                    @if at == 0 {
                                        th scope="row" { (breakable(&cell.text)) }
                                    } @else {
                                        td class=(cell.class) { (breakable(&cell.text)) }
                                    }
                                }
                            }
                        }
                    }
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
                (self.table.markup())
            }
        }
    }
}

/// What is special about a panel, as a heading; nothing where there is but one.
pub(super) fn heading(label: &str) -> Markup {
    html! { @if !label.is_empty() { h2.panel { (label) } } }
}
