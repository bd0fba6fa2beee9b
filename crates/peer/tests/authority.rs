// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Signed grants and limits: what is wrong in one thing is refused for that thing, forged limits are never
//! taken.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "common/forge.rs"]
mod forge;

use forge::{Forger, NOTICE, NOW, OPERATOR, ROUTER, TODAY, WHOLE_MILLI, World, body, key, message};
use tidegate_model::remote::Restriction;
use tidegate_peer::authority::{
    Bounds, Denied, GrantBody, Kinds, Receiver, Revocations, SignedGrant, SignedLimit,
    SignedRevocations, SigningKey, VerifyingKey,
};
use tidegate_units::Nanos;

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
    assert_eq!(world.receiver.grant(NOW, &wide), Err(Denied::Stale));
    let signed = world.signed(message(2));
    assert_eq!(accept(&mut world, &signed), Err(Denied::Scope));
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
    assert!(Kinds::default() == Kinds { rate: false, loss: false, gap: false });
}

/// The short form of `cargo run --release -p tidegate-peer --example forge_limits`.
#[test]
fn forged_limits_are_never_taken() {
    let counts = Forger::new(1).run(40_000, 1_000);
    assert_eq!(counts.taken, 0);
    assert!(counts.signature_only >= 1_000 && counts.reasons.len() >= 9, "{counts:?}");
}
