// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a cell's points say together: the worst over its overloads, the pairs with the unprotected
//! server, and the refusals below capacity over all cells.

use super::cell::Cell;
use crate::results::{Row, median};

/// Where the summary of a cell stands.
const X_NAME: &str = "overload";
/// From this load on there is an overload; at C itself nobody is wrong.
const OVERLOAD: f64 = 1.5;

/// More than so many times the unprotected server's goodput says no more.
const BESIDE_MAX: f64 = 100.0;

/// One run, as far as a summary needs it.
#[derive(Clone, Debug)]
pub(super) struct Ran {
    pub(super) cell: Cell,
    pub(super) arm: String,
    pub(super) load: f64,
    pub(super) round: u32,
    pub(super) rows: Vec<Row>,
    /// New connections in the load, and those of them that were refused.
    pub(super) connections: (u64, u64),
    /// Of the capacity, over the runs of this load and round.
    pub(super) drift: f64,
}

impl Ran {
    fn value(&self, metric: &str) -> Option<f64> {
        self.rows.iter().find(|row| row.metric == metric).map(|row| row.value)
    }

    fn is_overload(&self) -> bool {
        self.load >= OVERLOAD
    }
}

/// The rows of all points – the median over rounds – and of the summaries.
pub(super) fn rows(runs: &[Ran]) -> Vec<Row> {
    let mut rows = points(runs);
    let mut seen: Vec<(String, &str)> = Vec::new();
    for ran in runs {
        let key = (ran.cell.name(), ran.arm.as_str());
        if !seen.contains(&key) {
            rows.extend(of_cell(runs, ran));
            seen.push(key);
        }
    }
    for arm in ["drop", "reject"] {
        rows.extend(pooled(runs, arm));
    }
    rows
}

/// Each metric of each point, as the median of its rounds.
fn points(runs: &[Ran]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let all: Vec<&Row> = runs.iter().flat_map(|ran| &ran.rows).collect();
    let same = |a: &Row, b: &Row| a.order(b).is_eq();
    for row in &all {
        if rows.iter().any(|done| same(done, row)) {
            continue;
        }
        let values: Vec<f64> = all.iter().filter(|r| same(r, row)).map(|r| r.value).collect();
        rows.push(Row { runs: values.len() as u32, value: median(values), ..(*row).clone() });
    }
    rows
}

/// The summary of the cell and arm of a run.
fn of_cell(runs: &[Ran], of: &Ran) -> Vec<Row> {
    let mine = |ran: &&Ran| ran.cell == of.cell && ran.arm == of.arm && ran.is_overload();
    let over: Vec<&Ran> = runs.iter().filter(mine).collect();
    let Some(model) = over.first().and_then(|ran| ran.rows.first()) else { return Vec::new() };
    let group = if of.cell.is_short() { "short" } else { "long" };
    let row = |metric: &str, unit: &str, value: f64, count: usize| Row {
        variant: format!("{group}-{}-{}", of.cell.name(), of.arm),
        x_name: X_NAME.into(),
        x: 1.0,
        metric: metric.into(),
        unit: unit.into(),
        value,
        ci95: None,
        runs: count as u32,
        ..model.clone()
    };
    let loads = distinct(over.iter().map(|ran| ran.load));
    // The worst over the loads of the median over the rounds.
    let worst = |value: &dyn Fn(&Ran) -> Option<f64>, pick: fn(f64, f64) -> f64| {
        let at = |load: &f64| {
            let values: Vec<f64> = over
                .iter()
                .filter(|r| r.load.total_cmp(load).is_eq())
                .filter_map(|r| value(r))
                .collect();
            (!values.is_empty()).then(|| median(values))
        };
        loads.iter().filter_map(at).reduce(pick)
    };
    let normal = normal_p99(runs, &of.cell);
    let share = |ran: &Ran| Some(ran.value("goodput")? / ran.value("capacity")?);
    let slower = |ran: &Ran| Some(ran.value("p99")? / normal?);
    let beside =
        |ran: &Ran| Some(times(ran.value("goodput")?, partner(runs, ran)?.value("goodput")?));
    let metrics: [(&str, &str, Option<f64>); 8] = [
        ("goodput_share", "share", worst(&share, f64::min)),
        ("p99_ratio", "ratio", worst(&slower, f64::max)),
        ("beside_none", "ratio", worst(&beside, f64::min)),
        ("recovery", "s", worst(&|ran| ran.value("recovery"), f64::max)),
        ("recovery_p99", "s", worst(&|ran| ran.value("recovery_p99"), f64::max)),
        ("alarms", "alarms", worst(&|ran| ran.value("alarms"), f64::max)),
        ("layer_named", "share", worst(&|ran| ran.value("layer_named"), f64::min)),
        ("drift", "share", worst(&|ran| Some(ran.drift), f64::max)),
    ];
    let values = metrics.into_iter().filter_map(|(m, unit, v)| Some(row(m, unit, v?, over.len())));
    values.collect()
}

/// How many times the unprotected server's goodput; that may be nothing at all.
fn times(ours: f64, none: f64) -> f64 {
    if none > 0.0 {
        return (ours / none).min(BESIDE_MAX);
    }
    if ours > 0.0 { BESIDE_MAX } else { 1.0 }
}

/// The unprotected server's run of the same load and round.
fn partner<'a>(runs: &'a [Ran], of: &Ran) -> Option<&'a Ran> {
    runs.iter().find(|ran| {
        ran.cell == of.cell
            && ran.arm == "none"
            && ran.round == of.round
            && ran.load.total_cmp(&of.load).is_eq()
    })
}

