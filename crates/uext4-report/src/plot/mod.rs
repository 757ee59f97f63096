//! Plots as SVG, each in two widths: one for a window, one for a telephone.
//!
//! What: [`Canvas`] draws by plotters in pixels; the kinds of plots are in `bars` and `lines`.
//!
//! Invariant: a colour is a key that the page's style gives its value, so that light and dark have
//! their own; marks differ in their shape as well. Text is text, of 12 pixels.

mod bars;
mod canvas;
mod lines;
mod scale;

pub(crate) use bars::{
    Bar, Dots, Forest, ROWS_MAX, Span, Stack, bars, dots, forest, spans, stacked,
};
pub(crate) use canvas::{Look, PARTS, Shape};
pub(crate) use lines::{Line, Mark, Plane, lines};
pub(crate) use scale::Scale;

/// The widths that every plot is drawn in.
pub(crate) const WIDE: u32 = 760;
pub(crate) const NARROW: u32 = 340;

/// A plot in both widths.
#[derive(Clone, Debug)]
pub(crate) struct Plot {
    pub(crate) wide: String,
    pub(crate) narrow: String,
    /// Rows that it should have; it has [`ROWS_MAX`] at most.
    pub(crate) rows: usize,
}

impl Plot {
    /// Draws by a function of the width.
    pub(crate) fn of(draw: impl Fn(u32) -> String) -> Self {
        Self::of_rows(0, draw)
    }

    /// The same of so many rows.
    pub(crate) fn of_rows(rows: usize, draw: impl Fn(u32) -> String) -> Self {
        Self { wide: draw(WIDE), narrow: draw(NARROW), rows }
    }
}
