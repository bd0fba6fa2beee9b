// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Signed grants and limits: what is wrong in one thing is refused for that thing, forged limits are never
//! taken.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "common/forge.rs"]
mod forge;

use forge::{Forger, NOTICE, NOW, OPERATOR, ROUTER, TODAY, WHOLE_MILLI, World, body, key, message};
use tidegate_model::remote::{Restriction, Unit};
use tidegate_peer::authority::{
    Bounds, Denied, GrantBody, Kinds, Receiver, Revocations, SignedGrant, SignedLimit,
    SignedRevocations, SigningKey, VerifyingKey,
};
use tidegate_peer::limit::LimitMessage;
use tidegate_units::Nanos;

const UNIT: Unit = Unit::Connections;

fn accept(world: &mut World, bytes: &[u8]) -> Result<f64, Denied> {
    let taken = world.receiver.accept((NOW, TODAY), bytes)?;
    match taken.limit.restriction {
        Restriction::Rate(rate) => Ok(rate.get()),
        other => panic!("{other}"),
    }
}

#[test]
fn a_limit_inside_its_grant_is_taken_once() {
    let mut world = World::new();
    let signed = world.signed(message(1));
    assert_eq!(accept(&mut world, &signed), Ok(400.0));
    assert_eq!(accept(&mut world, &signed), Err(Denied::Stale), "a replay");
    let next = world.signed(message(2));
    assert_eq!(accept(&mut world, &next), Ok(400.0));
    world.receiver.open(1, (77, 5));
    assert_eq!(accept(&mut world, &signed), Err(Denied::Stale), "the same session goes on");
    world.receiver.open(1, (78, 6));
    let old = world.signed(message(3));
    assert_eq!(accept(&mut world, &old), Err(Denied::Session), "of the session before");
}

/// One thing is wrong, everything else right, and the holder has signed it.
#[test]
fn each_clause_refuses_for_its_reason() {
    type Change = fn(&mut SignedLimit);
    let cases: [(Denied, Change); 15] = [
        (Denied::Receiver, |l| l.receiver = "spiffe://example.org/other".into()),
        (Denied::Grant, |l| l.grant = 99),
        (Denied::Session, |l| l.limit.session = 1),
        (Denied::Session, |l| l.limit.epoch = 4),
        (Denied::Stale, |l| l.limit.sequence = 0),
        (Denied::Kind, |l| l.limit.kind = 2),
        (Denied::Kind, |l| l.limit.kind = 9),
        (Denied::OutOfRange, |l| l.limit.value = 0),
        (Denied::OutOfRange, |l| l.limit.validity_ms = 10_001),
        (Denied::OutOfRange, |l| l.limit.scope = "192.0.2.1/24:80".into()),
        (Denied::OutOfRange, |l| l.limit.scope = "0.0.0.0/0:80".into()),
        (Denied::OutOfRange, |l| l.limit.scope = "[::ffff:192.0.2.1]:80".into()),
        (Denied::Scope, |l| l.limit.scope = "192.0.3.1:80".into()),
        (Denied::Scope, |l| l.limit.scope = "192.0.2.1:81".into()),
        (Denied::Scope, |l| l.limit.scope = "shop".into()),
    ];
    for (why, change) in cases {
        let mut world = World::new();
        let mut limit = SignedLimit::decode(&world.signed(message(1))).unwrap();
        change(&mut limit);
        let signed = SignedLimit::sign(
            (limit.grant, &limit.receiver),
            limit.limit,
            (WHOLE_MILLI, NOTICE),
            &world.holder,
        );
        assert_eq!(accept(&mut world, &signed.encode()), Err(why), "{signed:?}");
        assert_eq!(world.receiver.denied().get(&why), Some(&1));
        let good = world.signed(message(1));
        assert!(accept(&mut world, &good).is_ok(), "what was refused has changed nothing");
    }
}

