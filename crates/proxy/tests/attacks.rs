// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients that attack: frames of HTTP/2 written by hand inside TLS, and connections that say nothing. Each
//! ends by itself, and others are served meanwhile.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::{PATIENCE, Server, World, certificate, free_port, get, status, wait_for};
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Kinds of frames, and flags (RFC 9113, section 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// More than any buffer on the way takes.
const FLOOD: usize = 64 << 20;

/// A client that writes frames.
struct Raw {
    stream: StreamOwned<ClientConnection, TcpStream>,
    next: u32,
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// `GET` by names of the static table (RFC 7541, appendix A).
fn head(path: &str) -> Vec<u8> {
    let mut head = vec![0x82, 0x87];
    for (name, value) in [(0x01, "shop"), (0x04, path)] {
        head.extend([name, u8::try_from(value.len()).unwrap()]);
        head.extend(value.as_bytes());
    }
    head
}

impl Raw {
    /// With these settings: pairs of a number and a value.
    fn connect(front: SocketAddr, dir: &Path, settings: &[(u16, u32)]) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(dir.join("cert.pem")).unwrap()).unwrap();
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let name = "shop.example".try_into().unwrap();
        let session = ClientConnection::new(Arc::new(config), name).unwrap();
        let stream = TcpStream::connect(front).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        let mut raw = Self { stream: StreamOwned::new(session, stream), next: 1 };
        let settings: Vec<u8> = settings
            .iter()
            .flat_map(|(of, value)| [&of.to_be_bytes()[..], &value.to_be_bytes()].concat())
            .collect();
        let first = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &frame(SETTINGS, 0, 0, &settings)[..]];
        assert!(raw.send(&first.concat()));
        raw
    }

    /// False: the connection has ended.
    fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).and_then(|()| self.stream.flush()).is_ok()
    }

    /// The frames of a request without a body.
    fn request(&mut self, path: &str) -> (u32, Vec<u8>) {
        let stream = self.next;
        self.next += 2;
        (stream, frame(HEADERS, END_STREAM | END_HEADERS, stream, &head(path)))
    }

    /// The beginning of a request that announces a body.
    fn announces(&mut self, path: &str) -> (u32, Vec<u8>) {
        let stream = self.next;
        self.next += 2;
        let mut head = head(path);
        head[0] = 0x83;
        (stream, frame(HEADERS, END_HEADERS, stream, &head))
    }

    /// What was sent so far is taken up: then the answer to a ping comes. False: the connection has ended.
    fn looked_at(&mut self) -> bool {
        let mut heard = self.send(&frame(PING, 0, 0, &[1; 8])).then(|| self.hear()).flatten();
        while heard.as_ref().is_some_and(|(kind, flags, ..)| (*kind, *flags) != (PING, ACK)) {
            heard = self.hear();
        }
        heard.is_some()
    }

    /// How many of these requests get a 200, once each has a response.
    fn good(&mut self, mut streams: Vec<u32>) -> usize {
        let mut good = 0;
        while !streams.is_empty() {
            let Some((kind, _, stream, payload)) = self.hear() else { break };
            if kind == HEADERS && streams.contains(&stream) {
                streams.retain(|other| *other != stream);
                good += usize::from(payload[0] == 0x88);
            }
        }
        good
    }

    /// Kind, flags, stream and payload of the next frame; `None`: the connection has ended.
    fn hear(&mut self) -> Option<(u8, u8, u32, Vec<u8>)> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let mut payload = vec![0; length as usize];
        self.stream.read_exact(&mut payload).ok()?;
        Some((head[3], head[4], stream, payload))
    }

    /// Reads until the connection ends: the error of GOAWAY, if one came.
    fn ends(&mut self) -> Option<u32> {
        let mut error = None;
        while let Some((kind, _, _, payload)) = self.hear() {
            if kind == GOAWAY {
                error = Some(u32::from_be_bytes(payload[4..8].try_into().unwrap()));
            }
        }
        error
    }

    /// Writes this until the connection ends: whether it did before [`FLOOD`].
    fn flood(&mut self, bytes: &[u8]) -> bool {
        let many = bytes.repeat((16 << 10) / bytes.len());
        !(0..FLOOD / many.len()).all(|_| self.send(&many))
    }

    /// Asks, and hears the whole response: whether it was a 200.
    fn served(&mut self) -> bool {
        let (asked, request) = self.request("/");
        if !self.send(&request) {
            return false;
        }
        let mut ok = false;
        while let Some((kind, flags, stream, payload)) = self.hear() {
            // `:status: 200` of the static table.
            ok |= kind == HEADERS && stream == asked && payload[0] == 0x88;
            if stream == asked && matches!(kind, HEADERS | DATA) && flags & END_STREAM != 0 {
                return ok;
            }
        }
        false
    }
}

