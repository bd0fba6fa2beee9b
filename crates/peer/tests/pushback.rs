// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Notices of a congested router, and the signed limits that answer them: both machines, and whatever an
//! authenticated peer may try.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

use tidegate_model::SpiffeId;
use tidegate_model::remote::{Arrived, Notice, Pushed, RemoteLimit, Restriction, Unit};
use tidegate_peer::authority::{
    Bounds, GrantBody, Kinds, Receiver, Revocations, SignedGrant, SignedLimit, SignedRevocations,
    SigningKey,
};
use tidegate_peer::frame::{Frame, VERSION};
use tidegate_peer::notice::NoticeMessage;
use tidegate_peer::session::{Heard, Sender, Session, Step};
use tidegate_peer::{Grant, Refusal, Table};
use tidegate_units::{Nanos, Rate};

const ROUTER: &str = "spiffe://example.org/r1";
const SCOPE: &str = "192.0.2.5:80";
const TODAY: u64 = 1_800_000_000;
const NOW: Nanos = Nanos::from_secs(100);

fn id(name: &str) -> SpiffeId {
    format!("spiffe://example.org/{name}").parse().unwrap()
}

fn key(number: u8) -> SigningKey {
    SigningKey::from_seed(&[number; 32]).unwrap()
}

/// A grant for the peer b1; its number is that of its key.
fn grant(serial: u8, scope: &str) -> SignedGrant {
    granted(serial, scope, Kinds { rate: true, ..Kinds::default() })
}

/// The same of other kinds.
fn granted(serial: u8, scope: &str, kinds: Kinds) -> SignedGrant {
    let body = GrantBody {
        serial: serial.into(),
        holder: id("b1").to_string(),
        key: key(serial).public(),
        scopes: vec![scope.into()],
        kinds,
        limits: 4,
        changes: 20,
        staged: true,
        from_s: TODAY - 100,
        until_s: TODAY + 100,
    };
    SignedGrant::sign(body, &key(1)).unwrap()
}

/// A router of which b1 and b2 own addresses, and b1 has a grant: for more than what this router's table gives it
/// on one side, and for less on the other.
struct World {
    table: Table,
    session: Session,
    sender: Sender,
}

impl World {
    fn new() -> Self {
        Self::of("b1")
    }

    fn of(peer: &str) -> Self {
        let own = |name: &str, scopes: &[&str]| Grant {
            name: name.into(),
            identity: id(name),
            services: vec!["shop".into()],
            limits: vec!["192.0.2.128/25:80".parse().unwrap()],
            when_congested: scopes.iter().map(|scope| scope.parse().unwrap()).collect(),
            targets: 0,
        };
        let b1 = own("b1", &["192.0.2.0/29:80", "192.0.2.32/29:80"]);
        let mut table = Table::new(&[b1, own("b2", &["192.0.2.12:80"])]);
        let mut receiver = Receiver::new(ROUTER, key(1).public(), Bounds::default());
        receiver.grant(NOW, &grant(2, "192.0.2.0/28:80")).unwrap();
        table.trust(Some(receiver));
        table.at_day(TODAY);
        let mut session = Session::begin(&mut table, id(peer), 77, NOW).unwrap();
        let mut sender = Sender::new(vec!["shop".into()]);
        let Heard::Up(hello) = sender.receive(session.welcome()) else { panic!("no hello") };
        assert_eq!(session.receive(&mut table, NOW, hello), Step::Go);
        Self { table, session, sender }
    }

    /// The number of a notice as the server hears it.
    fn notice(&mut self, now: Nanos) -> u64 {
        self.notice_of(now, "shop-1", SCOPE)
    }

    fn notice_of(&mut self, now: Nanos, service: &str, listen: &str) -> u64 {
        self.notice_in(now, (service, listen), Unit::Connections)
    }

