// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two processes on one set of pins: one in charge, one that begins to take over and may fail; and
//! what a process can do with the capabilities that the systemd unit leaves it.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod netns;

use netns::{AttachMode, BpfFs, Net, links, one_token, plan, says, within};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;
use tidegate_bpf::testing::tcx_programs;
use tidegate_bpf::{Dataplane, Error, Hook, Interface, Plan, ServiceParams};
use tidegate_config::InterfaceConfig;
use tidegate_policy::{Action, BucketSpec, Params};
use tidegate_units::Rate;

fn server() -> SocketAddr {
    "10.77.0.1:80".parse().unwrap()
}

fn listen(net: &Net) -> TcpListener {
    within(&net.server, || TcpListener::bind(server()).unwrap())
}

fn connect(net: &Net) -> std::io::Result<TcpStream> {
    within(&net.client, || TcpStream::connect_timeout(&server(), Duration::from_millis(500)))
}

fn pinned(interfaces: Vec<Interface>, fs: &BpfFs) -> Plan {
    let mut plan = plan(interfaces, Action::Reject);
    plan.settings.pins = Some(fs.pins());
    plan
}

/// The plan of a process that lives in the server's namespace; to be used only within it.
fn at_home(attach: AttachMode, fs: &BpfFs) -> Plan {
    pinned(vec![attach.interface("s0", None)], fs)
}

/// More tokens than any test takes.
fn many_tokens() -> ServiceParams {
    let spec = BucketSpec::new(Rate::per_second(1000.0), 1000, Action::Reject);
    ServiceParams { params: Params::token_bucket(&spec).unwrap(), ..one_token(Action::Reject) }
}

fn at_xdp(net: &Net) -> bool {
    says(&net.server, &["ip", "-d", "link", "show", "s0"]).contains("prog/xdp")
}

fn at_tcx(net: &Net) -> bool {
    let [ingress, _] = tcx_programs(&net.interface(AttachMode::Tcx)).unwrap();
    ingress.iter().any(|name| name.starts_with("tg_"))
}

/// Runs `work` in the server's namespace, in a thread that has these capabilities and no others.
fn with_only<T: Send>(net: &Net, set: CapabilitySet, work: impl FnOnce() -> T + Send) -> T {
    within(&net.server, || {
        let inheritable = CapabilitySet::empty();
        set_capabilities(None, CapabilitySets { effective: set, permitted: set, inheritable })
            .unwrap();
        work()
    })
}

/// The capabilities that packaging/tidegate.service leaves the daemon for its start.
fn of_the_unit() -> CapabilitySet {
    let unit = include_str!("../../packaging/tidegate.service");
    let line = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let names = line.unwrap().split_whitespace().map(|name| name.strip_prefix("CAP_").unwrap());
    names.map(|name| CapabilitySet::from_name(name).unwrap_or_else(|| panic!("{name}"))).collect()
}

#[test]
fn every_syn_is_evaluated_once_while_an_interface_moves_to_another_hook() {
    let (net, fs) = (Net::new(), BpfFs::new());
    let _listener = listen(&net);
    let with = |attach| pinned(vec![net.interface(attach)], &fs);
    let mut first = Dataplane::start(&with(AttachMode::Tcx)).unwrap();
    first.set_limits(&[many_tokens()], &[], 2).unwrap();
    let evaluated = |dataplane: &Dataplane| -> u64 {
        dataplane.counts().unwrap().iter().map(|count| count.count).sum()
    };
    let five = || (0..5).for_each(|_| drop(connect(&net).unwrap()));
    five();
    assert_eq!(evaluated(&first), 5);
    let mut second = Dataplane::begin(&with(AttachMode::Xdp)).unwrap();
    assert!(at_xdp(&net) && at_tcx(&net), "both are there until the commit");
    five();
    assert_eq!(evaluated(&second), 10, "the hook of before evaluates");
    assert!(second.commit().is_empty());
    assert!(at_xdp(&net) && !at_tcx(&net));
    five();
    assert_eq!(evaluated(&second), 15, "the new one evaluates");
    let third = Dataplane::begin(&with(AttachMode::Tcx)).unwrap();
    assert!(at_xdp(&net) && at_tcx(&net));
    drop(third);
    assert!(at_xdp(&net) && !at_tcx(&net), "what was not committed is taken back");
    five();
    assert_eq!(evaluated(&second), 20);
    assert_eq!(second.hooks()[0].ingress, Some(Hook::Xdp));
    second.detach();
}

