// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The proxy between real clients and real servers, on loopback.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::{
    PATIENCE, Server, World, body, certificate, config, field, free_port, get, head, say, status,
    wait_for,
};
use std::fs;
use std::io::{BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

#[test]
fn requests_pass_and_are_counted_to_their_end() {
    let server = Server::start();
    let world = World::before(&[server.address]);
    let request = "GET /a?b=1 HTTP/1.1\r\nHost: shop.example\r\nX-Forwarded-For: 10.0.0.1\r\nX-Request-Id: forged\r\n\
         Connection: close, X-Mine\r\nX-Mine: 1\r\n\r\n";
    let response = say(world.front, request.as_bytes());
    assert_eq!(status(&response), 200, "{response}");
    assert!(response.ends_with("\r\n\r\nok\n"), "{response}");
    assert!(field(&response, "keep-alive").is_none(), "{response}");
    let id = field(&response, "x-request-id").unwrap().to_owned();
    let heads = server.heads();
    assert!(heads[0].starts_with("GET /a?b=1 HTTP/1.1\r\n"), "{}", heads[0]);
    for (name, value) in [
        ("host", Some("shop.example")),
        ("x-forwarded-for", Some("127.0.0.1")),
        ("x-forwarded-proto", Some("http")),
        ("forwarded", Some("for=127.0.0.1;proto=http")),
        ("x-request-id", Some(&*id)),
        ("via", Some("1.1 tidegate")),
        ("x-mine", None),
        ("connection", None),
        ("content-length", None),
    ] {
        assert_eq!(field(&heads[0], name), value, "{name} in {}", heads[0]);
    }
    wait_for("the report", || (world.in_flight() == 0).then_some(()));
    let totals = world.gate.totals(0).unwrap();
    assert_eq!((totals.admitted, totals.connections.answered, totals.end.count), (1, 1, 1));
    let seen = world.gate.seen(&id);
    assert_eq!((seen.len(), &*seen[0].service), (1, "shop"));
}

#[test]
fn a_refusal_costs_the_server_nothing_and_keeps_the_connection() {
    let server = Server::start();
    let world = World::before(&[server.address]);
    world.limit(1.0, 1);
    assert_eq!(status(&get(world.front, "/")), 200);
    let mut stream = TcpStream::connect(world.front).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    // The second has a body, which is there already: the connection is kept.
    for request in [
        "GET / HTTP/1.1\r\nHost: shop\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: shop\r\nContent-Length: 4\r\n\r\nbody",
        "GET / HTTP/1.1\r\nHost: shop\r\n\r\n",
    ] {
        stream.write_all(request.as_bytes()).unwrap();
        let head = head(&mut reader).unwrap();
        assert_eq!(status(&head), 503, "{head}");
        let seconds: u64 = field(&head, "retry-after").unwrap().parse().unwrap();
        assert!((1..=60).contains(&seconds));
        assert_eq!(field(&head, "content-type"), Some("application/problem+json"));
        let seen = world.gate.seen(field(&head, "x-request-id").unwrap());
        assert!(seen[0].refused && seen[0].executed());
        let body = body(&mut reader, &head).unwrap();
        assert!(String::from_utf8(body).unwrap().contains("temporary-reduced-capacity"));
    }
    assert_eq!((server.heads().len(), server.connections.load(Relaxed)), (1, 1));
}

/// The state of SplitMix64 that gives this number.
fn state(number: u64) -> u64 {
    let mut z = number ^ (number >> 31) ^ (number >> 62);
    z = z.wrapping_mul(0x3196_42b2_d24d_8ec3);
    z = (z ^ (z >> 27) ^ (z >> 54)).wrapping_mul(0x96de_1b17_3f11_9089);
    z ^ (z >> 30) ^ (z >> 60)
}

/// Clients read their own.
#[test]
fn a_request_id_tells_no_other_one() {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let server = Server::start();
    let world = World::before(&[server.address]);
    let halves: Vec<u64> = (0..2)
        .flat_map(|_| {
            let response = get(world.front, "/");
            let id = field(&response, "x-request-id").unwrap().to_owned();
            assert_eq!(id.len(), 32, "{id}");
            [0, 16].map(|at| u64::from_str_radix(&id[at..at + 16], 16).unwrap())
        })
        .collect();
    for pair in halves.windows(2) {
        let (one, next) = (state(pair[0]), state(pair[1]));
        let steps = (1..64).find(|n| one.wrapping_add(STEP.wrapping_mul(*n)) == next);
        assert_eq!(steps, None, "{halves:x?}");
    }
}

/// Two routes that look at one header read it once.
#[test]
fn routes_may_look_at_the_same_header() {
    let server = Server::start();
    let keys = format!(
        "routes: [{{path: /a, header: {{name: X-Tier, value: gold}}, service: shop}}, \
         {{path: /b, header: {{name: x-tier, value: gold}}, service: shop}}]\n    \
         upstream: {{servers: [{}]}}",
        server.address
    );
    let world = World::new(free_port(), &keys);
    for (path, tier, offered) in [("/a", "gold", 1), ("/b", "gold", 2), ("/a", "silver", 2)] {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: shop\r\nX-TIER: {tier}\r\nConnection: close\r\n\r\n"
        );
        assert_eq!(status(&say(world.front, request.as_bytes())), 200);
        assert_eq!(world.gate.totals(0).unwrap().offered, offered, "{path} {tier}");
    }
}

