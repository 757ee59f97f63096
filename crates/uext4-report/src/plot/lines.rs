//! Lines and steps between two axes.

use super::canvas::{Canvas, GRID, INK, Look, MUTED, Side, width_of};
use super::scale::Scale;

/// A series of points.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) look: Look,
    pub(crate) points: Vec<Mark>,
    /// Marks at the points; steps and long series have none.
    pub(crate) has_marks: bool,
}

/// A point, with what it lies between.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) bounds: Option<(f64, f64)>,
}

/// What lines are drawn in.
pub(crate) struct Plane<'a> {
    pub(crate) label: &'a str,
    pub(crate) x: Scale,
    pub(crate) y: Scale,
    /// Marks of the x axis; empty for those of the scale.
    pub(crate) x_marks: Vec<(f64, String)>,
    pub(crate) x_title: &'a str,
    pub(crate) x_text: &'a dyn Fn(f64) -> String,
    pub(crate) y_text: &'a dyn Fn(f64) -> String,
}

/// Points of a line that are drawn: more than that lie on the same pixels.
const POINTS_MAX: usize = 2_000;

const TOP: i32 = 12;
const BOTTOM: i32 = 46;
const RIGHT: i32 = 16;

/// Draws lines into a plane.
pub(crate) fn lines(width: u32, plane: &Plane<'_>, lines: &[Line]) -> String {
    let height = if width < 500 { 250 } else { 320 };
    Canvas::draw((width, height), plane.label, |canvas| {
        let frame = Frame::new(canvas, plane, height as i32);
        frame.axes();
        for line in lines {
            frame.line(line);
        }
    })
}

struct Frame<'a, 'b, 'c> {
    canvas: &'a Canvas<'b>,
    plane: &'a Plane<'c>,
    left: i32,
    right: i32,
    bottom: i32,
}

impl<'a, 'b, 'c> Frame<'a, 'b, 'c> {
    fn new(canvas: &'a Canvas<'b>, plane: &'a Plane<'c>, height: i32) -> Self {
        let ticks = plane.y.ticks(6).into_iter().map(|tick| width_of(&(plane.y_text)(tick)));
        let left = ticks.max().unwrap_or(0) + 14;
        Self { canvas, plane, left, right: canvas.width - RIGHT, bottom: height - BOTTOM }
    }

    fn x(&self, value: f64) -> i32 {
        self.left + (self.plane.x.place(value) * f64::from(self.right - self.left)) as i32
    }

    fn y(&self, value: f64) -> i32 {
        self.bottom - (self.plane.y.place(value) * f64::from(self.bottom - TOP)) as i32
    }

    fn axes(&self) {
        let canvas = self.canvas;
        for tick in self.plane.y.ticks(6) {
            let y = self.y(tick);
            canvas.path(&[(self.left, y), (self.right, y)], GRID, 1, false);
            canvas.text(&(self.plane.y_text)(tick), (self.left - 8, y), Side::Left, MUTED);
        }
        let line = [(self.left, self.bottom), (self.right, self.bottom)];
        canvas.path(&line, MUTED, 1, false);
        let about = usize::try_from((self.right - self.left) / 80).unwrap_or(4);
        let marks = match self.plane.x_marks.is_empty() {
            true => {
                let ticks = self.plane.x.ticks(about).into_iter();
                ticks.map(|tick| (tick, (self.plane.x_text)(tick))).collect()
            }
            false => self.plane.x_marks.clone(),
        };
        let mut free_from = i32::MIN;
        for (value, text) in marks {
            let x = self.x(value);
            canvas.path(&[(x, self.bottom), (x, self.bottom + 4)], MUTED, 1, false);
            let half = width_of(&text) / 2;
            let middle = x.min(canvas.width - half - 2);
            if middle - half > free_from {
                canvas.text(&text, (middle, self.bottom + 15), Side::Middle, MUTED);
                free_from = middle + half + 6;
            }
        }
        let middle = i32::midpoint(self.left, self.right);
        canvas.text(self.plane.x_title, (middle, self.bottom + 35), Side::Middle, INK);
    }

    fn line(&self, line: &Line) {
        let ink = line.look.ink();
        let every = line.points.len().div_ceil(POINTS_MAX).max(1);
        let shown: Vec<&Mark> = line.points.iter().step_by(every).collect();
        let points: Vec<(i32, i32)> =
            shown.iter().map(|point| (self.x(point.x), self.y(point.y))).collect();
        for (point, (x, _)) in shown.iter().zip(&points) {
            let Some((least, most)) = point.bounds else { continue };
            let (low, high) = (self.y(least), self.y(most));
            if low - high > 3 {
                self.canvas.path(&[(*x, low), (*x, high)], ink, 1, false);
                for y in [low, high] {
                    self.canvas.path(&[(x - 3, y), (x + 3, y)], ink, 1, false);
                }
            }
        }
        if points.len() > 1 {
            self.canvas.path(&points, ink, 2, line.look.is_dashed);
        }
        if line.has_marks || points.len() == 1 {
            points.iter().for_each(|point| self.canvas.mark(*point, line.look));
        }
    }
}
