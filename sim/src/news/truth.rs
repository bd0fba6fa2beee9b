// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When it hurt: the median duration of exchanges within their size classes has doubled for five
//! seconds. Taken from an uncontrolled run, by exact durations and not by what a detector measured.

use super::flows::Ended;
use std::collections::BTreeMap;
use tidegate_units::Nanos;

/// Seconds that it has to last, which are looked at together.
const LASTS: usize = 5;
/// Doubled.
const TIMES: f64 = 2.0;
/// Fewer exchanges in that time say nothing.
const FEW: usize = 10;
/// Exchanges of a size class before it has a median.
const LEARNED: usize = 16;

/// Size class of a response, by powers of two.
fn class(bytes: u64) -> u32 {
    bytes.max(1).ilog2()
}

/// Medians by size class of what ended before `calm`.
fn medians(ended: &[Ended], key: u64, calm: Nanos) -> BTreeMap<u32, f64> {
    let mut by_class: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for e in ended.iter().filter(|e| e.key == key && e.at < calm) {
        by_class.entry(class(e.bytes)).or_default().push(e.took.as_secs_f64());
    }
    by_class.retain(|_, took| took.len() >= LEARNED);
    by_class.into_iter().filter_map(|(class, mut took)| Some((class, median(&mut took)?))).collect()
}

fn median(values: &mut [f64]) -> Option<f64> {
    let middle = values.len() / 2;
    (!values.is_empty()).then(|| *values.select_nth_unstable_by(middle, f64::total_cmp).1)
}

/// For each second of a run whether, at its end, the median has been doubled for five seconds. What ended
/// before `calm` is usual.
#[must_use]
pub fn seconds(ended: &[Ended], key: u64, calm: Nanos, lasts: usize) -> Vec<bool> {
    let medians = medians(ended, key, calm);
    let mut by_second: Vec<Vec<f64>> = vec![Vec::new(); lasts];
    for e in ended.iter().filter(|e| e.key == key) {
        let second = (e.at.0 / 1_000_000_000) as usize;
        if let (Some(usual), Some(place)) =
            (medians.get(&class(e.bytes)), by_second.get_mut(second))
        {
            place.push(e.took.as_secs_f64() / usual);
        }
    }
    (0..lasts)
        .map(|end| {
            let from = (end + 1).saturating_sub(LASTS);
            let mut all: Vec<f64> = by_second[from..=end].iter().flatten().copied().collect();
            all.len() >= FEW && median(&mut all).is_some_and(|median| median >= TIMES)
        })
        .collect()
}

/// When an overload begins that was not there for the last minute: seconds from the beginning.
#[must_use]
pub fn onsets(seconds: &[bool]) -> Vec<usize> {
    let mut found = Vec::new();
    let mut last = None;
    for (second, _) in seconds.iter().enumerate().filter(|(_, true_now)| **true_now) {
        if last.is_none_or(|last| second - last > 60) {
            found.push(second);
        }
        last = Some(second);
    }
    found
}

/// Whether an alarm at this second is without truth from 10 s before to 60 s after it.
#[must_use]
pub fn is_false(seconds: &[bool], alarm: usize) -> bool {
    let until = (alarm + 61).min(seconds.len());
    let from = alarm.saturating_sub(10).min(until);
    !seconds[from..until].iter().any(|true_now| *true_now)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten exchanges a second of 1 KB and of 30 KB; from second 100 to `until` they take `times` as long.
    fn run(times: f64, until: u64) -> Vec<bool> {
        let mut ended = Vec::new();
        for ms in (0..200_000_u64).step_by(100) {
            let slow = (100_000..until * 1000).contains(&ms);
            let (bytes, s) = if ms % 200 == 0 { (1_000, 0.1) } else { (30_000, 0.4) };
            let took = Nanos::from_secs_f64(if slow { s * times } else { s });
            ended.push(Ended { at: Nanos::from_millis(ms), key: 1, bytes, took });
            // another destination says nothing about this one
            ended.push(Ended { at: Nanos::from_millis(ms), key: 2, bytes, took: Nanos(1) });
        }
        seconds(&ended, 1, Nanos::from_secs(90), 200)
    }

    #[test]
    fn it_is_true_when_most_of_five_seconds_have_doubled() {
        let truth = run(2.0, 150);
        assert_eq!(onsets(&truth), [102], "three of the five seconds");
        assert!(truth[102..=151].iter().all(|now| *now) && !truth[160..].iter().any(|now| *now));
        assert!(onsets(&run(1.9, 150)).is_empty());
        assert!(onsets(&run(5.0, 102)).is_empty(), "two seconds are a brown-out");
    }

    #[test]
    fn a_false_alarm_has_no_truth_near_it() {
        let truth = run(3.0, 150);
        for (alarm, is) in [(41, true), (42, false), (120, false), (161, false), (162, true)] {
            assert_eq!(is_false(&truth, alarm), is, "{alarm}");
        }
        assert!(is_false(&truth, 5_000));
    }
}