/// Servers answer 411 to a request of these methods that says nothing of its length.
#[test]
fn a_request_without_a_body_has_a_length_where_its_method_usually_has_one() {
    let server = Server::start();
    let world = World::before(&[server.address]);
    for (method, field_sent) in [
        ("POST", "Content-Length: 0\r\n"),
        ("PUT", ""),
        ("PATCH", "Content-Length: 0\r\n"),
        ("GET", ""),
        ("DELETE", ""),
    ] {
        let request =
            format!("{method} / HTTP/1.1\r\nHost: shop\r\n{field_sent}Connection: close\r\n\r\n");
        assert_eq!(status(&say(world.front, request.as_bytes())), 200);
        let wanted = (!["GET", "DELETE"].contains(&method)).then_some("0");
        let head = server.heads().pop().unwrap();
        assert_eq!(field(&head, "content-length"), wanted, "{head}");
        assert_eq!(head.matches("content-length").count(), usize::from(wanted.is_some()), "{head}");
        assert_eq!(field(&head, "transfer-encoding"), None, "{head}");
    }
}

/// The server owes nothing while it waits for the client, before the head of its response and behind it.
#[test]
fn a_client_that_pauses_in_its_body_takes_no_time_of_the_server() {
    for (path, patience) in [("/echo", 1), ("/early", 1), ("/early", 10)] {
        pauses(path, patience);
    }
}

/// A client that pauses for longer than one `patience` of a server, in seconds, and shorter than the other.
fn pauses(path: &str, patience: u64) {
    let server = Server::start();
    let servers = format!("servers: [{}], response_timeout: {patience}s", server.address);
    let world = World::new(free_port(), &format!("upstream: {{{servers}}}"));
    let mut stream = TcpStream::connect(world.front).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let begun = format!(
        "POST {path} HTTP/1.1\r\nHost: shop\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbo"
    );
    stream.write_all(begun.as_bytes()).unwrap();
    wait_for("it is with the server", || (!server.heads().is_empty()).then_some(()));
    std::thread::park_timeout(Duration::from_millis(2500));
    stream.write_all(b"dy").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    assert_eq!(status(&response), 200, "{response}");
    assert!(response.ends_with("body"), "{response}");
    wait_for("the report", || (world.in_flight() == 0).then_some(()));
    let totals = world.gate.totals(0).unwrap();
    assert_eq!((totals.end.count, world.counts().timed_out), (1, 0));
    let ns = totals.end.sum_ns;
    assert!(ns < 2_000_000_000, "{path}, {patience} s: {ns} ns with the server");
}

