// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The receiver's sockets: every session is a task of its own, bounded in number, time and bytes.

use crate::frame::{Bye, Frame};
use crate::io::{Lost, Reader, say};
use crate::node::Shared;
use crate::refusal::Refusal;
use crate::session::{Session, Step};
use crate::tls::{self, Credentials};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tidegate_model::intent::SpiffeId;
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
const SESSIONS_MAX: usize = 2 * tidegate_model::intent::PEERS_MAX + 64;
/// Most handshakes per second, and as many at once: each costs about a millisecond of CPU.
const HANDSHAKES_PER_SECOND: f64 = 100.0;
/// How long a handshake may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(3);
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
    let mut pace = Pace { tokens: HANDSHAKES_PER_SECOND, at: shared.clock.now() };
    let mut sessions = JoinSet::new();
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                shared.trouble("cluster.listen", format!("cannot accept: {error}"));
                sleep(RETRY).await;
                continue;
            }
        };
        // A session that ended, or panicked, is nobody else's concern.
        while sessions.try_join_next().is_some() {}
        let place = Arc::clone(&places).try_acquire_owned();
        let (true, Ok(place)) = (pace.allows(shared.clock.now()), place) else {
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
                shared.no_trouble("cluster.listen");
                tracing::info!(%address, "takes reports");
                return listener;
            }
            Err(error) => {
                shared.trouble("cluster.listen", format!("cannot bind {address}: {error}"))
            }
        }
        sleep(RETRY).await;
    }
}

/// A bucket of handshakes.
struct Pace {
    tokens: f64,
    at: Nanos,
}

impl Pace {
    fn allows(&mut self, now: Nanos) -> bool {
        let earned = now.since(self.at).as_secs_f64() * HANDSHAKES_PER_SECOND;
        self.tokens = (self.tokens + earned).min(HANDSHAKES_PER_SECOND);
        self.at = now;
        let allowed = self.tokens >= 1.0;
        if allowed {
            self.tokens -= 1.0;
        }
        allowed
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
            return shared.refuse(None, Refusal::Untrusted, &format!("{from}: {error}"));
        }
        Err(_) => {
            return shared.refuse(None, Refusal::Silent, &format!("{from}: no handshake in time"));
        }
    };
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
            return leave(&mut stream, Refusal::Identity).await;
        }
    };
    let begun = {
        let number = credentials.random();
        Session::begin(&mut shared.table(), identity.clone(), number, shared.clock.now())
    };
    let session = match begun {
        Ok(session) => session,
        Err(why) => return leave(&mut stream, why).await,
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

async fn leave<W: AsyncWrite + Unpin>(stream: &mut W, why: Refusal) {
    // Whoever does not hear it sees the connection end.
    let _ = say(stream, &Frame::Bye(Bye { why })).await;
    let _ = tokio::io::AsyncWriteExt::shutdown(stream).await;
}

async fn hold(shared: &Shared, stream: TlsStream<TcpStream>, mut session: Session) -> End {
    let (input, mut output) = split(stream);
    let mut reader = Reader::new(input);
    if let Err(error) = say(&mut output, &session.welcome()).await {
        return End::Lost(error.to_string());
    }
    // Ticks come also while messages do.
    let mut looks = interval(LOOK_EVERY);
    loop {
        let step = tokio::select! {
            next = reader.next() => match heard(shared, &mut session, next) {
                Ok(step) => step,
                Err(why) => return End::Lost(why),
            },
            _ = looks.tick() => session.look(&mut shared.table(), shared.clock.now()),
        };
        match step {
            Step::Go => {}
            Step::Say(frame) => {
                if let Err(error) = say(&mut output, &frame).await {
                    return End::Lost(error.to_string());
                }
            }
            Step::End(Frame::Bye(bye), why) => {
                leave(&mut output, bye.why).await;
                return End::Refused(why);
            }
            Step::End(_, why) => return End::Refused(why),
            Step::Over => return End::Leave,
        }
    }
}

fn heard(
    shared: &Shared,
    session: &mut Session,
    next: Result<(Frame, usize), Lost>,
) -> Result<Step, String> {
    let now = shared.clock.now();
    let mut table = shared.table();
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