struct Attacked {
    world: World,
    server: Server,
    dir: tempfile::TempDir,
}

impl Attacked {
    fn new(clients: &str) -> Self {
        Self::before(clients, 1024)
    }

    /// In front of a server with so many connections.
    fn before(clients: &str, connections: u32) -> Self {
        let (server, dir) = (Server::start(), tempfile::tempdir().unwrap());
        let keys = format!(
            "{}\n    clients: {clients}\n    upstream: {{servers: [{}], connections: {connections}}}",
            certificate(dir.path()),
            server.address
        );
        Self { world: World::new(free_port(), &keys), server, dir }
    }

    fn client(&self, settings: &[(u16, u32)]) -> Raw {
        Raw::connect(self.world.front, self.dir.path(), settings)
    }

    /// Requests of which the gate was asked.
    fn offered(&self) -> u64 {
        self.world.gate.totals(0).unwrap().offered
    }

    /// Others are served, and nothing is left of the attack.
    fn goes_on(&self) {
        assert!(self.client(&[]).served());
        wait_for("nothing is in flight", || (self.world.in_flight() == 0).then_some(()));
        wait_for("the connections end", || (self.world.counts().connections == 0).then_some(()));
    }
}

/// CVE-2023-44487, as it was used: each request is reset at once.
#[test]
fn requests_that_are_reset_at_once_end_the_connection() {
    let attacked = Attacked::new("{}");
    let (mut raw, mut other) = (attacked.client(&[]), attacked.client(&[]));
    let mut sent = 0;
    for _ in 0..100 {
        let mut batch = Vec::new();
        for _ in 0..100 {
            let (stream, request) = raw.request("/sleep/50");
            batch.extend(request);
            batch.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
        }
        if !raw.send(&batch) {
            break;
        }
        sent += 100;
    }
    assert!(other.served(), "another is served meanwhile");
    let told = raw.ends();
    assert!(matches!(told, None | Some(11)), "ENHANCE_YOUR_CALM, where it is heard: {told:?}");
    let reached = attacked.server.heads().len();
    assert!(reached < 100, "{reached} of {sent} reached the server");
    drop((raw, other));
    attacked.goes_on();
}

/// Each is taken up before it is reset, until the proxy ends the connection: that is what h2 does not count.
fn resets_what_is_taken_up(makes: fn(&mut Raw) -> (u32, Vec<u8>)) {
    let attacked = Attacked::new("{}");
    let mut raw = attacked.client(&[]);
    let mut cancelled = 0;
    loop {
        let (stream, request) = makes(&mut raw);
        if !raw.send(&request)
            || !raw.looked_at()
            || !raw.send(&frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()))
        {
            break;
        }
        cancelled += 1;
        assert!(cancelled < 1000, "{cancelled} were taken");
    }
    assert!(cancelled > 20, "{cancelled}: a browser that leaves a page may cancel many");
    drop(raw);
    attacked.goes_on();
}

#[test]
fn requests_that_are_reset_once_they_are_taken_up_end_the_connection() {
    resets_what_is_taken_up(|raw| raw.request("/sleep/500"));
}

/// Those that only announce bodies are cancelled like others.
#[test]
fn announced_bodies_that_are_reset_end_the_connection() {
    resets_what_is_taken_up(|raw| raw.announces("/"));
}

