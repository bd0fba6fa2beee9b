// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The limit on new connections in a flash crowd: the paper's integer arithmetic, the three rules, and
//! the laws that hold for every policy.

use proptest::prelude::*;
use tidegate_policy::{
    Action, BucketSpec, CrowdGate, CrowdLimit, CrowdRule, Event, HotSpots, Reason, VerdictKind,
};
use tidegate_units::Rate;

const SECOND: u64 = 1_000_000_000;
const US: u64 = 1_000;

fn limit(key: u64, rate: f64, burst: u32) -> CrowdLimit {
    CrowdLimit { key, bucket: BucketSpec::new(Rate::per_second(rate), burst, Action::Drop) }
}

fn gate(rule: CrowdRule, limits: &[CrowdLimit]) -> CrowdGate {
    let mut gate = CrowdGate::default();
    gate.set(rule, limits).expect("in range");
    gate
}

fn event(now_ns: u64, key: u64, random: u32) -> Event {
    Event { key, random, ..Event::at(now_ns) }
}

/// The paper's bucket (section 4.3): tokens gain rate · microseconds, a connection takes 1,000,000.
struct Paper {
    rate: u64,
    depth: u64,
    tokens: u64,
    then_us: u64,
}

impl Paper {
    fn admits(&mut self, now_us: u64) -> bool {
        let gained = self.rate * now_us.saturating_sub(self.then_us);
        self.tokens = (self.tokens + gained).min(self.depth * 1_000_000);
        self.then_us = self.then_us.max(now_us);
        let admits = self.tokens >= 1_000_000;
        self.tokens -= if admits { 1_000_000 } else { 0 };
        admits
    }
}

proptest! {
    /// At whole microseconds and rates the verdicts are those of the paper's arithmetic.
    #[test]
    fn the_bucket_is_the_papers(
        rate in 1_u64..2_000, depth in 1_u32..50,
        gaps in prop::collection::vec(0_u64..50_000, 1..300),
    ) {
        let mut ours = gate(CrowdRule::All, &[limit(0, rate as f64, depth)]);
        let full = u64::from(depth) * 1_000_000;
        let mut paper = Paper { rate, depth: depth.into(), tokens: full, then_us: 0 };
        let mut now_us = 0;
        for gap in gaps {
            now_us += gap;
            let verdict = ours.admit(&HotSpots::default(), &event(now_us * US, 1 + gap % 3, 0));
            prop_assert_eq!(verdict.kind == VerdictKind::Admit, paper.admits(now_us));
        }
    }

    /// Over any time no more than depth + rate · t of one destination are admitted, and whoever keeps to
    /// its rate is never refused; other destinations change nothing.
    #[test]
    fn a_limit_bounds_its_destination_and_no_other(
        rate in 1_u64..1_000, burst in 1_u32..20,
        others in prop::collection::vec((0_u64..2 * SECOND, 2_u64..9), 0..200),
        own in prop::collection::vec(0_u64..2 * SECOND, 0..200),
    ) {
        let mut all: Vec<(u64, u64)> = own.iter().map(|at| (*at, 1)).chain(others).collect();
        all.sort_unstable();
        let mut both = gate(CrowdRule::Own, &[limit(1, rate as f64, burst)]);
        let mut alone = both.clone();
        let (hot, mut admitted) = (HotSpots::default(), 0.0);
        for (at, key) in all {
            let verdict = both.admit(&hot, &event(at, key, 0));
            if key != 1 {
                prop_assert_eq!(verdict.reason, Reason::NoLimit);
                continue;
            }
            prop_assert_eq!(verdict, alone.admit(&hot, &event(at, key, 0)));
            admitted += f64::from(u8::from(verdict.kind == VerdictKind::Admit));
            prop_assert!(admitted <= f64::from(burst) + rate as f64 * at as f64 / 1e9 + 1e-6);
        }
        let gap = SECOND.div_ceil(rate);
        for n in 0..50 {
            let verdict = both.admit(&hot, &event(3 * SECOND + n * gap, 1, 0));
            prop_assert_eq!(verdict.kind, VerdictKind::Admit, "{} in step with the rate", n);
        }
    }
}

#[test]
fn without_limits_everybody_is_admitted() {
    let mut gate = gate(CrowdRule::Own, &[]);
    for rule in [CrowdRule::Own, CrowdRule::All, CrowdRule::Shared] {
        gate.set(rule, &[]).expect("none is in range");
        let verdict = gate.admit(&HotSpots::default(), &event(0, 1, 0));
        assert_eq!((verdict.kind, verdict.reason), (VerdictKind::Admit, Reason::NoLimit));
    }
}

