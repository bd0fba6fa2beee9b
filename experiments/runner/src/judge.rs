// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Claims against results: does each hold, and by how much?
//!
//! An expect.yaml is a list of claims. A claim takes the values of one metric at some points,
//! relates each to a reference (another metric or point, or nothing), and compares the worst with
//! a band. A point that is missing or no finite number makes the claim fail: nothing holds that was
//! not measured. A claim without a band is a report: its least and its largest value are shown, and
//! it counts neither as held nor as missed. One whose interval reaches beyond the band holds and is said
//! to, unless the claim is `with_interval`.

mod words;

pub use words::{short, table, words};

use crate::results::Row;
use serde::Deserialize;

/// Largest drift of the capacity beside a run whose values count as they are.
pub const DRIFT_MAX: f64 = 0.03;
/// Beyond this one nothing counts: the run may have been at the next load of a scenario.
pub const DRIFT_LARGEST: f64 = 0.25;
/// From so many rounds on the interval over them has what the machine did in it.
const ROUNDS_MIN: u32 = 3;
/// Metrics that say what share of a point's traces was real.
const REAL: [&str; 2] = ["real", "real_share"];

/// What an experiment claims.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// All of them.
    pub claims: Vec<Claim>,
    /// Tables that a report shows beside the claims.
    #[serde(default)]
    pub show: Vec<Show>,
}

/// A table of a report: variants down, x across.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Show {
    /// Metric.
    pub metric: String,
    /// What it is, with its unit.
    pub says: String,
    /// x_name.
    pub x_name: String,
    /// Values of x.
    pub at: Vec<f64>,
    /// Variants, `*` standing for anything; empty: all.
    #[serde(default)]
    pub variants: Vec<String>,
    /// The values are multiplied with this (100 for per cent).
    #[serde(default)]
    pub times: Option<f64>,
    /// The values are divided by this metric of their own point, so that worlds whose servers
    /// differ can be compared.
    #[serde(default)]
    pub per: Option<String>,
}

/// One claim.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// A short name.
    pub id: String,
    /// One sentence.
    pub says: String,
    /// What the paper (or the design) gives, as text for the table.
    #[serde(default)]
    pub source: String,
    /// Which values.
    pub of: Select,
    /// Each value is divided by this one; absent: compared as it is.
    #[serde(default)]
    pub over: Option<Select>,
    /// Value and reference are each divided by this metric of their own point first: runs that are
    /// compared need not have found the machine equally fast.
    #[serde(default)]
    pub per: Option<String>,
    /// The smallest value that holds.
    #[serde(default)]
    pub at_least: Option<f64>,
    /// The largest value that holds.
    #[serde(default)]
    pub at_most: Option<f64>,
    /// What we aim at; shown, not judged.
    #[serde(default)]
    pub aim: Option<f64>,
    /// Counts only where the 95 % interval of every point lies in the band with its whole width.
    #[serde(default)]
    pub with_interval: bool,
    /// Not judged in a quick run, for which it has too few arrivals.
    #[serde(default)]
    pub full_only: bool,
    /// About real traces: where stand-ins ran it does not hold.
    #[serde(default)]
    pub real: bool,
    /// Only judged in this world (`sim`, `lab`), whose points it names; absent: in both.
    #[serde(default)]
    pub world: Option<String>,
    /// What is known of the reason, where a result differs from what is claimed; for reports.
    #[serde(default)]
    pub why: String,
    /// The same of the lab, where that has another one.
    #[serde(default)]
    pub why_lab: String,
}

impl Claim {
    const fn banded(&self) -> bool {
        self.at_least.is_some() || self.at_most.is_some()
    }

    /// What is known of the reason in a world; `first`: of the page, whose reason is the common one.
    #[must_use]
    pub fn reason(&self, world: &str, first: bool) -> &str {
        if world == "lab" && !self.why_lab.is_empty() {
            return &self.why_lab;
        }
        let own = first || self.world.as_deref() == Some(world);
        if own { &self.why } else { "" }
    }
}

/// Points of a metric.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Select {
    /// Metric.
    pub metric: String,
    /// Variants, `*` standing for anything; in a reference, empty means the same variant.
    #[serde(default)]
    pub variants: Vec<String>,
    /// Name of x; in a reference, absent means the same.
    #[serde(default)]
    pub x_name: Option<String>,
    /// Values of x; in a reference, empty means the same x.
    #[serde(default)]
    pub at: Vec<f64>,
    /// Values of x in the lab, which makes fewer points than the simulator; empty: the same. Not of
    /// a reference.
    #[serde(default)]
    pub lab: Vec<f64>,
}

impl Select {
    fn points(&self, rows: &[Row]) -> &[f64] {
        let lab = !self.lab.is_empty() && !rows.is_empty() && rows.iter().all(|r| r.world == "lab");
        if lab { &self.lab } else { &self.at }
    }
}

