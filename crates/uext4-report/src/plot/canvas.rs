//! What plots draw on, and how series look.

use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Colours of text and lines: keys that the style of the page overrides.
pub(super) const INK: RGBColor = RGBColor(0x1C, 0x24, 0x30);
pub(super) const MUTED: RGBColor = RGBColor(0x5B, 0x66, 0x75);
pub(super) const GRID: RGBColor = RGBColor(0xE3, 0xE7, 0xEC);
/// Colours of series, told apart by colour-blind readers.
const SERIES: [RGBColor; 8] = [
    RGBColor(0x0B, 0x62, 0xB0),
    RGBColor(0x0F, 0x8A, 0x8A),
    RGBColor(0xC2, 0x4E, 0x00),
    RGBColor(0x8A, 0x3F, 0xA0),
    RGBColor(0x5F, 0x6B, 0x7A),
    RGBColor(0x6B, 0x7A, 0x01),
    RGBColor(0xC2, 0x18, 0x5B),
    RGBColor(0x7A, 0x4B, 0x2A),
];
/// How many parts of a stack have a colour of their own.
pub(crate) const PARTS: usize = SERIES.len();

/// Shape of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Circle,
    Square,
    Diamond,
    Triangle,
}

/// How a series looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// Place among the colours of series.
    pub(crate) colour: usize,
    pub(crate) shape: Shape,
    pub(crate) is_dashed: bool,
}

impl Look {
    /// The look of a target, or of one of its variants, of which `number` counts from 0.
    pub(crate) fn of(target: &str, variant: Option<usize>) -> Self {
        let targets = ["uext4", "uext4-mount", "kernel", "fuse2fs", "raw", "mke2fs"];
        let known = targets.iter().position(|known| *known == target);
        let colour = known.unwrap_or_else(|| 6 + target.len() % 2);
        let shapes = [Shape::Circle, Shape::Square, Shape::Diamond, Shape::Triangle];
        match variant {
            None => Self { colour, shape: shapes[colour % 4], is_dashed: false },
            Some(number) => {
                // Variants of a target have its neighbours' colours, and dashed lines.
                let colour = [6, 7, 5, 3, 1][number % 5];
                Self { colour, shape: shapes[(number + 1) % 4], is_dashed: true }
            }
        }
    }

    /// The look of a part of a stack.
    pub(crate) fn part(number: usize) -> Self {
        let colour = [2, 0, 5, 3, 1, 6, 7, 4][number % PARTS];
        Self { colour, shape: Shape::Square, is_dashed: false }
    }

    pub(super) fn ink(self) -> RGBColor {
        SERIES[self.colour % SERIES.len()]
    }

    /// A sign for a legend.
    pub(crate) fn sign(self) -> String {
        Canvas::draw((24, 14), "", |canvas| {
            let line = [(0, 7), (24, 7)];
            canvas.path(&line, self.ink(), 2, self.is_dashed);
            canvas.mark((12, 7), self);
        })
    }

    /// A patch for a legend of areas.
    pub(crate) fn patch(self) -> String {
        Canvas::draw((14, 14), "", |canvas| canvas.area((1, 1), (13, 13), self.ink(), 1.0))
    }
}

/// Where a text lies beside its place.
#[derive(Clone, Copy, Debug)]
pub(super) enum Side {
    Left,
    Middle,
    Right,
}

/// Pixels of a text of 12 pixels, about.
pub(super) fn width_of(text: &str) -> i32 {
    (text.chars().count() as f64 * 6.7).ceil() as i32
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// A picture of some size. Drawing into text does not fail, so its results are not looked at.
pub(super) struct Canvas<'a> {
    area: Area<'a>,
    pub(super) width: i32,
}

impl Canvas<'_> {
    /// A picture as SVG that says what it shows; without a label it is decoration.
    pub(super) fn draw(size: (u32, u32), label: &str, draw: impl FnOnce(&Canvas<'_>)) -> String {
        let mut text = String::new();
        {
            let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
            let canvas = Canvas { area, width: i32::try_from(size.0).unwrap_or(i32::MAX) };
            draw(&canvas);
            let _ = canvas.area.present();
        }
        let svg = text.find("<svg").map_or("", |at| &text[at + 4..]);
        let label = label.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;");
        let role = match label.is_empty() {
            true => "aria-hidden=\"true\"".to_owned(),
            false => format!("role=\"img\" aria-label=\"{label}\""),
        };
        // Its text is the page's.
        format!("<svg {role}{svg}").replace(" font-family=\"sans-serif\"", "")
    }

    pub(super) fn text(&self, text: &str, at: (i32, i32), side: Side, colour: RGBColor) {
        let h = match side {
            Side::Left => HPos::Right,
            Side::Middle => HPos::Center,
            Side::Right => HPos::Left,
        };
        // The backend divides by 1.24.
        let style = ("sans-serif", 15).into_font().color(&colour).pos(Pos::new(h, VPos::Center));
        let _ = self.area.draw_text(text, &style, at);
    }

    /// A text that ends before `width` pixels are over.
    pub(super) fn fitting(&self, text: &str, at: (i32, i32), width: i32, colour: RGBColor) {
        if width_of(text) <= width {
            return self.text(text, at, Side::Right, colour);
        }
        let fits = usize::try_from(width / 7).unwrap_or(0).saturating_sub(2).max(3);
        let cut: String = text.chars().take(fits).collect();
        self.text(&(cut + "\u{2026}"), at, Side::Right, colour);
    }

    pub(super) fn path(&self, points: &[(i32, i32)], colour: RGBColor, width: u32, dashed: bool) {
        let style = ShapeStyle { color: colour.to_rgba(), filled: false, stroke_width: width };
        if dashed {
            let dashes = DashedPathElement::new(points.iter().copied(), 6, 4, style);
            let _ = self.area.draw(&dashes);
        } else {
            let _ = self.area.draw(&PathElement::new(points.to_vec(), style));
        }
    }

    pub(super) fn area(&self, a: (i32, i32), b: (i32, i32), colour: RGBColor, opacity: f64) {
        let _ = self.area.draw(&Rectangle::new([a, b], colour.mix(opacity).filled()));
    }

    pub(super) fn polygon(&self, points: Vec<(i32, i32)>, colour: RGBColor, opacity: f64) {
        let _ = self.area.draw(&Polygon::new(points, colour.mix(opacity).filled()));
    }

    pub(super) fn mark(&self, (x, y): (i32, i32), look: Look) {
        let colour = look.ink();
        match look.shape {
            Shape::Circle => {
                let _ = self.area.draw(&Circle::new((x, y), 4, colour.filled()));
            }
            Shape::Square => self.area((x - 4, y - 4), (x + 4, y + 4), colour, 1.0),
            Shape::Diamond => {
                let points = vec![(x, y - 5), (x + 5, y), (x, y + 5), (x - 5, y)];
                self.polygon(points, colour, 1.0);
            }
            Shape::Triangle => {
                self.polygon(vec![(x, y - 5), (x + 5, y + 4), (x - 5, y + 4)], colour, 1.0);
            }
        }
    }
}