/// Nobody sends a body for nothing.
#[test]
fn a_client_that_asks_first_is_told_to_go_on_only_if_it_may() {
    let server = Server::start();
    let world = World::before(&[server.address]);
    let ask = "POST /echo HTTP/1.1\r\nHost: shop\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\
               Connection: close\r\n\r\n";
    let mut stream = TcpStream::connect(world.front).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(ask.as_bytes()).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    assert_eq!(status(&head(&mut reader).unwrap()), 100);
    stream.write_all(b"body").unwrap();
    let answer = head(&mut reader).unwrap();
    assert_eq!(status(&answer), 200);
    assert_eq!(body(&mut reader, &answer).unwrap(), b"body");
    assert_eq!(field(&server.heads()[0], "expect"), None);
    world.limit(1.0, 1);
    assert_eq!(status(&get(world.front, "/")), 200);
    assert_eq!(status(&say(world.front, ask.as_bytes())), 503);
}

#[test]
fn connections_to_servers_are_kept_and_replaced_when_the_server_has_closed_them() {
    let server = Server::start();
    let world = World::before(&[server.address]);
    for _ in 0..20 {
        assert_eq!(status(&get(world.front, "/")), 200);
    }
    assert_eq!(server.connections.load(Relaxed), 1);
    // It closes without a response: that request fails, and is not sent again.
    assert_eq!(status(&get(world.front, "/stop")), 502);
    assert_eq!(server.heads().iter().filter(|head| head.starts_with("GET /stop")).count(), 1);
    assert_eq!(status(&get(world.front, "/")), 200);
    assert_eq!((server.connections.load(Relaxed), world.counts().broken), (2, 1));
}

#[test]
fn a_dead_server_is_left_alone_and_without_any_it_is_502() {
    let (server, dead) = (Server::start(), free_port());
    let world = World::before(&[dead, server.address]);
    for _ in 0..10 {
        assert_eq!(status(&get(world.front, "/")), 200);
    }
    assert_eq!(world.counts().unreachable, 0);
    let world = World::before(&[dead]);
    assert_eq!(status(&get(world.front, "/")), 502);
    assert_eq!(world.counts().unreachable, 1);
    assert_eq!(world.gate.statuses(0)[5], 1);
    assert_eq!(world.in_flight(), 0);
    nothing_is_told_of_the_service(&world, 1);
}

/// Of so many requests that no server had.
fn nothing_is_told_of_the_service(world: &World, unserved: u64) {
    let totals = world.gate.totals(0).unwrap();
    assert_eq!((totals.connections.answered, totals.connections.lost), (0, 0));
    assert_eq!((totals.first_byte.count, totals.end.count, totals.unseen), (0, 0, unserved));
}

/// A 503 of the proxy within no time is no response of a fast server.
#[test]
fn a_503_for_want_of_a_connection_is_no_response_of_the_service() {
    let server = Server::start();
    let upstream = format!("upstream: {{servers: [{}], connections: 1}}", server.address);
    let world = World::new(free_port(), &upstream);
    let front = world.front;
    let slow = std::thread::spawn(move || get(front, "/sleep/3000"));
    wait_for("it is with the server", || (!server.heads().is_empty()).then_some(()));
    for _ in 0..20 {
        assert_eq!(status(&get(front, "/")), 503);
    }
    assert_eq!((world.counts().full, world.gate.statuses(0)[5]), (20, 20));
    assert_eq!(world.in_flight(), 1, "the one that the server has, and it is not overtaken");
    nothing_is_told_of_the_service(&world, 20);
    assert_eq!(status(&slow.join().unwrap()), 200);
    wait_for("the report", || (world.in_flight() == 0).then_some(()));
    let totals = world.gate.totals(0).unwrap();
    assert_eq!((totals.connections.answered, totals.end.count), (1, 1));
    assert!(totals.end.sum_ns >= 1_000_000_000, "{} ns with the server", totals.end.sum_ns);
}

#[test]
fn the_server_with_the_fewest_requests_is_next() {
    let servers = [Server::start(), Server::start()];
    let world = World::before(&servers.each_ref().map(|server| server.address));
    let asking: Vec<_> = (0..4)
        .map(|_| {
            let front = world.front;
            std::thread::spawn(move || status(&get(front, "/sleep/300")))
        })
        .collect();
    assert!(asking.into_iter().all(|asked| asked.join().unwrap() == 200));
    assert_eq!(servers.each_ref().map(|server| server.heads().len()), [2, 2]);
}

