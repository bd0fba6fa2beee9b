// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What claims need beside the metrics themselves, computed run by run, so that its interval is
//! that of a paired comparison on common random numbers.

use super::measure::{METRICS, Place, Table};
use super::scenario::Scenario;
use super::stats::r_squared;
use anyhow::{Result, bail, ensure};
use serde::Deserialize;

/// x_name of what belongs to the whole range of x.
pub const ALL: &str = "all";

/// One computation.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", tag = "is")]
pub enum Derive {
    /// `<of>_over_least`: value over the least that this variant reaches at any x, both as means
    /// over runs (the place of the minimum is a property of the mean).
    OverLeast {
        /// Metric.
        of: String,
    },
    /// `<of>_step`: relative change from the x before; the first x has none.
    Step {
        /// Metric.
        of: String,
    },
    /// `<of>_r2_log`, x_name `all`: share of the variance over x that a line in log x explains.
    LineInLog {
        /// Metric.
        of: String,
    },
    /// `<of>_mean`, x_name `all`: mean over x.
    Mean {
        /// Metric.
        of: String,
    },
    /// `<of>_apart`: distance of the variant from another one.
    Apart {
        /// Metric.
        of: String,
        /// Who.
        variant: String,
        /// From whom.
        from: String,
    },
    /// `<of>_ratio`: mean of every other variant over that of one (a ratio of means: where single
    /// runs have next to none of it, theirs say nothing).
    Ratio {
        /// Metric.
        of: String,
        /// Over whom.
        over: String,
    },
    /// `gap_share`: how much of the distance in cost from one variant to the optimum each closes.
    GapShare {
        /// From which variant.
        from: String,
        /// To which.
        to: String,
    },
}

impl Derive {
    /// Whether the metric and the variants are there.
    ///
    /// # Errors
    /// Names what is not.
    pub fn check(&self, scenario: &Scenario) -> Result<()> {
        let variants: Vec<&String> = match self {
            Self::Apart { variant, from, .. } => vec![variant, from],
            Self::Ratio { over, .. } => vec![over],
            Self::GapShare { from, to } => vec![from, to],
            _ => vec![],
        };
        for name in variants {
            let known = scenario.variants.iter().any(|v| v.name == *name);
            ensure!(known, "derive: there is no variant {name:?}");
        }
        let metric = self.metric();
        if !METRICS.iter().any(|(name, _)| *name == metric) {
            bail!("derive: there is no metric {metric:?}");
        }
        Ok(())
    }

    fn metric(&self) -> &str {
        match self {
            Self::OverLeast { of }
            | Self::Step { of }
            | Self::LineInLog { of }
            | Self::Mean { of }
            | Self::Apart { of, .. }
            | Self::Ratio { of, .. } => of,
            Self::GapShare { .. } => "cost",
        }
    }

    /// Adds what it computes to the table.
    pub fn apply(&self, scenario: &Scenario, table: &mut Table) {
        let sheet = Sheet { scenario, metric: self.metric() };
        for variant in &scenario.variants {
            self.apply_to(&sheet, &variant.name, table);
        }
    }

    fn apply_to(&self, sheet: &Sheet<'_>, variant: &str, table: &mut Table) {
        match self {
            Self::OverLeast { .. } => sheet.over_least(table, variant),
            Self::Step { .. } => sheet.step(table, variant),
            Self::LineInLog { .. } => {
                let log: Vec<f64> = sheet.scenario.x.at.iter().map(|x| libm::log2(*x)).collect();
                let line = |run: &[f64]| {
                    r_squared(&log.iter().copied().zip(run.iter().copied()).collect::<Vec<_>>())
                };
                sheet.whole(table, variant, "r2_log", &line);
            }
            Self::Mean { .. } => {
                let mean = |run: &[f64]| run.iter().sum::<f64>() / run.len() as f64;
                sheet.whole(table, variant, "mean", &mean);
            }
            Self::Apart { variant: who, from, .. } if who == variant => {
                sheet.pairs(table, (variant, from), "apart", |a, b| (a - b).abs());
            }
            Self::Ratio { over, .. } if over != variant => {
                sheet.ratio(table, (variant, over));
            }
            Self::GapShare { from, to } => sheet.gap_share(table, variant, (from, to)),
            Self::Apart { .. } | Self::Ratio { .. } => {}
        }
    }
}

