// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Both machines of the protocol in virtual time, and whatever an authenticated peer may try.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

use proptest::prelude::*;
use tidegate_model::SpiffeId;
use tidegate_model::remote::{Hits, ReceivedLimit, RemoteLimit, Restriction, Unit};
use tidegate_model::signals::{AcceptQueue, Reading, Signals};
use tidegate_peer::frame::{Frame, Hello, VERSION};
use tidegate_peer::limit::{HitsMessage, LimitMessage};
use tidegate_peer::session::{
    FIRST_WORD_MAX, Heard, SESSION_MAX, SILENCE_MAX, Sender, Session, Step,
};
use tidegate_peer::table::UNKNOWN;
use tidegate_peer::{Grant, Refusal, Report, Table};
use tidegate_units::{Nanos, Rate, Share};

fn id(name: &str) -> SpiffeId {
    format!("spiffe://example.org/{name}").parse().unwrap()
}

fn grants() -> Vec<Grant> {
    let grant = |name: &str, services: &[&str]| Grant {
        name: name.into(),
        identity: id(name),
        services: services.iter().map(|s| (*s).to_owned()).collect(),
        limits: services.iter().map(|s| s.parse().unwrap()).collect(),
        when_congested: Vec::new(),
        targets: 0,
    };
    vec![grant("b1", &["shop", "api"]), grant("b2", &["shop"])]
}

fn signals(length: u64) -> Signals {
    let mut signals = Signals::default();
    let age = Nanos::from_millis(20);
    signals.resource.cpu = Some(Reading { value: Share::new(0.5), age });
    signals.queue.accept = Some(Reading { value: AcceptQueue { length, limit: 128 }, age });
    signals
}

fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

/// A session that is up, as both sides see it.
struct Pair {
    session: Session,
    sender: Sender,
}

impl Pair {
    fn new(table: &mut Table, name: &str, number: u64, now: Nanos) -> Self {
        let mut session = Session::begin(table, id(name), number, now).unwrap();
        let mut sender = Sender::new(vec!["shop".into()]);
        let Heard::Up(hello) = sender.receive(session.welcome()) else { panic!("no hello") };
        assert_eq!(session.receive(table, now, hello), Step::Go);
        Self { session, sender }
    }

    fn frame(&mut self, now: Nanos, service: &str, validity: Nanos) -> Frame {
        self.sender.report(now, Report::of(service, &signals(7), validity)).unwrap()
    }
}

fn refused(table: &Table, name: &str) -> Vec<(String, u64)> {
    let states = table.states(Nanos::ZERO);
    let state = states.into_iter().find(|state| state.name == name);
    state.map_or_else(Vec::new, |s| s.refused.into_iter().map(|r| (r.reason, r.count)).collect())
}

#[test]
fn a_report_arrives_with_its_age_and_ends_with_its_validity() {
    let mut table = Table::new(&grants());
    let mut pair = Pair::new(&mut table, "b1", 1, ms(0));
    let frame = pair.frame(ms(1000), "shop", ms(500));
    assert_eq!(pair.session.receive(&mut table, ms(5000), frame), Step::Go);
    let backend = table.backend(ms(5100), "b1", "shop");
    assert!(backend.valid);
    assert_eq!(backend.age, Some(ms(100)));
    let accept = backend.queue.accept.unwrap();
    assert_eq!((accept.value.length, accept.value.limit, accept.age), (7, 128, ms(120)));
    assert_eq!(backend.resource.cpu.unwrap().value, Share::new(0.5));
    assert!(table.backend(ms(5499), "b1", "shop").valid);
    let over = table.backend(ms(5500), "b1", "shop");
    assert!(!over.valid && over.queue.accept.is_none() && over.resource.cpu.is_none());
    assert_eq!(over.age, Some(ms(500)), "when it was heard last is still known");
    assert!(!table.backend(ms(5100), "b2", "shop").valid, "another peer's service of that name");
    assert!(!table.backend(ms(5100), "b1", "api").valid, "another service of the peer");
}

