//! What a server says of its export.

use crate::error::{Fault, Result};
use crate::wire::export_flag;

/// What every server takes that says nothing of sizes: "Block size constraints".
const INTEROPERABLE: Sizes = Sizes { least: 512, most: 32 << 20 };
/// Largest request that is made, whatever the server takes: several of them keep the wire busy.
const REQUEST_MAX: u32 = 1 << 20;
/// Largest unit that a file system's smallest request can be part of.
const UNIT_MAX: u32 = 64 << 10;

/// An export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Export {
    /// Its length in bytes.
    pub(crate) len: u64,
    flags: u16,
    /// Offsets and lengths of requests are multiples of that many bytes, a power of two.
    pub(crate) unit: u32,
    /// Most bytes of a read or a write, a multiple of the unit.
    pub(crate) request_max: u32,
    /// The number of the context that tells holes, if the server has it.
    pub(crate) allocation: Option<u32>,
}

/// Sizes of requests in the server's words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) least: u32,
    pub(crate) most: u32,
}

impl Export {
    /// # Errors
    /// Numbers that no device has.
    pub(crate) fn new(
        len: u64,
        flags: u16,
        sizes: Option<Sizes>,
        allocation: Option<u32>,
    ) -> Result<Self> {
        let Sizes { least: unit, most } = sizes.unwrap_or(INTEROPERABLE);
        if !unit.is_power_of_two() || unit > UNIT_MAX || most < unit {
            return Err(Fault::Refused(format!("takes requests of {unit} to {most} bytes only")));
        }
        // Nobody can have the rest of a last unit.
        let len = len - len % u64::from(unit);
        if len == 0 || i64::try_from(len).is_err() {
            return Err(Fault::Refused(format!("its export has {len} bytes")));
        }
        let request_max = most.min(REQUEST_MAX);
        Ok(Self { len, flags, unit, request_max: request_max - request_max % unit, allocation })
    }

    fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    pub(crate) fn read_only(&self) -> bool {
        self.has(export_flag::READ_ONLY)
    }

    pub(crate) fn flushes(&self) -> bool {
        self.has(export_flag::FLUSH)
    }

    pub(crate) fn writes_through(&self) -> bool {
        self.has(export_flag::FUA)
    }

    /// Whether each change has to be durable by itself, because there is no flush.
    pub(crate) fn is_durable_only_by_fua(&self) -> bool {
        !self.flushes() && self.writes_through()
    }

    pub(crate) fn trims(&self) -> bool {
        self.has(export_flag::TRIM)
    }

    pub(crate) fn writes_zeroes(&self) -> bool {
        self.has(export_flag::WRITE_ZEROES)
    }

    pub(crate) fn connects_often(&self) -> bool {
        self.has(export_flag::MULTI_CONN)
    }

    /// What must not be less when a server is reached again; it may become so yet.
    ///
    /// # Errors
    /// What is.
    pub(crate) fn require_as_before(&self, before: &Self) -> Result<()> {
        use export_flag::{FLUSH, FUA, TRIM, WRITE_ZEROES};
        let was = |why: &str| Err(Fault::Refused(why.to_owned()));
        if self.read_only() && !before.read_only() {
            return was("can only be read by now");
        }
        let used = before.flags & (FLUSH | FUA | TRIM | WRITE_ZEROES);
        let takes_less = self.unit > before.unit || self.request_max < before.request_max;
        if used & !self.flags != 0 || takes_less {
            return was("can less than before");
        }
        Ok(())
    }

    /// Whether it is served as another connection has it.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        // The number of a context is that of a connection.
        Self { allocation: None, ..*self } == Self { allocation: None, ..*other }
    }

    /// How it has shrunk, if it has.
    pub(crate) fn shrunk(&self, before: &Self) -> Option<Fault> {
        let why = || format!("shrank from {} to {} bytes", before.len, self.len);
        (self.len < before.len).then(|| Fault::Refused(why()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault model: a size that would make a later addition overflow, a unit that no request has.
    #[test]
    fn exports_that_no_file_system_fits_on_are_refused() {
        let sizes = |least, most| Some(Sizes { least, most });
        assert!(Export::new(0, 0, None, None).is_err());
        assert!(Export::new(u64::MAX, 0, None, None).is_err());
        assert!(Export::new(511, 0, sizes(512, 4096), None).is_err());
        assert!(Export::new(8192, 0, sizes(3, 4096), None).is_err());
        assert!(Export::new(8192, 0, sizes(0, 4096), None).is_err());
        assert!(Export::new(8192, 0, sizes(512, 511), None).is_err());
        let export = Export::new(8200, 0, sizes(512, 1000), None).unwrap();
        assert_eq!((export.len, export.request_max), (8192, 512));
    }

    #[test]
    fn an_export_may_grow_and_not_shrink() {
        let of = |len, flags| Export::new(len, flags, None, None).unwrap();
        let before = of(8192, export_flag::FLUSH);
        assert!(of(8192, export_flag::FLUSH).require_as_before(&before).is_ok());
        assert!(of(9216, export_flag::FLUSH | export_flag::FUA).require_as_before(&before).is_ok());
        assert!(of(9216, export_flag::FLUSH).shrunk(&before).is_none());
        assert!(of(7680, export_flag::FLUSH).shrunk(&before).is_some());
        assert!(of(8192, 0).require_as_before(&before).is_err());
        let read_only = export_flag::FLUSH | export_flag::READ_ONLY;
        assert!(of(8192, read_only).require_as_before(&before).is_err());
        assert!(before.require_as_before(&of(8192, read_only)).is_ok());
    }
}
