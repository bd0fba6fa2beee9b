// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The gate behind the real nginx, HAProxy, Envoy and Caddy, with the configurations of packaging/. Only
//! loopback and Unix sockets are used; the daemon has no privileges.
//!
//! ```text
//!   clients ─► proxy ─► application: one worker, 5 ms a request
//!                │ ▲
//!        question│ │answer         access log
//!                ▼ │                   │
//!              tidegate ◄──────────────┘
//! ```
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::gate::{self, ENVOY, application, example, free_port};
use common::http::{Http, Response};
use common::{PATIENCE, nginx, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidegate_model::snapshot::Snapshot;
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// How long the application works on a request; one at a time.
const WORK: Duration = Duration::from_millis(5);
const CAPACITY: f64 = 200.0;

/// The proxy that asks.
#[derive(Clone, Copy, Debug)]
enum Proxy {
    Nginx,
    Haproxy,
    Envoy,
    /// The same with TLS.
    EnvoyTls,
    /// By the rate limit service.
    EnvoyRatelimit,
    /// It reports nothing.
    EnvoySilent,
    Caddy,
}

struct World {
    dir: tempfile::TempDir,
    proxy: Child,
    daemon: Option<Child>,
    front: SocketAddr,
    /// Where the proxy reports.
    completions: String,
}

/// Clients that ask while nobody answers their proxy, and the pause of each between two requests: no proxy ends a
/// connection for its number of requests.
const CLIENTS_IN_OUTAGES: usize = 12;
const PAUSE: Duration = Duration::from_millis(20);

/// A client that asks until the end, with a body or without one. Its statuses.
fn asks_on(front: SocketAddr, posts: bool, ending: &AtomicBool) -> Vec<u16> {
    let (mut client, mut statuses) = (Http::connect(front), Vec::new());
    while !ending.load(Relaxed) {
        let begin = MonotonicClock.now();
        let response = if posts { client.post(&"a".repeat(2000)) } else { client.get() };
        let took = MonotonicClock.now().since(begin);
        assert!(took < Nanos::from_secs(4), "it waited for {took}");
        if response.header("connection").is_some_and(|said| said.eq_ignore_ascii_case("close")) {
            client = Http::connect(front);
        }
        statuses.push(response.status);
        std::thread::sleep(PAUSE);
    }
    statuses
}

/// Where Caddy serves TLS: the port of `front`, at another address of this host.
fn with_tls(front: SocketAddr) -> SocketAddr {
    SocketAddr::new([127, 0, 0, 2].into(), front.port())
}

impl Proxy {
    const fn adapter(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::Caddy => "caddy",
            _ => "envoy",
        }
    }

    /// Where it reports, as the configuration says it; Envoy reports where it asks.
    fn completions(self, dir: &Path) -> String {
        match self {
            Self::Nginx | Self::Haproxy => format!("unix:{}", dir.join("edge.log").display()),
            Self::Caddy => {
                UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
            }
            _ => String::new(),
        }
    }

    /// Starts it in front of `back`.
    fn start(self, dir: &Path, reports: &str, front: SocketAddr, back: SocketAddr) -> Child {
        let path = |file: &str| dir.join(file).display().to_string();
        let (shown, reports) = match reports.strip_prefix("unix:") {
            Some(path) => ("/run/tidegate/edge.log", path),
            None => ("127.0.0.1:9471", reports),
        };
        let sockets = [
            ("/run/tidegate/edge.sock", path("edge.sock")),
            (shown, reports.to_owned()),
            ("127.0.0.1:8080", back.to_string()),
        ];
        match self {
            Self::Nginx => Self::nginx(dir, &sockets, front),
            Self::Haproxy => Self::haproxy(dir, &sockets, front),
            Self::Caddy => Self::caddy(dir, &sockets, front),
            _ => self.envoy(dir, front, back),
        }
    }

    /// The site twice: without TLS at `front`, with it at [`with_tls`], by certificates of its own below `dir`.
    fn caddy(dir: &Path, sockets: &[(&str, String)], front: SocketAddr) -> Child {
        let tls = with_tls(front);
        let text = example("Caddyfile", sockets);
        let (before, site) = text.split_once("\nshop.example {").unwrap();
        let site = |name: String, at: SocketAddr| format!("{name} {{\n\tbind {}{site}", at.ip());
        let (plain, secret) = (
            format!("http://shop.example:{}", front.port()),
            format!("https://shop.example:{}", tls.port()),
        );
        let site = [
            before,
            &site(plain, front),
            &site(secret, tls).replacen('\n', "\n\ttls internal\n", 1),
        ];
        let site = site.join("\n");
        let conf = dir.join("Caddyfile");
        fs::write(
            &conf,
            format!(
                "{{\n\tadmin off\n\tskip_install_trust\n\tauto_https disable_redirects\n}}\n{site}"
            ),
        )
        .unwrap();
        let log = fs::File::create(dir.join("error.log")).unwrap();
        let mut caddy = Command::new("caddy");
        caddy.args(["run", "--adapter", "caddyfile", "--config"]).arg(&conf);
        caddy.env("HOME", dir).env("XDG_DATA_HOME", dir).env("XDG_CONFIG_HOME", dir);
        caddy.stdout(Stdio::null()).stderr(log).spawn().unwrap()
    }

    fn nginx(dir: &Path, sockets: &[(&str, String)], front: SocketAddr) -> Child {
        let mut nginx = Command::new("nginx");
        nginx.args(nginx::arguments(dir, sockets, front));
        nginx.stderr(Stdio::null()).spawn().unwrap()
    }

    fn haproxy(dir: &Path, sockets: &[(&str, String)], front: SocketAddr) -> Child {
        let spoe = dir.join("spoe.cfg");
        fs::write(&spoe, example("haproxy-spoe.cfg", &[])).unwrap();
        let own = [
            ("/etc/haproxy/tidegate-spoe.cfg", spoe.display().to_string()),
            ("bind :80 ", format!("bind {front} ")),
        ];
        let text = example("haproxy.cfg", &[sockets, &own].concat());
        let conf = dir.join("haproxy.cfg");
        fs::write(&conf, format!("global\n    nbthread 1\n    maxconn 4096\n{text}")).unwrap();
        let log = fs::File::create(dir.join("error.log")).unwrap();
        let mut haproxy = Command::new("haproxy");
        haproxy.args(["-db", "-f"]).arg(&conf).stdout(Stdio::null()).stderr(log).spawn().unwrap()
    }

    fn envoy(self, dir: &Path, front: SocketAddr, back: SocketAddr) -> Child {
        let file = match self {
            Self::EnvoyRatelimit => "envoy-ratelimit.yaml",
            _ => "envoy.yaml",
        };
        let listen = format!("{{address: 127.0.0.1, port_value: {}}}", front.port());
        let mut own = vec![
            ("/run/tidegate/edge.sock", dir.join("edge.sock").display().to_string()),
            ("port_value: 8080", format!("port_value: {}", back.port())),
            ("{address: 0.0.0.0, port_value: 80}", listen),
        ];
        match self {
            Self::EnvoyTls => own.push(("- filters:", chain_with_tls(dir))),
            Self::EnvoySilent => {
                let indent = " ".repeat(24);
                let seldom =
                    format!("buffer_flush_interval: 600s\n{indent}buffer_size_bytes: 100000000");
                own.push(("buffer_flush_interval: 0.05s", seldom));
            }
            _ => {}
        }
        let conf = dir.join("envoy.yaml");
        fs::write(&conf, example(file, &own)).unwrap();
        let mut envoy = Command::new(ENVOY);
        envoy.args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning", "-c"]);
        envoy.arg(&conf).arg("--log-path").arg(dir.join("error.log"));
        envoy.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }
}

