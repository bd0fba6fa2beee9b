// SPDX-License-Identifier: Apache-2.0 OR MIT
//! /metrics, /healthz, /readyz: the pure function of `tidegate-api` behind hyper, bounded in
//! connections and in their life, so that a slow or greedy client costs a scrape and nothing else.
//! It runs in a thread of its own, without the daemon's raised priority: the control loop goes first.
//!
//! Connections that say nothing must not keep a health probe out, however many there are. So every
//! connection is accepted at once, and where all seats are taken one is closed for it: of the source
//! that holds most of them, the one that was quiet for longest. Where none of its connections is quiet, it is
//! the one that was given most pages: who sends request after request never pauses. One whose first page
//! is being made is never closed. A flood closes its own connections; a probe is served meanwhile.

use crate::warnings::Warnings;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tidegate_api::http;
use tidegate_model::snapshot::Snapshot;
use tidegate_units::{Clock, Nanos};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Most connections at once; for the next one, another is closed.
const CONNECTIONS_MAX: usize = 128;
/// Most that wait in the listener's queue; one that finds no room there would have to try again
/// after a second.
const BACKLOG: u32 = 4096;
/// A connection ends after so long, whatever it does.
const LIFE_MAX: Duration = Duration::from_secs(60);
/// The head of a request has to be there after so long, and a connection without one ends.
const HEAD_MAX: Duration = Duration::from_secs(10);
/// Most bytes of a head.
const HEAD_BYTES_MAX: usize = 16 * 1024;
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

/// Makes the pages, one after the other; what one client was given, the next one need not wait for.
struct Desk {
    pages: Pages,
    made: tokio::sync::Mutex<(Interval, http::Pages)>,
}

impl Desk {
    fn new(pages: Pages) -> Self {
        let mut pace = interval(PAGE_EVERY);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { pages, made: tokio::sync::Mutex::new((pace, http::Pages::default())) }
    }

    async fn page(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let (pace, made) = &mut *self.made.lock().await;
        pace.tick().await;
        let snapshot = self.pages.snapshots.borrow().clone();
        let (method, path) = (request.method().as_str(), request.uri().path());
        let answer = made.respond(method, path, snapshot, self.pages.clock.now());
        let mut response = Response::new(Full::new(Bytes::from_owner(Body(answer.body))));
        *response.status_mut() =
            StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(answer.content_type));
        response
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
struct Problem(Arc<Mutex<Option<String>>>);

impl Problem {
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
    problem: Problem,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Begins to serve; without an address there is nothing to serve, and no thread.
    pub(crate) fn start(address: Option<SocketAddr>, pages: Pages) -> Self {
        let problem = Problem::default();
        let (stop, stopped) = oneshot::channel();
        let thread = address.and_then(|address| {
            spawn(address, pages, problem.clone(), stopped)
                .inspect_err(|error| problem.set(Some(format!("cannot be served: {error}"))))
                .ok()
        });
        Self { problem, stop: Some(stop), thread }
    }

    /// Warns for as long as there are no pages.
    pub(crate) fn tell(&self, now: Nanos, warnings: &mut Warnings) {
        match self.problem.get() {
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
    problem: Problem,
    stopped: oneshot::Receiver<()>,
) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("tidegate-http".into()).spawn(move || {
        // Of this thread only. One that is nice already may not be made less so, and need not.
        let _ = rustix::process::setpriority_process(None, NICE);
        runtime.block_on(async {
            tokio::select! {
                () = serve(address, pages, &problem) => {}
                _ = stopped => {}
            }
        });
    })
}

async fn serve(address: SocketAddr, pages: Pages, problem: &Problem) {
    let listener = bind(address, problem).await;
    tracing::info!(%address, "serving /metrics, /healthz and /readyz");
    let (desk, seats) = (Arc::new(Desk::new(pages)), Seats::default());
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            // Out of descriptors, most likely: some will be given back.
            Err(_) => {
                tokio::time::sleep(BIND_PAUSE).await;
                continue;
            }
        };
        // All of them wait for their pages, and have them soon.
        while !seats.make_room() {
            tokio::time::sleep(PAGE_EVERY).await;
        }
        let seat = seats.take(peer.ip());
        let (id, desk) = (seat.id, Arc::clone(&desk));
        let task = tokio::spawn(attend(stream, seat, desk));
        seats.occupied(id, task.abort_handle());
        // What was closed lets its descriptor go before the next one is accepted.
        tokio::task::yield_now().await;
    }
}

