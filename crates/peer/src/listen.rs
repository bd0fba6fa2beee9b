// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The receiver's sockets: every session is a task of its own, bounded in number, time and bytes.

use crate::frame::{Bye, Frame, WITH_LIMITS};
use crate::io::{Lost, Reader, say, write};
use crate::node::Shared;
use crate::refusal::Refusal;
use crate::session::{Session, Step};
use crate::tls::{self, Credentials};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tidegate_model::SpiffeId;
use tidegate_model::remote::{Hits, Notice};
use tidegate_units::Nanos;
use tokio::io::{AsyncWrite, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Most sessions at once, those that are being set up included; a second one of each peer may wait
/// for the first to end.
const SESSIONS_MAX: usize = 2 * tidegate_model::PEERS_MAX + 64;
/// Most handshakes per second, and as many at once: each costs about a millisecond of CPU.
const HANDSHAKES: Bucket = Bucket { per_second: 100.0, burst: 100.0 };
/// Of these, most that one source may have: a stranger at the port must not use them all, since
/// sessions begin anew every hour.
const HANDSHAKES_OF_SOURCE: Bucket = Bucket { per_second: 10.0, burst: 20.0 };
/// Most sources whose share is counted; above, the one that was silent for longest is forgotten.
const SOURCES_MAX: usize = 1024;
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
    let mut pace = Pace::new(shared.clock.now());
    let mut sessions = JoinSet::new();
    let mut failed = false;
    loop {
        let (stream, from) = match listener.accept().await {
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
        // A session that ended, or panicked, is nobody else's concern.
        while sessions.try_join_next().is_some() {}
        let place = Arc::clone(&places).try_acquire_owned();
        let (true, Ok(place)) = (pace.allows(shared.clock.now(), from.ip()), place) else {
            shared.refuse(None, Refusal::Busy, &format!("{from}: {}", Refusal::Busy.text()));
            continue;
        };
        let Some(credentials) = credentials.borrow().clone() else { continue };
        let shared = Arc::clone(&shared);
        sessions.spawn(async move {
            let _place = place;
            take(&shared, &credentials, stream, from).await;
        });
    }
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

/// Rate and depth of a bucket of handshakes.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    per_second: f64,
    burst: f64,
}

/// What is in a bucket.
#[derive(Clone, Copy, Debug)]
struct Level {
    tokens: f64,
    at: Nanos,
}

impl Level {
    const fn full(bucket: Bucket, now: Nanos) -> Self {
        Self { tokens: bucket.burst, at: now }
    }

    fn takes(&mut self, bucket: Bucket, now: Nanos) -> bool {
        let earned = now.since(self.at).as_secs_f64() * bucket.per_second;
        self.tokens = (self.tokens + earned).min(bucket.burst);
        self.at = now;
        let taken = self.tokens >= 1.0;
        if taken {
            self.tokens -= 1.0;
        }
        taken
    }
}

/// How many handshakes there may be: of all sources together, and of each.
struct Pace {
    all: Level,
    sources: BTreeMap<IpAddr, Level>,
}

impl Pace {
    const fn new(now: Nanos) -> Self {
        Self { all: Level::full(HANDSHAKES, now), sources: BTreeMap::new() }
    }

    /// A source that is above its share takes nothing from the others.
    fn allows(&mut self, now: Nanos, from: IpAddr) -> bool {
        let source = source(from);
        if !self.sources.contains_key(&source) && self.sources.len() >= SOURCES_MAX {
            let oldest = self.sources.iter().min_by_key(|(_, level)| level.at);
            if let Some(oldest) = oldest.map(|(source, _)| *source) {
                self.sources.remove(&oldest);
            }
        }
        let fresh = Level::full(HANDSHAKES_OF_SOURCE, now);
        let share = self.sources.entry(source).or_insert(fresh);
        share.takes(HANDSHAKES_OF_SOURCE, now) && self.all.takes(HANDSHAKES, now)
    }
}

/// One host of IPv6 has a whole /64.
fn source(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
        v4 => v4,
    }
}

/// One connection, from its handshake to its end.
async fn take(shared: &Shared, credentials: &Credentials, stream: TcpStream, from: SocketAddr) {
    let _ = stream.set_nodelay(true);
    let acceptor = TlsAcceptor::from(credentials.server());
    let accepted = timeout(HANDSHAKE_MAX, acceptor.accept(stream)).await;
    let mut stream = match accepted {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            let why = tls::refusal(&error);
            return shared.refuse(None, why, &format!("{from}: {}", tls::in_words(error)));
        }
        Err(_) => {
            return shared.refuse(None, Refusal::Silent, &format!("{from}: no handshake in time"));
        }
    };
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
    let end = hold(shared, stream, session).await;
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
    use std::net::Ipv4Addr;
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

    fn v4(host: u32) -> IpAddr {
        Ipv4Addr::from_bits(0x0a00_0000 + host).into()
    }

    #[test]
    fn a_stranger_who_connects_without_end_does_not_keep_a_peer_out() {
        let mut pace = Pace::new(Nanos::ZERO);
        let (mut stranger, mut peer) = (0, 0);
        for ms in 0..10_000 {
            let now = Nanos::from_millis(ms);
            stranger += u32::from(pace.allows(now, v4(1)));
            if ms.is_multiple_of(200) {
                peer += u32::from(pace.allows(now, v4(2)));
            }
        }
        assert_eq!(peer, 50, "all of its handshakes");
        assert!((119..=120).contains(&stranger), "{stranger}: 20 at once, 10 a second");
    }

    #[test]
    fn all_sources_together_have_a_limit_and_the_table_has_one() {
        let mut pace = Pace::new(Nanos::ZERO);
        let allowed = (0..5_000).filter(|host| pace.allows(Nanos::ZERO, v4(*host))).count();
        assert_eq!((allowed, pace.sources.len()), (100, SOURCES_MAX));
    }

    #[test]
    fn a_host_with_many_addresses_of_ipv6_is_one_source() {
        let mut pace = Pace::new(Nanos::ZERO);
        let addresses = (0..100_u128).map(|host| Ipv6Addr::from_bits(0x2001_0db8 << 96 | host));
        let allowed = addresses.filter(|from| pace.allows(Nanos::ZERO, (*from).into())).count();
        assert_eq!(allowed, 20);
        let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
        assert_eq!(source(mapped), v4(1));
    }
}
