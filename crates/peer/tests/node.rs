// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hosts that report to each other over loopback, with real certificates.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;
#[path = "../../gate/tests/port/mod.rs"]
mod port;

use common::{Authority, id, wait_for};
use port::free_port;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidegate_model::remote::{Hits, RemoteLimit, Restriction, Unit};
use tidegate_model::signals::{AcceptQueue, Reading, Signals};
use tidegate_model::snapshot::PeerState;
use tidegate_peer::frame::{Frame, Refused, VERSION, Welcome};
use tidegate_peer::limit::HitsMessage;
use tidegate_peer::node::{Node, NodeConfig, Outgoing, OutgoingLimit, Plain, Target};
use tidegate_peer::session::{Heard, Sender};
use tidegate_peer::tls::{ALPN, Credentials, Files, identity};
use tidegate_peer::{Code, DelegationFiles, Grant, Refusal, Report};
use tidegate_units::{Clock, MonotonicClock, Nanos, Rate};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

fn node(config: NodeConfig) -> Node {
    let node = Node::start(Arc::new(MonotonicClock)).unwrap();
    node.follow(Some(config)).unwrap();
    node
}

fn front_config(files: Files, address: SocketAddr) -> NodeConfig {
    let grant = |name: &str| Grant {
        name: name.into(),
        identity: id(name),
        services: vec!["shop".into()],
        limits: vec!["192.0.2.0/24:80".parse().unwrap()],
        when_congested: Vec::new(),
        targets: 0,
    };
    let grants = vec![grant("b1"), grant("b2")];
    let (targets, delegation) = (Vec::new(), DelegationFiles::default());
    let routers = Vec::new();
    NodeConfig { files, listen: Some(address), grants, targets, delegation, routers, bus: None }
}

fn back_config(files: Files, address: SocketAddr) -> NodeConfig {
    let target = Target {
        name: "front".into(),
        address,
        identity: id("front"),
        services: vec!["shop".into()],
        validity: Nanos::from_secs(2),
    };
    let (grants, delegation) = (Vec::new(), DelegationFiles::default());
    let (targets, routers) = (vec![target], Vec::new());
    NodeConfig { files, listen: None, grants, targets, delegation, routers, bus: None }
}

fn told(length: u64) -> Vec<Outgoing> {
    let mut signals = Signals::default();
    let queue = AcceptQueue { length, limit: 128 };
    signals.queue.accept = Some(Reading::fresh(queue));
    vec![Outgoing { service: "shop".into(), signals, completed: Some(1) }]
}

fn state(node: &Node, name: &str) -> PeerState {
    let states = node.states(MonotonicClock.now());
    states.into_iter().find(|state| state.name == name).unwrap_or_default()
}

fn refused(state: &PeerState, reason: &str) -> u64 {
    state.refused.iter().find(|r| r.reason == reason).map_or(0, |r| r.count)
}

/// Tells this until the front-end knows it.
fn until_known(front: &Node, back: &Node, peer: &str, length: u64) {
    wait_for("the report arrives", || {
        back.tell(told(length));
        let known = front.backend(MonotonicClock.now(), peer, "shop");
        (known.queue.accept.map(|q| q.value.length) == Some(length)).then_some(())
    });
}

#[test]
fn reports_arrive_and_end_when_their_sender_does() {
    let authority = Authority::new();
    let address = free_port();
    let front = node(front_config(authority.host("front"), address));
    let back = node(back_config(authority.host("b1"), address));
    until_known(&front, &back, "b1", 7);
    until_known(&front, &back, "b1", 8);
    let (here, there) = (state(&front, "b1"), state(&back, "front"));
    assert!(here.up && there.up);
    assert_eq!((here.role.as_str(), there.role.as_str()), ("reports", "receives"));
    assert_eq!(here.epoch, 1);
    assert!(here.reports >= 2 && there.reports > 0 && here.sequence >= 2, "{here:?} {there:?}");
    assert!(here.refused.is_empty(), "{here:?}");
    assert!(!front.backend(MonotonicClock.now(), "b2", "shop").valid);
    drop(back);
    let b1 = wait_for("the session is over", || Some(state(&front, "b1")).filter(|s| !s.up));
    assert!(b1.age.is_some());
    assert!(!front.backend(MonotonicClock.now(), "b1", "shop").valid, "it took its leave");
    let again = node(back_config(authority.host("b1"), address));
    until_known(&front, &again, "b1", 9);
    assert_eq!(state(&front, "b1").epoch, 2);
}

