// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hooks load, in every variant, and do the simplest thing.

#![allow(clippy::unwrap_used, reason = "a test may")]

use tidegate_bpf::Plan;
use tidegate_bpf::testing::{Outcome, TestHook, TestPlane, plans};
use tidegate_config::{RequestsConfig, RuleConfig, ServiceConfig};
use tidegate_policy::{Action, Policy};

fn plan() -> Plan {
    let policy = plans::policy(Policy::FreshFirst, Action::Reject);
    plans::plan(vec![ServiceConfig { policy, ..plans::service("shop", &["*:80"]) }])
}

fn requests() -> RequestsConfig {
    let rule = RuleConfig { close_persistent: true, ..plans::rule("/", Some("pages")) };
    plans::requests(&["pages"], vec![rule])
}

#[test]
fn hooks_of_request_rules_are_there_with_the_first_rule() {
    let mut plane = TestPlane::load(&plan()).unwrap();
    let error = plane.run(TestHook::RequestIn, &[0; 60]).unwrap_err().to_string();
    assert!(error.contains("no service has request rules"), "{error}");
    let mut with_rules = plan();
    with_rules.config.services[0].requests = Some(requests());
    plane.apply(&with_rules).unwrap();
    let run = plane.run(TestHook::RequestIn, &[0; 60]).unwrap();
    assert_eq!(run.outcome, Outcome::Pass);
    let names: Vec<&str> = plane.budgets().unwrap().into_iter().map(|(name, _)| name).collect();
    assert!(names.ends_with(&["request_in", "request_out", "sweep"]), "{names:?}");
}

#[test]
fn every_hook_loads_within_the_verifiers_budget_and_passes_foreign_frames() {
    let mut with_rules = plan();
    with_rules.config.services[0].requests = Some(requests());
    let plane = TestPlane::load(&with_rules).unwrap();
    plane.load_tcx().unwrap();
    let hooks =
        [TestHook::Xdp, TestHook::Tc, TestHook::Egress, TestHook::RequestIn, TestHook::RequestOut];
    for hook in hooks {
        let insns = plane.verified_insns(hook).unwrap();
        println!("{hook:?}: {insns} instructions verified");
        assert!(insns <= 300_000, "{hook:?}: {insns}");
        let mut arp = vec![0_u8; 60];
        arp[12..14].copy_from_slice(&[8, 6]);
        let run = plane.run(hook, &arp).unwrap();
        assert_eq!((run.outcome, run.packet), (Outcome::Pass, arp));
    }
}

/// A SYN from 198.51.100.7:40000 to 192.0.2.10:80, 54 bytes.
fn syn(seq: u32) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend([0x45, 0, 0, 40, 0, 1, 0x40, 0, 64, 6, 0, 0]);
    frame.extend([198, 51, 100, 7, 192, 0, 2, 10]);
    frame.extend(40_000_u16.to_be_bytes());
    frame.extend(80_u16.to_be_bytes());
    frame.extend(seq.to_be_bytes());
    frame.extend([0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0]);
    frame
}

#[test]
fn a_syn_beyond_the_rate_is_answered_and_shadow_release_and_lease_let_it_pass() {
    use tidegate_bpf::ServiceParams;
    use tidegate_policy::{BucketSpec, Params, Reason, VerdictKind};
    use tidegate_units::{Nanos, Rate};

    for (hook, answered) in [(TestHook::Xdp, Outcome::Transmit), (TestHook::Tc, Outcome::Redirect)]
    {
        let mut plane = TestPlane::load(&plan()).unwrap();
        let outcome = |plane: &TestPlane, seq| plane.run(hook, &syn(seq)).unwrap().outcome;
        assert_eq!(outcome(&plane, 1), Outcome::Pass, "no limit yet");
        let spec = BucketSpec::new(Rate::per_second(0.001), 1, Action::Reject);
        let params = Params::fresh_first(&spec).unwrap();
        plane.set_limits(&[ServiceParams::new(0, params)], &[], 7).unwrap();
        assert_eq!(outcome(&plane, 2), Outcome::Pass, "the one token");
        let run = plane.run(hook, &syn(3)).unwrap();
        assert_eq!(run.outcome, answered);
        assert_eq!(run.packet.len(), 54);
        assert_eq!(run.packet[47], 0x14, "RST and ACK");
        assert_eq!(run.packet[42..46], 4_u32.to_be_bytes(), "acknowledges the SYN");
        plane.set_shadow(0, true).unwrap();
        assert_eq!(outcome(&plane, 4), Outcome::Pass, "shadow");
        plane.set_shadow(0, false).unwrap();
        assert_eq!(outcome(&plane, 5), answered);
        plane.release(true).unwrap();
        assert_eq!(outcome(&plane, 6), Outcome::Pass, "released");
        plane.release(false).unwrap();
        plane.set_lease(Nanos(1)).unwrap();
        assert_eq!(outcome(&plane, 7), Outcome::Pass, "lease expired");
        let mut seen: Vec<_> = plane
            .counts()
            .unwrap()
            .into_iter()
            .map(|c| (c.verdict, c.shadow, c.reason, c.count))
            .collect();
        seen.sort_by_key(|c| c.2 as u8);
        let expected = [
            (VerdictKind::Admit, false, Reason::NoLimit, 1),
            (VerdictKind::Admit, false, Reason::Token, 1),
            (VerdictKind::Reject, false, Reason::Rate, 2),
            (VerdictKind::Reject, true, Reason::Rate, 1),
        ];
        assert_eq!(seen, expected);
        let totals = plane.totals(0).unwrap();
        assert_eq!((totals.offered, totals.admitted, totals.refused), (7, 5, 3), "all is demand");
        let passed: Vec<_> =
            plane.passed().unwrap().into_iter().map(|p| (p.reason, p.count)).collect();
        assert_eq!(passed, [(Reason::Released, 1), (Reason::LeaseExpired, 1)]);
    }
}