/// One metric over the points of an experiment.
struct Sheet<'a> {
    scenario: &'a Scenario,
    metric: &'a str,
}

impl Sheet<'_> {
    fn runs(&self, table: &Table, variant: &str, x: usize) -> Vec<f64> {
        let x_name = self.scenario.x.name.as_str();
        table.runs(variant, (x_name, x), self.metric).unwrap_or_default().to_vec()
    }

    fn points(&self, table: &Table, variant: &str) -> Vec<Vec<f64>> {
        (0..self.scenario.x.at.len()).map(|x| self.runs(table, variant, x)).collect()
    }

    fn put(&self, table: &mut Table, (variant, x): (&str, usize), name: &str, runs: &[f64]) {
        let place = Place {
            variant: variant.into(),
            x_name: self.scenario.x.name.clone(),
            x,
            metric: format!("{}_{name}", self.metric),
        };
        for value in runs {
            table.add(place.clone(), self.scenario.x.at[x], "ratio", *value);
        }
    }

    fn over_least(&self, table: &mut Table, variant: &str) {
        let points = self.points(table, variant);
        let means = means(&points);
        let least = means.iter().copied().fold(f64::INFINITY, f64::min);
        for (x, mean) in means.into_iter().enumerate() {
            self.put(table, (variant, x), "over_least", &[mean / least]);
        }
    }

    fn step(&self, table: &mut Table, variant: &str) {
        let points = self.points(table, variant);
        for (x, pair) in points.windows(2).enumerate() {
            let steps: Vec<f64> = pair[1].iter().zip(&pair[0]).map(|(b, a)| b / a - 1.0).collect();
            self.put(table, (variant, x + 1), "step", &steps);
        }
    }

    /// One value a run from the whole range of x.
    fn whole(&self, table: &mut Table, variant: &str, name: &str, f: &dyn Fn(&[f64]) -> f64) {
        let points = self.points(table, variant);
        let runs = points.iter().map(Vec::len).min().unwrap_or(0);
        let mut place = Place {
            variant: variant.into(),
            x_name: ALL.into(),
            x: 0,
            metric: format!("{}_{name}", self.metric),
        };
        for run in 0..runs {
            let along: Vec<f64> = points.iter().map(|point| point[run]).collect();
            table.add(place.clone(), 0.0, "ratio", f(&along));
        }
        // the same of the means, which is what a figure shows
        place.metric = format!("{}_{name}_of_means", self.metric);
        table.add(place, 0.0, "ratio", f(&means(&points)));
    }

    fn pairs(
        &self,
        table: &mut Table,
        (a, b): (&str, &str),
        name: &str,
        f: impl Fn(f64, f64) -> f64,
    ) {
        for x in 0..self.scenario.x.at.len() {
            let (mine, other) = (self.runs(table, a, x), self.runs(table, b, x));
            let runs: Vec<f64> = mine.iter().zip(&other).map(|(a, b)| f(*a, *b)).collect();
            self.put(table, (a, x), name, &runs);
        }
    }

    fn ratio(&self, table: &mut Table, (a, b): (&str, &str)) {
        for x in 0..self.scenario.x.at.len() {
            let (mine, other) = (self.runs(table, a, x), self.runs(table, b, x));
            let value = mean(&mine) / mean(&other);
            if value.is_finite() {
                self.put(table, (a, x), "ratio", &[value]);
            }
        }
    }

    /// Of the means: single runs may have hardly a gap, and their shares would weigh as much.
    fn gap_share(&self, table: &mut Table, variant: &str, (from, to): (&str, &str)) {
        for x in 0..self.scenario.x.at.len() {
            let all = [variant, from, to].map(|name| self.runs(table, name, x));
            let [mine, begin, end] = [&all[0], &all[1], &all[2]].map(|runs| mean(runs));
            let place = Place {
                variant: variant.into(),
                x_name: self.scenario.x.name.clone(),
                x,
                metric: "gap_share".into(),
            };
            let share = (begin - mine) / (begin - end);
            table.add(place, self.scenario.x.at[x], "share", share);
        }
    }
}

