// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Laws that the whole decision keeps, around every policy of policies.def, whatever its limits and
//! whatever arrives.

use proptest::prelude::*;
use tidegate_policy::{
    AbacusExactSpec, AbacusLearnedSpec, AbacusSpec, AcceptQueue, Action, Ask, BucketSpec, Chain,
    Circumstances, Decision, Event, Execution, GapSpec, InFlight, Lease, Level, Limits, MinRate,
    Params, PercentSpec, Policy, Rank, Reason, RequestChain, RequestLimits, ThresholdSpec,
    Throttle, VerdictKind,
};
use tidegate_units::{Nanos, Rate, Share};

const SECOND: u64 = 1_000_000_000;

/// Limits around every policy, for one bucket.
fn every(bucket: &BucketSpec) -> Vec<Limits> {
    let params = |policy: &Policy| match policy {
        Policy::TokenBucket => Params::token_bucket(bucket),
        Policy::FreshFirst => Params::fresh_first(bucket),
        Policy::Abacus => Params::abacus(&AbacusSpec::classic(bucket.clone(), 45)),
        Policy::AbacusExact => Params::abacus_exact(&AbacusExactSpec::classic(bucket.clone(), 45)),
        Policy::AbacusLearned => {
            Params::abacus_learned(&AbacusLearnedSpec::classic(bucket.clone()))
        }
        Policy::Threshold => {
            let throttle = Throttle::Share(vec![Share::new(0.5)]);
            Params::threshold(&ThresholdSpec::combined((10, 20, 40), throttle, bucket.action))
        }
        Policy::Gap => {
            // to somebody who could wait
            let wait_max = Nanos::from_secs_f64(2.0 / bucket.rate.get());
            let wait_max = wait_max.min(Nanos::from_secs(60));
            let tau_milli = [(bucket.burst - 1) * 1000; 8];
            let spec = GapSpec::new(bucket.rate, bucket.action);
            Params::gap(&GapSpec { tau_milli, wait_max, ..spec })
        }
        Policy::Percent => Params::percent(&PercentSpec::new(Share::new(0.3), bucket.action)),
    };
    let limits = |policy| {
        let mut limits = Limits::new(params(policy).expect("the strategies give valid buckets"));
        limits.set_action(bucket.action);
        limits.level = Level::UNFINISHED_WORK;
        limits
    };
    Policy::ALL.iter().map(limits).collect()
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![Just(Action::Drop), Just(Action::Reject), Just(Action::Auto)]
}

prop_compose! {
    fn bucket()(rate in 1_u64..2_000_000, burst in 1_u32..100, action in action()) -> BucketSpec {
        let mut spec = BucketSpec::new(Rate::per_second(rate as f64 / 1e3), burst, action);
        spec.reserve = std::array::from_fn(|i| (i as u32 * 3).min(burst - 1));
        spec
    }
}

prop_compose! {
    /// Limits before the policy, and how often one passes them.
    fn around()(
        queue in prop_oneof![Just(0_u32), 1_u32..2_048],
        max in prop_oneof![Just(0_u64), 1_u64..40],
        low in 0_u64..40,
        min_rate in prop_oneof![Just(None), (1_u32..50).prop_map(Some)],
    ) -> (u32, u64, u64, Option<u32>) {
        (queue, max, low, min_rate)
    }
}

fn within(mut limits: Limits, around: (u32, u64, u64, Option<u32>)) -> Limits {
    let (queue, max, low, min_rate) = around;
    limits.accept_queue_max_q10 = queue;
    if max > 0 {
        limits.in_flight = InFlight::up_to(max).tight((low, low / 2)).counting(3, 512);
    }
    limits.set_min_rate(min_rate.map(|rate| MinRate::per(Rate::per_second(f64::from(rate)))));
    limits
}

