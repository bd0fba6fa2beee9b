// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Our place among programs of others at tcx: first, so that none that ends the chain hides traffic
//! from us; and which hook `auto` takes on veth.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod netns;

use netns::{AttachMode, BpfFs, Net, one_token, plan, sh, within};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;
use tidegate_bpf::testing::{Foreign, ForeignVerdict, Neighbour, tcx_programs};
use tidegate_bpf::{Dataplane, Hook, Plan};
use tidegate_model::totals::Totals;
use tidegate_policy::Action;

fn server() -> SocketAddr {
    "10.77.0.1:80".parse().unwrap()
}

fn listen(net: &Net) -> TcpListener {
    within(&net.server, || TcpListener::bind(server()).unwrap())
}

fn connect(net: &Net) -> std::io::Result<TcpStream> {
    within(&net.client, || TcpStream::connect_timeout(&server(), Duration::from_millis(300)))
}

fn at_tcx(net: &Net, pins: Option<&BpfFs>) -> Plan {
    let mut plan = plan(vec![net.interface(AttachMode::Tcx)], Action::Reject);
    plan.settings.pins = pins.map(BpfFs::pins);
    plan
}

fn foreign(net: &Net, verdict: ForeignVerdict, first: bool) -> [Neighbour; 2] {
    [false, true].map(|egress| {
        let foreign = Foreign { verdict, egress, first };
        foreign.attach(&net.interface(AttachMode::Tcx)).unwrap()
    })
}

/// The chains of ingress and egress.
fn chains(net: &Net) -> [Vec<String>; 2] {
    tcx_programs(&net.interface(AttachMode::Tcx)).unwrap()
}

fn permanent_neighbours(net: &Net) {
    for (namespace, device, peer) in
        [(&net.client, "c0", "10.77.0.1"), (&net.server, "s0", "10.77.0.2")]
    {
        let enter = format!("nsenter --net={} ip", namespace.display());
        sh(&format!(
            "mac=$({enter} neigh show {peer} | sed -n \"s/.*lladdr \\([^ ]*\\).*/\\1/p\"); \
             {enter} neigh replace {peer} lladdr $mac dev {device} nud permanent"
        ));
    }
}

/// One that ends the chain does not hide a SYN, nor the reply to it, and stays.
#[test]
fn a_foreign_program_that_ends_the_chain_hides_nothing() {
    for verdict in [ForeignVerdict::Pass, ForeignVerdict::Drop] {
        let net = Net::new();
        let _listener = listen(&net);
        // What drops everything drops ARP, too: the neighbours know each other before.
        drop(connect(&net).unwrap());
        permanent_neighbours(&net);
        let _foreign = foreign(&net, verdict, false);
        let dataplane = Dataplane::start(&at_tcx(&net, None)).unwrap();
        assert_eq!(chains(&net)[0], ["tg_ingress", "stranger"], "{verdict:?}");
        assert_eq!(chains(&net)[1], ["tg_egress", "stranger"], "{verdict:?}");
        let connected = connect(&net);
        let totals = dataplane.totals(0).unwrap();
        assert!(totals.offered > 0, "{verdict:?}: {totals:?}");
        assert_eq!(connected.is_ok(), verdict == ForeignVerdict::Pass, "the other still decides");
        let seen = u64::from(connected.is_ok());
        assert_eq!(totals.open, seen, "{verdict:?}: the handshake was seen at both sides");
        drop(dataplane);
        assert_eq!(chains(&net), [vec!["stranger"], vec!["stranger"]]);
    }
}

#[test]
fn a_hook_that_is_taken_over_stays_first_and_one_that_is_not_first_becomes_it() {
    let (net, fs) = (Net::new(), BpfFs::new());
    let _listener = listen(&net);
    let plan = at_tcx(&net, Some(&fs));
    let mut first = Dataplane::start(&plan).unwrap();
    first.set_limits(&[one_token(Action::Reject)], &[], 7).unwrap();
    let behind = foreign(&net, ForeignVerdict::Pass, false);
    drop(first);
    let mut second = Dataplane::start(&plan).unwrap();
    assert_eq!(chains(&net)[0], ["tg_ingress", "stranger"], "as it was");
    drop(behind);

    // Somebody else goes to the head.
    let _before = foreign(&net, ForeignVerdict::Pass, true);
    assert_eq!(chains(&net)[0], ["stranger", "tg_ingress"]);
    let offered = |dataplane: &Dataplane| dataplane.totals(0).unwrap().offered;
    let hidden = offered(&second);
    drop(connect(&net).unwrap());
    assert_eq!(offered(&second), hidden, "what this test is about");

    let given_up = Dataplane::begin(&plan).unwrap();
    assert_eq!(chains(&net)[0], ["tg_standby", "stranger", "tg_ingress"], "until the commit");
    drop(given_up);
    assert_eq!(chains(&net)[0], ["stranger", "tg_ingress"], "what was begun is taken back");
    assert!(second.reassert().is_empty());

    let mut third = Dataplane::begin(&plan).unwrap();
    assert!(third.commit().is_empty());
    drop(second);
    assert_eq!(chains(&net)[0], ["tg_ingress", "stranger"]);
    assert_eq!(chains(&net)[1], ["tg_egress", "stranger"]);
    let before = offered(&third);
    let _ = connect(&net);
    assert!(offered(&third) > before);
    assert!(third.generation() >= 7, "limits were adopted");
    drop(third);

    // Without its process the pins hold the new links, and nothing is left of the old ones.
    let fourth = Dataplane::start(&plan).unwrap();
    assert_eq!(chains(&net)[0], ["tg_ingress", "stranger"]);
    fourth.detach();
    assert_eq!(chains(&net), [vec!["stranger"], vec!["stranger"]]);
    assert!(!fs.pins().exists());
}

/// A RST from native XDP on veth is lost where the peer has neither GRO nor an XDP program.
#[test]
fn auto_takes_a_hook_on_veth_whose_rst_arrives_and_xdp_is_warned_of() {
    let net = Net::new();
    sh(&format!("nsenter --net={} ethtool -K c0 gro off", net.client.display()));
    let _listener = listen(&net);
    for (attach, rst, hook, warned) in [
        (AttachMode::Auto, 1000, Hook::Tcx, false),
        (AttachMode::Auto, 0, Hook::Tcx, false),
        (AttachMode::Xdp, 1000, Hook::Xdp, true),
        (AttachMode::Xdp, 0, Hook::Xdp, false),
        (AttachMode::XdpGeneric, 1000, Hook::XdpGeneric, false),
        (AttachMode::Tcx, 1000, Hook::Tcx, false),
    ] {
        let mut plan = plan(vec![net.interface(attach)], Action::Reject);
        plan.config.replies.rst_per_second = rst;
        let mut dataplane = Dataplane::start(&plan).unwrap();
        let hooks = dataplane.hooks();
        assert_eq!(hooks[0].ingress, Some(hook), "{attach:?} {rst}: {hooks:?}");
        assert_eq!(!hooks[0].warnings.is_empty(), warned, "{attach:?} {rst}: {hooks:?}");
        dataplane.set_limits(&[one_token(Action::Reject)], &[], 2).unwrap();
        let _admitted = connect(&net).unwrap();
        let refused = connect(&net).unwrap_err().kind();
        let arrives = refused == std::io::ErrorKind::ConnectionRefused;
        assert_eq!(arrives, rst > 0 && !warned, "{attach:?} {rst}: {refused:?}");
    }
}