/// A filter chain of Envoy with TLS, and HTTP/2 inside.
fn chain_with_tls(dir: &Path) -> String {
    let signed = rcgen::generate_simple_self_signed(["shop.example".to_owned()]).unwrap();
    let (certificate, key) = (dir.join("tls.pem"), dir.join("tls.key"));
    fs::write(&certificate, signed.cert.pem()).unwrap();
    fs::write(&key, signed.signing_key.serialize_pem()).unwrap();
    let context =
        "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext";
    format!(
        "- transport_socket: {{name: envoy.transport_sockets.tls, typed_config: {{\"@type\": {context}, \
         common_tls_context: {{alpn_protocols: [h2], tls_certificates: [{{certificate_chain: {{filename: {}}}, \
         private_key: {{filename: {}}}}}]}}}}}}\n          filters:",
        certificate.display(),
        key.display(),
    )
}

impl World {
    fn new(proxy: Proxy, control: &str) -> Self {
        Self::telling(proxy, control, true)
    }

    /// Whether clients are told of limits by RateLimit fields is said by `fields`.
    fn telling(proxy: Proxy, control: &str, fields: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let back = busy_application();
        let front = free_port();
        let path = |file: &str| dir.path().join(file).display().to_string();
        let completions = proxy.completions(dir.path());
        let reports = match completions.as_str() {
            "" => String::new(),
            at => format!("    completions: {at}\n"),
        };
        let text = format!(
            "services:\n  shop: {{mode: enforce, control: {control}}}\ngateways:\n  edge:\n    adapter: {}\n    \
             listen: unix:{}\n{reports}    rate_limit_fields: {fields}\n    routes: [{{service: shop}}]\n\
             daemon: {{socket: {}, http: off}}\n",
            proxy.adapter(),
            path("edge.sock"),
            path("control.sock"),
        );
        fs::write(dir.path().join("tidegate.yaml"), text).unwrap();
        let proxy = proxy.start(dir.path(), &completions, front, back);
        let mut world = Self { dir, proxy, daemon: None, front, completions };
        wait_for("the proxy listens", || TcpStream::connect(front).ok());
        world.start();
        world
    }

