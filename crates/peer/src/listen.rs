// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The receiver's sockets: every session is a task of its own, bounded in number, time and bytes.

use crate::arrivals::{HalfOpen, Known, Pace};
use crate::frame::{Bye, Frame, WITH_LIMITS};
use crate::io::{Lost, Reader, say, write};
use crate::node::Shared;
use crate::refusal::Refusal;
use crate::session::{Session, Step};
use crate::tls::{self, Credentials};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tidegate_model::SpiffeId;
use tidegate_model::remote::{Hits, Notice};
use tokio::io::{AsyncWrite, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Most sessions at once, of those who have shown a certificate; a second one of each peer may wait
/// for the first to end.
const SESSIONS_MAX: usize = 2 * tidegate_model::PEERS_MAX + 64;
/// How long a handshake may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(3);
/// How long a stream may take to close behind our last word: a peer that does not read keeps what is
/// not sent yet, and with it the session's place.
const CLOSE_MAX: Duration = Duration::from_millis(500);
/// How often a session looks whether it is still wanted.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Pause after an address could not be bound, or a connection not accepted.
const RETRY: Duration = Duration::from_millis(500);

/// Takes reports at `address` until it is dropped.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    credentials: watch::Receiver<Option<Arc<Credentials>>>,
    address: SocketAddr,
) {
    let listener = bind(&shared, address).await;
    let places = Arc::new(Semaphore::new(SESSIONS_MAX));
    let known = Known::default();
    let mut pace = Pace::new(shared.clock.now());
    let mut half_open = HalfOpen::new();
    let mut sessions = JoinSet::new();
    let mut failed = false;
    loop {
        let arrived = tokio::select! {
            accepted = listener.accept() => accepted,
            shaken = half_open.next() => {
                // A session that ended, or panicked, is nobody else's concern.
                while sessions.try_join_next().is_some() {}
                match Arc::clone(&places).try_acquire_owned() {
                    Ok(place) => {
                        sessions.spawn(take(Arc::clone(&shared), known.clone(), shaken, place));
                    }
                    Err(_) => busy(&shared, shaken.from),
                }
                continue;
            }
        };
        let (stream, from) = match arrived {
            Ok(accepted) => accepted,
            Err(error) => {
                shared.problem("cluster.listen", format!("cannot accept: {error}"));
                failed = true;
                sleep(RETRY).await;
                continue;
            }
        };
        if std::mem::take(&mut failed) {
            shared.no_problem("cluster.listen");
        }
        let familiar = known.has(from.ip());
        if !pace.allows(shared.clock.now(), from.ip(), familiar) {
            busy(&shared, from);
            continue;
        }
        let Some(credentials) = credentials.borrow().clone() else { continue };
        let shaking = shake(Arc::clone(&shared), credentials, stream, from);
        if half_open.enter(familiar, shaking) {
            let why = "the oldest handshake under way made room for another";
            shared.refuse(None, Refusal::Busy, why);
        }
    }
}

fn busy(shared: &Shared, from: SocketAddr) {
    shared.refuse(None, Refusal::Busy, &format!("{from}: {}", Refusal::Busy.text()));
}

async fn bind(shared: &Shared, address: SocketAddr) -> TcpListener {
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => {
                shared.no_problem("cluster.listen");
                tracing::info!(%address, "takes reports");
                return listener;
            }
            Err(error) => {
                shared.problem("cluster.listen", format!("cannot bind {address}: {error}"))
            }
        }
        sleep(RETRY).await;
    }
}

/// A connection whose handshake has ended.
struct Shaken {
    stream: TlsStream<TcpStream>,
    from: SocketAddr,
    credentials: Arc<Credentials>,
}