#[test]
fn a_signature_is_of_one_key_one_kind_and_one_content() {
    let mut world = World::new();
    let good = SignedLimit::decode(&world.signed(message(1))).unwrap();
    let other = SignedLimit::sign((1, ROUTER), message(1), (WHOLE_MILLI, NOTICE), &key(9));
    let wider = SignedLimit {
        limit: {
            let mut m = good.limit.clone();
            m.value /= 2;
            m
        },
        ..good.clone()
    };
    let none = SignedLimit { signature: Vec::new(), ..good.clone() };
    for forged in [other, wider, none] {
        assert_eq!(accept(&mut world, &forged.encode()), Err(Denied::Signature));
    }
    for at in 0..64 {
        let mut forged = good.clone();
        forged.signature[at] ^= 1;
        assert_eq!(accept(&mut world, &forged.encode()), Err(Denied::Signature), "byte {at}");
    }
    assert!(accept(&mut world, &good.encode()).is_ok());
}

#[test]
fn grants_need_the_operator_and_are_in_range() {
    let operator = key(OPERATOR);
    let mut receiver = Receiver::new(ROUTER, operator.public(), Bounds::default());
    let grant = SignedGrant::sign(body(), &operator).unwrap();
    assert_eq!(SignedGrant::from_text(&grant.to_text()).as_ref(), Some(&grant));
    let foreign = SignedGrant::sign(body(), &key(3)).unwrap();
    assert_eq!(receiver.grant(NOW, &foreign), Err(Denied::Grant));
    let text = grant.to_text();
    for (at, _) in text.char_indices().filter(|(at, c)| *at > 17 && c.is_ascii_hexdigit()) {
        let digit = if &text[at..=at] == "0" { "1" } else { "0" };
        let changed = format!("{}{digit}{}", &text[..at], &text[at + 1..]);
        let taken =
            SignedGrant::from_text(&changed).is_some_and(|g| receiver.grant(NOW, &g).is_ok());
        assert!(!taken, "digit {at} is changed");
    }
    assert_eq!(receiver.grant(NOW, &grant), Ok(()));
    for bad in [
        GrantBody { scopes: vec![], ..body() },
        GrantBody { scopes: vec!["shop".into()], ..body() },
        GrantBody { scopes: vec!["192.0.2.1/24:80".into()], ..body() },
        GrantBody { scopes: vec!["10.0.0.0/8:80".into()], ..body() },
        GrantBody { holder: "nobody".into(), ..body() },
        GrantBody { limits: 0, ..body() },
        GrantBody { limits: 257, ..body() },
        GrantBody { changes: 0, ..body() },
        GrantBody { until_s: TODAY, from_s: TODAY, ..body() },
    ] {
        assert!(SignedGrant::sign(bad.clone(), &operator).is_none(), "{bad:?}");
    }
}

#[test]
fn grants_expire_and_are_revoked() {
    for (today, why) in
        [(TODAY - 101, true), (TODAY - 100, false), (TODAY + 99, false), (TODAY + 100, true)]
    {
        let mut world = World::new();
        let signed = world.signed(message(1));
        let taken = world.receiver.accept((NOW, today), &signed).err();
        assert_eq!(taken, why.then_some(Denied::Expired), "{today}");
    }
    let mut world = World::new();
    let signed = world.signed(message(1));
    assert!(accept(&mut world, &signed).is_ok());
    assert_eq!(world.receiver.in_force(NOW), 1);
    let list = |sequence, key: &SigningKey| {
        SignedRevocations::sign(Revocations { sequence, serials: vec![7, 1] }, key).unwrap()
    };
    assert_eq!(world.receiver.revoke(&list(1, &key(3))), Err(Denied::Signature));
    let good = list(1, &key(OPERATOR));
    assert_eq!(SignedRevocations::from_text(&good.to_text()), Some(good.clone()));
    assert_eq!(
        world.receiver.revoke(&good),
        Ok(vec![1]),
        "of these somebody has to lift the limits"
    );
    assert_eq!(world.receiver.in_force(NOW), 0, "at once, within one time to live");
    let again = world.signed(message(2));
    assert_eq!(accept(&mut world, &again), Err(Denied::Revoked));
    assert_eq!(world.receiver.revoke(&good), Err(Denied::Stale), "an old list");
    let grant = SignedGrant::sign(body(), &key(OPERATOR)).unwrap();
    assert_eq!(world.receiver.grant(NOW, &grant), Err(Denied::Revoked));
    let next = Revocations { sequence: 2, serials: vec![8] };
    let next = SignedRevocations::sign(next, &key(OPERATOR)).unwrap();
    assert_eq!(world.receiver.revoke(&next), Ok(Vec::new()));
    assert_eq!(
        world.receiver.grant(NOW, &grant),
        Err(Denied::Revoked),
        "a newer list forgives nobody"
    );
}

