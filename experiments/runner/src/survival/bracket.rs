// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs between two measurements of the capacity: what they are compared with, and whether the
//! machine stayed as fast meanwhile.

use crate::results::Row;
use anyhow::Result;
use std::fmt;

/// What is void is run so often.
pub(crate) const TRIES: u32 = 3;

/// One run of one variant.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) variant: String,
    pub(crate) how: How,
    /// Loads are multiples of this, in answers per second.
    pub(crate) base: f64,
}

/// What is offered.
#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    /// This load after a lower one.
    Load(f64),
    /// This load from the first second on.
    Cold(f64),
    /// The CPU is halved in mid-run.
    Halved,
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.how {
            How::Load(load) => write!(f, "{load} x C, {}", self.variant),
            How::Cold(load) => write!(f, "{load} x C at once, {}", self.variant),
            How::Halved => write!(f, "CPU halved, {}", self.variant),
        }
    }
}

/// What `none` at 0.9 has shown: p99 over all, and of its worst slot. In seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Normal {
    pub(crate) p99: f64,
    pub(crate) slot_p99: f64,
    /// Nothing has been seen yet.
    pub(crate) is_assumed: bool,
}

/// What came out of a run.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) rows: Vec<Row>,
    pub(crate) normal: Option<Normal>,
}

/// Where runs are made.
pub(crate) trait Bench {
    /// Measures the capacity, in answers per second.
    fn capacity(&mut self) -> Result<f64>;
    /// Makes a run; nothing, with a note, if it stays void by itself.
    fn run(&mut self, job: &Job) -> Result<Option<Made>>;
    /// A remark.
    fn note(&mut self, note: String);
}

/// When the drift of the capacity makes runs void.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    /// Largest drift, as a share.
    pub(crate) drift_max: f64,
    /// They are kept nevertheless.
    pub(crate) keep_void: bool,
    /// The capacity before them.
    pub(crate) before: f64,
}

/// Makes the runs and measures the capacity after them, again while it drifts; the rows come with
/// the middle of both capacities beside each point. What stays void is left out with a note.
///
/// # Errors
/// What the bench says.
pub(crate) fn bracket(bench: &mut impl Bench, jobs: &[Job], rule: Rule) -> Result<Vec<Made>> {
    let names: Vec<String> = jobs.iter().map(ToString::to_string).collect();
    let names = names.join("; ");
    let mut before = rule.before;
    for attempt in 1..=TRIES {
        let mut all = Vec::new();
        for job in jobs {
            all.extend(bench.run(job)?.map(|made| (job, made)));
        }
        let after = bench.capacity()?;
        let steady = (after / before - 1.0).abs() <= rule.drift_max;
        if !steady && !all.is_empty() {
            let went = format!("the capacity went from {before:.1} to {after:.1}/s");
            bench.note(format!("{names}, try {attempt}: void, {went}"));
        }
        if steady || rule.keep_void || all.is_empty() {
            let capacity = f64::midpoint(before, after);
            return Ok(all.into_iter().map(|done| keep(bench, done, (capacity, rule))).collect());
        }
        before = after;
    }
    bench.note(format!("{names}: void in {TRIES} tries, left out"));
    Ok(Vec::new())
}

fn keep(
    bench: &mut impl Bench,
    (job, mut made): (&Job, Made),
    (capacity, rule): (f64, Rule),
) -> Made {
    beside(&mut made.rows, capacity);
    // The load was not quite what its name says: whoever reads the rows should know.
    if (capacity / job.base - 1.0).abs() > rule.drift_max {
        let base = job.base;
        bench.note(format!("{job}: C is {base:.1}/s in the load, {capacity:.1}/s beside the run"));
    }
    made
}

