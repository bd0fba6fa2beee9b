// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One client's connection: TLS, HTTP/1.1 or HTTP/2, and how it ends.

use crate::body::Outgoing;
use crate::counters::one;
use crate::exchange::exchange;
use crate::front::{Front, duration};
use crate::head::{Client, FIELDS_MAX, HEAD_BYTES_MAX};
use crate::io::Patient;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidegate_units::Nanos;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

/// Most bytes of a connection that are read ahead.
const BUFFER_MAX: usize = 64 * 1024;
/// Streams of a connection at once.
const STREAMS_MAX: u32 = 128;
/// Streams that a client has reset before we looked at them; one more ends the connection
/// (CVE-2023-44487).
const RESETS_MAX: usize = 20;
/// Streams that we have reset for what the client did in them; one more ends the connection
/// (CVE-2025-8671).
const ERRORS_MAX: usize = 64;
/// What a client may send ahead in a stream, and in a connection.
const WINDOWS: (u32, u32) = (64 * 1024, 256 * 1024);
/// What waits for a client in a stream.
const SEND_BUFFER_MAX: usize = 64 * 1024;
/// Requests that a client has reset before their response. One more, and more than half of all, ends
/// the connection: those of [`RESETS_MAX`] are only the ones that we had not looked at.
const CANCELLED_MAX: u32 = 200;
/// Who has just come, or had a request, is not asked to make room.
const FRESH: Duration = Duration::from_millis(500);
/// A client that says nothing is asked whether it is there, and has as long again to say so.
const PING_EVERY: Duration = Duration::from_secs(20);

/// What connections are told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// Nothing new is taken; what is under way ends.
    pub(crate) ends: bool,
    /// Goes up when those without a request have to leave.
    pub(crate) make_room: u64,
}

/// Whether a connection has requests under way, and else since when it has none.
pub(crate) struct Busy {
    requests: AtomicU32,
    /// Of them, those that have announced a body of which nothing has come.
    announced: AtomicU32,
    /// When the last one ended, or announced a body; else when it was opened.
    since_ns: AtomicU64,
    /// Requests so far, and those that were cancelled.
    all: AtomicU32,
    cancelled: AtomicU32,
    /// The client cancels too much.
    abused: Notify,
    /// Responses of which the client has not taken what there is, and since when.
    standing: Mutex<BTreeMap<u32, Nanos>>,
    front: Arc<Front>,
}

impl Busy {
    fn new(front: &Arc<Front>) -> Arc<Self> {
        Arc::new(Self {
            requests: AtomicU32::new(0),
            announced: AtomicU32::new(0),
            since_ns: AtomicU64::new(front.now().0),
            all: AtomicU32::new(0),
            cancelled: AtomicU32::new(0),
            abused: Notify::new(),
            standing: Mutex::default(),
            front: Arc::clone(front),
        })
    }

    /// For how long the client has not taken a response that it asked for.
    fn stands(&self) -> Duration {
        let standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        let since = standing.values().min().copied();
        since.map_or(Duration::ZERO, |since| duration(self.front.now().since(since)))
    }

    /// How long there has been no request; zero: there is one.
    fn silent(&self) -> Duration {
        if self.requests.load(Relaxed) > 0 {
            return Duration::ZERO;
        }
        duration(self.front.now().since(Nanos(self.since_ns.load(Relaxed))))
    }

    /// How long there has been no whole request: one whose body is only announced holds no server.
    fn without_request(&self) -> Duration {
        if self.requests.load(Relaxed) > self.announced.load(Relaxed) {
            return Duration::ZERO;
        }
        duration(self.front.now().since(Nanos(self.since_ns.load(Relaxed))))
    }
}

/// A request whose body is announced, until some of it has come.
pub(crate) struct Announced<'a>(&'a Busy);

impl<'a> Announced<'a> {
    pub(crate) fn new(busy: &'a Busy) -> Self {
        busy.since_ns.store(busy.front.now().0, Relaxed);
        busy.announced.fetch_add(1, Relaxed);
        Self(busy)
    }
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        self.0.announced.fetch_sub(1, Relaxed);
    }
}

