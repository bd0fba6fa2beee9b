// SPDX-License-Identifier: Apache-2.0 OR MIT
//! /metrics, /healthz, /readyz: the pure function of `tidegate-api` behind axum, bounded in
//! connections and in their life, so that a slow or greedy client costs a scrape and nothing else.
//! It runs in a thread of its own, without the daemon's raised priority: the control loop goes first.

use crate::warnings::Warnings;
use axum::Router;
use axum::body::Bytes;
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::serve::Listener;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;
use tidegate_api::http;
use tidegate_model::snapshot::Snapshot;
use tidegate_units::{Clock, Nanos};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::{MissedTickBehavior, interval};

/// Most connections at once; the next ones wait in the listener's queue.
const CONNECTIONS_MAX: usize = 32;
/// A connection ends after so long, whatever it does.
const LIFE_MAX: Duration = Duration::from_secs(60);
/// Time from one page to the next, whoever asks: so many that each connection has its turn in time,
/// and so few that they cost next to nothing.
const PAGE_EVERY: Duration = Duration::from_millis(5);
/// How often the address is tried while it cannot be had.
const BIND_PAUSE: Duration = Duration::from_millis(100);
/// So often it may be in use before that is told: a predecessor holds it for a moment.
const IN_USE_TRIES: u32 = 10;
/// Niceness of the thread.
const NICE: i32 = 0;
/// The subject of what is told while there are no pages.
const SUBJECT: &str = "daemon.http";

/// What a page is made from.
#[derive(Clone)]
pub(crate) struct Pages {
    pub(crate) snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    pub(crate) clock: Arc<dyn Clock + Send + Sync>,
}

impl Pages {
    /// The router that gives them, one after the other; what one client was given, the next one
    /// need not wait for.
    fn router(self) -> Router {
        let mut pace = interval(PAGE_EVERY);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let made = Arc::new(tokio::sync::Mutex::new((pace, http::Pages::default())));
        Router::new().fallback(async move |method: Method, uri: Uri| {
            let (pace, made) = &mut *made.lock().await;
            pace.tick().await;
            self.page(&method, &uri, made)
        })
    }

    fn page(&self, method: &Method, uri: &Uri, made: &mut http::Pages) -> Response {
        let snapshot = self.snapshots.borrow().clone();
        let answer = made.respond(method.as_str(), uri.path(), snapshot, self.clock.now());
        let status =
            StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = Bytes::from_owner(Body(answer.body));
        (status, [(header::CONTENT_TYPE, answer.content_type)], body).into_response()
    }
}

/// A page, sent without a copy for each client.
struct Body(Arc<str>);

impl AsRef<[u8]> for Body {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// What is guarded is replaced as a whole: it is good, whatever its last writer did.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why there are no pages; `None` while there are.
#[derive(Clone, Default)]
struct Trouble(Arc<Mutex<Option<String>>>);

impl Trouble {
    fn set(&self, why: Option<String>) {
        *lock(&self.0) = why;
    }

    fn get(&self) -> Option<String> {
        lock(&self.0).clone()
    }
}

/// Serves until it is dropped; the address is free then. A daemon without pages is better than
/// none: what cannot be is told and tried again.
pub(crate) struct Server {
    trouble: Trouble,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Begins to serve; without an address there is nothing to serve, and no thread.
    pub(crate) fn start(address: Option<SocketAddr>, pages: Pages) -> Self {
        let trouble = Trouble::default();
        let (stop, stopped) = oneshot::channel();
        let thread = address.and_then(|address| {
            spawn(address, pages, trouble.clone(), stopped)
                .inspect_err(|error| trouble.set(Some(format!("cannot be served: {error}"))))
                .ok()
        });
        Self { trouble, stop: Some(stop), thread }
    }

    /// Warns for as long as there are no pages.
    pub(crate) fn tell(&self, now: Nanos, warnings: &mut Warnings) {
        match self.trouble.get() {
            Some(why) => warnings.stick(now, SUBJECT, why),
            None => warnings.clear(SUBJECT),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        // One that panicked serves no more either.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn spawn(
    address: SocketAddr,
    pages: Pages,
    trouble: Trouble,
    stopped: oneshot::Receiver<()>,
) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("tidegate-http".into()).spawn(move || {
        // Of this thread only. One that is nice already may not be made less so, and need not.
        let _ = rustix::process::setpriority_process(None, NICE);
        runtime.block_on(async {
            tokio::select! {
                () = serve(address, pages, &trouble) => {}
                _ = stopped => {}
            }
        });
    })
}

async fn serve(address: SocketAddr, pages: Pages, trouble: &Trouble) {
    let listener = bind(address, trouble).await;
    tracing::info!(%address, "serving /metrics, /healthz and /readyz");
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    if let Err(error) = axum::serve(Bounded { listener, places }, pages.router()).await {
        trouble.set(Some(format!("ended: {error}")));
    }
}

/// The address may not be there yet (an interface that comes up after the start), or still be
/// another's: it is tried for ever.
async fn bind(address: SocketAddr, trouble: &Trouble) -> TcpListener {
    let mut tries = 0_u32;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => {
                trouble.set(None);
                return listener;
            }
            Err(error) => {
                tries = tries.saturating_add(1);
                if error.kind() != io::ErrorKind::AddrInUse || tries > IN_USE_TRIES {
                    trouble.set(Some(format!(
                        "no /metrics, /healthz and /readyz: cannot bind {address}: {error}"
                    )));
                }
            }
        }
        tokio::time::sleep(BIND_PAUSE).await;
    }
}

