//! The colours of names, by LS_COLORS.

use lscolors::{Indicator, LsColors};
use uext4::FileKind;

use super::Row;

/// When there are colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum When {
    /// On terminals, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// What is written before and after a name.
#[derive(Default)]
pub(super) struct Style {
    pub(super) before: String,
    pub(super) after: String,
}

pub(super) struct Colours(LsColors);

impl Colours {
    /// `None` where there are none.
    pub(super) fn new(when: When, is_terminal: bool) -> Option<Self> {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let wanted = match when {
            When::Auto => is_terminal && !refused,
            When::Always => true,
            When::Never => false,
        };
        wanted.then(|| Self(LsColors::from_env().unwrap_or_default()))
    }

    pub(super) fn of(&self, row: &Row) -> Style {
        let by_kind = |indicator| self.0.style_for_indicator(indicator);
        let style = match indicator(row) {
            Indicator::RegularFile => self.0.style_for_str(&String::from_utf8_lossy(&row.name)),
            indicator => by_kind(indicator),
        };
        let Some(style) = style else { return Style::default() };
        let style = style.to_nu_ansi_term_style();
        Style { before: style.prefix().to_string(), after: style.suffix().to_string() }
    }
}

/// What ls(1) takes a name for.
fn indicator(row: &Row) -> Indicator {
    let mode = row.attr.mode;
    match row.attr.kind {
        FileKind::Regular if mode & 0o4000 != 0 => Indicator::Setuid,
        FileKind::Regular if mode & 0o2000 != 0 => Indicator::Setgid,
        FileKind::Regular if mode & 0o111 != 0 => Indicator::ExecutableFile,
        FileKind::Regular => Indicator::RegularFile,
        FileKind::Directory => match (mode & 0o1000 != 0, mode & 0o002 != 0) {
            (true, true) => Indicator::StickyAndOtherWritable,
            (true, false) => Indicator::Sticky,
            (false, true) => Indicator::OtherWritable,
            (false, false) => Indicator::Directory,
        },
        FileKind::Symlink => Indicator::SymbolicLink,
        FileKind::CharDevice => Indicator::CharacterDevice,
        FileKind::BlockDevice => Indicator::BlockDevice,
        FileKind::Fifo => Indicator::FIFO,
        FileKind::Socket => Indicator::Socket,
    }
}
