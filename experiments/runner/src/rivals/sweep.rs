// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which numbers are tried for a rival that takes numbers, and which of them it gets.

use super::scenario::{Extent, Scenario};
use crate::survival::arm::{Known, Setting};
use tidegate_units::Nanos;

/// A setting that is tried.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tried {
    pub(crate) setting: Setting,
    /// Where it stands in the results: the number, as a multiple of what was measured.
    pub(crate) x: f64,
    /// The queue, where that is tried, too, in milliseconds.
    pub(crate) queue_ms: Option<f64>,
}

/// What is tried for an arm, from the scenario alone; one setting where nothing is to choose.
pub(super) fn settings(
    scenario: &Scenario,
    extent: &Extent,
    arm: &str,
    known: Known,
) -> Vec<Tried> {
    let burst = (scenario.burst * known.capacity).round().max(1.0) as u32;
    let queue = |ms: f64| Nanos::from_secs_f64(ms / 1e3);
    let usual = Setting { burst, queue: queue(scenario.queue_ms), ..Setting::of(known) };
    let one = |setting, x, queue_ms| Tried { setting, x, queue_ms };
    let sweep = &scenario.sweep;
    let rates = sweep.rates.iter().take(extent.tried);
    let places = sweep.places.iter().take(extent.tried);
    let with_places = |n: u32| Setting { places: known.clients.saturating_mul(n), ..usual };
    match arm {
        "nft" | "nft-reject" | "nginx-req" => {
            rates.map(|r| one(Setting { rate: r * known.capacity, ..usual }, *r, None)).collect()
        }
        "nginx-conn" => places.map(|n| one(with_places(*n), f64::from(*n), None)).collect(),
        "haproxy" => {
            let queues: Vec<f64> = sweep.queues_ms.iter().take(extent.tried).copied().collect();
            let each = |n: &u32| {
                let (setting, x) = (with_places(*n), f64::from(*n));
                let with =
                    move |ms: &f64| one(Setting { queue: queue(*ms), ..setting }, x, Some(*ms));
                queues.iter().map(with).collect::<Vec<Tried>>()
            };
            places.flat_map(each).collect()
        }
        _ => vec![one(usual, 1.0, None)],
    }
}

/// The best of what was tried, by its goodput; the first of equal ones.
pub(crate) fn best(tried: &[(Tried, f64)]) -> Option<(Tried, f64)> {
    let better = |a: (Tried, f64), b: (Tried, f64)| if b.1 > a.1 { b } else { a };
    tried.iter().copied().filter(|(_, goodput)| goodput.is_finite()).reduce(better)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog;

    fn scenario() -> Scenario {
        let experiment = catalog::find("product/rivals").unwrap();
        serde_saphyr::from_str(experiment.scenario).unwrap()
    }

    const KNOWN: Known = Known { capacity: 400.0, clients: 8 };

    /// Rates are around the capacity, bursts a tenth of a second of it, queues below the objective.
    #[test]
    fn settings_are_as_claimed() {
        let scenario = scenario();
        let of = |arm| settings(&scenario, &scenario.full, arm, KNOWN);
        for arm in ["nft", "nft-reject", "nginx-req"] {
            let tried = of(arm);
            assert!(tried.len() >= 5, "{arm}");
            assert!(tried.iter().all(|t| t.setting.burst == 40), "{arm}: {tried:?}");
            assert!(tried.iter().any(|t| (t.setting.rate - 400.0).abs() < 1e-9), "{arm}");
        }
        let haproxy = of("haproxy");
        assert!(haproxy.iter().all(|t| t.setting.queue < Nanos::SECOND), "{haproxy:?}");
        assert!(haproxy.iter().any(|t| t.setting.places == 8), "{haproxy:?}");
        assert!(of("failsafe")[0].setting.queue < Nanos::SECOND);
        for arm in ["none", "reject", "envoy", "failsafe", "backlog"] {
            assert_eq!(of(arm).len(), 1, "{arm}");
        }
    }

    #[test]
    fn the_best_is_chosen_and_of_equal_ones_the_first() {
        let scenario = scenario();
        let tried = settings(&scenario, &scenario.full, "nft", KNOWN);
        let with = |goodputs: [f64; 3]| {
            let pairs: Vec<(Tried, f64)> = tried.iter().copied().zip(goodputs).collect();
            best(&pairs).map(|(tried, _)| tried.x)
        };
        assert_eq!(with([1.0, 3.0, 3.0]), Some(tried[1].x));
        assert_eq!(with([f64::NAN, 2.0, 1.0]), Some(tried[1].x));
        assert_eq!(with([f64::NAN; 3]), None);
    }
}