#[test]
fn validity_zero_and_leave_end_it_now_and_a_lost_line_does_not() {
    let mut table = Table::new(&grants());
    let mut pair = Pair::new(&mut table, "b1", 1, ms(0));
    for (validity, valid) in [(500, true), (0, false), (500, true)] {
        let frame = pair.frame(ms(10), "shop", ms(validity));
        pair.session.receive(&mut table, ms(10), frame);
        assert_eq!(table.backend(ms(10), "b1", "shop").valid, valid, "validity {validity} ms");
    }
    table.close(&id("b1"), 1, false);
    assert!(table.backend(ms(20), "b1", "shop").valid, "a new session may come in time");
    let mut pair = Pair::new(&mut table, "b1", 2, ms(30));
    let frame = pair.frame(ms(30), "shop", ms(500));
    pair.session.receive(&mut table, ms(30), frame);
    table.close(&id("b1"), 1, true);
    assert!(table.backend(ms(40), "b1", "shop").valid, "the old session has no say any more");
    table.close(&id("b1"), 2, true);
    assert!(!table.backend(ms(40), "b1", "shop").valid);
}

#[test]
fn repeated_stale_and_recorded_reports_are_refused_and_do_not_extend_validity() {
    let mut table = Table::new(&grants());
    let mut pair = Pair::new(&mut table, "b1", 1, ms(0));
    let first = pair.frame(ms(0), "shop", ms(500));
    let second = pair.frame(ms(0), "shop", ms(500));
    pair.session.receive(&mut table, ms(0), second.clone());
    for (at, frame) in [(400, &first), (450, &second)] {
        pair.session.receive(&mut table, ms(at), frame.clone());
    }
    assert!(!table.backend(ms(500), "b1", "shop").valid, "as if the copies had not come");
    assert_eq!(refused(&table, "b1"), [("stale".into(), 2)]);
    let mut again = Pair::new(&mut table, "b1", 2, ms(600));
    again.session.receive(&mut table, ms(600), second);
    assert_eq!(refused(&table, "b1"), [("other-session".into(), 1), ("stale".into(), 2)]);
    let Frame::Report(mut forged) = again.frame(ms(600), "shop", ms(500)) else { panic!() };
    forged.epoch -= 1;
    again.session.receive(&mut table, ms(600), Frame::Report(forged));
    assert_eq!(refused(&table, "b1")[1], ("stale".into(), 3), "an epoch that is over");
    assert!(!table.backend(ms(600), "b1", "shop").valid);
}

#[test]
fn a_peer_reports_only_what_it_may() {
    let mut table = Table::new(&grants());
    let mut pair = Pair::new(&mut table, "b2", 1, ms(0));
    let frame = pair.frame(ms(0), "api", ms(500));
    let step = pair.session.receive(&mut table, ms(0), frame);
    let Step::Say(answer) = step else { panic!("{step:?}") };
    let Heard::Refused(told) = pair.sender.receive(answer) else { panic!("no answer") };
    assert_eq!((told.service.as_str(), told.why.refusal()), ("api", Refusal::NotGranted));
    let frame = pair.frame(ms(10), "api", ms(500));
    assert_eq!(pair.session.receive(&mut table, ms(10), frame), Step::Go, "told once a second");
    assert_eq!(refused(&table, "b2"), [("not-granted".into(), 2)]);
    let states = table.states(ms(10));
    assert!(states[1].problem.contains("\"api\""), "{}", states[1].problem);
    assert!(!table.backend(ms(10), "b1", "api").valid);
    let good = pair.frame(ms(20), "shop", ms(500));
    assert_eq!(pair.session.receive(&mut table, ms(20), good), Step::Go, "the session goes on");
    assert!(table.backend(ms(20), "b2", "shop").valid);
}

/// A peer that owns a service tells one limit of each of its buckets, and each may fall all the time.
#[test]
fn the_quota_counts_each_limit_that_the_configuration_allows() {
    let grant = |targets| {
        let mut grants = grants();
        grants.iter_mut().for_each(|grant| grant.targets = targets);
        grants
    };
    let mut table = Table::new(&grant(0));
    let mut session = Session::begin(&mut table, id("b2"), 9, ms(0)).unwrap();
    let mut refused = |table: &mut Table, from: u64| {
        let rounds = (0..600).flat_map(|round| [from + 60 * round; 6]);
        let above = rounds.filter(|at| session.charge(table, ms(*at), 80) == Some(Step::Go));
        above.count()
    };
    let few = refused(&mut table, 0);
    assert!(few > 1_000, "{few}: of one service");
    table.follow(&grant(6));
    assert_eq!(refused(&mut table, 60_000), 0, "at once, also in a session that goes on");
}

