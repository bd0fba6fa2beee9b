// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A front-end that polices for two back-ends by what they report (needs root).
//!
//! ```text
//!   c ─────────── f: a router, tidegate on v0 ──┬── b1: a server, tidegate reports
//!   10.78.0.2     10.78.0.1      10.78.1.1 v1 ──┘       10.78.1.2:8000
//!                                10.78.2.1 v2 ───── b2: a server, tidegate reports
//!                                                       10.78.2.2:8000
//! ```
//!
//! First b1 stops accepting: what goes to b1 is refused at the router, and nothing that goes to b2. Then
//! the reports are cut, in two ways: limits age out, nothing becomes tighter, the service goes on.
//! The same with request rules: the router answers 503 for the slow one, and no SYN is refused.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::authority::Authority;
use common::star::{Daemon, Load, Star, refused};
use common::wait_for;
use socket2::{Domain, Socket, Type};
use std::collections::VecDeque;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tidegate_model::remote::Unit;
use tidegate_model::snapshot::{PeerState, RemoteState, ServiceState};
use tidegate_sense::in_namespace;
use tidegate_units::Rate;

/// The rate with which the controller of each back-end begins.
const RATE_START: f64 = 150.0;
/// Connections per second to each back-end; those that a full queue drops come again.
const OFFERED: u64 = 100;
/// Connections per second to which a server limits itself and the router.
const LIMIT: u64 = 40;
/// Connections per second that a slow server accepts.
const SLOW: u64 = 40;
/// Connections that a client keeps open at once, to each back-end.
const KEPT: usize = 400;

fn server_of(host: &str) -> SocketAddr {
    let net = host.trim_start_matches('b');
    format!("10.78.{net}.2:8000").parse().unwrap()
}

/// The namespaces, two servers, certificates; all gone when it is dropped.
struct World {
    servers: Vec<Server>,
    ending: Arc<AtomicBool>,
    star: Star,
}

impl World {
    fn new() -> Self {
        let star = Star::new("tgc", 78, "f", &["c", "b1", "b2"]);
        let ending = Arc::default();
        let servers = ["b1", "b2"].map(|host| Server::start(&star, host, &ending)).into();
        let certificates = star.path("certificates");
        let authority = Authority::new(&certificates);
        ["f", "b1", "b2"].iter().for_each(|host| authority.sign(&certificates, host, host));
        let (other, misnamed) = (star.path("other"), star.path("misnamed"));
        fs::create_dir(&misnamed).unwrap();
        authority.sign(&misnamed, "b2", "b2x");
        Authority::new(&other).sign(&other, "b2", "b2");
        for folder in [other, misnamed] {
            fs::copy(certificates.join("authority.pem"), folder.join("authority.pem")).unwrap();
        }
        Self { servers, ending, star }
    }

    /// Starts a daemon on a host with this configuration and waits until it answers.
    fn start(&self, host: &str, services: &str, cluster: &str, folder: &str) -> Daemon {
        let above = format!("interfaces: [{{name: v0, attach: tcx}}]\nservices:\n{services}");
        self.star.start(host, &above, cluster, folder)
    }

    /// The front-end; `rules` is what its services say of requests.
    fn start_front(&self, rules: &str) -> Daemon {
        let service = |host: &str| {
            let listen = server_of(host);
            format!(
                "  shop-{host}: {{mode: enforce, listen: [\"{listen}\"], \
                 backends: [{{peer: {host}, service: shop}}], \
                 control: {{name: syn, rate: {RATE_START}, accept_queue: 10}}{rules}}}\n"
            )
        };
        self.front(&(service("b1") + &service("b2")))
    }

    /// The front-end with one service, `shop`, which both back-ends share.
    fn start_shared(&self) -> Daemon {
        let [b1, b2] = ["b1", "b2"].map(server_of);
        self.front(&format!(
            "  shop: {{mode: enforce, listen: [\"{b1}\", \"{b2}\"], \
             backends: [{{peer: b1, service: shop}}, {{peer: b2, service: shop}}], \
             control: {{name: syn, rate: {RATE_START}, accept_queue: 10}}}}\n"
        ))
    }