/// p99 of the unprotected server below capacity.
fn normal_p99(runs: &[Ran], cell: &Cell) -> Option<f64> {
    let calm = runs.iter().find(|r| r.cell == *cell && r.arm == "none" && r.load < 1.0)?;
    calm.value("p99").filter(|p99| *p99 > 0.0)
}

/// Refusals below capacity over the connections of all cells.
fn pooled(runs: &[Ran], arm: &str) -> Vec<Row> {
    let calm: Vec<&Ran> = runs.iter().filter(|ran| ran.arm == arm && ran.load < 1.0).collect();
    let Some((first, model)) = calm.first().and_then(|r| r.rows.first().map(|row| (r, row))) else {
        return Vec::new();
    };
    let sum = |part: fn(&Ran) -> u64| calm.iter().map(|ran| part(ran)).sum::<u64>() as f64;
    let (all, refused) = (sum(|r| r.connections.0), sum(|r| r.connections.1));
    let row = |metric: &str, unit: &str, value: f64| Row {
        variant: format!("pooled-{arm}"),
        x_name: "load".into(),
        x: first.load,
        metric: metric.into(),
        unit: unit.into(),
        value,
        ci95: None,
        runs: calm.len() as u32,
        ..model.clone()
    };
    vec![row("refused", "share", refused / all.max(1.0)), row("connections", "connections", all)]
}

fn distinct(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::cell::all;

    fn ran(arm: &str, (load, round): (f64, u32), goodput: f64) -> Ran {
        let cell = Cell { requests: 20, think: 0.0, ..all()[0] };
        let row = |metric: &str, value: f64| Row {
            experiment: "product/traffic".into(),
            world: "lab".into(),
            variant: format!("{}-{arm}", cell.name()),
            x_name: "load".into(),
            x: load,
            metric: metric.into(),
            unit: "1/s".into(),
            value,
            ci95: None,
            runs: 1,
        };
        let rows = vec![
            row("goodput", goodput),
            row("capacity", 100.0),
            row("p99", if load < 1.0 { 0.1 } else { 0.2 }),
            row("alarms", f64::from(round)),
            row("layer_named", f64::from(u8::from(round > 0 && load < 5.0))),
        ];
        let arm = arm.to_owned();
        Ran { cell, arm, load, round, rows, connections: (1_000, round.into()), drift: 0.01 }
    }

    fn value(rows: &[Row], variant: &str, metric: &str) -> Option<f64> {
        rows.iter().find(|r| r.variant == variant && r.metric == metric).map(|r| r.value)
    }

    /// Pairs are of one round; of three rounds the median counts, of two loads the worse.
    #[test]
    fn pairs_are_of_one_round_and_the_median_counts() {
        let mut runs = vec![ran("none", (0.9, 0), 90.0), ran("reject", (0.9, 1), 90.0)];
        for (round, none, ours) in [(0, 50.0, 60.0), (1, 100.0, 90.0), (2, 80.0, 80.0)] {
            runs.push(ran("none", (3.0, round), none));
            runs.push(ran("reject", (3.0, round), ours));
            runs.push(ran("none", (10.0, round), 50.0));
            runs.push(ran("reject", (10.0, round), 70.0));
        }
        let rows = rows(&runs);
        let name = "long-prefork-clear-20x0-reject";
        // 60/50, 90/100, 80/80 at 3; 70/50 at 10.
        assert!((value(&rows, name, "beside_none").unwrap() - 1.0).abs() < 1e-9);
        assert!((value(&rows, name, "goodput_share").unwrap() - 0.7).abs() < 1e-9);
        assert!((value(&rows, name, "p99_ratio").unwrap() - 2.0).abs() < 1e-9);
        assert!((value(&rows, name, "alarms").unwrap() - 1.0).abs() < 1e-9);
        // Named at 3 times C in two rounds of three, and at 10 times C in none: that is the worst.
        assert!(value(&rows, name, "layer_named").unwrap().abs() < 1e-9);
        assert!(value(&rows, name, "recovery").is_none(), "what was not measured is no value");
        let point = |r: &&Row| r.variant.starts_with("prefork") && r.x > 2.0 && r.runs == 3;
        assert!(rows.iter().filter(point).count() > 0);
    }

    /// Below capacity connections of all cells are pooled by arm.
    #[test]
    fn refusals_below_capacity_are_pooled() {
        let runs =
            [ran("drop", (0.9, 3), 90.0), ran("drop", (0.9, 0), 90.0), ran("drop", (3.0, 9), 9.0)];
        let rows = rows(&runs);
        assert!((value(&rows, "pooled-drop", "refused").unwrap() - 3.0 / 2_000.0).abs() < 1e-12);
        assert!((value(&rows, "pooled-drop", "connections").unwrap() - 2_000.0).abs() < 1e-9);
        assert!(value(&rows, "pooled-reject", "refused").is_none());
    }

    /// A load of C is no overload.
    #[test]
    fn a_load_of_one_is_no_overload() {
        let rows = rows(&[ran("drop", (1.0, 0), 50.0)]);
        assert!(rows.iter().all(|row| row.x_name != X_NAME));
    }

    /// An unprotected server without any goodput is no division by zero, and no reason to fail.
    #[test]
    fn nothing_is_easily_surpassed() {
        let of = |ours, none| times(ours, none);
        assert!((of(50.0, 40.0) - 1.25).abs() < 1e-9);
        assert!((of(50.0, 0.0) - BESIDE_MAX).abs() < 1e-9);
        assert!((of(50.0, 1e-6) - BESIDE_MAX).abs() < 1e-9);
        assert!((of(0.0, 0.0) - 1.0).abs() < 1e-9);
    }
}
