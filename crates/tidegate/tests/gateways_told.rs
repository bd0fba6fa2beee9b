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
//! own: whatever it refuses, the server has told it. The connections that it keeps may be older than the hooks, which
//! then do not see what comes by them: the server learns little before the crowd comes.
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

/// One thread that needs 10 ms of its CPU for each request: refusals by nginx are cheap beside it.
const APPLICATION: &str = r"
import selectors, socket, sys, time
host, port = sys.argv[1].rsplit(':', 1)
listener = socket.create_server((host, int(port)), backlog=512)
listener.setblocking(False)
ready = selectors.DefaultSelector()
ready.register(listener, selectors.EVENT_READ, None)
def work():
    end = time.thread_time() + 0.010
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
/// Clients that are usual, and their pause between two requests: about half of what the server can do.
const USUAL: (usize, Duration) = (8, Duration::from_millis(150));
/// The crowd: four times what it can do as long as nobody waits, and three seconds of work in line if nobody is refused.
const CROWD: (usize, Duration) = (400, Duration::from_secs(1));
/// Seconds until it has settled, and in which it is looked at.
const SETTLES: u64 = 6;
const LOOKED: u64 = 8;

/// Bands, set before the first run with this load. Of the capacity, so much is served and told at least: the
/// machine may do other things. Decision 28 has what a machine that does nothing else shows.
const GOOD_MIN: f64 = 0.5;
const TOLD_MIN: f64 = 0.4;
/// Of what comes, so much is refused at least, and all but so much is either served or refused.
const REFUSED_MIN: f64 = 0.25;
const FAILED_MAX: f64 = 0.01;

/// The status of a request, how long it took, and when it was over.
type Seen = (u16, Nanos, Nanos);

/// Clients until they are told to end.
struct Clients {
    ending: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<Seen>>>,
}