#[test]
fn a_hello_tells_what_will_not_be_taken() {
    let mut table = Table::new(&grants());
    let mut session = Session::begin(&mut table, id("b2"), 9, ms(0)).unwrap();
    let services = vec!["shop".into(), "secret".into(), "../x".into()];
    let hello = Frame::Hello(Hello { session: 9, services });
    let Step::Say(Frame::Refused(told)) = session.receive(&mut table, ms(0), hello) else {
        panic!()
    };
    assert_eq!((told.sequence, told.service.as_str()), (0, "secret"));
    assert_eq!(refused(&table, "b2"), [("not-granted".into(), 1), ("out-of-range".into(), 1)]);
}

#[test]
fn strangers_and_those_who_begin_too_often_get_no_session() {
    let mut table = Table::new(&grants());
    assert_eq!(Session::begin(&mut table, id("eve"), 1, ms(0)).unwrap_err(), Refusal::UnknownPeer);
    assert_eq!(refused(&table, UNKNOWN), [("unknown-peer".into(), 1)]);
    let begun = (0..50).filter(|n| Session::begin(&mut table, id("b1"), *n, ms(1)).is_ok()).count();
    assert_eq!(begun, 10);
    assert!(Session::begin(&mut table, id("b2"), 1, ms(1)).is_ok(), "others are not concerned");
    assert!(Session::begin(&mut table, id("b1"), 1, ms(2_000)).is_ok(), "one more a second");
}

#[test]
fn a_newer_session_takes_the_place_of_the_old_one() {
    let mut table = Table::new(&grants());
    let mut old = Pair::new(&mut table, "b1", 1, ms(0));
    let mut new = Pair::new(&mut table, "b1", 2, ms(0));
    let frame = old.frame(ms(0), "shop", ms(500));
    let step = old.session.receive(&mut table, ms(0), frame);
    assert!(matches!(step, Step::End(_, Refusal::Superseded)), "{step:?}");
    let frame = new.frame(ms(0), "shop", ms(500));
    assert_eq!(new.session.receive(&mut table, ms(0), frame), Step::Go);
    assert!(new.sender.position().0 > old.sender.position().0, "a higher epoch");
}

#[test]
fn silence_a_newer_session_and_an_hour_end_a_session() {
    let mut table = Table::new(&grants());
    let over = |session: &Session, table: &mut Table, now| match session.look(table, now) {
        Step::Go => None,
        Step::End(_, why) => Some(why),
        step => panic!("{step:?}"),
    };
    let waiting = Session::begin(&mut table, id("b1"), 1, ms(0)).unwrap();
    assert_eq!(over(&waiting, &mut table, ms(4_999)), None);
    assert_eq!(over(&waiting, &mut table, FIRST_WORD_MAX), Some(Refusal::Silent));
    let mut pair = Pair::new(&mut table, "b1", 2, ms(0));
    assert_eq!(over(&waiting, &mut table, ms(0)), Some(Refusal::Superseded));
    assert_eq!(over(&pair.session, &mut table, ms(14_999)), None);
    assert_eq!(over(&pair.session, &mut table, SILENCE_MAX), Some(Refusal::Silent));
    for at in (0..=3_600).step_by(10).map(Nanos::from_secs) {
        assert_eq!(
            over(&pair.session, &mut table, at),
            (at >= SESSION_MAX).then_some(Refusal::Expired)
        );
        let frame = pair.frame(at, "shop", ms(500));
        pair.session.receive(&mut table, at, frame);
    }
}

