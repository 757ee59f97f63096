//! The thread that keeps a device connected.
//!
//! # What
//! It waits until the connection is lost, connects again for the timeout, has the changes made
//! again that the server may have forgotten, and gives up after that. What it tells is told by a
//! thread of its own: a log may lie on the device.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Fault, Result};
use crate::export::Export;
use crate::link::Link;
use crate::options::NbdEvent;
use crate::replies;
use crate::session::{Call, Session};
use crate::stream::Served;

/// Pauses between tries: the first, and the longest.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long a server has to end a connection that it is sent nothing more by.
const DRAIN: Duration = Duration::from_secs(5);
/// How long all connections after the first may take.
const MORE: Duration = Duration::from_secs(2);

/// Takes the first connection into use, and as many others as the server allows.
pub(crate) fn start(session: &Arc<Session>, first: Served) -> io::Result<()> {
    let deadline = Instant::now() + session.options.timeout;
    connect(session, first, deadline)?;
    match session.resume() {
        Ok(true) => Ok(()),
        Ok(false) => Err(io::Error::other("the server ended the connection")),
        Err(why) => Err(io::Error::other(why)),
    }
}

/// Keeps the device connected until it is closed or given up.
pub(crate) fn keep(session: &Arc<Session>, tell: &SyncSender<NbdEvent>) {
    session.options.on_thread();
    // What hears them may be slow, or gone.
    let tell = |event| drop(tell.try_send(event));
    let mut pause = PAUSE;
    // The first loss since the server answered last, and how many answers there were by then.
    let mut first: Option<(u64, Instant)> = None;
    while let Call::Lost { why, since } = session.call() {
        let answers = session.answers();
        let since = match first {
            // It connects and answers nothing: the same loss, and no reason to hurry.
            Some((before, since)) if before == answers => {
                if session.closed_by(Instant::now() + pause) {
                    break;
                }
                pause = (2 * pause).min(PAUSE_MAX);
                since
            }
            _ => {
                tell(NbdEvent::Lost { why: why.clone() });
                pause = PAUSE;
                since
            }
        };
        first = Some((answers, since));
        match reconnect(session, since, &mut pause) {
            Ok(Some(replayed)) => {
                let after = since.elapsed();
                tell(NbdEvent::Back { after, replayed });
            }
            Ok(None) => break,
            Err(fault) => {
                let why = format!("{why}; then {}", fault.why());
                session.give_up(&format!("{}: {why}", session.place.uri));
                tell(NbdEvent::GivenUp { why });
                break;
            }
        }
    }
    session.drain(Duration::ZERO);
}

/// Connects again, until the timeout is over: bytes that were written again. `None`: the device was
/// closed.
fn reconnect(session: &Arc<Session>, since: Instant, pause: &mut Duration) -> Result<Option<u64>> {
    let deadline = since + session.options.timeout;
    loop {
        // What the server was sent by the old connections is done before it is sent by new ones.
        session.drain(DRAIN.min(session.options.timeout / 8));
        let fault = match try_once(session, deadline) {
            Ok(Some(replayed)) => return Ok(Some(replayed)),
            Ok(None) => io::Error::other("the connection was lost again").into(),
            Err(Try::Again(fault)) => fault,
            Err(Try::Never(fault)) => return Err(fault),
        };
        let now = Instant::now();
        if session.closed_by(deadline.min(now + *pause)) {
            return Ok(None);
        }
        if now + *pause >= deadline {
            return Err(fault);
        }
        *pause = (2 * *pause).min(PAUSE_MAX);
    }
}

/// Why a try has failed.
enum Try {
    Again(Fault),
    Never(Fault),
}

impl<T: Into<Fault>> From<T> for Try {
    fn from(fault: T) -> Self {
        Self::Again(fault.into())
    }
}

fn try_once(session: &Arc<Session>, deadline: Instant) -> std::result::Result<Option<u64>, Try> {
    let refused = |why| Try::Never(Fault::Refused(why));
    // Before the question which disk it is, which is not sent without the lease either.
    session.require_lease().map_err(refused)?;
    let served = session.place.serve(deadline, session.options.patience())?;
    let export: Export = served.agreed.export;
    if let Some(fault) = export.shrunk(&session.export) {
        return Err(Try::Never(fault));
    }
    export.require_as_before(&session.export)?;
    // A connection that is not resumed must not stay in use.
    let leave = |fault: &Fault| session.lose(&fault.why());
    connect(session, served, deadline).map_err(Fault::from).inspect_err(leave)?;
    match session.compare_identity().inspect_err(leave) {
        Err(fault @ Fault::Refused(_)) => return Err(Try::Never(fault)),
        compared => compared?,
    }
    let replayed = session.replay(deadline).map_err(Fault::from).inspect_err(leave)?;
    let resumed = session.resume().map_err(refused)?;
    Ok(resumed.then_some(replayed))
}

/// Takes connections into use: one that is made, and others like it.
fn connect(session: &Arc<Session>, first: Served, deadline: Instant) -> io::Result<()> {
    let agreed = first.agreed;
    let wanted = if agreed.export.connects_often() { session.options.connections } else { 1 };
    let mut served = vec![first];
    // A server may allow fewer than that, and leave the next one without a word.
    let deadline = deadline.min(Instant::now() + MORE);
    while served.len() < wanted.max(1) {
        match session.place.serve(deadline, session.options.patience()) {
            Ok(more) if more.agreed.export.is_like(&agreed.export) => served.push(more),
            _ => break,
        }
    }
    let links: Vec<_> = served
        .into_iter()
        .map(|one| (Arc::new(Link::new(session.next_link(), one.wire, one.tls)), one.agreed))
        .collect();
    session.install(links.iter().map(|(link, _)| Arc::clone(link)).collect());
    for (link, agreed) in links {
        let (number, of) = (link.number, Arc::clone(session));
        let reader = thread::Builder::new().name("nbd-replies".to_owned()).spawn(move || {
            of.options.on_thread();
            replies::read_replies(&of, &link, &agreed);
        });
        match reader {
            Ok(reader) => session.add_reader(reader),
            Err(error) => {
                session.lost(number, "no thread");
                return Err(error);
            }
        }
    }
    Ok(())
}
