// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a router refuses by class: one bucket for all classes, and Abacus for those that have it.

use proptest::prelude::*;
use tidegate_policy::{
    AbacusExactSpec, Action, BucketSpec, CrowdAction, CrowdFilter, Event, Params, Reason, State,
    VerdictKind, admit,
};
use tidegate_units::{Nanos, Rate};

const SECOND: u64 = 1_000_000_000;
const ACTIONS: [CrowdAction; 3] = [CrowdAction::Drop, CrowdAction::Reset, CrowdAction::Abacus];

fn spec(rate: f64, burst: u32) -> AbacusExactSpec {
    AbacusExactSpec {
        bucket: BucketSpec::new(Rate::per_second(rate), burst, Action::Drop),
        schedule: vec![1, 3, 7],
        window: 7,
        period: Nanos::SECOND,
    }
}

fn filter(rate: f64, burst: u32) -> CrowdFilter {
    CrowdFilter::new(&spec(rate, burst)).expect("in range")
}

fn syn(now_ns: u64, client: u64) -> Event {
    Event { key: client.wrapping_mul(0x9e37_79b9_7f4a_7c15), ..Event::at(now_ns) }
}

fn again(event: Event) -> Event {
    Event { priority: 1, ..event }
}

proptest! {
    /// Where all clients have Abacus, the filter is the policy of services, verdict by verdict; what the host program
    /// knows of copies changes nothing.
    #[test]
    fn with_one_class_it_is_the_policy_of_services(
        rate in 1_u64..200, burst in 1_u32..50,
        arrivals in prop::collection::vec((0_u64..SECOND / 10, 0_u64..40, 0_u8..2), 1..400),
    ) {
        let spec = spec(rate as f64, burst);
        let (params, mut state) = (Params::abacus_exact(&spec).unwrap(), State::fresh());
        let mut ours = CrowdFilter::new(&spec).unwrap();
        let mut now = 0;
        for (gap, client, priority) in arrivals {
            now += gap;
            let event = syn(now, client);
            let verdict = ours.admit(CrowdAction::Abacus, &Event { priority, ..event });
            prop_assert_eq!(verdict, admit(&params, &mut state, &event));
        }
    }

    /// Over any time no more than depth + rate · t are admitted, of all classes together; none is refused in another
    /// way than its class says.
    #[test]
    fn all_classes_share_one_bucket(
        rate in 1_u64..500, burst in 1_u32..20,
        arrivals in prop::collection::vec((0_u64..SECOND / 20, 0_u64..60, 0_usize..3, 0_u8..2), 1..400),
    ) {
        let mut filter = filter(rate as f64, burst);
        let (mut now, mut admitted) = (0, 0.0);
        for (gap, client, action, priority) in arrivals {
            now += gap;
            let action = ACTIONS[action];
            let verdict = filter.admit(action, &Event { priority, ..syn(now, client) });
            match (verdict.kind, action) {
                (VerdictKind::Admit, _) => admitted += 1.0,
                (VerdictKind::Drop, CrowdAction::Drop | CrowdAction::Abacus)
                | (VerdictKind::Reject, CrowdAction::Reset | CrowdAction::Abacus) => {}
                other => prop_assert!(false, "{:?}", other),
            }
            prop_assert!(admitted <= f64::from(burst) + rate as f64 * now as f64 / 1e9 + 1e-6);
        }
    }
}

/// Of 100 at once, at 20 tokens a second: Abacus promises those that have room at 1, 3 and 7 s a place, and rejects the
/// rest. The other classes do what they always do.
#[test]
fn abacus_drops_whom_it_can_serve_later_and_resets_the_rest() {
    for (action, dropped, rejected) in [
        (CrowdAction::Drop, 80, 0),
        (CrowdAction::Reset, 0, 80),
        // Three periods of 20, less what new arrivals are expected to take.
        (CrowdAction::Abacus, 60, 20),
    ] {
        let mut filter = filter(20.0, 20);
        let kinds = (0..100).map(|client| filter.admit(action, &syn(1, client)).kind);
        let kinds: Vec<VerdictKind> = kinds.collect();
        let count = |kind| kinds.iter().filter(|one| **one == kind).count();
        let found = [VerdictKind::Admit, VerdictKind::Drop, VerdictKind::Reject].map(count);
        assert_eq!(found, [20, dropped, rejected], "{action:?}");
    }
}

/// Who was dropped and is due comes before a new arrival of any class, and after its token it is forgotten.
#[test]
fn a_copy_that_is_due_comes_before_new_arrivals_of_other_classes() {
    for other in ACTIONS {
        let mut filter = filter(4.0, 8);
        (0..8).for_each(|n| assert_eq!(filter.admit(other, &syn(1, n)).reason, Reason::Token));
        for client in 100..104 {
            let verdict = filter.admit(CrowdAction::Abacus, &syn(2, client));
            assert_eq!(verdict.reason, Reason::Borrowed, "{other:?}");
        }
        // At the beginning of the period in which all four are due there are four tokens.
        let now = SECOND + 2;
        let stranger = filter.admit(other, &syn(now, 200));
        assert_ne!(stranger.kind, VerdictKind::Admit, "{other:?}: the tokens are theirs");
        for client in 100..104 {
            let verdict = filter.admit(CrowdAction::Abacus, &again(syn(now, client)));
            assert_eq!((verdict.kind, verdict.repeated), (VerdictKind::Admit, true), "{client}");
        }
        let twice = filter.admit(CrowdAction::Abacus, &syn(now, 100));
        assert!(!twice.repeated, "a new arrival");
    }
}

/// A client that has no Abacus is not remembered: its copies leave half of the bucket, as at a limit without a filter.
#[test]
fn repeated_attempts_of_other_classes_leave_half_of_the_bucket() {
    for action in [CrowdAction::Drop, CrowdAction::Reset] {
        let mut filter = filter(1.0, 8);
        assert_eq!(filter.admit(action, &syn(1, 1)).kind, VerdictKind::Admit);
        let taken = (0..9)
            .filter(|n| filter.admit(action, &again(syn(1, 10 + n))).kind == VerdictKind::Admit);
        assert_eq!(taken.count(), 3, "of seven tokens four have to stay");
        let taken =
            (0..9).filter(|n| filter.admit(action, &syn(1, 30 + n)).kind == VerdictKind::Admit);
        assert_eq!(taken.count(), 4);
    }
}

/// The law moves the rate while the limit holds: who is known stays known, and what was used stays used.
#[test]
fn the_rate_moves_and_nobody_is_forgotten() {
    let mut filter = filter(10.0, 10);
    let admitted = (0..10)
        .filter(|n| filter.admit(CrowdAction::Abacus, &syn(1, *n)).kind == VerdictKind::Admit);
    assert_eq!(admitted.count(), 10);
    assert_eq!(filter.admit(CrowdAction::Abacus, &syn(1, 50)).reason, Reason::Borrowed);
    filter.set(&spec(5.0, 10)).unwrap();
    let verdict = filter.admit(CrowdAction::Abacus, &syn(SECOND + 1, 50));
    assert_eq!((verdict.reason, verdict.repeated), (Reason::Token, true));
    let before = filter.clone();
    assert!(filter.set(&spec(0.0, 10)).is_err());
    assert_eq!(filter, before, "nothing changes");
}