/// One bucket for all: the bystander pays for the crowd. With hot spots it does by its share of what was
/// admitted. With limits of its own not at all.
#[test]
fn bystanders_are_treated_by_the_rule() {
    let mut hot = HotSpots::default();
    [1, 2].iter().for_each(|key| hot.hit(*key));
    for (key, times) in [(1, 75), (2, 25)] {
        (0..times).for_each(|_| hot.admitted(key));
    }
    let share = 65_536 / 4;
    for (rule, last_refused) in
        [(CrowdRule::All, u32::MAX), (CrowdRule::Shared, share - 1), (CrowdRule::Own, 0)]
    {
        let mut gate = gate(rule, &[limit(1, 1.0, 1)]);
        assert_eq!(gate.admit(&hot, &event(0, 1, 0)).reason, Reason::Token);
        let crowd = gate.admit(&hot, &event(1, 1, 0xffff));
        assert_eq!((crowd.kind, crowd.reason), (VerdictKind::Drop, Reason::Rate), "{rule:?}");
        for random in [0, share - 1, share, 0xffff, 0x5_0000 | (share - 1)] {
            let bystander = gate.admit(&hot, &event(2, 2, random));
            let refused = match rule {
                CrowdRule::Own => false,
                _ => last_refused == u32::MAX || random & 0xffff <= last_refused,
            };
            assert_eq!(bystander.kind != VerdictKind::Admit, refused, "{rule:?}, {random:x}");
        }
    }
    let mut gate = gate(CrowdRule::Shared, &[limit(1, 1.0, 1)]);
    assert_eq!(gate.admit(&hot, &event(0, 2, 0)).reason, Reason::Token, "it takes tokens, too");
    assert_eq!(gate.admit(&hot, &event(0, 2, 0)).reason, Reason::Throttled);
    assert_eq!(gate.admit(&hot, &event(0, 2, share)).reason, Reason::LetThrough);
}

/// First attempts come first: a repeated one leaves half of the bucket. The published rules know no
/// difference.
#[test]
fn repeated_attempts_leave_half_of_the_bucket() {
    let hot = HotSpots::default();
    for (rule, admitted) in [(CrowdRule::Own, 2), (CrowdRule::All, 4), (CrowdRule::Shared, 4)] {
        let mut gate = gate(rule, &[limit(1, 1.0, 4)]);
        let again = Event { priority: 1, ..event(0, 1, 0) };
        let count = (0..9).filter(|_| gate.admit(&hot, &again).kind == VerdictKind::Admit).count();
        assert_eq!(count, admitted, "{rule:?}");
        let first = (0..9).filter(|_| gate.admit(&hot, &event(0, 1, 0)).kind == VerdictKind::Admit);
        assert_eq!(first.count(), 4 - admitted, "{rule:?}");
    }
    let mut gate = gate(CrowdRule::Own, &[limit(1, 1.0, 1)]);
    let again = Event { priority: 7, ..event(0, 1, 0) };
    assert_eq!(gate.admit(&hot, &again).kind, VerdictKind::Drop, "half a token is not there");
}

/// The rate moves while it is in force: what was used stays used, also if the depth shrinks.
#[test]
fn rate_and_depth_are_adapted_in_force() {
    let hot = HotSpots::default();
    let mut gate = gate(CrowdRule::Own, &[limit(1, 100.0, 50)]);
    let admitted = |gate: &mut CrowdGate, at: u64| {
        (0..100).filter(|_| gate.admit(&hot, &event(at, 1, 0)).kind == VerdictKind::Admit).count()
    };
    assert_eq!(admitted(&mut gate, 0), 50);
    gate.set(CrowdRule::Own, &[limit(1, 10.0, 2)]).expect("in range");
    assert_eq!(admitted(&mut gate, 0), 0, "no new bucket");
    assert_eq!(admitted(&mut gate, SECOND / 10), 1);
    assert_eq!(admitted(&mut gate, SECOND), 2);
    gate.set(CrowdRule::Own, &[limit(5, 10.0, 2), limit(1, 10.0, 2)]).expect("in range");
    assert_eq!(admitted(&mut gate, SECOND), 2, "another place: a new bucket, of its small depth");
    let bad = limit(1, 10.0, 0);
    let before = gate.clone();
    assert!(gate.set(CrowdRule::Own, &[bad]).is_err());
    assert_eq!(gate, before, "nothing changes");
}

/// The action is that of the limit, and time that goes back gives nothing.
#[test]
fn rejects_where_told_and_survives_the_clock() {
    let hot = HotSpots::default();
    let spec = BucketSpec::new(Rate::per_second(1.0), 1, Action::Reject);
    let mut gate = gate(CrowdRule::Own, &[CrowdLimit { key: 3, bucket: spec }]);
    assert_eq!(gate.admit(&hot, &event(10 * SECOND, 3, 0)).kind, VerdictKind::Admit);
    for at in [10 * SECOND, 9 * SECOND, 10 * SECOND + 1] {
        assert_eq!(gate.admit(&hot, &event(at, 3, 0)).kind, VerdictKind::Reject, "{at}");
    }
}
