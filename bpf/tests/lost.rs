// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hooks that are lost behind the back of a process: with their interface, or with clsact.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod netns;

use netns::{AttachMode, BpfFs, Net, one_token, plan, within};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;
use tidegate_bpf::testing::{Foreign, ForeignVerdict, plans};
use tidegate_bpf::{Dataplane, Plan};
use tidegate_policy::Action;
use tidegate_units::{Clock, MonotonicClock, Nanos};

fn server() -> SocketAddr {
    "10.77.0.1:80".parse().unwrap()
}

fn connect(net: &Net) -> std::io::Result<TcpStream> {
    within(&net.client, || TcpStream::connect_timeout(&server(), Duration::from_millis(500)))
}

/// The plan of a process that lives in the server's namespace; to be used only within it.
fn at_home(attach: AttachMode, fs: &BpfFs) -> Plan {
    let s0 = attach.interface("s0", None);
    let mut plan = plan(vec![s0], Action::Reject);
    plan.settings.pins = Some(fs.pins());
    plan
}

/// Runs `work` in the server's namespace, without any privilege, as a daemon after its start.
fn unprivileged<T: Send>(net: &Net, work: impl FnOnce() -> T + Send) -> T {
    within(&net.server, || {
        let (effective, permitted) = (CapabilitySet::empty(), CapabilitySet::empty());
        let inheritable = CapabilitySet::empty();
        set_capabilities(None, CapabilitySets { effective, permitted, inheritable }).unwrap();
        work()
    })
}

/// What a look without privileges finds.
fn look(net: &Net, dataplane: &mut Dataplane) -> Vec<String> {
    unprivileged(net, || {
        dataplane.look();
        dataplane.lost()
    })
}

/// Whether a limit of one connection holds.
fn is_limited(net: &Net, dataplane: &mut Dataplane, generation: u64) -> bool {
    dataplane.set_limits(&[one_token(Action::Reject)], &[], generation).unwrap();
    dataplane.heartbeat().unwrap();
    (0..3).filter(|_| connect(net).is_err()).count() > 0
}

#[test]
fn an_interface_that_is_made_anew_is_told_and_its_hooks_come_back() {
    for (attach, name) in
        [(AttachMode::Xdp, "xdp"), (AttachMode::Tcx, "tcx"), (AttachMode::Clsact, "clsact")]
    {
        let (net, fs) = (Net::new(), BpfFs::new());
        let _listener = within(&net.server, || TcpListener::bind("0.0.0.0:80").unwrap());
        let plan = at_home(attach, &fs);
        let mut dataplane = within(&net.server, || Dataplane::start(&plan)).unwrap();
        assert_eq!(look(&net, &mut dataplane), [""; 0]);
        assert!(is_limited(&net, &mut dataplane, 10));

        net.server_sh("ip link del s0");
        let lost = look(&net, &mut dataplane);
        assert_eq!(lost.len(), 2, "{lost:?}");
        let (hook, why) =
            (format!("interface s0: {name} (in) is not there"), "the interface is gone");
        assert!(lost[0].starts_with(&hook) && lost[0].contains(why), "{lost:?}");
        assert!(!dataplane.needs_attach(&plan), "a reload has nothing to attach to");
        within(&net.server, || dataplane.apply(&plan)).unwrap();

        net.plug();
        let lost = look(&net, &mut dataplane);
        assert!(lost.len() == 2 && lost[0].contains("was made anew"), "{lost:?}");
        let hooks = dataplane.hooks();
        assert_eq!((hooks[0].ingress, hooks[0].egress, &hooks[0].lost), (None, None, &lost));
        assert!(dataplane.needs_attach(&plan), "a reload would attach");
        assert!(!is_limited(&net, &mut dataplane, 11), "{name}: nothing was lost");

        // Links to programs that are loaded need no privileges; a filter does.
        let left = unprivileged(&net, || dataplane.mend());
        if attach == AttachMode::Clsact {
            assert_eq!(left.len(), 1, "{left:?}");
            assert_eq!(look(&net, &mut dataplane), lost);
            assert_eq!(within(&net.server, || dataplane.mend()), [""; 0]);
        } else {
            assert_eq!(left, [""; 0], "{name}");
        }
        assert_eq!(look(&net, &mut dataplane), [""; 0]);
        assert!(dataplane.hooks()[0].ingress.is_some() && dataplane.hooks()[0].egress.is_some());
        assert!(!dataplane.needs_attach(&plan));
        assert!(is_limited(&net, &mut dataplane, 12), "{name}");
        assert_eq!(within(&net.server, || dataplane.detach()), [""; 0]);
        assert!(!fs.pins().exists(), "no pins left");
    }
}