/// A head that never ends (CVE-2024-27316 and its like).
#[test]
fn a_head_in_endless_parts_ends_the_connection() {
    for part in [&[][..], &[0x10, 0x01, b'a', 0x01, b'b'], &[0; 1000]] {
        let attacked = Attacked::new("{}");
        let mut raw = attacked.client(&[]);
        assert!(raw.send(&frame(HEADERS, END_STREAM, 1, &head("/"))));
        assert!(raw.flood(&frame(CONTINUATION, 0, 1, part)), "{} bytes each", part.len());
        assert!(attacked.server.heads().is_empty());
        drop(raw);
        attacked.goes_on();
    }
}

/// Each wants an answer, and nobody takes them.
#[test]
fn who_takes_no_answers_to_settings_and_pings_is_closed() {
    for bytes in [frame(PING, 0, 0, &[7; 8]), frame(SETTINGS, 0, 0, &[])] {
        let attacked = Attacked::new("{body_timeout: 300ms}");
        let mut raw = attacked.client(&[]);
        assert!(raw.flood(&bytes));
        drop(raw);
        attacked.goes_on();
    }
}

/// They are answered, but they are no requests.
#[test]
fn pings_alone_keep_no_connection() {
    let attacked = Attacked::new("{idle_timeout: 300ms}");
    let mut raw = attacked.client(&[]);
    let ping = frame(PING, 0, 0, &[7; 8]);
    let mut answered = 0;
    while raw.send(&ping) && raw.hear().is_some() {
        answered += 1;
    }
    assert!(answered > 0);
    drop(raw);
    attacked.goes_on();
}

/// Windows of nothing, or of one byte: the responses are there and nobody takes them.
#[test]
fn who_does_not_take_its_responses_is_closed() {
    for window in [0, 1] {
        let attacked = Attacked::new("{body_timeout: 300ms, idle_timeout: 60s}");
        let mut raw = attacked.client(&[(4, window)]);
        let mut requests = Vec::new();
        for _ in 0..20 {
            requests.extend(raw.request("/long/3000000").1);
        }
        assert!(raw.send(&requests));
        wait_for("they are at the server", || (attacked.server.heads().len() == 20).then_some(()));
        raw.ends();
        attacked.goes_on();
    }
}

/// A response that is all there has left the server, whoever takes it.
#[test]
fn small_responses_that_nobody_takes_hold_no_connection_of_the_server() {
    let attacked = Attacked::before("{body_timeout: 60s}", 4);
    let mut raw = attacked.client(&[(4, 0)]);
    for n in 0..16 {
        let (stream, request) = raw.request("/");
        assert!(raw.send(&request));
        assert_eq!(raw.good(vec![stream]), 1, "request {n}");
        // Its body comes after its head.
        wait_for("it has ended", || (attacked.world.in_flight() == 0).then_some(()));
    }
    drop(raw);
    attacked.goes_on();
}

/// A large one holds a connection, until another request needs it.
#[test]
fn large_responses_that_nobody_takes_give_way() {
    let attacked = Attacked::before("{body_timeout: 60s}", 4);
    let mut raw = attacked.client(&[(4, 0)]);
    for _ in 0..4 {
        let (stream, request) = raw.request("/long/3000000");
        assert!(raw.send(&request));
        assert_eq!(raw.good(vec![stream]), 1);
    }
    wait_for("another is served", || attacked.client(&[]).served().then_some(()));
    drop(raw);
    attacked.goes_on();
}

/// Who takes a response slowly, but takes it, is served to the end.
#[test]
fn a_slow_client_gets_all_of_its_response() {
    let attacked = Attacked::new("{body_timeout: 400ms}");
    let mut raw = attacked.client(&[]);
    let (asked, request) = raw.request("/long/300000");
    assert!(raw.send(&request));
    let (mut taken, mut unseen) = (0, 0_u32);
    while let Some((kind, flags, stream, payload)) = raw.hear() {
        if kind != DATA {
            continue;
        }
        taken += payload.len();
        unseen += u32::try_from(payload.len()).unwrap();
        if flags & END_STREAM != 0 {
            break;
        }
        // Less than a window, a few times within the time-out.
        if unseen > 30_000 {
            std::thread::park_timeout(Duration::from_millis(100));
            let more = unseen.to_be_bytes();
            assert!(raw.send(&[frame(8, 0, 0, &more), frame(8, 0, stream, &more)].concat()));
            unseen = 0;
        }
    }
    assert_eq!((asked, taken), (1, 300_000));
    drop(raw);
    attacked.goes_on();
}