#[test]
fn a_response_that_takes_too_long_is_504_and_one_that_breaks_off_ends() {
    let server = Server::start();
    let upstream = format!("upstream: {{servers: [{}], response_timeout: 200ms}}", server.address);
    let world = World::new(free_port(), &upstream);
    assert_eq!(status(&get(world.front, "/sleep/5000")), 504);
    assert_eq!(world.counts().timed_out, 1);
    let broken = get(world.front, "/break");
    assert!(broken.ends_with("\r\n\r\nshort"), "{broken}");
    wait_for("it is counted", || (world.counts().broken == 1).then_some(()));
    assert_eq!((world.in_flight(), world.gate.statuses(0)[5]), (0, 2));
}

#[test]
fn a_client_that_leaves_is_no_response_and_holds_nothing() {
    let server = Server::start();
    let world = World::before(&[server.address]);
    let mut stream = TcpStream::connect(world.front).unwrap();
    stream.write_all(b"GET /sleep/3000 HTTP/1.1\r\nHost: shop\r\n\r\n").unwrap();
    wait_for("it is with the server", || (!server.heads().is_empty()).then_some(()));
    assert_eq!(world.in_flight(), 1);
    drop(stream);
    wait_for("it is not in flight", || (world.in_flight() == 0).then_some(()));
    let totals = world.gate.totals(0).unwrap();
    assert_eq!((totals.connections.lost, totals.connections.answered), (1, 0));
}

/// In both directions, and of a size that nobody holds.
#[test]
fn bodies_of_any_length_pass_by_length_and_by_chunks() {
    let server = Server::start();
    let world = World::before(&[server.address]);
    let response = get(world.front, "/long/5000000");
    assert_eq!(response.len() - response.find("\r\n\r\n").unwrap() - 4, 5_000_000);
    let sent = "y".repeat(300_000);
    let by_length = format!(
        "POST /echo HTTP/1.1\r\nHost: shop\r\nConnection: close\r\nContent-Length: 300000\r\n\r\n{sent}"
    );
    let by_chunks = format!(
        "POST /echo HTTP/1.1\r\nHost: shop\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n\
         1;ext=1\r\ny\r\n{:x}\r\n{}\r\n0\r\nX-Trailer: 1\r\n\r\n",
        sent.len() - 1,
        &sent[1..]
    );
    for request in [by_length, by_chunks] {
        let response = say(world.front, request.as_bytes());
        assert!(response.ends_with(&sent), "{}", &response[..200]);
    }
    assert!(!server.heads().iter().any(|head| head.contains("X-Trailer")));
}

/// What two programs could read differently, and what is none at all: refused, and nothing behind it
/// is read as a request. `/hidden` never reaches the server.
#[test]
fn nothing_is_smuggled() {
    let server = Server::start();
    let world = World::before(&[server.address]);
    let hidden = "GET /hidden HTTP/1.1\r\nHost: shop\r\n\r\n";
    let post = |fields: &str, body: &str| {
        format!("POST /x HTTP/1.1\r\nHost: shop\r\n{fields}\r\n{body}{hidden}")
    };
    let get = |line: &str, fields: &str| format!("{line}\r\n{fields}\r\n{hidden}");
    let refused = [
        post("Content-Length: 1\r\nContent-Length: 2\r\n", "a"),
        post("Content-Length: 1, 2\r\n", "a"),
        post("Content-Length: +1\r\n", "a"),
        post("Content-Length: -1\r\n", ""),
        post("Content-Length: 0x1\r\n", "a"),
        post("Content-Length: 99999999999999999999\r\n", "a"),
        post("Content-Length : 1\r\n", "a"),
        post("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"),
        post("Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n"),
        post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"),
        post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
        post("Transfer-Encoding : chunked\r\n", "0\r\n\r\n"),
        post("Transfer-Encoding: chunked\r\n", "z\r\n\r\n"),
        post("Transfer-Encoding: chunked\r\n", "-1\r\n\r\n"),
        post("Transfer-Encoding: chunked\r\n", "ffffffffffffffffff\r\n\r\n"),
        post("Transfer-Encoding: chunked\r\n", "1\r\nabc\r\n0\r\n\r\n"),
        post(" folded: 1\r\n", ""),
        post("X: 1\r\n folded\r\n", ""),
        post("X: a\0b\r\n", ""),
        get("GET /x HTTP/1.0", "Host: shop\r\nTransfer-Encoding: chunked\r\n"),
        get("GET /x HTTP/1.1", ""),
        get("GET /x HTTP/1.1", "Host: shop\r\nHost: shop\r\n"),
        get("GET /x HTTP/1.1", "Host: shop/x\r\n"),
        get("GET http://other.example/x HTTP/1.1", "Host: shop\r\n"),
        get("GET x HTTP/1.1", "Host: shop\r\n"),
        get("GET /x\t/y HTTP/1.1", "Host: shop\r\n"),
        get("GET /x HTTP/1.2", "Host: shop\r\n"),
        get("GET /x HTTP/2.0", "Host: shop\r\n"),
        get("CONNECT shop:80 HTTP/1.1", "Host: shop:80\r\n"),
        get("GET /x HTTP/1.1", "Host: shop\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(),
        "\x16\x03\x01\x02\0\x01\0\x01\u{7f}".into(),
    ];
    for request in refused {
        let response = say(world.front, request.as_bytes());
        let status = status(&response);
        let fits = matches!(status, 400 | 405 | 501 | 505) || response.is_empty();
        assert!(fits && !response.contains("200 OK"), "{request:?}: {response}");
    }
    // A length beside chunks: by the chunks, as chunks, and the last of its connection.
    for fields in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
    ] {
        let response = say(world.front, post(fields, "0\r\n\r\n").as_bytes());
        assert_eq!(response.matches("HTTP/1.1 200").count(), 1, "{response}");
    }
    let heads = server.heads();
    assert!(!heads.iter().any(|head| head.contains("/hidden")), "{heads:?}");
    assert!(!heads.iter().any(|head| head.contains("Content-Length")), "{heads:?}");
    assert!(world.counts().malformed > 20, "{:?}", world.counts());
}

