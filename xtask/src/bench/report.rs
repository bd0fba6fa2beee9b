// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables for people, JSON for programs.

use serde::Serialize;

use super::beside::BESIDE;
use super::claims::{Bound, Claim};
use super::machine::Machine;
use super::plan::Samples;
use super::stats::{Summary, summary};

/// The outcome of one bench.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    bench: String,
    machine: Machine,
    unit: &'static str,
    rounds: usize,
    subjects: Vec<Row>,
    claims: Vec<Judged>,
    /// Ours over those of another build.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ratios: Vec<Ratio>,
}

#[derive(Debug, Serialize)]
struct Ratio {
    name: String,
    /// Nanoseconds, medians.
    ours: f64,
    beside: f64,
    ratio: Summary,
}

#[derive(Debug, Serialize)]
struct Row {
    name: String,
    about: String,
    #[serde(flatten)]
    summary: Summary,
    values: Vec<f64>,
}

#[derive(Debug, Serialize)]
struct Judged {
    claim: String,
    /// None: not both subjects were measured.
    measured: Option<Summary>,
    holds: Option<bool>,
}

impl Report {
    pub(super) fn new(
        bench: &str,
        machine: &Machine,
        samples: Vec<Samples>,
        claims: &[Claim],
    ) -> Self {
        let judged = claims.iter().map(|claim| judge(claim, &samples)).collect();
        Self {
            bench: bench.to_owned(),
            machine: machine.clone(),
            unit: "ns",
            rounds: samples.first().map_or(0, |samples| samples.values.len()),
            subjects: samples.into_iter().filter_map(row).collect(),
            claims: judged,
            ratios: Vec::new(),
        }
    }

    /// With the ratio of each subject to that of another build ([`BESIDE`]), round by round.
    pub(super) fn compared(mut self) -> Self {
        self.ratios = self.subjects.iter().filter_map(|row| self.ratio(row)).collect();
        self
    }

    fn ratio(&self, ours: &Row) -> Option<Ratio> {
        let name = format!("{BESIDE}{}", ours.name);
        let beside = self.subjects.iter().find(|row| row.name == name)?;
        // A cost that is not measurable is no infinite ratio: at least a tenth of a ns.
        let pairs = ours.values.iter().zip(&beside.values);
        let ratios: Vec<f64> = pairs.map(|(ours, beside)| ours / beside.max(0.1)).collect();
        Some(Ratio {
            name: ours.name.clone(),
            ours: ours.summary.median,
            beside: beside.summary.median,
            ratio: summary(&ratios)?,
        })
    }

    fn write_ratios(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let width = self.ratios.iter().map(|ratio| ratio.name.len()).max().unwrap_or(0);
        writeln!(
            f,
            "\n{:<width$}  {:>10}  {:>10}  {:>6}  {:>15}",
            "against another build", "ours, ns", "beside, ns", "ratio", "quartiles apart"
        )?;
        for Ratio { name, ours, beside, ratio } in &self.ratios {
            let (median, apart) = (ratio.median, ratio.spread * ratio.median);
            writeln!(
                f,
                "{name:<width$}  {ours:>10.1}  {beside:>10.1}  {median:>6.3}  {apart:>15.3}"
            )?;
        }
        Ok(())
    }
}

fn row(samples: Samples) -> Option<Row> {
    let Samples { name, about, values } = samples;
    Some(Row { name, about, summary: summary(&values)?, values })
}