/// How one claim fared.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The worst value lies in the band.
    Holds(f64),
    /// The same, but here half of the 95 % interval, the second, reaches beyond the band.
    Narrowly(f64, f64),
    /// The worst value lies in the band, but the claim is about the interval, half of which is the
    /// second, and that reaches beyond it.
    TooWide(f64, f64),
    /// There is no band: the least and the largest value, and where that is.
    Reported(f64, f64, String),
    /// It does, also with the drift of the capacity put on it: at this point, by this share.
    Despite(f64, String, f64),
    /// It does with its interval, half of which is the second, over rounds that each had a machine of
    /// their own: the capacity drifted by this share at this point.
    Repeated(f64, f64, String, f64),
    /// It does, but at this point the machine changed beside the run, by this share of its capacity,
    /// and the value with that on it lies outside, or the share is too large: it does not count as
    /// held.
    Unsteady(f64, String, f64),
    /// It does not, at this point.
    Fails(f64, String),
    /// A point was not measured.
    Missing(String),
    /// It is about real traces, and at this point stand-ins ran.
    Synthetic(String),
    /// Too few arrivals for this claim in a quick run.
    NotJudged,
    /// It is for the other world.
    OtherWorld,
}

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Line {
    /// Name of the claim.
    pub id: String,
    /// Its sentence.
    pub says: String,
    /// What the paper or design gives.
    pub source: String,
    /// The band in words.
    pub band: String,
    /// The aim in words, empty for none.
    pub aim: String,
    /// Whether there is one.
    pub banded: bool,
    /// The outcome.
    pub outcome: Outcome,
}

impl Line {
    /// Whether nothing speaks against the claim.
    #[must_use]
    pub const fn holds(&self) -> bool {
        matches!(
            self.outcome,
            Outcome::Holds(_)
                | Outcome::Narrowly(..)
                | Outcome::Despite(..)
                | Outcome::Repeated(..)
                | Outcome::Reported(..)
                | Outcome::NotJudged
                | Outcome::OtherWorld
        )
    }

    /// Whether the claim was compared with a band.
    #[must_use]
    pub const fn judged(&self) -> bool {
        !matches!(self.outcome, Outcome::Reported(..) | Outcome::NotJudged | Outcome::OtherWorld)
            && self.banded
    }
}

/// Judges every claim. `quick` leaves those out that need the full run.
#[must_use]
pub fn judge(expect: &Expect, rows: &[Row], quick: bool) -> Vec<Line> {
    expect.claims.iter().map(|claim| line(claim, rows, quick)).collect()
}

fn line(claim: &Claim, rows: &[Row], quick: bool) -> Line {
    let elsewhere = |world: &String| !rows.is_empty() && rows.iter().all(|r| r.world != *world);
    let outcome = match &claim.world {
        Some(world) if elsewhere(world) => Outcome::OtherWorld,
        _ if quick && claim.full_only => Outcome::NotJudged,
        _ => of_real_traces(claim, rows, whole(claim, rows)),
    };
    Line {
        id: claim.id.clone(),
        says: claim.says.clone(),
        source: claim.source.clone(),
        band: band(claim),
        banded: claim.banded(),
        aim: claim.aim.map(short).unwrap_or_default(),
        outcome,
    }
}

fn band(claim: &Claim) -> String {
    let whole = if claim.with_interval { ", the whole interval" } else { "" };
    let band = match (claim.at_least, claim.at_most) {
        (Some(low), Some(high)) => format!("{} to {}", short(low), short(high)),
        (Some(low), None) => format!(">= {}", short(low)),
        (None, Some(high)) => format!("<= {}", short(high)),
        (None, None) => "reported".into(),
    };
    band + whole
}

/// The outcome; of a claim about real traces none that was seen with a stand-in. Whoever runs traces says
/// at each point what share of them was real.
fn of_real_traces(claim: &Claim, rows: &[Row], outcome: Outcome) -> Outcome {
    if !claim.real || matches!(outcome, Outcome::Missing(_)) {
        return outcome;
    }
    let x_name = claim.of.x_name.as_deref().unwrap_or("load");
    let variants = expand(&claim.of.variants, rows).unwrap_or_default();
    for (variant, x) in
        variants.iter().flat_map(|v| claim.of.points(rows).iter().map(move |x| (v, *x)))
    {
        let share = REAL.iter().find_map(|metric| find(rows, metric, variant, (x_name, x)).ok());
        if share.is_none_or(|share| share < 1.0) {
            return Outcome::Synthetic(format!("{variant} at {}", short(x)));
        }
    }
    outcome
}

