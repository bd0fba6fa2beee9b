// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A sudden load over time (figure 5): tick by tick, and what is read off it.

/// One tick, of either world.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tick {
    /// Seconds since the beginning.
    pub at_s: f64,
    /// The rate of SYN policing, per second; `None`: it refuses nothing.
    pub syn_rate: Option<f64>,
    /// The rate of the rule for dynamic requests, likewise.
    pub cgi_rate: Option<f64>,
    /// CPU used, as a share.
    pub cpu: f64,
    /// Connections in the accept queue.
    pub accept_queue: f64,
    /// Answers per second.
    pub throughput: f64,
    /// SYNs refused in the tick.
    pub refused_syn: f64,
}

/// Name, unit and value of what is kept of every tick; a rate that is not set is left out.
#[must_use]
pub fn kept(tick: &Tick) -> Vec<(&'static str, &'static str, f64)> {
    let rates = [("syn_rate", tick.syn_rate), ("cgi_rate", tick.cgi_rate)];
    let mut kept: Vec<_> =
        rates.iter().filter_map(|(name, rate)| rate.map(|rate| (*name, "1/s", rate))).collect();
    kept.extend([
        ("cpu", "share", tick.cpu),
        ("accept_queue", "connections", tick.accept_queue),
        ("throughput", "1/s", tick.throughput),
    ]);
    kept
}

/// When the crowd comes and goes (seconds), and the end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crowd {
    /// It comes.
    pub from_s: f64,
    /// It goes.
    pub to_s: f64,
    /// The end of the load.
    pub end_s: f64,
    /// Requests per second of the crowd.
    pub offered: f64,
    /// Requests per second before and after it.
    pub calm: f64,
}

impl Crowd {
    /// From the pieces (seconds, requests per second) of a load: before, crowd, after.
    #[must_use]
    pub fn of(pieces: &[(f64, f64)]) -> Option<Self> {
        let [(before, calm), (crowd, offered), (after, _)] = pieces else { return None };
        let (from_s, to_s) = (*before, before + crowd);
        Some(Self { from_s, to_s, end_s: to_s + after, offered: *offered, calm: *calm })
    }
}