#[test]
fn slow_and_long_heads_slow_bodies_and_slow_readers_are_given_up() {
    let server = Server::start();
    let keys = format!(
        "upstream: {{servers: [{}]}}\n    clients: {{idle_timeout: 300ms, body_timeout: 300ms}}",
        server.address
    );
    let world = World::new(free_port(), &keys);
    // Drop by drop: 100 ms each, faster than the time-out, but no whole head.
    let mut stream = TcpStream::connect(world.front).unwrap();
    stream.set_nodelay(true).unwrap();
    let dropped = b"GET / HTTP/1.1\r\nHost: shop\r\nX: "
        .iter()
        .chain(std::iter::repeat(&b'x'))
        .position(|b| {
            std::thread::park_timeout(Duration::from_millis(100));
            stream.write_all(&[*b]).is_err()
        });
    assert!(dropped.unwrap() < 20, "{dropped:?}");
    // Nothing at all.
    assert_eq!(say(world.front, b""), "");
    let long = format!("GET / HTTP/1.1\r\nHost: shop\r\nX: {}\r\n\r\n", "x".repeat(70_000));
    assert_eq!(status(&say(world.front, long.as_bytes())), 431);
    let many = format!("GET / HTTP/1.1\r\nHost: shop\r\n{}\r\n", "X: 1\r\n".repeat(101));
    assert_eq!(status(&say(world.front, many.as_bytes())), 431);
    let slow = "POST /echo HTTP/1.1\r\nHost: shop\r\nContent-Length: 4\r\n\r\nbo";
    assert_eq!(status(&say(world.front, slow.as_bytes())), 408);
    // Much was sent before: that buys more pauses, and none that is longer.
    let paused = format!(
        "POST /echo HTTP/1.1\r\nHost: shop\r\nContent-Length: 50001\r\n\r\n{}",
        "y".repeat(50_000)
    );
    assert_eq!(status(&say(world.front, paused.as_bytes())), 408);
    wait_for("nothing is in flight", || (world.in_flight() == 0).then_some(()));
    // Asks for much and takes nothing.
    let mut stream = TcpStream::connect(world.front).unwrap();
    stream.write_all(b"GET /long/50000000 HTTP/1.1\r\nHost: shop\r\n\r\n").unwrap();
    wait_for("it is in flight", || (world.in_flight() == 1).then_some(()));
    wait_for("it is given up", || (world.in_flight() == 0).then_some(()));
    wait_for("all have left", || (world.counts().connections == 0).then_some(()));
}

