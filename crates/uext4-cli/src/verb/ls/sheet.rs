//! How a listing is told.

use uext4::{Attr, FileKind};

use super::colours::Colours;
use super::times::TimeStyle;
use super::{Args, Listing, ListingJson, Row, columns, listing_json};
use crate::failure::Result;
use crate::output::Output;
use crate::text;

/// Widths of the columns of a long listing.
#[derive(Default)]
struct Widths {
    ino: usize,
    links: usize,
    uid: usize,
    gid: usize,
    major: usize,
    minor: usize,
    size: usize,
}

/// The size, or the number of a device, whose parts have columns of their own.
fn size_text(args: &Args, attr: &Attr, widths: &Widths) -> String {
    match attr.kind {
        FileKind::CharDevice | FileKind::BlockDevice => {
            let (major, minor) = (widths.major, widths.minor);
            format!("{:>major$}, {:>minor$}", attr.rdev.major, attr.rdev.minor)
        }
        _ if args.human_readable => text::human(attr.size),
        _ => attr.size.to_string(),
    }
}

/// What is told, one listing after the other.
pub(super) struct Sheet<'a> {
    pub(super) args: &'a Args,
    pub(super) colours: Option<Colours>,
    /// Columns of the screen, if names stand beside each other.
    pub(super) width: Option<usize>,
    pub(super) titled: bool,
    pub(super) is_first: bool,
    pub(super) shapes: Vec<ListingJson>,
    pub(super) output: Output,
}

impl Sheet<'_> {
    /// Tells of a directory, or of operands that are none.
    pub(super) fn show(&mut self, listing: Listing) -> Result<()> {
        if self.args.json {
            self.shapes.push(listing_json(listing));
            return Ok(());
        }
        if !std::mem::take(&mut self.is_first) {
            self.output.line("")?;
        }
        if self.titled && listing.is_dir {
            self.output.name(&listing.path)?;
            self.output.line(":")?;
        }
        if self.args.is_long() {
            return self.long(&listing);
        }
        match self.width {
            Some(width) => self.columns(&listing.rows, width),
            None => {
                let ino_width = self.ino_width(&listing.rows);
                listing.rows.iter().try_for_each(|row| {
                    self.short(row, ino_width)?;
                    self.output.line("")
                })
            }
        }
    }

    fn ino_width(&self, rows: &[Row]) -> usize {
        rows.iter().map(|row| row.attr.ino.to_string().len()).max().unwrap_or(0)
    }

    /// The inode number, if that is asked for, and the name.
    fn short(&mut self, row: &Row, ino_width: usize) -> Result<()> {
        if self.args.inode {
            self.output.bytes(format!("{:>ino_width$} ", row.attr.ino.get()).as_bytes())?;
        }
        self.name(row)
    }

    /// The name in its colour, with its mark.
    fn name(&mut self, row: &Row) -> Result<()> {
        let style = self.colours.as_ref().map(|colours| colours.of(row)).unwrap_or_default();
        self.output.bytes(style.before.as_bytes())?;
        self.output.name(&row.name)?;
        self.output.bytes(style.after.as_bytes())?;
        self.output.bytes(columns::mark(self.args, row).as_bytes())
    }

    fn columns(&mut self, rows: &[Row], width: usize) -> Result<()> {
        let ino_width = self.ino_width(rows);
        let prefix = if self.args.inode { ino_width + 1 } else { 0 };
        let widths: Vec<usize> =
            rows.iter().map(|row| prefix + columns::shown_width(self.args, row)).collect();
        let grid = columns::Grid::new(&widths, width);
        for line in 0..grid.lines {
            let mut blanks = 0;
            for (column, wide) in grid.columns.iter().enumerate() {
                let index = column * grid.lines + line;
                let Some(row) = rows.get(index) else { break };
                self.output.bytes(" ".repeat(blanks).as_bytes())?;
                self.short(row, ino_width)?;
                blanks = wide.saturating_sub(widths[index]);
            }
            self.output.line("")?;
        }
        Ok(())
    }

    fn long(&mut self, listing: &Listing) -> Result<()> {
        let args = self.args;
        if listing.is_dir {
            let blocks: u64 = listing.rows.iter().map(|row| row.attr.blocks_512).sum();
            let total = match args.human_readable {
                true => text::human(blocks * 512),
                false => blocks.div_ceil(2).to_string(),
            };
            self.output.line(&format!("total {total}"))?;
        }
        let style = if args.full_time { &TimeStyle::FullIso } else { &args.time_style };
        let widths = Widths::of(args, &listing.rows);
        for row in &listing.rows {
            let (attr, when) = (&row.attr, style.text(row.attr.mtime));
            if args.inode {
                self.output.bytes(format!("{:>1$} ", attr.ino.get(), widths.ino).as_bytes())?;
            }
            let columns = format!(
                "{} {:>links$} {:>uid$} {:>gid$} {:>size$} {when} ",
                text::mode(attr.kind, attr.mode),
                attr.links,
                attr.uid,
                attr.gid,
                size_text(args, attr, &widths),
                links = widths.links,
                uid = widths.uid,
                gid = widths.gid,
                size = widths.size,
            );
            self.output.bytes(columns.as_bytes())?;
            self.name(row)?;
            if let Some(target) = &row.target {
                self.output.bytes(b" -> ")?;
                self.output.name(target)?;
                if let Some((kind, mode)) = row.leads_to {
                    self.output.bytes(columns::mark_of(args, kind, mode).as_bytes())?;
                }
            }
            self.output.line("")?;
        }
        Ok(())
    }
}

impl Widths {
    fn of(args: &Args, rows: &[Row]) -> Self {
        let mut widths = Self::default();
        for Row { attr, .. } in rows {
            widths.ino = widths.ino.max(attr.ino.to_string().len());
            widths.links = widths.links.max(attr.links.to_string().len());
            widths.uid = widths.uid.max(attr.uid.to_string().len());
            widths.gid = widths.gid.max(attr.gid.to_string().len());
            if matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice) {
                widths.major = widths.major.max(attr.rdev.major.to_string().len());
                widths.minor = widths.minor.max(attr.rdev.minor.to_string().len());
            }
        }
        let sizes = rows.iter().map(|row| size_text(args, &row.attr, &widths).len());
        widths.size = sizes.max().unwrap_or(0);
        widths
    }
}