/// As many as may be say nothing, before TLS and inside it: they make room.
#[test]
fn silent_connections_make_room() {
    let attacked = Attacked::new("{connections: 16, idle_timeout: 60s}");
    let silent: Vec<TcpStream> =
        (0..10).map(|_| TcpStream::connect(attacked.world.front).unwrap()).collect();
    let idle: Vec<Raw> = (0..6).map(|_| attacked.client(&[])).collect();
    wait_for("all seats are taken", || (attacked.world.counts().connections == 16).then_some(()));
    wait_for("there is room", || {
        let _ = TcpStream::connect(attacked.world.front);
        (attacked.world.counts().connections < 14).then_some(())
    });
    assert!(attacked.client(&[]).served());
    drop((silent, idle));
    attacked.goes_on();
}

/// Bodies that are announced and never come, in both versions, many more than the server has connections.
#[test]
fn bodies_that_are_only_announced_hold_no_connection_of_the_server() {
    let attacked = Attacked::before("{}", 2);
    let mut raw = attacked.client(&[]);
    let announced: Vec<u8> = (0..100).flat_map(|_| raw.announces("/").1).collect();
    assert!(raw.send(&announced));
    // An empty part is no beginning.
    assert!(raw.send(&frame(DATA, 0, 1, &[])));
    assert!(raw.looked_at());
    assert_eq!(attacked.offered(), 0, "the gate is not asked");
    assert!(attacked.client(&[]).served(), "another is served meanwhile");
    assert_eq!((attacked.server.heads().len(), attacked.offered()), (1, 1));
    assert!(raw.send(&frame(DATA, END_STREAM, 1, b"x")));
    assert_eq!(raw.good(vec![1]), 1, "one that comes after all");
    drop(raw);
    attacked.goes_on();

    let server = Server::start();
    let keys = format!("upstream: {{servers: [{}], connections: 1}}", server.address);
    let world = World::new(free_port(), &keys);
    let mut announced = TcpStream::connect(world.front).unwrap();
    announced.write_all(b"POST / HTTP/1.1\r\nHost: shop\r\nContent-Length: 9\r\n\r\n").unwrap();
    wait_for("it is there", || (world.counts().connections == 1).then_some(()));
    assert_eq!(status(&get(world.front, "/")), 200);
    assert_eq!((server.heads().len(), world.gate.totals(0).unwrap().offered), (1, 1));
}

/// Who asks first is told to send, and does not: it is in flight, and as many as the server has connections may be.
#[test]
fn the_oldest_of_too_many_that_ask_whether_to_send_ends() {
    let server = Server::start();
    let keys = format!(
        "clients: {{body_timeout: 60s}}\n    upstream: {{servers: [{}], connections: 4}}",
        server.address
    );
    let world = World::new(free_port(), &keys);
    let ask = "POST /echo HTTP/1.1\r\nHost: shop\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\
               Connection: close\r\n\r\n";
    let mut asked: Vec<_> = (0..10)
        .map(|_| {
            let mut stream = TcpStream::connect(world.front).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(ask.as_bytes()).unwrap();
            let mut reader = BufReader::new(stream);
            assert_eq!(status(&common::head(&mut reader).unwrap()), 100);
            reader
        })
        .collect();
    for ended in &mut asked[..6] {
        assert_eq!(status(&common::head(ended).unwrap()), 408);
    }
    wait_for("the others are in flight", || (world.in_flight() == 4).then_some(()));
    let totals = world.gate.totals(0).unwrap();
    assert_eq!((totals.connections.lost, totals.connections.answered, totals.unseen), (0, 0, 6));
    for others in &mut asked[6..] {
        others.get_mut().write_all(b"body").unwrap();
        assert_eq!(status(&common::head(others).unwrap()), 200);
    }
    // One whose client leaves was at no server, either.
    let leaves = say_and_leave(world.front, ask);
    assert_eq!(status(&leaves), 100);
    wait_for("nothing is in flight", || (world.in_flight() == 0).then_some(()));
    let totals = world.gate.totals(0).unwrap();
    assert_eq!((totals.connections.lost, totals.connections.answered, totals.unseen), (0, 4, 7));
}

