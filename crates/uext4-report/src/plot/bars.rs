//! Rows: a label, and below it a bar, a stack, or marks on an axis.

use super::canvas::{Canvas, GRID, INK, Look, MUTED, Shape, Side, width_of};
use super::scale::Scale;
use crate::metric::short;

/// A bar with what its figure lies between.
#[derive(Clone, Debug)]
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) look: Look,
    pub(crate) value: f64,
    pub(crate) bounds: (f64, f64),
    /// The figure as text.
    pub(crate) text: String,
}

/// Marks on a line.
#[derive(Clone, Debug)]
pub(crate) struct Dots {
    pub(crate) label: String,
    pub(crate) look: Look,
    /// From least to most.
    pub(crate) values: Vec<(f64, Shape)>,
}

/// A bar of parts.
#[derive(Clone, Debug)]
pub(crate) struct Stack {
    pub(crate) label: String,
    pub(crate) parts: Vec<(Look, f64)>,
    /// The sum as text.
    pub(crate) text: String,
}

/// A time from one moment to another, in microseconds.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) label: String,
    pub(crate) look: Look,
    pub(crate) from: f64,
    pub(crate) to: f64,
}

/// A ratio with its interval.
#[derive(Clone, Debug)]
pub(crate) struct Forest {
    /// Of its row; empty: it stands in the row of the one before.
    pub(crate) label: String,
    pub(crate) look: Look,
    pub(crate) mean: f64,
    pub(crate) bounds: Option<(f64, f64)>,
    /// Whether that is the least and the most, which is drawn dashed.
    pub(crate) is_range: bool,
    pub(crate) goal: Option<f64>,
}

/// Rows of a plot at most.
pub(crate) const ROWS_MAX: usize = 60;

const LEFT: i32 = 2;
const AXIS: i32 = 30;
/// Between the texts of an axis.
const GAP: i32 = 6;
/// A label is a column where there is room, of so many pixels at most; else it stands above.
const COLUMN_MAX: i32 = 300;
const WIDE_FROM: u32 = 500;

/// Where rows and their labels lie.
#[derive(Clone, Copy)]
struct Rows {
    count: i32,
    /// Pixels of the column of labels; 0 where they stand above.
    column: i32,
}

impl Rows {
    fn of<'a>(width: u32, labels: impl Iterator<Item = &'a str>) -> Self {
        let (mut count, mut longest) = (0, 0);
        for label in labels {
            count += 1;
            longest = longest.max(width_of(label));
        }
        let has_column = width >= WIDE_FROM && longest <= COLUMN_MAX;
        Self { count, column: if has_column { longest + 14 } else { 0 } }
    }

    const fn row(self) -> i32 {
        if self.column > 0 { 30 } else { 44 }
    }

    const fn left(self) -> i32 {
        if self.column > 0 { self.column } else { LEFT }
    }

    const fn bottom(self) -> i32 {
        self.count * self.row()
    }

    const fn height(self, axis: i32) -> u32 {
        (self.bottom() + axis + 6) as u32
    }

    /// Writes the label of a row, and returns the middle of what is below it or beside it.
    fn label(self, canvas: &Canvas<'_>, row: usize, label: &str) -> i32 {
        let top = row as i32 * self.row();
        if self.column > 0 {
            canvas.text(label, (LEFT, top + 15), Side::Right, INK);
            return top + 15;
        }
        canvas.fitting(label, (LEFT, top + 10), canvas.width - LEFT, INK);
        top + 29
    }
}

