// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which points a run makes that cannot make all: a covering array, in which every pair of two
//! values that exist together stands at least once. Greedy, and always the same: it was fixed before
//! there were results.

use super::cell::{Cell, all};

/// One cell with the overload that it is run at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The cell.
    pub cell: Cell,
    /// Multiple of the capacity.
    pub load: f64,
}

/// The values of a choice by place: server, transport, requests, think time, load.
type Values = [String; 5];
/// Two places with their values.
type Pair = (usize, String, usize, String);

fn values(choice: &Choice) -> Values {
    let Cell { server, transport, requests, think, .. } = choice.cell;
    [
        format!("{server:?}"),
        format!("{transport:?}"),
        requests.to_string(),
        think.to_string(),
        choice.load.to_string(),
    ]
}

fn pairs(choice: &Choice) -> Vec<Pair> {
    let values = values(choice);
    let mut pairs = Vec::new();
    for a in 0..values.len() {
        for b in a + 1..values.len() {
            pairs.push((a, values[a].clone(), b, values[b].clone()));
        }
    }
    pairs
}

/// Every choice that there is.
fn choices(loads: &[f64]) -> Vec<Choice> {
    let cells = all();
    cells
        .iter()
        .flat_map(|cell| loads.iter().map(|load| Choice { cell: *cell, load: *load }))
        .collect()
}

/// The covering subset: after those that are in it anyway, each step takes the first of those
/// choices that bring most new pairs.
#[must_use]
pub(super) fn subset(loads: &[f64], anyway: &[Choice]) -> Vec<Choice> {
    let choices = choices(loads);
    let mut open: Vec<Pair> = choices.iter().flat_map(pairs).collect();
    open.sort();
    open.dedup();
    let mut chosen = anyway.to_vec();
    let there: Vec<Pair> = anyway.iter().flat_map(pairs).collect();
    open.retain(|pair| !there.contains(pair));
    // Each round closes a pair at least: bounded by their number.
    while !open.is_empty() {
        let gain = |choice: &Choice| pairs(choice).iter().filter(|p| open.contains(p)).count();
        // The last of equal ones for max_by_key: reversed, it is the first.
        let Some(best) = choices.iter().rev().max_by_key(|choice| gain(choice)) else { break };
        let closed = pairs(best);
        open.retain(|pair| !closed.contains(pair));
        chosen.push(*best);
    }
    chosen.sort_by(|a, b| a.cell.name().cmp(&b.cell.name()).then(a.load.total_cmp(&b.load)));
    chosen
}

/// Everything, at every load.
#[must_use]
pub(super) fn whole(loads: &[f64]) -> Vec<Choice> {
    choices(loads)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOADS: [f64; 4] = [1.0, 2.0, 3.0, 10.0];

    /// Whatever two values exist together stand together in the subset, which is far smaller than
    /// the whole and not smaller than two of its factors ask for.
    #[test]
    fn every_pair_stands_in_the_subset() {
        let (some, every) = (subset(&LOADS, &[]), whole(&LOADS));
        let covered: Vec<Pair> = some.iter().flat_map(pairs).collect();
        for pair in every.iter().flat_map(pairs) {
            assert!(covered.contains(&pair), "{pair:?}");
        }
        assert_eq!(every.len(), 55 * 4);
        assert!((16..=20).contains(&some.len()), "{}", some.len());
        assert!(some.iter().all(|choice| choice.cell.exists()));
    }

    #[test]
    fn the_subset_is_always_the_same() {
        assert_eq!(subset(&LOADS, &[]), subset(&LOADS, &[]));
        let anyway = subset(&LOADS, &[]).split_off(3);
        let some = subset(&LOADS, &anyway);
        assert!(anyway.iter().all(|choice| some.contains(choice)));
        let covered: Vec<Pair> = some.iter().flat_map(pairs).collect();
        assert!(whole(&LOADS).iter().flat_map(pairs).all(|pair| covered.contains(&pair)));
    }
}