    fn front(&self, services: &str) -> Daemon {
        let peer = |host: &str| {
            format!("    {host}: {{identity: spiffe://example.org/{host}, services: [shop]}}\n")
        };
        let cluster = format!("  listen: 0.0.0.0:7416\n  peers:\n{}{}", peer("b1"), peer("b2"));
        self.start("f", services, &cluster, "certificates")
    }

    /// A back-end with the services `shop` and `api`, of which only the first may be reported.
    fn start_back(&self, host: &str, folder: &str) -> Daemon {
        let services = "  shop: {mode: shadow, listen: [\"*:8000\"]}\n  \
                        api: {mode: shadow, listen: [\"*:8001\"]}\n";
        let net = host.trim_start_matches('b');
        let cluster = format!(
            "  report_to:\n    front: {{address: \"10.78.{net}.1:7416\", \
             identity: spiffe://example.org/f}}\n"
        );
        self.start(host, services, &cluster, folder)
    }

    /// A router without back-ends whose peers limit it: each its own server's address. `rules` is what its
    /// services say of requests.
    fn start_control_node(&self, rules: &str) -> Daemon {
        let service = |host: &str| {
            let listen = server_of(host);
            format!(
                "  shop-{host}: {{mode: enforce, listen: [\"{listen}\"], \
                 control: {{min_rate: 5}}{rules}}}\n"
            )
        };
        let peer = |host: &str| {
            format!(
                "    {host}: {{identity: spiffe://example.org/{host}, services: [shop], \
                 limits: [\"{}\"]}}\n",
                server_of(host)
            )
        };
        let cluster = format!("  listen: 0.0.0.0:7416\n  peers:\n{}{}", peer("b1"), peer("b2"));
        self.start("f", &(service("b1") + &service("b2")), &cluster, "certificates")
    }

    /// A server that admits [`LIMIT`] connections a second, and tells the router so for this address.
    fn start_limiting(&self, host: &str, address: SocketAddr) -> Daemon {
        let keys = format!("control: {{name: fixed, rate: {LIMIT}}}");
        self.start_telling(host, &keys, &format!("scope: \"{address}\""))
    }

    /// A server with these keys of its service, and of the limit that it tells.
    fn start_telling(&self, host: &str, keys: &str, limit: &str) -> Daemon {
        let services = format!("  shop: {{mode: enforce, listen: [\"*:8000\"], {keys}}}\n");
        let net = host.trim_start_matches('b');
        let cluster = format!(
            "  report_to:\n    front: {{address: \"10.78.{net}.1:7416\", services: [shop], \
             identity: spiffe://example.org/f, limits: [{{service: shop, {limit}}}]}}\n"
        );
        self.start(host, &services, &cluster, "certificates")
    }

    /// A byte and its answer, through the router.
    fn asks(&self, host: &str) -> io::Result<()> {
        in_namespace(Some(&self.star.namespace("c")), || {
            let patience = Duration::from_secs(3);
            let mut stream = TcpStream::connect_timeout(&server_of(host), patience)?;
            stream.set_read_timeout(Some(patience))?;
            stream.write_all(b"x")?;
            stream.read_exact(&mut [0])
        })
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        self.servers.iter_mut().for_each(Server::end);
    }
}