#[test]
fn filters_that_went_with_clsact_come_back_with_a_reload() {
    let (net, fs) = (Net::new(), BpfFs::new());
    let mut plan = at_home(AttachMode::Clsact, &fs);
    plan.config.services[0].requests =
        Some(plans::requests(&["pages"], vec![plans::rule("/", Some("pages"))]));
    let mut dataplane = within(&net.server, || Dataplane::start(&plan)).unwrap();
    assert_eq!(look(&net, &mut dataplane), [""; 0]);
    let listener = within(&net.server, || TcpListener::bind("0.0.0.0:80").unwrap());
    // What begins in the moment in which the hooks do is not followed.
    let mut open = Vec::new();
    let until = MonotonicClock.now() + Nanos::from_secs(10);
    while dataplane.followed().connections == 0 {
        assert!(MonotonicClock.now() < until, "no connection is followed");
        open.push((connect(&net).unwrap(), listener.accept().unwrap()));
        std::thread::sleep(Duration::from_millis(100));
        dataplane.heartbeat().unwrap();
    }
    net.server_sh("tc qdisc del dev s0 clsact");
    let lost = look(&net, &mut dataplane);
    assert_eq!(lost.len(), 4, "{lost:?}");
    assert!(lost.iter().all(|text| text.contains("its filter was deleted")), "{lost:?}");
    assert!(dataplane.hooks()[0].requests.is_none() && dataplane.needs_attach(&plan));
    within(&net.server, || dataplane.apply(&plan)).unwrap();
    assert_eq!(look(&net, &mut dataplane), [""; 0]);
    assert_eq!(dataplane.followed().connections, 0, "nobody saw what it said meanwhile");

    // One of them, and in its place one of another process.
    net.server_sh("tc filter del dev s0 egress pref 29799 handle 0x7467 bpf");
    let lost = look(&net, &mut dataplane);
    assert!(lost.len() == 1 && lost[0].contains("clsact (out)"), "{lost:?}");
    let other = within(&net.server, || Dataplane::start(&plan)).unwrap();
    let lost = look(&net, &mut dataplane);
    assert!(lost.len() == 1 && lost[0].contains("another program"), "{lost:?}: of the others ours");
    within(&net.server, || other.detach());
}

#[test]
fn hooks_that_wait_for_the_commit_are_not_called_lost() {
    let (net, fs) = (Net::new(), BpfFs::new());
    let first = within(&net.server, || Dataplane::start(&at_home(AttachMode::Tcx, &fs))).unwrap();
    let plan = at_home(AttachMode::Clsact, &fs);
    let mut second = within(&net.server, || Dataplane::begin(&plan)).unwrap();
    assert_eq!(look(&net, &mut second), [""; 0]);
    drop(first);
    assert_eq!(within(&net.server, || second.commit()), [""; 0]);
    assert_eq!(look(&net, &mut second), [""; 0]);
    within(&net.server, || second.detach());
}

/// As many programs as fit on one side of an interface (linux/bpf_mprog.h: `bpf_mprog_max`).
const CHAIN_MAX: usize = 63;

/// Egress takes no more programs: SYNs are evaluated again, and what is not there is still said, tried again,
/// and comes back with the first place that is free.
#[test]
fn a_hook_that_cannot_come_back_stays_lost_and_the_others_do_not_wait_for_it() {
    for rules in [false, true] {
        let (net, fs) = (Net::new(), BpfFs::new());
        let _listener = within(&net.server, || TcpListener::bind("0.0.0.0:80").unwrap());
        let mut plan = at_home(AttachMode::Tcx, &fs);
        plan.config.services[0].requests =
            rules.then(|| plans::requests(&["pages"], vec![plans::rule("/", Some("pages"))]));
        let mut dataplane = within(&net.server, || Dataplane::start(&plan)).unwrap();
        net.server_sh("ip link del s0");
        net.plug();
        let all = if rules { 4 } else { 2 };
        assert_eq!(look(&net, &mut dataplane).len(), all);
        let foreign = Foreign { verdict: ForeignVerdict::Next, egress: true, first: false };
        let attach = |_| foreign.attach(&net.interface(AttachMode::Tcx)).unwrap();
        let full: Vec<_> = (0..CHAIN_MAX).map(attach).collect();

        let left = unprivileged(&net, || dataplane.mend());
        assert!(left.iter().any(|text| text.contains("(out) is not there any more")), "{left:?}");
        for _ in 0..2 {
            let hooks = dataplane.hooks();
            assert_eq!((hooks[0].egress, hooks[0].requests), (None, None), "rules: {rules}");
            assert!(hooks[0].ingress.is_some(), "rules: {rules}");
            assert_eq!(look(&net, &mut dataplane).len(), all - 1, "rules: {rules}");
            assert!(dataplane.can_mend(), "rules: {rules}");
            unprivileged(&net, || dataplane.mend());
        }
        assert!(is_limited(&net, &mut dataplane, 10), "rules: {rules}");

        drop(full);
        assert_eq!(unprivileged(&net, || dataplane.mend()), [""; 0], "rules: {rules}");
        assert_eq!(look(&net, &mut dataplane), [""; 0], "rules: {rules}");
        let hooks = dataplane.hooks();
        assert!(hooks[0].egress.is_some() && hooks[0].requests.is_some() == rules);
        assert_eq!(within(&net.server, || dataplane.detach()), [""; 0]);
        assert!(!fs.pins().exists(), "no pins left");
    }
}
