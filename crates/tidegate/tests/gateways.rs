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

use common::http::{Http, Response};
use common::proxied::{CAPACITY, Proxy, World, with_tls};
use common::{PATIENCE, wait_for};
use rustix::process::Signal;
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tidegate_units::{Clock, MonotonicClock, Nanos};

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

impl World {
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
    if matches!(proxy, Proxy::Caddy) {
        let totals = completed.services[0].totals.as_ref().unwrap();
        let (head, end) = (totals.first_byte.sum_ns, totals.end.sum_ns);
        assert!(0 < head && head < end, "it says what the application took: {head} {end}");
    }
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

    // SIGSTOP: the proxy waits for 200 ms, nginx and Caddy for 500, and passes. Twice that is for a busy machine.
    world.stop();
    let begin = MonotonicClock.now();
    assert!(world.requests(10).iter().all(|r| r.status == 200), "{}", world.log());
    let took = MonotonicClock.now().since(begin);
    let each = if matches!(proxy, Proxy::Nginx | Proxy::Caddy) { 500 } else { 200 };
    assert!(took < Nanos::from_millis(20 * each), "10 requests took {took}");
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
    let turn = status.services[0].signals.time.proxy_turn.unwrap().value;
    ending.store(true, Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
    println!(
        "{proxy:?}, three times: {begun:?} in 4 s, then {good} good, {slow} slow, {refused} refused in 6 s"
    );
    println!("{}, turn {turn}", status.services[0].limits.why.text);
    assert!(turn > Nanos::ZERO || !matches!(proxy, Proxy::Caddy), "it says what it waits");
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