    fn notice_in(&mut self, now: Nanos, (service, listen): (&str, &str), unit: Unit) -> u64 {
        let rate = Rate::per_second;
        let said = Notice {
            service: service.into(),
            listens: vec![listen.parse().unwrap()],
            episode: 4,
            unit,
            offered: rate(150.25),
            refused: rate(30.0),
        };
        let frame = self.session.notice(&mut self.table, now, &said).unwrap();
        let bytes = frame.encode(VERSION).unwrap();
        let (read, length) = Frame::decode(VERSION, &bytes).unwrap().unwrap();
        assert_eq!((&read, length), (&frame, bytes.len()));
        match self.sender.receive(read) {
            Heard::Notice(number, heard) if heard == said => number,
            other => panic!("{other:?}"),
        }
    }

    fn signed(&mut self, notice: u64, rate: f64) -> SignedLimit {
        self.signed_in(notice, rate, Unit::Connections)
    }

    fn signed_in(&mut self, notice: u64, rate: f64, unit: Unit) -> SignedLimit {
        let restriction = unit.limit(Rate::per_second(rate));
        self.signed_as(notice, &RemoteLimit { restriction, ..limit(SCOPE, rate) })
    }

    fn signed_as(&mut self, notice: u64, limit: &RemoteLimit) -> SignedLimit {
        let to = (2, &ROUTER.parse().unwrap());
        let answers = (Rate::per_second(100.0), notice);
        match self.sender.pushback(to, limit, answers, &key(2)) {
            Some(Frame::Pushback(signed)) => *signed,
            other => panic!("{other:?}"),
        }
    }

    /// What becomes of it: a limit, or the last refusal.
    fn push(&mut self, now: Nanos, signed: SignedLimit) -> Result<Pushed, String> {
        let bytes = Frame::Pushback(Box::new(signed)).encode(VERSION).unwrap();
        let (frame, _) = Frame::decode(VERSION, &bytes).unwrap().unwrap();
        self.session.receive(&mut self.table, now, frame);
        let mut taken = self.table.take_limits();
        let name = self.table.name(self.session.identity()).unwrap().to_owned();
        let states = self.table.states(now);
        let problem = states.into_iter().find(|s| s.name == name).unwrap().problem;
        match taken.pop() {
            Some(Arrived::Pushed(pushed)) => Ok(pushed),
            Some(Arrived::Plain(plain)) => panic!("{plain:?}"),
            None => Err(problem),
        }
    }

    /// A limit that nobody has signed.
    fn plain(&mut self, scope: &str) {
        let frame = self.sender.limit(&limit(scope, 60.0)).unwrap();
        self.session.receive(&mut self.table, NOW, frame);
    }

    fn refused(&self, reason: &str) -> u64 {
        let states = self.table.states(NOW);
        let counts = states.iter().flat_map(|state| &state.refused);
        counts.filter(|count| count.reason == reason).map(|count| count.count).sum()
    }
}

fn limit(scope: &str, rate: f64) -> RemoteLimit {
    RemoteLimit {
        scope: scope.parse().unwrap(),
        restriction: Restriction::Rate(Rate::per_second(rate)),
        validity: Nanos::from_secs(10),
        sequence: 0,
        priority: 0,
    }
}

#[test]
fn a_notice_is_answered_by_a_limit_that_is_taken_once() {
    let mut world = World::new();
    let notice = world.notice(NOW);
    let signed = world.signed(notice, 60.0);
    let taken = world.push(NOW, signed.clone()).unwrap();
    assert_eq!(taken.whole, Rate::per_second(100.0));
    assert_eq!(taken.enforced_from, NOW + Nanos::from_secs(5), "its grant is staged");
    let limit = &taken.received.limit;
    assert_eq!((limit.scope.to_string().as_str(), taken.received.peer.as_str()), (SCOPE, "b1"));
    assert_eq!(limit.restriction, Restriction::Rate(Rate::per_second(60.0)));
    assert!(world.push(NOW, signed).unwrap_err().contains("stale"), "a replay");
    // The same notice may be answered again, by a newer limit, while it counts.
    let next = world.signed(notice, 50.0);
    let later = NOW + Nanos::from_secs(3);
    assert_eq!(world.push(later, next).unwrap().enforced_from, NOW + Nanos::from_secs(5));
    let held_back = world.signed(notice, 50.0);
    let late = world.push(later + Nanos(1), held_back).unwrap_err();
    assert!(late.contains("stale"), "{late}");
}

