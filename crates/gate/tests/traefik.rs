// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A proxy that asks and reports as Traefik 3.7 does (forwardAuth, and its access log over OTLP), and one
//! that does not.
//!
//! What it sends was recorded from Traefik 3.7.15 with packaging/traefik.yaml.
#![allow(clippy::unwrap_used)] // helpers of tests: to panic is to fail

mod port;

use flate2::{Compression, write::GzEncoder};
use port::free_port;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use tidegate_config::{Config, Registry, parse};
use tidegate_gate::{Adapters, Gate};
use tidegate_model::limits::ServiceLimits;
use tidegate_units::{Clock, MonotonicClock, Rate};

const PATIENCE: Duration = Duration::from_secs(10);
const LIMIT: usize = 5;

struct World {
    gate: Arc<Gate>,
    _adapters: Adapters,
    address: SocketAddr,
}

fn config(address: SocketAddr) -> Config {
    let text = format!(
        "services:
  shop:
    mode: enforce
gateways:
  edge:
    adapter: traefik
    listen: {address}
    client_hop: 2
    rate_limit_fields: true
    routes:
      - {{path: /free/, methods: [PATCH], host: free.example, service: shop}}
      - {{service: shop}}
exempt: {{sources: [198.51.100.1/32]}}
"
    );
    parse(&text, &Registry::new(["fresh_first"], ["default"])).unwrap()
}

impl World {
    /// With [`LIMIT`] tokens, and none after.
    fn new() -> Self {
        let address = free_port();
        let config = config(address);
        let gate = Arc::new(Gate::new(&config, 7));
        gate.tick(MonotonicClock.now());
        let limits = ServiceLimits {
            rate: Some(Rate::per_second(0.001)),
            burst: u32::try_from(LIMIT).unwrap(),
            ..ServiceLimits::default()
        };
        assert!(gate.set_limits(&config, &[limits]).is_empty());
        let adapters = Adapters::start(Arc::clone(&gate), Arc::new(MonotonicClock)).unwrap();
        adapters.follow(&config.gateways);
        wait_for("it listens", || TcpStream::connect(address).is_ok());
        Self { gate, _adapters: adapters, address }
    }

    /// One request of a connection of its own: the head of the response, and its body.
    fn say(&self, request: &[u8]) -> (String, String) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request).unwrap();
        let mut reader = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).unwrap() > 0 {}
        let length = header(&head, "content-length").map_or(0, |n| n.parse().unwrap());
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        (head, String::from_utf8(body).unwrap())
    }

    /// The question of a request, as Traefik asks it, with what the client has sent.
    fn ask(&self, forwarded_for: &str, client: &str) -> (String, String) {
        self.say(
            format!(
                "GET / HTTP/1.1\r\nHost: 127.0.0.1:9470\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n\
                 Cookie: a=1\r\nX-Forwarded-For: {forwarded_for}\r\nX-Forwarded-Host: shop.example\r\n\
                 X-Forwarded-Method: POST\r\nX-Forwarded-Port: 80\r\nX-Forwarded-Proto: http\r\n\
                 X-Forwarded-Uri: /a%2Fb?b=1\r\nAccept-Encoding: gzip\r\n{client}\r\n"
            )
            .as_bytes(),
        )
    }

    fn report(&self, coding: &str, body: &[u8]) -> String {
        let mut request = format!(
            "POST /v1/logs HTTP/1.1\r\nHost: 127.0.0.1:9470\r\nUser-Agent: OTel Go OTLP over HTTP/protobuf logs \
             exporter/0.14.0\r\nTransfer-Encoding: chunked\r\n{coding}Content-Type: application/x-protobuf\r\n\
             Accept-Encoding: gzip\r\n\r\n{:x}\r\n",
            body.len()
        )
        .into_bytes();
        request.extend(body);
        request.extend(b"\r\n0\r\n\r\n");
        self.say(&request).0
    }
}

