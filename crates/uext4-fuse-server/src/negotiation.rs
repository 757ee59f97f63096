//! INIT: what kernel and server agree on.

use std::io;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::abi::{InHeader, InitIn, InitOut, MAJOR, MINOR, MINOR_MIN};
use crate::connection::{Notifier, Read};
use crate::dispatch::parse;
use crate::flags::InitFlags;
use crate::handler::{Handler, Offer};
use crate::opcode::Opcode;

/// The smallest page of any kernel; a request's bytes are a multiple of it.
const PAGE_MIN: u32 = 4096;
/// Most bytes of a WRITE or READ.
pub(crate) const REQUEST_MAX: u32 = 1 << 20;

/// What was agreed on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Agreement {
    /// SETXATTR has its longer form.
    pub(crate) setxattr_ext: bool,
}

/// Reads INIT and answers it. `with_rings` sets rings up, where the kernel offers them; they must
/// be ready before the answer, because requests wait until they are registered.
pub(crate) fn negotiate(
    handler: &impl Handler,
    notifier: &Notifier,
    with_rings: impl FnOnce(usize) -> bool,
) -> io::Result<Agreement> {
    let connection = &notifier.connection;
    let mut buffer = vec![0; 2 * REQUEST_MAX as usize];
    let mut with_rings = Some(with_rings);
    loop {
        let Read::Request(len) = connection.read(&mut buffer)? else {
            return Err(io::Error::other("unmounted before it was served"));
        };
        let bytes = &buffer[..len];
        let header: InHeader = parse(bytes).map_err(io::Error::from)?;
        if header.opcode != Opcode::Init as u32 {
            return Err(io::Error::other("the kernel began without INIT"));
        }
        let init = short_init(&bytes[size_of::<InHeader>()..]);
        if init.major > MAJOR {
            // It asks again, with ours.
            let out = InitOut { major: MAJOR, minor: MINOR, ..InitOut::default() };
            connection.answer(header.unique, Ok(out.as_bytes()));
            continue;
        }
        if init.major < MAJOR || init.minor < MINOR_MIN {
            connection.answer(header.unique, Err(Errno::PROTO));
            let (major, minor) = (init.major, init.minor);
            let why = format!("the kernel speaks FUSE {major}.{minor}; 7.{MINOR_MIN} is needed");
            return Err(io::Error::other(why));
        }
        // At most 64 KiB anywhere.
        let page = u32::try_from(rustix::param::page_size()).unwrap_or(PAGE_MIN);
        let (out, agreement) = agree(handler, notifier, &init, page, &mut with_rings);
        connection.answer(header.unique, Ok(out.as_bytes()));
        return Ok(agreement);
    }
}

/// INIT was shorter before 7.36.
fn short_init(bytes: &[u8]) -> InitIn {
    let mut init = InitIn::default();
    let len = bytes.len().min(size_of::<InitIn>());
    init.as_mut_bytes()[..len].copy_from_slice(&bytes[..len]);
    init
}

