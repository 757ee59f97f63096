//! Times of inodes.
//!
//! On disk: a signed 32-bit second and, where the inode has room, an extra field of 2 more bits of
//! seconds and 30 bits of nanoseconds (inodes.rst, inode timestamps).

use crate::num::lo32;

/// A point in time as an inode keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    /// Seconds since 1970.
    pub secs: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nanos: u32,
}

impl Timestamp {
    /// Earliest second the format has.
    pub const MIN_SECS: i64 = i32::MIN as i64;
    /// Latest second with an extra field (May 2446).
    pub const MAX_SECS: i64 = (3 << 32) + i32::MAX as i64;
    /// Latest second without an extra field (January 2038).
    pub const MAX_SECS_CLASSIC: i64 = i32::MAX as i64;

    /// Time from the classic field and, where the inode has it, the extra field.
    #[must_use]
    pub fn decode(classic: u32, extra: Option<u32>) -> Self {
        let secs = i64::from(classic.cast_signed());
        let Some(extra) = extra else { return Self { secs, nanos: 0 } };
        let epoch = i64::from(extra & 3) << 32;
        // A hostile field may hold more nanoseconds than a second has.
        let nanos = (extra >> 2).min(999_999_999);
        Self { secs: secs.saturating_add(epoch), nanos }
    }

    /// The time as an inode can keep it: seconds within the format's range; nanoseconds only with
    /// an extra field, and none at the ends of the range, as Linux has it.
    #[must_use]
    pub fn clamped(self, has_extra: bool) -> Self {
        let max = if has_extra { Self::MAX_SECS } else { Self::MAX_SECS_CLASSIC };
        let secs = self.secs.clamp(Self::MIN_SECS, max);
        let is_end = secs == Self::MIN_SECS || secs == max;
        Self { secs, nanos: if has_extra && !is_end { self.nanos } else { 0 } }
    }

    /// Classic and extra field. Times outside the format's range are clamped to it.
    #[must_use]
    pub fn encode(self, has_extra: bool) -> (u32, u32) {
        let max = if has_extra { Self::MAX_SECS } else { Self::MAX_SECS_CLASSIC };
        let secs = self.secs.clamp(Self::MIN_SECS, max);
        let classic = lo32(secs.cast_unsigned());
        let rest = secs.saturating_sub(i64::from(classic.cast_signed()));
        let epoch = lo32((rest >> 32).cast_unsigned()) & 3;
        (classic, (self.nanos.min(999_999_999) << 2) | epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_round_trip_over_the_whole_range() {
        for secs in
            [Timestamp::MIN_SECS, -1, 0, 1 << 31, (1 << 32) - 1, 1 << 33, Timestamp::MAX_SECS]
        {
            let time = Timestamp { secs, nanos: 999_999_999 };
            let (classic, extra) = time.encode(true);
            assert_eq!(Timestamp::decode(classic, Some(extra)), time);
        }
        let far = Timestamp { secs: i64::MAX, nanos: 0 };
        assert_eq!(far.encode(false).0, i32::MAX as u32);
        let (classic, extra) = far.encode(true);
        assert_eq!(Timestamp::decode(classic, Some(extra)).secs, Timestamp::MAX_SECS);
    }
}
