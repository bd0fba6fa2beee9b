// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A SYN whose tuple has a socket is a retransmission of one that was admitted: it passes, however
//! tight the limit. One test for each state, with the stack's real sockets (TIME_WAIT: time_wait.rs).

#![allow(clippy::unwrap_used, reason = "a test may")]

mod netns;

use netns::{Net, one_token, plan, says, wait_for, within};
use rustix::net::{AddressFamily, SocketType};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use tidegate_bpf::testing::{Outcome, TestHook, TestPlane};
use tidegate_policy::{Action, Reason};

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const HOOKS: [TestHook; 2] = [TestHook::Xdp, TestHook::Tc];

/// A plane whose only token is spent.
fn tight() -> TestPlane {
    let mut plane = TestPlane::load(&plan(vec![], Action::Drop)).unwrap();
    plane.set_limits(&[one_token(Action::Drop)], &[], 2).unwrap();
    assert_eq!(plane.run(TestHook::Xdp, &syn(1)).unwrap().outcome, Outcome::Pass);
    assert_eq!(plane.run(TestHook::Xdp, &syn(2)).unwrap().outcome, Outcome::Drop);
    plane
}

/// A SYN of the client's from this port.
fn syn(port: u16) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend([0x45, 0, 0, 40, 0, 1, 0x40, 0, 64, 6, 0, 0]);
    frame.extend(CLIENT.octets().into_iter().chain(SERVER.octets()));
    frame.extend(port.to_be_bytes());
    frame.extend(80_u16.to_be_bytes());
    frame.extend([0, 0, 0, 9, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0]);
    frame
}

/// Gives both hooks the SYN as if it had come in through s0, and tells what was counted.
fn evaluate(net: &Net, plane: &TestPlane, port: u16) -> Vec<(Outcome, Vec<Reason>)> {
    within(&net.server, || {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
        let ifindex = rustix::net::netdevice::name_to_index(&socket, "s0").unwrap();
        let mut seen = Vec::new();
        for hook in HOOKS {
            let before = plane.passed().unwrap();
            let outcome = plane.run_on(hook, &syn(port), ifindex).unwrap().outcome;
            let after = plane.passed().unwrap();
            let reasons = after.iter().filter(|p| !before.contains(p)).map(|p| p.reason).collect();
            seen.push((outcome, reasons));
        }
        seen
    })
}

fn passes_by(reason: Reason) -> Vec<(Outcome, Vec<Reason>)> {
    HOOKS.iter().map(|_| (Outcome::Pass, vec![reason])).collect()
}

/// Sockets of the server in a state of ss(8).
fn in_state(net: &Net, state: &str) -> usize {
    let sockets = says(&net.server, &["ss", "-Htn", "state", state]);
    sockets.lines().filter(|line| line.contains(":80")).count()
}

fn listen(net: &Net) -> TcpListener {
    within(&net.server, || TcpListener::bind(SocketAddrV4::new(SERVER, 80)).unwrap())
}

fn connect(net: &Net) -> (TcpStream, u16) {
    let server = SocketAddr::from((SERVER, 80));
    let stream = within(&net.client, || TcpStream::connect(server).unwrap());
    let port = stream.local_addr().unwrap().port();
    (stream, port)
}

#[test]
fn a_stranger_is_refused_beside_all_of_this() {
    let (net, plane) = (Net::new(), tight());
    let _listener = listen(&net);
    let seen = evaluate(&net, &plane, 1234);
    assert_eq!(seen, vec![(Outcome::Drop, vec![]), (Outcome::Drop, vec![])]);
}

#[test]
fn a_syn_of_a_request_socket_passes() {
    let (net, plane) = (Net::new(), tight());
    let _listener = listen(&net);
    // The SYN-ACK goes to a wrong station, so that the handshake stays half done.
    net.server_sh("ip neigh replace 10.77.0.2 lladdr 02:de:ad:be:ef:00 dev s0 nud permanent");
    let (client, port) = within(&net.client, || {
        let socket = rustix::net::socket_with(
            AddressFamily::INET,
            SocketType::STREAM,
            rustix::net::SocketFlags::NONBLOCK,
            None,
        )
        .unwrap();
        rustix::net::bind(&socket, &SocketAddrV4::new(CLIENT, 40_001)).unwrap();
        let result = rustix::net::connect(&socket, &SocketAddrV4::new(SERVER, 80));
        assert_eq!(result, Err(rustix::io::Errno::INPROGRESS));
        (socket, 40_001)
    });
    wait_for("the request socket", || in_state(&net, "syn-recv") == 1);
    assert_eq!(evaluate(&net, &plane, port), passes_by(Reason::SocketRequest));
    drop(client);
}

#[test]
fn a_syn_of_an_established_connection_passes() {
    let (net, plane) = (Net::new(), tight());
    let listener = listen(&net);
    let (_client, port) = connect(&net);
    let _server = listener.accept().unwrap();
    assert_eq!(evaluate(&net, &plane, port), passes_by(Reason::SocketEstablished));
}

#[test]
fn a_full_accept_queue_refuses_before_the_policy() {
    let (net, mut plane) = (Net::new(), TestPlane::load(&plan(vec![], Action::Drop)).unwrap());
    let _listener = within(&net.server, || {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrV4::new(SERVER, 80)).unwrap();
        rustix::net::listen(&socket, 4).unwrap();
        socket
    });
    let mut limits = one_token(Action::Drop);
    limits.accept_queue_max_q10 = 512;
    plane.set_limits(&[limits], &[], 2).unwrap();
    let _one = connect(&net);
    let outcomes = |plane: &TestPlane, port| -> Vec<Outcome> {
        evaluate(&net, plane, port).into_iter().map(|(outcome, _)| outcome).collect()
    };
    let below = outcomes(&plane, 2001);
    assert_eq!(below, [Outcome::Pass, Outcome::Drop], "one of four waits: the one token decides");
    let _two = connect(&net);
    assert_eq!(outcomes(&plane, 2002), [Outcome::Drop, Outcome::Drop]);
    let counts = plane.counts().unwrap();
    let queue: u64 =
        counts.iter().filter(|c| c.reason == Reason::AcceptQueue).map(|c| c.count).sum();
    assert_eq!(queue, 2);
}