/// Serves one connection to its end.
async fn attend(stream: TcpStream, seat: Seat, desk: Arc<Desk>) {
    let (seat, desk) = (&seat, &*desk);
    let service = service_fn(async move |request: Request<Incoming>| {
        seat.busy(true);
        let page = desk.page(&request).await;
        seat.busy(false);
        Ok::<_, Infallible>(page)
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_MAX).max_buf_size(HEAD_BYTES_MAX);
    let served = builder.serve_connection(TokioIo::new(stream), service);
    // However it ends, it has ended.
    let _ = tokio::time::timeout(LIFE_MAX, served).await;
}

/// Who is served now.
#[derive(Clone, Default)]
struct Seats(Arc<Mutex<Taken>>);

#[derive(Default)]
struct Taken {
    /// Grows with everything that happens: an order in time.
    now: u64,
    by_id: BTreeMap<u64, Guest>,
}

struct Guest {
    source: IpAddr,
    /// Its page is being made.
    busy: bool,
    /// Pages that it was given.
    pages: u64,
    /// When it came, or was last served.
    active: u64,
    task: Option<AbortHandle>,
}

impl Taken {
    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// Whose seat is given to the next one: of the source that has most, the one that was quiet for
    /// longest, or else the one that was given most pages. `None`: all are busy with their first page.
    fn next(&self) -> Option<u64> {
        let mut held: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for guest in self.by_id.values() {
            *held.entry(guest.source).or_default() += 1;
        }
        let may = self.by_id.iter().filter(|(_, guest)| !guest.busy || guest.pages > 0);
        let rank = |guest: &Guest| {
            let pages = if guest.busy { guest.pages } else { 0 };
            (Reverse(held[&guest.source]), guest.busy, Reverse(pages), guest.active)
        };
        may.min_by_key(|(_, guest)| rank(guest)).map(|(id, _)| *id)
    }
}

impl Seats {
    /// Closes a connection where all seats are taken; false: none can be closed now.
    fn make_room(&self) -> bool {
        let mut taken = lock(&self.0);
        if taken.by_id.len() < CONNECTIONS_MAX {
            return true;
        }
        let Some(guest) = taken.next().and_then(|id| taken.by_id.remove(&id)) else {
            return false;
        };
        if let Some(task) = guest.task {
            task.abort();
        }
        true
    }

    fn take(&self, peer: IpAddr) -> Seat {
        let mut taken = lock(&self.0);
        let id = taken.tick();
        let guest = Guest { source: source(peer), busy: false, pages: 0, active: id, task: None };
        taken.by_id.insert(id, guest);
        Seat { id, seats: self.clone() }
    }

    fn occupied(&self, id: u64, task: AbortHandle) {
        if let Some(guest) = lock(&self.0).by_id.get_mut(&id) {
            guest.task = Some(task);
        }
    }
}

/// A seat, given back when it is dropped.
struct Seat {
    id: u64,
    seats: Seats,
}

impl Seat {
    fn busy(&self, busy: bool) {
        let mut taken = lock(&self.seats.0);
        let active = taken.tick();
        if let Some(guest) = taken.by_id.get_mut(&self.id) {
            guest.pages += u64::from(guest.busy && !busy);
            (guest.busy, guest.active) = (busy, active);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        lock(&self.seats.0).by_id.remove(&self.id);
    }
}

/// Bits of an IPv6 address that one host may choose: they are one source.
const HOST_BITS: u32 = 64;

fn source(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> HOST_BITS << HOST_BITS).into()),
        v4 => v4,
    }
}