/// What is read off one course: name, unit, value. What did not happen or cannot be told is left
/// out, so that no claim holds for a controller that never acted.
#[must_use]
pub fn derived(ticks: &[Tick], crowd: &Crowd) -> Vec<(&'static str, &'static str, f64)> {
    let inside = |from: f64, to: f64| ticks.iter().filter(move |t| t.at_s > from && t.at_s <= to);
    let largest_step = |rate: fn(&Tick) -> Option<f64>, (from, to): (f64, f64), sign: f64| {
        let rates: Vec<f64> = inside(from, to).filter_map(rate).collect();
        let most = rates.windows(2).map(|p| sign * (p[1] - p[0])).fold(0.0, f64::max);
        (most > 0.0).then_some(most)
    };
    let mean = |values: Vec<f64>| {
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    let syn: fn(&Tick) -> Option<f64> = |tick| tick.syn_rate;
    let cgi: fn(&Tick) -> Option<f64> = |tick| tick.cgi_rate;
    // From the tick before the crowd on, so that the first step is seen too.
    let during = (crowd.from_s - 1.0, crowd.to_s);
    // Settled: the last third of what comes after.
    let settled = (crowd.to_s + (crowd.end_s - crowd.to_s) * 2.0 / 3.0, crowd.end_s);
    let after = || inside(settled.0, settled.1);
    let refused = || after().map(|tick| tick.refused_syn).sum::<f64>() / (settled.1 - settled.0);
    let answers = |from, to| mean(inside(from, to).map(|tick| tick.throughput).collect());
    let values = [
        ("syn_fall", "s", syn_fall(ticks, crowd)),
        ("syn_fall_most", "1/s", largest_step(syn, during, -1.0)),
        ("cgi_fall_most", "1/s", largest_step(cgi, during, -1.0)),
        ("cgi_rise_most", "1/s", largest_step(cgi, (crowd.to_s, crowd.end_s), 1.0)),
        ("syn_after", "1/s", mean(after().filter_map(syn).collect())),
        ("syn_refused_after", "1/s", after().next().map(|_| refused())),
        ("throughput_crowd", "1/s", answers(crowd.from_s, crowd.to_s)),
        ("throughput_after", "1/s", answers(settled.0, settled.1)),
    ];
    let told = |(name, unit, value): (&'static str, &'static str, Option<f64>)| {
        value.map(|value| (name, unit, value))
    };
    values.into_iter().filter_map(told).collect()
}

/// Seconds from the crowd's coming until the rate of SYN policing is below what is offered; none
/// if it never is, and none if it was below before: then it did not fall for the crowd.
fn syn_fall(ticks: &[Tick], crowd: &Crowd) -> Option<f64> {
    let below = |tick: &Tick| tick.syn_rate.is_some_and(|rate| rate < crowd.offered);
    let before = ticks.iter().rfind(|tick| tick.at_s <= crowd.from_s)?;
    let fell = |tick: &&Tick| tick.at_s > crowd.from_s && tick.at_s <= crowd.end_s && below(tick);
    let first = ticks.iter().find(fell).filter(|_| !below(before))?;
    Some(first.at_s - crowd.from_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(derived: &[(&str, &str, f64)], name: &str) -> f64 {
        derived.iter().find(|d| d.0 == name).unwrap_or_else(|| panic!("{name}")).2
    }

    /// A course by hand: SYN policing falls from 1000 below the crowd's 850 in the second tick,
    /// CGI loses 2 a tick and gains 3.
    #[test]
    fn what_is_read_off_a_course() {
        let crowd = Crowd::of(&[(10.0, 300.0), (5.0, 850.0), (15.0, 300.0)]).unwrap();
        assert_eq!((crowd.from_s, crowd.to_s, crowd.end_s), (10.0, 15.0, 30.0));
        let tick = |second: u32| {
            let at_s = f64::from(second);
            let during = (at_s - 10.0).clamp(0.0, 5.0);
            Tick {
                at_s,
                syn_rate: Some(1000.0 - 100.0 * during),
                cgi_rate: Some(74.0 - 2.0 * during + 3.0 * (at_s - 15.0).max(0.0)),
                throughput: if at_s <= 15.0 { 400.0 } else { 300.0 },
                ..Tick::default()
            }
        };
        let ticks: Vec<Tick> = (1..=30).map(tick).collect();
        let derived = derived(&ticks, &crowd);
        assert_eq!(value(&derived, "syn_fall"), 2.0);
        assert_eq!(value(&derived, "syn_fall_most"), 100.0);
        assert_eq!(value(&derived, "cgi_fall_most"), 2.0);
        assert_eq!(value(&derived, "cgi_rise_most"), 3.0);
        assert_eq!(value(&derived, "syn_after"), 500.0);
        assert_eq!(value(&derived, "throughput_crowd"), 400.0);
        assert!(Crowd::of(&[(1.0, 1.0)]).is_none());
    }

    fn has(derived: &[(&str, &str, f64)], name: &str) -> bool {
        derived.iter().any(|d| d.0 == name)
    }

    /// Who never acts has no fall and no rise: zeros would hold "at most" and make infinities of
    /// ratios. Of a time in which there is no tick nothing is said.
    #[test]
    fn what_did_not_happen_is_left_out() {
        let crowd = Crowd::of(&[(10.0, 300.0), (5.0, 850.0), (15.0, 300.0)]).unwrap();
        let still = |second: u32| Tick {
            at_s: f64::from(second),
            syn_rate: Some(1000.0),
            cgi_rate: Some(75.0),
            ..Tick::default()
        };
        let ticks: Vec<Tick> = (1..=30).map(still).collect();
        let calm = derived(&ticks, &crowd);
        for name in ["syn_fall", "syn_fall_most", "cgi_fall_most", "cgi_rise_most"] {
            assert!(!has(&calm, name), "{name}");
        }
        assert_eq!(value(&calm, "syn_refused_after"), 0.0);
        let cut = derived(&ticks[..15], &crowd);
        for name in ["syn_refused_after", "syn_after", "throughput_after"] {
            assert!(!has(&cut, name), "{name}");
        }
        assert!(derived(&[], &crowd).is_empty());
    }

    /// A rate that was below the crowd's before it came did not fall for it; no rate at all is
    /// above every load.
    #[test]
    fn a_fall_begins_above_what_is_offered() {
        let crowd = Crowd::of(&[(10.0, 300.0), (5.0, 850.0), (15.0, 300.0)]).unwrap();
        let course = |before: Option<f64>| -> Vec<Tick> {
            let rate = |second: u32| if second <= 12 { before } else { Some(500.0) };
            let tick = |s: u32| Tick { at_s: f64::from(s), syn_rate: rate(s), ..Tick::default() };
            (1..=30).map(tick).collect()
        };
        assert_eq!(syn_fall(&course(Some(800.0)), &crowd), None);
        assert_eq!(syn_fall(&course(Some(850.0)), &crowd), Some(3.0));
        assert_eq!(syn_fall(&course(None), &crowd), Some(3.0));
    }
}