#[test]
fn without_a_grant_nobody_is_told_anything_and_nothing_is_taken() {
    let mut other = World::of("b2");
    let listens = vec!["192.0.2.12:80".parse().unwrap()];
    let notice = Notice { service: "shop-2".into(), listens, ..Notice::default() };
    assert_eq!(other.session.notice(&mut other.table, NOW, &notice), None);
    let signed = other.signed(1, 60.0);
    assert!(other.push(NOW, signed).is_err());
    let mut world = World::new();
    let notice = world.notice(NOW);
    world.table.trust(None);
    let signed = world.signed(notice, 60.0);
    assert!(world.push(NOW, signed).unwrap_err().contains("not this peer's"));
}

/// What a scope of the table takes, a signed limit only or any, that it takes and nothing else.
#[test]
fn limits_of_scopes_for_congestion_need_a_grant_and_a_signature() {
    for (peer, scope, taken) in [
        ("b1", "192.0.2.128:80", true),
        ("b1", SCOPE, false),
        ("b1", "192.0.2.32/29:80", false),
        // Neither does one without any grant.
        ("b2", "192.0.2.12:80", false),
    ] {
        let mut world = World::of(peer);
        world.plain(scope);
        let arrived = world.table.take_limits();
        assert_eq!(arrived.len(), usize::from(taken), "{peer} {scope}");
        assert!(arrived.iter().all(|limit| matches!(limit, Arrived::Plain(_))), "{scope}");
        assert_eq!(world.refused("not-granted"), u64::from(!taken), "{peer} {scope}");
    }
    // Signed, but the table says that it needs neither: then it is not about congestion.
    let mut world = World::new();
    let notice = world.notice_of(NOW, "other", "192.0.2.129:80");
    let mut signed = world.signed(notice, 60.0);
    signed.limit.scope = "192.0.2.129:80".into();
    assert!(world.push(NOW, again(signed)).is_err());
}

/// Both kinds share the numbers of the session. A newer one of one kind does not hide an older one of the other.
#[test]
fn limits_of_both_kinds_come_out_in_the_order_of_their_numbers() {
    let mut world = World::new();
    let notice = world.notice(NOW);
    world.plain("192.0.2.128:80");
    let signed = world.signed(notice, 60.0);
    let pushed = Frame::Pushback(Box::new(signed));
    assert_eq!(world.session.receive(&mut world.table, NOW, pushed), Step::Go);
    world.plain("192.0.2.129:80");
    let taken = world.table.take_limits();
    let kinds: Vec<bool> =
        taken.iter().map(|arrived| matches!(arrived, Arrived::Pushed(_))).collect();
    assert_eq!(kinds, [false, true, false]);
    let numbers = taken.iter().map(|arrived| arrived.received().limit.sequence);
    assert!(numbers.is_sorted(), "{taken:?}");
}

/// The same with the holder's signature.
fn again(limit: SignedLimit) -> SignedLimit {
    let SignedLimit { grant, receiver, limit, whole_milli, notice, .. } = limit;
    SignedLimit::sign((grant, &receiver), limit, (whole_milli, notice), &key(2))
}