/// A request that is under way, until its response has ended.
pub(crate) struct UnderWay {
    busy: Arc<Busy>,
    id: u32,
    responded: bool,
    /// Its body broke off: a client that resets a stream does that, and may get a response before we hear of it.
    broken_off: bool,
}

impl UnderWay {
    fn new(busy: Arc<Busy>) -> Self {
        busy.requests.fetch_add(1, Relaxed);
        let id = busy.all.fetch_add(1, Relaxed);
        Self { busy, id, responded: false, broken_off: false }
    }

    pub(crate) fn busy(&self) -> &Busy {
        &self.busy
    }

    /// Its client has not sent all of it, and will not: it counts as cancelled.
    pub(crate) fn breaks_off(&mut self) {
        self.broken_off = true;
    }

    /// A part of the response was given to the client, who asks for more once it has taken this one.
    pub(crate) fn gave(&self) {
        let mut standing = self.busy.standing.lock().unwrap_or_else(PoisonError::into_inner);
        standing.insert(self.id, self.busy.front.now());
    }

    /// The client has taken it.
    pub(crate) fn taken(&self) {
        let mut standing = self.busy.standing.lock().unwrap_or_else(PoisonError::into_inner);
        standing.remove(&self.id);
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.taken();
        self.busy.since_ns.store(self.busy.front.now().0, Relaxed);
        self.busy.requests.fetch_sub(1, Relaxed);
        if !self.responded || self.broken_off {
            let cancelled = self.busy.cancelled.fetch_add(1, Relaxed) + 1;
            if cancelled > CANCELLED_MAX && cancelled > self.busy.all.load(Relaxed) / 2 {
                self.busy.abused.notify_one();
            }
        }
    }
}

/// Serves a connection to its end.
pub(crate) async fn attend(
    front: Arc<Front>,
    (stream, from): (TcpStream, SocketAddr),
    mut told: watch::Receiver<Told>,
) {
    let site = front.site();
    let clients = &site.clients;
    let (idle, patience) = (duration(clients.idle_timeout), duration(clients.body_timeout));
    // A response is one small segment, and somebody waits for it.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let stream = Patient::new(stream, patience);
    let client = Client { address: from.ip(), secure: site.tls.is_some() };
    let Some(tls) = &site.tls else { return http1(front, (stream, client), (told, idle)).await };
    let shaken = tokio::select! {
        shaken = timeout(idle, TlsAcceptor::from(Arc::clone(tls)).accept(stream)) => shaken.ok(),
        () = has_to_leave(&front, &mut told) => None,
    };
    let Some(Ok(stream)) = shaken else { return one(&front.counters.handshakes_failed) };
    drop(site);
    match stream.get_ref().1.alpn_protocol() {
        Some(b"h2") => http2(front, (stream, client), (told, idle, patience)).await,
        _ => http1(front, (stream, client), (told, idle)).await,
    }
}

/// Until room is wanted from a client that has had time for its handshake.
async fn has_to_leave(front: &Front, told: &mut watch::Receiver<Told>) {
    let begun = front.now();
    loop {
        if told.changed().await.is_err() {
            return std::future::pending().await;
        }
        if !told.borrow().ends && duration(front.now().since(begun)) >= FRESH {
            return;
        }
    }
}

/// A connection that can be told to end.
trait Ends: Future<Output = Result<(), hyper::Error>> {
    fn end(self: Pin<&mut Self>);
}