/// An operator who has narrowed a grant meets neither the wider one again nor a holder who begins anew.
#[test]
fn a_grant_takes_the_place_of_an_older_one_only() {
    let mut world = World::new();
    let wide = SignedGrant::sign(body(), &key(OPERATOR)).unwrap();
    let signed = world.signed(message(1));
    assert!(accept(&mut world, &signed).is_ok());
    assert_eq!(world.receiver.grant(NOW, &wide), Ok(()), "it is the same");
    assert_eq!(accept(&mut world, &signed), Err(Denied::Stale), "and nothing has begun anew");
    assert_eq!(world.receiver.in_force(NOW), 1);
    let narrow =
        GrantBody { scopes: vec!["192.0.2.99:80".into()], from_s: body().from_s + 1, ..body() };
    let narrow = SignedGrant::sign(narrow, &key(OPERATOR)).unwrap();
    assert_eq!(world.receiver.grant(NOW, &narrow), Ok(()));
    assert_eq!(world.receiver.grant(NOW, &wide), Ok(()), "it is known, and holds no more");
    let signed = world.signed(message(2));
    assert_eq!(accept(&mut world, &signed), Err(Denied::Scope));
}

/// A grant of the number 1 for one address, from and to these seconds of this day.
fn dated(host: u8, from: i64, until: i64) -> SignedGrant {
    let at = |seconds: i64| TODAY.saturating_add_signed(seconds);
    let scopes = vec![format!("192.0.2.{host}:80")];
    let body = GrantBody { scopes, from_s: at(from), until_s: at(until), ..body() };
    SignedGrant::sign(body, &key(OPERATOR)).unwrap()
}

fn receiver(grants: &[&SignedGrant]) -> Receiver {
    let mut receiver = Receiver::new(ROUTER, key(OPERATOR).public(), Bounds::default());
    grants.iter().for_each(|grant| receiver.grant(NOW, grant).unwrap());
    receiver
}

/// The address that a receiver lets the holder limit on a day.
fn granted(receiver: &Receiver, seconds: i64) -> Result<u8, Denied> {
    let mut last = Denied::Grant;
    for host in 1..=4 {
        let mut receiver = receiver.clone();
        receiver.open(1, (77, 5));
        let limit = LimitMessage { scope: format!("192.0.2.{host}:80"), ..message(100) };
        let signed = SignedLimit::sign((1, ROUTER), limit, (WHOLE_MILLI, NOTICE), &key(2));
        let today = TODAY.saturating_add_signed(seconds);
        match receiver.accept((NOW, today), &signed.encode()) {
            Ok(_) => return Ok(host),
            Err(why) => last = why,
        }
    }
    Err(last)
}

