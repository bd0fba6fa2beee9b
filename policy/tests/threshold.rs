// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Thresholds on a level: the paper's three schemes (Iyer, Tewari, Kant, sections 2.1 and 4) with the
//! thresholds of its experiments (section 5), hysteresis, severities, priorities, preferred clients.

#![allow(clippy::unwrap_used, reason = "a test may")]

use tidegate_policy::{
    Action, Event, Params, Reason, State, ThresholdSpec, Thresholds, Throttle, Verdict,
    VerdictKind, admit,
};
use tidegate_units::{Nanos, Share};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// A server's limits, and what its queue was.
struct Server {
    params: Params,
    state: State,
    now: u64,
}

impl Server {
    fn new(spec: &ThresholdSpec) -> Self {
        Self { params: Params::threshold(spec).unwrap(), state: State::fresh(), now: SECOND }
    }

    fn ask(&mut self, level: u32, priority: u8, random: u32) -> Verdict {
        let event = Event { level, priority, random, ..Event::at(self.now) };
        admit(&self.params, &mut self.state, &event)
    }

    fn reason(&mut self, level: u32) -> Reason {
        self.ask(level, 7, 0).reason
    }

    /// The reasons for this series of levels.
    fn reasons(&mut self, levels: &[u32]) -> Vec<Reason> {
        levels.iter().map(|level| self.reason(*level)).collect()
    }

    /// How many of a hundred are admitted, their random bits spread evenly.
    fn percent(&mut self, level: u32, priority: u8) -> usize {
        let randoms = (0..100_u64).map(|n| ((2 * n + 1) * (1 << 31) / 100) as u32);
        randoms
            .filter(|random| self.ask(level, priority, *random).kind == VerdictKind::Admit)
            .count()
    }
}

fn shares(percents: &[u32]) -> Throttle {
    Throttle::Share(percents.iter().map(|percent| Share::new(f64::from(*percent) / 1e2)).collect())
}

fn gaps(millis: &[u64]) -> Throttle {
    Throttle::Gap(millis.iter().map(|ms| Nanos::from_millis(*ms)).collect())
}

use Reason::{BelowThreshold as Below, Discard, LetThrough, Throttled};

/// Section 4.2, with the onset of section 5.2: from a queue of 20 on all connection requests of
/// controlled clients are dropped, until the queue is below the abatement threshold.
#[test]
fn dropping_lasts_until_the_abatement() {
    let mut server = Server::new(&ThresholdSpec::dropping(10, 20, Action::Drop));
    let levels = [0, 10, 19, 20, 300, 19, 10, 9, 10, 19, 20];
    let expected =
        [Below, Below, Below, Discard, Discard, Discard, Discard, Below, Below, Below, Discard];
    assert_eq!(server.reasons(&levels), expected);
    assert_eq!(server.ask(20, 0, 0).kind, VerdictKind::Drop);
}

/// Section 5.2: 100 % of both controlled clients, or 50 % of one and 100 % of the other; the
/// uncontrolled client is not dropped, however long the queue is.
#[test]
fn dropping_a_share_of_each_class() {
    let mut spec = ThresholdSpec::throttling(10, 20, shares(&[50]), Action::Drop);
    spec.rises = vec![1000];
    spec.throttle = shares(&[50, 100]);
    spec.preferred = 0b1;
    spec.priorities[2..].iter_mut().for_each(|lower| lower.harder = 1);
    let mut server = Server::new(&spec);
    assert_eq!([0, 1, 2].map(|priority| server.percent(19, priority)), [100, 100, 100]);
    assert_eq!([0, 1, 2].map(|priority| server.percent(252, priority)), [100, 50, 0]);
    assert_eq!([0, 1, 2].map(|priority| server.percent(10, priority)), [100, 50, 0]);
    assert_eq!([0, 1, 2].map(|priority| server.percent(9, priority)), [100, 100, 100]);
}