#[test]
fn connections_without_a_request_make_room_and_no_more_than_may_are_served() {
    let server = Server::start();
    let keys =
        format!("upstream: {{servers: [{}]}}\n    clients: {{connections: 8}}", server.address);
    let world = World::new(free_port(), &keys);
    let idle: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(world.front).unwrap()).collect();
    let served = wait_for("there is room", || {
        let response = get(world.front, "/");
        (status(&response) == 200).then_some(response)
    });
    assert!(served.ends_with("ok\n"));
    drop(idle);
    // With a request each they stay, and one more is turned away.
    let busy: Vec<_> = (0..8)
        .map(|_| {
            let mut stream = TcpStream::connect(world.front).unwrap();
            stream.write_all(b"GET /sleep/2000 HTTP/1.1\r\nHost: shop\r\n\r\n").unwrap();
            stream
        })
        .collect();
    wait_for("all are with the server", || {
        (server.heads().iter().filter(|head| head.contains("/sleep")).count() == 8).then_some(())
    });
    let before = world.counts().turned_away;
    assert_eq!(get(world.front, "/"), "");
    assert_eq!(world.counts().turned_away, before + 1);
    drop(busy);
}

/// The real curl.
fn curl(dir: &Path, address: SocketAddr, more: &[&str]) -> String {
    let port = address.port();
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--max-time", "20", "--cacert"])
        .arg(dir.join("cert.pem"))
        .args(["--resolve", &format!("shop.example:{port}:127.0.0.1")])
        .args(["--write-out", " %{http_version} %{http_code}"])
        .args(more.iter().map(|arg| arg.replace("BASE", &format!("https://shop.example:{port}"))))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text} {}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn curl_is_served_by_tls_in_both_versions_and_the_certificate_is_renewed() {
    let (server, dir) = (Server::start(), tempfile::tempdir().unwrap());
    let tls = certificate(dir.path());
    let keys = format!("{tls}\n    upstream: {{servers: [{}]}}", server.address);
    let world = World::new(free_port(), &keys);
    assert_eq!(curl(dir.path(), world.front, &["--http1.1", "BASE/"]), "ok\n 1.1 200");
    let cookies = ["--http2", "-H", "Cookie: a=1", "-H", "Cookie: b=2", "BASE/"];
    assert_eq!(curl(dir.path(), world.front, &cookies), "ok\n 2 200");
    assert_eq!(
        curl(dir.path(), world.front, &["--http2", "-d", "body", "BASE/echo"]),
        "body 2 200"
    );
    let trailers = curl(dir.path(), world.front, &["--http2", "--include", "BASE/trailers"]);
    assert!(trailers.ends_with("\r\n\r\nok\n 2 200"), "{trailers:?}");
    curl(dir.path(), world.front, &["--http2", "--request", "POST", "BASE/"]);
    let head = curl(dir.path(), world.front, &["--http2", "--head", "BASE/"]);
    assert!(head.starts_with("HTTP/2 200") && head.contains("content-length: 3\r\n"), "{head}");
    let heads = server.heads();
    assert_eq!(field(&heads[4], "content-length"), Some("0"), "{}", heads[4]);
    assert_eq!(field(&heads[1], "cookie"), Some("a=1; b=2"), "{}", heads[1]);
    assert_eq!(field(&heads[1], "x-forwarded-proto"), Some("https"));
    assert!(field(&heads[1], "host").unwrap().starts_with("shop.example:"), "{}", heads[1]);
    world.limit(1.0, 1);
    let all: Vec<String> =
        (0..3).map(|_| curl(dir.path(), world.front, &["--http2", "BASE/"])).collect();
    let refused = &all[2];
    assert!(
        refused.contains("temporary-reduced-capacity") && refused.ends_with(" 2 503"),
        "{refused}"
    );

    certificate(dir.path());
    world.proxies().follow(&world.config.gateways);
    assert!(curl(dir.path(), world.front, &["--http2", "BASE/"]).ends_with(" 2 503"));
    // Half renewed: the old pair stays, and it is said.
    fs::write(dir.path().join("key.pem"), "half").unwrap();
    world.proxies().follow(&world.config.gateways);
    assert!(world.proxies().problems()[0].as_ref().unwrap().contains("key.pem"));
    assert!(curl(dir.path(), world.front, &["--http2", "BASE/"]).ends_with(" 2 503"));
    let cleartext = say(world.front, b"GET / HTTP/1.1\r\nHost: shop\r\n\r\n");
    assert!(!cleartext.contains("HTTP"), "{cleartext:?}");
    wait_for("it is counted", || (world.counts().handshakes_failed > 0).then_some(()));
}

