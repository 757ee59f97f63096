//! How a long listing shows times. In UTC: an image knows no time zone.

use std::time::{SystemTime, UNIX_EPOCH};

use uext4::Timestamp;

use crate::text;

/// Half a year, as ls(1) counts it: a time that is older, or in the future, is shown with its year.
const RECENT_SECONDS: i64 = 31_556_952 / 2;

/// `--time-style`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TimeStyle {
    FullIso,
    LongIso,
    /// Of old times and of recent ones, in the form of strftime(3).
    Formats(String, String),
}

impl TimeStyle {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let formats = |old: &str, recent: &str| Self::Formats(old.to_owned(), recent.to_owned());
        let style = match text {
            "full-iso" => Self::FullIso,
            "long-iso" => Self::LongIso,
            "iso" => formats("%Y-%m-%d ", "%m-%d %H:%M"),
            "locale" => formats("%b %e  %Y", "%b %e %H:%M"),
            text => match text.strip_prefix('+') {
                Some(text) => match text.split_once('\n') {
                    Some((old, recent)) => formats(old, recent),
                    None => formats(text, text),
                },
                None => return Err("want full-iso, long-iso, iso, locale or +FORMAT".to_owned()),
            },
        };
        if let Self::Formats(old, recent) = &style {
            let epoch = Timestamp { secs: 0, nanos: 0 };
            for format in [old, recent] {
                formatted(format, epoch).ok_or_else(|| format!("'{format}' is no format"))?;
            }
        }
        Ok(style)
    }

    pub(super) fn text(&self, time: Timestamp) -> String {
        match self {
            Self::FullIso => text::time_full(time),
            Self::LongIso => text::time_short(time),
            Self::Formats(old, recent) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs());
                let age = i64::try_from(now).unwrap_or(i64::MAX).saturating_sub(time.secs);
                let is_recent = (0..RECENT_SECONDS).contains(&age);
                let format = if is_recent { recent } else { old };
                formatted(format, time).unwrap_or_else(|| text::time_short(time))
            }
        }
    }
}

fn formatted(format: &str, time: Timestamp) -> Option<String> {
    // jiff rounds `%s` towards 1970, and ls(1) down.
    let nanos = if time.secs < 0 { 0 } else { i32::try_from(time.nanos).ok()? };
    let time = jiff::Timestamp::new(time.secs, nanos).ok()?;
    jiff::fmt::strtime::format(format, &time.to_zoned_datetime(jiff::tz::TimeZone::UTC)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn styles_of_ls() {
        let old = Timestamp { secs: 981_173_106, nanos: 5 };
        for (style, want) in [
            ("full-iso", "2001-02-03 04:05:06.000000005 +0000"),
            ("long-iso", "2001-02-03 04:05"),
            ("iso", "2001-02-03 "),
            ("locale", "Feb  3  2001"),
            ("+%s %F", "981173106 2001-02-03"),
            ("+old\nnew", "old"),
        ] {
            assert_eq!(TimeStyle::parse(style).unwrap().text(old), want, "{style}");
        }
        for bad in ["", "short", "+%!", "%F"] {
            assert!(TimeStyle::parse(bad).is_err(), "{bad}");
        }
    }
}