/// Section 4.3, with the thresholds and the gap of section 5.3: from a queue of 150 on one request in
/// 200 ms, and nothing is discarded.
#[test]
fn throttling_keeps_the_gap_until_the_abatement() {
    let spec = ThresholdSpec::throttling(100, 150, gaps(&[200]), Action::Reject);
    let mut server = Server::new(&spec);
    assert_eq!(server.reasons(&[149, 149, 150, 150]), [Below, Below, LetThrough, Throttled]);
    server.now += 200 * MS - 1;
    assert_eq!(server.reason(u32::MAX), Throttled);
    server.now += 1;
    assert_eq!(server.reasons(&[100, 100, 99, 99]), [LetThrough, Throttled, Below, Below]);
    assert_eq!(server.ask(150, 7, 0).kind, VerdictKind::Reject);
}

/// Section 5.3: three controlled clients of 20 requests a second and one uncontrolled of 30 are 45, the
/// capacity, with a gap of 200 ms for each controlled one. Here they share one gap, a third of it.
#[test]
fn a_gap_of_the_paper_brings_the_load_to_the_capacity() {
    let mut spec = ThresholdSpec::throttling(100, 150, Throttle::None, Action::Drop);
    spec.throttle = Throttle::Gap(vec![Nanos(200 * MS / 3)]);
    spec.preferred = 0b1;
    let mut server = Server::new(&spec);
    let mut admitted = 0;
    for n in 0..10 * 90_u64 {
        server.now = SECOND + n * SECOND / 90;
        let priority = if n % 3 == 0 { 0 } else { 7 };
        admitted += u32::from(server.ask(252, priority, 0).kind == VerdictKind::Admit);
    }
    // 30 + 15 a second; arrivals stand on a grid of 11 ms, so a gap lasts up to one step longer
    assert!((430..=452).contains(&admitted), "{admitted} in 10 s");
}

/// Section 4.4, with the thresholds of section 5.4: gapping from 150, dropping from 200. Dropping ends
/// below the onset, gapping below the abatement.
#[test]
fn combined_stops_dropping_at_the_onset_and_throttling_at_the_abatement() {
    let spec = ThresholdSpec::combined((100, 150, 200), shares(&[100]), Action::Drop);
    let mut server = Server::new(&spec);
    let levels = [149, 150, 199, 200, 199, 150, 149, 199, 100, 99, 149, 200];
    let expected = [
        Below, Throttled, Throttled, Discard, Discard, Discard, Throttled, Throttled, Throttled,
        Below, Below, Discard,
    ];
    assert_eq!(server.reasons(&levels), expected);
}

/// Section 2.1: onsets that rise are severities, and a severity is left below the onset of the one
/// before it.
#[test]
fn severities_rise_with_the_level_and_fall_with_hysteresis() {
    let mut spec = ThresholdSpec::combined((10, 20, 80), shares(&[25, 50, 75]), Action::Drop);
    spec.rises = vec![20, 40];
    let mut server = Server::new(&spec);
    let expected = [
        (19, 100),
        (20, 75),
        (39, 75),
        (40, 50),
        (59, 50),
        (60, 25),
        (79, 25),
        (80, 0),
        // down: below 60, 40, 20 and 10
        (60, 0),
        (59, 25),
        (40, 25),
        (39, 50),
        (20, 50),
        (19, 75),
        (10, 75),
        (9, 100),
    ];
    for (level, percent) in expected {
        assert_eq!(server.percent(level, 7), percent, "at {level}");
    }
}

/// With gaps likewise: a higher severity is a longer gap after the last one.
#[test]
fn a_severity_may_be_a_longer_gap() {
    let mut spec = ThresholdSpec::throttling(100, 150, gaps(&[50, 250]), Action::Drop);
    spec.rises = vec![50];
    let mut server = Server::new(&spec);
    assert_eq!(server.reason(150), LetThrough);
    server.now += 50 * MS;
    assert_eq!(server.reasons(&[200, 150, 149]), [Throttled, Throttled, LetThrough]);
    server.now += 50 * MS;
    assert_eq!(server.reasons(&[200, 149]), [Throttled, LetThrough]);
}

/// A level that jumps goes up over any number of rungs at once, and down as well.
#[test]
fn levels_that_jump_take_effect_at_once() {
    let mut spec = ThresholdSpec::combined((10, 20, 80), shares(&[25, 50, 75]), Action::Drop);
    spec.rises = vec![20, 40];
    let mut server = Server::new(&spec);
    for (level, percent) in
        [(0, 100), (u32::MAX, 0), (0, 100), (65, 25), (15, 75), (80, 0), (15, 75), (9, 100)]
    {
        assert_eq!(server.percent(level, 7), percent, "at {level}");
    }
}

