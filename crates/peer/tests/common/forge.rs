// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A router with one grant, and a forger who knows everything but the keys.
#![allow(dead_code, clippy::unwrap_used, reason = "shared by a test and an example")]

use std::collections::BTreeMap;
use tidegate_peer::authority::{
    Bounds, Denied, GrantBody, Kinds, Receiver, SignedGrant, SignedLimit, SigningKey,
};
use tidegate_peer::limit::LimitMessage;
use tidegate_units::Nanos;

pub(crate) const ROUTER: &str = "spiffe://example.org/router";
pub(crate) const OPERATOR: u8 = 1;
/// What the server can take in all, and the notice that its limits answer.
pub(crate) const WHOLE_MILLI: u64 = 900_000;
pub(crate) const NOTICE: u64 = 3;
pub(crate) const NOW: Nanos = Nanos::from_secs(1_000);
pub(crate) const TODAY: u64 = 1_800_000_000;

/// A key by a number: for tests.
pub(crate) fn key(number: u8) -> SigningKey {
    SigningKey::from_seed(&[number; 32]).unwrap()
}

pub(crate) fn body() -> GrantBody {
    GrantBody {
        serial: 1,
        holder: "spiffe://example.org/s0".into(),
        key: key(2).public(),
        scopes: vec!["192.0.2.0/24:80".into(), "[2001:db8::/48]:*".into()],
        kinds: Kinds { rate: true, ..Kinds::default() },
        limits: 4,
        changes: 20,
        staged: true,
        from_s: TODAY - 100,
        until_s: TODAY + 100,
    }
}

pub(crate) fn message(sequence: u64) -> LimitMessage {
    LimitMessage {
        session: 77,
        epoch: 5,
        sequence,
        scope: "192.0.2.1:80".into(),
        kind: 1,
        value: 400_000,
        validity_ms: 10_000,
        priority: 0,
    }
}

pub(crate) struct World {
    pub(crate) receiver: Receiver,
    pub(crate) holder: SigningKey,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(Bounds::default())
    }

    pub(crate) fn with(bounds: Bounds) -> Self {
        let operator = key(OPERATOR);
        let mut receiver = Receiver::new(ROUTER, operator.public(), bounds);
        receiver.grant(NOW, &SignedGrant::sign(body(), &operator).unwrap()).unwrap();
        receiver.open(1, (77, 5));
        Self { receiver, holder: key(2) }
    }

    pub(crate) fn signed(&self, limit: LimitMessage) -> Vec<u8> {
        SignedLimit::sign((1, ROUTER), limit, (WHOLE_MILLI, NOTICE), &self.holder).encode()
    }
}

/// What became of forged limits.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) sent: u64,
    pub(crate) taken: u64,
    /// Wrong in their signature alone.
    pub(crate) signature_only: u64,
    pub(crate) reasons: BTreeMap<Denied, u64>,
}

/// SplitMix64: forgeries need no better.
pub(crate) struct Forger {
    state: u64,
    world: World,
    /// One that was taken, as a relay has seen it.
    seen: SignedLimit,
}

impl Forger {
    pub(crate) fn new(seed: u64) -> Self {
        let mut world = World::new();
        let bytes = world.signed(message(10));
        world.receiver.accept((NOW, TODAY), &bytes).unwrap();
        Self { state: seed, world, seen: SignedLimit::decode(&bytes).unwrap() }
    }

    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// So many forgeries, of which so many are right but for the signature.
    pub(crate) fn run(&mut self, sent: u64, signature_only: u64) -> Counts {
        let mut counts = Counts::default();
        let every = (sent / signature_only.max(1)).max(1);
        for number in 0..sent {
            let only = number % every == 0;
            let bytes = if only { self.fresh() } else { self.near() };
            counts.sent += 1;
            match self.world.receiver.accept((NOW, TODAY), &bytes) {
                Ok(_) => counts.taken += 1,
                Err(why) => {
                    counts.signature_only += u64::from(only && why == Denied::Signature);
                    *counts.reasons.entry(why).or_default() += 1;
                }
            }
        }
        assert_eq!(self.world.receiver.in_force(NOW), 1, "what was forged has changed nothing");
        counts
    }

    /// Right in everything but the signature: an old one, a random one, one of an own key.
    fn fresh(&mut self) -> Vec<u8> {
        let random = self.random();
        let mut forged = self.seen.clone();
        forged.limit.sequence = 11 + random % 1_000;
        forged.limit.value = 1 + random % 1_000_000;
        match random % 4 {
            0 => {}
            1 => forged.signature = (0..64).map(|_| self.random() as u8).collect(),
            2 => {
                let mine = key(200 + (random >> 8) as u8 % 50);
                forged = SignedLimit::sign((1, ROUTER), forged.limit, (WHOLE_MILLI, NOTICE), &mine);
            }
            _ => forged.signature[(random >> 8) as usize % 64] ^= 1 << (random >> 16 & 7),
        }
        forged.encode()
    }

    /// Wrong in one or more fields as well.
    fn near(&mut self) -> Vec<u8> {
        let mut forged = self.seen.clone();
        forged.limit.sequence = 11 + self.random() % 1_000;
        for _ in 0..=self.random() % 2 {
            self.spoil(&mut forged);
        }
        let mut bytes = forged.encode();
        let random = self.random();
        match random % 16 {
            0 => bytes.truncate((random >> 8) as usize % bytes.len()),
            1 => bytes.push(random as u8),
            2 => {
                let at = (random >> 8) as usize % bytes.len();
                bytes[at] ^= 1 << (random >> 40 & 7);
            }
            _ => {}
        }
        bytes
    }

    fn spoil(&mut self, forged: &mut SignedLimit) {
        let random = self.random();
        let (octet, high) = (random >> 8 & 255, random >> 16);
        match random % 12 {
            0 => forged.receiver.push('x'),
            1 => forged.grant = 2 + high % 100,
            2 => forged.limit.session ^= 1 << (high & 63),
            3 => forged.limit.epoch ^= 1 << (high & 63),
            4 => forged.limit.sequence = high % 11,
            5 => forged.limit.kind = if high % 255 == 0 { 0 } else { 1 + (high % 255) as u8 },
            6 => forged.limit.scope = format!("192.0.{octet}.{}:80", high & 255),
            7 => forged.limit.scope = format!("192.0.2.{octet}/{}:80", 8 + high % 25),
            8 => forged.limit.scope = format!("[2001:db8:{octet:x}::{:x}]:443", high & 0xffff),
            9 => forged.limit.scope = "[::ffff:192.0.2.1]:80".into(),
            10 => forged.limit.validity_ms = 10_001 + (high as u32 >> 1),
            _ => forged.limit.value = if high & 1 == 0 { 0 } else { u64::MAX - high },
        }
    }
}