    fn start(&mut self) {
        let path = |file: &str| self.dir.path().join(file);
        let daemon = gate::run(&path("tidegate.yaml"), &path("log"));
        self.daemon = Some(daemon);
        wait_for("the gateway is served", || {
            let snapshot = self.status()?;
            let gateways = snapshot.gateways?.gateways;
            gateways.iter().all(|gateway| gateway.problem.is_empty()).then_some(())
        });
    }

    fn status(&self) -> Option<Snapshot> {
        gate::status(&self.dir.path().join("control.sock"))
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(self.daemon.as_ref().unwrap());
        kill_process(pid, signal).unwrap();
    }

    /// Stops it. One thread gets the signal and tells the others: until they all stand, it may answer.
    fn stop(&self) {
        self.signal(Signal::STOP);
        let tasks = format!("/proc/{}/task", self.daemon.as_ref().unwrap().id());
        wait_for("all threads stand", || {
            let stands = |task: std::io::Result<fs::DirEntry>| {
                let stat = fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
                stat.rsplit_once(") ")?.1.starts_with('T').then_some(())
            };
            fs::read_dir(&tasks).ok()?.map(stands).collect::<Option<Vec<()>>>().map(|_| ())
        });
    }

    fn kill(&mut self) {
        let mut daemon = self.daemon.take().unwrap();
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }

    /// Clients ask while the daemon is slow, hangs, is killed, is stopped, and while another one takes over: each is
    /// served or refused, and in time.
    fn outages(&mut self) {
        let ending = Arc::new(AtomicBool::new(false));
        let clients = (0..CLIENTS_IN_OUTAGES).map(|n| {
            let (front, ending) = (self.front, Arc::clone(&ending));
            std::thread::spawn(move || asks_on(front, n % 2 == 1, &ending))
        });
        let clients = Vec::from_iter(clients);
        for hangs_ms in [50, 150, 250, 150, 250] {
            self.stop();
            std::thread::sleep(Duration::from_millis(hangs_ms));
            self.signal(Signal::CONT);
            std::thread::sleep(Duration::from_millis(100));
        }
        self.kill();
        std::thread::sleep(Duration::from_millis(300));
        self.start();
        self.signal(Signal::TERM);
        let mut old = self.daemon.take().unwrap();
        wait_for("it ends", || old.try_wait().unwrap());
        self.start();
        old = self.daemon.take().unwrap();
        self.start();
        wait_for("the old daemon ends", || old.try_wait().unwrap());
        ending.store(true, Relaxed);
        let statuses = clients.into_iter().flat_map(|client| client.join().unwrap());
        let statuses = Vec::from_iter(statuses);
        let count = |status| statuses.iter().filter(|s| **s == status).count();
        let (served, refused) = (count(200), count(503));
        println!("{served} served, {refused} refused");
        assert_eq!(served + refused, statuses.len(), "{statuses:?}\n{}", self.log());
        let some = CLIENTS_IN_OUTAGES;
        assert!(served >= some && refused >= some, "{served} {refused}\n{}", self.log());
    }

