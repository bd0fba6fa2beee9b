// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the rounds to rows: the median of each metric, our goodput beside that of the best rival in the
//! same round, and the refusals at 0.9 pooled.

use super::arm::Arm;
use super::course::Gave;
use super::scenario::{Group, is_calm, variant};
use crate::results::{Row, of_rounds};
use crate::rivals::{Shape, times};

/// One load of one course.
#[derive(Clone, Debug)]
pub(super) struct Ran {
    pub(super) group: Group,
    pub(super) arm: Arm,
    pub(super) round: u32,
    pub(super) gave: Gave,
    /// Of the capacity, over the runs of this group and round.
    pub(super) drift: f64,
}

impl Ran {
    fn value(&self, metric: &str) -> Option<f64> {
        self.gave.metrics.iter().find(|m| m.0 == metric).map(|m| m.2)
    }

    /// Goodput over capacity.
    fn share(&self) -> Option<f64> {
        Some(self.value("goodput")? / self.value("capacity")?)
    }

    /// Whether it can be compared: by one transport, at one load, in one round.
    fn is_beside(&self, other: &Self) -> bool {
        self.group.transport == other.group.transport
            && self.gave.shape == other.gave.shape
            && self.round == other.round
    }
}

/// All rows.
pub(super) fn rows(experiment: &str, runs: &[Ran]) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut seen: Vec<(String, Arm, Shape)> = Vec::new();
    for ran in runs {
        let key = (ran.group.name(), ran.arm, ran.gave.shape);
        if !seen.contains(&key) {
            seen.push(key);
            rows.extend(of_point(experiment, runs, ran));
        }
    }
    rows.extend(pooled(experiment, runs));
    rows
}

fn of_point(experiment: &str, runs: &[Ran], of: &Ran) -> Vec<Row> {
    let same = |ran: &&Ran| {
        ran.group.name() == of.group.name() && ran.arm == of.arm && ran.gave.shape == of.gave.shape
    };
    let mine: Vec<&Ran> = runs.iter().filter(same).collect();
    let name = variant(of.group.proxy, of.group.transport, of.arm);
    let x = of.gave.shape.x();
    let mut rows = Vec::new();
    for (metric, unit, _) in &of.gave.metrics {
        let values: Vec<f64> = mine.iter().filter_map(|ran| ran.value(metric)).collect();
        rows.push(of_rounds(experiment, &name, x, (metric, unit, &values)));
    }
    let mut more = |x: (&str, f64), metric: &str, unit: &str, values: Vec<f64>| {
        if !values.is_empty() {
            rows.push(of_rounds(experiment, &name, x, (metric, unit, &values)));
        }
    };
    let requests = mine.iter().map(|ran| ran.gave.requests.0 as f64).collect();
    more(x, "requests", "requests", requests);
    let after: Vec<f64> = mine.iter().filter_map(|ran| ran.gave.recovery).collect();
    more((&format!("{}_after", x.0), x.1), "recovery", "s", after);
    if of.arm == Arm::Gate {
        let rival = |ran: &Ran| ran.arm.is_self_tuning_rival();
        more(x, "beside_best", "ratio", beside(runs, &mine, rival));
        let own = |ran: &Ran| {
            ran.group.proxy == of.group.proxy && !matches!(ran.arm, Arm::Gate | Arm::None)
        };
        more(x, "beside_own", "ratio", beside(runs, &mine, own));
        more(x, "p99_over_none", "ratio", over_none(runs, &mine));
    }
    let largest = mine.iter().map(|ran| ran.drift).fold(0.0, f64::max);
    let drift = of_rounds(experiment, &name, x, ("drift", "share", &[largest]));
    rows.push(Row { ci95: None, ..drift });
    rows
}

/// Our goodput over capacity beside the best of the others, round by round.
fn beside(runs: &[Ran], mine: &[&Ran], with: impl Fn(&Ran) -> bool) -> Vec<f64> {
    let of = |own: &&Ran| {
        let others = runs.iter().filter(|ran| ran.is_beside(own) && with(ran));
        let best = others.filter_map(Ran::share).reduce(f64::max)?;
        Some(times(own.share()?, best))
    };
    mine.iter().filter_map(of).collect()
}

/// The p99 over that of the same proxy without a limit below the capacity, round by round.
fn over_none(runs: &[Ran], mine: &[&Ran]) -> Vec<f64> {
    let of = |own: &&Ran| {
        let none = runs.iter().find(|ran| {
            let beside = ran.group.name() == own.group.name() && ran.round == own.round;
            beside && ran.arm == Arm::None && is_calm(ran.gave.shape)
        })?;
        Some(own.value("p99")? / none.value("p99")?)
    };
    mine.iter().filter_map(of).collect()
}