/// The address may not be there yet (an interface that comes up after the start), or still be
/// another's: it is tried for ever.
async fn bind(address: SocketAddr, problem: &Problem) -> TcpListener {
    let mut tries = 0_u32;
    loop {
        match listen(address) {
            Ok(listener) => {
                problem.set(None);
                return listener;
            }
            Err(error) => {
                tries = tries.saturating_add(1);
                if error.kind() != io::ErrorKind::AddrInUse || tries > IN_USE_TRIES {
                    problem.set(Some(format!(
                        "no /metrics, /healthz and /readyz: cannot bind {address}: {error}"
                    )));
                }
            }
        }
        tokio::time::sleep(BIND_PAUSE).await;
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // As std does: the address of a predecessor's connections that have just ended is free.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
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

    fn serving() -> (SocketAddr, Server) {
        let place = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = place.local_addr().unwrap();
        drop(place);
        let server = Server::start(Some(address), pages());
        wait_for("pages", || is_healthy(get(address, "/healthz")));
        (address, server)
    }

    /// Connections that send half a head, or nothing, hold no seat that a probe needs: many more of
    /// them than there are seats, and more come while the probes are served.
    #[test]
    fn half_open_requests_keep_no_probe_out() {
        const HALF_OPEN: usize = 10_000;
        const AT_ONCE: usize = 500;
        const PROBE_MAX: Duration = Duration::from_secs(2);
        let (address, _server) = serving();
        let mut held = std::collections::VecDeque::new();
        let mut slowest = Duration::ZERO;
        for i in 0..HALF_OPEN {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            if i % 2 == 0 {
                // One that was closed meanwhile is one more that is half open.
                let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ");
            }
            held.push_back(stream);
            // The test may have no more descriptors; the server has closed the oldest long ago.
            if held.len() > AT_ONCE {
                held.pop_front();
            }
            if i % 1000 == 999 {
                let begin = MonotonicClock.now();
                assert!(is_healthy(get(address, "/healthz")), "after {i}");
                // Nothing is attached here.
                let ready = get(address, "/readyz");
                assert!(ready.is_ok_and(|text| text.starts_with("HTTP/1.1 503 ")), "after {i}");
                slowest = slowest.max(MonotonicClock.now().since(begin).into());
            }
        }
        assert!(slowest < PROBE_MAX, "{slowest:?}");
    }

    /// Connections whose next request is always there are never quiet: as many as there are seats.
    #[test]
    fn requests_without_a_pause_keep_no_probe_out() {
        const REQUESTS: usize = 2000;
        const PROBE_MAX: Duration = Duration::from_secs(5);
        let (address, _server) = serving();
        let one = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
        let greedy: Vec<_> = (0..CONNECTIONS_MAX)
            .map(|_| {
                let mut stream = std::net::TcpStream::connect(address).unwrap();
                stream.write_all(one.repeat(REQUESTS).as_bytes()).unwrap();
                stream
            })
            .collect();
        let begin = MonotonicClock.now();
        for _ in 0..3 {
            assert!(is_healthy(get(address, "/healthz")));
        }
        let took = Duration::from(MonotonicClock.now().since(begin));
        assert!(took < PROBE_MAX, "{took:?}");
        drop(greedy);
    }

    /// Clients that ask for the largest page and read nothing of it are closed like others.
    #[test]
    fn clients_that_do_not_read_keep_no_probe_out() {
        let (address, _server) = serving();
        let one = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
        let greedy: Vec<_> = (0..CONNECTIONS_MAX)
            .map(|_| {
                let mut stream = std::net::TcpStream::connect(address).unwrap();
                stream.write_all(one.repeat(4).as_bytes()).unwrap();
                stream
            })
            .collect();
        wait_for("a probe", || is_healthy(get(address, "/healthz")));
        drop(greedy);
    }

    #[test]
    fn the_seat_of_the_source_that_has_most_and_was_quiet_for_longest_is_given_away() {
        let seats = Seats::default();
        let from = |last: u8| IpAddr::from([192, 0, 2, last]);
        let probe = seats.take(from(1));
        let flood: Vec<Seat> = (1..CONNECTIONS_MAX).map(|_| seats.take(from(2))).collect();
        flood[0].busy(true);
        flood[1].busy(true);
        flood[1].busy(false);
        let next = || lock(&seats.0).next();
        assert_eq!(next(), Some(flood[2].id), "one is busy, one was just served");
        assert!(seats.make_room());
        assert!(!lock(&seats.0).by_id.contains_key(&flood[2].id));
        let last = seats.take(from(2));
        assert_eq!(next(), Some(flood[3].id), "the probe came first and stays");
        flood.iter().chain([&last]).for_each(|seat| seat.busy(true));
        assert_eq!(next(), Some(flood[1].id), "it had a page; the quiet probe stays");
        probe.busy(true);
        for (seat, pages) in [(&probe, 3), (&flood[5], 2), (&last, 1)] {
            lock(&seats.0).by_id.get_mut(&seat.id).unwrap().pages = pages;
        }
        assert_eq!(next(), Some(flood[5].id), "most pages, of the source that has most seats");
        lock(&seats.0).by_id.values_mut().for_each(|guest| guest.pages = 0);
        assert!(!seats.make_room(), "nobody whose page is made is closed");
        drop(probe);
        assert!(seats.make_room());
        let six = |text: &str| source(text.parse().unwrap());
        assert_eq!(six("2001:db8::1:1"), six("2001:db8::2:2"), "one host has many addresses");
        assert_ne!(six("2001:db8:0:1::1"), six("2001:db8:0:2::1"));
        assert_eq!(six("::ffff:192.0.2.1"), from(1));
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
        let address: SocketAddr = "192.0.2.1:7118".parse().unwrap();
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