impl<I, B, S> Ends for http1::Connection<I, S>
where
    S: hyper::service::HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    I: hyper::rt::Read + hyper::rt::Write + Unpin,
    B: hyper::body::Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    fn end(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl<I, B, S, E> Ends for http2::Connection<I, S, E>
where
    S: hyper::service::HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    I: hyper::rt::Read + hyper::rt::Write + Unpin,
    B: hyper::body::Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    E: hyper::rt::bounds::Http2ServerConnExec<S::Future, B>,
{
    fn end(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

async fn http1<T: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    front: Arc<Front>,
    (stream, client): (T, Client),
    (told, idle): (watch::Receiver<Told>, Duration),
) {
    let busy = Busy::new(&front);
    let of = (Arc::clone(&front), Arc::clone(&busy));
    let service =
        service_fn(move |request| answer((Arc::clone(&of.0), Arc::clone(&of.1)), client, request));
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(idle)
        .max_header_size(HEAD_BYTES_MAX)
        .max_headers(FIELDS_MAX)
        .max_buf_size(BUFFER_MAX);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    // Its head has a time-out of its own.
    if let Err(error) = run(connection, &busy, told, None).await
        && (error.is_parse() || error.is_parse_too_large())
    {
        one(&front.counters.malformed);
    }
}

async fn http2<T: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    front: Arc<Front>,
    (stream, client): (T, Client),
    (told, idle, patience): (watch::Receiver<Told>, Duration, Duration),
) {
    let busy = Busy::new(&front);
    let of = (front, Arc::clone(&busy));
    let service =
        service_fn(move |request| answer((Arc::clone(&of.0), Arc::clone(&of.1)), client, request));
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_pending_accept_reset_streams(RESETS_MAX)
        .max_local_error_reset_streams(ERRORS_MAX)
        .max_header_list_size(HEAD_BYTES_MAX as u32)
        .initial_stream_window_size(WINDOWS.0)
        .initial_connection_window_size(WINDOWS.1)
        .max_send_buf_size(SEND_BUFFER_MAX)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_EVERY);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    // How it ended is the client's affair.
    let _ = run(connection, &busy, told, Some((idle, patience))).await;
}

async fn answer(
    (front, busy): (Arc<Front>, Arc<Busy>),
    client: Client,
    request: Request<Incoming>,
) -> Result<Response<Outgoing>, Infallible> {
    let mut under_way = UnderWay::new(busy);
    let response = exchange(front, client, request, &mut under_way).await;
    under_way.responded = true;
    Ok(response.map(|body| body.with(under_way)))
}

/// Until it ends by itself, is told to, has had no request for a while, or its client does not take a
/// response for another. HTTP/1.1 has both times of its own.
async fn run(
    connection: impl Ends,
    busy: &Busy,
    mut told: watch::Receiver<Told>,
    times: Option<(Duration, Duration)>,
) -> Result<(), hyper::Error> {
    let mut connection = pin!(connection);
    if told.borrow_and_update().ends {
        connection.as_mut().end();
    }
    let (idle, patience) = times.unwrap_or_default();
    let mut left = idle.min(patience);
    loop {
        tokio::select! {
            ended = connection.as_mut() => return ended,
            changed = told.changed() => {
                if changed.is_err() || told.borrow().ends {
                    connection.as_mut().end();
                    return connection.await;
                }
                if busy.without_request() >= FRESH {
                    return leave(connection, FRESH, || busy.without_request()).await;
                }
            }
            () = busy.abused.notified() => {
                return leave(connection, Duration::ZERO, || busy.silent()).await;
            }
            () = sleep(left), if times.is_some() => {
                if busy.silent() >= idle {
                    return leave(connection, idle, || busy.silent()).await;
                }
                if busy.stands() >= patience {
                    connection.as_mut().end();
                    return timeout(patience, connection).await.unwrap_or(Ok(()));
                }
                left = idle.saturating_sub(busy.silent()).min(patience);
            }
        }
    }
}

/// It is told to end, and has ended once its last request has, and it was `without` one for so long: what is no
/// whole request is not waited for.
async fn leave(
    mut connection: Pin<&mut impl Ends>,
    long: Duration,
    without: impl Fn() -> Duration,
) -> Result<(), hyper::Error> {
    connection.as_mut().end();
    loop {
        tokio::select! {
            ended = connection.as_mut() => return ended,
            () = sleep(long.max(FRESH)) => if without() >= long {
                return Ok(());
            },
        }
    }
}