    /// So many requests, one after the other: their responses.
    fn requests(&self, n: usize) -> Vec<Response> {
        let mut client = Http::connect(self.front);
        (0..n).map(|_| client.get()).collect()
    }

    fn log(&self) -> String {
        let read = |file: &str| fs::read_to_string(self.dir.path().join(file)).unwrap_or_default();
        format!("{}\n{}", read("log"), read("error.log"))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        // Its workers end with the master only if that is told to.
        let _ = kill_process(Pid::from_child(&self.proxy), Signal::TERM);
        let _ = self.proxy.wait();
    }
}

/// A server that works on one request at a time.
fn busy_application() -> SocketAddr {
    let worker = Arc::new(Mutex::new(()));
    application(move || {
        let busy = worker.lock().unwrap();
        std::thread::park_timeout(WORK);
        drop(busy);
    })
}

#[test]
fn nginx_passes_refuses_and_fails_open() {
    passes_refuses_and_fails_open(Proxy::Nginx);
}

#[test]
fn haproxy_passes_refuses_and_fails_open() {
    passes_refuses_and_fails_open(Proxy::Haproxy);
}

#[test]
fn envoy_passes_refuses_and_fails_open() {
    passes_refuses_and_fails_open(Proxy::Envoy);
}

#[test]
fn caddy_passes_refuses_and_fails_open() {
    passes_refuses_and_fails_open(Proxy::Caddy);
}

/// TLS ends in Caddy, and a client of HTTP/2 is told the same.
#[test]
fn behind_caddy_http_2_is_limited_and_fails_open() {
    let mut world = World::new(Proxy::Caddy, "{name: fixed, rate: 1/s, burst: 5}");
    wait_for("the limit is in force", || {
        let service = world.status()?.services.into_iter().next()?;
        service.limits.rate.map(|_| ())
    });
    let statuses = |world: &World, n| -> Vec<String> {
        let at = with_tls(world.front);
        let asked = Command::new("curl")
            .args([
                "--silent",
                "--fail-early",
                "--http2",
                "--max-time",
                "20",
                "--data",
                "x=1",
                "--cacert",
            ])
            .arg(world.dir.path().join("caddy/pki/authorities/local/root.crt"))
            .args([
                "--resolve",
                &format!("shop.example:{}:{}", at.port(), at.ip()),
                "--output",
                "/dev/null",
            ])
            .args(["--write-out", "%{http_version} %{http_code} %header{retry-after}\\n"])
            .arg(format!("https://shop.example:{}/item?[1-{n}]", at.port()))
            .output()
            .unwrap();
        String::from_utf8(asked.stdout).unwrap().lines().map(str::to_owned).collect()
    };
    let told = statuses(&world, 20);
    let passed = told.iter().filter(|line| *line == "2 200 ").count();
    let refused = told
        .iter()
        .filter(|line| line.strip_prefix("2 503 ").is_some_and(|s| s.parse::<u8>().is_ok()));
    assert_eq!((told.len(), passed + refused.count()), (20, 20), "{told:?}\n{}", world.log());
    assert!((5..=7).contains(&passed), "{passed} passed\n{}", world.log());
    world.kill();
    assert_eq!(statuses(&world, 10), vec!["2 200 "; 10], "{}", world.log());
}