/// A server that answers each byte with a byte, unless it is stuck: then it accepts nothing.
struct Server {
    stuck: Arc<AtomicBool>,
    /// It accepts one connection at a time, [`SLOW`] times a second.
    slow: Arc<AtomicBool>,
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(star: &Star, host: &str, ending: &Arc<AtomicBool>) -> Self {
        let bind = || TcpListener::bind(server_of(host));
        let listener = in_namespace(Some(&star.namespace(host)), bind).unwrap();
        listener.set_nonblocking(true).unwrap();
        let [stuck, slow] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let ending = Arc::clone(ending);
        let (is_stuck, is_slow, ends) = (stuck.clone(), slow.clone(), ending.clone());
        let thread = std::thread::spawn(move || {
            // Connections are few enough to be looked at one after another.
            let mut open: VecDeque<TcpStream> = VecDeque::new();
            while !ends.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(2));
                if !is_stuck.load(Ordering::Relaxed) {
                    while let Ok((stream, _)) = listener.accept() {
                        stream.set_nonblocking(true).unwrap();
                        open.push_back(stream);
                        if is_slow.load(Ordering::Relaxed) {
                            std::thread::sleep(Duration::from_millis(1000 / SLOW));
                            break;
                        }
                    }
                }
                open.retain_mut(echo);
            }
        });
        Self { stuck, slow, ending, thread: Some(thread) }
    }

    fn end(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Whether the connection is still open.
fn echo(stream: &mut TcpStream) -> bool {
    let mut byte = [0];
    match stream.read(&mut byte) {
        Ok(0) => false,
        Ok(_) => stream.write_all(&byte).is_ok(),
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

fn service(daemon: &Daemon, host: &str) -> ServiceState {
    let services = daemon.snapshot().unwrap().services;
    services.into_iter().find(|s| s.name == format!("shop-{host}")).unwrap()
}

fn peer(daemon: &Daemon, name: &str) -> PeerState {
    let peers = daemon.snapshot().unwrap().peers;
    peers.into_iter().find(|peer| peer.name == name).unwrap_or_default()
}

/// Lets a daemon read its configuration again; what it says when it does not want it.
fn reload(daemon: &Daemon) -> Result<(), String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let output = command.args(["reload", "--socket"]).arg(&daemon.socket).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(said) }
}

/// Opens [`OFFERED`] connections per second to one back-end and waits for none of them.
fn load(world: &World, host: &str) -> Load {
    let target = server_of(host).into();
    Load::start(&world.star, "c", move |goes_on| {
        let mut open = VecDeque::new();
        while goes_on() {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            socket.set_nonblocking(true)?;
            // In progress is as good as refused: the router counts.
            let _ = socket.connect(&target);
            open.push_back(socket);
            if open.len() > KEPT {
                open.pop_front();
            }
            std::thread::sleep(Duration::from_millis(1000 / OFFERED));
        }
        Ok(())
    })
}

fn reasons(peer: &PeerState, reason: &str) -> u64 {
    peer.refused.iter().find(|r| r.reason == reason).map_or(0, |r| r.count)
}

fn valid(service: &ServiceState) -> bool {
    service.signals.backends.iter().all(|backend| backend.valid)
}

/// From the end of the last report's validity until the limit is gone, nothing becomes tighter.
fn ages_out(front: &Daemon, host: &str) {
    let silent = wait_for("its validity ends", || {
        Some(service(front, host)).filter(|service| !valid(service))
    });
    let mut before = silent.limits.rate;
    wait_for("its limit is lifted", || {
        let service = service(front, host);
        assert!(!valid(&service), "no report can have come");
        let now = service.limits.rate;
        if let (Some(now), Some(before)) = (now, before) {
            assert!(now >= before, "tighter without a report: {before} became {now}");
        }
        assert!(now.is_none() || before.is_some(), "a limit came back without a report");
        before = now;
        now.is_none().then_some(())
    });
    let warnings = front.snapshot().unwrap().warnings;
    let told = |w: &String| w.starts_with(&format!("shop-{host}: reports: no valid report"));
    assert!(warnings.iter().any(told), "{warnings:?}");
}

/// A file that cannot be used changes nothing, and a good one keeps the sessions.
fn reloads(world: &World, front: &Daemon) {
    let epochs =
        || ["b1", "b2"].map(|host| Some(peer(front, host)).filter(|p| p.up).unwrap().epoch);
    let before = epochs();
    let (config, key) = (world.star.path("f.yaml"), world.star.path("certificates/f.key"));
    let good = fs::read_to_string(&config).unwrap();
    fs::write(&config, good.replace(key.to_str().unwrap(), "/nowhere/f.key")).unwrap();
    let said = reload(front).unwrap_err();
    assert!(said.contains("/nowhere/f.key"), "{said}");
    fs::write(&config, good).unwrap();
    reload(front).unwrap();
    assert_eq!(epochs(), before);
}

#[test]
fn a_front_end_polices_for_its_back_ends_and_silence_never_tightens() {
    let world = World::new();
    let front = world.start_front("");
    world.asks("b1").unwrap();
    world.asks("b2").unwrap();

    // A certificate of somebody else's authority, and one with another name: refused, counted, and
    // told to the back-end.
    for (folder, reason) in [("other", "untrusted"), ("misnamed", "unknown-peer")] {
        let stranger = world.start_back("b2", folder);
        wait_for(reason, || (reasons(&peer(&front, "unknown"), reason) > 0).then_some(()));
        wait_for("it is told", || (!peer(&stranger, "front").problem.is_empty()).then_some(()));
        assert_eq!(peer(&front, "b2").reports, 0);
        stranger.kill();
    }

    let back1 = world.start_back("b1", "certificates");
    let _back2 = world.start_back("b2", "certificates");
    for host in ["b1", "b2"] {
        wait_for("reports arrive", || valid(&service(&front, host)).then_some(()));
        let peer = peer(&front, host);
        assert!(peer.up && peer.sequence > 0, "{peer:?}");
        let accept = service(&front, host).signals.queue.accept.map(|q| q.value.limit);
        assert_eq!(accept, Some(128), "the back-end's queue, not the router's");
    }
    wait_for("a service that is not granted is refused", || {
        (reasons(&peer(&front, "b2"), "not-granted") > 0).then_some(())
    });

    reloads(&world, &front);

    // b1 is stuck: what goes to b1 is refused, and nothing that goes to b2.
    let loads = [load(&world, "b1"), load(&world, "b2")];
    world.servers[0].stuck.store(true, Ordering::Relaxed);
    let pressed = wait_for("b1 is policed", || {
        Some(service(&front, "b1")).filter(|service| refused(service) > 20)
    });
    assert!(pressed.limits.rate.unwrap() < Rate::per_second(RATE_START), "{pressed:?}");
    assert!(pressed.signals.queue.accept.unwrap().value.length > 100);
    let calm = service(&front, "b2");
    assert_eq!(refused(&calm), 0, "{calm:?}");
    assert!(calm.limits.rate > pressed.limits.rate, "{calm:?}");

    // Its daemon dies: limits age out, and the service goes on.
    back1.kill();
    ages_out(&front, "b1");
    world.servers[0].stuck.store(false, Ordering::Relaxed);
    wait_for("b1 serves again", || world.asks("b1").ok());
    let back1 = world.start_back("b1", "certificates");
    wait_for("it reports again", || valid(&service(&front, "b1")).then_some(()));
    assert!(peer(&front, "b1").epoch >= 2);
    drop(loads);

    // A partition: the same, and it heals by itself.
    let rule = "add table inet cut; add chain inet cut out { type filter hook output priority 0; }; \
                add rule inet cut out tcp dport 7416 drop";
    world.star.inside("b2", &["nft", rule]);
    ages_out(&front, "b2");
    world.asks("b2").unwrap();
    world.star.inside("b2", &["nft", "delete table inet cut"]);
    wait_for("the partition heals", || valid(&service(&front, "b2")).then_some(()));
    drop(back1);
}

/// A service on two back-ends has the sum of what they can take: the part of one that is stuck goes,
/// the other's stays, and without a report of the one its part is open again.
#[test]
fn the_rate_of_a_service_is_the_sum_over_its_back_ends() {
    let world = World::new();
    let front = world.start_shared();
    let shop = || front.snapshot().unwrap().services.swap_remove(0);
    let rate = || shop().limits.rate.map(Rate::get);
    let back1 = world.start_back("b1", "certificates");
    let _back2 = world.start_back("b2", "certificates");
    wait_for("the rates of both add up", || {
        rate().is_some_and(|rate| (rate - 2.0 * RATE_START).abs() < 1.0).then_some(())
    });
    let loads = ["b1", "b2"].map(|host| load(&world, host));
    world.servers[0].stuck.store(true, Ordering::Relaxed);
    // 60 connections above the aim of ten take 4/s a second and 15/s when they come.
    let less = wait_for("the part of b1 goes", || rate().filter(|rate| *rate < 1.6 * RATE_START));
    assert!(less >= RATE_START, "that of b2 stays: {less}/s");
    wait_for("SYNs are refused", || (refused(&shop()) > 0).then_some(()));
    back1.kill();
    wait_for("nobody knows what b1 can take", || rate().is_none().then_some(()));
    drop(loads);
}

/// Sends requests to one back-end, [`OFFERED`] a second, and counts the answers that begin so.
struct Requests {
    ending: Arc<AtomicBool>,
    refused: Arc<AtomicU32>,
    served: Arc<AtomicU32>,
    thread: Option<JoinHandle<()>>,
}

/// A request's connection is given up after so many others: half a second.
const REQUESTS_KEPT: usize = 50;

impl Requests {
    fn start(world: &World, host: &str) -> Self {
        let ending = Arc::new(AtomicBool::new(false));
        let [refused, served] = [(); 2].map(|()| Arc::new(AtomicU32::new(0)));
        let (namespace, end) = (world.star.namespace("c"), ending.clone());
        let (no, yes, target) = (refused.clone(), served.clone(), server_of(host).into());
        let thread = std::thread::spawn(move || {
            let ask = || {
                let mut open: VecDeque<(Socket, bool)> = VecDeque::new();
                while !end.load(Ordering::Relaxed) {
                    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
                    socket.set_nonblocking(true)?;
                    let _ = socket.connect(&target);
                    open.push_back((socket, false));
                    open.retain_mut(|(socket, asked)| match answer(socket, asked) {
                        None => true,
                        Some(of) => {
                            (if of { &yes } else { &no }).fetch_add(1, Ordering::Relaxed);
                            false
                        }
                    });
                    if open.len() > REQUESTS_KEPT {
                        open.pop_front();
                    }
                    std::thread::sleep(Duration::from_millis(1000 / OFFERED));
                }
                Ok::<_, io::Error>(())
            };
            in_namespace(Some(&namespace), ask).unwrap();
        });
        Self { ending, refused, served, thread: Some(thread) }
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Whether the request was served (true) or refused by a 503 (false); nothing while neither is known.
fn answer(socket: &mut Socket, asked: &mut bool) -> Option<bool> {
    if !*asked {
        // Not connected yet, as long as it fails.
        *asked = socket.send(b"GET /x HTTP/1.1\r\nHost: shop\r\n\r\n").is_ok();
        return None;
    }
    let mut head = [0; 12];
    match socket.read(&mut head) {
        Ok(0) | Err(_) => None,
        Ok(_) => Some(!head.starts_with(b"HTTP/1.1 503")),
    }
}

#[test]
fn a_back_end_s_queue_moves_the_buckets_of_its_requests_and_of_no_other() {
    let world = World::new();
    let rules = ", requests: {buckets: {all: {resource: accept-queue, burst: 10, \
                 control: {name: pd, rate: 150, reference: 0.1, gain: 0.5}}}, \
                 rules: [{path: /, bucket: all, action: 503}]}";
    let front = world.start_front(rules);
    let _backs = ["b1", "b2"].map(|host| world.start_back(host, "certificates"));
    for host in ["b1", "b2"] {
        wait_for("reports arrive", || valid(&service(&front, host)).then_some(()));
    }
    let loads = ["b1", "b2"].map(|host| Requests::start(&world, host));
    wait_for("both serve", || {
        loads.iter().all(|load| load.served.load(Ordering::Relaxed) > 20).then_some(())
    });
    assert_eq!(loads[0].refused.load(Ordering::Relaxed), 0);
    world.servers[0].slow.store(true, Ordering::Relaxed);
    wait_for("the router answers for b1", || {
        (loads[0].refused.load(Ordering::Relaxed) > 20).then_some(())
    });
    let [pressed, calm] = ["b1", "b2"].map(|host| service(&front, host));
    let rate = |service: &ServiceState| service.limits.buckets[0].rate;
    assert!(rate(&pressed) < rate(&calm), "{:?} {:?}", pressed.limits, calm.limits);
    assert_eq!(loads[1].refused.load(Ordering::Relaxed), 0, "{:?}", calm.limits);
    assert_eq!(refused(&pressed), 0, "no SYN is refused while rules can hold the load");
}

fn remote_limit(service: &ServiceState) -> Option<RemoteState> {
    service.remote.first().cloned()
}

/// A server says what it can take, and the router refuses the rest before it; nobody limits what is
/// another's. Without the server the limit opens in steps.
#[test]
fn a_router_enforces_the_limit_of_a_server_and_of_no_other() {
    let world = World::new();
    let front = world.start_control_node("");
    let load = load(&world, "b1");
    let back1 = world.start_limiting("b1", server_of("b1"));
    // The address of the other server is not its own.
    let _back2 = world.start_limiting("b2", server_of("b1"));

    let held = wait_for("the limit is in force", || {
        let limit = remote_limit(&service(&front, "b1"))?;
        (limit.rate == Some(Rate::per_second(LIMIT as f64))).then_some(limit)
    });
    assert_eq!((held.peer.as_str(), held.role.as_str()), ("b1", "from"));
    assert_eq!(held.scope, server_of("b1").to_string());
    let policed = wait_for("the router refuses", || {
        Some(service(&front, "b1")).filter(|service| refused(service) > 50)
    });
    assert_eq!(policed.limits.rate, Some(Rate::per_second(LIMIT as f64)));
    let mut explain = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let said = explain.args(["explain", "10.78.0.2", "--socket"]).arg(&front.socket);
    let said = String::from_utf8(said.output().unwrap().stdout).unwrap();
    assert!(said.contains("shop-b1: the peer b1 limits 10.78.1.2:8000 (rate 40.0/s)"), "{said}");

    // The hit counters come back, and the server has nothing left to refuse.
    let given = wait_for("hit counters come back", || {
        let service = back1.snapshot()?.services.swap_remove(0);
        remote_limit(&service).filter(|limit| limit.refused > 50)
    });
    assert_eq!((given.peer.as_str(), given.role.as_str()), ("front", "to"));
    assert!(given.offered > given.refused, "{given:?}");

    wait_for("the limit of another's address is refused", || {
        (reasons(&peer(&front, "b2"), "not-granted") > 0).then_some(())
    });
    let other = service(&front, "b2");
    assert!(other.remote.is_empty() && other.limits.rate.is_none(), "{other:?}");
    assert!(policed.remote.iter().all(|limit| limit.peer == "b1"), "{:?}", policed.remote);

    back1.kill();
    wait_for("it opens in steps", || {
        let limit = remote_limit(&service(&front, "b1"))?;
        (limit.steps > 0 && limit.rate > Some(Rate::per_second(LIMIT as f64))).then_some(())
    });
    wait_for("and is over", || service(&front, "b1").limits.rate.is_none().then_some(()));
    drop(load);
}

/// A server tells a router how many requests it can take, and the router's rules answer the rest. No connection is
/// refused.
#[test]
fn a_router_enforces_a_limit_on_requests_by_its_rules() {
    let world = World::new();
    let rules = |control: &str| {
        format!(
            "requests: {{buckets: {{all: {{resource: cpu, min_rate: 5{control}}}}}, \
             rules: [{{path: /, bucket: all, action: 503}}]}}"
        )
    };
    let front = world.start_control_node(&format!(", {}", rules("")));
    let load = Requests::start(&world, "b1");
    let keys = rules(&format!(", control: {{name: fixed, rate: {LIMIT}}}"));
    let limit = format!("bucket: all, scope: \"{}\"", server_of("b1"));
    let back = world.start_telling("b1", &keys, &limit);

    let held = wait_for("the limit is in force", || {
        let service = service(&front, "b1");
        let limit = remote_limit(&service)?;
        let rate = service.limits.buckets.first()?.rate?.get();
        (limit.left.is_some() && rate > 0.8 * LIMIT as f64 && rate <= LIMIT as f64).then_some(limit)
    });
    assert_eq!((held.unit, held.peer.as_str(), held.role.as_str()), (Unit::Requests, "b1", "from"));
    wait_for("the router answers", || (load.refused.load(Ordering::Relaxed) > 50).then_some(()));
    let given = wait_for("hit counters come back", || {
        let service = back.snapshot()?.services.swap_remove(0);
        remote_limit(&service).filter(|limit| limit.refused > 50)
    });
    assert_eq!((given.unit, given.role.as_str()), (Unit::Requests, "to"));
    let policed = service(&front, "b1");
    assert_eq!(refused(&policed), 0, "no SYN is refused: {policed:?}");
    assert!(policed.limits.rate.is_none(), "{:?}", policed.limits);
    back.kill();
    wait_for("it opens", || {
        service(&front, "b1").limits.buckets.iter().all(|b| b.rate.is_none()).then_some(())
    });
}