#[test]
fn between_three_and_ten_seconds_a_refusal_is_executed_with_falling_probability() {
    use tidegate_bpf::ServiceParams;
    use tidegate_policy::{BucketSpec, Params};
    use tidegate_units::{Nanos, Rate};

    const SYNS: u32 = 4_000;
    let mut plane = TestPlane::load(&plan()).unwrap();
    let spec = BucketSpec::new(Rate::per_second(0.001), 1, Action::Drop);
    let params = Params::fresh_first(&spec).unwrap();
    plane.set_limits(&[ServiceParams::new(0, params)], &[], 7).unwrap();
    plane.run(TestHook::Xdp, &syn(0)).unwrap();
    // (age in ms, share executed)
    for (age_ms, expected) in
        [(2_000, 1.0), (4_750, 0.75), (6_500, 0.5), (9_300, 0.1), (11_000, 0.0)]
    {
        let now = plane.heartbeat().unwrap();
        assert!(now > Nanos::from_millis(age_ms), "booted too lately for a lease of this age");
        plane.set_lease(now - Nanos::from_millis(age_ms)).unwrap();
        let drops = (0..SYNS)
            .filter(|seq| plane.run(TestHook::Xdp, &syn(*seq)).unwrap().outcome == Outcome::Drop)
            .count();
        let share = drops as f64 / f64::from(SYNS);
        assert!((share - expected).abs() < 0.04, "{age_ms} ms: {share}, expected {expected}");
    }
}

#[test]
fn the_kernel_and_the_native_build_give_the_same_verdicts() {
    use tidegate_bpf::ServiceParams;
    use tidegate_policy::{BucketSpec, Event, Params, State, admit};
    use tidegate_units::Rate;

    TestPlane::stay_on_one_cpu();
    let mut plane = TestPlane::load(&plan()).unwrap();
    let spec = BucketSpec::new(Rate::per_second(1000.0), 5, Action::Reject);
    let params = Params::fresh_first(&spec).unwrap();
    plane.set_limits(&[ServiceParams::new(0, params)], &[], 2).unwrap();
    let mut state = State::fresh();
    for n in 1..5_000_u64 {
        let mut event = Event::at(n * 400_000);
        event.key = (n % 700).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let native = admit(&params, &mut state, &event);
        assert_eq!(plane.replay(0, &event).unwrap(), native, "event {n}");
    }
    assert_eq!(plane.state(0).unwrap(), state.as_bytes());
}

/// Of a canary the kernel refuses the chosen sources only: of nearly none, this one is not; of nearly all, it
/// is. What is counted as refused is the same.
#[test]
fn a_canary_spares_whoever_is_not_chosen() {
    use tidegate_bpf::ServiceParams;
    use tidegate_model::{Canary, Mode};
    use tidegate_policy::{BucketSpec, Params, VerdictKind};
    use tidegate_units::Rate;

    let refused = Outcome::Drop;
    for hook in [TestHook::Xdp, TestHook::Tc] {
        let mut plane = TestPlane::load(&plan()).unwrap();
        let outcome = |plane: &TestPlane, seq| plane.run(hook, &syn(seq)).unwrap().outcome;
        let spec = BucketSpec::new(Rate::per_second(0.001), 1, Action::Drop);
        let params = Params::fresh_first(&spec).unwrap();
        plane.set_limits(&[ServiceParams::new(0, params)], &[], 7).unwrap();
        assert_eq!(outcome(&plane, 1), Outcome::Pass, "the one token");
        for (seq, percent, expected) in
            [(2, 0.002, Outcome::Pass), (3, 99.998, refused), (4, 100.0, refused)]
        {
            let canary = Canary::of_percent(percent).unwrap();
            plane.set_mode(0, Mode::Enforce, canary).unwrap();
            assert_eq!(outcome(&plane, seq), expected, "{percent} %");
        }
        plane.set_mode(0, Mode::Shadow, Canary::ALL).unwrap();
        assert_eq!(outcome(&plane, 5), Outcome::Pass);
        let counts = plane.counts().unwrap();
        let counted = |shadow| {
            let of =
                counts.iter().filter(|c| c.verdict != VerdictKind::Admit && c.shadow == shadow);
            of.map(|c| c.count).sum::<u64>()
        };
        assert_eq!((counted(true), counted(false)), (2, 2));
    }
}