fn passes_refuses_and_fails_open(proxy: Proxy) {
    let mut world = World::new(proxy, "{name: fixed, rate: 1/s, burst: 5}");
    wait_for("the limit is in force", || {
        let service = world.status()?.services.into_iter().next()?;
        service.limits.rate.map(|_| ())
    });
    let responses = world.requests(20);
    let passed = responses.iter().filter(|r| r.status == 200).count();
    let refused: Vec<&Response> = responses.iter().filter(|r| r.status == 503).collect();
    assert_eq!(passed + refused.len(), 20, "{}", world.log());
    assert!((5..=7).contains(&passed), "{passed} passed\n{}", world.log());
    for response in &refused {
        let seconds: u64 = response.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=60).contains(&seconds));
        assert_eq!(response.header("content-type"), Some("application/problem+json"));
        assert_eq!(response.header("ratelimit-policy"), Some("\"shop\";q=1;w=1"));
        assert!(response.body.contains("temporary-reduced-capacity"), "{}", response.body);
    }
    let completed = wait_for("reports", || {
        let snapshot = world.status()?;
        let counts = snapshot.services[0].counts.iter().map(|count| count.count).sum::<u64>();
        let reports = snapshot.gateways.as_ref()?.reports;
        (reports.completed == passed as u64 && counts == 20).then_some(snapshot)
    });
    assert_eq!(completed.services[0].signals.time.waiting.unwrap().value, 0);
    // Nobody passes unasked because the head of the request is long: these are near the proxies' limits.
    let lines = format!("X-A: {0}\r\nX-B: {0}\r\n", "a".repeat(7_000));
    let mut client = Http::connect(world.front);
    let refused = (0..6).filter(|_| client.ask(&lines).status == 503).count();
    assert!(refused >= 4, "{refused} of 6 with a long head were refused\n{}", world.log());
    nobody_passes_by_an_odd_head(&world);
    let misunderstood = garbage(&world, proxy);
    wait_for("garbage is counted", || {
        (world.status()?.gateways?.misunderstood >= misunderstood).then_some(())
    });

    // SIGSTOP: the proxy waits for 200 ms, and passes.
    world.stop();
    let begin = MonotonicClock.now();
    assert!(world.requests(10).iter().all(|r| r.status == 200), "{}", world.log());
    let took = MonotonicClock.now().since(begin);
    assert!(took < Nanos::from_secs(4), "10 requests took {took}");
    world.signal(Signal::CONT);

    world.kill();
    assert!(world.requests(20).iter().all(|r| r.status == 200), "{}", world.log());
    world.start();
    let again = world.requests(20);
    assert!(again.iter().all(|r| matches!(r.status, 200 | 503)), "{}", world.log());
    let refuses = |world: &World| {
        wait_for("it refuses again", || {
            world.requests(5).iter().any(|r| r.status == 503).then_some(())
        });
    };
    refuses(&world);
    world.outages();
    refuses(&world);
}

#[test]
fn envoy_by_the_rate_limit_service_passes_refuses_and_fails_open() {
    passes_refuses_and_fails_open(Proxy::EnvoyRatelimit);
}

/// TLS ends in Envoy, and clients of HTTP/2 are told the same.
#[test]
fn behind_envoy_http_2_inside_tls_is_limited_and_fails_open() {
    let mut world = World::new(Proxy::EnvoyTls, "{name: fixed, rate: 1/s, burst: 5}");
    wait_for("the limit is in force", || world.status()?.services[0].limits.rate);
    let statuses = |world: &World, header: &[u8]| -> Vec<String> {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--insecure", "--http2", "--output", "/dev/null", "--header"]);
        curl.arg(OsStr::from_bytes(header));
        curl.args(["--write-out", "%{http_version} %{http_code} %header{retry-after}\\n"]);
        let asked = curl.arg(format!("https://{}/item?[1-20]", world.front)).output().unwrap();
        String::from_utf8(asked.stdout).unwrap().lines().map(str::to_owned).collect()
    };
    let refused = |told: &[String]| {
        let after = told.iter().filter_map(|line| line.strip_prefix("2 503 "));
        after.filter(|seconds| seconds.parse::<u8>().is_ok()).count()
    };
    let told = statuses(&world, b"X-A: 1");
    let passed = told.iter().filter(|line| *line == "2 200 ").count();
    assert_eq!(passed + refused(&told), 20, "{told:?}\n{}", world.log());
    assert!((5..=7).contains(&passed), "{passed} passed\n{}", world.log());
    // Nobody passes unasked by what is no UTF-8, which messages of gRPC must be.
    let told = statuses(&world, b"X-A: \xff\xfe");
    assert!(refused(&told) >= 17, "{told:?}\n{}", world.log());
    world.kill();
    assert_eq!(statuses(&world, b"X-A: 1"), vec!["2 200 "; 20], "{}", world.log());
}

/// No limit holds, and somebody is told.
#[test]
fn behind_an_envoy_that_reports_nothing_all_passes() {
    let world = World::new(Proxy::EnvoySilent, "{name: default}");
    wait_for("a warning", || {
        assert!(world.requests(20).iter().all(|r| r.status == 200), "{}", world.log());
        let warnings = world.status()?.warnings;
        warnings.iter().any(|warning| warning.contains("nothing is reported")).then_some(())
    });
}