#[test]
fn a_front_end_that_comes_back_is_found_again() {
    let authority = Authority::new();
    let address = free_port();
    let back = node(back_config(authority.host("b1"), address));
    wait_for("nobody is there", || {
        Some(state(&back, "front")).filter(|s| refused(s, "lost") > 0 && !s.problem.is_empty())
    });
    for round in 0..2 {
        let front = node(front_config(authority.host("front"), address));
        until_known(&front, &back, "b1", 3 + round);
    }
}

#[test]
fn a_certificate_of_another_authority_is_no_certificate() {
    let (authority, other) = (Authority::new(), Authority::new());
    let address = free_port();
    let front = node(front_config(authority.host("front"), address));
    let stolen = Files { authority: authority.authority(), ..other.host("b1") };
    let back = node(back_config(stolen, address));
    let unknown = wait_for("refused", || {
        back.tell(told(1));
        Some(state(&front, "unknown")).filter(|s| refused(s, "untrusted") > 0)
    });
    assert!(unknown.problem.contains("127.0.0.1"), "{}", unknown.problem);
    wait_for("the sender is told", || {
        Some(state(&back, "front")).filter(|s| !s.problem.is_empty())
    });
    assert_eq!(state(&front, "b1").reports, 0);
}

#[test]
fn names_that_are_no_identity_or_another_are_refused_on_both_sides() {
    let authority = Authority::new();
    let address = free_port();
    let named = authority.sign("named", &["spiffe://example.org/front"], &["localhost"]);
    let front = node(front_config(named, address));
    wait_for("it listens", || TcpStream::connect(address).ok());
    let two = ["spiffe://example.org/b1", "spiffe://example.org/b2"];
    for (file, uris, dns) in [
        ("dns", &[][..], &["b1"][..]),
        ("two", &two, &[]),
        ("http", &["https://example.org/b1"], &[]),
    ] {
        let files = authority.sign(file, uris, dns);
        let error = Credentials::load(&files).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(file) && error.contains("names"), "{error}");
        // Such a host cannot even be configured, so a client of another kind shows it.
        let before = refused(&state(&front, "unknown"), "identity");
        let bye = foreign(&files, address);
        assert!(
            matches!(bye, Frame::Bye(bye) if bye.why.refusal() == Refusal::Identity),
            "{bye:?}"
        );
        assert_eq!(refused(&state(&front, "unknown"), "identity"), before + 1, "{file}");
    }
    let stranger = authority.sign("stranger", &["spiffe://example.org/b1x"], &[]);
    let back = node(back_config(stranger, address));
    let there = wait_for("the sender is told", || {
        Some(state(&back, "front")).filter(|s| refused(s, "unknown-peer") > 0)
    });
    assert!(there.problem.contains("its identity is not"), "{}", there.problem);
    assert!(refused(&state(&front, "unknown"), "unknown-peer") > 0);
    let elsewhere = free_port();
    let _wrong = node(front_config(authority.host("other"), elsewhere));
    let back = node(back_config(authority.host("b1"), elsewhere));
    let there = wait_for("the sender refuses", || {
        Some(state(&back, "front")).filter(|s| s.problem.contains("expected is"))
    });
    assert!(there.problem.contains("spiffe://example.org/other"), "{}", there.problem);
    assert!(!there.up && there.reports == 0);
}

/// What a client that knows nothing of identities is told first.
fn foreign(files: &Files, address: SocketAddr) -> Frame {
    let certificates =
        |path| CertificateDer::pem_file_iter(path).unwrap().collect::<Result<Vec<_>, _>>().unwrap();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates(&files.authority));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(
            certificates(&files.certificate),
            PrivateKeyDer::from_pem_file(&files.key).unwrap(),
        )
        .unwrap();
    config.alpn_protocols = names(&[VERSION]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = connector.connect(name, stream).await.unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        Frame::decode(VERSION, &bytes).unwrap().unwrap().0
    })
}

