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
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tidegate_units::Nanos;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
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
struct Busy {
    requests: AtomicU32,
    /// When the last one ended; else when it was opened.
    since_ns: AtomicU64,
    front: Arc<Front>,
}

impl Busy {
    fn new(front: &Arc<Front>) -> Arc<Self> {
        let (since_ns, front) = (AtomicU64::new(front.now().0), Arc::clone(front));
        Arc::new(Self { requests: AtomicU32::new(0), since_ns, front })
    }

    /// How long there has been no request; zero: there is one.
    fn silent(&self) -> Duration {
        if self.requests.load(Relaxed) > 0 {
            return Duration::ZERO;
        }
        duration(self.front.now().since(Nanos(self.since_ns.load(Relaxed))))
    }
}

/// A request that is under way, until its response has ended.
pub(crate) struct UnderWay(Arc<Busy>);

impl UnderWay {
    fn new(busy: Arc<Busy>) -> Self {
        busy.requests.fetch_add(1, Relaxed);
        Self(busy)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.since_ns.store(self.0.front.now().0, Relaxed);
        self.0.requests.fetch_sub(1, Relaxed);
    }
}

/// Serves a connection to its end.
pub(crate) async fn attend(
    front: Arc<Front>,
    (stream, from): (TcpStream, SocketAddr),
    told: watch::Receiver<Told>,
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
    let Ok(Ok(stream)) = timeout(idle, TlsAcceptor::from(Arc::clone(tls)).accept(stream)).await
    else {
        return one(&front.counters.handshakes_failed);
    };
    drop(site);
    match stream.get_ref().1.alpn_protocol() {
        Some(b"h2") => http2(front, (stream, client), (told, idle)).await,
        _ => http1(front, (stream, client), (told, idle)).await,
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
    (told, idle): (watch::Receiver<Told>, Duration),
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
    let _ = run(connection, &busy, told, Some(idle)).await;
}

async fn answer(
    (front, busy): (Arc<Front>, Arc<Busy>),
    client: Client,
    request: Request<Incoming>,
) -> Result<Response<Outgoing>, Infallible> {
    let under_way = UnderWay::new(busy);
    Ok(exchange(front, client, request).await.map(|body| body.with(under_way)))
}

/// Until it ends by itself, is told to, or has had no request for `idle`.
async fn run(
    connection: impl Ends,
    busy: &Busy,
    mut told: watch::Receiver<Told>,
    idle: Option<Duration>,
) -> Result<(), hyper::Error> {
    let mut connection = pin!(connection);
    if told.borrow_and_update().ends {
        connection.as_mut().end();
    }
    let mut left = idle.unwrap_or_default();
    loop {
        let look = sleep(left);
        tokio::select! {
            ended = connection.as_mut() => return ended,
            changed = told.changed() => {
                let ends = changed.is_err() || told.borrow().ends;
                if ends || busy.silent() >= FRESH {
                    connection.as_mut().end();
                }
                if ends {
                    return connection.await;
                }
            }
            () = look, if idle.is_some() => {
                let idle = idle.unwrap_or_default();
                if busy.silent() >= idle {
                    connection.as_mut().end();
                    return timeout(idle, connection).await.unwrap_or(Ok(()));
                }
                left = idle.saturating_sub(busy.silent());
            }
        }
    }
}
