// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hosts that report to each other over loopback, with real certificates.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::Authority;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use tidegate_model::SpiffeId;
use tidegate_model::signals::{AcceptQueue, Reading, Signals};
use tidegate_model::snapshot::PeerState;
use tidegate_peer::frame::Frame;
use tidegate_peer::node::{Node, NodeConfig, Outgoing, Target};
use tidegate_peer::session::{Heard, Sender};
use tidegate_peer::tls::{ALPN, Credentials, Files, identity};
use tidegate_peer::{Grant, Refusal, Report};
use tidegate_units::{Clock, MonotonicClock, Nanos};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Longest wait for anything that shall happen.
const PATIENCE: Nanos = Nanos::from_secs(20);

fn wait_for<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let begin = MonotonicClock.now();
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(MonotonicClock.now().since(begin) < PATIENCE, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn id(name: &str) -> SpiffeId {
    format!("spiffe://example.org/{name}").parse().unwrap()
}

fn free() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

fn node(config: NodeConfig) -> Node {
    let node = Node::start(Arc::new(MonotonicClock)).unwrap();
    node.follow(Some(config)).unwrap();
    node
}

fn front_config(files: Files, address: SocketAddr) -> NodeConfig {
    let grant =
        |name: &str| Grant { name: name.into(), identity: id(name), services: vec!["shop".into()] };
    let grants = vec![grant("b1"), grant("b2")];
    NodeConfig { files, listen: Some(address), grants, targets: Vec::new() }
}

fn back_config(files: Files, address: SocketAddr) -> NodeConfig {
    let target = Target {
        name: "front".into(),
        address,
        identity: id("front"),
        services: vec!["shop".into()],
        validity: Nanos::from_secs(2),
    };
    NodeConfig { files, listen: None, grants: Vec::new(), targets: vec![target] }
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
    let address = free();
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
    let address = free();
    let back = node(back_config(authority.host("b1"), address));
    wait_for("nobody is there", || {
        Some(state(&back, "front")).filter(|s| refused(s, "lost") > 0 && !s.trouble.is_empty())
    });
    for round in 0..2 {
        let front = node(front_config(authority.host("front"), address));
        until_known(&front, &back, "b1", 3 + round);
    }
}

#[test]
fn a_certificate_of_another_authority_is_no_certificate() {
    let (authority, other) = (Authority::new(), Authority::new());
    let address = free();
    let front = node(front_config(authority.host("front"), address));
    let stolen = Files { authority: authority.authority(), ..other.host("b1") };
    let back = node(back_config(stolen, address));
    let unknown = wait_for("refused", || {
        back.tell(told(1));
        Some(state(&front, "unknown")).filter(|s| refused(s, "untrusted") > 0)
    });
    assert!(unknown.trouble.contains("127.0.0.1"), "{}", unknown.trouble);
    wait_for("the sender is told", || {
        Some(state(&back, "front")).filter(|s| !s.trouble.is_empty())
    });
    assert_eq!(state(&front, "b1").reports, 0);
}

#[test]
fn names_that_are_no_identity_or_another_are_refused_on_both_sides() {
    let authority = Authority::new();
    let address = free();
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
        assert!(matches!(bye, Frame::Bye(bye) if bye.why == Refusal::Identity), "{bye:?}");
        assert_eq!(refused(&state(&front, "unknown"), "identity"), before + 1, "{file}");
    }
    let stranger = authority.sign("stranger", &["spiffe://example.org/b1x"], &[]);
    let back = node(back_config(stranger, address));
    let there = wait_for("the sender is told", || {
        Some(state(&back, "front")).filter(|s| refused(s, "unknown-peer") > 0)
    });
    assert!(there.trouble.contains("its identity is not"), "{}", there.trouble);
    assert!(refused(&state(&front, "unknown"), "unknown-peer") > 0);
    let elsewhere = free();
    let _wrong = node(front_config(authority.host("other"), elsewhere));
    let back = node(back_config(authority.host("b1"), elsewhere));
    let there = wait_for("the sender refuses", || {
        Some(state(&back, "front")).filter(|s| s.trouble.contains("expected is"))
    });
    assert!(there.trouble.contains("spiffe://example.org/other"), "{}", there.trouble);
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
    config.alpn_protocols = vec![ALPN.to_vec()];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = connector.connect(name, stream).await.unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        Frame::decode(&bytes).unwrap().unwrap().0
    })
}

/// A peer that speaks TLS and then whatever it likes.
async fn hostile(files: &Files, address: SocketAddr) -> (TlsStream<tokio::net::TcpStream>, Sender) {
    let credentials = Credentials::load(files).unwrap();
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let connector = TlsConnector::from(credentials.client(&id("front")).unwrap());
    let name = ServerName::IpAddress(address.ip().into());
    let mut stream = connector.connect(name, stream).await.unwrap();
    let mut sender = Sender::new(vec!["shop".into()]);
    let mut bytes = Vec::new();
    let welcome = loop {
        bytes.push(stream.read_u8().await.unwrap());
        if let Some((frame, _)) = Frame::decode(&bytes).unwrap() {
            break frame;
        }
    };
    let Heard::Up(hello) = sender.receive(welcome) else { panic!("no welcome") };
    stream.write_all(&hello.encode().unwrap()).await.unwrap();
    (stream, sender)
}

#[test]
fn what_one_peer_does_wrong_concerns_nobody_else() {
    let authority = Authority::new();
    let address = free();
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
        let frame = sender.report(Nanos::ZERO, report()).unwrap().encode().unwrap();
        // The same frame for ever: stale, then above the quota, then the end.
        while stream.write_all(&frame).await.is_ok() && stream.flush().await.is_ok() {}
        let (mut stream, _) = hostile(&files, address).await;
        stream.write_all(&[0, 9, 1, 3, 1, 2, 3, 4, 5, 6, 7, 8, 9]).await.unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
        assert!(matches!(Frame::decode(&rest), Ok(Some((Frame::Bye(_), _)))), "{rest:?}");
    });
    let b1 = wait_for("its sessions are over", || Some(state(&front, "b1")).filter(|s| !s.up));
    for reason in ["stale", "quota", "malformed"] {
        assert!(refused(&b1, reason) > 0, "{reason}: {b1:?}");
    }
    assert_eq!(b1.reports, 1);
    until_known(&front, &good, "b2", 6);
    assert_eq!(state(&front, "b2").epoch, epoch, "the other session never ended");
}

#[test]
fn files_that_cannot_be_used_change_nothing_and_are_named() {
    let authority = Authority::new();
    let address = free();
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
    let front = node(front_config(files, free()));
    wait_for("a warning", || {
        let (subject, text) = front.troubles().into_iter().next()?;
        (subject.starts_with("cluster.certificate") && text.contains("expired")).then_some(())
    });
    let renewed = authority.host("front");
    Credentials::load(&renewed).unwrap().in_time().unwrap();
    front.follow(Some(front_config(renewed, free()))).unwrap();
    wait_for("no warning", || front.troubles().is_empty().then_some(()));
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