/// Far more comes than passes: Envoy refuses most of it without a question, as it was told. It forgets that
/// when tidegate hangs.
#[test]
fn an_envoy_that_is_told_to_refuses_by_itself_and_fails_open() {
    let world = World::telling(Proxy::Envoy, "{name: fixed, rate: 20/s, burst: 5}", false);
    wait_for("the limit is in force", || world.status()?.services[0].limits.rate);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let mut client = Http::connect(world.front);
                while !stop.load(Relaxed) {
                    let response = client.ask("X-A: b\r\n");
                    assert!(matches!(response.status, 200 | 503), "{}", response.status);
                    if response.status == 503 {
                        let after = response.header("retry-after").and_then(|s| s.parse().ok());
                        assert!(
                            after.is_some_and(|seconds: u8| seconds > 0),
                            "{:?}",
                            response.headers
                        );
                        assert_eq!(response.header("x-envoy-ratelimited"), Some("true"));
                    }
                }
            });
        }
        // Whoever waits below and gives up must not leave them running.
        let _ended = Ended(&stop);
        wait_for("Envoy refuses by itself", || {
            let counts = world.status()?.services.into_iter().next()?.counts;
            let of = |reason: &str| -> u64 {
                counts.iter().filter(|count| count.reason == reason).map(|count| count.count).sum()
            };
            (of("by-proxy") > 200 && of("token") > 0).then_some(())
        });
        // It hangs while Envoy refuses: the layer runs out, and all pass.
        world.stop();
        wait_for("it is forgotten", || {
            world.requests(10).iter().all(|response| response.status == 200).then_some(())
        });
        world.signal(Signal::CONT);
        wait_for("Envoy is told again", || {
            let without_question = |r: &Response| r.status == 503 && r.body.is_empty();
            world.requests(10).iter().any(without_question).then_some(())
        });
    });
}

/// Ends the load of a test, however the test ends.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// What a proxy takes and an adapter may not: each is refused by one of them, but for who finds a token.
fn nobody_passes_by_an_odd_head(world: &World) {
    let many: String = (0..300).map(|at| format!("X-{at}: a\r\n")).collect();
    let host = format!("Host: shop.example:{}\r\n", world.front.port());
    for (target, lines) in [
        (&b"/a%2fb"[..], "X-A: b\r\n"),
        (b"/\xe9", "X-A: b\r\n"),
        (b"http://shop.example?x=1", "X-A: b\r\n"),
        (b"/", "X-A: \u{1}\r\n"),
        (b"/", "X-A: \u{e9}\r\nCookie: a=\u{e9}\r\n"),
        (b"/", &many),
    ] {
        let request =
            [b"GET ", target, b" HTTP/1.1\r\n", host.as_bytes(), lines.as_bytes(), b"\r\n"]
                .concat();
        let passes = |_: &usize| {
            let mut stream = TcpStream::connect(world.front).unwrap();
            stream.set_read_timeout(Some(PATIENCE.into())).unwrap();
            stream.write_all(&request).unwrap();
            let mut status = [0; 12];
            // Some close without a word.
            stream.read_exact(&mut status).is_ok() && status.ends_with(b" 200")
        };
        let passed = (0..6).filter(passes).count();
        let target = String::from_utf8_lossy(target);
        assert!(passed <= 2, "{passed} of 6 passed: {target} {lines:.20}\n{}", world.log());
    }
}

/// What is no message of the proxy, at both listeners: how many of them are counted.
fn garbage(world: &World, proxy: Proxy) -> u64 {
    let path = |file: &str| world.dir.path().join(file);
    for bytes in [&b"\x16\x03\x01\x02\x00\x01"[..], b"\0\0\0\0\r\n\r\n", b"GET\r\n\r\n"] {
        let mut stream = UnixStream::connect(path("edge.sock")).unwrap();
        stream.set_read_timeout(Some(PATIENCE.into())).unwrap();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        // It is closed, whatever was said before.
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
    }
    let mut stream = UnixStream::connect(path("edge.sock")).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut said = Vec::new();
    let _ = stream.read_to_end(&mut said);
    match proxy {
        Proxy::Nginx | Proxy::Caddy => {
            assert!(said.starts_with(b"HTTP/1.1 204"), "no question passes")
        }
        Proxy::Haproxy => assert_eq!(said.get(4), Some(&102), "it is told, and closed"),
        // HTTP/2 without its first line, and a call that nobody answers.
        _ => {
            let mut curl = Command::new("curl");
            curl.args(["--silent", "--http2-prior-knowledge", "--unix-socket"]);
            let told =
                curl.arg(path("edge.sock")).args(["-I", "http://localhost/"]).output().unwrap();
            let told = String::from_utf8(told.stdout).unwrap();
            assert!(told.contains("grpc-status: 12"), "{told}");
            return 3 + 1 + 1;
        }
    }
    for datagram in [&b"\xff\xfe"[..], b"<190>x: y|1", &[0; 4000]] {
        match world.completions.strip_prefix("unix:") {
            Some(path) => UnixDatagram::unbound().unwrap().send_to(datagram, path),
            None => UdpSocket::bind("127.0.0.1:0").unwrap().send_to(datagram, &world.completions),
        }
        .unwrap();
    }
    3 + 1 + 2
}