/// One thing is wrong, and the holder has signed it.
#[test]
fn each_clause_refuses() {
    type Change = fn(&mut SignedLimit);
    let cases: [(&str, &str, Change); 8] = [
        ("another router", "for another receiver", |l| l.receiver.push('x')),
        ("another grant", "no such grant", |l| l.grant = 9),
        ("another session", "another session", |l| l.limit.session = 78),
        ("another epoch", "another session", |l| l.limit.epoch = 9),
        ("an old number", "stale", |l| l.limit.sequence = 0),
        ("another kind", "a kind that is not granted", |l| l.limit.kind = 2),
        ("too long", "outside its range", |l| l.limit.validity_ms = 10_001),
        ("no notice", "stale", |l| l.notice = 99),
    ];
    for (what, why, change) in cases {
        let mut world = World::new();
        let notice = world.notice(NOW);
        let mut wrong = world.signed(notice, 60.0);
        change(&mut wrong);
        let refused = world.push(NOW, again(wrong)).unwrap_err();
        assert!(refused.contains(why), "{what}: {refused}");
        let notice = world.notice(NOW);
        let good = world.signed(notice, 60.0);
        assert!(world.push(NOW, good).is_ok(), "{what}: the session goes on");
    }
}

/// The table of the router has 192.0.2.0/29:80 and 192.0.2.32/29:80, the grant 192.0.2.0/28:80: both sides of each
/// edge.
#[test]
fn a_limit_lies_in_a_prefix_of_the_table_and_in_one_of_the_grant() {
    let table = "a service or scope that is not this peer's";
    for (scope, refused) in [
        ("192.0.2.0:80", None),
        ("192.0.2.7:80", None),
        ("192.0.2.0/30:80", None),
        ("192.0.2.4/30:80", None),
        ("192.0.2.0/29:80", None),
        ("192.0.1.255:80", Some(table)),
        ("192.0.2.8:80", Some(table)),
        ("192.0.2.15:80", Some(table)),
        ("192.0.2.0/28:80", Some(table)),
        ("192.0.2.0/24:80", Some(table)),
        ("192.0.2.5:81", Some(table)),
        ("192.0.2.5:*", Some(table)),
        ("shop-1", Some(table)),
        ("192.0.2.31:80", Some(table)),
        ("192.0.2.32:80", Some("not inside the grant")),
        ("192.0.2.39:80", Some("not inside the grant")),
        ("192.0.2.32/29:80", Some("not inside the grant")),
        ("192.0.2.40:80", Some(table)),
        ("192.0.2.1/29:80", Some("outside its range")),
    ] {
        let mut world = World::new();
        // Of a service that each of these scopes would reach.
        let listen = scope.split(['/', ':']).next().map(|address| format!("{address}:80"));
        let listen = listen.filter(|listen| listen.starts_with("192")).unwrap_or(SCOPE.into());
        let notice = world.notice_of(NOW, "shop-1", &listen);
        let mut signed = world.signed(notice, 60.0);
        signed.limit.scope = scope.into();
        let result = world.push(NOW, again(signed)).err();
        match (&result, refused) {
            (None, None) => {}
            (Some(result), Some(why)) => assert!(result.contains(why), "{scope}: {result}"),
            _ => panic!("{scope}: {result:?}"),
        }
    }
}

/// What was said of one service is not answered by a limit for another.
#[test]
fn a_limit_answers_a_notice_about_a_service_in_its_scope() {
    let mut world = World::new();
    let other = world.notice_of(NOW, "api", "192.0.2.6:80");
    let signed = world.signed(other, 60.0);
    assert!(world.push(NOW, signed).unwrap_err().contains("stale"));
    let own = world.notice(NOW);
    let signed = world.signed(own, 60.0);
    assert!(world.push(NOW, signed).is_ok());
}

impl World {
    /// The grant allows limits on datagrams, too.
    fn with_datagrams() -> Self {
        let mut world = Self::new();
        let mut receiver = Receiver::new(ROUTER, key(1).public(), Bounds::default());
        let kinds = Kinds { rate: true, datagrams: true, ..Kinds::default() };
        receiver.grant(NOW, &granted(2, "192.0.2.0/28:80", kinds)).unwrap();
        world.table.trust(None);
        world.table.trust(Some(receiver));
        world
    }
}

