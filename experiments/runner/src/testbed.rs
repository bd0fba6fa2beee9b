// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What experiments on a testbed in the lab share: daemons are looked at while a load runs, a run that may not be judged
//! is made again, and figures show what was run.

use crate::abacus::FigureSpec;
use crate::results::Row;
use crate::schedule::Schedule;
use anyhow::{Context, Result, anyhow, ensure};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Name, unit, value.
pub(crate) type Metric = (&'static str, &'static str, f64);

/// A run that may not be judged is made so often.
const TRIES: u32 = 2;

/// Whether a list of variants has one; `*` stands for anything, an empty list for all.
pub(crate) fn listed(list: &[String], variant: &str) -> bool {
    list.is_empty() || list.iter().any(|wanted| crate::judge::fits(wanted, variant))
}

/// Whether all that a list names are variants.
///
/// # Errors
/// Names what is none.
pub(crate) fn all_known(list: &[String], variants: &[&str]) -> Result<()> {
    for wanted in list {
        let known = variants.iter().any(|name| crate::judge::fits(wanted, name));
        ensure!(known, "variants: there is no {wanted:?}");
    }
    Ok(())
}

/// What a run gave.
#[derive(Clone, Debug, Default)]
pub(crate) struct Made {
    pub(crate) metrics: Vec<Metric>,
    /// Second by second.
    pub(crate) course: Vec<(f64, Vec<Metric>)>,
}

impl Made {
    pub(crate) fn value(&self, name: &str) -> Option<f64> {
        self.metrics.iter().find(|metric| metric.0 == name).map(|metric| metric.2)
    }
}

/// Makes a run, again if it may not be judged and there is time. `once` gives why it may not.
pub(crate) fn tried(
    what: &str,
    (schedule, notes): (&mut Schedule, &mut Vec<String>),
    mut once: impl FnMut() -> Result<(Vec<String>, Made)>,
) -> Result<Option<Made>> {
    let mut made = None;
    if schedule.is_over() {
        notes.push(format!("{what}: no time was left"));
    }
    for attempt in 1..=TRIES {
        if schedule.is_over() || made.is_some() || attempt > 1 && !schedule.may_repeat() {
            break;
        }
        let (void, seen) = once().with_context(|| what.to_owned())?;
        if void.is_empty() {
            made = Some(seen);
        } else {
            notes.push(format!("{what}, try {attempt}: void, {}", void.join("; ")));
        }
    }
    schedule.step();
    Ok(made)
}

/// Says that a run is over, also where it ends by a panic.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs something, and looks at what else runs, so often.
pub(crate) fn looking<L: Send, T>(
    every: Duration,
    look: impl Fn() -> Result<L> + Sync,
    run: impl FnOnce() -> T,
) -> Result<(T, Vec<L>)> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looks = scope.spawn(|| {
            let mut looks = vec![look()?];
            // Ends with the run.
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(every);
                looks.push(look()?);
            }
            Ok::<_, anyhow::Error>(looks)
        });
        let ends = Ends(&over);
        let result = run();
        drop(ends);
        let looks = looks.join().map_err(|_| anyhow!("the looks ended badly"))?;
        Ok((result, looks.context("a daemon does not answer")?))
    })
}

/// The looks of a run.
pub(crate) struct Looks<'a, L> {
    pub(crate) all: &'a [L],
    /// When each was, on the machine's clock, in seconds.
    pub(crate) at_s: fn(&L) -> f64,
    /// When the load began.
    pub(crate) started_s: f64,
}

impl<'a, L> Looks<'a, L> {
    /// Seconds since the load began.
    pub(crate) fn time_of(&self, look: &L) -> f64 {
        (self.at_s)(look) - self.started_s
    }

    /// A count at a time since the load began, between two looks in proportion.
    pub(crate) fn at(&self, of: impl Fn(&L) -> f64, time: f64) -> f64 {
        let later = self.all.iter().position(|look| self.time_of(look) >= time);
        match later {
            None => self.all.last().map_or(0.0, of),
            Some(0) => self.all.first().map_or(0.0, of),
            Some(place) => {
                let (before, after) = (&self.all[place - 1], &self.all[place]);
                let length = self.time_of(after) - self.time_of(before);
                let part = (time - self.time_of(before)) / f64::max(length, 1e-9);
                of(before) + part * (of(after) - of(before))
            }
        }
    }

    /// Per second, between two times.
    pub(crate) fn between(&self, of: impl Fn(&L) -> f64, (from, to): (f64, f64)) -> f64 {
        (self.at(&of, to) - self.at(&of, from)) / (to - from)
    }

    /// Those between two times.
    pub(crate) fn inside(
        &self,
        (from, to): (f64, f64),
    ) -> impl Iterator<Item = &'a L> + use<'a, L> {
        let (all, at_s, started_s) = (self.all, self.at_s, self.started_s);
        all.iter().filter(move |look| (from..to).contains(&(at_s(look) - started_s)))
    }

    /// Of those between two times.
    pub(crate) fn share(&self, span: (f64, f64), is: impl Fn(&L) -> bool) -> f64 {
        let all: Vec<bool> = self.inside(span).map(is).collect();
        all.iter().filter(|is| **is).count() as f64 / all.len().max(1) as f64
    }
}

/// The figures, with the variants that were run.
pub(crate) fn drawable(figures: &[FigureSpec], names: &[&str], rows: &[Row]) -> Vec<FigureSpec> {
    let ran = |name: &String| rows.iter().any(|row| row.variant == *name);
    let of = |figure: &FigureSpec| {
        let all = names.iter().map(|name| (*name).to_owned());
        let wanted =
            if figure.variants.is_empty() { all.collect() } else { figure.variants.clone() };
        let variants: Vec<String> = wanted.into_iter().filter(ran).collect();
        FigureSpec { variants, ..figure.clone() }
    };
    figures.iter().map(of).filter(|figure| !figure.variants.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_units::Nanos;

    /// A run that may not be judged is made once more; what was said of it is kept.
    #[test]
    fn a_void_run_is_made_again() {
        let once = |voids: u32| {
            let (mut left, mut notes) = (voids, Vec::new());
            let mut schedule = Schedule::begin(Some(Nanos::from_secs(1_000)), 1);
            let made = tried("a run", (&mut schedule, &mut notes), || {
                let void = if left > 0 { vec!["late".to_owned()] } else { Vec::new() };
                left = left.saturating_sub(1);
                Ok((void, Made::default()))
            });
            (made.unwrap().is_some(), notes)
        };
        assert_eq!(once(0), (true, Vec::new()));
        assert_eq!(once(1), (true, vec!["a run, try 1: void, late".to_owned()]));
        assert!(!once(2).0);
    }

    #[test]
    fn counts_are_taken_between_looks() {
        let all = [(1_000.0, 0.0), (1_001.0, 10.0), (1_003.0, 40.0)];
        let looks = Looks { all: &all, at_s: |look: &(f64, f64)| look.0, started_s: 1_000.0 };
        assert_eq!(looks.at(|look| look.1, 2.0), 25.0);
        assert_eq!(looks.between(|look| look.1, (0.5, 2.0)), 20.0 / 1.5);
        assert_eq!(looks.share((0.0, 2.0), |look| look.1 > 5.0), 0.5);
    }

    #[test]
    fn looks_are_taken_until_the_run_ends() {
        let look = || Ok(1);
        let (result, looks) = looking(Duration::ZERO, look, || 7).unwrap();
        assert_eq!(result, 7);
        assert!(!looks.is_empty());
        assert!(looking(Duration::ZERO, || Err::<(), _>(anyhow!("gone")), || ()).is_err());
    }
}