#[test]
fn messages_out_of_order_end_the_session() {
    let mut table = Table::new(&grants());
    let mut session = Session::begin(&mut table, id("b1"), 1, ms(0)).unwrap();
    assert_eq!(session.deadline(), FIRST_WORD_MAX);
    let early = Frame::Report(Box::new(Report { session: 1, ..Report::default() }));
    let step = session.receive(&mut table, ms(0), early);
    assert!(matches!(step, Step::End(_, Refusal::Unexpected)), "{step:?}");
    let mut session = Session::begin(&mut table, id("b1"), 2, ms(0)).unwrap();
    let step =
        session.receive(&mut table, ms(0), Frame::Hello(Hello { session: 1, services: vec![] }));
    assert!(matches!(step, Step::End(_, Refusal::OtherSession)), "{step:?}");
    let mut pair = Pair::new(&mut table, "b1", 3, ms(0));
    assert_eq!(pair.session.deadline(), SILENCE_MAX);
    let twice = Frame::Hello(Hello { session: 3, services: vec![] });
    let step = pair.session.receive(&mut table, ms(0), twice);
    assert!(matches!(step, Step::End(_, Refusal::Unexpected)), "{step:?}");
    assert_eq!(
        Sender::new(vec![]).receive(Frame::Hello(Hello { session: 1, services: vec![] })),
        Heard::Wrong(Refusal::Unexpected)
    );
}

#[test]
fn what_was_held_up_on_its_way_is_as_old_as_that() {
    let mut table = Table::new(&grants());
    let mut pair = Pair::new(&mut table, "b1", 1, ms(0));
    // The sender's clock began long before, and all of its reports but one take 2 ms.
    let offset = 9_000_000;
    for i in 0..10 {
        let frame = pair.frame(ms(offset + 100 * i), "shop", ms(500));
        pair.session.receive(&mut table, ms(100 * i + 2), frame);
    }
    assert_eq!(table.backend(ms(902), "b1", "shop").age, Some(Nanos::ZERO));
    let late = pair.frame(ms(offset + 1000), "shop", ms(500));
    pair.session.receive(&mut table, ms(1402), late);
    let backend = table.backend(ms(1402), "b1", "shop");
    assert_eq!((backend.valid, backend.age), (true, Some(ms(400))));
    assert!(!table.backend(ms(1502), "b1", "shop").valid);
    let later = pair.frame(ms(offset + 1100), "shop", ms(500));
    pair.session.receive(&mut table, ms(3000), later);
    assert!(!table.backend(ms(3000), "b1", "shop").valid, "over before it arrived");
}

#[test]
fn completions_are_a_rate_by_the_senders_clock() {
    let mut table = Table::new(&grants());
    let mut pair = Pair::new(&mut table, "b1", 1, ms(0));
    for (at, arrives, completed) in [(0, 0, 100), (100, 190, 150)] {
        let report =
            Report { completed: Some(completed), ..Report::of("shop", &signals(0), ms(500)) };
        let frame = pair.sender.report(ms(at), report).unwrap();
        pair.session.receive(&mut table, ms(arrives), frame);
    }
    let backend = table.backend(ms(190), "b1", "shop");
    assert_eq!(backend.completed_per_s.map(|r| r.value), Some(500.0));
}

#[test]
fn another_configuration_keeps_what_stays_granted() {
    let mut table = Table::new(&grants());
    let mut pair = Pair::new(&mut table, "b1", 1, ms(0));
    for service in ["shop", "api"] {
        let frame = pair.frame(ms(0), service, ms(500));
        pair.session.receive(&mut table, ms(0), frame);
    }
    let mut fewer = grants();
    fewer[0].services.pop();
    fewer[0].name = "renamed".into();
    fewer.pop();
    table.follow(&fewer);
    assert!(table.backend(ms(1), "renamed", "shop").valid);
    assert!(!table.backend(ms(1), "renamed", "api").valid, "not granted any more");
    let frame = pair.frame(ms(1), "shop", ms(500));
    assert_eq!(pair.session.receive(&mut table, ms(1), frame), Step::Go, "the session goes on");
    table.follow(&[]);
    let frame = pair.frame(ms(2), "shop", ms(500));
    let step = pair.session.receive(&mut table, ms(2), frame);
    assert!(matches!(step, Step::End(_, Refusal::UnknownPeer)), "{step:?}");
}

fn remote(scope: &str, rate: f64) -> RemoteLimit {
    RemoteLimit {
        scope: scope.parse().unwrap(),
        restriction: Restriction::Rate(Rate::per_second(rate)),
        validity: ms(500),
        sequence: 0,
        priority: 0,
    }
}

