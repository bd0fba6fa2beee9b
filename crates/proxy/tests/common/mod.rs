// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A proxy with its gate, a server, and what clients say, on loopback.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]
#![allow(dead_code, reason = "no file of tests uses all of it")]

#[path = "../../../gate/tests/port/mod.rs"]
mod port;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use tidegate_config::{Config, Endpoint, Registry, parse};
use tidegate_gate::Gate;
use tidegate_model::limits::ServiceLimits;
use tidegate_model::snapshot::ProxyCounts;
use tidegate_proxy::Proxies;
use tidegate_units::{Clock, MonotonicClock, Nanos, Rate};

/// Longer than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let clock = MonotonicClock;
    let end = clock.now() + Nanos::from_secs(PATIENCE.as_secs());
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(clock.now() < end, "{what} did not happen");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

pub(crate) fn free_port() -> SocketAddr {
    port::free_port()
}

/// What a server was sent, head by head.
pub(crate) type Heads = Arc<Mutex<Vec<String>>>;

/// A server that answers as the path of a request asks for: `/sleep/MS`, `/long/BYTES`, `/echo`, `/early` (the
/// same, of four bytes, and its head before the body has come), `/refuse` (a whole 413 before the body has come),
/// `/break`.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) heads: Heads,
    pub(crate) connections: Arc<AtomicU64>,
}

impl Server {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (heads, connections) = (Heads::default(), Arc::new(AtomicU64::new(0)));
        let of = (Arc::clone(&heads), Arc::clone(&connections));
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                of.1.fetch_add(1, Relaxed);
                let heads = Arc::clone(&of.0);
                std::thread::spawn(move || attend(stream, &heads));
            }
        });
        Self { address, heads, connections }
    }

    pub(crate) fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

/// The head of what comes next; `None`: nothing does.
pub(crate) fn head(reader: &mut impl BufRead) -> Option<String> {
    let mut head = String::new();
    loop {
        let before = head.len();
        reader.read_line(&mut head).ok().filter(|n| *n > 0)?;
        if head[before..] == *"\r\n" {
            return Some(head);
        }
    }
}

pub(crate) fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let of = |line: &'a str| line.split_once(": ").filter(|(n, _)| n.eq_ignore_ascii_case(name));
    head.lines().find_map(of).map(|(_, value)| value)
}

/// The body that a head announces.
pub(crate) fn body(reader: &mut impl BufRead, head: &str) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    if field(head, "transfer-encoding") == Some("chunked") {
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
            let length = usize::from_str_radix(line.trim(), 16).ok()?;
            let mut chunk = vec![0; length + 2];
            reader.read_exact(&mut chunk).ok()?;
            body.extend(&chunk[..length]);
            if length == 0 {
                return Some(body);
            }
        }
    }
    body.resize(field(head, "content-length").map_or(0, |n| n.parse().unwrap()), 0);
    reader.read_exact(&mut body).ok()?;
    Some(body)
}

fn attend(stream: TcpStream, heads: &Heads) {
    let (mut reader, mut writer) = (BufReader::new(stream.try_clone().unwrap()), stream);
    while let Some(head) = head(&mut reader) {
        heads.lock().unwrap().push(head.clone());
        if head.starts_with("POST /early ")
            && writer.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n").is_err()
        {
            return;
        }
        if head.starts_with("POST /refuse ")
            && writer.write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n").is_err()
        {
            return;
        }
        let Some(sent) = body(&mut reader, &head) else { return };
        let path = head.split(' ').nth(1).unwrap().to_owned();
        let mut parts = path[1..].splitn(2, '/');
        let number = |part: Option<&str>| part.and_then(|n| n.parse().ok()).unwrap_or(0_u64);
        let answer = match (parts.next(), parts.next()) {
            (Some("sleep"), ms) => {
                std::thread::park_timeout(Duration::from_millis(number(ms)));
                b"slept\n".to_vec()
            }
            (Some("long"), bytes) => vec![b'x'; number(bytes) as usize],
            (Some("echo"), _) => sent,
            (Some("early"), _) => {
                if writer.write_all(&sent).is_err() {
                    return;
                }
                continue;
            }
            (Some("refuse"), _) => continue,
            (Some("break"), _) => {
                let _ = writer.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort");
                return;
            }
            (Some("stop"), _) => return,
            (Some("trailers"), _) => {
                let text =
                    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Trailer\r\n\r\n\
                             3\r\nok\n\r\n0\r\nX-Trailer: 1\r\n\r\n";
                if writer.write_all(text).is_err() {
                    return;
                }
                continue;
            }
            _ => b"ok\n".to_vec(),
        };
        let length = answer.len();
        let response =
            format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nKeep-Alive: timeout=5\r\n\r\n");
        let sent = writer.write_all(response.as_bytes()).and_then(|()| writer.write_all(&answer));
        if sent.is_err() {
            return;
        }
    }
}

