// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A real server behind a real proxy that is told a limit on requests over a peer session (needs root).
//!
//! ```text
//!   c ── v0  r: nginx, tidegate as its gateway  v1 ── v0  s: a server with one thread, tidegate with hooks
//!                       ▲                                              │
//!                       └───── requests/s, by the exchanges seen ──────┘
//! ```
//!
//! The proxy keeps its connections to the server, so refused SYNs would help little. The gateway has no limit of its
//! own: whatever it refuses, the server has told it.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::authority::Authority;
use common::http::Http;
use common::star::{Daemon, Star};
use common::{nginx, wait_for};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;
use tidegate_model::remote::Unit;
use tidegate_model::snapshot::RemoteState;
use tidegate_sense::in_namespace;
use tidegate_units::{Clock, MonotonicClock, Nanos, Rate};

const NET: u8 = 87;
const SERVER: &str = "10.87.1.2:8000";
const PROXY: &str = "10.87.0.1:80";

/// One thread that needs 5 ms of its CPU for each request.
const APPLICATION: &str = r"
import selectors, socket, sys, time
host, port = sys.argv[1].rsplit(':', 1)
listener = socket.create_server((host, int(port)), backlog=512)
listener.setblocking(False)
ready = selectors.DefaultSelector()
ready.register(listener, selectors.EVENT_READ, None)
def work():
    end = time.thread_time() + 0.005
    while time.thread_time() < end: pass
def read(c, have):
    try: more = c.recv(65536)
    except OSError: more = b''
    if not more: return False
    have += more
    while b'\r\n\r\n' in have:
        del have[:have.index(b'\r\n\r\n') + 4]
        work()
        c.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n')
    return True
def serve(key):
    if key.fileobj is listener:
        c = listener.accept()[0]
        ready.register(c, selectors.EVENT_READ, bytearray())
        return
    try: stays = read(key.fileobj, key.data)
    except OSError: stays = False
    if not stays:
        ready.unregister(key.fileobj)
        key.fileobj.close()
while True:
    for key, _ in ready.select(): serve(key)
";

/// Clients of a closed loop, by which the capacity is measured, and for how many seconds.
const FEW: usize = 4;
const MEASURED: u64 = 4;
/// Clients that are usual, and their pause between two requests: about 40/s.
const USUAL: usize = 8;
/// The crowd: more than 600/s as long as nobody waits.
const CROWD: usize = 100;
const PAUSE: Duration = Duration::from_millis(150);

/// Bands, set before the first run. Of the capacity, so much is served while three times as much comes.
const GOOD_MIN: f64 = 0.7;
/// Of what comes, so much is refused at least, and all but so much is either served or refused.
const REFUSED_MIN: f64 = 0.25;
const FAILED_MAX: f64 = 0.01;
/// Half of the served wait for no longer. Without a limit a hundred clients have half a second of work in line.
const MEDIAN_MAX: Nanos = Nanos::from_millis(250);

/// The status of a request, how long it took, and when it was over.
type Seen = (u16, Nanos, Nanos);

/// Clients until they are told to end.
struct Clients {
    ending: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<Seen>>>,
}

impl Clients {
    fn come(star: &Star, number: usize, pause: Duration) -> Self {
        let ending = Arc::new(AtomicBool::new(false));
        let client = |n: usize| {
            let (namespace, end) = (star.namespace("c"), Arc::clone(&ending));
            std::thread::spawn(move || {
                // Not all at once.
                std::thread::sleep(pause.mul_f64(n as f64 / number as f64));
                in_namespace(Some(&namespace), || Ok(asks(pause, &end))).unwrap()
            })
        };
        let threads = (0..number).map(client).collect();
        Self { ending, threads }
    }

    fn leave(self) -> Vec<Seen> {
        self.ending.store(true, Relaxed);
        self.threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    }
}

fn asks(pause: Duration, ending: &AtomicBool) -> Vec<Seen> {
    let (clock, proxy) = (MonotonicClock, PROXY.parse().unwrap());
    let (mut client, mut seen) = (Http::connect(proxy), Vec::new());
    while !ending.load(Relaxed) {
        let begin = clock.now();
        let response = client.get();
        let end = clock.now();
        seen.push((response.status, end.since(begin), end));
        if response.header("connection").is_some_and(|said| said.eq_ignore_ascii_case("close")) {
            client = Http::connect(proxy);
        }
        std::thread::sleep(pause);
    }
    seen
}

/// A program in the namespace of a host; killed when it is dropped.
struct Runs(Child);

impl Runs {
    fn start(star: &Star, host: &str, program: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", star.namespace(host).display()));
        program(&mut command);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        // nginx ends its worker.
        let id = self.0.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &id]).status();
        let _ = self.0.wait();
    }
}

/// The server, the proxy with its gateway, and how many requests per second both can serve.
struct World {
    star: Star,
    front: Daemon,
    capacity: f64,
    _runs: [Runs; 2],
}