#[test]
fn a_limit_arrives_once_with_its_place_in_the_session() {
    let mut table = Table::new(&grants());
    let mut pair = Pair::new(&mut table, "b1", 4, ms(0));
    let report = pair.frame(ms(0), "shop", ms(500));
    assert_eq!(pair.session.receive(&mut table, ms(0), report), Step::Go);
    let first = pair.sender.limit(&remote("shop", 40.0)).unwrap();
    let second = pair.sender.limit(&remote("api", 30.0)).unwrap();
    for (at, frame) in [(10, &first), (20, &second)] {
        assert_eq!(pair.session.receive(&mut table, ms(at), frame.clone()), Step::Go);
    }
    let taken = table.take_limits();
    let said = |r: &ReceivedLimit| (r.peer.clone(), r.session, r.epoch, r.at, r.limit.sequence);
    let said: Vec<_> = taken.iter().map(|arrived| said(arrived.received())).collect();
    let b1 = || "b1".to_owned();
    assert_eq!(said, [(b1(), 4, 1, ms(10), 2), (b1(), 4, 1, ms(20), 3)]);
    assert_eq!(taken[1].received().limit, RemoteLimit { sequence: 3, ..remote("api", 30.0) });
    assert_eq!(table.sessions(), [(b1(), Some((4, 1))), ("b2".into(), None)]);
    // Again, and from a session that is over.
    pair.session.receive(&mut table, ms(30), second.clone());
    let mut next = Pair::new(&mut table, "b1", 5, ms(40));
    next.session.receive(&mut table, ms(40), second);
    assert_eq!(refused(&table, "b1"), [("other-session".into(), 1), ("stale".into(), 1)]);
    assert!(table.take_limits().is_empty());
    let state = &table.states(ms(50))[0];
    assert_eq!((state.limits, state.reports), (2, 1));
}

#[test]
fn a_peer_limits_only_what_it_owns() {
    let mut table = Table::new(&grants());
    let mut pair = Pair::new(&mut table, "b2", 1, ms(0));
    for (at, scope) in [(0, "api"), (1, "192.0.2.1:80"), (2, "[2001:db8::1]:80")] {
        let frame = pair.sender.limit(&remote(scope, 40.0)).unwrap();
        let step = pair.session.receive(&mut table, ms(at), frame);
        let told = matches!(step, Step::Say(Frame::Refused(_)));
        assert_eq!(told, at == 0, "told once a second: {step:?}");
    }
    let mut unknown = LimitMessage::of(&remote("shop", 40.0));
    (unknown.session, unknown.epoch, unknown.sequence, unknown.kind) = (1, 1, 9, 77);
    pair.session.receive(&mut table, ms(3), Frame::Limit(unknown));
    assert_eq!(refused(&table, "b2"), [("not-granted".into(), 3), ("unsupported".into(), 1)]);
    assert!(table.take_limits().is_empty());
    table.follow(&grants()[..1]);
    let frame = pair.sender.limit(&remote("shop", 40.0)).unwrap();
    let step = pair.session.receive(&mut table, ms(4), frame);
    assert!(matches!(step, Step::End(_, Refusal::UnknownPeer)), "{step:?}");
}

/// A session speaks of requests and their buckets from version 3 on.
#[test]
fn an_older_session_has_no_limits_on_requests() {
    let rate = Rate::per_second(40.0);
    let requests = [
        Restriction::Requests(rate),
        Restriction::RequestLoss(Share::new(0.5)),
        Restriction::RequestGap(ms(25)),
    ];
    let mut table = Table::new(&grants());
    for (version, newer) in [(2, false), (3, true)] {
        let mut pair = Pair::new(&mut table, "b1", version.into(), ms(0));
        pair.session = pair.session.speaking(&mut table, version);
        let all = ["shop", "shop/search"].into_iter().flat_map(|scope| {
            let all = requests.into_iter().chain([Restriction::Rate(rate)]);
            all.map(move |restriction| RemoteLimit { restriction, ..remote(scope, 40.0) })
        });
        for limit in all {
            let plain = limit.restriction.unit() == Unit::Connections;
            let known = newer || plain && limit.scope == "shop".parse().unwrap();
            let before = table.states(ms(1))[0].limits;
            let frame = pair.sender.limit(&limit).unwrap();
            pair.session.receive(&mut table, ms(1), frame);
            let taken = table.states(ms(1))[0].limits - before;
            assert_eq!(taken, u64::from(known), "version {version}: {limit:?}");
        }
        // Of eight the older one takes one.
        assert_eq!(refused(&table, "b1"), [("unsupported".into(), 7)]);
        // Of both units there is one of each scope.
        assert_eq!(table.take_limits().len(), if newer { 4 } else { 1 });
    }
    assert_eq!(LimitMessage::of(&remote("shop/search", 1.0)).limit(2), Err(Refusal::Unsupported));
}

