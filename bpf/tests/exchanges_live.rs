// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Exchanges of real clients and servers (OpenSSL, Node.js, Go, rustls): as many are seen as there are, each takes
//! as long as the server lets it wait, and handshakes, tickets and control frames are none of them.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod netns;
#[path = "peers/rustls.rs"]
mod rustls_peer;

use netns::{AttachMode, Net, Server, certificate, inside, plan, wait_for};
use rustls_peer::Talk;
use std::path::Path;
use std::process::{Command, Stdio};
use tidegate_bpf::Dataplane;
use tidegate_model::totals::{ServiceTotals, Totals};
use tidegate_policy::Action;

const ADDRESS: &str = "10.77.0.1:80";
/// What the server lets every request wait.
const DELAY_MS: f64 = 60.0;
/// Connections after which tickets are known, and those that are measured then.
const LEARN: u64 = 10;
const MEASURED: u64 = 4;
/// Requests of a connection.
const REQUESTS: u64 = 3;
/// How far clients are on a line, one way: what both sides say at once crosses.
const LINE_MS: u32 = 10;

/// A server of OpenSSL, by Python: keep-alive, a page after a pause. Arguments: key and certificate, the
/// largest version, a curve, session tickets, whether clients need a certificate.
const OPENSSL_SERVER: &str = r"
import socket, ssl, sys, threading, time
key, cert, version, curve, tickets, mutual = sys.argv[1:7]
c = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
c.load_cert_chain(cert, key)
c.maximum_version = getattr(ssl.TLSVersion, version)
if curve != '-': c.set_ecdh_curve(curve)
if version == 'TLSv1_3': c.num_tickets = int(tickets)
if mutual == 'yes':
    c.verify_mode = ssl.CERT_REQUIRED
    c.load_verify_locations(cert)
def serve(plain):
    try:
        with c.wrap_socket(plain, server_side=True) as tls:
            head = b''
            while True:
                got = tls.recv(4096)
                if not got: return
                head += got
                if head.endswith(b'\r\n\r\n'):
                    head = b''
                    time.sleep(0.06)
                    tls.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 700\r\n\r\n' + b'x' * 700)
    except OSError: pass
s = socket.create_server(('10.77.0.1', 80), backlog=64)
while True:
    threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
";

/// Its clients, one after the other. Arguments: connections, requests, whether sessions are resumed,
/// key and certificate, or none.
const OPENSSL_CLIENT: &str = r"
import socket, ssl, sys, time
connections, requests, resume, key, cert = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:6]
c = ssl.create_default_context()
c.check_hostname, c.verify_mode = False, ssl.CERT_NONE
if key != '-': c.load_cert_chain(cert, key)
session = None
for n in range(connections):
    plain = socket.create_connection(('10.77.0.1', 80), timeout=5)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    tls = c.wrap_socket(plain, server_hostname='any.example', session=session)
    for r in range(requests):
        tls.sendall(b'GET /page HTTP/1.1\r\nHost: any.example\r\nAccept: */*\r\n\r\n')
        got = b''
        while len(got) < 740: got += tls.recv(4096)
        time.sleep(0.005)
    if resume == 'yes': session = tls.session
    tls.close()
";

const NODE_SERVER: &str = r"
const fs = require('fs'), [key, cert] = process.argv.slice(1, 3).map(f => fs.readFileSync(f));
require('http2').createSecureServer({key, cert, allowHTTP1: true}, (request, response) =>
    setTimeout(() => response.end('x'.repeat(700)), 60)).listen(80, '10.77.0.1');
";

/// Arguments: connections, requests.
const NODE_CLIENT: &str = r"
const http2 = require('http2'), [connections, requests] = process.argv.slice(1, 3).map(Number);
const once = (emitter, name) => new Promise(done => emitter.once(name, done));
(async () => {
    for (let n = 0; n < connections; n++) {
        const session = http2.connect('https://10.77.0.1:80', {rejectUnauthorized: false});
        for (let r = 0; r < requests; r++) {
            const stream = session.request({':path': '/page'});
            stream.resume();
            await once(stream, 'end');
            await new Promise(done => setTimeout(done, 5));
        }
        session.close();
        await once(session, 'close');
    }
})();
";