/// Datagrams and connections of one scope have notices and limits of their own, and none stands for the other.
#[test]
fn a_limit_on_datagrams_answers_a_notice_about_datagrams() {
    let mut world = World::with_datagrams();
    let (connections, about) = (world.notice(NOW), ("shop-1", SCOPE));
    let datagrams = world.notice_in(NOW, about, Unit::Datagrams);
    assert_eq!((connections, datagrams), (1, 2), "one count");
    for (notice, unit) in [(connections, Unit::Datagrams), (datagrams, Unit::Connections)] {
        let signed = world.signed_in(notice, 60.0, unit);
        assert!(world.push(NOW, signed).unwrap_err().contains("stale"), "{unit:?}");
    }
    // Both at once: neither takes the place of the other.
    let first = world.signed_in(datagrams, 40.0, Unit::Datagrams);
    let frame = Frame::Pushback(Box::new(first));
    assert_eq!(world.session.receive(&mut world.table, NOW, frame), Step::Go);
    let second = world.signed(connections, 60.0);
    let frame = Frame::Pushback(Box::new(second));
    assert_eq!(world.session.receive(&mut world.table, NOW, frame), Step::Go);
    let taken = world.table.take_limits();
    let limits: Vec<Restriction> =
        taken.iter().map(|arrived| arrived.received().limit.restriction).collect();
    let rate = Rate::per_second;
    assert_eq!(limits, [Restriction::Datagrams(rate(40.0)), Restriction::Rate(rate(60.0))]);
    // Staged each from its own begin.
    let later = NOW + Nanos::from_secs(2);
    let datagrams = world.notice_in(later, about, Unit::Datagrams);
    let again = world.signed_in(datagrams, 30.0, Unit::Datagrams);
    assert_eq!(world.push(later, again).unwrap().enforced_from, NOW + Nanos::from_secs(5));
}

/// A grant from before there were limits on datagrams, or without that kind, allows none; and its holder is not told
/// of datagrams.
#[test]
fn datagrams_need_a_grant_of_their_kind() {
    let mut world = World::new();
    let listens = vec![SCOPE.parse().unwrap()];
    let said =
        Notice { service: "shop-1".into(), listens, unit: Unit::Datagrams, ..Notice::default() };
    assert_eq!(world.session.notice(&mut world.table, NOW, &said), None);
    // Nor the other way round.
    let mut only = World::new();
    let mut receiver = Receiver::new(ROUTER, key(1).public(), Bounds::default());
    let kinds = Kinds { datagrams: true, ..Kinds::default() };
    receiver.grant(NOW, &granted(2, "192.0.2.0/28:80", kinds)).unwrap();
    only.table.trust(None);
    only.table.trust(Some(receiver));
    let connections = Notice { unit: Unit::Connections, ..said.clone() };
    assert_eq!(only.session.notice(&mut only.table, NOW, &connections), None);
    assert!(only.session.notice(&mut only.table, NOW, &said).is_some());
    // The kind is under the signature.
    let mut world = World::with_datagrams();
    let notice = world.notice_in(NOW, ("shop-1", SCOPE), Unit::Datagrams);
    world.notice(NOW);
    let mut forged = world.signed(notice, 60.0);
    forged.limit.kind = 4;
    assert!(world.push(NOW, forged).unwrap_err().contains("signature"));
}

/// Without a signature no limit on datagrams counts, whoever owns the address.
#[test]
fn a_plain_limit_on_datagrams_is_not_supported() {
    let mut world = World::with_datagrams();
    let restriction = Restriction::Datagrams(Rate::per_second(5.0));
    let plain = RemoteLimit { restriction, ..limit("192.0.2.128:80", 5.0) };
    let frame = world.sender.limit(&plain).unwrap();
    world.session.receive(&mut world.table, NOW, frame);
    assert!(world.table.take_limits().is_empty());
    assert_eq!(world.refused("unsupported"), 1);
}

