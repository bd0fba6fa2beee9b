// SPDX-License-Identifier: Apache-2.0 OR MIT

use super::*;

fn row(variant: &str, x: f64, metric: &str, value: f64) -> Row {
    Row {
        experiment: "product/survival".into(),
        world: "lab".into(),
        variant: variant.into(),
        x_name: "load".into(),
        x,
        metric: metric.into(),
        unit: "1/s".into(),
        value,
        ci95: None,
        runs: 1,
    }
}

fn claim(at_least: Option<f64>, at_most: Option<f64>) -> Claim {
    Claim {
        id: "goodput".into(),
        says: "goodput stays".into(),
        source: String::new(),
        of: Select {
            metric: "goodput".into(),
            variants: vec!["reject".into()],
            x_name: None,
            at: vec![2.0, 3.0],
            lab: Vec::new(),
        },
        over: Some(Select {
            metric: "capacity".into(),
            variants: vec!["none".into()],
            x_name: None,
            at: vec![1.0],
            lab: Vec::new(),
        }),
        per: None,
        at_least,
        at_most,
        aim: None,
        full_only: false,
        with_interval: false,
        real: false,
        world: None,
        why: String::new(),
        why_lab: String::new(),
    }
}

fn rows() -> Vec<Row> {
    vec![
        row("none", 1.0, "capacity", 100.0),
        row("reject", 2.0, "goodput", 99.0),
        row("reject", 3.0, "goodput", 96.0),
    ]
}

/// The worst point decides, on both sides of the band.
#[test]
fn the_worst_point_decides() {
    assert_eq!(outcome(&claim(Some(0.95), None), &rows()), Outcome::Holds(0.96));
    let fails = Outcome::Fails(0.96, "reject at 3".into());
    assert_eq!(outcome(&claim(Some(0.97), None), &rows()), fails);
    let fails = Outcome::Fails(0.99, "reject at 2".into());
    assert_eq!(outcome(&claim(None, Some(0.98)), &rows()), fails);
}

/// Without a band nothing is judged: the range is shown, whatever the order of the points.
#[test]
fn without_a_band_the_range_is_reported() {
    let mut claim = claim(None, None);
    let reported = Outcome::Reported(0.96, 0.99, "reject at 2".into());
    for _ in 0..2 {
        let line = line(&claim, &rows(), false);
        assert_eq!(line.outcome, reported);
        assert!(line.holds() && !line.judged());
        claim.of.at.reverse();
    }
    let shown = words(&reported);
    assert_eq!(shown, ("0.96 to 0.99 (reject at 2)".to_owned(), "–".to_owned()));
    let missing = line(&claim, &rows()[..2], false);
    assert!(!missing.judged() && !missing.holds());
}

/// An interval that reaches beyond the band is said, but not where the value is a ratio.
#[test]
fn an_interval_beyond_the_band_is_said() {
    let mut claim = claim(Some(95.0), None);
    claim.over = None;
    let mut rows = rows();
    for (half, outcome_wanted) in [(1.5, Outcome::Narrowly(96.0, 1.5)), (0.5, Outcome::Holds(96.0))]
    {
        rows[2].ci95 = Some(half);
        assert_eq!(outcome(&claim, &rows), outcome_wanted);
    }
}

/// What was measured while the machine changed counts only where the change makes no
/// difference, whatever the direction; a miss stays one.
#[test]
fn a_drift_beside_a_run_is_put_on_its_value() {
    let mut rows = rows();
    rows.push(row("reject", 3.0, "drift", 0.03));
    assert_eq!(outcome(&claim(Some(0.95), None), &rows), Outcome::Holds(0.96));
    rows.push(row("none", 1.0, "drift", 0.2));
    // 0.96 less a sixth is 0.8, and a fifth more 1.152.
    let place = || "none at 1".to_owned();
    let despite = Outcome::Despite(0.96, place(), 0.2);
    assert_eq!(outcome(&claim(Some(0.79), None), &rows), despite);
    let unsteady = Outcome::Unsteady(0.96, place(), 0.2);
    assert_eq!(outcome(&claim(Some(0.81), None), &rows), unsteady);
    let wide = |most| claim(Some(0.1), Some(most));
    let of = |most| {
        let mut rows = rows.clone();
        rows[1].value = 96.0;
        outcome(&wide(most), &rows)
    };
    assert_eq!([of(1.16), of(1.15)], [despite, unsteady]);
    let fails = Outcome::Fails(0.96, "reject at 3".into());
    assert_eq!(outcome(&claim(Some(0.97), None), &rows), fails);
    rows.push(row("reject", 2.0, "drift", 0.26));
    let far = Outcome::Unsteady(0.96, "reject at 2".into(), 0.26);
    assert_eq!(outcome(&claim(Some(0.1), None), &rows), far);
}

