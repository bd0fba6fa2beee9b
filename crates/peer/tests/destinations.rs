// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Routers that share what they see of destinations: what is taken of a peer, and two of them over loopback.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;
#[path = "../../gate/tests/port/mod.rs"]
mod port;

use common::{Authority, grant, id, report, wait_for};
use port::free_port;
use std::net::SocketAddr;
use std::sync::Arc;
use tidegate_model::sharing::DestinationReport;
use tidegate_peer::destinations::DestinationsMessage;
use tidegate_peer::frame::{BODY_MAX, Frame, HEAD, VERSION};
use tidegate_peer::node::{Node, NodeConfig, Target};
use tidegate_peer::session::{Heard, SILENCE_MAX, Sender, Session, Step};
use tidegate_peer::tls::Files;
use tidegate_peer::{DelegationFiles, Refusal, Table};
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// A session of the router r2 at one that knows r2 and r3; only with r2 it shares.
struct Pair {
    table: Table,
    session: Session,
    sender: Sender,
    now: Nanos,
}

impl Pair {
    fn new(name: &str) -> Self {
        let mut table = Table::new(&[grant(&id("r2")), grant(&id("r3"))]);
        table.share_with(&[id("r2")]);
        let now = Nanos::from_secs(100);
        let mut session = Session::begin(&mut table, id(name), 7, now).unwrap();
        let mut sender = Sender::new(Vec::new());
        let Heard::Up(hello) = sender.receive(session.welcome()) else { panic!("no hello") };
        assert_eq!(session.receive(&mut table, now, hello), Step::Go);
        Self { table, session, sender, now }
    }

    fn tell(&mut self, reports: &[DestinationReport]) -> Vec<Step> {
        self.now += Nanos::SECOND;
        let frames = self.sender.destinations(self.now, reports);
        frames.into_iter().map(|frame| self.take(frame)).collect()
    }

    /// As a listener takes it: charged, and read from its bytes.
    fn take(&mut self, frame: Frame) -> Step {
        let bytes = frame.encode(VERSION).unwrap();
        if let Some(step) = self.session.charge(&mut self.table, self.now, bytes.len()) {
            return step;
        }
        let (read, _) = Frame::decode(VERSION, &bytes).unwrap().unwrap();
        self.session.receive(&mut self.table, self.now, read)
    }

    fn refused(&self, why: Refusal) -> u64 {
        let states = self.table.states(self.now);
        let counts = states.iter().flat_map(|state| &state.refused);
        counts.filter(|count| count.reason == why.name()).map(|count| count.count).sum()
    }
}

#[test]
fn the_last_report_of_each_destination_is_taken_out_once() {
    let mut pair = Pair::new("r2");
    assert_eq!(pair.tell(&[report(80, 3), report(81, 4)]), [Step::Go]);
    assert_eq!(pair.tell(&[report(80, 5)]), [Step::Go]);
    let told = pair.table.take_destinations();
    assert_eq!(told.len(), 1);
    assert_eq!((told[0].router.as_str(), told[0].at), ("r2", pair.now));
    assert_eq!(told[0].reports, [report(80, 5), report(81, 4)]);
    assert_eq!(pair.table.take_destinations(), []);
    // Nothing to tell is a sign of life, and keeps the session up.
    for _ in 0..2 * SILENCE_MAX.0 / Nanos::SECOND.0 {
        assert_eq!(pair.tell(&[]), [Step::Go]);
        assert_eq!(pair.session.look(&mut pair.table, pair.now), Step::Go);
        let told = pair.table.take_destinations();
        assert!(told.len() == 1 && told[0].reports.is_empty(), "{told:?}");
    }
}

#[test]
fn what_was_held_up_counts_from_when_it_was_sent() {
    let mut pair = Pair::new("r2");
    pair.tell(&[report(80, 1)]);
    let frames = pair.sender.destinations(pair.now + Nanos::SECOND, &[report(80, 2)]);
    pair.now += Nanos::from_secs(5);
    frames.into_iter().for_each(|frame| assert_eq!(pair.take(frame), Step::Go));
    let told = pair.table.take_destinations();
    assert_eq!(told[0].at, pair.now - Nanos::from_secs(4));
}

#[test]
fn only_routers_that_share_are_heard() {
    let mut pair = Pair::new("r3");
    let steps = pair.tell(&[report(80, 3)]);
    assert!(matches!(&steps[..], [Step::Say(Frame::Refused(_))]), "{steps:?}");
    assert_eq!(pair.refused(Refusal::NotGranted), 1);
    assert_eq!(pair.table.take_destinations(), []);
    // One that shares no longer has nothing left of it.
    let mut pair = Pair::new("r2");
    pair.tell(&[report(80, 3)]);
    pair.table.share_with(&[]);
    assert_eq!(pair.table.take_destinations(), []);
}