impl Clients {
    fn come(star: &Star, (number, pause): (usize, Duration)) -> Self {
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

/// Whether the proxy's connections are older than the server's hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pool {
    Older,
    Newer,
}

/// The server, the proxy with its gateway, and how many requests per second both can serve.
struct World {
    star: Star,
    front: Daemon,
    back: Daemon,
    capacity: f64,
    _runs: [Runs; 2],
}

impl World {
    fn new(pool: Pool) -> Self {
        let star = Star::new("tgt", NET, "r", &["c", "s"]);
        let authority = Authority::new(&star.path("."));
        ["r", "s"].iter().for_each(|host| authority.sign(&star.path("."), host, host));
        let application = Runs::start(&star, "s", |command| {
            command.args(["python3", "-c", APPLICATION, SERVER]);
        });
        let front = Self::front(&star);
        let before = (pool == Pool::Newer).then(|| Self::back(&star));
        let socket = |file: &str| star.path(file).display().to_string();
        let replace = [
            ("/run/tidegate/edge.sock", socket("edge.sock")),
            ("/run/tidegate/edge.log", socket("edge.log")),
            ("127.0.0.1:8080", SERVER.to_owned()),
        ];
        let arguments = nginx::arguments(&star.path("."), &replace, PROXY.parse().unwrap());
        let proxy = Runs::start(&star, "r", |command| {
            command.arg("nginx").args(arguments).stderr(Stdio::null());
        });
        serves(&star);
        let seen = during(&star, (FEW, Duration::ZERO), Duration::from_secs(MEASURED));
        assert!(seen.iter().all(|(status, ..)| *status == 200), "{:?}", seen.first());
        let capacity = seen.len() as f64 / MEASURED as f64;
        let back = before.unwrap_or_else(|| Self::back(&star));
        Self { star, front, back, capacity, _runs: [application, proxy] }
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
    fn back(star: &Star) -> Daemon {
        let above = format!(
            "interfaces: [{{name: v0, attach: tcx}}]\n\
             services:\n  shop: {{mode: enforce, listen: ['{SERVER}']}}\n"
        );
        let told = format!(
            "  report_to:\n    r: {{address: '10.{NET}.1.1:7416', identity: spiffe://example.org/r, \
             services: [shop], limits: [{{service: shop, scope: shop, counts: requests}}]}}\n"
        );
        star.start("s", &above, &told, ".")
    }
}

/// Server, proxy and gateway are there.
fn serves(star: &Star) {
    wait_for("the proxy serves", || {
        let namespace = star.namespace("c");
        let there = || std::net::TcpStream::connect(PROXY);
        in_namespace(Some(&namespace), there).ok()?;
        let once = || Ok(Http::connect(PROXY.parse().unwrap()).get().status);
        (in_namespace(Some(&namespace), once).ok()? == 200).then_some(())
    });
}

fn during(star: &Star, clients: (usize, Duration), lasts: Duration) -> Vec<Seen> {
    let clients = Clients::come(star, clients);
    std::thread::sleep(lasts);
    clients.leave()
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

/// What a crowd of ten and more seconds sees, and what the server tells meanwhile.
struct Crowded {
    /// Of the last seconds.
    seen: Vec<Seen>,
    told: RemoteState,
    given: RemoteState,
}

impl Crowded {
    fn of(world: &World) -> Self {
        let usual = Clients::come(&world.star, USUAL);
        std::thread::sleep(Duration::from_secs(8));
        let limits = (in_force(&world.front), in_force(&world.back));
        assert_eq!(limits, (None, None), "nothing is overloaded");
        let crowd = Clients::come(&world.star, CROWD);
        wait_for("a limit is in force at the gateway", || in_force(&world.front));
        std::thread::sleep(Duration::from_secs(SETTLES + LOOKED));
        let end = MonotonicClock.now();
        let (told, given) = (remote(&world.front).unwrap(), remote(&world.back).unwrap());
        let mut seen = crowd.leave();
        seen.extend(usual.leave());
        Self { seen: last(&seen, end, LOOKED), told, given }
    }

    fn of_status(&self, status: u16) -> impl Iterator<Item = &Seen> {
        self.seen.iter().filter(move |(of, ..)| *of == status)
    }

    fn is_good(&self, world: &World, pool: Pool) {
        let (good, refused) =
            (self.of_status(200).count() as f64, self.of_status(503).count() as f64);
        let (all, capacity, seconds) = (self.seen.len() as f64, world.capacity, LOOKED as f64);
        let mut took: Vec<Nanos> = self.of_status(200).map(|(_, took, _)| *took).collect();
        took.sort_unstable();
        let median = took.get(took.len() / 2);
        let told = self.told.rate.map_or(0.0, Rate::get);
        eprintln!(
            "{pool:?}: of {:.0}/s {:.2} of the capacity of {capacity:.0}/s was served, {:.0}/s refused; the median \
             took {median:?}; told {told:.0}/s",
            all / seconds,
            good / seconds / capacity,
            refused / seconds,
        );
        let (told_by, given) = (&self.told, &self.given);
        assert_eq!((told_by.unit, &*told_by.role, &*told_by.peer), (Unit::Requests, "from", "s"));
        assert_eq!((given.unit, &*given.role), (Unit::Requests, "to"));
        assert!(given.refused > 0, "the server hears what was refused: {given:?}");
        assert!(good / seconds >= GOOD_MIN * capacity, "{good} in {seconds} s");
        assert!(told >= TOLD_MIN * capacity, "{told}/s");
        assert!(refused >= REFUSED_MIN * all, "{refused} of {all}");
        assert!(all - good - refused <= FAILED_MAX * all, "{:?}", self.seen.first());
    }
}

fn is_told_in_requests(pool: Pool) {
    let world = World::new(pool);
    let up = || world.back.snapshot()?.peers.first()?.up.then_some(());
    wait_for("the session is up", up);
    Crowded::of(&world).is_good(&world, pool);
    let none = || in_force(&world.front).is_none().then_some(());
    wait_for("the limit ends after the crowd", none);
}

#[test]
fn a_proxy_is_told_in_requests_what_a_real_server_can_take() {
    is_told_in_requests(Pool::Newer);
    is_told_in_requests(Pool::Older);
}
