// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An overloaded server behind congested routers, in small: what crosses the network in vain, what
//! pushback saves, and what it leaves alone.

use tidegate_sim::netdraino::{Bin, Control, NetdrainoSpec, Outcome, Shift, run};
use tidegate_units::Nanos;

const PART: (usize, usize) = (15, 40);

fn spec(control: Control) -> NetdrainoSpec {
    let mut spec = NetdrainoSpec::new(1, control);
    spec.lasts = Nanos::from_secs(PART.1 as u64);
    if matches!(control, Control::InBand | Control::Naive(_)) {
        spec.congestion = NetdrainoSpec::published(15.0);
    }
    spec
}

fn ran(spec: &NetdrainoSpec) -> Outcome {
    run(spec).expect("the books agree")
}

fn throughput(out: &Outcome) -> f64 {
    out.mean(PART, |bin| (bin.accepted + bin.others) as f64)
}

fn wasted(out: &Outcome) -> f64 {
    out.mean(PART, |bin| (bin.arrived - bin.accepted) as f64)
}

fn sum(out: &Outcome, of: fn(&Bin) -> u64) -> u64 {
    out.bins.iter().map(of).sum()
}

/// What S0 drops has crowded out others; pushed back, it is dropped before the congested links.
#[test]
fn pushback_turns_waste_into_throughput() {
    let without = ran(&spec(Control::ServerOnly));
    assert!(wasted(&without) > 100.0, "{} packets/s for nothing", wasted(&without));
    for control in [Control::InBand, Control::OutOfBand] {
        let with = ran(&spec(control));
        assert!(wasted(&with) < 0.5 * wasted(&without), "{control:?}: {}", wasted(&with));
        let gain = throughput(&with) / throughput(&without);
        assert!((1.1..2.25).contains(&gain), "{control:?}: {gain}");
        assert_eq!(sum(&with, |bin| bin.refused_others), 0, "{control:?}: others have no limit");
        assert!(sum(&with, |bin| bin.refused) > 0);
    }
}

/// No limit travels unless a router is congested and a server overloaded.
#[test]
fn limits_need_both_congestion_and_overload() {
    // Overloaded, and all fits: S0 takes half of what comes.
    let mut fits = spec(Control::OutOfBand);
    (fits.connections, fits.udp, fits.rates) = ((10, 0), (8.0, 0.0), (20.0, 100.0));
    // Congested, and no server is above its rate.
    let mut roomy = spec(Control::OutOfBand);
    roomy.rates = (10_000.0, 10_000.0);
    for (name, spec) in [("no congestion", fits), ("no overload", roomy)] {
        let out = ran(&spec);
        assert_eq!((sum(&out, |bin| bin.limits), out.first_limit), (0, None), "{name}");
    }
    let congested = |out: &Outcome| sum(out, |bin| bin.congested);
    assert!(congested(&ran(&spec(Control::OutOfBand))) > 0);
}

/// The naive way gives limits to routers that have no use for them, and the sum of whole rates to those
/// that do.
#[test]
fn the_naive_way_spreads_rules_everywhere() {
    let out = ran(&spec(Control::Naive(2)));
    assert!(
        out.needless > 0 && out.limited_routers == 3,
        "{} {}",
        out.needless,
        out.limited_routers
    );
    let near = ran(&spec(Control::Naive(1)));
    assert_eq!(near.limited_routers, 1, "only the core, in front of which all is lost");
    assert!(throughput(&near) < throughput(&out));
}

/// Without packets back through it a router never learns who is overloaded, but by the relayed bit; ours
/// needs neither.
#[test]
fn asymmetric_paths_need_the_relayed_bit_or_notices() {
    let away = |control, relay| ran(&NetdrainoSpec { asymmetric: true, relay, ..spec(control) });
    let unaware = away(Control::InBand, false);
    assert_eq!(sum(&unaware, |bin| bin.limits), 0);
    assert!(sum(&away(Control::InBand, true), |bin| bin.limits) > 0);
    assert!(wasted(&away(Control::OutOfBand, false)) < 0.5 * wasted(&unaware));
}

/// Shares that shift every 10 s, by offered counts: S0 accepts nearly as much as where they do not.
#[test]
fn shifting_shares_do_not_starve_the_server() {
    let shifts = |times| NetdrainoSpec {
        shift: Some(Shift { period: Nanos::from_secs(10), times }),
        connections: (40, 10),
        udp: (36.0, 4.0),
        rates: (100.0, 300.0),
        ..spec(Control::OutOfBand)
    };
    let accepted = |times| ran(&shifts(times)).mean(PART, |bin| bin.accepted as f64);
    let (shifting, steady) = (accepted(4.0), accepted(1.0));
    assert!(shifting > 0.9 * steady, "{shifting} of {steady}");
}

#[test]
fn one_seed_one_course() {
    let short = NetdrainoSpec { lasts: Nanos::from_secs(8), ..spec(Control::InBand) };
    assert_eq!(ran(&short), ran(&short));
    assert_ne!(ran(&short), ran(&NetdrainoSpec { seed: 2, ..short.clone() }));
}

/// One client of 25 that forges options takes limits away from the published mode; ours has the same as before.
#[test]
fn forged_options_stop_the_published_mode_and_not_ours() {
    let limits = |control: Control, forging: u32| {
        let out = ran(&NetdrainoSpec { forging, ..spec(control) });
        (sum(&out, |bin| bin.limits) as f64, throughput(&out))
    };
    let (before, with) = (limits(Control::InBand, 0), limits(Control::InBand, 1));
    assert!(with.0 < 0.5 * before.0, "{with:?}, without forged ones {before:?}");
    let (before, with) = (limits(Control::OutOfBand, 0), limits(Control::OutOfBand, 1));
    assert!(with.0 > 0.9 * before.0 && with.1 > 0.95 * before.1, "{with:?}, without {before:?}");
}