/// Bars from 0.
pub(crate) fn bars(width: u32, label: &str, rows: &[Bar]) -> String {
    let rows = first(rows);
    let texts = rows.iter().map(|row| width_of(&row.text)).max().unwrap_or(0);
    let at_rows = Rows::of(width, rows.iter().map(|row| row.label.as_str()));
    Canvas::draw((width, at_rows.height(0)), label, |canvas| {
        let right = canvas.width - texts - 12;
        let scale = Scale::zero(rows.iter().flat_map(|row| [row.value, row.bounds.1]));
        let left = at_rows.left();
        let x = |value| left + (scale.place(value) * f64::from(right - left)) as i32;
        for (at, row) in rows.iter().enumerate() {
            let middle = at_rows.label(canvas, at, &row.label);
            let end = x(row.value).max(left + 1);
            canvas.area((left, middle - 7), (end, middle + 7), row.look.ink(), 0.85);
            let (low, high) = (x(row.bounds.0), x(row.bounds.1));
            if high - low > 3 {
                canvas.path(&[(low, middle), (high, middle)], INK, 1, false);
                for x in [low, high] {
                    canvas.path(&[(x, middle - 4), (x, middle + 4)], INK, 1, false);
                }
            }
            let text = end.max(high) + 8;
            canvas.text(&row.text, (text, middle), Side::Right, INK);
        }
    })
}

/// Marks by a logarithmic axis.
pub(crate) fn dots(width: u32, label: &str, rows: &[Dots], text: &dyn Fn(f64) -> String) -> String {
    let rows = first(rows);
    let scale = Scale::log(rows.iter().flat_map(|row| row.values.iter().map(|(v, _)| *v)));
    let at_rows = Rows::of(width, rows.iter().map(|row| row.label.as_str()));
    Canvas::draw((width, at_rows.height(AXIS)), label, |canvas| {
        let x = axis(canvas, scale, at_rows, text, None);
        for (at, row) in rows.iter().enumerate() {
            let middle = at_rows.label(canvas, at, &row.label);
            let ends = row.values.first().zip(row.values.last());
            if let Some(((first, _), (last, _))) = ends {
                let line = [(x(*first), middle), (x(*last), middle)];
                canvas.path(&line, row.look.ink(), 2, false);
            }
            for (value, shape) in &row.values {
                canvas.mark((x(*value), middle), Look { shape: *shape, ..row.look });
            }
        }
    })
}

/// Bars of parts, by one scale.
pub(crate) fn stacked(width: u32, label: &str, rows: &[Stack]) -> String {
    let rows = first(rows);
    let sum = |row: &Stack| row.parts.iter().map(|(_, value)| value).sum::<f64>();
    let texts = rows.iter().map(|row| width_of(&row.text)).max().unwrap_or(0);
    let at_rows = Rows::of(width, rows.iter().map(|row| row.label.as_str()));
    Canvas::draw((width, at_rows.height(0)), label, |canvas| {
        let right = canvas.width - texts - 12;
        let scale = Scale::until(rows.iter().map(sum).fold(0.0, f64::max));
        let left = at_rows.left();
        let x = |value| left + (scale.place(value) * f64::from(right - left)) as i32;
        for (at, row) in rows.iter().enumerate() {
            let middle = at_rows.label(canvas, at, &row.label);
            let mut before = 0.0;
            for (look, value) in &row.parts {
                let (from, to) = (x(before), x(before + value));
                if to > from {
                    canvas.area((from, middle - 8), (to, middle + 8), look.ink(), 0.9);
                }
                before += value;
            }
            canvas.text(&row.text, (x(before) + 8, middle), Side::Right, INK);
        }
    })
}

/// Ratios with their intervals beside 1, and goals as hollow marks.
pub(crate) fn forest(
    width: u32,
    label: &str,
    rows: &[Forest],
    text: &dyn Fn(f64) -> String,
) -> String {
    let rows = first_labelled(rows);
    let values = rows.iter().flat_map(|row| {
        let (lower, upper) = row.bounds.unwrap_or((row.mean, row.mean));
        [row.mean, lower, upper, row.goal.unwrap_or(1.0), 1.0]
    });
    let scale = Scale::log(values);
    let labels = rows.iter().map(|row| row.label.as_str()).filter(|label| !label.is_empty());
    let at_rows = Rows::of(width, labels);
    Canvas::draw((width, at_rows.height(AXIS)), label, |canvas| {
        let x = axis(canvas, scale, at_rows, text, Some(1.0));
        canvas.path(&[(x(1.0), 0), (x(1.0), at_rows.bottom())], MUTED, 2, false);
        let (mut count, mut middle) = (0, 0);
        for row in rows {
            if !row.label.is_empty() {
                middle = at_rows.label(canvas, count, &row.label);
                count += 1;
            }
            if let Some((lower, upper)) = row.bounds {
                let line = [(x(lower), middle), (x(upper), middle)];
                let width = if row.is_range { 1 } else { 3 };
                canvas.path(&line, row.look.ink(), width, row.is_range);
            }
            if let Some(goal) = row.goal {
                let x = x(goal);
                canvas.path(&[(x, middle - 9), (x, middle + 9)], INK, 2, true);
            }
            canvas.mark((x(row.mean), middle), row.look);
        }
    })
}

