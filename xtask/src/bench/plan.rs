// SPDX-License-Identifier: Apache-2.0 OR MIT
//! In which order subjects are measured.

use anyhow::{Context, Result, bail};

use super::Subject;

/// All measurements of one subject; the index is the round.
#[derive(Clone, Debug)]
pub(super) struct Samples {
    pub(super) name: String,
    pub(super) about: String,
    pub(super) values: Vec<f64>,
}

/// Measures each subject once a round. Every round starts with another subject, and every
/// second one runs backwards: what drifts or depends on the neighbour before meets all alike.
/// One round more than asked for comes first and is thrown away: caches, frequency, page pools.
pub(super) fn interleave(
    subjects: &mut [Box<dyn Subject>],
    rounds: usize,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<Samples>> {
    if subjects.is_empty() {
        bail!("nothing to measure");
    }
    let mut samples: Vec<Samples> = subjects
        .iter()
        .map(|subject| Samples {
            name: subject.name().to_owned(),
            about: subject.about().to_owned(),
            values: Vec::with_capacity(rounds),
        })
        .collect();
    let all = (rounds + 1) * subjects.len();
    let mut done = 0;
    for round in 0..=rounds {
        for index in order(subjects.len(), round) {
            let subject = &mut subjects[index];
            let value = subject
                .measure()
                .with_context(|| format!("measuring `{}`, round {round}", subject.name()))?;
            if !value.is_finite() || value < 0.0 {
                bail!("`{}` measured {value} ns: no cost", subject.name());
            }
            if round > 0 {
                samples[index].values.push(value);
            }
            done += 1;
            progress(done, all);
        }
    }
    Ok(samples)
}

/// The order of one round.
fn order(subjects: usize, round: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..subjects).map(|index| (index + round) % subjects).collect();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    /// Who was measured, in order.
    type Log = Rc<RefCell<Vec<&'static str>>>;

    struct Scripted {
        name: &'static str,
        log: Log,
        values: Vec<f64>,
    }

    impl Subject for Scripted {
        fn name(&self) -> &str {
            self.name
        }

        fn about(&self) -> &str {
            "a script"
        }

        fn measure(&mut self) -> Result<f64> {
            self.log.borrow_mut().push(self.name);
            self.values.pop().context("no value left")
        }
    }

    fn subjects(values: &[f64]) -> (Vec<Box<dyn Subject>>, Log) {
        let log = Rc::new(RefCell::new(Vec::new()));
        let make = |name| -> Box<dyn Subject> {
            Box::new(Scripted { name, log: Rc::clone(&log), values: values.to_vec() })
        };
        (vec![make("a"), make("b"), make("c")], log)
    }

    #[test]
    fn rounds_are_interleaved_rotated_and_reversed_and_the_first_is_thrown_away() {
        let (mut subjects, log) = subjects(&[3.0, 2.0, 1.0]);
        let mut last = (0, 0);
        let samples =
            interleave(&mut subjects, 2, &mut |done, all| last = (done, all)).expect("scripted");
        assert_eq!(*log.borrow(), ["a", "b", "c", "a", "c", "b", "c", "a", "b"]);
        assert!(samples.iter().all(|samples| samples.values == [2.0, 3.0]), "{samples:?}");
        assert_eq!(last, (9, 9));
    }

    #[test]
    fn what_is_no_cost_is_named() {
        for bad in [f64::NAN, -1.0, f64::INFINITY] {
            let (mut subjects, _) = subjects(&[bad]);
            let error = interleave(&mut subjects, 1, &mut |_, _| {}).expect_err("not a cost");
            assert!(error.to_string().contains("`a`"), "{error}");
        }
        assert!(interleave(&mut [], 1, &mut |_, _| {}).is_err());
    }
}