/// The outcome; of a claim about intervals, by these.
fn whole(claim: &Claim, rows: &[Row]) -> Outcome {
    let outcome = outcome(claim, rows);
    match outcome {
        Outcome::Fails(..) | Outcome::Missing(_) => outcome,
        _ if !claim.with_interval => outcome,
        _ if half_over_rounds(claim, rows).is_none() => {
            Outcome::Missing(format!("{ROUNDS_MIN} rounds, of which an interval is made"))
        }
        Outcome::Narrowly(value, half) => Outcome::TooWide(value, half),
        _ => outcome,
    }
}

/// The judged value; one in the band counts only where the machine was steady, or where what it
/// drifted by makes no difference: by its size, or because the interval over several rounds has it
/// and lies in the band.
fn outcome(claim: &Claim, rows: &[Row]) -> Outcome {
    let outcome = worst(claim, rows);
    let Some((place, drift)) = drifted(claim, rows) else { return outcome };
    match (&outcome, half_over_rounds(claim, rows)) {
        (Outcome::Holds(value), Some(half)) if drift <= DRIFT_LARGEST => {
            Outcome::Repeated(*value, half, place, drift)
        }
        (Outcome::Narrowly(value, _), Some(_)) => Outcome::Unsteady(*value, place, drift),
        (Outcome::Holds(value) | Outcome::Narrowly(value, _), _) => {
            // Rates go with the machine's speed and times against it, to a first order.
            let ends = [value * (1.0 + drift), value / (1.0 + drift)];
            let inside = ends.iter().all(|end| badness(claim, *end) <= 0.0);
            if inside && drift <= DRIFT_LARGEST {
                Outcome::Despite(*value, place, drift)
            } else {
                Outcome::Unsteady(*value, place, drift)
            }
        }
        _ => outcome,
    }
}

/// The largest half of a 95 % interval of the points of a claim that compares values as they were
/// measured, if there are rounds enough of each.
fn half_over_rounds(claim: &Claim, rows: &[Row]) -> Option<f64> {
    if claim.over.is_some() || claim.per.is_some() {
        return None;
    }
    let x_name = claim.of.x_name.as_deref().unwrap_or("load");
    let variants = expand(&claim.of.variants, rows).ok()?;
    let places = variants.iter().flat_map(|v| claim.of.points(rows).iter().map(move |x| (v, *x)));
    let half = |(variant, x): (&String, f64)| {
        let row = row_of(rows, &claim.of.metric, variant, (x_name, x))?;
        row.ci95.filter(|_| row.runs >= ROUNDS_MIN)
    };
    let halves: Option<Vec<f64>> = places.map(half).collect();
    halves?.into_iter().reduce(f64::max)
}

/// The point of a claim beside which the capacity drifted most, if that was too much. Rows of
/// `drift` are there where such runs were kept.
fn drifted(claim: &Claim, rows: &[Row]) -> Option<(String, f64)> {
    let x_name = claim.of.x_name.as_deref().unwrap_or("load");
    let variants = expand(&claim.of.variants, rows).ok()?;
    let mut all: Vec<(String, f64)> = Vec::new();
    for (variant, x) in
        variants.iter().flat_map(|v| claim.of.points(rows).iter().map(move |x| (v.as_str(), *x)))
    {
        let mut places = vec![(claim.of.metric.as_str(), variant, x_name, x)];
        places.extend(claim.over.as_ref().map(|over| {
            let variant = over.variants.first().map_or(variant, String::as_str);
            let x = over.at.first().copied().unwrap_or(x);
            (over.metric.as_str(), variant, over.x_name.as_deref().unwrap_or(x_name), x)
        }));
        for (metric, variant, x_name, x) in places {
            // A metric may have a drift of its own.
            let own = find(rows, &format!("{metric}_drift"), variant, (x_name, x));
            let drift = own.or_else(|_| find(rows, "drift", variant, (x_name, x))).ok();
            all.extend(drift.map(|drift| (format!("{variant} at {}", short(x)), drift)));
        }
    }
    let most = all.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
    most.filter(|(_, drift)| *drift > DRIFT_MAX)
}

fn worst(claim: &Claim, rows: &[Row]) -> Outcome {
    let mut values: Vec<Value> = Vec::new();
    let variants = match expand(&claim.of.variants, rows) {
        Ok(variants) => variants,
        Err(missing) => return Outcome::Missing(missing),
    };
    for variant in &variants {
        for x in claim.of.points(rows) {
            match value(claim, rows, variant, *x) {
                Ok((value, half)) => {
                    let place = format!("{variant} at {}", short(*x));
                    values.push(Value { value, half, place });
                }
                Err(missing) => return Outcome::Missing(missing),
            }
        }
    }
    if claim.banded() { against_band(claim, values) } else { range(values) }
}

/// One point of a claim.
struct Value {
    value: f64,
    /// Half of its 95 % interval, where it is compared as it was measured.
    half: f64,
    place: String,
}