/// Adds the capacity to each point of a load; under a part of the CPU, that part of it.
fn beside(rows: &mut Vec<Row>, capacity: f64) {
    let points = rows.iter().filter(|row| row.metric == "goodput");
    let capacities: Vec<Row> = points
        .filter_map(|row| {
            let share = match row.x_name.as_str() {
                "load" | "load_cold" => 1.0,
                "cpu" => row.x,
                _ => return None,
            };
            Some(Row { metric: "capacity".into(), value: capacity * share, ..row.clone() })
        })
        .collect();
    rows.extend(capacities);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::survival::measure::Point;

    /// Gives capacities from a list; notes what it is asked for.
    struct Script {
        capacities: Vec<f64>,
        asked: Vec<String>,
        notes: Vec<String>,
        void: &'static str,
    }

    impl Script {
        fn new(capacities: &[f64]) -> Self {
            let capacities = capacities.iter().rev().copied().collect();
            Self { capacities, asked: vec![], notes: vec![], void: "" }
        }

        fn asked(&self) -> String {
            self.asked.join(" ")
        }
    }

    impl Bench for Script {
        fn capacity(&mut self) -> Result<f64> {
            self.asked.push("C".into());
            Ok(self.capacities.pop().unwrap())
        }

        fn run(&mut self, job: &Job) -> Result<Option<Made>> {
            self.asked.push(job.variant.clone());
            let point = |x_name, x| Point {
                experiment: "e".into(),
                variant: job.variant.clone(),
                x_name,
                x,
            };
            let points = match job.how {
                How::Load(x) => vec![point("load", x), point("time_s", 0.0)],
                How::Cold(x) => vec![point("load_cold", x)],
                How::Halved => vec![point("cpu", 0.5), point("cpu", 1.0)],
            };
            let rows = points.iter().map(|p| p.row(("goodput", "1/s", 99.0))).collect();
            Ok((job.variant != self.void).then_some(Made { rows, normal: None }))
        }

        fn note(&mut self, note: String) {
            self.notes.push(note);
        }
    }

    fn job(variant: &str, how: How) -> Job {
        Job { variant: variant.into(), how, base: 100.0 }
    }

    fn rule(before: f64) -> Rule {
        Rule { drift_max: 0.03, keep_void: false, before }
    }

    fn capacities(all: &[Made]) -> Vec<(String, f64)> {
        let rows = all.iter().flat_map(|made| &made.rows).filter(|row| row.metric == "capacity");
        rows.map(|row| (format!("{} {} {}", row.variant, row.x_name, row.x), row.value)).collect()
    }

    /// A point's capacity is the middle of its own two; half the CPU has half of it, a course none.
    #[test]
    fn a_point_has_the_middle_of_its_own_two() {
        let cases = [
            (How::Load(3.0), vec![("a load 3".to_string(), 101.0)]),
            (How::Cold(3.0), vec![("a load_cold 3".to_string(), 101.0)]),
            (How::Halved, vec![("a cpu 0.5".to_string(), 50.5), ("a cpu 1".to_string(), 101.0)]),
        ];
        for (how, expected) in cases {
            let mut bench = Script::new(&[102.0]);
            let all = bracket(&mut bench, &[job("a", how)], rule(100.0)).unwrap();
            assert_eq!(capacities(&all), expected);
            assert_eq!((bench.asked().as_str(), bench.notes.len()), ("a C", 0));
        }
    }

    /// A drift makes the run void; the next try is judged by the capacity in between. The bound
    /// itself is allowed.
    #[test]
    fn a_drift_repeats_the_run() {
        let mut bench = Script::new(&[96.9, 97.0]);
        let all = bracket(&mut bench, &[job("a", How::Load(2.0))], rule(100.0)).unwrap();
        assert_eq!(bench.asked(), "a C a C");
        assert!((capacities(&all)[0].1 - 96.95).abs() < 1e-9);
        assert_eq!(bench.notes[0], "2 x C, a, try 1: void, the capacity went from 100.0 to 96.9/s");
        assert_eq!(bench.notes[1], "2 x C, a: C is 100.0/s in the load, 97.0/s beside the run");
        let mut bench = Script::new(&[128.0 * 1.03125]);
        let at = Rule { drift_max: 0.03125, ..rule(128.0) };
        assert_eq!(bracket(&mut bench, &[job("a", How::Load(2.0))], at).unwrap().len(), 1);
    }

    /// What stays void is left out with a note; what is kept nevertheless is kept at once.
    #[test]
    fn what_stays_void_is_left_out() {
        let mut bench = Script::new(&[110.0, 100.0, 110.0]);
        let jobs = [job("a", How::Load(2.0))];
        assert!(bracket(&mut bench, &jobs, rule(100.0)).unwrap().is_empty());
        assert_eq!(bench.asked(), "a C a C a C");
        assert_eq!(bench.notes.last().unwrap(), "2 x C, a: void in 3 tries, left out");
        let mut bench = Script::new(&[110.0]);
        let keep = Rule { keep_void: true, ..rule(100.0) };
        assert_eq!(bracket(&mut bench, &jobs, keep).unwrap().len(), 1);
        assert!(bench.notes[0].contains("void"));
    }

    /// A run that is void by itself is not repeated for the drift; in a group the others stay.
    #[test]
    fn a_void_run_does_not_take_others_along() {
        let mut bench = Script { void: "a", ..Script::new(&[110.0]) };
        assert!(bracket(&mut bench, &[job("a", How::Load(2.0))], rule(100.0)).unwrap().is_empty());
        assert_eq!(bench.asked(), "a C");
        let mut bench = Script { void: "a", ..Script::new(&[100.0]) };
        let jobs = [job("a", How::Load(2.0)), job("b", How::Load(2.0))];
        let all = bracket(&mut bench, &jobs, rule(100.0)).unwrap();
        assert_eq!(capacities(&all), [("b load 2".to_string(), 100.0)]);
    }
}
