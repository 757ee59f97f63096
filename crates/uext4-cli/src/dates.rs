//! Dates as `touch -d` and `touch -t` take them.

use jiff::civil::{Date, DateTime, Time};
use jiff::fmt::{rfc2822, temporal};
use jiff::tz::{Offset, TimeZone};
use jiff::{Span, ToSpan, ZonedDateTime};
use uext4::Timestamp;

use crate::failure::Why;

/// What a date must look like, for messages.
const FORMS: &str =
    "not a date; want ISO 8601, @SECONDS, now, today, yesterday, tomorrow, or \"2 days ago\"";

/// A date in the user's time zone, unless it names one.
pub(crate) fn parse(text: &str) -> Result<Timestamp, Why> {
    parse_at(text, &ZonedDateTime::now()).ok_or_else(|| Why::new(FORMS))
}

fn parse_at(text: &str, now: &ZonedDateTime) -> Option<Timestamp> {
    let text = text.trim();
    if let Some(seconds) = text.strip_prefix('@') {
        return epoch(seconds);
    }
    relative(text, now).or_else(|| absolute(text, now)).map(|time| timestamp(&time))
}

/// `@SECONDS`, with a fraction and a sign.
fn epoch(text: &str) -> Option<Timestamp> {
    let (whole, fraction) = text.split_once(['.', ',']).unwrap_or((text, ""));
    let secs: i64 = whole.parse().ok()?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let nanos: u32 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    match whole.starts_with('-') && nanos > 0 {
        // The fraction of a time before 1970 leads further back.
        true => Some(Timestamp { secs: secs.checked_sub(1)?, nanos: 1_000_000_000 - nanos }),
        false => Some(Timestamp { secs, nanos }),
    }
}

/// `now`, `yesterday`, `3 hours`, `2 weeks ago`.
fn relative(text: &str, now: &ZonedDateTime) -> Option<ZonedDateTime> {
    let words = text.to_ascii_lowercase();
    let words: Vec<&str> = words.split_ascii_whitespace().collect();
    let (count, unit, sign) = match words[..] {
        ["now" | "today"] => return Some(now.clone()),
        ["yesterday"] => return now.checked_sub(1.day()).ok(),
        ["tomorrow"] => return now.checked_add(1.day()).ok(),
        [count, unit] => (count, unit, 1),
        [count, unit, "ago"] => (count, unit, -1),
        _ => return None,
    };
    let count: i64 = count.parse::<i64>().ok()?.checked_mul(sign)?;
    let span = match unit.strip_suffix('s').unwrap_or(unit) {
        "second" | "sec" => Span::new().try_seconds(count),
        "minute" | "min" => Span::new().try_minutes(count),
        "hour" => Span::new().try_hours(count),
        "day" => Span::new().try_days(count),
        "week" => Span::new().try_weeks(count),
        "month" => Span::new().try_months(count),
        "year" => Span::new().try_years(count),
        _ => return None,
    };
    now.checked_add(span.ok()?).ok()
}

/// ISO 8601 with or without time and zone, a time of today, or a date of a mail.
fn absolute(text: &str, now: &ZonedDateTime) -> Option<ZonedDateTime> {
    if let Ok(time) = rfc2822::parse(text) {
        return Some(time);
    }
    static PARSER: temporal::DateTimeParser = temporal::DateTimeParser::new();
    let (text, offset) = offset(text);
    let zone = offset.map_or_else(|| now.time_zone().clone(), Offset::to_time_zone);
    if let Ok(pieces) = PARSER.parse_pieces(text.as_str()) {
        let time = pieces.time().unwrap_or(Time::midnight());
        let zone = match pieces.to_numeric_offset() {
            Some(offset) if pieces.offset().is_some() => offset.to_time_zone(),
            _ => zone,
        };
        return DateTime::from_parts(pieces.date(), time).to_zoned_datetime(zone).ok();
    }
    let time = PARSER.parse_time(text.as_str()).ok()?;
    now.date().to_datetime(time).to_zoned_datetime(zone).ok()
}

/// Takes a zone off that stands apart: `12:00 UTC`, `12:00 +0100`.
fn offset(text: &str) -> (String, Option<Offset>) {
    if let Some((before, zone)) = text.rsplit_once(' ') {
        if matches!(zone, "UTC" | "GMT" | "Z") {
            return (before.to_owned(), Some(Offset::UTC));
        }
        if zone.starts_with(['+', '-']) {
            return (format!("{before}{zone}"), None);
        }
    }
    (text.to_owned(), None)
}

