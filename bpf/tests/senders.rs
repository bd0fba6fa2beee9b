// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What SYNs cost in a flood, as the hooks count it: SYNs at ingress, SYN-ACKs at egress, the end of
//! handshakes at ingress. (Native build; the laws are in policy/tests/senders.rs.)

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use support::connection::{give, handshake};
use support::engine::Hook;
use support::native::{How, NOW, Native, Program};
use support::reference::{Action, Counted};
use support::setup::{SECOND, Setup, dropping};
use tidegate_policy::Policy;

/// After which SYNs that nobody proved count: five cohorts of 67 ms.
const KNOWN: u64 = 400 * SECOND / 1000;
/// Tokens of the bucket.
const BURST: u32 = 8;
const SPOOFED: u16 = 300;

/// One bucket, which nothing fills again while the clock stands.
fn setup(policy: Policy) -> Setup {
    dropping().policy(policy).bucket(BURST, 0)
}

struct World {
    native: Native,
    port: u16,
    setup: Setup,
}

impl World {
    fn new(policy: Policy) -> Self {
        let native = Native::start(Program::Ingress(Hook::Tc));
        let setup = setup(policy);
        let mut world = Self { native, port: 20_000, setup };
        world.native.set(&world.setup);
        world
    }

    /// The next client's first SYN, and the server's reply if it is to be seen; whether it passed.
    fn syn(&mut self, replied: bool) -> bool {
        self.port += 1;
        let [syn, syn_ack, _] = handshake(self.port);
        let ran = give(&mut self.native, (&syn.0, false), How::default());
        let seen = ran.seen.unwrap();
        assert!(matches!(seen.counted, Counted::Evaluated(_)), "{}", seen.words(&self.setup));
        let passed = seen.action == Action::Pass;
        if passed && replied {
            give(&mut self.native, (&syn_ack.0, true), How::default());
        }
        passed
    }

    /// The end of the handshake of the client that came `back` clients ago.
    fn ack(&mut self, back: u16) {
        let [_, _, ack] = handshake(self.port - back);
        give(&mut self.native, (&ack.0, false), How::default());
    }

    /// SYNs whose handshake nobody completes, each with a full bucket: all pass.
    fn flood(&mut self, replied: bool) {
        for _ in 0..SPOOFED {
            self.native.use_tokens(0, 0);
            assert!(self.syn(replied));
        }
        self.native.advance_to(NOW + KNOWN);
        self.native.use_tokens(0, 0);
    }

    /// How many of so many SYNs pass.
    fn passing(&mut self, syns: u16) -> usize {
        (0..syns).filter(|_| self.syn(true)).count()
    }
}

/// A full bucket serves far more SYNs of a flood than it has tokens, whatever the policy.
#[test]
fn a_flood_takes_few_tokens() {
    for policy in [Policy::TokenBucket, Policy::FreshFirst] {
        let mut world = World::new(policy);
        world.flood(true);
        assert_eq!(world.passing(100), 100, "{policy:?}");
        world.native.finish();
    }
}

/// Where the server's replies are not seen, each SYN takes a token, as before.
#[test]
fn without_replies_every_syn_takes_a_token() {
    let mut world = World::new(Policy::TokenBucket);
    world.flood(false);
    assert_eq!(world.passing(100), BURST as usize);
    world.native.finish();
}

/// And where handshakes are completed.
#[test]
fn without_a_flood_every_syn_takes_a_token() {
    let mut world = World::new(Policy::TokenBucket);
    for _ in 0..SPOOFED {
        world.native.use_tokens(0, 0);
        assert!(world.syn(true));
        world.ack(0);
    }
    world.native.advance_to(NOW + KNOWN);
    world.native.use_tokens(0, 0);
    assert_eq!(world.passing(100), BURST as usize);
    world.native.finish();
}

/// What was not charged is owed at the proof: the more complete their handshake, the fewer follow.
#[test]
fn who_proves_himself_is_charged_in_full() {
    let mut last = usize::MAX;
    for proved in [0, 40, 80] {
        let mut world = World::new(Policy::TokenBucket);
        world.flood(true);
        assert_eq!(world.passing(100), 100);
        (0..proved).for_each(|back| world.ack(back));
        world.native.use_tokens(0, 0);
        let passed = world.passing(600);
        println!("{proved} of 100 proved: {passed} more");
        assert!(passed < last && passed >= BURST as usize, "{proved}: {passed}, before {last}");
        last = passed;
        world.native.finish();
    }
}

/// `fresh_first` knows who was refused by a limit before it.
#[test]
fn a_refusal_by_a_limit_makes_a_repetition() {
    let mut world = World::new(Policy::FreshFirst);
    let syn = handshake(30_000)[0].0.clone();
    let waits = setup(Policy::FreshFirst).waiting(1, 1);
    world.native.set(&waits);
    let says = |world: &mut World| {
        let ran = give(&mut world.native, (&syn, false), How::default());
        ran.seen.unwrap().words(&waits)
    };
    assert_eq!(says(&mut world), "shop/default drop waiting");
    world.native.waiting(0, 0);
    // half of the bucket is kept for first attempts
    world.native.use_tokens(0, BURST / 2);
    assert_eq!(says(&mut world), "shop/default drop repeated");
    world.native.use_tokens(0, 0);
    assert_eq!(says(&mut world), "shop/default admit token");
    world.native.finish();
}