/// The interval over three rounds has the drift in it; one that reaches beyond the band, or is of
/// two rounds, does not count.
#[test]
fn rounds_have_their_drift_in_their_interval() {
    let mut claim = claim(Some(1.024), None);
    (claim.over, claim.of.at) = (None, vec![2.0]);
    let mut rows = vec![row("reject", 2.0, "goodput", 1.05), row("reject", 2.0, "drift", 0.2)];
    rows.push(row("reject", 2.0, "goodput_drift", 0.05));
    let unsteady = Outcome::Unsteady(1.05, "reject at 2".into(), 0.05);
    let repeated = Outcome::Repeated(1.05, 0.02, "reject at 2".into(), 0.05);
    let cases = [
        (Some(0.02), 3, repeated),
        (Some(0.03), 3, unsteady.clone()),
        (Some(0.02), 2, unsteady.clone()),
        (None, 1, unsteady),
    ];
    for (ci95, runs, wanted) in cases {
        (rows[0].ci95, rows[0].runs) = (ci95, runs);
        assert_eq!(outcome(&claim, &rows), wanted);
    }
    rows[0].ci95 = Some(0.0);
    rows[0].runs = 5;
    rows[2].value = 0.26;
    let far = Outcome::Unsteady(1.05, "reject at 2".into(), 0.26);
    assert_eq!(outcome(&claim, &rows), far);
}

/// A claim about the interval needs one, of rounds enough, and all of it in the band.
#[test]
fn a_claim_about_intervals_holds_with_the_whole_of_it() {
    let mut claim = Claim { with_interval: true, ..claim(Some(0.001), None) };
    (claim.over, claim.of.at) = (None, vec![2.0]);
    let missing = Outcome::Missing("3 rounds, of which an interval is made".into());
    let cases = [
        (Some(0.04), 6, Outcome::Holds(0.05)),
        (Some(0.06), 6, Outcome::TooWide(0.05, 0.06)),
        (Some(0.04), 2, missing.clone()),
        (Some(0.06), 2, missing.clone()),
        (None, 1, missing),
    ];
    let mut rows = vec![row("reject", 2.0, "goodput", 0.05)];
    for (ci95, runs, wanted) in cases {
        (rows[0].ci95, rows[0].runs) = (ci95, runs);
        let line = line(&claim, &rows, false);
        assert_eq!((line.holds(), &line.outcome), (matches!(wanted, Outcome::Holds(_)), &wanted));
        assert_eq!(line.band, ">= 0.001, the whole interval");
    }
    rows.push(row("reject", 2.0, "drift", 0.05));
    for (ci95, holds) in [(Some(0.04), true), (Some(0.06), false), (None, false)] {
        (rows[0].ci95, rows[0].runs) = (ci95, 6);
        assert_eq!(line(&claim, &rows, false).holds(), holds, "with a drift, {ci95:?}");
    }
}

/// The reason of the first world is not said of the lab, whose own is.
#[test]
fn a_reason_belongs_to_its_world() {
    let mut claim = Claim { why: "model".into(), ..claim(None, None) };
    assert_eq!([claim.reason("sim", true), claim.reason("lab", false)], ["model", ""]);
    claim.why_lab = "machine".into();
    assert_eq!([claim.reason("sim", true), claim.reason("lab", false)], ["model", "machine"]);
    claim.why_lab.clear();
    claim.world = Some("lab".into());
    assert_eq!(claim.reason("lab", false), "model");
}

/// A claim may name other points for the lab.
#[test]
fn the_lab_has_points_of_its_own() {
    let mut claim = claim(Some(0.97), None);
    claim.of.lab = vec![2.0];
    assert_eq!(outcome(&claim, &rows()), Outcome::Holds(0.99));
    let mut rows = rows();
    rows.iter_mut().for_each(|row| row.world = "sim".into());
    assert_eq!(outcome(&claim, &rows), Outcome::Fails(0.96, "reject at 3".into()));
}

/// A star stands for anything, and a pattern that fits nothing is missing.
#[test]
fn patterns_name_what_was_measured() {
    let cases = [
        ("*-drop", "a-drop", true),
        ("*-drop", "a-reject", false),
        ("a-*-c-*", "a-b-c-d", true),
        ("a-*-c-*", "a-c-d", false),
        ("a*", "ba", false),
    ];
    for (pattern, text, expected) in cases {
        assert_eq!(fits(pattern, text), expected, "{pattern} {text}");
    }
    let mut claim = claim(Some(0.95), None);
    claim.of.variants = vec!["rej*".into()];
    assert_eq!(outcome(&claim, &rows()), Outcome::Holds(0.96));
    claim.of.variants = vec!["x*".into()];
    assert_eq!(outcome(&claim, &rows()), Outcome::Missing("any variant x*".into()));
}

