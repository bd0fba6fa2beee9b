// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From a run to its metrics.

use super::setting::Setting;
use tidegate_sim::netdraino::{Bin, Outcome};

/// Name, unit, value.
pub type Metric = (&'static str, &'static str, f64);

/// Packets of 1,000 bytes per second of the whole network.
const NETWORK: f64 = 900.0;
const MINUTE: usize = 60;
/// Arrivals are at the limit when they are within this share of it.
const NEAR: f64 = 1.1;

/// What became of servers and network.
#[must_use]
pub fn of(setting: &Setting, out: &Outcome) -> Vec<Metric> {
    let part = (setting.from_s as usize, out.bins.len());
    let mean = |of: fn(&Bin) -> f64| out.mean(part, of);
    let arrived = mean(|bin| bin.arrived as f64);
    let bytes = mean(|bin| bin.bytes as f64);
    let all = |of: fn(&Bin) -> u64| out.bins.iter().map(of).sum::<u64>() as f64;
    let minutes = setting.lasts_s / 60.0;
    let mut all = vec![
        ("throughput", "packets/s", mean(|bin| (bin.accepted + bin.others) as f64)),
        ("s0_accepted", "packets/s", mean(|bin| bin.accepted as f64)),
        ("s0_arrived", "packets/s", arrived),
        ("s0_wasted", "packets/s", arrived - mean(|bin| bin.accepted as f64)),
        ("s0_offered", "packets/s", mean(|bin| bin.offered as f64)),
        ("others", "packets/s", mean(|bin| bin.others as f64)),
        ("link", "share", bytes / (NETWORK * 1000.0)),
        ("dropped", "packets/s", mean(|bin| bin.dropped as f64)),
        ("refused_others", "packets/s", mean(|bin| bin.refused_others as f64)),
        ("limit", "packets/s", mean(|bin| bin.limit)),
        ("over_k_rate", "ratio", arrived / (setting.k * setting.rate())),
        ("options", "share", mean(|bin| bin.option_bytes as f64) / bytes.max(1.0)),
        ("notices", "1/min", all(|bin| bin.notices) / minutes),
        ("limits", "1/min", all(|bin| bin.limits) / minutes),
        ("needless", "limits", out.needless as f64),
        ("not_taken", "limits", out.refused_limits as f64),
        ("limited_routers", "routers", out.limited_routers as f64),
    ];
    if let Some(at) = out.first_limit {
        all.push(("first_limit", "s", at.as_secs_f64()));
        all.extend(within(setting, out).map(|s| ("within", "s", s)));
    }
    all.extend(kept(setting, out).map(|share| ("kept", "ratio", share)));
    all
}

/// Seconds after the first limit until what arrives at S0 is at k times its rate, on average of three
/// seconds.
fn within(setting: &Setting, out: &Outcome) -> Option<f64> {
    let first = out.first_limit?.as_secs_f64();
    let bound = NEAR * setting.k * setting.rate();
    let from = first as usize;
    let near =
        |bins: &&[Bin]| bins.iter().map(|bin| bin.arrived as f64).sum::<f64>() <= 3.0 * bound;
    let at = out.bins.get(from..)?.windows(3).position(|bins| near(&bins))?;
    Some(((from + at) as f64 - first).max(0.0))
}

/// The least minute of what S0 accepts, over the first one.
fn kept(setting: &Setting, out: &Outcome) -> Option<f64> {
    let bins = out.bins.get(setting.from_s as usize..)?;
    let minutes: Vec<f64> = bins
        .chunks_exact(MINUTE)
        .map(|bins| bins.iter().map(|bin| bin.accepted).sum::<u64>() as f64)
        .collect();
    let (first, later) = minutes.split_first()?;
    let least = later.iter().copied().reduce(f64::min)?;
    (*first > 0.0).then(|| least / first)
}

/// The course over time, second by second.
#[must_use]
pub fn course(out: &Outcome) -> Vec<(f64, Vec<Metric>)> {
    let one = |(index, bin): (usize, &Bin)| {
        let all = vec![
            ("arrived_at", "packets/s", bin.arrived as f64),
            ("accepted_at", "packets/s", bin.accepted as f64),
            ("others_at", "packets/s", bin.others as f64),
            ("limit_at", "packets/s", bin.limit),
        ];
        (index as f64, all)
    };
    out.bins.iter().enumerate().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_units::Nanos;

    fn out(arrived: &[u64]) -> Outcome {
        let bin = |arrived: &u64| Bin { arrived: *arrived, accepted: *arrived, ..Bin::default() };
        let bins = arrived.iter().map(bin).collect();
        Outcome { bins, first_limit: Some(Nanos::from_secs(2)), ..Outcome::default() }
    }

    #[test]
    fn arrivals_are_at_the_limit_when_three_seconds_are() {
        let setting = Setting { rate_tcp: 50.0, rate_udp: 50.0, k: 1.0, ..Setting::default() };
        let after = |arrived: &[u64]| within(&setting, &out(arrived));
        assert_eq!(after(&[500, 500, 110, 110, 110]), Some(0.0));
        assert_eq!(after(&[0, 0, 500, 200, 110, 110, 110]), Some(2.0));
        assert_eq!(after(&[0, 0, 500, 200, 110, 110, 111]), None);
    }

    #[test]
    fn what_is_kept_is_the_least_minute_over_the_first() {
        let setting = Setting { from_s: 10.0, ..Setting::default() };
        let bins = |n: &[u64]| -> Vec<u64> { n.iter().flat_map(|n| [*n; 60]).collect() };
        let all = [vec![9; 10], bins(&[100, 90, 120])].concat();
        assert_eq!(kept(&setting, &out(&all)), Some(0.9));
        assert_eq!(kept(&setting, &out(&all[..100])), None);
    }
}