const NO_POINT: &str = "no variant or no point is named";

fn against_band(claim: &Claim, values: Vec<Value>) -> Outcome {
    let bad = |v: &Value| badness(claim, v.value);
    // The interval that reaches farthest beyond the band, if one does, of whichever point.
    let beyond = |v: &Value| if v.half > 0.0 { bad(v) + v.half } else { f64::NEG_INFINITY };
    let wide = values.iter().max_by(|a, b| beyond(a).total_cmp(&beyond(b)));
    let wide = wide.filter(|v| beyond(v) > 0.0).map(|v| (v.value, v.half));
    // The first of the worst.
    let worst = values.into_iter().reduce(|least, v| if bad(&v) > bad(&least) { v } else { least });
    match worst {
        None => Outcome::Missing(NO_POINT.into()),
        Some(v) if bad(&v) > 0.0 => Outcome::Fails(v.value, v.place),
        Some(v) => match wide {
            Some((value, half)) => Outcome::Narrowly(value, half),
            None => Outcome::Holds(v.value),
        },
    }
}

fn range(values: Vec<Value>) -> Outcome {
    if let Some(odd) = values.iter().find(|v| !v.value.is_finite()) {
        return Outcome::Fails(odd.value, odd.place.clone());
    }
    let least = values.iter().map(|v| v.value).fold(f64::INFINITY, f64::min);
    match values.into_iter().max_by(|a, b| a.value.total_cmp(&b.value)) {
        None => Outcome::Missing(NO_POINT.into()),
        Some(most) => Outcome::Reported(least, most.value, most.place),
    }
}

/// Patterns with `*` become the variants that were measured; one that fits none is missing.
fn expand(patterns: &[String], rows: &[Row]) -> Result<Vec<String>, String> {
    let mut variants = Vec::new();
    for pattern in patterns {
        if !pattern.contains('*') {
            variants.push(pattern.clone());
            continue;
        }
        let mut found: Vec<String> =
            rows.iter().filter(|r| fits(pattern, &r.variant)).map(|r| r.variant.clone()).collect();
        found.sort();
        found.dedup();
        if found.is_empty() {
            return Err(format!("any variant {pattern}"));
        }
        variants.append(&mut found);
    }
    Ok(variants)
}

/// Whether a text fits a pattern in which `*` stands for anything.
pub(crate) fn fits(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or("");
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// How far outside of the band a value lies; negative inside. Outside of every band is what is no
/// number, as a ratio to nothing.
fn badness(claim: &Claim, value: f64) -> f64 {
    if !value.is_finite() {
        return f64::INFINITY;
    }
    let below = claim.at_least.map_or(f64::NEG_INFINITY, |low| low - value);
    let above = claim.at_most.map_or(f64::NEG_INFINITY, |high| value - high);
    below.max(above)
}

/// The value at a point, and half of its 95 % interval: 0 for a ratio, of which it is not known.
fn value(claim: &Claim, rows: &[Row], variant: &str, x: f64) -> Result<(f64, f64), String> {
    let x_name = claim.of.x_name.as_deref().unwrap_or("load");
    let at = |metric: &str, variant: &str, place: (&str, f64)| {
        let value = find(rows, metric, variant, place)?;
        let per = claim.per.as_deref().map_or(Ok(1.0), |per| find(rows, per, variant, place))?;
        Ok::<f64, String>(value / per)
    };
    let value = at(&claim.of.metric, variant, (x_name, x))?;
    let Some(over) = &claim.over else {
        let row = row_of(rows, &claim.of.metric, variant, (x_name, x));
        let half = row.and_then(|row| row.ci95).filter(|_| claim.per.is_none());
        return Ok((value, half.unwrap_or(0.0)));
    };
    let reference = at(
        &over.metric,
        over.variants.first().map_or(variant, String::as_str),
        (over.x_name.as_deref().unwrap_or(x_name), over.at.first().copied().unwrap_or(x)),
    )?;
    Ok((value / reference, 0.0))
}

fn find(rows: &[Row], metric: &str, variant: &str, place: (&str, f64)) -> Result<f64, String> {
    let row = row_of(rows, metric, variant, place);
    row.map(|row| row.value)
        .ok_or_else(|| format!("{metric} of {variant} at {} {}", place.0, short(place.1)))
}

fn row_of<'a>(
    rows: &'a [Row],
    metric: &str,
    variant: &str,
    (x_name, x): (&str, f64),
) -> Option<&'a Row> {
    rows.iter().find(|row| {
        row.metric == metric
            && row.variant == variant
            && row.x_name == x_name
            && (row.x - x).abs() <= 1e-9 * x.abs().max(1.0)
    })
}

#[cfg(test)]
mod tests;