#[test]
fn a_start_that_fails_or_is_given_up_leaves_the_hooks_of_whoever_is_in_charge() {
    let (net, fs) = (Net::new(), BpfFs::new());
    let _listener = listen(&net);
    let plan = pinned(vec![net.interface(AttachMode::Tcx)], &fs);
    let mut first = Dataplane::start(&plan).unwrap();
    first.set_limits(&[one_token(Action::Reject)], &[], 2).unwrap();
    let _admitted = connect(&net).unwrap();
    connect(&net).unwrap_err();

    // The first interface can go to XDP, the second cannot.
    let mut wrong = pinned(vec![net.interface(AttachMode::Xdp)], &fs);
    wrong
        .config
        .interfaces
        .push(InterfaceConfig { name: "lo".into(), ..net.interface(AttachMode::Xdp).config });
    let error = Dataplane::begin(&wrong).unwrap_err();
    assert!(matches!(&error, Error::Attach { interface, .. } if interface.starts_with("lo")));
    assert!(at_tcx(&net) && !at_xdp(&net));
    first.heartbeat().unwrap();
    connect(&net).unwrap_err();

    // An interface that is not planned any more.
    let fewer = Dataplane::begin(&pinned(vec![], &fs)).unwrap();
    assert!(at_tcx(&net), "until the commit");
    drop(fewer);
    assert!(at_tcx(&net));

    assert_eq!(first.reassert(), [""; 0]);
    first.apply(&plan).unwrap();
    first.heartbeat().unwrap();
    connect(&net).unwrap_err();
    assert!(first.detach().is_empty());
}

#[test]
fn what_a_successor_left_that_died_is_put_back_without_privileges() {
    let (net, fs) = (Net::new(), BpfFs::new());
    let _listener = listen(&net);
    let plan = at_home(AttachMode::Tcx, &fs);
    let mut first = within(&net.server, || Dataplane::start(&plan)).unwrap();
    first.set_limits(&[one_token(Action::Reject)], &[], 2).unwrap();
    let _admitted = connect(&net).unwrap();
    let before = links(&fs.pins());
    let successor = |plan: &Plan| {
        // Killed: nothing is taken back.
        within(&net.server, || std::mem::forget(Dataplane::begin(plan).unwrap()));
    };
    let mut other = plan.clone();
    other.config.interfaces[0].trust_dscp = true;
    successor(&other);
    assert_ne!(links(&fs.pins()), before, "other programs");
    successor(&at_home(AttachMode::Xdp, &fs));
    assert!(at_xdp(&net) && at_tcx(&net));
    std::fs::create_dir(fs.pins().join("v999")).unwrap();

    let lost = with_only(&net, CapabilitySet::empty(), || first.reassert());
    assert_eq!(lost, [""; 0]);
    assert_eq!(links(&fs.pins()), before, "our programs, and no link more");
    assert!(at_tcx(&net) && !at_xdp(&net) && !fs.pins().join("v999").exists());
    first.apply(&plan).unwrap();
    first.heartbeat().unwrap();
    connect(&net).unwrap_err();

    let ingress = std::fs::read_dir(fs.pins().join("links")).unwrap().map(|e| e.unwrap().path());
    let ingress = ingress.into_iter().find(|path| path.to_str().unwrap().ends_with("_in")).unwrap();
    let detach = ["link", "detach", "pinned", ingress.to_str().unwrap()];
    assert!(Command::new("bpftool").args(detach).status().unwrap().success());
    let lost = with_only(&net, CapabilitySet::empty(), || first.reassert());
    assert!(lost.len() == 1 && lost[0].contains("s0: tcx (in) is not ours"), "{lost:?}");
    within(&net.server, || first.detach());
}