/// What a relay or a router that was taken over could try: to change what the holder has signed.
#[test]
fn what_is_signed_cannot_be_widened() {
    type Change = fn(&mut SignedLimit);
    let cases: [(&str, Change); 5] = [
        ("lower", |l| l.limit.value = 1_000),
        ("for longer", |l| l.limit.validity_ms -= 1),
        ("for another", |l| l.limit.scope = "192.0.2.4/30:80".into()),
        ("towards less", |l| l.whole_milli -= 1),
        ("for a later notice", |l| l.notice += 1),
    ];
    for (what, change) in cases {
        let mut world = World::new();
        let notice = world.notice(NOW);
        world.notice(NOW);
        let mut wrong = world.signed(notice, 60.0);
        change(&mut wrong);
        let why = world.push(NOW, wrong).unwrap_err();
        assert!(why.contains("signature"), "{what}: {why}");
    }
}

#[test]
fn what_is_revoked_or_expired_ends_and_another_session_begins_anew() {
    let mut world = World::new();
    let notice = world.notice(NOW);
    world.table.at_day(TODAY + 100);
    let late = world.signed(notice, 60.0);
    assert!(world.push(NOW, late).unwrap_err().contains("not valid now"));
    world.table.at_day(TODAY);
    let good = world.signed(notice, 60.0);
    assert!(world.push(NOW, good).is_ok());
    let mut expired = world.table.clone();
    assert!(expired.take_ended().is_empty());
    expired.at_day(TODAY + 100);
    let ended = expired.take_ended();
    assert_eq!(ended.len(), 1, "what was given until later ends with its grant, too");
    // The files are read again, with a list of revocations beside them: the session goes on.
    let mut receiver = Receiver::new(ROUTER, key(1).public(), Bounds::default());
    let list = Revocations { sequence: 1, serials: vec![2] };
    receiver.revoke(&SignedRevocations::sign(list, &key(1)).unwrap()).unwrap();
    assert!(receiver.grant(NOW, &grant(2, "192.0.2.0/28:80")).is_err());
    world.table.trust(Some(receiver));
    assert_eq!(world.table.take_ended(), ended);
    assert!(world.table.take_ended().is_empty(), "said once");
    let name = world.table.name(world.session.identity()).unwrap().to_owned();
    assert_eq!(ended, [(name, SCOPE.parse().unwrap(), Unit::Connections)]);
    let revoked = world.signed(notice, 60.0);
    assert!(world.push(NOW, revoked).unwrap_err().contains("no such grant"));
    let listens = vec![SCOPE.parse().unwrap()];
    let notice = Notice { service: "shop-1".into(), listens, ..Notice::default() };
    assert_eq!(world.session.notice(&mut world.table, NOW, &notice), None);
}

/// What is enforced refuses a limit that is too short for its steps, and holds on to the one before.
#[test]
fn a_later_limit_hides_none_from_the_end_of_its_grant() {
    let mut world = World::new();
    let notice = world.notice(NOW);
    let first = world.signed(notice, 60.0);
    world.push(NOW, first).unwrap();
    let short = RemoteLimit { validity: Nanos::from_millis(200), ..limit(SCOPE, 60.0) };
    let short = world.signed_as(notice, &short);
    world.push(NOW, short).unwrap();
    let (later, scope) = (NOW + Nanos::SECOND, "192.0.2.6:80");
    let notice = world.notice_of(later, "shop-2", scope);
    let other = world.signed_as(notice, &limit(scope, 60.0));
    world.push(later, other).unwrap();
    let ends = |table: &mut Table| {
        let ended = table.take_ended();
        [SCOPE, scope].map(|scope| ended.iter().any(|(_, of, _)| *of == scope.parse().unwrap()))
    };
    assert_eq!(ends(&mut world.table), [false; 2]);
    // The same number with another key: the first one was stolen.
    let mut reissued = world.table.clone();
    let old = grant(2, "192.0.2.0/28:80").body().clone();
    let body = GrantBody { key: key(3).public(), from_s: TODAY - 50, ..old };
    let mut receiver = Receiver::new(ROUTER, key(1).public(), Bounds::default());
    receiver.grant(later, &SignedGrant::sign(body, &key(1)).unwrap()).unwrap();
    reissued.trust(Some(receiver));
    assert_eq!(ends(&mut reissued), [true; 2]);
    world.table.trust(None);
    assert_eq!(ends(&mut world.table), [true; 2]);
}