/// Renews the lease of a gate, as the daemon does, until it is dropped.
struct Ticks {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ticks {
    fn start(gate: &Arc<Gate>) -> Self {
        gate.tick(MonotonicClock.now());
        let ends = Arc::new(AtomicBool::new(false));
        let of = (Arc::clone(gate), Arc::clone(&ends));
        let thread = std::thread::spawn(move || {
            while !of.1.load(Relaxed) {
                std::thread::park_timeout(Duration::from_millis(100));
                of.0.tick(MonotonicClock.now());
            }
        });
        Self { ends, thread: Some(thread) }
    }
}

impl Drop for Ticks {
    fn drop(&mut self) {
        self.ends.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

pub(crate) struct World {
    pub(crate) proxies: Option<Proxies>,
    _ticks: Ticks,
    pub(crate) gate: Arc<Gate>,
    pub(crate) config: Config,
    pub(crate) front: SocketAddr,
}

fn registry() -> Registry {
    Registry::new(["token_bucket", "fresh_first", "gap"], ["default", "fixed"])
}

impl World {
    /// A proxy on `front` with these further keys.
    pub(crate) fn new(front: SocketAddr, keys: &str) -> Self {
        Self::with(config(front, keys))
    }

    pub(crate) fn with(config: Config) -> Self {
        let Endpoint::Ip(front) = config.gateways[0].listen else { panic!("{config:?}") };
        let gate = Arc::new(Gate::new(&config, 7));
        let proxies = Proxies::start(Arc::clone(&gate), Arc::new(MonotonicClock)).unwrap();
        proxies.follow(&config.gateways);
        let ticks = Ticks::start(&gate);
        let world = Self { proxies: Some(proxies), _ticks: ticks, gate, config, front };
        // What the operator has set holds without a word of the control loop.
        assert_eq!(world.gate.set_limits(&world.config, &[ServiceLimits::default()]), []);
        world.open();
        world
    }

    /// In front of these servers.
    pub(crate) fn before(servers: &[SocketAddr]) -> Self {
        let servers: Vec<String> = servers.iter().map(ToString::to_string).collect();
        Self::new(free_port(), &format!("upstream: {{servers: [{}]}}", servers.join(", ")))
    }

    pub(crate) fn proxies(&self) -> &Proxies {
        self.proxies.as_ref().unwrap()
    }

    pub(crate) fn open(&self) {
        wait_for("the proxy is open", || (self.proxies().problems() == [None]).then_some(()));
    }

    /// Only so many requests per second, from now on.
    pub(crate) fn limit(&self, rate: f64, burst: u32) {
        let rate = Some(Rate::per_second(rate));
        let limits = ServiceLimits { rate, burst, ..ServiceLimits::default() };
        assert_eq!(self.gate.set_limits(&self.config, &[limits]), []);
    }

    pub(crate) fn counts(&self) -> ProxyCounts {
        self.proxies().counts()[0].unwrap()
    }

    pub(crate) fn in_flight(&self) -> u64 {
        self.gate.totals(0).unwrap().waiting
    }
}

/// The configuration of TLS, with a certificate of its own in `dir`.
pub(crate) fn certificate(dir: &Path) -> String {
    let made = rcgen::generate_simple_self_signed(["shop.example".to_owned()]).unwrap();
    let (certificate, key) = (dir.join("cert.pem"), dir.join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    format!("tls: {{certificate: {}, key: {}}}", certificate.display(), key.display())
}

pub(crate) fn config(front: SocketAddr, keys: &str) -> Config {
    config_of("{mode: enforce}", front, keys)
}

/// With this service.
pub(crate) fn config_of(service: &str, front: SocketAddr, keys: &str) -> Config {
    let routes = if keys.contains("routes:") { "" } else { "routes: [{service: shop}]\n    " };
    let text = format!(
        "services:\n  shop: {service}\ngateways:\n  edge:\n    adapter: proxy\n    listen: {front}\n    \
         {routes}{keys}\n"
    );
    parse(&text, &registry()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Says something, and hears everything until the connection ends.
pub(crate) fn say(address: SocketAddr, text: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(text).unwrap();
    let mut heard = Vec::new();
    // One that ends with a reset ends as well.
    let _ = stream.read_to_end(&mut heard);
    String::from_utf8_lossy(&heard).into_owned()
}

pub(crate) fn get(address: SocketAddr, path: &str) -> String {
    say(
        address,
        format!("GET {path} HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n\r\n").as_bytes(),
    )
}

pub(crate) fn status(response: &str) -> u16 {
    response.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}
