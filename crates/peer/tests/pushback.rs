// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Notices of a congested router, and the signed limits that answer them: both machines, and whatever an
//! authenticated peer may try.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

use tidegate_model::SpiffeId;
use tidegate_model::remote::{Notice, Pushed, RemoteLimit, Restriction};
use tidegate_peer::authority::{
    Bounds, GrantBody, Kinds, Receiver, Revocations, SignedGrant, SignedLimit, SignedRevocations,
    SigningKey,
};
use tidegate_peer::frame::{Frame, VERSION};
use tidegate_peer::session::{Heard, Sender, Session, Step};
use tidegate_peer::{Grant, Refusal, Table};
use tidegate_units::{Nanos, Rate};

const ROUTER: &str = "spiffe://example.org/r1";
const SCOPE: &str = "192.0.2.11:80";
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
    let body = GrantBody {
        serial: serial.into(),
        holder: id("b1").to_string(),
        key: key(serial).public(),
        scopes: vec![scope.into()],
        kinds: Kinds { rate: true, loss: false, gap: false },
        limits: 4,
        changes: 20,
        staged: true,
        from_s: TODAY - 100,
        until_s: TODAY + 100,
    };
    SignedGrant::sign(body, &key(1)).unwrap()
}

/// A router whose peers b1 and b2 own an address each, and of which b1 has a grant.
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
        let own = |name: &str, limits: &str| Grant {
            name: name.into(),
            identity: id(name),
            services: vec!["shop".into()],
            limits: vec![limits.parse().unwrap()],
        };
        let mut table = Table::new(&[own("b1", "192.0.2.0/24:80"), own("b2", "192.0.2.12:80")]);
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
        let rate = Rate::per_second;
        let said = Notice {
            service: "shop-1".into(),
            listens: vec![SCOPE.parse().unwrap()],
            episode: 4,
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
        let limit = RemoteLimit {
            scope: SCOPE.parse().unwrap(),
            restriction: Restriction::Rate(Rate::per_second(rate)),
            validity: Nanos::from_secs(10),
            sequence: 0,
            priority: 0,
        };
        let to = (2, &ROUTER.parse().unwrap());
        let answers = (Rate::per_second(100.0), notice);
        match self.sender.pushback(to, &limit, answers, &key(2)) {
            Some(Frame::Pushback(signed)) => *signed,
            other => panic!("{other:?}"),
        }
    }

    /// What becomes of it: a limit, or the last refusal.
    fn push(&mut self, now: Nanos, signed: SignedLimit) -> Result<Pushed, String> {
        let bytes = Frame::Pushback(Box::new(signed)).encode(VERSION).unwrap();
        let (frame, _) = Frame::decode(VERSION, &bytes).unwrap().unwrap();
        self.session.receive(&mut self.table, now, frame);
        let mut taken = self.table.take_pushed();
        assert!(self.table.take_limits().is_empty(), "only a signed one is one");
        let name = self.table.name(self.session.identity()).unwrap().to_owned();
        let states = self.table.states(now);
        let trouble = states.into_iter().find(|s| s.name == name).unwrap().trouble;
        taken.pop().ok_or(trouble)
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
    let notice = Notice { service: "shop-2".into(), ..Notice::default() };
    assert_eq!(other.session.notice(&mut other.table, NOW, &notice), None);
    let signed = other.signed(1, 60.0);
    assert!(other.push(NOW, signed).is_err());
    let mut world = World::new();
    let notice = world.notice(NOW);
    world.table.trust(None);
    let signed = world.signed(notice, 60.0);
    assert!(world.push(NOW, signed).unwrap_err().contains("not this peer's"));
}

/// One thing is wrong, and the holder has signed it.
#[test]
fn each_clause_refuses() {
    type Change = fn(&mut SignedLimit);
    let cases: [(&str, Change); 10] = [
        ("another router", |l| l.receiver = "spiffe://example.org/r2".into()),
        ("another grant", |l| l.grant = 9),
        ("another session", |l| l.limit.session = 78),
        ("another epoch", |l| l.limit.epoch = 9),
        ("an old number", |l| l.limit.sequence = 0),
        ("outside the grant", |l| l.limit.scope = "192.0.2.200:80".into()),
        ("outside the table", |l| l.limit.scope = "192.0.3.1:80".into()),
        ("another kind", |l| l.limit.kind = 2),
        ("too long", |l| l.limit.validity_ms = 10_001),
        ("no notice", |l| l.notice = 99),
    ];
    for (what, change) in cases {
        let mut world = World::new();
        let notice = world.notice(NOW);
        let SignedLimit { grant, receiver, limit, whole_milli, notice, signature } =
            world.signed(notice, 60.0);
        let mut wrong = SignedLimit { grant, receiver, limit, whole_milli, notice, signature };
        change(&mut wrong);
        let SignedLimit { grant, receiver, limit, whole_milli, notice, .. } = wrong;
        let again = SignedLimit::sign((grant, &receiver), limit, (whole_milli, notice), &key(2));
        assert!(world.push(NOW, again).is_err(), "{what}");
        let notice = world.notice(NOW);
        let good = world.signed(notice, 60.0);
        assert!(world.push(NOW, good).is_ok(), "{what}: the session goes on");
    }
}

/// What a relay or a router that was taken over could try: to change what the holder has signed.
#[test]
fn what_is_signed_cannot_be_widened() {
    type Change = fn(&mut SignedLimit);
    let cases: [(&str, Change); 5] = [
        ("lower", |l| l.limit.value = 1_000),
        ("for longer", |l| l.limit.validity_ms -= 1),
        ("for another", |l| l.limit.scope = "192.0.2.12:80".into()),
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
    // The files are read again, with a list of revocations beside them: the session goes on.
    let mut receiver = Receiver::new(ROUTER, key(1).public(), Bounds::default());
    let list = Revocations { sequence: 1, serials: vec![2] };
    receiver.revoke(&SignedRevocations::sign(list, &key(1)).unwrap()).unwrap();
    assert!(receiver.grant(NOW, &grant(2, "192.0.2.0/28:80")).is_err());
    world.table.trust(Some(receiver));
    let revoked = world.signed(notice, 60.0);
    assert!(world.push(NOW, revoked).unwrap_err().contains("no such grant"));
    assert_eq!(world.session.notice(&mut world.table, NOW, &Notice::default()), None);
}

#[test]
fn a_notice_out_of_range_ends_the_session_at_the_server() {
    let mut world = World::new();
    world.notice(NOW);
    let rate = Rate::per_second;
    let listens = vec![SCOPE.parse().unwrap()];
    let good = Notice { service: "shop".into(), listens, offered: rate(5.0), ..Notice::default() };
    for (service, refused) in [("", 0.0), ("a b", 0.0)] {
        let wrong = Notice { service: service.into(), refused: rate(refused), ..good.clone() };
        let frame = world.session.notice(&mut world.table, NOW, &wrong).unwrap();
        assert_eq!(world.sender.receive(frame), Heard::Wrong(Refusal::OutOfRange), "{service:?}");
    }
    let empty = Notice { listens: Vec::new(), ..good };
    let frame = world.session.notice(&mut world.table, NOW, &empty).unwrap();
    assert_eq!(world.sender.receive(frame), Heard::Wrong(Refusal::OutOfRange));
    // Version 1 knows neither.
    let signed = world.signed(1, 60.0);
    assert_eq!(Frame::Pushback(Box::new(signed)).encode(1), None);
}