#[test]
fn with_the_capabilities_of_the_unit_everything_is_adopted() {
    for attach in [AttachMode::Xdp, AttachMode::Tcx, AttachMode::Clsact] {
        let (net, fs) = (Net::new(), BpfFs::new());
        let _listener = listen(&net);
        let plan = at_home(attach, &fs);
        let start = || with_only(&net, of_the_unit(), || Dataplane::start(&plan)).unwrap();
        let mut first = start();
        first.set_limits(&[one_token(Action::Reject)], &[], 41).unwrap();
        let _admitted = connect(&net).unwrap();
        // Killed: everything stays.
        drop(first);
        connect(&net).unwrap_err();
        let second = start();
        assert!(second.generation() >= 41, "{attach:?}: {}", second.generation());
        assert!(second.hooks()[0].egress.is_some(), "{attach:?}: {:?}", second.hooks());
        connect(&net).unwrap_err();

        // A clean stop, when the privileges are gone: filters stay, and let everything pass; the
        // next start knows them again.
        let left = with_only(&net, CapabilitySet::empty(), || second.detach());
        let filters = if attach == AttachMode::Clsact { 2 } else { 0 };
        assert_eq!(left.len(), filters, "{left:?}");
        connect(&net).unwrap();
        let third = start();
        assert!(third.hooks()[0].egress.is_some(), "{attach:?}: {:?}", third.hooks());
        assert!(within(&net.server, || third.detach()).is_empty());
    }
}

#[test]
fn without_the_capability_to_look_our_filter_is_not_called_a_strangers() {
    let (net, fs) = (Net::new(), BpfFs::new());
    let _listener = listen(&net);
    let plan = at_home(AttachMode::Clsact, &fs);
    let mut set = of_the_unit();
    set.remove(CapabilitySet::SYS_ADMIN);
    let mut first = with_only(&net, set, || Dataplane::start(&plan)).unwrap();
    first.set_limits(&[one_token(Action::Reject)], &[], 41).unwrap();
    let _admitted = connect(&net).unwrap();
    drop(first);
    let error = with_only(&net, set, || Dataplane::start(&plan)).unwrap_err();
    assert!(matches!(error, Error::Whose { .. }), "{error}");
    assert!(error.to_string().contains("CAP_SYS_ADMIN"), "{error}");
    within(&net.server, || Dataplane::start(&plan).unwrap().detach());
}

/// Our filters on an interface.
fn filters(net: &Net, interface: &str) -> usize {
    let show = |side: &str| {
        let words = ["tc", "filter", "show", "dev", interface, side];
        says(&net.server, &words).matches("handle 0x7467").count()
    };
    show("ingress") + show("egress")
}

#[test]
fn filters_go_with_a_take_over_that_does_not_plan_their_interface_any_more() {
    let (net, fs, others) = (Net::new(), BpfFs::new(), BpfFs::new());
    let _listener = listen(&net);
    net.server_sh("ip link add x0 type veth peer name x1");
    let on = |name: &str, fs: &BpfFs| {
        let mut plan = at_home(AttachMode::Clsact, fs);
        plan.config.interfaces[0].name = name.into();
        plan
    };
    let begin = |plan: &Plan| within(&net.server, || Dataplane::begin(plan).unwrap());
    // Another dataplane: its filters are nobody's but its own.
    let stranger = within(&net.server, || Dataplane::start(&on("x1", &others)).unwrap());
    let mut first = within(&net.server, || Dataplane::start(&on("s0", &fs)).unwrap());
    first.set_limits(&[one_token(Action::Reject)], &[], 2).unwrap();
    let _admitted = connect(&net).unwrap();
    connect(&net).unwrap_err();

    let mut second = begin(&on("x0", &fs));
    assert_eq!([filters(&net, "s0"), filters(&net, "x0")], [2, 2], "until the commit");
    drop(first);
    assert_eq!(within(&net.server, || second.commit()), [""; 0]);
    let all = ["s0", "x0", "x1"].map(|name| filters(&net, name));
    assert_eq!(all, [0, 2, 2]);
    second.heartbeat().unwrap();
    let _passes = [connect(&net).unwrap(), connect(&net).unwrap()];

    // What a successor left that died, and without the privilege to remove it: it is said how.
    std::mem::forget(begin(&on("s0", &fs)));
    let set = CapabilitySet::SYS_ADMIN.union(CapabilitySet::BPF);
    let lost = with_only(&net, set, || second.reassert());
    assert!(lost.len() == 2 && lost[0].contains("s0 is not planned"), "{lost:?}");
    for text in &lost {
        let command = text.split('`').nth(1).unwrap_or_else(|| panic!("{text}: no command"));
        net.server_sh(command);
    }
    assert_eq!(filters(&net, "s0"), 0);
    within(&net.server, || (second.detach(), stranger.detach()));
}