#[test]
fn limits_go_up_and_hit_counters_come_back() {
    let authority = Authority::new();
    let address = free_port();
    let front = node(front_config(authority.host("front"), address));
    let back = node(back_config(authority.host("b1"), address));
    let limit = |scope: &str| RemoteLimit {
        scope: scope.parse().unwrap(),
        restriction: Restriction::Rate(Rate::per_second(40.0)),
        validity: Nanos::from_millis(500),
        sequence: 0,
        priority: 0,
    };
    let to = |target: &str, limit| OutgoingLimit {
        target: target.into(),
        limit,
        answers: None,
        plain: Plain::Same,
    };
    let limits = || {
        let good = to("front", limit("192.0.2.9:80"));
        vec![good, to("elsewhere", limit("192.0.2.8:80")), to("front", limit("192.0.3.9:80"))]
    };
    let (received, sessions) = wait_for("the limit arrives", || {
        back.limit(limits());
        let (mut limits, sessions, _) = front.take_limits();
        Some((limits.pop()?.received().clone(), sessions))
    });
    assert_eq!((received.peer.as_str(), received.epoch), ("b1", 1));
    assert_eq!(received.limit.scope, limit("192.0.2.9:80").scope, "and no other");
    assert_eq!(sessions[0], ("b1".into(), Some((received.session, 1))));
    let refused_there = wait_for("what is not its own is refused, and told", || {
        Some(state(&back, "front")).filter(|s| refused(s, "not-granted") > 0)
    });
    assert!(refused_there.problem.contains("192.0.3.9:80"), "{}", refused_there.problem);
    assert!(refused_there.limits >= 2 && state(&front, "b1").limits > 0);
    let hits = Hits {
        scope: received.limit.scope,
        unit: Unit::Connections,
        span: Nanos::from_millis(200),
        offered: 7,
        refused: 2,
        probe: false,
    };
    let heard = wait_for("hit counters come back", || {
        front.tell_hits(vec![("b1".into(), hits.clone()), ("b2".into(), hits.clone())]);
        back.hits().pop()
    });
    // What is told again before it was sent goes in one message: its counters add up, and its span.
    let times = (heard.1.offered / hits.offered).max(1);
    let all = Hits {
        span: Nanos::from_millis(200 * times),
        offered: 7 * times,
        refused: 2 * times,
        ..hits
    };
    assert_eq!(heard, ("front".into(), all));
}

/// These versions of the protocol, as they are offered.
fn names(versions: &[u8]) -> Vec<Vec<u8>> {
    versions.iter().map(|version| format!("{ALPN}{version}").into_bytes()).collect()
}

/// The next frame of a stream.
async fn next(stream: &mut (impl AsyncRead + Unpin), version: u8) -> Frame {
    let mut bytes = Vec::new();
    loop {
        bytes.push(stream.read_u8().await.unwrap());
        if let Some((frame, _)) = Frame::decode(version, &bytes).unwrap() {
            return frame;
        }
    }
}