#[test]
fn what_is_stale_recorded_or_out_of_bounds_is_refused() {
    let mut pair = Pair::new("r2");
    pair.tell(&[report(80, 3)]);
    pair.table.take_destinations();
    let of = |sequence, session, reports: Vec<DestinationReport>| {
        let message = DestinationsMessage { session, epoch: 1, sequence, sent_ms: 0, reports };
        Frame::Destinations(Box::new(message))
    };
    let unsound = DestinationReport { sample: 0, ..report(80, 3) };
    for (frame, why) in [
        (of(1, 7, vec![report(80, 3)]), Refusal::Stale),
        (of(9, 8, vec![report(80, 3)]), Refusal::OtherSession),
        (of(9, 7, vec![report(80, 3), unsound]), Refusal::OutOfRange),
        (of(9, 7, (1..=65).map(|port| report(port, 1)).collect()), Refusal::OutOfRange),
    ] {
        pair.now += Nanos::SECOND;
        let before = pair.refused(why);
        pair.take(frame);
        assert_eq!(pair.refused(why), before + 1, "{why:?}");
        assert_eq!(pair.table.take_destinations(), [], "{why:?}");
    }
    // More destinations than fit, in two messages.
    let many: Vec<_> = (1..=65).map(|port| report(port, 1)).collect();
    pair.tell(&many[..40]);
    pair.tell(&many[40..]);
    assert_eq!(pair.refused(Refusal::Quota), 1);
    assert_eq!(pair.table.take_destinations()[0].reports.len(), 40);
}

#[test]
fn the_largest_reports_a_router_may_send_are_within_its_quota() {
    let mut pair = Pair::new("r2");
    let mut all: Vec<_> = (1..=64).map(|port| report(port, 9)).collect();
    for report in &mut all {
        report.took = (0..256).map(|place| (place + 300, 70_000)).collect();
    }
    for _ in 0..30 {
        assert!(pair.tell(&all).iter().all(|step| *step == Step::Go));
        assert_eq!(pair.table.take_destinations()[0].reports.len(), 64);
    }
    assert_eq!(pair.refused(Refusal::Quota), 0);
}

#[test]
fn garbage_and_other_versions_are_no_reports() {
    let mut pair = Pair::new("r2");
    let frame = pair.sender.destinations(pair.now, &[report(80, 3)]).remove(0);
    assert_eq!(frame.encode(1), None, "version 1 has none");
    let bytes = frame.encode(VERSION).unwrap();
    let mut older = bytes.clone();
    older[2] = 1;
    assert!(matches!(Frame::decode(1, &older), Ok(Some((Frame::Unknown(12), _)))));
    for at in HEAD..bytes.len() {
        for change in [0x01, 0x20, 0x80, 0xff] {
            let mut other = bytes.clone();
            other[at] ^= change;
            if let Ok(Some((read, length))) = Frame::decode(VERSION, &other) {
                assert_eq!(read.encode(VERSION).unwrap(), other[..length]);
            }
        }
    }
    let most = bytes.len() - HEAD;
    assert!(most < BODY_MAX);
}

/// A router that shares with another one.
fn router(files: Files, (here, there): (SocketAddr, SocketAddr), other: &str) -> NodeConfig {
    let target = Target {
        name: other.into(),
        address: there,
        identity: id(other),
        services: Vec::new(),
        validity: Nanos::SECOND,
    };
    let (grants, targets, routers) = (vec![grant(&id(other))], vec![target], vec![id(other)]);
    let delegation = DelegationFiles::default();
    NodeConfig { files, listen: Some(here), grants, targets, delegation, routers, bus: None }
}

#[test]
fn two_routers_hear_each_other() {
    let authority = Authority::new();
    let (a, b) = (free_port(), free_port());
    let start = |config| {
        let node = Node::start(Arc::new(MonotonicClock)).unwrap();
        node.follow(Some(config)).unwrap();
        node
    };
    let r1 = start(router(authority.host("r1"), (a, b), "r2"));
    let r2 = start(router(authority.host("r2"), (b, a), "r1"));
    for (from, to, name) in [(&r1, &r2, "r1"), (&r2, &r1, "r2")] {
        let begun = MonotonicClock.now();
        let told = wait_for("reports arrive", || {
            from.share(vec![report(80, 3)]);
            to.shared().into_iter().find(|told| !told.reports.is_empty())
        });
        assert_eq!((told.router.as_str(), &told.reports[..]), (name, &[report(80, 3)][..]));
        assert!(told.at >= begun && told.at <= MonotonicClock.now());
    }
    // One that does not want it any more is told nothing, and hears nothing.
    let config = router(authority.host("r1"), (a, b), "r2");
    r1.follow(Some(NodeConfig { routers: Vec::new(), ..config })).unwrap();
    wait_for("nothing is taken", || {
        r2.share(vec![report(81, 1)]);
        let states = r1.states(MonotonicClock.now());
        let refused = states.into_iter().flat_map(|state| state.refused);
        refused.into_iter().find(|r| r.reason == Refusal::NotGranted.name()).map(|_| ())
    });
    assert_eq!(r1.shared(), []);
}