fn wait_for(what: &str, mut happened: impl FnMut() -> bool) {
    let begin = MonotonicClock.now();
    while !happened() {
        assert!(MonotonicClock.now().since(begin) < PATIENCE.into(), "never happened: {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend(bytes);
    out
}

/// An export of these requests, each with its status, as OTLP has it: resource logs 1, scope logs 2, log
/// records 2, body 5, string 1.
fn export(users: &[(&str, u16)]) -> Vec<u8> {
    let record = |(user, status): &(&str, u16)| {
        let line = format!(
            "{{\"ClientUsername\":\"{user}\",\"DownstreamStatus\":{status},\"Duration\":6132549,\"OriginDuration\":\
             5999999,\"level\":\"info\",\"msg\":\"\",\"time\":\"2026-11-26T02:01:50Z\"}}\n"
        );
        field(2, &field(5, &field(1, line.as_bytes())))
    };
    let records: Vec<u8> = users.iter().flat_map(record).collect();
    field(1, &field(2, &records))
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

const GZIP: &str = "Content-Encoding: gzip\r\n";

#[test]
fn it_passes_refuses_and_takes_reports() {
    let world = World::new();
    let told: Vec<_> = (0..20).map(|_| world.ask("203.0.113.7, 127.0.0.1", "")).collect();
    let (passed, refused): (Vec<_>, Vec<_>) =
        told.iter().partition(|(head, _)| head.starts_with("HTTP/1.1 204 "));
    assert_eq!(passed.len(), LIMIT);
    for (head, body) in &refused {
        assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
        let seconds: u64 = header(head, "retry-after").unwrap().parse().unwrap();
        assert!((1..=60).contains(&seconds));
        assert_eq!(header(head, "content-type"), Some("application/problem+json"));
        assert_eq!(header(head, "ratelimit-policy"), Some("\"shop\";q=1;w=1"));
        assert!(body.contains("temporary-reduced-capacity"), "{body}");
        // The client gets what is here.
        assert!(!head.to_lowercase().contains("x-tidegate"), "{head}");
    }
    assert_eq!(world.gate.totals(0).unwrap().waiting, LIMIT as u64);
    let tokens: Vec<&str> =
        passed.iter().map(|(head, _)| header(head, "x-tidegate-token").unwrap()).collect();
    let mut users: Vec<(&str, u16)> = tokens.iter().map(|token| (*token, 200)).collect();
    users.extend([("-", 503); 15]);
    let head = world.report(GZIP, &packed(&export(&users[..2])));
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(world.report("", &export(&users[2..])).starts_with("HTTP/1.1 200 "));
    let totals = world.gate.totals(0).unwrap();
    assert_eq!((totals.waiting, totals.connections.answered), (0, LIMIT as u64));
    assert_eq!((totals.end.count, totals.end.sum_ns / LIMIT as u64), (LIMIT as u64, 5_999_999));
    let state = world.gate.state();
    assert_eq!((state.completed, state.unknown, state.misunderstood), (LIMIT as u64, 0, 0));
}

/// A client may send what it likes: Traefik's entry point removes it, and the place of its address is
/// counted from the end.
#[test]
fn a_client_cannot_say_who_it_is() {
    let world = World::new();
    while world.ask("203.0.113.7, 127.0.0.1", "").0.starts_with("HTTP/1.1 204 ") {}
    for forwarded_for in
        ["198.51.100.1, 203.0.113.7, 127.0.0.1", "198.51.100.1", "203.0.113.7, 198.51.100.1"]
    {
        let lines = "X-Tidegate-Client: 198.51.100.1\r\nX-Real-Ip: 198.51.100.1\r\n";
        let (head, _) = world.ask(forwarded_for, lines);
        assert!(head.starts_with("HTTP/1.1 503 "), "{forwarded_for}: {head}");
    }
    let (head, _) = world.ask("198.51.100.1, 127.0.0.1", "");
    assert!(head.starts_with("HTTP/1.1 204 "), "an exempt address: {head}");
    assert_eq!(header(&head, "x-tidegate-reason"), Some("exempt"));
}

#[test]
fn garbage_is_counted_and_does_nothing() {
    let world = World::new();
    let token = world.ask("203.0.113.7, 127.0.0.1", "").0;
    let token = header(&token, "x-tidegate-token").unwrap();
    let good = export(&[(token, 200)]);
    let long = packed(&vec![0; (4 << 20) + 1]);
    for (n, (coding, body, status)) in [
        ("", &good[..good.len() - 1], "400"),
        (GZIP, &good[..], "400"),
        (GZIP, &long, "400"),
        ("", &vec![0; (4 << 20) + 1], "413"),
        ("", &export(&[(token, 2000)]), "200"),
    ]
    .into_iter()
    .enumerate()
    {
        let head = world.report(coding, body);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{n}: {head}");
        assert_eq!(world.gate.state().misunderstood, n as u64 + 1);
    }
    let (head, _) = world.say(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 204 "), "no question passes: {head}");
    assert_eq!(world.gate.state().misunderstood, 6);
    let (head, _) = world.say(b"GET /tidegate/health HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 204 "), "{head}");
    let state = world.gate.state();
    assert_eq!((state.misunderstood, state.completed), (6, 0), "a health check is no question");
    assert_eq!(world.gate.totals(0).unwrap().waiting, 1);
}

/// The two halves of the example name the same sockets, and what the adapter reads.
#[test]
fn the_example_asks_and_reports_where_tidegate_listens() {
    let (fixed, dynamic) = (
        include_str!("../../../packaging/traefik.yaml"),
        include_str!("../../../packaging/traefik-dynamic.yaml"),
    );
    for (text, line) in [
        (fixed, "endpoint: http://127.0.0.1:9470/v1/logs"),
        (fixed, "address: 127.0.0.1:9480"),
        (fixed, "trustedIPs: [127.0.0.1/32]"),
        (fixed, "format: json"),
        (fixed, "ClientUsername: keep"),
        (fixed, "DownstreamStatus: keep"),
        (fixed, "Duration: keep"),
        (fixed, "OriginDuration: keep"),
        (dynamic, "address: http://127.0.0.1:9470/"),
        (dynamic, "headerField: X-Tidegate-Token"),
        (dynamic, "trustForwardHeader: true"),
        (dynamic, "path: /tidegate/health"),
        (dynamic, "port: 9470"),
        (dynamic, "- url: http://127.0.0.1:9480"),
    ] {
        assert_eq!(text.lines().filter(|l| l.trim() == line).count(), 1, "{line}");
    }
}