/// A host program that measures nothing says 0: whatever was before, all are admitted.
#[test]
fn a_level_that_is_not_measured_is_below_all_thresholds() {
    let mut server = Server::new(&ThresholdSpec::dropping(1, 1, Action::Drop));
    assert_eq!(server.reasons(&[1, 0, 0, 1]), [Discard, Below, Below, Discard]);
}

/// A threshold that is not set is never reached, not even by the largest level.
#[test]
fn without_a_discard_threshold_nothing_is_discarded() {
    let mut server = Server::new(&ThresholdSpec::throttling(1, 1, shares(&[10]), Action::Drop));
    assert_eq!(server.percent(u32::MAX, 7), 90);
}

/// Two priorities, section 2.1: the abatement of the higher is above the discard of the lower. The lower
/// one is refused completely before the higher one is throttled at all.
#[test]
fn the_lower_priority_is_refused_before_the_higher_is_throttled() {
    let low = Thresholds { abatement: 20, onset: 40, discard: Some(60), harder: 0 };
    let high = Thresholds { abatement: 70, onset: 100, discard: Some(120), harder: 0 };
    let mut spec = ThresholdSpec::new(low, shares(&[50]), Action::Drop);
    spec.priorities[..4].fill(high);
    let mut server = Server::new(&spec);
    let mut at = |level| [server.percent(level, 0), server.percent(level, 7)];
    let expected = [
        (39, [100, 100]),
        (40, [100, 50]),
        (60, [100, 0]),
        (99, [100, 0]),
        (100, [50, 0]),
        (120, [0, 0]),
        (100, [0, 0]),
        (99, [50, 0]),
        (70, [50, 0]),
        (69, [100, 0]),
        (40, [100, 0]),
        (39, [100, 50]),
        (20, [100, 50]),
        (19, [100, 100]),
    ];
    for (level, percents) in expected {
        assert_eq!(at(level), percents, "at {level}");
    }
}

/// The rungs of a priority move with the level though only others arrive.
#[test]
fn a_priority_that_did_not_arrive_is_where_the_level_put_it() {
    let mut server = Server::new(&ThresholdSpec::dropping(10, 20, Action::Drop));
    assert_eq!(server.ask(20, 7, 0).reason, Discard);
    assert_eq!(server.ask(15, 0, 0).reason, Discard, "priority 0 has seen the 20 as well");
    assert_eq!(server.ask(9, 7, 0).reason, Below);
    assert_eq!(server.ask(15, 0, 0).reason, Below, "and the 9");
}

/// Preferred priorities are not throttled, and are discarded all the same.
#[test]
fn the_preferred_are_only_discarded() {
    let mut spec = ThresholdSpec::combined((100, 150, 200), shares(&[100]), Action::Drop);
    spec.preferred = 0b11;
    let mut server = Server::new(&spec);
    let reasons = |server: &mut Server, level| {
        [0, 1, 2].map(|priority| server.ask(level, priority, 0).reason)
    };
    assert_eq!(reasons(&mut server, 149), [Below, Below, Below]);
    assert_eq!(reasons(&mut server, 199), [LetThrough, LetThrough, Throttled]);
    assert_eq!(reasons(&mut server, 200), [Discard, Discard, Discard]);
}

/// Preferred requests do not use up the gap of the others.
#[test]
fn the_preferred_do_not_take_the_gap() {
    let mut spec = ThresholdSpec::throttling(10, 20, gaps(&[100]), Action::Drop);
    spec.preferred = 0b1;
    let mut server = Server::new(&spec);
    for _ in 0..5 {
        assert_eq!(server.ask(30, 0, 0).reason, LetThrough);
    }
    assert_eq!(server.reasons(&[30, 30]), [LetThrough, Throttled]);
}