fn mean(runs: &[f64]) -> f64 {
    runs.iter().sum::<f64>() / runs.len() as f64
}

fn means(points: &[Vec<f64>]) -> Vec<f64> {
    points.iter().map(|runs| mean(runs)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(derive: &str) -> Scenario {
        let text = format!(
            "kind: syn\nx: {{name: window_s, sets: {{window_s: 1}}, at: [1, 2, 4]}}\n\
             variants:\n  - {{name: a, set: {{}}}}\n  - {{name: b, set: {{}}}}\n\
             derive:\n  - {derive}\n"
        );
        serde_saphyr::from_str(&text).unwrap()
    }

    /// Two runs of two variants at three points: cost of a 8 6 4 and 10 6 2, of b always 4.
    fn derived(derive: &str, place: (&str, &str, usize, &str)) -> Option<Vec<f64>> {
        let scenario = scenario(derive);
        scenario.check().unwrap();
        let mut table = Table::default();
        for (run, costs) in [[8.0, 6.0, 4.0], [10.0, 6.0, 2.0]].into_iter().enumerate() {
            for (x, cost) in costs.into_iter().enumerate() {
                for (variant, value) in [("a", cost), ("b", 4.0)] {
                    let place = Place {
                        variant: variant.into(),
                        x_name: "window_s".into(),
                        x,
                        metric: "cost".into(),
                    };
                    table.add(place, scenario.x.at[x], "cost", value);
                }
            }
            assert!(run < 2);
        }
        scenario.derive[0].apply(&scenario, &mut table);
        let (variant, x_name, x, metric) = place;
        table.runs(variant, (x_name, x), metric).map(<[f64]>::to_vec)
    }

    /// Each computation by hand; what compares variants does so run by run.
    #[test]
    fn every_computation_by_hand() {
        let w = "window_s";
        for (derive, place, expected) in [
            ("{is: over-least, of: cost}", ("a", w, 0, "cost_over_least"), vec![3.0]),
            ("{is: step, of: cost}", ("a", w, 1, "cost_step"), vec![-0.25, -0.4]),
            ("{is: mean, of: cost}", ("a", ALL, 0, "cost_mean"), vec![6.0, 6.0]),
            ("{is: line-in-log, of: cost}", ("a", ALL, 0, "cost_r2_log"), vec![1.0, 1.0]),
            ("{is: ratio, of: cost, over: b}", ("a", w, 0, "cost_ratio"), vec![2.25]),
            (
                "{is: apart, of: cost, variant: a, from: b}",
                ("a", w, 2, "cost_apart"),
                vec![0.0, 2.0],
            ),
            // means 9, 6, 3 over 4: nothing closed by a itself, all by b
            ("{is: gap-share, from: a, to: b}", ("b", w, 0, "gap_share"), vec![1.0]),
            ("{is: gap-share, from: a, to: b}", ("a", w, 0, "gap_share"), vec![0.0]),
        ] {
            let found = derived(derive, place).expect(derive);
            assert_eq!(found.len(), expected.len(), "{derive}");
            let close = found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-12);
            assert!(close, "{derive}: {found:?}, {expected:?} expected");
        }
        assert_eq!(derived("{is: step, of: cost}", ("a", w, 0, "cost_step")), None);
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        for wrong in ["{is: mean, of: price}", "{is: ratio, of: cost, over: c}"] {
            assert!(scenario(wrong).check().is_err(), "{wrong}");
        }
    }
}
