// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests that no rule can evaluate, with real sockets: they take from a bucket of their own, others
//! do not notice, and an upload that is refused gets one 503, within a small MSS.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;
use support::netns::{AttachMode, Net, plan, within};
use tidegate_bpf::testing::plans;
use tidegate_bpf::{BucketParams, Dataplane, RuleCount};
use tidegate_config::{RequestsConfig, RetryAfter};
use tidegate_policy::Action;
use tidegate_units::{Nanos, Rate};

const ADDRESS: &str = "10.77.0.1:80";
const LIMIT: Duration = Duration::from_secs(5);
/// Places of the rules.
const PLAIN: usize = 0;
const EVADERS: usize = 1;

/// A rule for all requests without a limit, and one for what it cannot evaluate.
fn start(net: &Net, told: RequestsConfig) -> Dataplane {
    let rules = vec![plans::rule("/", Some("all")), plans::unevaluable_rule(Some("unevaluable"))];
    let RequestsConfig { buckets, rules, .. } = plans::requests(&["all", "unevaluable"], rules);
    let mut plan = plan(vec![net.interface(AttachMode::Tcx)], Action::Drop);
    plan.config.services[0].requests = Some(RequestsConfig { buckets, rules, ..told });
    Dataplane::start(&plan).unwrap()
}

/// So many unevaluable requests from now on.
fn allow(dataplane: &mut Dataplane, burst: u32) {
    let rate = Some(Rate::per_second(0.001));
    let limit = BucketParams::tokens((0, 1), rate, burst, [0; 3]).unwrap();
    dataplane.set_limits(&[], &[limit], 2).unwrap();
    dataplane.heartbeat().unwrap();
}

fn count(dataplane: &Dataplane, rule: usize) -> RuleCount {
    dataplane.rule_counts().unwrap()[rule]
}

/// A server that answers every connection when its client has ended its side.
fn serve(net: &Net) {
    let listener = within(&net.server, || TcpListener::bind(ADDRESS).unwrap());
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            std::thread::spawn(move || {
                stream.set_read_timeout(Some(LIMIT)).unwrap();
                if stream.read_to_end(&mut Vec::new()).is_ok() {
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
                }
            });
        }
    });
}

fn connect(net: &Net) -> TcpStream {
    let address: SocketAddr = ADDRESS.parse().unwrap();
    let client = within(&net.client, || TcpStream::connect_timeout(&address, LIMIT).unwrap());
    client.set_read_timeout(Some(LIMIT)).unwrap();
    client.set_nodelay(true).unwrap();
    client
}

/// Sends these pieces and ends its side; the status of the answer.
fn ask(net: &Net, pieces: &[&str]) -> String {
    let mut client = connect(net);
    for piece in pieces {
        // Refused already: then the answer is on its way.
        if client.write_all(piece.as_bytes()).is_err() {
            break;
        }
        std::thread::park_timeout(Duration::from_millis(3));
    }
    let _ = client.shutdown(std::net::Shutdown::Write);
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap_or_default().to_owned()
}

const EVASIONS: [&[&str]; 6] = [
    &["GET /a%2Fb HTTP/1.1\r\nHost: a\r\n\r\n"],
    &["GET /a;b/../c HTTP/1.1\r\nHost: a\r\n\r\n"],
    &["GET /a", " HTTP/1.1\r\nHost: a\r\n\r\n"],
    &["GET /a HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n"],
    &["GET /a\r\n"],
    &["GET /a HTTP/1.1\nHost: a\n\n"],
];
const HONEST: &[&str] = &["GET //x/../a HTTP/1.1\r\nHost: a\r\n\r\n"];

#[test]
fn evading_costs_the_evader_and_nobody_else() {
    let net = Net::new();
    serve(&net);
    let mut dataplane = start(&net, RequestsConfig::default());
    // no limit: nothing that is merely odd is refused
    for pieces in EVASIONS {
        assert_eq!(ask(&net, pieces), "200", "{pieces:?}");
    }
    assert_eq!(count(&dataplane, EVADERS).admitted, EVASIONS.len() as u64);
    allow(&mut dataplane, 1);
    assert_eq!(ask(&net, EVASIONS[2]), "200", "the one token");
    for pieces in EVASIONS {
        dataplane.heartbeat().unwrap();
        assert_eq!(ask(&net, pieces), "503", "{pieces:?}");
        assert_eq!(ask(&net, HONEST), "200");
    }
    assert_eq!(count(&dataplane, EVADERS).refused, EVASIONS.len() as u64);
    assert_eq!(count(&dataplane, PLAIN).refused, 0);
    assert_eq!(count(&dataplane, PLAIN).admitted, EVASIONS.len() as u64);
}

#[test]
fn an_upload_that_is_refused_gets_one_503_within_a_small_mss() {
    let net = Net::new();
    // What the client says in its SYN: the least that a host must take.
    let client = net.client.display();
    support::netns::sh(&format!(
        "nsenter --net={client} ip route replace 10.77.0.0/24 dev c0 advmss 536"
    ));
    serve(&net);
    let retry_after = RetryAfter { min: Nanos::from_secs(2), max: Nanos::from_secs(2) };
    let response_body = "x".repeat(380);
    let mut dataplane =
        start(&net, RequestsConfig { response_body, retry_after, ..RequestsConfig::default() });
    allow(&mut dataplane, 1);
    assert_eq!(ask(&net, EVASIONS[0]), "200", "the one token");
    let mut client = connect(&net);
    let body = 300_000;
    let request = format!("POST /a%2Fb HTTP/1.1\r\nHost: a\r\nContent-Length: {body}\r\n\r\n");
    let mut sent = request.into_bytes();
    sent.extend(vec![b'x'; body]);
    let _ = client.write_all(&sent);
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    let text = String::from_utf8(answer).unwrap();
    assert!(text.starts_with("HTTP/1.1 503 ") && text.ends_with(&"x".repeat(380)), "{text}");
    assert!(text.len() <= 524, "{} bytes", text.len());
    let count = count(&dataplane, EVADERS);
    assert_eq!((count.refused, count.failed), (1, 0), "{count:?}");
    // 560 segments followed the first; a repetition or two is what a slow machine may need
    assert!(count.repeated <= 2, "{count:?}");
}