/// What was not measured does not hold, and NaN does not either.
#[test]
fn nothing_holds_that_was_not_measured() {
    let claim = claim(Some(0.95), None);
    let missing = Outcome::Missing("goodput of reject at load 3".into());
    assert_eq!(outcome(&claim, &rows()[..2]), missing);
    let mut nan = rows();
    nan[2].value = f64::NAN;
    nan.remove(1);
    assert!(!matches!(outcome(&claim, &nan), Outcome::Holds(_)));
}

/// A ratio to nothing fails on every side, also where only a report is asked for, and a good
/// point after it does not hide it.
#[test]
fn what_is_not_finite_holds_nowhere() {
    for (reference, first) in [(0.0, 99.0), (0.0, 0.0), (0.0, -1.0)] {
        for (at_least, at_most) in [(Some(0.95), None), (None, Some(2.0)), (None, None)] {
            let mut claim = claim(at_least, at_most);
            claim.over = Some(Select {
                metric: "fall".into(),
                variants: Vec::new(),
                x_name: None,
                at: Vec::new(),
                lab: Vec::new(),
            });
            let mut rows = rows();
            rows[1].value = first;
            rows.push(row("reject", 2.0, "fall", reference));
            rows.push(row("reject", 3.0, "fall", 96.0));
            let outcome = outcome(&claim, &rows);
            assert!(matches!(outcome, Outcome::Fails(v, _) if !v.is_finite()), "{outcome:?}");
        }
    }
}

/// Two runs are compared by what each made of the capacity beside itself: of 100/s and of 90/s.
#[test]
fn each_run_has_a_capacity_of_its_own() {
    let mut claim = claim(Some(0.95), None);
    claim.of.at = vec![2.0];
    claim.over = Some(Select {
        metric: "goodput".into(),
        variants: vec!["haproxy".into()],
        x_name: None,
        at: vec![],
        lab: vec![],
    });
    let mut rows = vec![
        row("reject", 2.0, "goodput", 81.0),
        row("reject", 2.0, "capacity", 90.0),
        row("haproxy", 2.0, "goodput", 90.0),
        row("haproxy", 2.0, "capacity", 100.0),
    ];
    assert!(matches!(outcome(&claim, &rows), Outcome::Fails(value, _) if value < 0.91));
    claim.per = Some("capacity".into());
    assert!(matches!(outcome(&claim, &rows), Outcome::Holds(value) if value > 0.99));
    rows.pop();
    let missing = Outcome::Missing("capacity of haproxy at load 2".into());
    assert_eq!(outcome(&claim, &rows), missing);
}

/// A claim for the simulator is left out in the lab, and judged in the simulator.
#[test]
fn a_claim_can_be_for_one_world() {
    let mut claim = claim(Some(0.97), None);
    claim.world = Some("sim".into());
    assert_eq!(line(&claim, &rows(), false).outcome, Outcome::OtherWorld);
    let sim: Vec<Row> = rows().into_iter().map(|row| Row { world: "sim".into(), ..row }).collect();
    assert!(matches!(line(&claim, &sim, false).outcome, Outcome::Fails(..)));
    assert!(matches!(line(&claim, &[], false).outcome, Outcome::Missing(_)));
}

/// A claim that needs the full run is left out of a quick one, and judged in the full one.
#[test]
fn quick_runs_leave_full_claims_out() {
    let mut claim = claim(Some(0.97), None);
    claim.full_only = true;
    assert_eq!(line(&claim, &rows(), true).outcome, Outcome::NotJudged);
    assert!(!line(&claim, &rows(), false).holds());
}

/// A claim about real traces holds only where all of its points ran on them.
#[test]
fn a_claim_about_real_traces_does_not_hold_on_stand_ins() {
    let line_of = |real: bool, told: &[Row]| {
        let claim = Claim { real, ..claim(Some(0.95), None) };
        line(&claim, &[rows(), told.to_vec()].concat(), false)
    };
    let of = |x, metric: &str, share| row("reject", x, metric, share);
    let all = [of(2.0, "real", 1.0), of(3.0, "real_share", 1.0)];
    let some = [of(2.0, "real", 1.0), of(3.0, "real", 0.5)];
    let synthetic = || Outcome::Synthetic("reject at 3".into());
    assert_eq!(line_of(true, &all).outcome, Outcome::Holds(0.96));
    for told in [&some[..], &all[..1]] {
        let line = line_of(true, told);
        assert_eq!(line.outcome, synthetic());
        assert!(!line.holds() && line.judged());
        assert!(table(&[line]).contains("NO: synthetic arrivals"));
        assert!(line_of(false, told).holds(), "no such claim");
    }
}
