//! Names beside each other, as ls(1) puts them on a terminal.

use uext4::FileKind;
use unicode_width::UnicodeWidthStr;

use super::{Args, Row};

/// Blanks between columns.
const GAP: usize = 2;
/// The width of a screen that nothing tells.
const WIDTH: usize = 80;
/// The narrowest column: one character and the gap.
const NARROWEST: usize = 1 + GAP;

/// The columns of the screen; `None` where names stand below each other.
pub(super) fn width(args: &Args, is_terminal: bool) -> Option<usize> {
    if args.one || !(args.columns || is_terminal) {
        return None;
    }
    let named = || std::env::var("COLUMNS").ok()?.parse::<usize>().ok();
    let terminal = || {
        let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
        Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
    };
    args.width.or_else(named).or_else(terminal).or(Some(WIDTH))
}

/// The mark behind a name.
pub(super) fn mark(args: &Args, row: &Row) -> &'static str {
    mark_of(args, row.attr.kind, row.attr.mode)
}

/// The mark behind the name of a file of that kind and mode.
pub(super) fn mark_of(args: &Args, kind: FileKind, mode: u16) -> &'static str {
    match kind {
        FileKind::Directory if args.classify || args.slash => "/",
        _ if !args.classify => "",
        FileKind::Regular if mode & 0o111 != 0 => "*",
        // A long listing shows where a link leads.
        FileKind::Symlink if !args.is_long() => "@",
        FileKind::Fifo => "|",
        FileKind::Socket => "=",
        _ => "",
    }
}

/// Columns that a name and its mark take.
pub(super) fn shown_width(args: &Args, row: &Row) -> usize {
    // A control character, which a terminal shows as one, has no width of its own.
    let name = String::from_utf8_lossy(&row.name);
    let name: String = name.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    name.width() + mark(args, row).len()
}

/// Names down and then across, on as few lines as there is room for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Grid {
    pub(super) lines: usize,
    /// The widths, with the gaps.
    pub(super) columns: Vec<usize>,
}

impl Grid {
    pub(super) fn new(widths: &[usize], screen: usize) -> Self {
        let most = (screen / NARROWEST).clamp(1, widths.len().max(1));
        let fitting = (2..=most).rev().map(|count| Self::of(widths, count));
        let fits = |grid: &Self| {
            let all: usize = grid.columns.iter().sum();
            all.saturating_sub(GAP) < screen.max(1)
        };
        let found = fitting.into_iter().find(fits);
        found.unwrap_or_else(|| Self::of(widths, 1))
    }

    fn of(widths: &[usize], count: usize) -> Self {
        let lines = widths.len().div_ceil(count).max(1);
        let widest = |column: &[usize]| column.iter().max().map_or(0, |width| width + GAP);
        Self { lines, columns: widths.chunks(lines).map(widest).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_few_lines_as_fit() {
        assert_eq!(Grid::new(&[3, 3, 3], 80), Grid { lines: 1, columns: vec![5, 5, 5] });
        assert_eq!(Grid::new(&[3, 3, 3], 9), Grid { lines: 2, columns: vec![5, 5] });
        assert_eq!(Grid::new(&[3, 3, 3], 8), Grid { lines: 3, columns: vec![5] });
        assert_eq!(Grid::new(&[100, 3], 80), Grid { lines: 2, columns: vec![102] });
        assert_eq!(Grid::new(&[], 80), Grid { lines: 1, columns: vec![] });
    }
}