fn client(net: &Net, words: &[&str]) {
    let words = [&["timeout", "20"], words].concat();
    let output = inside(&net.client, &words).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Lets some connections pass, and measures some more; `run` makes so many.
fn measure(about: &str, dataplane: &Dataplane, run: impl Fn(u64)) {
    measure_but(about, dataplane, 0, run);
}

/// The same, where so many requests of each connection cannot be seen.
fn measure_but(about: &str, dataplane: &Dataplane, unseen: u64, run: impl Fn(u64)) {
    let over = |totals: &ServiceTotals| totals.open == 0;
    let totals = || dataplane.totals(0).unwrap();
    run(LEARN);
    wait_for("the first connections are over", || over(&totals()));
    let before = totals();
    run(MEASURED);
    wait_for("the others are over", || over(&totals()));
    let after = totals();
    let (now, then) = (&after.connections, &before.connections);
    let exchanges = after.first_byte.count - before.first_byte.count;
    assert_eq!(exchanges, MEASURED * (REQUESTS - unseen), "{about}: exchanges; {now:?}");
    let unknown = after.unknown - before.unknown;
    assert!(unknown <= MEASURED * unseen, "{about}: {unknown} unknown");
    assert_eq!(now.asked - then.asked, MEASURED, "{about}");
    assert_eq!(now.answered - then.answered, MEASURED, "{about}");
    assert_eq!(now.ended_exchanges - then.ended_exchanges, exchanges, "{about}");
    assert_eq!((now.lost - then.lost, after.waiting, after.silent), (0, 0, 0), "{about}");
    let took = after.first_byte.sum_ns - before.first_byte.sum_ns;
    let mean_ms = took as f64 / exchanges as f64 / 1e6;
    // a handshake in it, and a machine that has other work
    assert!((DELAY_MS..DELAY_MS + 150.0).contains(&mean_ms), "{about}: {mean_ms} ms");
}

/// A pair of peers of OpenSSL: the words of [`OPENSSL_SERVER`], whether sessions are resumed.
struct Openssl {
    about: &'static str,
    version: &'static str,
    curve: &'static str,
    tickets: &'static str,
    mutual: bool,
    resume: &'static str,
}

impl Openssl {
    const fn new(about: &'static str, version: &'static str) -> Self {
        Self { about, version, curve: "-", tickets: "2", mutual: false, resume: "no" }
    }

    fn measure(&self, net: &Net, (key, cert): &(String, String)) {
        let mut words = vec!["python3", "-c", OPENSSL_SERVER, key, cert];
        let mutual = if self.mutual { "yes" } else { "no" };
        words.extend([self.version, self.curve, self.tickets, mutual]);
        let _server = Server::new(net, &words);
        let dataplane = dataplane(net, AttachMode::Xdp);
        let (key, cert) = if self.mutual { (&**key, &**cert) } else { ("-", "-") };
        measure(self.about, &dataplane, |connections| {
            let counts = [connections.to_string(), REQUESTS.to_string()];
            let words = ["python3", "-c", OPENSSL_CLIENT, &counts[0], &counts[1]];
            client(net, &[&words[..], &[self.resume, key, cert]].concat());
        });
    }
}

const TLS13: Openssl = Openssl::new("TLS 1.3", "TLSv1_3");
const TLS12: Openssl = Openssl::new("TLS 1.2", "TLSv1_2");
const OPENSSL: [Openssl; 9] = [
    TLS13,
    Openssl { about: "TLS 1.3, one ticket", tickets: "1", ..TLS13 },
    Openssl { about: "TLS 1.3 without tickets", tickets: "0", ..TLS13 },
    Openssl { about: "TLS 1.3 resumed", resume: "yes", ..TLS13 },
    Openssl { about: "TLS 1.3 after HelloRetryRequest", curve: "secp384r1", ..TLS13 },
    Openssl { about: "TLS 1.3 with client certificates", mutual: true, ..TLS13 },
    TLS12,
    Openssl { about: "TLS 1.2 resumed", resume: "yes", ..TLS12 },
    Openssl { about: "TLS 1.2 with client certificates", mutual: true, ..TLS12 },
];

fn dataplane(net: &Net, attach: AttachMode) -> Dataplane {
    Dataplane::start(&plan(vec![net.interface(attach)], Action::Drop)).unwrap()
}

#[test]
fn exchanges_of_openssl_are_seen_as_they_are() {
    let place = tempfile::tempdir().unwrap();
    let certificate = certificate(place.path());
    for peers in OPENSSL {
        peers.measure(&Net::new(), &certificate);
    }
}

#[test]
fn exchanges_of_openssl_over_a_line_are_seen_as_they_are() {
    let place = tempfile::tempdir().unwrap();
    let certificate = certificate(place.path());
    for peers in OPENSSL {
        peers.measure(&Net::far(LINE_MS), &certificate);
    }
}

#[test]
fn exchanges_of_http2_are_seen_as_they_are() {
    let place = tempfile::tempdir().unwrap();
    let (key, cert) = certificate(place.path());
    for net in [Net::new(), Net::far(LINE_MS)] {
        let _server = Server::new(&net, &["node", "-e", NODE_SERVER, &key, &cert]);
        measure("HTTP/2 of Node.js", &dataplane(&net, AttachMode::Tcx), |connections| {
            let counts = [connections.to_string(), REQUESTS.to_string()];
            client(&net, &["node", "-e", NODE_CLIENT, &counts[0], &counts[1]]);
        });
    }
}

/// Builds the peers of Go; `None` would be a test that proves nothing: `make setup` installs Go.
fn go_peer(place: &Path) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/exchange.go");
    // what was compiled of its library stays for the next run
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go");
    let peer = place.join("exchange");
    let go = std::env::var("TIDEGATE_GO").unwrap_or_else(|_| "go".into());
    let built = Command::new(&go)
        .args(["build", "-o"])
        .arg(&peer)
        .arg(&source)
        .env("GOCACHE", &cache)
        .env("GOPATH", cache.join("path"))
        .envs([("CGO_ENABLED", "0"), ("GOTOOLCHAIN", "local"), ("GO111MODULE", "off")])
        .output()
        .unwrap_or_else(|error| panic!("{go} (`make setup` installs it): {error}"));
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    peer.display().to_string()
}

