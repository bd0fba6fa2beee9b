// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What of a service's signals is one back-end's, and what all of them admit together.
//!
//! A back-end without a limit, calm or not heard of any more, makes the sum one without a limit: so
//! nothing becomes tighter because a report was lost.

use tidegate_model::limits::{BucketLimits, ServiceLimits, Why};
use tidegate_model::signals::{
    AcceptQueue, Backend, BucketCounts, Counts, InterfaceQueue, Queue, Reading, Resource, Signals,
    Times,
};
use tidegate_units::{Nanos, Rate, Share};

/// Seconds over which what passes is averaged.
const PASSED_SECONDS: f64 = 1.0;

/// What passes, per second, on average; `None` before anything was counted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Passed(Option<f64>);

impl Passed {
    /// Takes what passed in a tick.
    pub(super) fn see(&mut self, seconds: f64, count: u64) {
        let now = count as f64 / seconds;
        let keep = libm::exp(-seconds / PASSED_SECONDS);
        self.0 = Some(self.0.map_or(now, |mean| keep * mean + (1.0 - keep) * now));
    }

    /// That of one of so many back-ends.
    pub(super) fn one_of(self, n: usize) -> Option<Rate> {
        self.0.map(|per_second| Rate::per_second(per_second / n as f64))
    }
}

/// Which of how many.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) index: usize,
    pub(super) of: usize,
}

impl Part {
    /// An equal part of a count; all parts together are the count.
    fn of(self, count: u64) -> u64 {
        let (index, of) = (self.index as u64, self.of as u64);
        let up_to = |i: u64| (u128::from(count) * u128::from(i) / u128::from(of)) as u64;
        up_to(index + 1) - up_to(index)
    }

    fn counts(self, counts: Counts) -> Counts {
        Counts {
            offered: self.of(counts.offered),
            repeated: self.of(counts.repeated),
            admitted: self.of(counts.admitted),
            refused: self.of(counts.refused),
            refused_remote: counts.refused_remote.map(|refused| self.of(refused)),
            completed: self.of(counts.completed),
            unknown: self.of(counts.unknown),
            unseen: self.of(counts.unseen),
            // back-ends report exchanges only
            connections: None,
        }
    }

    /// Means and quantiles stay.
    fn times(self, times: Times) -> Times {
        Times { count: self.of(times.count), sum: Nanos(self.of(times.sum.0)), ..times }
    }

    fn bucket(self, counts: BucketCounts) -> BucketCounts {
        BucketCounts {
            offered: counts.offered.map(|count| self.of(count)),
            refused: counts.refused.map(|count| self.of(count)),
            refused_first: self.of(counts.refused_first),
            begun: self.of(counts.begun),
            ended: self.of(counts.ended),
        }
    }
}

/// The signals of one back-end: what it reported, and of what this host sees its part. Where
/// there is one back-end, that is all. `left` are fractions of completions that were not given yet.
pub(super) fn view(signals: &Signals, backend: &Backend, part: Part, left: &mut f64) -> Signals {
    let (resource, queue, waiting) = as_told(backend);
    let mut view = Signals { resource, queue, backends: Vec::new(), ..signals.clone() };
    if part.of == 1 {
        return view;
    }
    // Whose connections these are is not known.
    (view.time.open, view.time.silent, view.time.slow) = (None, None, None);
    view.time.first_byte = map(view.time.first_byte, |times| part.times(times));
    view.time.end = map(view.time.end, |times| part.times(times));
    view.time.waiting = waiting.or_else(|| map(view.time.waiting, |n| part.of(n)));
    view.balance.counts = map(view.balance.counts, |counts| part.counts(counts));
    if let (Some(counts), Some(rate)) = (&mut view.balance.counts, backend.completed_per_s) {
        *left += rate.value * signals.period.as_secs_f64();
        let whole = left.floor().max(0.0);
        *left -= whole;
        counts.value.completed = whole as u64;
    }
    for bucket in &mut view.buckets {
        bucket.counts = map(bucket.counts, |counts| part.bucket(counts));
        bucket.in_flight = map(bucket.in_flight, |n| part.of(n));
        bucket.first_byte = map(bucket.first_byte, |times| part.times(times));
        bucket.end = map(bucket.end, |times| part.times(times));
    }
    view
}

/// The readings with the age that they had when they were told: for how long a report counts is a
/// matter of its validity, and not of this host's tick.
fn as_told(backend: &Backend) -> (Resource, Queue, Option<Reading<u64>>) {
    fn told<T>(reading: &mut Option<Reading<T>>, since: Nanos) {
        if let Some(reading) = reading {
            reading.age = reading.age.since(since);
        }
    }
    let since = backend.age.unwrap_or_default();
    let (mut resource, mut queue) = (backend.resource.clone(), backend.queue.clone());
    let Resource { cpu, busiest_thread, cpu_pressure, memory_pressure, io_pressure, bandwidth } =
        &mut resource;
    for share in [cpu, busiest_thread, cpu_pressure, memory_pressure, io_pressure] {
        told(share, since);
    }
    told(bandwidth, since);
    told(&mut queue.accept, since);
    told(&mut queue.interface, since);
    let mut waiting = backend.waiting;
    told(&mut waiting, since);
    (resource, queue, waiting)
}