async fn shake(
    shared: Arc<Shared>,
    credentials: Arc<Credentials>,
    stream: TcpStream,
    from: SocketAddr,
) -> Option<Shaken> {
    let _ = stream.set_nodelay(true);
    let acceptor = TlsAcceptor::from(credentials.server());
    match timeout(HANDSHAKE_MAX, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => return Some(Shaken { stream, from, credentials }),
        Ok(Err(error)) => {
            let why = tls::refusal(&error);
            shared.refuse(None, why, &format!("{from}: {}", tls::in_words(error)));
        }
        Err(_) => {
            shared.refuse(None, Refusal::Silent, &format!("{from}: no handshake in time"));
        }
    }
    None
}

/// One session, from its handshake to its end.
async fn take(
    shared: Arc<Shared>,
    known: Known,
    Shaken { mut stream, from, credentials }: Shaken,
    _place: OwnedSemaphorePermit,
) {
    let version = tls::version(stream.get_ref().1.alpn_protocol());
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let identity = match certificate.map(|certificate| tls::identity(certificate)) {
        Some(Ok(identity)) => identity,
        failed => {
            let why = failed.map_or_else(
                || "no certificate".into(),
                |e| match e {
                    Err(error) => error.to_string(),
                    Ok(identity) => identity.to_string(),
                },
            );
            shared.refuse(None, Refusal::Identity, &format!("{from}: its certificate: {why}"));
            return leave(&mut stream, version, Refusal::Identity).await;
        }
    };
    let begun = {
        let number = credentials.random();
        let mut table = shared.table();
        Session::begin(&mut table, identity.clone(), number, shared.clock.now())
            .map(|session| session.speaking(&mut table, version))
    };
    let session = match begun {
        Ok(session) => session,
        Err(why) => return leave(&mut stream, version, why).await,
    };
    let number = session.number();
    tracing::info!(peer = %identity, %from, "session up");
    known.note(&identity, from.ip());
    let end = hold(&shared, stream, session).await;
    shared.table().close(&identity, number, matches!(end, End::Leave));
    told(&identity, &end);
}

/// How a session ended.
#[derive(Debug)]
enum End {
    /// The peer took its leave.
    Leave,
    /// The stream ended or failed.
    Lost(String),
    /// We ended it.
    Refused(Refusal),
}

fn told(identity: &SpiffeId, end: &End) {
    match end {
        End::Leave => tracing::info!(peer = %identity, "session over: it took its leave"),
        End::Lost(why) => tracing::warn!(peer = %identity, why, "session lost"),
        End::Refused(Refusal::Expired) => tracing::debug!(peer = %identity, "session renewed"),
        End::Refused(why) => tracing::warn!(peer = %identity, why = why.name(), "session ended"),
    }
}

async fn leave<W: AsyncWrite + Unpin>(stream: &mut W, version: u8, why: Refusal) {
    // Whoever does not hear it sees the connection end.
    let _ = say(stream, version, &Bye::of(why)).await;
    close(stream).await;
}

async fn close<W: AsyncWrite + Unpin>(stream: &mut W) {
    let _ = timeout(CLOSE_MAX, tokio::io::AsyncWriteExt::shutdown(stream)).await;
}