/// Times on one axis.
pub(crate) fn spans(width: u32, label: &str, rows: &[Span]) -> String {
    let first = rows.iter().map(|row| row.from).fold(f64::MAX, f64::min);
    let last = rows.iter().map(|row| row.to).fold(first, f64::max);
    let scale = Scale::between(first, last);
    let at_rows = Rows::of(width, rows.iter().map(|row| row.label.as_str()));
    Canvas::draw((width, at_rows.height(AXIS)), label, |canvas| {
        let x = axis(canvas, scale, at_rows, &|value| short(value, "us"), None);
        for (at, row) in rows.iter().enumerate() {
            let middle = at_rows.label(canvas, at, &row.label);
            let (from, to) = (x(row.from), x(row.to));
            canvas.area((from, middle - 6), (to.max(from + 3), middle + 6), row.look.ink(), 0.9);
        }
    })
}

/// The rows that are drawn; the page says how many those are ([`ROWS_MAX`]).
fn first<T>(rows: &[T]) -> &[T] {
    &rows[..rows.len().min(ROWS_MAX)]
}

/// The ratios of the rows that are drawn.
fn first_labelled(rows: &[Forest]) -> &[Forest] {
    let labelled = rows.iter().enumerate().filter(|(_, row)| !row.label.is_empty());
    let end = labelled.map(|(at, _)| at).nth(ROWS_MAX);
    &rows[..end.unwrap_or(rows.len())]
}

/// Draws the axis below so many rows, and returns where a value lies. One value may be marked
/// whatever the scale marks; it is within the scale.
fn axis<'a>(
    canvas: &'a Canvas<'_>,
    scale: Scale,
    rows: Rows,
    text: &dyn Fn(f64) -> String,
    always: Option<f64>,
) -> impl Fn(f64) -> i32 + use<'a> {
    let (left, right) = (rows.left() + 12, canvas.width - 26);
    let bottom = rows.bottom() + 2;
    let x = move |value: f64| left + (scale.place(value) * f64::from(right - left)) as i32;
    let about = usize::try_from(canvas.width / 75).unwrap_or(4);
    let others = scale.ticks(about).into_iter().filter(|tick| Some(*tick) != always);
    let mut taken: Vec<(i32, i32)> = Vec::new();
    for tick in always.into_iter().chain(others) {
        let (at, text) = (x(tick), text(tick));
        canvas.path(&[(at, 2), (at, bottom)], GRID, 1, false);
        let half = width_of(&text) / 2;
        let middle = at.max(half + 2).min(canvas.width - half - 2);
        let (from, to) = (middle - half, middle + half);
        // Marks of a logarithmic axis lie close together in places.
        if taken.iter().all(|(first, last)| to + GAP < *first || from > *last + GAP) {
            canvas.text(&text, (middle, bottom + 14), Side::Middle, MUTED);
            taken.push((from, to));
        }
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::times;

    /// Fault model: an axis of tens or thousands that leaves out the 1 that its ratios are beside.
    #[test]
    fn ratios_have_a_mark_at_one() {
        for (least, most) in [(0.9, 1.1), (1e-3, 1e12), (0.2, 900.0), (0.97, 80.0), (1e-12, 1.0)] {
            for width in [340, 760] {
                let row = |mean| Forest {
                    label: "E0".into(),
                    look: Look::of("raw", None),
                    mean,
                    bounds: None,
                    is_range: false,
                    goal: None,
                };
                let svg = forest(width, "ratios", &[row(least), row(most)], &times);
                assert_eq!(svg.matches("\n1.00x\n").count(), 1, "{least} to {most}: {svg}");
            }
        }
    }
}