fn map<T: Copy>(reading: Option<Reading<T>>, part: impl Fn(T) -> T) -> Option<Reading<T>> {
    reading.map(|reading| Reading { value: part(reading.value), age: reading.age })
}

/// The resources and queues to show of a service whose back-ends reported this: of the one under most
/// pressure; bytes and accept queues are added.
#[must_use]
pub fn under_most_pressure(backends: &[Backend]) -> (Resource, Queue) {
    let mut resource = Resource::default();
    let mut queue = Queue::default();
    for backend in backends {
        let from = &backend.resource;
        larger(&mut resource.cpu, from.cpu);
        larger(&mut resource.cpu_pressure, from.cpu_pressure);
        larger(&mut resource.memory_pressure, from.memory_pressure);
        larger(&mut resource.io_pressure, from.io_pressure);
        if let Some(more) = from.bandwidth {
            let sum = resource.bandwidth.map_or(0.0, |r| r.value) + more.value;
            resource.bandwidth = Some(Reading { value: sum, age: more.age });
        }
        if let Some(more) = backend.queue.accept {
            let before = queue.accept.map_or(AcceptQueue::default(), |r| r.value);
            let value = AcceptQueue {
                length: before.length.saturating_add(more.value.length),
                limit: before.limit.saturating_add(more.value.limit),
            };
            queue.accept = Some(Reading { value, age: more.age });
        }
        if let Some(more) = backend.queue.interface {
            let share = |queue: InterfaceQueue| queue.length / queue.limit.max(1.0);
            if queue.interface.is_none_or(|held| share(more.value) > share(held.value)) {
                queue.interface = Some(more);
            }
        }
    }
    (resource, queue)
}

fn larger(held: &mut Option<Reading<Share>>, more: Option<Reading<Share>>) {
    if let Some(more) = more
        && held.is_none_or(|held| more.value > held.value)
    {
        *held = Some(more);
    }
}

/// What all of them admit together; there is no limit where one has none.
pub(super) fn sum(parts: Vec<(&str, ServiceLimits)>) -> ServiceLimits {
    let alone = parts.len() == 1;
    let mut parts = parts.into_iter();
    let Some((first, mut total)) = parts.next() else { return ServiceLimits::default() };
    if alone {
        return total;
    }
    total.why.text = format!("{first}: {}", total.why.text);
    for (name, part) in parts {
        total.rate = both(total.rate, part.rate);
        total.burst = total.burst.saturating_add(part.burst);
        total.waiting_max =
            total.waiting_max.zip(part.waiting_max).map(|(a, b)| a.saturating_add(b));
        total.plain_waiting();
        total.min_rate = both(total.min_rate, part.min_rate);
        for (bucket, more) in total.buckets.iter_mut().zip(&part.buckets) {
            add(bucket, more);
        }
        join(&mut total.why, name, &part.why);
    }
    total
}

fn both(a: Option<Rate>, b: Option<Rate>) -> Option<Rate> {
    a.zip(b).map(|(a, b)| Rate::per_second(a.get() + b.get()))
}

fn add(bucket: &mut BucketLimits, more: &BucketLimits) {
    bucket.rate = both(bucket.rate, more.rate);
    bucket.burst = bucket.burst.saturating_add(more.burst);
    for (reserve, more) in bucket.reserve.iter_mut().zip(more.reserve) {
        *reserve = reserve.saturating_add(more);
    }
    bucket.why.shedding |= more.why.shedding;
}

fn join(why: &mut Why, name: &str, more: &Why) {
    why.shedding |= more.shedding;
    why.since = why.since.max(more.since);
    for family in &more.alarmed {
        if !why.alarmed.contains(family) {
            why.alarmed.push(*family);
        }
    }
    why.text = format!("{}; {name}: {}", why.text, more.text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_is_known_from_the_first_count_on() {
        let mut passed = Passed::default();
        assert_eq!(passed.one_of(2), None);
        passed.see(0.1, 80);
        assert_eq!(passed.one_of(2), Some(Rate::per_second(400.0)));
        (0..100).for_each(|_| passed.see(0.1, 10));
        assert!(passed.one_of(1).is_some_and(|rate| (rate.get() - 100.0).abs() < 0.1));
    }

    /// Of 400/s at half a second, one of four back-ends has 100/s at half a second.
    #[test]
    fn a_back_end_has_its_part_of_the_times() {
        let mut signals = Signals::default();
        let half = Nanos::from_millis(500);
        let times = Times { count: 400, sum: Nanos(half.0 * 400), p50: half, p99: half };
        signals.time.first_byte = Some(Reading::fresh(times));
        signals.time.silent = Some(Reading::fresh(8));
        let part = Part { index: 1, of: 4 };
        let view = view(&signals, &Backend::default(), part, &mut 0.0);
        let times = view.time.first_byte.unwrap().value;
        assert_eq!((times.count, times.mean_s(), times.p50), (100, Some(0.5), half));
        assert_eq!(view.time.silent, None);
    }

    #[test]
    fn parts_of_a_count_are_the_count() {
        for count in [0, 1, 2, 7, 100, u64::MAX] {
            for of in 1..5 {
                let sum: u128 = (0..of).map(|index| u128::from(Part { index, of }.of(count))).sum();
                assert_eq!(sum, u128::from(count));
            }
        }
    }
}