impl World {
    fn new() -> Self {
        let star = Star::new("tgt", NET, "r", &["c", "s"]);
        let authority = Authority::new(&star.path("."));
        ["r", "s"].iter().for_each(|host| authority.sign(&star.path("."), host, host));
        let application = Runs::start(&star, "s", |command| {
            command.args(["python3", "-c", APPLICATION, SERVER]);
        });
        let socket = |file: &str| star.path(file).display().to_string();
        let front = Self::front(&star);
        let replace = [
            ("/run/tidegate/edge.sock", socket("edge.sock")),
            ("/run/tidegate/edge.log", socket("edge.log")),
            ("127.0.0.1:8080", SERVER.to_owned()),
        ];
        let arguments = nginx::arguments(&star.path("."), &replace, PROXY.parse().unwrap());
        let proxy = Runs::start(&star, "r", |command| {
            command.arg("nginx").args(arguments).stderr(Stdio::null());
        });
        let mut world = Self { star, front, capacity: 0.0, _runs: [application, proxy] };
        world.serves();
        let seen = world.during(FEW, Duration::ZERO, Duration::from_secs(MEASURED));
        assert!(seen.iter().all(|(status, ..)| *status == 200), "{:?}", seen.first());
        world.capacity = seen.len() as f64 / MEASURED as f64;
        world
    }

    /// A gateway whose controller is so loose that it never limits.
    fn front(star: &Star) -> Daemon {
        let socket = |file: &str| star.path(file).display().to_string();
        let above = format!(
            "services:\n  shop: {{mode: enforce, control: {{name: fixed, rate: 100000}}}}\n\
             gateways:\n  edge: {{adapter: nginx, listen: 'unix:{}', completions: 'unix:{}', \
             routes: [{{service: shop}}]}}\n",
            socket("edge.sock"),
            socket("edge.log"),
        );
        let grants = "  listen: 0.0.0.0:7416\n  peers:\n    \
                      s: {identity: spiffe://example.org/s, services: [shop], limits: [shop]}\n";
        star.start("r", &above, grants, ".")
    }

    /// The daemon of the server, which tells the gateway what the server can take.
    fn back(&self) -> Daemon {
        let above = format!(
            "interfaces: [{{name: v0, attach: tcx}}]\n\
             services:\n  shop: {{mode: enforce, listen: ['{SERVER}']}}\n"
        );
        let told = format!(
            "  report_to:\n    r: {{address: '10.{NET}.1.1:7416', identity: spiffe://example.org/r, \
             services: [shop], limits: [{{service: shop, scope: shop, counts: requests}}]}}\n"
        );
        self.star.start("s", &above, &told, ".")
    }

    /// All three are there.
    fn serves(&self) {
        wait_for("the proxy serves", || {
            let namespace = self.star.namespace("c");
            let there = || std::net::TcpStream::connect(PROXY);
            in_namespace(Some(&namespace), there).ok()?;
            let once = || Ok(Http::connect(PROXY.parse().unwrap()).get().status);
            (in_namespace(Some(&namespace), once).ok()? == 200).then_some(())
        });
    }

    fn during(&self, clients: usize, pause: Duration, lasts: Duration) -> Vec<Seen> {
        let clients = Clients::come(&self.star, clients, pause);
        std::thread::sleep(lasts);
        clients.leave()
    }
}

fn remote(daemon: &Daemon) -> Option<RemoteState> {
    daemon.snapshot()?.services.remove(0).remote.first().cloned()
}

fn in_force(daemon: &Daemon) -> Option<Rate> {
    remote(daemon)?.rate
}

/// What was seen in the last seconds before the end.
fn last(seen: &[Seen], end: Nanos, seconds: u64) -> Vec<Seen> {
    let from = end - Nanos::from_secs(seconds);
    seen.iter().filter(|(.., at)| *at >= from && *at <= end).copied().collect()
}

#[test]
fn a_proxy_is_told_in_requests_what_a_real_server_can_take() {
    let world = World::new();
    let back = world.back();
    wait_for("the session is up", || back.snapshot()?.peers.first()?.up.then_some(()));
    // What is usual becomes known: no limit comes of it.
    let usual = Clients::come(&world.star, USUAL, PAUSE);
    std::thread::sleep(Duration::from_secs(8));
    assert_eq!((in_force(&world.front), in_force(&back)), (None, None), "nothing is overloaded");

    let crowd = Clients::come(&world.star, CROWD, PAUSE);
    wait_for("a limit is in force at the gateway", || in_force(&world.front));
    // It settles, and is looked at.
    std::thread::sleep(Duration::from_secs(16));
    let (end, told, given) =
        (MonotonicClock.now(), remote(&world.front).unwrap(), remote(&back).unwrap());
    let mut seen = crowd.leave();
    let spared = usual.leave();
    seen.extend(spared);

    let seen = last(&seen, end, 8);
    let of = |status: u16| seen.iter().filter(move |(of, ..)| *of == status);
    let (good, refused) = (of(200).count() as f64, of(503).count() as f64);
    let (all, capacity) = (seen.len() as f64, world.capacity);
    let mut took: Vec<Nanos> = of(200).map(|(_, took, _)| *took).collect();
    took.sort_unstable();
    let median = took[took.len() / 2];
    eprintln!(
        "capacity {capacity:.0}/s; of {:.0}/s {:.0}/s were served in {median} (median), {:.0}/s refused; told {:?}",
        all / 8.0,
        good / 8.0,
        refused / 8.0,
        told.rate,
    );
    assert_eq!((told.unit, told.role.as_str(), told.peer.as_str()), (Unit::Requests, "from", "s"));
    assert_eq!((given.unit, given.role.as_str()), (Unit::Requests, "to"));
    assert!(given.refused > 0, "the server hears what was refused: {given:?}");
    assert!(good / 8.0 >= GOOD_MIN * capacity, "{good} in 8 s");
    assert!(refused >= REFUSED_MIN * all, "{refused} of {all}");
    assert!(all - good - refused <= FAILED_MAX * all, "{:?}", seen.first());
    assert!(median <= MEDIAN_MAX, "{median}");

    wait_for("the limit ends after the crowd", || in_force(&world.front).is_none().then_some(()));
}
