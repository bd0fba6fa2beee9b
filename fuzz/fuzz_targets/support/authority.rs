// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the fuzz target of signed grants and limits does with its bytes. Also run, bounded, by
//! crates/peer/tests/fuzz_smoke.rs.
#![allow(clippy::unwrap_used, reason = "a test")]

use tidegate_peer::authority::{
    Bounds, GrantBody, Kinds, Receiver, SignedGrant, SignedLimit, SignedRevocations, SigningKey,
};
use tidegate_peer::limit::LimitMessage;
use tidegate_units::Nanos;

const NOW: Nanos = Nanos::from_secs(9);
const TODAY: u64 = 50;

fn key(number: u8) -> SigningKey {
    SigningKey::from_seed(&[number; 32]).unwrap()
}

/// A receiver with one grant, and a limit that it would take.
fn receiver() -> (Receiver, Vec<u8>) {
    let (operator, holder) = (key(1), key(2));
    let body = GrantBody {
        serial: 1,
        holder: "spiffe://example.org/s0".into(),
        key: holder.public(),
        scopes: vec!["192.0.2.0/24:*".into()],
        kinds: Kinds { rate: true, loss: true, gap: true, datagrams: true },
        limits: 4,
        changes: 20,
        staged: false,
        from_s: 0,
        until_s: 100,
    };
    let mut receiver = Receiver::new("r", operator.public(), Bounds::default());
    receiver.grant(NOW, &SignedGrant::sign(body, &operator).unwrap()).unwrap();
    receiver.open(1, (7, 1));
    let limit = LimitMessage {
        session: 7,
        epoch: 1,
        sequence: 3,
        scope: "192.0.2.1:80".into(),
        kind: 1,
        value: 5_000,
        validity_ms: 9_000,
        priority: 0,
    };
    (receiver, SignedLimit::sign((1, "r"), limit, (9_000, 1), &holder).encode())
}

/// Whatever comes: nothing is taken that the keys have not signed, and what is read has one spelling.
pub(crate) fn bytes(bytes: &[u8]) {
    let (mut receiver, good) = receiver();
    let operator = key(1).public();
    if let Ok(text) = std::str::from_utf8(bytes) {
        let line = |read: String| assert_eq!(read.trim_end(), text.trim_end_matches('\n'));
        if let Some(grant) = SignedGrant::from_text(text) {
            line(grant.to_text());
            assert!(receiver.grant(NOW, &grant).is_err(), "a forged grant");
        }
        if let Some(list) = SignedRevocations::from_text(text) {
            line(list.to_text());
            assert!(!list.verified(&operator) && receiver.revoke(&list).is_err());
        }
    }
    let mut taken = |bytes: &[u8]| receiver.accept((NOW, TODAY), bytes).is_ok();
    assert!(bytes == good || !taken(bytes), "a forged limit");
    // The first two bytes say where the others change a signed one.
    if let [at, how, change @ ..] = bytes {
        let mut near = good.clone();
        let at = usize::from(*at) % near.len();
        if how % 3 == 0 {
            near.truncate(at);
        }
        for (place, byte) in near.iter_mut().skip(at).zip(change) {
            *place ^= byte;
        }
        if how % 3 == 1 {
            near.extend(change);
        }
        assert!(near == good || !taken(&near), "a changed limit");
    }
    assert!(taken(&good), "what was refused has changed nothing");
}