/// Of several grants with one number the dates say which holds, and the order of the files nothing.
#[test]
fn the_grant_that_began_last_holds_in_any_order() {
    let (first, second, next) = (dated(1, -50, 200), dated(2, -10, 20), dated(3, 50, 100));
    let same = dated(4, -10, 30);
    let orders: [[&SignedGrant; 4]; 4] = [
        [&first, &second, &next, &same],
        [&same, &next, &second, &first],
        [&second, &same, &first, &next],
        [&next, &first, &same, &second],
    ];
    for order in orders {
        let receiver = receiver(&order);
        for (seconds, expected) in [
            (-51, Err(Denied::Expired)),
            (-50, Ok(1)),
            (-11, Ok(1)),
            // Both begin at once: the one that ends later.
            (-10, Ok(4)),
            (29, Ok(4)),
            // It has ended, and the older and wider one does not come back.
            (30, Err(Denied::Expired)),
            (49, Err(Denied::Expired)),
            (50, Ok(3)),
            (99, Ok(3)),
            (100, Err(Denied::Expired)),
        ] {
            assert_eq!(granted(&receiver, seconds), expected, "at {seconds}");
            let today = TODAY.saturating_add_signed(seconds);
            assert_eq!(
                receiver.grants_to(&body().holder, UNIT, today),
                expected.is_ok(),
                "{seconds}"
            );
        }
        assert!(!receiver.grants_to("spiffe://example.org/s1", UNIT, TODAY));
    }
    // All dates are the same: still no order of the files.
    let (one, other) = (dated(1, -10, 20), dated(2, -10, 20));
    let held = granted(&receiver(&[&one, &other]), 0);
    assert!(held.is_ok() && held == granted(&receiver(&[&other, &one]), 0));
    // There is a bound, and the ones that begin last are kept.
    let mut full = receiver(&[]);
    (0..4).for_each(|n| full.grant(NOW, &dated(n, i64::from(n), 200)).unwrap());
    assert_eq!(full.grant(NOW, &dated(9, -1, 200)), Err(Denied::Stale));
    assert_eq!(full.grant(NOW, &dated(4, 4, 200)), Ok(()));
    assert_eq!(granted(&full, 4), Ok(4));
}

/// The files were read again: what was known goes on, as far as it is still granted.
#[test]
fn a_receiver_goes_on_where_the_one_before_was() {
    let list = |sequence, serials: &[u64]| {
        let body = Revocations { sequence, serials: serials.to_vec() };
        SignedRevocations::sign(body, &key(OPERATOR)).unwrap()
    };
    let grant = |serial| SignedGrant::sign(GrantBody { serial, ..body() }, &key(OPERATOR)).unwrap();
    let before = || {
        let mut world = World::new();
        world.receiver.grant(NOW, &grant(2)).unwrap();
        let signed = world.signed(message(7));
        assert_eq!(accept(&mut world, &signed), Ok(400.0));
        world.receiver.revoke(&list(5, &[8, 9])).unwrap();
        world.receiver
    };
    let adopted = |grants: &[&SignedGrant]| {
        let mut next = receiver(grants);
        next.adopt(before(), TODAY);
        World { receiver: next, holder: key(2) }
    };
    // Session, sequence, limits, and what was revoked.
    let mut world = adopted(&[&grant(1), &grant(9)]);
    let again = world.signed(message(7));
    assert_eq!(accept(&mut world, &again), Err(Denied::Stale));
    let next = world.signed(message(8));
    assert_eq!((world.receiver.in_force(NOW), accept(&mut world, &next)), (1, Ok(400.0)));
    assert_eq!(world.receiver.grant(NOW, &grant(8)), Err(Denied::Revoked));
    assert_eq!(world.receiver.revoke(&list(5, &[1])), Err(Denied::Stale));
    assert!(world.receiver.grants_to(&body().holder, UNIT, TODAY));
    assert!(!world.receiver.is_of((9, &body().holder), TODAY), "revoked, and in the files");
    assert!(!world.receiver.is_of((2, &body().holder), TODAY), "in the files no more");
    // A narrower grant holds on where somebody puts the wide one back.
    let mut narrow = receiver(&[&dated(3, -20, 100)]);
    narrow.adopt(before(), TODAY);
    assert_eq!(granted(&narrow, 0), Ok(3));
    let mut wide = receiver(&[&grant(1)]);
    wide.adopt(narrow, TODAY);
    assert_eq!(granted(&wide, 0), Ok(3));
    // What was of another operator is nothing here.
    let mut other = Receiver::new(ROUTER, key(7).public(), Bounds::default());
    let body = GrantBody { serial: 9, ..body() };
    other.grant(NOW, &SignedGrant::sign(body.clone(), &key(7)).unwrap()).unwrap();
    other.adopt(before(), TODAY);
    assert!(other.is_of((9, &body.holder), TODAY) && other.in_force(NOW) == 0);
}