/// The clock goes back a little: the gap lasts longer by that. Back by more: it was wrong, and one gap
/// from now the next is let through.
#[test]
fn a_clock_that_goes_back_keeps_nobody_out() {
    let spec = ThresholdSpec::throttling(10, 20, gaps(&[100]), Action::Drop);
    let mut server = Server::new(&spec);
    server.now = 100 * SECOND;
    assert_eq!(server.reason(30), LetThrough);
    server.now -= SECOND;
    assert_eq!(server.reason(30), Throttled);
    server.now += SECOND + 100 * MS;
    assert_eq!(server.reason(30), LetThrough);
    server.now = 50 * SECOND;
    assert_eq!(server.reason(30), Throttled);
    server.now += 100 * MS;
    assert_eq!(server.reason(30), LetThrough);
}

/// New thresholds count at once, for what the level is now.
#[test]
fn new_thresholds_count_at_once() {
    let mut server = Server::new(&ThresholdSpec::dropping(10, 20, Action::Drop));
    assert_eq!(server.reasons(&[25, 15]), [Discard, Discard]);
    server.params = Params::threshold(&ThresholdSpec::dropping(50, 60, Action::Drop)).unwrap();
    assert_eq!(server.reasons(&[15, 55]), [Below, Below]);
}

/// What is out of range is refused where it is said, with the range.
#[test]
fn parameters_out_of_range_are_errors() {
    let good = ThresholdSpec::combined((10, 20, 30), shares(&[50]), Action::Drop);
    let with = |change: &dyn Fn(&mut ThresholdSpec)| {
        let mut spec = good.clone();
        change(&mut spec);
        spec
    };
    let wrong = [
        (with(&|s| s.priorities[7].abatement = 0), "thresholds of priority 7"),
        (with(&|s| s.priorities[0].onset = 31), "thresholds of priority 0"),
        (with(&|s| s.priorities[0].discard = Some(u32::MAX)), "thresholds of priority 0"),
        (with(&|s| s.priorities[7].abatement = 21), "thresholds of priority 7"),
        (with(&|s| s.priorities[7].harder = 3), "thresholds of priority 7"),
        (with(&|s| s.priorities[3].discard = Some(29)), "thresholds of priority 3"),
        (with(&|s| s.priorities[7].discard = None), "thresholds of priority 6"),
        (with(&|s| s.priorities[2].harder = 1), "thresholds of priority 2"),
        (with(&|s| s.rises = vec![0]), "rises"),
        (with(&|s| s.rises = vec![1, 2, 3]), "rises"),
        (with(&|s| s.rises = vec![2, 1]), "rises"),
        (with(&|s| s.rises = vec![5]), "throttle"),
        (with(&|s| (s.rises, s.throttle) = (vec![5], shares(&[50, 40]))), "throttle"),
        (
            with(&|s| (s.rises, s.throttle) = (vec![11], shares(&[5, 6]))),
            "thresholds of priority 0",
        ),
        (with(&|s| s.throttle = gaps(&[0])), "throttle"),
        (with(&|s| s.throttle = gaps(&[3_600_001])), "throttle"),
        (with(&|s| s.preferred = 0b10), "preferred"),
        (with(&|s| s.preferred = 0b101), "preferred"),
    ];
    for (spec, word) in wrong {
        let error = Params::threshold(&spec).unwrap_err().to_string();
        assert!(error.starts_with(word), "{spec:?}: {error}");
    }
    for spec in [
        with(&|s| s.priorities[0].discard = None),
        with(&|s| (s.rises, s.throttle) = (vec![10], shares(&[5, 5]))),
        with(&|s| s.throttle = gaps(&[3_600_000])),
        with(&|s| s.preferred = 0xff),
        with(&|s| s.priorities[7].harder = 2),
        ThresholdSpec::dropping(1, u32::MAX - 1, Action::Reject),
    ] {
        assert!(Params::threshold(&spec).is_ok(), "{spec:?}");
    }
}

/// What people are shown of a state as it lies in the kernel's map.
#[test]
fn the_rungs_can_be_read_from_the_memory_of_a_policy() {
    let mut server = Server::new(&ThresholdSpec::dropping(10, 20, Action::Drop));
    server.reason(5);
    assert_eq!(State::rungs(server.state.as_bytes()), Some([0; 8]));
    server.reason(20);
    assert_eq!(State::rungs(server.state.as_bytes()), Some([4; 8]));
    server.now = u64::MAX;
    server.reason(9);
    assert_eq!(State::rungs(server.state.as_bytes()), Some([0; 8]));
    assert_eq!(State::rungs(&[0; 47]), None);
}
