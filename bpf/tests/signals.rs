// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Real TCP connections over a veth pair, at every attach point: passive signals and answers.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod netns;

use netns::{AttachMode, Net, one_token, plan, wait_for, within};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;
use tidegate_bpf::{Dataplane, Hook};
use tidegate_model::totals::{ConnectionTotals, ServiceTotals, Totals};
use tidegate_policy::{Action, Reason, VerdictKind};

const MODES: [(AttachMode, Hook); 4] = [
    (AttachMode::Xdp, Hook::Xdp),
    (AttachMode::XdpGeneric, Hook::XdpGeneric),
    (AttachMode::Tcx, Hook::Tcx),
    (AttachMode::Clsact, Hook::Clsact),
];
const ADDRESSES: [&str; 2] = ["10.77.0.1:80", "[fd77::1]:80"];

fn totals(dataplane: &Dataplane) -> ServiceTotals {
    dataplane.totals(0).unwrap()
}

fn connect(net: &Net, address: SocketAddr) -> std::io::Result<TcpStream> {
    within(&net.client, || TcpStream::connect_timeout(&address, Duration::from_millis(500)))
}

/// Connection, request, response, second request, second response, end.
fn one_connection(net: &Net, dataplane: &Dataplane, address: SocketAddr) {
    let before = totals(dataplane);
    let listener = within(&net.server, || TcpListener::bind(address).unwrap());
    let mut client = connect(net, address).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let mut buffer = [0; 5];
    wait_for("the connection is open", || totals(dataplane).open == 1);
    assert_eq!((totals(dataplane).silent, totals(dataplane).waiting), (1, 0), "nobody asked");
    for answers in 1..=2 {
        client.write_all(b"hello").unwrap();
        server.read_exact(&mut buffer).unwrap();
        assert_eq!(totals(dataplane).waiting, 1, "request {answers}");
        server.write_all(b"world").unwrap();
        client.read_exact(&mut buffer).unwrap();
        let now = totals(dataplane);
        assert_eq!(now.waiting, 0, "answer {answers}");
        assert_eq!(now.first_byte.count - before.first_byte.count, answers);
        assert!(now.first_byte.sum_ns > before.first_byte.sum_ns);
    }
    drop(server);
    drop(client);
    wait_for("the connection ends", || totals(dataplane).open == 0);
    let now = totals(dataplane);
    assert_eq!((now.waiting, now.end.count - before.end.count), (0, 1));
    assert!(now.end.sum_ns - before.end.sum_ns > 1_000, "a duration");
    assert_eq!(now.offered - before.offered, 1);
    let since = |of: fn(&ConnectionTotals) -> u64| of(&now.connections) - of(&before.connections);
    assert_eq!((since(|c| c.replied), since(|c| c.proved)), (1, 1));
    assert_eq!((since(|c| c.asked), since(|c| c.answered), since(|c| c.lost)), (1, 1, 0));
    assert_eq!((since(|c| c.ended), since(|c| c.ended_exchanges)), (1, 2));
}

#[test]
fn waiting_first_byte_and_end_are_seen_at_every_attach_point() {
    for (mode, hook) in MODES {
        let net = Net::new();
        let dataplane = Dataplane::start(&plan(vec![net.interface(mode)], Action::Reject)).unwrap();
        let hooks = dataplane.hooks();
        let no_tcx = hooks[0].notes.iter().any(|note| note.contains("cannot attach tcx"));
        let expected = if hook == Hook::Tcx && no_tcx { Hook::Clsact } else { hook };
        assert_eq!(hooks[0].ingress, Some(expected), "{hooks:?}");
        assert!(hooks[0].egress.is_some(), "{hooks:?}");
        for address in ADDRESSES {
            one_connection(&net, &dataplane, address.parse().unwrap());
        }
    }
}

#[test]
fn a_rejected_client_is_told_at_once_at_every_attach_point() {
    for (mode, hook) in MODES {
        for address in ADDRESSES {
            let net = Net::new();
            let address: SocketAddr = address.parse().unwrap();
            let mut dataplane =
                Dataplane::start(&plan(vec![net.interface(mode)], Action::Reject)).unwrap();
            dataplane.set_limits(&[one_token(Action::Reject)], &[], 2).unwrap();
            let _listener = within(&net.server, || TcpListener::bind(address).unwrap());
            let _admitted = connect(&net, address).unwrap();
            let refused = connect(&net, address).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{hook:?} {address}");
            let counts = dataplane.counts().unwrap();
            let rejects: Vec<_> =
                counts.iter().filter(|c| c.verdict == VerdictKind::Reject).collect();
            assert_eq!(rejects.len(), 1);
            assert_eq!((rejects[0].reason, rejects[0].count), (Reason::Rate, 1));
            let samples = dataplane.samples(16).unwrap();
            assert_eq!(samples.len(), 2, "every verdict is sampled here");
            assert_eq!(samples[1].verdict, VerdictKind::Reject);
            assert_eq!(samples[1].local, address);
            assert!(samples[1].accept_queue.is_some(), "the listener was found");
        }
    }
}

#[test]
fn a_dropped_syn_times_out_and_shadow_lets_it_pass() {
    let net = Net::new();
    let mut dataplane =
        Dataplane::start(&plan(vec![net.interface(AttachMode::Xdp)], Action::Drop)).unwrap();
    dataplane.set_limits(&[one_token(Action::Drop)], &[], 2).unwrap();
    let address: SocketAddr = ADDRESSES[0].parse().unwrap();
    let _listener = within(&net.server, || TcpListener::bind(address).unwrap());
    let _admitted = connect(&net, address).unwrap();
    assert_eq!(connect(&net, address).unwrap_err().kind(), ErrorKind::TimedOut);
    dataplane.set_shadow(0, true).unwrap();
    let _shadow = connect(&net, address).unwrap();
    dataplane.set_shadow(0, false).unwrap();
    dataplane.release(true).unwrap();
    let _released = connect(&net, address).unwrap();
    let totals = totals(&dataplane);
    assert_eq!(totals.admitted, 3, "in shadow what passes is admitted: {totals:?}");
    assert_eq!(totals.refused, totals.offered - 2, "and refused, too: {totals:?}");
}