/// A reload moves the servers, and takes what is under way to its end; the end likewise.
#[test]
fn a_reload_and_the_end_lose_no_request() {
    let servers = [Server::start(), Server::start()];
    let mut world = World::before(&[servers[0].address]);
    let front = world.front;
    let slow = std::thread::spawn(move || get(front, "/sleep/400"));
    wait_for("it is with the server", || (!servers[0].heads().is_empty()).then_some(()));
    let moved = config(front, &format!("upstream: {{servers: [{}]}}", servers[1].address));
    world.gate.reconfigure(&moved);
    world.proxies().follow(&moved.gateways);
    assert_eq!(status(&get(front, "/")), 200);
    assert_eq!(servers.each_ref().map(|server| server.heads().len()), [1, 1]);
    assert_eq!(status(&slow.join().unwrap()), 200);

    let mut idle = TcpStream::connect(front).unwrap();
    let slow = std::thread::spawn(move || get(front, "/sleep/600"));
    wait_for("it is with the server", || (servers[1].heads().len() == 2).then_some(()));
    drop(world.proxies.take());
    assert_eq!(status(&slow.join().unwrap()), 200, "ended in its time");
    assert_eq!(idle.read(&mut [0]).unwrap(), 0, "closed");
    assert!(TcpStream::connect(front).is_err());
}

/// A request goes to the servers of the configuration that holds once its body begins.
#[test]
fn a_reload_moves_what_is_only_announced() {
    let servers = [Server::start(), Server::start()];
    let world = World::before(&[servers[0].address]);
    let mut stream = TcpStream::connect(world.front).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let ask =
        "POST /echo HTTP/1.1\r\nHost: shop\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";
    stream.write_all(ask.as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    assert_eq!(status(&head(&mut reader).unwrap()), 100);
    let moved = config(world.front, &format!("upstream: {{servers: [{}]}}", servers[1].address));
    world.gate.reconfigure(&moved);
    world.proxies().follow(&moved.gateways);
    reader.get_mut().write_all(b"body").unwrap();
    assert_eq!(status(&head(&mut reader).unwrap()), 200);
    assert_eq!(servers.each_ref().map(|server| server.heads().len()), [0, 1]);
}

/// Two at one address, as during an upgrade: every request is served by one of them.
#[test]
fn a_successor_opens_the_address_before_the_predecessor_leaves_it() {
    let server = Server::start();
    let mut old = World::before(&[server.address]);
    let front = old.front;
    let asking: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(move || (0..100).filter(|_| status(&get(front, "/")) != 200).count())
        })
        .collect();
    let new = World::new(front, &format!("upstream: {{servers: [{}]}}", server.address));
    drop(old.proxies.take());
    let failed: usize = asking.into_iter().map(|asked| asked.join().unwrap()).sum();
    assert_eq!(failed, 0);
    assert_eq!(status(&get(front, "/")), 200);
    drop(new);
}

/// Half of a request, then nothing more will come: what is known of it is not passed on.
#[test]
fn half_a_request_is_none() {
    let server = Server::start();
    let world = World::before(&[server.address]);
    for half in [
        "GET / HTTP/1.1\r\nHost: sh",
        "POST / HTTP/1.1\r\nHost: shop\r\nContent-Length: 9\r\n\r\nx",
    ] {
        let mut stream = TcpStream::connect(world.front).unwrap();
        stream.write_all(half.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut heard = Vec::new();
        let _ = stream.read_to_end(&mut heard);
        assert!(!String::from_utf8_lossy(&heard).contains("200 OK"));
    }
    wait_for("nothing is in flight", || (world.in_flight() == 0).then_some(()));
    assert_eq!(status(&get(world.front, "/")), 200);
}