fn agree(
    handler: &impl Handler,
    notifier: &Notifier,
    init: &InitIn,
    page: u32,
    with_rings: &mut Option<impl FnOnce(usize) -> bool>,
) -> (InitOut, Agreement) {
    let offered = u64::from(init.flags) | u64::from(init.flags2) << 32;
    // A kernel without INIT_EXT leaves the second word alone.
    let offered = match offered & InitFlags::INIT_EXT.bits() {
        0 => offered & u64::from(u32::MAX),
        _ => offered,
    };
    let offered = InitFlags::from_bits_truncate(offered);
    let offer = Offer { minor: init.minor, flags: offered, max_readahead: init.max_readahead };
    let wanted = handler.init(&offer, notifier);
    let max_write = wanted.max_write.clamp(PAGE_MIN, REQUEST_MAX) / PAGE_MIN * PAGE_MIN;
    // The kernel wants a ring's entry to have room for as many of its pages, whatever their size.
    let max_pages = max_write.div_ceil(page);
    let payload = max_pages as usize * page as usize;
    let always = InitFlags::BIG_WRITES
        | InitFlags::ASYNC_READ
        | InitFlags::MAX_PAGES
        | InitFlags::INIT_EXT
        | InitFlags::SETXATTR_EXT;
    let mut flags = (wanted.flags | always) & offered;
    flags.remove(InitFlags::OVER_IO_URING);
    let can_ring = offered.contains(InitFlags::OVER_IO_URING);
    if can_ring && with_rings.take().is_some_and(|with_rings| with_rings(payload)) {
        flags.insert(InitFlags::OVER_IO_URING);
    }
    let bits = flags.bits();
    let out = InitOut {
        major: MAJOR,
        minor: MINOR.min(init.minor),
        max_readahead: wanted.max_readahead.min(init.max_readahead),
        // The two halves.
        flags: bits as u32,
        flags2: (bits >> 32) as u32,
        max_background: wanted.max_background,
        congestion_threshold: wanted.max_background / 4 * 3,
        max_write,
        time_gran: wanted.time_gran,
        // At most 256.
        max_pages: max_pages as u16,
        ..InitOut::default()
    };
    let agreement = Agreement { setxattr_ext: flags.contains(InitFlags::SETXATTR_EXT) };
    (out, agreement)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::connection::Connection;
    use crate::handler::Wanted;

    struct Greedy;

    fn notifier() -> Notifier {
        let null = std::fs::File::open("/dev/null").unwrap();
        Notifier::new(Arc::new(Connection::new(null.into())))
    }

    impl Handler for Greedy {
        fn init(&self, _offer: &Offer, _notifier: &Notifier) -> Wanted {
            Wanted {
                flags: InitFlags::all(),
                max_write: u32::MAX,
                max_readahead: u32::MAX,
                max_background: 12,
                time_gran: 1,
            }
        }
    }

    /// Fault model: an ability is taken that the kernel did not offer, or io_uring without rings.
    #[test]
    fn nothing_is_taken_that_was_not_offered() {
        let offered = InitFlags::MAX_PAGES | InitFlags::INIT_EXT | InitFlags::OVER_IO_URING;
        let init = InitIn {
            major: 7,
            minor: 60,
            max_readahead: 1000,
            flags: offered.bits() as u32,
            flags2: (offered.bits() >> 32) as u32,
            unused: [0; 11],
        };
        for has_rings in [false, true] {
            let (out, agreement) =
                agree(&Greedy, &notifier(), &init, 4096, &mut Some(|_| has_rings));
            let got = u64::from(out.flags) | u64::from(out.flags2) << 32;
            let all = if has_rings { offered } else { offered - InitFlags::OVER_IO_URING };
            assert_eq!(got, all.bits());
            assert_eq!((out.minor, out.max_write, out.max_pages), (MINOR, REQUEST_MAX, 256));
            assert_eq!(out.max_readahead, 1000);
            assert!(!agreement.setxattr_ext);
        }
        // An old kernel's second word is no flags.
        let old = InitIn { flags: InitFlags::MAX_PAGES.bits() as u32, flags2: !0, ..init };
        let (out, _) = agree(&Greedy, &notifier(), &old, 4096, &mut Some(|_| true));
        assert_eq!(out.flags2, 0);
    }

    /// Fault model: room for fewer bytes than the pages that were agreed on, which the kernel
    /// refuses when it is too late to go on without io_uring.
    #[test]
    fn entries_have_room_for_as_many_pages_as_a_request_may_have() {
        let offered = InitFlags::MAX_PAGES | InitFlags::INIT_EXT | InitFlags::OVER_IO_URING;
        let flags = offered.bits();
        let (flags, flags2) = (flags as u32, (flags >> 32) as u32);
        let init = InitIn { major: 7, minor: 60, flags, flags2, ..InitIn::default() };
        for page in [4096, 16 << 10, 64 << 10] {
            let mut payload = 0;
            let with_rings = |bytes| {
                payload = bytes;
                true
            };
            let (out, _) = agree(&Greedy, &notifier(), &init, page, &mut Some(with_rings));
            assert_eq!(payload, usize::from(out.max_pages) * page as usize);
            assert_eq!(payload, out.max_write as usize);
        }
    }
}