/// Arrivals whose time advances, stands still, leaps and goes back, to any load of the server.
fn asks() -> impl Strategy<Value = Vec<Ask>> {
    let step = prop_oneof![Just(0_i64), 0..5_000_000_i64, 0..3_000_000_000_i64, -2_000_000_i64..0];
    let queue = prop_oneof![
        Just(None),
        (0_u32..20, 0_u32..16).prop_map(|(length, limit)| Some(AcceptQueue { length, limit })),
    ];
    let row = (step, 0_u64..50, any::<u32>(), 0_u8..8, queue, 0_u64..50, 0_u64..50);
    prop::collection::vec((row, prop::bool::weighted(0.1)), 1..200).prop_map(|rows| {
        let mut now = 10 * SECOND;
        let ask = |((step, key, random, priority, queue, waiting, silent), over)| {
            now = now.saturating_add_signed(step);
            let key = u64::wrapping_mul(key, 0x9e37_79b9_7f4a_7c15);
            let event = Event { now_ns: now, key, random, priority, ..Event::default() };
            Ask { event, queue, waiting, silent, over, copy: false }
        };
        rows.into_iter().map(ask).collect()
    })
}

fn run(chain: &mut Chain, asks: &[Ask], how: &Circumstances) -> Vec<Decision> {
    asks.iter().map(|ask| chain.decide(ask, how, |_| Ok(()))).collect()
}