/// The head that it hears before it leaves.
fn say_and_leave(front: SocketAddr, text: &str) -> String {
    let mut stream = TcpStream::connect(front).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    common::head(&mut BufReader::new(stream)).unwrap()
}

/// The server has refused the body, whole, before it came: it stops, and gives way like others.
#[test]
fn a_body_that_stops_behind_its_response_gives_way() {
    let server = Server::start();
    let keys = format!(
        "clients: {{body_timeout: 60s}}\n    upstream: {{servers: [{}], connections: 1}}",
        server.address
    );
    let world = World::new(free_port(), &keys);
    let mut stream = TcpStream::connect(world.front).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"POST /refuse HTTP/1.1\r\nHost: shop\r\nContent-Length: 9\r\n\r\nx").unwrap();
    let mut reader = BufReader::new(stream);
    assert_eq!(status(&common::head(&mut reader).unwrap()), 413);
    wait_for("another is served", || (status(&get(world.front, "/")) == 200).then_some(()));
    drop(reader);
}

/// As many clients as may be announce bodies, in HTTP/1.1: they make room, like those who send no whole head. No
/// server had their requests.
#[test]
fn clients_that_only_announce_bodies_make_room() {
    for expect in ["", "Expect: 100-continue\r\n"] {
        let server = Server::start();
        let keys = format!(
            "clients: {{connections: 16, idle_timeout: 60s}}\n    upstream: {{servers: [{}]}}",
            server.address
        );
        let world = World::new(free_port(), &keys);
        let post = format!("POST / HTTP/1.1\r\nHost: shop\r\n{expect}Content-Length: 9\r\n\r\n");
        let announced: Vec<TcpStream> = (0..16)
            .map(|_| {
                let mut stream = TcpStream::connect(world.front).unwrap();
                stream.write_all(post.as_bytes()).unwrap();
                stream
            })
            .collect();
        wait_for("another is served", || {
            let response = get(world.front, "/");
            (!response.is_empty()).then(|| assert_eq!(status(&response), 200))
        });
        drop(announced);
        wait_for("nothing is in flight", || (world.in_flight() == 0).then_some(()));
        let totals = world.gate.totals(0).unwrap();
        assert_eq!((totals.connections.lost, totals.connections.answered), (0, 1), "{expect}");
    }
}

/// Each begins its body and stops: they hold all connections of the server until another one needs one.
#[test]
fn bodies_that_stop_give_way() {
    let attacked = Attacked::before("{}", 4);
    let mut raw = attacked.client(&[]);
    let mut streams = Vec::new();
    for _ in 0..4 {
        let (stream, mut begun) = raw.announces("/");
        begun.extend(frame(DATA, 0, stream, b"x"));
        assert!(raw.send(&begun));
        streams.push(stream);
    }
    let heads = || attacked.server.heads().len();
    wait_for("all are with the server", || (heads() == 4).then_some(()));
    let mut refused = 0;
    wait_for("another is served", || {
        let served = attacked.client(&[]).served();
        refused += u64::from(!served);
        served.then_some(())
    });
    assert_eq!((attacked.world.counts().full, attacked.world.counts().malformed), (refused, 1));
    let last: Vec<u8> =
        streams.iter().flat_map(|stream| frame(DATA, END_STREAM, *stream, b"y")).collect();
    assert!(raw.send(&last));
    assert_eq!(raw.good(streams), 3, "one has ended, and the others go on");
    drop(raw);
    attacked.goes_on();
}

/// Heads that come slowly (Slowloris), in the clear.
#[test]
fn beginnings_of_requests_make_room() {
    let server = Server::start();
    let keys = format!(
        "clients: {{connections: 16, idle_timeout: 60s}}\n    upstream: {{servers: [{}]}}",
        server.address
    );
    let world = World::new(free_port(), &keys);
    let begun: Vec<TcpStream> = (0..16)
        .map(|_| {
            let mut stream = TcpStream::connect(world.front).unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nHost: sh").unwrap();
            stream
        })
        .collect();
    wait_for("another is served", || {
        let response = get(world.front, "/");
        (!response.is_empty()).then(|| assert_eq!(status(&response), 200))
    });
    drop(begun);
}