/// Refusals below the capacity, over all transports and rounds of a proxy's arm.
fn pooled(experiment: &str, runs: &[Ran]) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut seen = Vec::new();
    for of in runs.iter().filter(|ran| is_calm(ran.gave.shape)) {
        let key = (of.group.proxy, of.arm, of.gave.shape);
        if seen.contains(&key) {
            continue;
        }
        seen.push(key);
        let same = |ran: &&Ran| (ran.group.proxy, ran.arm, ran.gave.shape) == key;
        let (mut requests, mut refused) = (0, 0);
        for ran in runs.iter().filter(same) {
            requests += ran.gave.requests.0;
            refused += ran.gave.requests.1;
        }
        let name = format!("pooled-{}-{}", of.group.proxy.name(), of.arm.name());
        let share = refused as f64 / requests.max(1) as f64;
        let x = of.gave.shape.x();
        rows.push(of_rounds(experiment, &name, x, ("refused", "share", &[share])));
        rows.push(of_rounds(experiment, &name, x, ("requests", "requests", &[requests as f64])));
    }
    rows.into_iter().map(|row| Row { ci95: None, ..row }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::scenario::Proxy;
    use super::*;
    use tidegate_lab::Transport;

    fn ran(proxy: Proxy, arm: Arm, (load, round): (f64, u32), goodput: f64) -> Ran {
        let group = Group { proxy, transport: Transport::Tls, arms: vec![arm] };
        let metrics = vec![
            ("goodput", "1/s", goodput),
            ("p99", "s", 0.01 * load),
            ("capacity", "1/s", 1_000.0),
        ];
        let (recovery, requests) = ((load > 1.0).then_some(0.5), (1_000, u64::from(round)));
        let gave = Gave { shape: Shape::Step(load), metrics, recovery, requests };
        Ran { group, arm, round, gave, drift: 0.01 * f64::from(round) }
    }

    fn value(rows: &[Row], variant: &str, x: f64, metric: &str) -> Option<f64> {
        let same = |r: &&Row| r.variant == variant && r.metric == metric && (r.x - x).abs() < 1e-9;
        rows.iter().find(same).map(|r| r.value)
    }

    /// Beside the best of one round and transport; the swept ones count for their own proxy only.
    #[test]
    fn ours_stands_beside_the_best_of_the_same_round() {
        let at = (3.0, 0);
        let mut runs = vec![
            ran(Proxy::Nginx, Arm::Gate, at, 960.0),
            ran(Proxy::Nginx, Arm::LimitConn, at, 990.0),
            ran(Proxy::Haproxy, Arm::Gate, at, 980.0),
            ran(Proxy::Haproxy, Arm::Maxconn, at, 1_200.0),
            ran(Proxy::Envoy, Arm::Adaptive, at, 800.0),
            ran(Proxy::Envoy, Arm::Admission, at, 100.0),
            ran(Proxy::Envoy, Arm::Adaptive, (3.0, 1), 2_000.0),
        ];
        runs[4].group.transport = Transport::Tls;
        let rows = rows("product/gateways", &runs);
        let near = |value: Option<f64>, wanted: f64| (value.unwrap() - wanted).abs() < 1e-9;
        assert!(near(value(&rows, "nginx-tls-gate", 3.0, "beside_best"), 1.2));
        assert!(near(value(&rows, "nginx-tls-gate", 3.0, "beside_own"), 960.0 / 990.0));
        assert!(near(value(&rows, "haproxy-tls-gate", 3.0, "beside_best"), 980.0 / 800.0));
        assert!(value(&rows, "envoy-tls-adaptive", 3.0, "beside_best").is_none());
        let after = rows.iter().find(|r| r.metric == "recovery").unwrap();
        assert_eq!(after.x_name, "load_after");
        // A transport of its own is beside nobody.
        runs[0].group.transport = Transport::H2;
        let rows = super::rows("product/gateways", &runs);
        assert!(value(&rows, "nginx-h2-gate", 3.0, "beside_best").is_none());
    }

    /// Rounds are pooled below the capacity, and only there; the p99 stands over that of the proxy
    /// without a limit.
    #[test]
    fn refusals_below_the_capacity_are_pooled() {
        let runs = [
            ran(Proxy::Nginx, Arm::None, (0.9, 0), 900.0),
            ran(Proxy::Nginx, Arm::None, (0.9, 2), 900.0),
            ran(Proxy::Nginx, Arm::Gate, (0.9, 0), 900.0),
            ran(Proxy::Nginx, Arm::Gate, (0.9, 2), 900.0),
            ran(Proxy::Nginx, Arm::Gate, (3.0, 2), 900.0),
        ];
        let rows = rows("product/gateways", &runs);
        let of = |metric| value(&rows, "pooled-nginx-gate", 0.9, metric).unwrap();
        assert!((of("refused") - 2.0 / 2_000.0).abs() < 1e-12);
        assert!((of("requests") - 2_000.0).abs() < 1e-9);
        assert!(value(&rows, "pooled-nginx-gate", 3.0, "refused").is_none());
        let over = value(&rows, "nginx-tls-gate", 3.0, "p99_over_none").unwrap();
        assert!((over - 3.0 / 0.9).abs() < 1e-9);
        let drift = value(&rows, "nginx-tls-gate", 0.9, "drift").unwrap();
        assert!((drift - 0.02).abs() < 1e-12);
    }
}