/// The files are read again: what holds goes on where it was.
#[test]
fn files_that_are_read_again_forget_nothing_that_is_still_granted() {
    let receiver = |grants: &[SignedGrant]| {
        let mut receiver = Receiver::new(ROUTER, key(1).public(), Bounds::default());
        grants.iter().for_each(|grant| receiver.grant(NOW, grant).unwrap());
        receiver
    };
    let mut world = World::new();
    let notice = world.notice(NOW);
    let first = world.signed(notice, 60.0);
    assert!(world.push(NOW, first).is_ok());
    let later = NOW + Nanos::SECOND;
    let both = [grant(2, "192.0.2.0/28:80"), grant(3, "192.0.2.64/28:80")];
    world.table.trust(Some(receiver(&both)));
    let next = world.signed(notice, 50.0);
    let taken = world.push(later, next).unwrap();
    assert_eq!(taken.enforced_from, NOW + Nanos::from_secs(5), "it has been staged for a second");
    // Twenty changes a minute: 18 are left, and not quite one has come back in three seconds.
    let at = later + Nanos::from_millis(1_900);
    let notice = world.notice(at);
    for n in 0..18 {
        world.table.trust(Some(receiver(&both)));
        let signed = world.signed(notice, 50.0);
        assert!(world.push(at, signed).is_ok(), "{n}");
    }
    world.table.trust(Some(receiver(&both)));
    let more = world.signed(notice, 50.0);
    assert!(world.push(at, more).unwrap_err().contains("too many changes"));
}

/// A service that no notice can be about, because it has no address, ends nobody's session.
#[test]
fn of_a_service_without_an_address_there_is_no_notice() {
    let mut world = World::new();
    let good = Notice {
        service: "shop".into(),
        listens: vec![SCOPE.parse().unwrap()],
        offered: Rate::per_second(5.0),
        ..Notice::default()
    };
    for wrong in [
        Notice { listens: Vec::new(), ..good.clone() },
        Notice { service: "a b".into(), ..good.clone() },
    ] {
        assert_eq!(world.session.notice(&mut world.table, NOW, &wrong), None, "{wrong:?}");
    }
    let most = Notice { offered: Rate::per_second(1e12), refused: Rate::per_second(2e12), ..good };
    let frame = world.session.notice(&mut world.table, NOW, &most).unwrap();
    assert!(matches!(world.sender.receive(frame), Heard::Notice(1, _)));
}

#[test]
fn a_notice_out_of_range_ends_the_session_at_the_server() {
    type Change = fn(&mut NoticeMessage);
    let cases: [(&str, Change); 5] = [
        ("no name", |n| n.service.clear()),
        ("no name either", |n| n.service = "a b".into()),
        ("no address", |n| n.listens.clear()),
        ("more refused than came", |n| n.refused_milli = n.offered_milli + 1),
        ("no number", |n| n.number = 0),
    ];
    for (what, change) in cases {
        let mut world = World::new();
        let listens = vec![SCOPE.parse().unwrap()];
        let said = Notice { service: "shop".into(), listens, ..Notice::default() };
        let mut message = NoticeMessage::of((77, 1), &said);
        assert!(message.notice(Unit::Connections).is_some());
        change(&mut message);
        let heard = world.sender.receive(Frame::Notice(Unit::Connections, Box::new(message)));
        assert_eq!(heard, Heard::Wrong(Refusal::OutOfRange), "{what}");
    }
    // Version 1 knows neither.
    let mut world = World::new();
    let signed = world.signed(1, 60.0);
    assert_eq!(Frame::Pushback(Box::new(signed)).encode(1), None);
}