async fn hold(shared: &Shared, stream: TlsStream<TcpStream>, mut session: Session) -> End {
    let (input, mut output) = split(stream);
    let version = session.version();
    let mut reader = Reader::new(input, version);
    if let Err(error) = say(&mut output, version, &session.welcome()).await {
        return End::Lost(error.to_string());
    }
    let mut told = shared.told();
    told.borrow_and_update();
    let mut notices = shared.notices();
    notices.borrow_and_update();
    // Ticks come also while messages do.
    let mut looks = interval(LOOK_EVERY);
    loop {
        let step = tokio::select! {
            next = reader.next() => match heard(shared, &mut session, next) {
                Ok(step) => step,
                Err(why) => return End::Lost(why),
            },
            changed = told.changed() => {
                let hits = Arc::clone(&told.borrow_and_update());
                if changed.is_err() {
                    return End::Lost("the host stops".into());
                }
                match tell(shared, &session, &mut output, &hits).await {
                    Ok(()) => Step::Go,
                    Err(error) => return End::Lost(error.to_string()),
                }
            }
            changed = notices.changed() => {
                let due = Arc::clone(&notices.borrow_and_update());
                if changed.is_err() {
                    return End::Lost("the host stops".into());
                }
                match notify(shared, &session, &mut output, &due).await {
                    Ok(()) => Step::Go,
                    Err(error) => return End::Lost(error.to_string()),
                }
            }
            _ = looks.tick() => session.look(&mut shared.table(), shared.clock.now()),
        };
        match step {
            Step::Go => {}
            Step::Say(frame) => {
                if let Err(error) = say(&mut output, version, &frame).await {
                    return End::Lost(error.to_string());
                }
            }
            Step::End(bye, why) => {
                let _ = say(&mut output, version, &bye).await;
                close(&mut output).await;
                return End::Refused(why);
            }
            Step::Over => return End::Leave,
        }
    }
}

/// Hit counters of the limits that this peer gave.
async fn tell<W: AsyncWrite + Unpin>(
    shared: &Shared,
    session: &Session,
    output: &mut W,
    hits: &[(String, Hits)],
) -> io::Result<()> {
    let version = session.version();
    if version < WITH_LIMITS {
        return Ok(());
    }
    let name = shared.table().name(session.identity()).map(str::to_owned);
    let own = hits.iter().filter(|(peer, _)| name.as_ref() == Some(peer));
    let frames = own.filter_map(|(_, hits)| session.hits(hits).encode(version));
    let bytes: Vec<u8> = frames.flatten().collect();
    if bytes.is_empty() { Ok(()) } else { write(output, &bytes).await }
}

/// What comes for the services of this peer while this host is congested.
async fn notify<W: AsyncWrite + Unpin>(
    shared: &Shared,
    session: &Session,
    output: &mut W,
    notices: &[(String, Notice)],
) -> io::Result<()> {
    let version = session.version();
    if version < WITH_LIMITS {
        return Ok(());
    }
    let bytes: Vec<u8> = {
        let (mut table, now) = (shared.table(), shared.clock.now());
        table.at_day(shared.today_s());
        let name = table.name(session.identity()).map(str::to_owned);
        let own = notices.iter().filter(|(peer, _)| name.as_ref() == Some(peer));
        let frames = own.filter_map(|(_, notice)| session.notice(&mut table, now, notice));
        frames.filter_map(|frame| frame.encode(version)).flatten().collect()
    };
    if bytes.is_empty() { Ok(()) } else { write(output, &bytes).await }
}

fn heard(
    shared: &Shared,
    session: &mut Session,
    next: Result<(Frame, usize), Lost>,
) -> Result<Step, String> {
    let now = shared.clock.now();
    let mut table = shared.table();
    table.at_day(shared.today_s());
    match next {
        Ok((frame, length)) => Ok(session
            .charge(&mut table, now, length)
            .unwrap_or_else(|| session.receive(&mut table, now, frame))),
        Err(Lost::Wrong(error)) => Ok(session.end_with(&mut table, error)),
        Err(Lost::Ended) => Err("the connection ended".into()),
        Err(Lost::Io(error)) => Err(error.to_string()),
    }
}

impl From<Lost> for io::Error {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::Ended => io::Error::new(io::ErrorKind::UnexpectedEof, "the connection ended"),
            Lost::Wrong(error) => io::Error::new(io::ErrorKind::InvalidData, error),
            Lost::Io(error) => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    /// Takes every byte, and never closes.
    struct Unread;

    impl AsyncWrite for Unread {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    #[test]
    fn a_peer_that_does_not_read_does_not_keep_its_place() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let left = runtime.block_on(async {
            timeout(20 * CLOSE_MAX, leave(&mut Unread, 1, Refusal::Identity)).await
        });
        assert!(left.is_ok(), "waits without an end");
    }
}