#[test]
fn hit_counters_come_back_in_their_session() {
    let mut table = Table::new(&grants());
    let mut pair = Pair::new(&mut table, "b1", 6, ms(0));
    let scope = "shop".parse().unwrap();
    let unit = Unit::Connections;
    let hits = Hits { scope, unit, span: ms(200), offered: 9, refused: 4, probe: true };
    for unit in [Unit::Datagrams, Unit::Requests] {
        let other = Hits { unit, ..hits.clone() };
        let frame = pair.session.hits(&other);
        assert_eq!(pair.sender.receive(frame), Heard::Hits(other));
    }
    let frame = pair.session.hits(&hits);
    assert_eq!(pair.sender.receive(frame.clone()), Heard::Hits(hits));
    let Frame::Hits(Unit::Connections, message) = frame else { panic!() };
    for wrong in [
        HitsMessage { session: 7, ..message.clone() },
        HitsMessage { refused: 10, ..message.clone() },
        HitsMessage { scope: "a b".into(), ..message },
    ] {
        assert!(matches!(pair.sender.receive(Frame::Hits(unit, wrong)), Heard::Wrong(_)));
    }
    // They are nothing that a sender says.
    let step = pair.session.receive(&mut table, ms(0), frame_of_hits());
    assert!(matches!(step, Step::End(_, Refusal::Unexpected)), "{step:?}");
}

fn frame_of_hits() -> Frame {
    Frame::Hits(Unit::Datagrams, HitsMessage { session: 6, ..HitsMessage::default() })
}

/// What a peer may do, the well-behaved and the others.
#[derive(Clone, Debug)]
enum Act {
    Wait(u64),
    Report { service: usize, validity_ms: u32 },
    Replay(prop::sample::Index),
    Change { at: prop::sample::Index, session: u8, epoch: i8, sequence: i8 },
    Reconnect,
    Drop { end: bool },
}

fn act() -> impl Strategy<Value = Act> {
    use prop::sample::Index;
    prop_oneof![
        3 => (0_u64..400).prop_map(Act::Wait),
        5 => (0..3_usize, 0..12_000_u32).prop_map(|(service, validity_ms)| Act::Report { service, validity_ms }),
        3 => any::<Index>().prop_map(Act::Replay),
        3 => (any::<Index>(), 0..2_u8, -1..2_i8, -2..3_i8)
            .prop_map(|(at, session, epoch, sequence)| Act::Change { at, session, epoch, sequence }),
        1 => Just(Act::Reconnect),
        1 => any::<bool>().prop_map(|end| Act::Drop { end }),
    ]
}

const SERVICES: [&str; 3] = ["shop", "api", "not-granted"];

/// What must be known, by the rules and nothing else: the reference of [`Table`] for one peer.
#[derive(Default)]
struct Reference {
    session: u64,
    up: bool,
    epoch: u64,
    sequence: u64,
    told: [Option<(Nanos, Nanos)>; 2],
}

impl Reference {
    fn take(&mut self, now: Nanos, report: &Report) {
        let service = SERVICES[..2].iter().position(|s| *s == report.service);
        let fresh = self.up
            && report.session == self.session
            && report.epoch == self.epoch
            && report.sequence > self.sequence;
        let (Some(service), true) = (service, fresh && report.validity_ms <= 10_000) else {
            return;
        };
        self.sequence = report.sequence;
        let validity = ms(report.validity_ms.into());
        self.told[service] = (validity > Nanos::ZERO).then_some((now, validity));
    }

    fn valid(&self, now: Nanos, service: usize) -> bool {
        self.told[service].is_some_and(|(at, validity)| now.since(at) < validity)
    }
}

/// A peer, its session, and the reference beside it.
struct Play {
    table: Table,
    now: Nanos,
    number: u64,
    reference: Reference,
    recorded: Vec<Frame>,
    pair: Option<Pair>,
}

