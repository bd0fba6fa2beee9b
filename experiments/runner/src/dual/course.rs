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

/// What is read off one course: name, unit, value. What cannot be told is left out.
#[must_use]
pub fn derived(ticks: &[Tick], crowd: &Crowd) -> Vec<(&'static str, &'static str, f64)> {
    let inside = |from: f64, to: f64| ticks.iter().filter(move |t| t.at_s > from && t.at_s <= to);
    let mut all = Vec::new();
    let fell = inside(crowd.from_s, crowd.end_s)
        .find(|tick| tick.syn_rate.is_some_and(|rate| rate < crowd.offered));
    if let Some(tick) = fell {
        all.push(("syn_fall", "s", tick.at_s - crowd.from_s));
    }
    let steps = |rate: fn(&Tick) -> Option<f64>, from: f64, to: f64| {
        let rates: Vec<f64> = inside(from, to).filter_map(rate).collect();
        rates.windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<f64>>()
    };
    let largest = |steps: &[f64]| steps.iter().copied().fold(0.0, f64::max);
    let falls = |steps: &[f64]| largest(&steps.iter().map(|step| -step).collect::<Vec<f64>>());
    // From the tick before the crowd on, so that the first step is seen too.
    let during = (crowd.from_s - 1.0, crowd.to_s);
    all.push(("syn_fall_most", "1/s", falls(&steps(|t| t.syn_rate, during.0, during.1))));
    all.push(("cgi_fall_most", "1/s", falls(&steps(|t| t.cgi_rate, during.0, during.1))));
    all.push(("cgi_rise_most", "1/s", largest(&steps(|t| t.cgi_rate, crowd.to_s, crowd.end_s))));
    let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len().max(1) as f64;
    // Settled: the last third of what comes after.
    let settled = crowd.to_s + (crowd.end_s - crowd.to_s) * 2.0 / 3.0;
    let after: Vec<f64> = inside(settled, crowd.end_s).filter_map(|t| t.syn_rate).collect();
    if !after.is_empty() {
        all.push(("syn_after", "1/s", mean(after)));
    }
    let refused: f64 = inside(settled, crowd.end_s).map(|tick| tick.refused_syn).sum();
    all.push(("syn_refused_after", "1/s", refused / (crowd.end_s - settled).max(1e-9)));
    let answers = |from, to| mean(inside(from, to).map(|tick| tick.throughput).collect());
    all.push(("throughput_crowd", "1/s", answers(crowd.from_s, crowd.to_s)));
    all.push(("throughput_after", "1/s", answers(settled, crowd.end_s)));
    all
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
}