#[test]
fn quota_budget_changes_and_staging_are_the_receivers() {
    let mut world = World::new();
    let to = |host: u64, sequence| {
        let mut limit = message(sequence);
        limit.scope = format!("192.0.2.{host}:80");
        limit
    };
    for host in 1..=4 {
        let signed = world.signed(to(host, host));
        assert!(accept(&mut world, &signed).is_ok());
    }
    let fifth = world.signed(to(5, 5));
    assert_eq!(accept(&mut world, &fifth), Err(Denied::Quota), "the grant has four");
    let renewed = world.signed(to(4, 6));
    assert!(accept(&mut world, &renewed).is_ok(), "the session goes on");
    // Twenty changes a minute: fifteen are left.
    for sequence in 7..22 {
        let signed = world.signed(to(4, sequence));
        assert!(accept(&mut world, &signed).is_ok(), "{sequence}");
    }
    let more = world.signed(to(4, 22));
    assert_eq!(accept(&mut world, &more), Err(Denied::Changes));
    let later = NOW + Nanos::from_secs(11);
    assert_eq!(world.receiver.in_force(later), 0, "none outlives its time");
    assert!(world.receiver.accept((later, TODAY), &more).is_ok());

    let mut world = World::with(Bounds { limits: 1 });
    for (s, sequence) in (0..5).zip(1..) {
        let signed = world.signed(message(sequence));
        let at = NOW + Nanos::from_secs(s);
        let taken = world.receiver.accept((at, TODAY), &signed).unwrap();
        assert_eq!(taken.counts_until, NOW + Nanos::from_secs(5), "staged");
        assert_eq!((taken.whole.get(), taken.notice), (WHOLE_MILLI as f64 / 1e3, NOTICE));
    }
    let second = world.signed(to(2, 9));
    assert_eq!(accept(&mut world, &second), Err(Denied::Quota), "the budget of all is one");
}

#[test]
fn keys_are_those_of_openssl() {
    let private = b"-----BEGIN PRIVATE KEY-----\n\
        MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n\
        -----END PRIVATE KEY-----\n";
    let public = b"-----BEGIN PUBLIC KEY-----\n\
        MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n\
        -----END PUBLIC KEY-----\n";
    // The pair of RFC 8410, section 10.
    let text = "19bf44096984cdfe8541bac167dc3b96c85086aa30b6b6cb0c5c38ad703166e1";
    assert_eq!(SigningKey::from_pem(private).unwrap().public().to_string(), text);
    assert_eq!(VerifyingKey::from_pem(public).unwrap().to_string(), text);
    assert_eq!(VerifyingKey::from_text(text), Some(VerifyingKey::from_pem(public).unwrap()));
    assert!(SigningKey::from_pem(public).is_err() && VerifyingKey::from_pem(private).is_err());
    assert!(VerifyingKey::from_text(&text.to_uppercase()).is_none());
    let none = Kinds { rate: false, loss: false, gap: false, datagrams: false };
    assert!(Kinds::default() == none);
}

/// The short form of `cargo run --release -p tidegate-peer --example forge_limits`.
#[test]
fn forged_limits_are_never_taken() {
    let counts = Forger::new(1).run(40_000, 1_000);
    assert_eq!(counts.taken, 0);
    assert!(counts.signature_only >= 1_000 && counts.reasons.len() >= 9, "{counts:?}");
}