/// Clients at a load of three times what the application can do. Untuned: nobody said how much that is.
#[test]
fn behind_nginx_it_finds_the_limit_of_the_application_by_itself() {
    finds_the_limit(Proxy::Nginx);
}

#[test]
fn behind_haproxy_it_finds_the_limit_of_the_application_by_itself() {
    finds_the_limit(Proxy::Haproxy);
}

#[test]
fn behind_envoy_it_finds_the_limit_of_the_application_by_itself() {
    finds_the_limit(Proxy::Envoy);
}

#[test]
fn behind_caddy_it_finds_the_limit_of_the_application_by_itself() {
    finds_the_limit(Proxy::Caddy);
}

fn finds_the_limit(proxy: Proxy) {
    let world = World::new(proxy, "{name: default}");
    let rate = Arc::new(AtomicU64::new((0.5 * CAPACITY) as u64));
    let seen: Arc<[AtomicU64; 4]> = Arc::default();
    let ending = Arc::new(AtomicBool::new(false));
    const CLIENTS: u64 = 300;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|n| {
            let (rate, seen, ending) = (Arc::clone(&rate), Arc::clone(&seen), Arc::clone(&ending));
            let front = world.front;
            std::thread::spawn(move || client((n, CLIENTS), front, (&rate, &seen, &ending)))
        })
        .collect();
    let wait = |seconds| std::thread::park_timeout(Duration::from_secs(seconds));
    wait(5);
    let [good, slow, refused, failed] = seen.each_ref().map(|count| count.swap(0, Relaxed));
    println!("half: {good} good, {slow} slow, {refused} refused, {failed} failed in 5 s");
    assert_eq!((refused, failed), (0, 0), "{}", world.log());
    rate.store((3.0 * CAPACITY) as u64, Relaxed);
    wait(4);
    let begun = seen.each_ref().map(|count| count.swap(0, Relaxed));
    wait(6);
    let [good, slow, refused, failed] = seen.each_ref().map(|count| count.swap(0, Relaxed));
    let status = world.status().unwrap();
    ending.store(true, Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
    println!(
        "{proxy:?}, three times: {begun:?} in 4 s, then {good} good, {slow} slow, {refused} refused in 6 s"
    );
    println!("{}", status.services[0].limits.why.text);
    assert_eq!(failed, 0, "{}", world.log());
    let share = good as f64 / 6.0 / CAPACITY;
    assert!(share >= 0.85, "{share:.3} of the capacity\n{:?}", status.services[0].limits);
    assert!(status.services[0].limits.why.shedding, "{:?}", status.services[0].limits);
}

/// One client: its part of the rate, and what became of it (good, slow, refused, failed).
fn client(
    (n, clients): (u64, u64),
    front: SocketAddr,
    (rate, seen, ending): (&AtomicU64, &[AtomicU64; 4], &AtomicBool),
) {
    let mut http = Http::connect(front);
    let pause = || Duration::from_secs_f64(clients as f64 / rate.load(Relaxed) as f64);
    std::thread::park_timeout(pause().mul_f64(n as f64 / clients as f64));
    while !ending.load(Relaxed) {
        let begin = MonotonicClock.now();
        let response = http.get();
        let took = MonotonicClock.now().since(begin);
        let what = match response.status {
            200 if took <= Nanos::SECOND => 0,
            200 => 1,
            503 => 2,
            _ => 3,
        };
        seen[what].fetch_add(1, Relaxed);
        std::thread::park_timeout(pause().saturating_sub(took.into()));
    }
}