fn one(chain: &mut Chain, ask: &Ask) -> Decision {
    chain.decide(ask, &Circumstances::default(), |_| Ok(()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// Same arrivals, same decisions; and each is an admission or a refusal for a known reason: so
    /// admitted and refused add up to what was offered.
    #[test]
    fn decisions_repeat_and_are_one_of_two(
        bucket in bucket(), around in around(), asks in asks(),
    ) {
        for limits in every(&bucket) {
            let limits = within(limits, around);
            let how = Circumstances::default();
            let decisions = run(&mut Chain::new(limits), &asks, &how);
            prop_assert_eq!(&decisions, &run(&mut Chain::new(limits), &asks, &how));
            for decision in decisions {
                let admitted = decision.verdict.kind == VerdictKind::Admit;
                let reason = decision.verdict.reason as u8;
                let reasons = if admitted { 20..30 } else { 30..48 };
                prop_assert!(reasons.contains(&reason), "{:?}", decision.verdict);
                prop_assert!(decision.passes == admitted);
                prop_assert_ne!(decision.verdict.kind, VerdictKind::Delay, "nobody can wait");
            }
        }
    }

    /// Every arrival is admitted, refused or told to wait, whoever can wait; and who cannot wait is let
    /// in just when the others are to wait, since its place in the bucket is the same.
    #[test]
    fn who_cannot_wait_is_let_in_at_once(bucket in bucket(), around in around(), asks in asks()) {
        let can = Circumstances { waits: true, ..Circumstances::default() };
        for limits in every(&bucket) {
            let limits = within(limits, around);
            let waiting = run(&mut Chain::new(limits), &asks, &can);
            let at_once = run(&mut Chain::new(limits), &asks, &Circumstances::default());
            for (waiting, at_once) in waiting.iter().zip(&at_once) {
                let delayed = waiting.verdict.kind == VerdictKind::Delay;
                prop_assert_eq!(delayed, waiting.verdict.delay > Nanos::ZERO);
                prop_assert_eq!(waiting.passes, at_once.passes);
                prop_assert_eq!(waiting.verdict.reason, at_once.verdict.reason);
                prop_assert_eq!(delayed, at_once.verdict.reason == Reason::Wait);
                prop_assert!(!delayed || waiting.execution == Execution::Executed);
            }
        }
    }

    /// Arrivals that conform to rate and burst pass, whatever was refused to others before them by a
    /// limit that is not full any more. Thresholds and a share have no rate.
    #[test]
    fn conforming_arrivals_pass(
        rate in 1_u64..5_000, burst in 1_u32..50, sizes in prop::collection::vec(1_u32..50, 1..40),
        refused in 0_u64..20,
    ) {
        let bucket = BucketSpec::new(Rate::per_second(rate as f64), burst, Action::Reject);
        let without = [Policy::Threshold, Policy::Percent];
        let rated = |limits: &Limits| !without.contains(&limits.params.policy());
        for mut limits in every(&bucket).into_iter().filter(rated) {
            limits.in_flight = InFlight::up_to(8);
            let mut chain = Chain::new(limits);
            let (mut now, mut key) = (SECOND, 0_u64);
            let mut ask = |now, waiting| {
                key += 1;
                let key = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                Ask { event: Event { key, ..Event::at(now) }, waiting, ..Ask::default() }
            };
            for size in &sizes {
                let size = (*size).min(burst);
                now += (u64::from(size) * SECOND).div_ceil(rate);
                for _ in 0..refused {
                    prop_assert!(!one(&mut chain, &ask(now, 8)).passes, "in flight");
                }
                for _ in 0..size {
                    let decision = one(&mut chain, &ask(now, 7));
                    prop_assert!(decision.passes, "{:?}", limits.params.policy());
                }
            }
        }
    }

    /// Zero limits nothing, whatever the server's load.
    #[test]
    fn zero_admits_everything(asks in asks()) {
        let asks: Vec<Ask> = asks.into_iter().map(|ask| Ask { over: false, ..ask }).collect();
        let decisions = run(&mut Chain::default(), &asks, &Circumstances::default());
        let no_limit = |d: &Decision| d.passes && d.verdict.reason == Reason::NoLimit;
        prop_assert!(decisions.iter().all(no_limit));
    }

    /// A copy of a SYN that passed is decided as any other, and refused in silence.
    #[test]
    fn copies_are_decided_as_others_and_refused_in_silence(
        bucket in bucket(), around in around(), asks in asks(),
    ) {
        let copies: Vec<Ask> = asks.iter().map(|ask| Ask { copy: true, ..*ask }).collect();
        for limits in every(&bucket) {
            let limits = within(limits, around);
            let first = run(&mut Chain::new(limits), &asks, &Circumstances::default());
            let again = run(&mut Chain::new(limits), &copies, &Circumstances::default());
            for (first, again) in first.iter().zip(&again) {
                prop_assert_eq!(first.passes, again.passes);
                prop_assert_eq!(first.verdict.reason, again.verdict.reason);
                prop_assert_ne!(again.verdict.kind, VerdictKind::Reject);
            }
        }
    }

    /// Other limits keep what is done with the refused; whether copies are asked about is the limits' own.
    #[test]
    fn asking_about_copies_goes_with_the_limits(own in any::<bool>(), before in any::<bool>()) {
        let (mut limits, mut old) = (Limits::default(), Limits::default());
        limits.set_copies(own);
        old.set_copies(before);
        old.set_action(Action::Auto);
        old.set_canary(77);
        let joined = limits.with_mode_of(&old);
        prop_assert_eq!((joined.copies(), joined.canary()), (own, 77));
        old.set_copies(own);
        prop_assert_eq!(joined, old);
    }

    /// Shadow and a lease that spares decide the same, and let everything pass.
    #[test]
    fn what_is_not_executed_is_decided_all_the_same(
        bucket in bucket(), around in around(), asks in asks(),
    ) {
        for limits in every(&bucket) {
            let limits = within(limits, around);
            let mut shadow = limits;
            shadow.set_shadow(true);
            let how = Circumstances::default();
            let executed = run(&mut Chain::new(limits), &asks, &how);
            let shadowed = run(&mut Chain::new(shadow), &asks, &how);
            let weak = Lease::at(Nanos(SECOND), Nanos(10 * SECOND));
            let how = Circumstances { lease: weak, random: 0xffff, ..how };
            let spared = run(&mut Chain::new(limits), &asks, &how);
            for ((executed, shadowed), spared) in executed.iter().zip(&shadowed).zip(&spared) {
                prop_assert_eq!(executed.verdict, shadowed.verdict);
                prop_assert_eq!(executed.verdict, spared.verdict);
                prop_assert!(shadowed.passes && spared.passes);
            }
        }
    }

    /// A canary decides the same and spares all but the chosen sources; who is chosen for a share is
    /// chosen for each larger one, and the share is what was asked for.
    #[test]
    fn a_canary_spares_all_but_a_share_of_the_sources(
        bucket in bucket(), around in around(), asks in asks(), seed in any::<u64>(),
        shares in (1..=u16::MAX, 1..=u16::MAX),
    ) {
        let shares = [shares.0.min(shares.1), shares.0.max(shares.1)];
        // Splitmix: evenly spread, as hashes are.
        let source = |n: u64| {
            let mut z = seed.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            Some(z ^ z >> 31)
        };
        for limits in every(&bucket).into_iter().map(|limits| within(limits, around)) {
            let mut small = limits;
            small.set_canary(shares[0]);
            let mut large = limits;
            large.set_canary(shares[1]);
            let (mut all, mut few, mut more) =
                (Chain::new(limits), Chain::new(small), Chain::new(large));
            for (n, ask) in (0..).zip(&asks) {
                let how = Circumstances { source: source(n), ..Circumstances::default() };
                let none = Circumstances { source: None, ..how };
                let executed = all.decide(ask, &how, |_| Ok(()));
                let unknown = few.clone().decide(ask, &none, |_| Ok(()));
                let (few, more) = (few.decide(ask, &how, |_| Ok(())), more.decide(ask, &how, |_| Ok(())));
                prop_assert_eq!(executed.verdict, few.verdict);
                prop_assert_eq!(executed.verdict, more.verdict);
                prop_assert!(unknown.passes, "whose source is not known is spared");
                prop_assert!(executed.passes <= more.passes && more.passes <= few.passes);
                let refused = executed.verdict.kind != VerdictKind::Admit;
                let chosen = |share: u16| how.source.unwrap() >> 48 < u64::from(share);
                prop_assert_eq!(few.passes, !refused || !chosen(shares[0]));
                prop_assert_eq!(more.passes, !refused || !chosen(shares[1]));
            }
        }
        let chosen = (0..4096).filter(|n| source(*n).unwrap() >> 48 < u64::from(shares[0])).count();
        let share = f64::from(shares[0]) / 65_536.0;
        // Five deviations of a share of 4,096 sources.
        let most = 5.0 * (share * (1.0 - share) / 4096.0).sqrt() + 1.0 / 4096.0;
        prop_assert!((chosen as f64 / 4096.0 - share).abs() <= most, "{chosen} of 4096, {share}");
    }

    /// What a limit before the policy refuses takes no token: the bucket is as full as before.
    #[test]
    fn a_limit_before_the_policy_takes_no_token(bucket in bucket(), times in 1_usize..50) {
        let every = every(&BucketSpec { reserve: [0; 8], ..bucket.clone() });
        // thresholds and a share take none
        let without = [Policy::Threshold, Policy::Percent];
        let takes = |limits: &Limits| !without.contains(&limits.params.policy());
        for mut limits in every.into_iter().filter(takes) {
            limits.accept_queue_max_q10 = 1024;
            let mut chain = Chain::new(limits);
            let full = Some(AcceptQueue { length: 8, limit: 8 });
            let key = |n: u32| u64::from(n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            for n in 0..times as u32 {
                let event = Event { key: key(n), ..Event::at(SECOND) };
                let decision = one(&mut chain, &Ask { event, queue: full, ..Ask::default() });
                prop_assert_eq!(decision.verdict.reason, Reason::AcceptQueue);
            }
            for n in 0..bucket.burst {
                let event = Event { key: key(1_000 + n), random: n, ..Event::at(SECOND) };
                let decision = one(&mut chain, &Ask { event, ..Ask::default() });
                prop_assert_eq!(decision.verdict.reason, Reason::Token, "{:?}", limits.params.policy());
            }
        }
    }

    /// In one state and at one load, refusing a priority implies refusing all below it.
    #[test]
    fn refusals_respect_priority(
        bucket in bucket(), around in around(), asks in asks(), probe in any::<u64>(),
    ) {
        for limits in every(&bucket) {
            let mut chain = Chain::new(within(limits, around));
            run(&mut chain, &asks, &Circumstances::default());
            let last = asks[asks.len() - 1];
            let mut refused = false;
            for priority in 0..8 {
                let event = Event { key: probe, priority, ..last.event };
                let passes = one(&mut chain.clone(), &Ask { event, ..last }).passes;
                prop_assert!(!refused || !passes, "priority {priority} overtook");
                refused = !passes;
            }
        }
    }

    /// Past full limits at most one passes an interval, whatever comes.
    #[test]
    fn the_least_rate_is_a_bound(rate in 1_u32..100, steps in prop::collection::vec(0_u64..50, 1..200)) {
        let mut limits = Limits::default();
        limits.in_flight = InFlight::up_to(1);
        limits.set_min_rate(Some(MinRate::per(Rate::per_second(f64::from(rate)))));
        let mut chain = Chain::new(limits);
        let (mut now, mut passed) = (10 * SECOND, 0_u32);
        for step in &steps {
            now += step * 1_000_000;
            let ask = Ask { event: Event::at(now), waiting: 5, ..Ask::default() };
            passed += u32::from(one(&mut chain, &ask).passes);
        }
        let seconds = (now - 10 * SECOND) as f64 / 1e9;
        prop_assert!(f64::from(passed) <= 1.0 + f64::from(rate) * seconds + 1e-6);
        prop_assert!(passed >= 1, "the first passes");
    }

    /// What one policy has seen in a bucket is nothing to the next: its memory is fresh.
    #[test]
    fn a_bucket_of_another_policy_is_fresh(bucket in bucket(), asks in asks()) {
        let serving = |limits: &Limits| RequestLimits::new(limits.params);
        let every: Vec<RequestLimits> = every(&bucket).iter().filter_map(serving).collect();
        let how = Circumstances { waits: true, ..Circumstances::default() };
        let run = |chain: &mut RequestChain| -> Vec<_> {
            asks.iter().map(|ask| chain.decide(&ask.event, (Rank::New, ask.waiting), &how)).collect()
        };
        for (before, after) in every.iter().zip(every.iter().cycle().skip(1)) {
            let (mut used, mut fresh) = (RequestChain::default(), RequestChain::default());
            used.set(*before);
            run(&mut used);
            used.set(*after);
            fresh.set(*after);
            prop_assert_eq!(run(&mut used), run(&mut fresh));
            prop_assert_eq!(used, fresh);
        }
    }

    /// The bucket of a rule: who is refused last is refused only where all others are.
    #[test]
    fn ranks_of_requests_are_refused_in_their_order(
        burst in 1_u32..50, steps in prop::array::uniform2(0_u32..20), taken in 0_u32..60,
    ) {
        let new = steps[0].min(burst - 1);
        let reserve = [0, new, (new + steps[1]).min(burst - 1)];
        let limits = RequestLimits::bucket(Some(Rate::per_second(0.001)), burst, reserve).unwrap();
        let mut chain = RequestChain::default();
        chain.set(limits);
        let ask = |chain: &mut RequestChain, rank| {
            chain.decide(&Event::at(SECOND), (rank, 0), &Circumstances::default()).0.kind
        };
        for _ in 0..taken {
            let _ = ask(&mut chain, Rank::Protected);
        }
        let left = burst.saturating_sub(taken);
        for (rank, reserve) in Rank::ALL.into_iter().zip(reserve) {
            let admitted = ask(&mut chain.clone(), rank) == VerdictKind::Admit;
            prop_assert_eq!(admitted, left > reserve, "{:?}: {} left", rank, left);
        }
    }
}

/// The order of the limits: of all that would refuse, the first gives the reason.
#[test]
fn the_first_refusal_gives_the_reason() {
    let bucket = BucketSpec::new(Rate::per_second(0.001), 1, Action::Drop);
    let mut limits = Limits::new(Params::token_bucket(&bucket).unwrap());
    limits.accept_queue_max_q10 = 1024;
    limits.in_flight = InFlight::up_to(4);
    let mut chain = Chain::new(limits);
    let event = Event::at(SECOND);
    assert!(one(&mut chain, &Ask { event, ..Ask::default() }).passes, "the only token");
    let full = Some(AcceptQueue { length: 1, limit: 0 });
    let all = Ask { event, queue: full, waiting: 4, silent: 0, over: true, copy: false };
    let steps = [
        (all, Reason::Source),
        (Ask { over: false, ..all }, Reason::AcceptQueue),
        (Ask { over: false, queue: None, ..all }, Reason::Waiting),
        (Ask { over: false, queue: None, waiting: 3, ..all }, Reason::Rate),
    ];
    for (ask, reason) in steps {
        assert_eq!(one(&mut chain, &ask).verdict.reason, reason);
    }
}

/// An accept queue whose limit is none holds one, as in the kernel.
#[test]
fn a_queue_without_a_limit_is_full_with_one() {
    let mut limits = Limits::default();
    limits.accept_queue_max_q10 = 1024;
    let mut chain = Chain::new(limits);
    let ask = |length| {
        let queue = Some(AcceptQueue { length, limit: 0 });
        Ask { event: Event::at(SECOND), queue, ..Ask::default() }
    };
    assert!(one(&mut chain, &ask(0)).passes);
    assert!(!one(&mut chain, &ask(1)).passes);
}

/// A reply is asked for only where one is to be sent; where none can be, the refusal is silent.
#[test]
fn a_reject_without_a_reply_is_a_drop() {
    for action in [Action::Drop, Action::Reject, Action::Auto] {
        let bucket = BucketSpec::new(Rate::per_second(0.001), 1, action);
        let mut limits = Limits::new(Params::token_bucket(&bucket).unwrap());
        limits.set_action(action);
        for (single, shadow) in [(true, false), (false, false), (true, true)] {
            limits.set_shadow(shadow);
            let mut chain = Chain::new(limits);
            let ask = Ask { event: Event::at(SECOND), ..Ask::default() };
            assert!(one(&mut chain, &ask).passes, "the only token");
            let how = Circumstances { single, ..Circumstances::default() };
            let mut asked = false;
            let decision = chain.decide(&ask, &how, |_| {
                asked = true;
                Err(Reason::ReplyCap)
            });
            let replies = action == Action::Reject || action == Action::Auto && single;
            assert_eq!(asked, replies && !shadow, "{action:?} {single} {shadow}");
            let reason = if asked { Reason::ReplyCap } else { Reason::Rate };
            let rejects = replies && shadow;
            let kind = if rejects { VerdictKind::Reject } else { VerdictKind::Drop };
            assert_eq!((decision.verdict.kind, decision.verdict.reason), (kind, reason));
        }
    }
}

/// Up to 3 s after a heartbeat all refusals are executed, from 10 s on no limit is asked; between, the
/// share of them that the straight line says. A heartbeat from the future is none.
#[test]
fn the_lease_holds_fades_and_ends() {
    let at = |ms: u64| Lease::at(Nanos(SECOND), Nanos(SECOND + ms * 1_000_000));
    assert_eq!((at(0), at(3_000)), (Lease::WHOLE, Lease::WHOLE));
    assert_eq!((at(10_000).strength(), at(60_000).strength()), (0, 0));
    for (ms, share) in [(3_700, 0.9), (6_500, 0.5), (9_300, 0.1)] {
        let strength = f64::from(at(ms).strength()) / 65_536.0;
        assert!((strength - share).abs() < 1e-3, "{ms} ms: {strength}");
        let executed = |random: u32| {
            let limits = RequestLimits::bucket(Some(Rate::per_second(1.0)), 1, [0; 3]).unwrap();
            let mut chain = RequestChain::default();
            chain.set(limits);
            let how = Circumstances { lease: at(ms), random, ..Circumstances::default() };
            let mut ask = || chain.decide(&Event::at(SECOND), (Rank::New, 0), &how);
            assert_eq!(ask().1, Execution::Executed, "the only token: an admission is no refusal");
            ask().1 == Execution::Executed
        };
        let count = (0..65_536).step_by(64).filter(|random| executed(*random)).count();
        assert!((count as f64 / 1_024.0 - share).abs() < 2e-3, "{ms} ms: {count}");
    }
    assert_eq!(Lease::at(Nanos::ZERO, Nanos(SECOND)).strength(), 0, "there was none");
    let ahead = |ms: u64| Lease::at(Nanos(SECOND + ms * 1_000_000), Nanos(SECOND));
    assert_eq!((ahead(1_000), ahead(1_001).strength()), (Lease::WHOLE, 0));
    assert_eq!(Lease::WHOLE.passes(false), None);
    assert_eq!(Lease::WHOLE.passes(true), Some(Reason::Released));
    assert_eq!(at(10_000).passes(false), Some(Reason::LeaseExpired));
}

/// What the register says of a policy: which serve requests, and which recognise copies.
#[test]
fn only_small_policies_serve_requests() {
    for policy in Policy::ALL {
        let serves = RequestLimits::new(Params::no_limit(*policy)).is_some();
        assert_eq!(serves, policy.serves_requests(), "{policy:?}");
    }
    assert!(Policy::TokenBucket.serves_requests() && !Policy::FreshFirst.serves_requests());
    assert!(Policy::FreshFirst.recognises_copies() && !Policy::TokenBucket.recognises_copies());
}

/// A policy that recognises copies is told of whom a limit before it refused.
#[test]
fn who_was_refused_before_the_policy_is_no_first_attempt() {
    let bucket = BucketSpec::new(Rate::per_second(0.001), 8, Action::Drop);
    let mut limits = Limits::new(Params::fresh_first(&bucket).unwrap());
    limits.in_flight = InFlight::up_to(1);
    let mut chain = Chain::new(limits);
    let ask = |waiting| Ask { event: Event::at(SECOND), waiting, ..Ask::default() };
    let first = one(&mut chain, &ask(1)).verdict;
    let again = one(&mut chain, &ask(1)).verdict;
    assert_eq!((first.reason, first.repeated), (Reason::Waiting, false));
    assert_eq!((again.reason, again.repeated), (Reason::Waiting, true));
}

/// Both sides of each bound of a bucket's limits; without a rate there is none.
#[test]
fn limits_of_a_bucket_out_of_range_are_errors() {
    let bucket = |rate: f64, burst, reserve| {
        RequestLimits::bucket(Some(Rate::per_second(rate)), burst, reserve)
    };
    assert_eq!(RequestLimits::bucket(None, 0, [9, 1, 2]), Ok(RequestLimits::default()));
    for (rate, burst, reserve, text) in [
        (0.0004, 1, [0; 3], "rate"),
        (1.1e9, 1, [0; 3], "rate"),
        (1.0, 0, [0; 3], "burst 0"),
        (1.0, 1_000_001, [0; 3], "burst 1000001"),
        (1.0, 5, [0, 2, 1], "reserve"),
        (1.0, 5, [0, 0, 5], "reserve"),
    ] {
        let error = bucket(rate, burst, reserve).unwrap_err().to_string();
        assert!(error.starts_with(text), "{error}");
    }
    for (rate, burst) in [(0.001, 5), (1e9, 1_000_000)] {
        assert!(bucket(rate, burst, [4, 4, 4]).unwrap().limited());
    }
}

/// The ladder of [`every`] is climbed by what the level counts, and left as it says.
#[test]
fn the_level_is_of_what_the_limits_count() {
    let throttle = Throttle::None;
    let spec = ThresholdSpec::combined((10, 20, 40), throttle, Action::Drop);
    let mut limits = Limits::new(Params::threshold(&spec).unwrap());
    let queue = |length| Some(AcceptQueue { length, limit: 1024 });
    // accept queue, in flight: in both is who waits for accept() and has sent a request
    for (level, queued, waiting, discards) in [
        (Level::NONE, 1000, 1000, false),
        (Level::ACCEPT_QUEUE, 40, 0, true),
        (Level::ACCEPT_QUEUE, 39, 1000, false),
        (Level::IN_FLIGHT, 1000, 39, false),
        (Level::IN_FLIGHT, 0, 40, true),
        (Level::UNFINISHED_WORK, 39, 39, false),
        (Level::UNFINISHED_WORK, 40, 1, true),
        (Level::UNFINISHED_WORK, 1, 40, true),
        // 39 µs and 40 µs
        (Level::waiting_time(Nanos::from_micros(1)), 1, 39, false),
        (Level::waiting_time(Nanos(500)), 80, 1, true),
    ] {
        limits.level = level;
        let mut chain = Chain::new(limits);
        let ask = |queued, waiting| Ask {
            event: Event { level: 1000, ..Event::at(SECOND) },
            queue: queue(queued),
            waiting,
            ..Ask::default()
        };
        let reason = one(&mut chain, &ask(queued, waiting)).verdict.reason;
        assert_eq!(reason == Reason::Discard, discards, "{level:?} {queued} {waiting}: {reason:?}");
        if discards {
            let half = one(&mut chain, &ask(queued * 2 / 3, waiting * 2 / 3)).verdict.reason;
            assert_eq!(half, Reason::Discard, "until it is below the onset");
            let below = one(&mut chain, &ask(queued / 4, waiting / 4)).verdict.reason;
            assert_eq!(below, Reason::BelowThreshold, "nothing is throttled");
        }
    }
}

/// Without a listener there is no queue; counts and weights of any size make a level.
#[test]
fn a_level_saturates() {
    for (level, queue, waiting, expected) in [
        (Level::UNFINISHED_WORK, 0, 0, 0),
        (Level::UNFINISHED_WORK, u64::MAX, 0, u32::MAX - 1),
        (Level::UNFINISHED_WORK, 3, u64::MAX, u32::MAX - 1),
        (Level::waiting_time(Nanos(u64::MAX)), 0, 1, u32::MAX >> 10),
        (Level::waiting_time(Nanos(u64::MAX)), 0, u64::MAX, u32::MAX - 1),
        (Level::waiting_time(Nanos::from_millis(22)), 0, 250, 5_500_000),
        (Level::waiting_time(Nanos::ZERO), 9, 9, 0),
    ] {
        assert_eq!(level.of(queue, waiting), expected, "{level:?} {queue} {waiting}");
    }
}

/// A request is told of those that wait for a response, and of no accept queue.
#[test]
fn the_level_of_a_request_is_what_is_in_flight() {
    let spec = ThresholdSpec::dropping(10, 20, Action::Reject);
    let params = Params::threshold(&spec).unwrap();
    let mut chain = RequestChain::default();
    let mut reason = |level: Level, waiting| {
        chain.set(RequestLimits::new(params).unwrap().with_level(level));
        let event = Event::at(SECOND);
        chain.decide(&event, (Rank::New, waiting), &Circumstances::default()).0.reason
    };
    assert_eq!(reason(Level::NONE, 1000), Reason::BelowThreshold);
    assert_eq!(reason(Level::ACCEPT_QUEUE, 1000), Reason::BelowThreshold);
    assert_eq!(reason(Level::IN_FLIGHT, 19), Reason::BelowThreshold);
    assert_eq!(reason(Level::IN_FLIGHT, 20), Reason::Discard);
    assert_eq!(reason(Level::UNFINISHED_WORK, 10), Reason::Discard);
    assert_eq!(reason(Level::UNFINISHED_WORK, 9), Reason::BelowThreshold);
}