struct Bounded {
    listener: TcpListener,
    places: Arc<Semaphore>,
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            // The semaphore is never closed; if it were, nobody would be let in.
            let Ok(place) = Arc::clone(&self.places).acquire_owned().await else {
                std::future::pending::<()>().await;
                continue;
            };
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    let end = Box::pin(tokio::time::sleep(LIFE_MAX));
                    return (Connection { stream, end, _place: place }, peer);
                }
                // Out of descriptors, most likely: some will be given back.
                Err(_) => tokio::time::sleep(BIND_PAUSE).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection with an end.
struct Connection {
    stream: TcpStream,
    end: Pin<Box<tokio::time::Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    fn ended(&mut self, cx: &mut Context<'_>) -> bool {
        self.end.as_mut().poll(cx).is_ready()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ended(cx) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.ended(cx) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::path::PathBuf;
    use std::process::Command;
    use tidegate_sense::in_namespace;
    use tidegate_units::{ManualClock, MonotonicClock};

    /// Waits for a condition, for at most so long.
    const WAIT_MAX: Duration = Duration::from_secs(20);
    const LOOK_EVERY: Duration = Duration::from_millis(10);

    fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
        for _ in 0..WAIT_MAX.as_millis() / LOOK_EVERY.as_millis() {
            if holds() {
                return;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        panic!("in vain: {what}");
    }

    fn pages() -> Pages {
        let snapshots = watch::channel(Some(Arc::new(Snapshot::default()))).1;
        Pages { snapshots, clock: Arc::new(ManualClock::default()) }
    }

    fn warned(server: &Server, warnings: &mut Warnings) -> Vec<String> {
        server.tell(Nanos::ZERO, warnings);
        warnings.sentences(Nanos::ZERO)
    }

    /// The answer.
    fn get(address: SocketAddr, path: &str) -> io::Result<String> {
        let mut stream = std::net::TcpStream::connect(address)?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }

    fn is_healthy(answer: io::Result<String>) -> bool {
        answer.is_ok_and(|text| text.starts_with("HTTP/1.1 200 "))
    }

    #[test]
    fn an_address_that_another_holds_is_told_and_taken_when_it_is_free() {
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = other.local_addr().unwrap();
        let server = Server::start(Some(address), pages());
        let mut warnings = Warnings::default();
        wait_for("a warning", || !warned(&server, &mut warnings).is_empty());
        let lines = warned(&server, &mut warnings);
        assert!(lines[0].starts_with("daemon.http: no /metrics"), "{lines:?}");
        drop(other);
        wait_for("pages", || is_healthy(get(address, "/healthz")));
        assert!(warned(&server, &mut warnings).is_empty(), "it is over");
        assert!(get(address, "/metrics").is_ok_and(|text| text.ends_with("# EOF\n")));
        drop(server);
        assert!(get(address, "/healthz").is_err(), "the address is free");
    }

    #[test]
    fn requests_without_end_are_answered_at_a_pace() {
        const REQUESTS: usize = 40;
        let place = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = place.local_addr().unwrap();
        drop(place);
        let _server = Server::start(Some(address), pages());
        wait_for("pages", || is_healthy(get(address, "/healthz")));
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let before = MonotonicClock.now();
        let one = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
        let last = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        stream.write_all((one.repeat(REQUESTS) + last).as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let took = Duration::from(MonotonicClock.now().since(before));
        assert_eq!(text.matches("# EOF").count(), REQUESTS + 1, "each has its answer");
        // the first of them may have come as long after /healthz
        assert!(took >= PAGE_EVERY * u32::try_from(REQUESTS - 1).unwrap(), "{took:?}");
    }

    #[test]
    fn without_an_address_there_is_nothing_to_serve_and_nothing_to_tell() {
        let server = Server::start(None, pages());
        assert!(server.thread.is_none());
        assert!(warned(&server, &mut Warnings::default()).is_empty());
    }

    /// A network namespace that is removed by drop. Needs root and `ip`.
    struct Namespace(String);

    impl Namespace {
        fn new() -> Self {
            let name = format!("tidegate-http-{}", std::process::id());
            run(&["netns", "add", &name]);
            let made = Self(name);
            // Before its first address, a namespace takes any address for one that can be bound.
            run(&["-n", &made.0, "link", "set", "lo", "up"]);
            made
        }

        fn path(&self) -> PathBuf {
            PathBuf::from("/run/netns").join(&self.0)
        }
    }

    impl Drop for Namespace {
        fn drop(&mut self) {
            let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
        }
    }

    fn run(arguments: &[&str]) {
        let status = Command::new("ip").args(arguments).status().unwrap();
        assert!(status.success(), "ip {arguments:?}");
    }

    #[test]
    fn an_address_that_comes_after_the_start_gets_its_pages() {
        let namespace = Namespace::new();
        let address: SocketAddr = "192.0.2.1:9464".parse().unwrap();
        let server =
            in_namespace(Some(&namespace.path()), || Ok(Server::start(Some(address), pages())));
        let server = server.unwrap();
        let mut warnings = Warnings::default();
        wait_for("a warning", || !warned(&server, &mut warnings).is_empty());
        run(&["-n", &namespace.0, "address", "add", "192.0.2.1/32", "dev", "lo"]);
        let healthy = || in_namespace(Some(&namespace.path()), || get(address, "/healthz"));
        wait_for("pages", || is_healthy(healthy()));
        assert!(warned(&server, &mut warnings).is_empty(), "it is over");
    }
}
