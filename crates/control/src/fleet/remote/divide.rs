// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One rate for several control nodes.

/// What a node says of its demand counts for no more than so many times the rate. Nobody can check it, and
/// who claims more than all others has the whole rate. An honest node that sees more than that gets less than its part.
pub(super) const DEMAND_COUNTS: f64 = 3.0;

/// Divides `rate` by demand: what each node offered lately, per second, with what it refused itself, so
/// that a small share does not make the next one smaller. `None`: the node is silent, and has the minimum rate.
/// The sum is never above `rate`, whatever the minimum rate is. All in admissions per second.
#[must_use]
pub fn divide(rate: f64, min_rate: f64, demands: &[Option<f64>]) -> Vec<f64> {
    let nodes = demands.len().max(1) as f64;
    let min_rate = min_rate.min(rate / nodes).max(0.0);
    let rest = (rate - min_rate * nodes).max(0.0);
    let known = |demand: &Option<f64>| demand.filter(|d| d.is_finite() && *d > 0.0);
    let sum: f64 = demands.iter().filter_map(known).sum();
    let any = sum > 0.0 && sum.is_finite();
    let share = |demand: &Option<f64>| {
        // Where nobody asks for anything all are equal.
        let part = if any { known(demand).unwrap_or(0.0) / sum } else { 1.0 / nodes };
        min_rate + rest * part
    };
    let mut shares: Vec<f64> = demands.iter().map(share).collect();
    // Rounding must not add up to more.
    let total: f64 = shares.iter().sum();
    if total > rate {
        let less = rate / total * (1.0 - 4.0 * f64::EPSILON * nodes);
        shares.iter_mut().for_each(|share| *share *= less);
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demand_decides_and_silence_has_the_floor() {
        for (rate, min_rate, demands, expected) in [
            (100.0, 1.0, &[Some(300.0), Some(100.0)][..], &[74.5, 25.5][..]),
            (100.0, 0.0, &[Some(1.0), Some(3.0)], &[25.0, 75.0]),
            (100.0, 10.0, &[Some(50.0), None], &[90.0, 10.0]),
            (100.0, 10.0, &[None, None], &[50.0, 50.0]),
            (100.0, 10.0, &[Some(0.0), Some(0.0)], &[50.0, 50.0]),
            (100.0, 80.0, &[Some(9.0), None], &[50.0, 50.0]),
            (100.0, 1.0, &[Some(f64::INFINITY), Some(1.0)], &[1.0, 99.0]),
            (0.0, 10.0, &[Some(1.0)], &[0.0]),
            (100.0, 1.0, &[], &[]),
        ] {
            assert_eq!(divide(rate, min_rate, demands), expected, "{rate} {min_rate} {demands:?}");
        }
    }
}
