//! Modes and times as coreutils print them. Times are UTC: an image knows no time zone.

use uext4::{FileKind, Timestamp};

/// All kinds of files.
pub(crate) const KINDS: [FileKind; 7] = [
    FileKind::Regular,
    FileKind::Directory,
    FileKind::Symlink,
    FileKind::CharDevice,
    FileKind::BlockDevice,
    FileKind::Fifo,
    FileKind::Socket,
];

/// The letter of ls(1) for a kind.
pub(crate) fn kind_letter(kind: FileKind) -> char {
    match kind {
        FileKind::Regular => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
    }
}

/// The bits of `st_mode` for a kind.
pub(crate) fn kind_bits(kind: FileKind) -> u16 {
    match kind {
        FileKind::Fifo => 0o010_000,
        FileKind::CharDevice => 0o020_000,
        FileKind::Directory => 0o040_000,
        FileKind::BlockDevice => 0o060_000,
        FileKind::Regular => 0o100_000,
        FileKind::Symlink => 0o120_000,
        FileKind::Socket => 0o140_000,
    }
}

/// The words of stat(1) for a kind.
pub(crate) fn kind_words(kind: FileKind, size: u64) -> &'static str {
    match kind {
        FileKind::Regular if size == 0 => "regular empty file",
        FileKind::Regular => "regular file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symbolic link",
        FileKind::CharDevice => "character special file",
        FileKind::BlockDevice => "block special file",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    }
}

/// Ten letters of ls(1), such as `-rwsr-xr-x`.
pub(crate) fn mode(kind: FileKind, mode: u16) -> String {
    let mut text = String::with_capacity(10);
    text.push(kind_letter(kind));
    let classes = [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')];
    for (shift, special, with_exec, without) in classes {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => with_exec,
            (true, false) => without,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// A broken-down UTC time.
struct Civil {
    year: i64,
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

/// Days to a date of the Gregorian calendar, by eras of 400 years that start on 1 March 0000.
fn civil(seconds: i64) -> Civil {
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    Civil {
        year: year_of_era + era * 400 + i64::from(month <= 2),
        month,
        day: day_of_year - (153 * month_from_march + 2) / 5 + 1,
        hour: rest / 3_600,
        minute: rest / 60 % 60,
        second: rest % 60,
    }
}

/// `2026-11-21`.
pub(crate) fn date(seconds: i64) -> String {
    let c = civil(seconds);
    format!("{:04}-{:02}-{:02}", c.year, c.month, c.day)
}

/// `2026-11-21 04:14`, as `ls --time-style=long-iso`.
pub(crate) fn time_short(time: Timestamp) -> String {
    let c = civil(time.secs);
    format!("{:04}-{:02}-{:02} {:02}:{:02}", c.year, c.month, c.day, c.hour, c.minute)
}

/// `2026-11-21 04:14:49.123456789 +0000`, as stat(1).
pub(crate) fn time_full(time: Timestamp) -> String {
    let second = civil(time.secs).second;
    format!("{}:{second:02}.{:09} +0000", time_short(time), time.nanos)
}

/// `2026-11-21T04:14:49.123456789Z`, for JSON.
pub(crate) fn time_json(time: Timestamp) -> String {
    let second = civil(time.secs).second;
    format!("{}:{second:02}.{:09}Z", time_short(time).replace(' ', "T"), time.nanos)
}

/// `Sat Nov 21 04:14:49 2026`, as ctime(3).
pub(crate) fn time_ctime(seconds: i64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let c = civil(seconds);
    // Both remainders are in range, so the casts lose nothing. 1 January 1970 was a Thursday.
    let day = DAYS[seconds.div_euclid(86_400).rem_euclid(7) as usize];
    let month = MONTHS[(c.month - 1).rem_euclid(12) as usize];
    format!("{day} {month} {:2} {:02}:{:02}:{:02} {}", c.day, c.hour, c.minute, c.second, c.year)
}

/// A size in powers of 1024 with one digit after the point below ten, as `ls -h`.
pub(crate) fn human(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
    let mut unit = 0;
    let mut value = bytes as f64;
    // Rounded up, as ls does; what is rounded up to the next unit is one of it.
    while value.ceil() >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let tenths = (value * 10.0).ceil();
    if unit > 0 && tenths < 100.0 {
        format!("{:.1}{}", tenths / 10.0, UNITS[unit])
    } else {
        format!("{:.0}{}", value.ceil(), UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_look_as_ls_prints_them() {
        assert_eq!(mode(FileKind::Regular, 0o4755), "-rwsr-xr-x");
        assert_eq!(mode(FileKind::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(mode(FileKind::Fifo, 0o2644), "prw-r-Sr--");
    }

    #[test]
    fn times_are_utc() {
        let at = |secs, nanos| time_full(Timestamp { secs, nanos });
        assert_eq!(at(0, 0), "1970-01-01 00:00:00.000000000 +0000");
        assert_eq!(at(951_782_400, 1), "2000-02-29 00:00:00.000000001 +0000");
        assert_eq!(at(-1, 500_000_000), "1969-12-31 23:59:59.500000000 +0000");
        assert_eq!(time_ctime(1_795_236_651), "Sat Nov 21 04:50:51 2026");
        assert_eq!(at(15_032_385_535, 0), "2446-05-10 22:38:55.000000000 +0000");
    }

    #[test]
    fn human_sizes_round_up() {
        assert_eq!(human(1023), "1023");
        assert_eq!(human(1025), "1.1K");
        assert_eq!(human(10 << 20), "10M");
        // As ls -lh and du -h of coreutils.
        assert_eq!(human(1_048_570), "1.0M");
        assert_eq!(human(1_073_741_823), "1.0G");
        assert_eq!(human(10_239), "10K");
        assert_eq!(human(u64::MAX), "16E");
    }
}