#[test]
fn exchanges_of_go_are_seen_as_they_are() {
    let place = tempfile::tempdir().unwrap();
    let (key, cert) = certificate(place.path());
    let peer = go_peer(place.path());
    for (about, major) in [("HTTP/1.1 of Go", "1"), ("HTTP/2 of Go", "2")] {
        for net in [Net::new(), Net::far(LINE_MS)] {
            let _server = Server::new(&net, &[&peer, "server", &key, &cert]);
            measure(about, &dataplane(&net, AttachMode::Xdp), |connections| {
                let counts = [connections.to_string(), REQUESTS.to_string()];
                client(&net, &[&peer, "client", major, &counts[0], &counts[1]]);
            });
        }
    }
}

#[test]
fn exchanges_of_rustls_are_seen_as_they_are() {
    let place = tempfile::tempdir().unwrap();
    for (about, talk, unseen) in [
        ("HTTP/1.1 of rustls", Talk::Http1, 0),
        ("HTTP/2 in rustls", Talk::Http2, 0),
        // early data look like a part of the handshake
        ("early data of rustls", Talk::Early, 1),
    ] {
        for net in [Net::new(), Net::far(LINE_MS)] {
            rustls_peer::Server::start(&net, place.path(), talk);
            let client = rustls_peer::Client::new(talk);
            measure_but(about, &dataplane(&net, AttachMode::Xdp), unseen, |connections| {
                client.run(&net, connections, REQUESTS);
            });
        }
    }
}