/// `[[CC]YY]MMDDhhmm[.ss]` of `touch -t`.
pub(crate) fn parse_stamp(text: &str) -> Result<Timestamp, String> {
    let zone = TimeZone::system();
    let stamp = || {
        let (digits, seconds) = text.split_once('.').unwrap_or((text, "00"));
        let is_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if !is_digits(digits) || !is_digits(seconds) || seconds.len() != 2 {
            return None;
        }
        let (year, rest) = digits.split_at(digits.len().checked_sub(8)?);
        let year: i16 = match year.len() {
            0 => ZonedDateTime::now().year(),
            // As POSIX has it: 69 to 99 are of the last century.
            2 => year.parse::<i16>().ok().map(|yy| yy + if yy >= 69 { 1900 } else { 2000 })?,
            4 => year.parse().ok()?,
            _ => return None,
        };
        let part = |at: usize| rest[at..at + 2].parse::<i8>().ok();
        let date = Date::new(year, part(0)?, part(2)?).ok()?;
        let time = Time::new(part(4)?, part(6)?, seconds.parse().ok()?, 0).ok()?;
        date.to_datetime(time).to_zoned_datetime(zone).ok()
    };
    let found = stamp().ok_or_else(|| "want [[CC]YY]MMDDhhmm[.ss]".to_owned())?;
    Ok(timestamp(&found))
}

/// Before 1970 the fraction of jiff is negative.
fn timestamp(time: &ZonedDateTime) -> Timestamp {
    let nanos = time.timestamp().as_nanosecond();
    let (secs, nanos) = (nanos.div_euclid(1_000_000_000), nanos.rem_euclid(1_000_000_000));
    // jiff knows the years to 9999 alone, so the casts lose nothing.
    Timestamp { secs: secs as i64, nanos: nanos as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_touch() {
        let zone = TimeZone::fixed(Offset::constant(2));
        let now = jiff::Timestamp::from_second(1_000_000_000).unwrap().to_zoned_datetime(zone);
        let rows = [
            ("@0", Some((0, 0))),
            ("@-1.5", Some((-2, 500_000_000))),
            ("@12.000000001", Some((12, 1))),
            ("1970-01-01T00:00Z", Some((0, 0))),
            ("1970-01-01", Some((-7200, 0))),
            ("1970-01-01 02:00", Some((0, 0))),
            ("1970-01-01 02:00:00.25", Some((0, 250_000_000))),
            ("1970-01-01 01:00 +0100", Some((0, 0))),
            ("1970-01-01T01:00:00+01:00", Some((0, 0))),
            ("1969-12-31 23:59:59.75 UTC", Some((-1, 750_000_000))),
            ("Thu, 01 Jan 1970 00:00:00 +0000", Some((0, 0))),
            ("now", Some((1_000_000_000, 0))),
            ("yesterday", Some((1_000_000_000 - 86_400, 0))),
            ("2 hours ago", Some((1_000_000_000 - 7200, 0))),
            ("1 week", Some((1_000_000_000 + 7 * 86_400, 0))),
            ("04:00", Some((1_000_000_000 + 800, 0))),
            ("2024-02-30", None),
            ("@", None),
            ("@1.x", None),
            ("9223372036854775807 years", None),
            ("", None),
            ("soon", None),
        ];
        for (text, want) in rows {
            let found = parse_at(text, &now).map(|time| (time.secs, time.nanos));
            assert_eq!(found, want, "{text}");
        }
    }

    #[test]
    fn stamps_have_a_year_or_none() {
        let day = 86_400;
        for (text, want) in [("197001020000", Some(day)), ("7001020000.05", Some(day + 5))] {
            let found = parse_stamp(text).ok().map(|time| time.secs);
            let zone = TimeZone::system().to_offset(jiff::Timestamp::UNIX_EPOCH);
            assert_eq!(found, want.map(|secs| secs - i64::from(zone.seconds())), "{text}");
        }
        for text in ["", "1", "13010000", "01320000", "x1010000", "01010000.5", "101010000"] {
            assert!(parse_stamp(text).is_err(), "{text}");
        }
    }
}