/// Compares round by round – neighbours in time – and then takes the median.
fn judge(claim: &Claim, samples: &[Samples]) -> Judged {
    let values = |name: &str| samples.iter().find(|s| s.name == name).map(|s| &s.values);
    let pairs = values(claim.subject).zip(values(claim.beside));
    let compared = pairs.and_then(|(subject, beside)| {
        let compare = |(subject, beside): (&f64, &f64)| match claim.bound {
            Bound::AddsAtMost(_) => subject - beside,
            // A cost that is not measurable is no infinite gain: at least a tenth of a ns.
            Bound::CheaperAtLeast(_) => beside / subject.max(0.1),
            Bound::AtMost(_) => *subject,
        };
        summary(&subject.iter().zip(beside).map(compare).collect::<Vec<_>>())
    });
    let holds = compared.map(|compared| match claim.bound {
        Bound::AddsAtMost(ns) | Bound::AtMost(ns) => compared.median <= ns,
        Bound::CheaperAtLeast(times) => compared.median >= times,
    });
    let text = match claim.bound {
        Bound::AddsAtMost(ns) => {
            format!("{} adds at most {ns} ns to {}", claim.subject, claim.beside)
        }
        Bound::CheaperAtLeast(times) => {
            format!("{} is at least {times} times cheaper than {}", claim.subject, claim.beside)
        }
        Bound::AtMost(ns) => format!("{} takes at most {ns:.1} ns", claim.subject),
    };
    Judged { claim: text, measured: compared, holds }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "bench {}: {} rounds, interleaved", self.bench, self.rounds)?;
        write!(f, "{}", self.machine)?;
        let names = self.subjects.iter().map(|row| row.name.len());
        let width = names.max().unwrap_or(0).max("subject".len());
        writeln!(
            f,
            "\n{:<width$}  {:>10}  {:>10}  {:>10}  {:>7}  what",
            "subject", "median ns", "min", "max", "spread"
        )?;
        for Row { name, about, summary, .. } in &self.subjects {
            let Summary { median, min, max, spread } = summary;
            let percent = spread * 100.0;
            writeln!(
                f,
                "{name:<width$}  {median:>10.1}  {min:>10.1}  {max:>10.1}  {percent:>6.1}%  {about}"
            )?;
        }
        if !self.ratios.is_empty() {
            self.write_ratios(f)?;
        }
        if self.claims.is_empty() {
            return Ok(());
        }
        let width = self.claims.iter().map(|judged| judged.claim.len()).max().unwrap_or(0);
        writeln!(f, "\n{:<width$}  {:>9}  {:>17}  holds", "claim", "measured", "min … max")?;
        for Judged { claim, measured, holds } in &self.claims {
            match measured {
                Some(Summary { median, min, max, .. }) => {
                    let holds = if *holds == Some(true) { "yes" } else { "NO" };
                    let range = format!("{min:.1} … {max:.1}");
                    writeln!(f, "{claim:<width$}  {median:>9.1}  {range:>17}  {holds}")?;
                }
                None => writeln!(f, "{claim:<width$}  {:>9}  {:>17}  not measured", "–", "–")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(name: &str, values: &[f64]) -> Samples {
        Samples { name: name.into(), about: "test".into(), values: values.to_vec() }
    }

    fn claim(bound: Bound) -> Claim {
        Claim { subject: "ours", beside: "theirs", bound }
    }

    #[test]
    fn rounds_are_compared_pairwise_so_that_drift_cancels() {
        // The machine became ten times slower in the last round: the ratio does not see it.
        let samples =
            [samples("ours", &[10.0, 10.0, 100.0]), samples("theirs", &[50.0, 51.0, 500.0])];
        let judged = judge(&claim(Bound::CheaperAtLeast(5.0)), &samples);
        assert_eq!(judged.measured.expect("both").median, 5.0);
        assert_eq!(judged.holds, Some(true));
    }

    #[test]
    fn both_sides_of_each_bound() {
        let samples = [samples("ours", &[30.0]), samples("theirs", &[10.0])];
        for (bound, holds) in [
            (Bound::AddsAtMost(20.0), true),
            (Bound::AddsAtMost(19.9), false),
            (Bound::CheaperAtLeast(0.33), true),
            (Bound::CheaperAtLeast(0.34), false),
            (Bound::AtMost(30.0), true),
            (Bound::AtMost(29.9), false),
        ] {
            assert_eq!(judge(&claim(bound), &samples).holds, Some(holds), "{bound:?}");
        }
    }

    #[test]
    fn builds_are_compared_round_by_round() {
        // The machine became ten times slower in the last round: the ratio does not see it.
        let list = vec![
            samples("ours", &[10.0, 11.0, 100.0]),
            samples("beside-ours", &[20.0, 22.0, 200.0]),
            samples("new", &[1.0, 1.0, 1.0]),
        ];
        let report = Report::new("test", &Machine::read(), list, &[]);
        assert!(!report.to_string().contains("against"));
        let report = report.compared();
        assert_eq!(report.ratios.len(), 1);
        assert_eq!((report.ratios[0].ratio.median, report.ratios[0].ratio.max), (0.5, 0.5));
        assert!(report.to_string().contains("against another build"));
    }

    #[test]
    fn what_was_not_measured_is_said() {
        let list = vec![samples("ours", &[1.0, 2.0, 3.0])];
        let report = Report::new("test", &Machine::read(), list, &[claim(Bound::AddsAtMost(1.0))]);
        assert_eq!(report.claims[0].holds, None);
        let text = report.to_string();
        assert!(text.contains("not measured") && text.contains("3 rounds"), "{text}");
        let json = serde_json::to_value(&report).expect("serialisable");
        assert_eq!(json["subjects"][0]["median"], 2.0);
        assert_eq!(json["subjects"][0]["values"].as_array().map(Vec::len), Some(3));
    }
}