/// A peer that offers these versions, newest first, speaks TLS and then whatever it likes.
async fn caller(
    files: &Files,
    address: SocketAddr,
    versions: &[u8],
) -> io::Result<TlsStream<tokio::net::TcpStream>> {
    let credentials = Credentials::load(files).unwrap();
    let mut config = (*credentials.client(&id("front")).unwrap()).clone();
    config.alpn_protocols = names(versions);
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let name = ServerName::IpAddress(address.ip().into());
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// One that begins as it should, in the session's version.
async fn begun(
    files: &Files,
    address: SocketAddr,
    versions: &[u8],
    spoken: u8,
) -> (TlsStream<tokio::net::TcpStream>, Sender) {
    let mut stream = caller(files, address, versions).await.unwrap();
    let mut sender = Sender::new(vec!["shop".into()]);
    let welcome = next(&mut stream, spoken).await;
    let Heard::Up(hello) = sender.receive(welcome) else { panic!("no welcome") };
    stream.write_all(&hello.encode(spoken).unwrap()).await.unwrap();
    (stream, sender)
}

/// A peer of the newest version.
async fn hostile(files: &Files, address: SocketAddr) -> (TlsStream<tokio::net::TcpStream>, Sender) {
    begun(files, address, &[VERSION], VERSION).await
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A message of a kind that nobody knows yet.
fn unheard_of(version: u8) -> [u8; 7] {
    [0, 3, version, 99, 1, 2, 3]
}

/// One back-end is older and the other newer than the front-end: both report.
#[test]
fn older_and_newer_senders_are_understood() {
    let authority = Authority::new();
    let address = free_port();
    let front = node(front_config(authority.host("front"), address));
    wait_for("it listens", || TcpStream::connect(address).ok());
    let report = || Report { validity_ms: 9_000, service: "shop".into(), ..Report::default() };
    runtime().block_on(async {
        let (mut old, mut sender) = begun(&authority.host("b1"), address, &[1], 1).await;
        let frame = sender.report(Nanos::ZERO, report()).unwrap().encode(1).unwrap();
        old.write_all(&frame).await.unwrap();
        let newer = [VERSION + 2, VERSION + 1, VERSION];
        let (mut new, mut sender) = begun(&authority.host("b2"), address, &newer, VERSION).await;
        let frame = sender.report(Nanos::ZERO, report()).unwrap().encode(VERSION).unwrap();
        new.write_all(&[unheard_of(VERSION).as_slice(), &frame].concat()).await.unwrap();
        for (name, version, skipped) in [("b1", 1, 0), ("b2", VERSION, 1)] {
            let known = || front.backend(MonotonicClock.now(), name, "shop").valid.then_some(());
            wait_for("it reports", known);
            let peer = state(&front, name);
            assert_eq!((peer.up, peer.version, peer.epoch), (true, version, 1), "{peer:?}");
            assert_eq!(refused(&peer, "unknown-kind"), skipped, "{peer:?}");
        }
    });
}

/// A front-end that offers these versions and speaks one of them, for one session; true once it
/// heard a report after what nobody knows.
async fn front_of(files: &Files, address: SocketAddr, versions: &[u8], spoken: u8) -> Frame {
    let credentials = Credentials::load(files).unwrap();
    let mut config = (*credentials.server()).clone();
    config.alpn_protocols = names(versions);
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let mut stream = acceptor.accept(stream).await.unwrap();
    let welcome = Frame::Welcome(Welcome { session: 5, epoch: 1 }).encode(spoken).unwrap();
    stream.write_all(&welcome).await.unwrap();
    assert!(matches!(next(&mut stream, spoken).await, Frame::Hello(_)));
    if spoken > 1 {
        let why = Code(1_000_000);
        let refused = Frame::Refused(Refused { sequence: 0, service: "shop".into(), why });
        let refused = refused.encode(spoken).unwrap();
        stream.write_all(&[unheard_of(spoken).as_slice(), &refused].concat()).await.unwrap();
    }
    // The first may have been on its way before.
    next(&mut stream, spoken).await;
    next(&mut stream, spoken).await
}

#[test]
fn older_and_newer_receivers_are_understood() {
    for (versions, spoken) in [(&[1][..], 1), (&[VERSION + 1, VERSION], VERSION)] {
        let authority = Authority::new();
        let address = free_port();
        let back = Arc::new(node(back_config(authority.host("b1"), address)));
        let tells = Arc::clone(&back);
        let telling = std::thread::spawn(move || {
            while Arc::strong_count(&tells) > 1 {
                tells.tell(told(7));
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let files = authority.host("front");
        runtime().block_on(async {
            let heard = front_of(&files, address, versions, spoken).await;
            let Frame::Report(report) = heard else { panic!("{heard:?}") };
            assert_eq!((report.session, report.levels.accept.unwrap().value), (5, (7, 128)));
        });
        let there = state(&back, "front");
        assert_eq!(there.version, spoken, "{there:?}");
        let expected = u64::from(spoken > 1);
        for reason in ["unknown-kind", "other"] {
            assert_eq!(refused(&there, reason), expected, "{reason}: {there:?}");
        }
        drop(back);
        telling.join().unwrap();
    }
}

/// A front-end that says hit counters of one scope after the other until its peer ends the session.
async fn flooding(files: &Files, address: SocketAddr) {
    let config = Credentials::load(files).unwrap().server();
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    let mut stream = tokio_rustls::TlsAcceptor::from(config).accept(stream).await.unwrap();
    let welcome = Frame::Welcome(Welcome { session: 5, epoch: 1 }).encode(VERSION).unwrap();
    stream.write_all(&welcome).await.unwrap();
    assert!(matches!(next(&mut stream, VERSION).await, Frame::Hello(_)));
    for n in 0_u64.. {
        let scope = format!("s{}", n % 5_000);
        let hits =
            HitsMessage { session: 5, scope, span_ms: 200, offered: n, ..HitsMessage::default() };
        let frame = Frame::Hits(Unit::Connections, hits).encode(VERSION).unwrap();
        if stream.write_all(&frame).await.is_err() || stream.flush().await.is_err() {
            return;
        }
    }
}

#[test]
fn a_receiver_that_floods_loses_its_session_and_hides_no_other() {
    let authority = Authority::new();
    let (address, elsewhere) = (free_port(), free_port());
    let calm = node(front_config(authority.host("calm"), elsewhere));
    let files = authority.host("front");
    let flood = std::thread::spawn(move || runtime().block_on(flooding(&files, address)));
    let mut config = back_config(authority.host("b1"), address);
    let front = config.targets[0].clone();
    let (name, identity) = ("calm".into(), id("calm"));
    config.targets.push(Target { name, identity, address: elsewhere, ..front });
    let back = node(config);
    wait_for("the flood ends its session", || {
        (refused(&state(&back, "front"), "quota") > 1_000).then_some(())
    });
    flood.join().unwrap();
    let hits = Hits {
        scope: "shop".parse().unwrap(),
        unit: Unit::Connections,
        span: Nanos::from_millis(200),
        offered: 7,
        refused: 2,
        probe: false,
    };
    let heard = wait_for("the other one is heard", || {
        calm.tell_hits(vec![("b1".into(), hits.clone())]);
        let heard = back.hits();
        let of = |name: &str| heard.iter().filter(|(target, _)| target == name).count();
        (of("calm") > 0).then_some(heard.len() - of("calm"))
    });
    assert!(heard <= 3 * 64, "{heard} of the one that floods");
}

/// What a front-end of this version hears of limits, so many of them.
async fn limits_heard(
    files: &Files,
    address: SocketAddr,
    version: u8,
    count: usize,
) -> Vec<RemoteLimit> {
    let credentials = Credentials::load(files).unwrap();
    let mut config = (*credentials.server()).clone();
    config.alpn_protocols = names(&[version]);
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let mut stream = acceptor.accept(stream).await.unwrap();
    let welcome = Frame::Welcome(Welcome { session: 5, epoch: 1 }).encode(version).unwrap();
    stream.write_all(&welcome).await.unwrap();
    let mut heard = Vec::new();
    while heard.len() < count {
        if let Frame::Limit(message) = next(&mut stream, version).await {
            heard.push(message.limit(version).unwrap());
        }
    }
    heard
}

/// A host of version 2 is told a rate of what it limits, for all priorities, and nothing of request buckets.
#[test]
fn an_older_receiver_is_told_rates() {
    let rate = Restriction::Rate(Rate::per_second(40.0));
    let loss = Restriction::RequestLoss(tidegate_units::Share::new(0.25));
    let gap = Restriction::RequestGap(Nanos::from_millis(25));
    let limit = |scope: &str, restriction, priority| RemoteLimit {
        scope: scope.parse().unwrap(),
        restriction,
        validity: Nanos::from_millis(500),
        sequence: 0,
        priority,
    };
    let to = |limit, plain| OutgoingLimit { target: "front".into(), limit, answers: None, plain };
    for (version, expected) in [
        (2, vec![("shop", rate, 0), ("192.0.2.9:80", rate, 0)]),
        (
            3,
            vec![
                ("192.0.2.8:80", loss, 0),
                ("shop", loss, 3),
                ("shop/search", gap, 0),
                ("192.0.2.9:80", rate, 0),
            ],
        ),
    ] {
        let authority = Authority::new();
        let address = free_port();
        let back = Arc::new(node(back_config(authority.host("b1"), address)));
        let tells = Arc::clone(&back);
        let limits = vec![
            to(limit("192.0.2.8:80", loss, 0), Plain::Nothing),
            to(limit("shop", loss, 3), Plain::Rate(Rate::per_second(40.0))),
            to(limit("shop/search", gap, 0), Plain::Rate(Rate::per_second(40.0))),
            to(limit("192.0.2.9:80", rate, 0), Plain::Same),
        ];
        let telling = std::thread::spawn(move || {
            while Arc::strong_count(&tells) > 1 {
                tells.limit(limits.clone());
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let files = authority.host("front");
        let count = expected.len();
        let heard = runtime().block_on(limits_heard(&files, address, version, count));
        let heard: Vec<_> =
            heard.iter().map(|of| (of.scope.to_string(), of.restriction, of.priority)).collect();
        let expected: Vec<_> =
            expected.into_iter().map(|(scope, of, from)| (scope.to_owned(), of, from)).collect();
        assert_eq!(heard, expected, "version {version}");
        drop(back);
        telling.join().unwrap();
    }
}

#[test]
fn without_a_common_version_there_is_no_session_and_both_sides_say_why() {
    let authority = Authority::new();
    let address = free_port();
    let front = node(front_config(authority.host("front"), address));
    wait_for("it listens", || TcpStream::connect(address).ok());
    let files = authority.host("b1");
    let elsewhere = free_port();
    let back = node(back_config(authority.host("b1"), elsewhere));
    runtime().block_on(async {
        assert!(caller(&files, address, &[VERSION + 1]).await.is_err());
        let credentials = Credentials::load(&authority.host("front")).unwrap();
        let mut config = (*credentials.server()).clone();
        config.alpn_protocols = names(&[VERSION + 1]);
        let listener = tokio::net::TcpListener::bind(elsewhere).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        assert!(acceptor.accept(stream).await.is_err());
    });
    let unknown = wait_for("it is counted", || {
        Some(state(&front, "unknown")).filter(|state| refused(state, "version") == 1)
    });
    assert!(unknown.problem.contains("this host speaks versions 1 to 3"), "{}", unknown.problem);
    let there = wait_for("the sender is told", || {
        Some(state(&back, "front")).filter(|state| refused(state, "version") > 0)
    });
    assert!(there.problem.contains("this host speaks versions 1 to 3"), "{}", there.problem);
}

#[test]
fn what_one_peer_does_wrong_concerns_nobody_else() {
    let authority = Authority::new();
    let address = free_port();
    let front = node(front_config(authority.host("front"), address));
    wait_for("it listens", || TcpStream::connect(address).ok())
        .write_all(b"GET / HTTP/1.1\r\n\r\n")
        .unwrap();
    wait_for("plain text is refused", || {
        (refused(&state(&front, "unknown"), "untrusted") > 0).then_some(())
    });
    let good = node(back_config(authority.host("b2"), address));
    until_known(&front, &good, "b2", 5);
    let epoch = state(&front, "b2").epoch;
    let files = authority.host("b1");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (mut stream, mut sender) = hostile(&files, address).await;
        let report = || Report { validity_ms: 500, service: "shop".into(), ..Report::default() };
        let frame = sender.report(Nanos::ZERO, report()).unwrap().encode(VERSION).unwrap();
        // The same frame for ever: stale, then above the quota, then the end.
        while stream.write_all(&frame).await.is_ok() && stream.flush().await.is_ok() {}
        let (mut stream, _) = hostile(&files, address).await;
        stream.write_all(&[0, 9, VERSION, 3, 1, 2, 3, 4, 5, 6, 7, 8, 9]).await.unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
        assert!(matches!(Frame::decode(VERSION, &rest), Ok(Some((Frame::Bye(_), _)))), "{rest:?}");
    });
    let b1 = wait_for("its sessions are over", || Some(state(&front, "b1")).filter(|s| !s.up));
    for reason in ["stale", "quota", "malformed"] {
        assert!(refused(&b1, reason) > 0, "{reason}: {b1:?}");
    }
    assert_eq!(b1.reports, 1);
    until_known(&front, &good, "b2", 6);
    assert_eq!(state(&front, "b2").epoch, epoch, "the other session never ended");
}

/// Connects from one address of loopback after the other, and says nothing.
async fn strangers(address: SocketAddr, over: &AtomicBool) {
    let mut open = VecDeque::new();
    for n in 0_u32.. {
        if over.load(Ordering::Relaxed) {
            return;
        }
        let [.., high, low] = n.to_be_bytes();
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::new(127, 9, high, low), 0).into()).unwrap();
        open.extend(socket.connect(address).await.ok());
        if open.len() > 256 {
            open.pop_front();
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn silent_strangers_do_not_keep_a_known_peer_out() {
    let authority = Authority::new();
    let address = free_port();
    let front = node(front_config(authority.host("front"), address));
    let back = node(back_config(authority.host("b1"), address));
    until_known(&front, &back, "b1", 1);
    let over = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&over);
    let many = std::thread::spawn(move || runtime().block_on(strangers(address, &told)));
    wait_for("most of them are refused", || {
        (refused(&state(&front, "unknown"), "busy") > 500).then_some(())
    });
    drop(back);
    let again = node(back_config(authority.host("b1"), address));
    until_known(&front, &again, "b1", 2);
    over.store(true, Ordering::Relaxed);
    many.join().unwrap();
}

#[test]
fn files_that_cannot_be_used_change_nothing_and_are_named() {
    let authority = Authority::new();
    let address = free_port();
    let good = authority.host("front");
    let front = node(front_config(good.clone(), address));
    let back = node(back_config(authority.host("b1"), address));
    until_known(&front, &back, "b1", 1);
    let path = |name: &str| authority.dir().join(name);
    std::fs::write(path("empty"), "").unwrap();
    std::fs::write(path("garbage"), "-----BEGIN CERTIFICATE-----\n!\n").unwrap();
    let other = authority.host("b2");
    let bad = [
        Files { certificate: path("missing"), ..good.clone() },
        Files { certificate: path("empty"), ..good.clone() },
        Files { authority: path("garbage"), ..good.clone() },
        Files { key: good.certificate.clone(), ..good.clone() },
        Files { key: other.key, ..good.clone() },
    ];
    for files in bad {
        let wrong = [&files.certificate, &files.key, &files.authority]
            .into_iter()
            .zip([&good.certificate, &good.key, &good.authority])
            .find_map(|(file, good)| (file != good).then(|| file.display().to_string()))
            .unwrap();
        let error = front.follow(Some(front_config(files, address))).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{wrong}: ")), "{error}");
    }
    let epoch = state(&front, "b1").epoch;
    until_known(&front, &back, "b1", 2);
    assert_eq!(state(&front, "b1").epoch, epoch);
    front.follow(Some(front_config(authority.host("front"), address))).unwrap();
    until_known(&front, &back, "b1", 3);
    assert_eq!(
        state(&front, "b1").epoch,
        epoch,
        "sessions outlive the certificates they began with"
    );
}

#[test]
fn a_certificate_of_our_own_that_has_expired_is_said_until_it_is_renewed() {
    let authority = Authority::new();
    let files = authority.sign_until(2001, "front", (&["spiffe://example.org/front"], &[]));
    let error = Credentials::load(&files).unwrap().in_time().unwrap_err();
    assert!(error.to_string().contains("front.pem: it has expired"), "{error}");
    let front = node(front_config(files, free_port()));
    wait_for("a warning", || {
        let (subject, text) = front.problems().into_iter().next()?;
        (subject.starts_with("cluster.certificate") && text.contains("expired")).then_some(())
    });
    let renewed = authority.host("front");
    Credentials::load(&renewed).unwrap().in_time().unwrap();
    front.follow(Some(front_config(renewed, free_port()))).unwrap();
    wait_for("no warning", || front.problems().is_empty().then_some(()));
}

#[test]
fn an_identity_is_the_one_uri_of_a_certificate() {
    let authority = Authority::new();
    let der = |files: &Files| {
        let pem = std::fs::read(&files.certificate).unwrap();
        CertificateDer::from_pem_slice(&pem).unwrap()
    };
    let good = der(&authority.sign("good", &["spiffe://example.org/b1"], &["b2.example.org"]));
    assert_eq!(identity(&good), Ok(id("b1")), "other kinds of names do not count");
    let none = der(&authority.sign("none", &[], &["spiffe.example.org"]));
    assert!(identity(&none).unwrap_err().to_string().contains("names no URI"));
    let two = ["spiffe://example.org/b1", "spiffe://example.org/b1"];
    assert!(
        identity(&der(&authority.sign("two", &two, &[])))
            .unwrap_err()
            .to_string()
            .contains("2 URIs")
    );
    for end in 0..good.len() {
        assert!(identity(&good[..end]).is_err(), "cut at {end}");
    }
}