impl Play {
    fn new() -> Self {
        let mut play = Self {
            table: Table::new(&grants()),
            now: ms(1),
            number: 0,
            reference: Reference::default(),
            recorded: Vec::new(),
            pair: None,
        };
        play.begin();
        play
    }

    fn begin(&mut self) {
        self.number += 1;
        let begun = Session::begin(&mut self.table, id("b1"), self.number, self.now);
        self.pair = begun.ok().map(|session| Pair { session, sender: Sender::new(vec![]) });
        let Some(Pair { session, sender }) = &mut self.pair else { return };
        let Heard::Up(hello) = sender.receive(session.welcome()) else { panic!("no hello") };
        session.receive(&mut self.table, self.now, hello);
        let epoch = sender.position().0;
        assert!(epoch > self.reference.epoch, "epochs only grow");
        let told = self.reference.told;
        self.reference = Reference { session: self.number, up: true, epoch, sequence: 0, told };
    }

    /// Does what is to be done; a report that is to be sent.
    fn act(&mut self, act: Act) -> Option<Frame> {
        // A quota is another test's concern: time goes on, and so the budget does.
        self.now += ms(2);
        match act {
            Act::Wait(time) => self.now += ms(time),
            Act::Report { service, validity_ms } => {
                let report = Report::of(SERVICES[service], &signals(1), ms(0));
                let sender = &mut self.pair.as_mut()?.sender;
                return sender.report(Nanos::ZERO, Report { validity_ms, ..report });
            }
            Act::Replay(index) if !self.recorded.is_empty() => {
                return Some(index.get(&self.recorded).clone());
            }
            Act::Change { at, session, epoch, sequence } if !self.recorded.is_empty() => {
                let Frame::Report(mut report) = at.get(&self.recorded).clone() else { panic!() };
                report.session = report.session.wrapping_add(session.into());
                report.epoch = report.epoch.wrapping_add_signed(epoch.into());
                report.sequence = report.sequence.wrapping_add_signed(sequence.into());
                return Some(Frame::Report(report));
            }
            Act::Replay(_) | Act::Change { .. } => {}
            Act::Reconnect => {
                self.now += Nanos::SECOND;
                self.begin();
            }
            Act::Drop { end } => self.hang_up(end),
        }
        None
    }

    fn hang_up(&mut self, end: bool) {
        if self.pair.take().is_some() {
            self.table.close(&id("b1"), self.number, end);
            self.reference.up = false;
            if end {
                self.reference.told = [None; 2];
            }
        }
    }

    fn deliver(&mut self, frame: &Frame) {
        let (Some(pair), Frame::Report(report)) = (&mut self.pair, frame) else { return };
        // Sent at the time of arrival: what is late is another test's concern.
        let report = Report { sent_ms: self.now.0 / 1_000_000, ..(**report).clone() };
        self.reference.take(self.now, &report);
        let frame = Frame::Report(Box::new(report));
        let bytes = frame.encode(VERSION).unwrap();
        self.recorded.push(frame);
        let (read, _) = Frame::decode(VERSION, &bytes).unwrap().unwrap();
        let step = pair.session.receive(&mut self.table, self.now, read);
        assert!(matches!(step, Step::Go | Step::Say(_)), "{step:?}");
    }

    fn holds(&self) {
        let now = self.now;
        for (service, name) in SERVICES[..2].iter().enumerate() {
            let known = self.table.backend(now, "b1", name);
            assert_eq!(known.valid, self.reference.valid(now, service), "{name} at {now}");
            assert!(known.valid || known.queue.accept.is_none());
        }
        assert!(!self.table.backend(now, "b1", "not-granted").valid);
        assert!(!self.table.backend(now, "b2", "shop").valid, "nobody speaks for another");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever a peer sends, and however often: what is valid is what the rules say, and never
    /// longer than the last fresh report said.
    #[test]
    fn any_sequence_of_messages_follows_the_rules(acts in proptest::collection::vec(act(), 1..80)) {
        let mut play = Play::new();
        for act in acts {
            if let Some(frame) = play.act(act) {
                play.deliver(&frame);
            }
            play.holds();
        }
    }
}
