// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which resource a bucket's requests use up, and where its level stands in the signals.

use tidegate_model::signals::{Reading, Signals};
use tidegate_units::Share;

/// A resource whose level a bucket's controller holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gauge {
    /// CPU used of what the service may use.
    Cpu,
    /// Queue of the interfaces that answers leave by, of its limit.
    Bandwidth,
    /// Share of time in which a task waited for memory (PSI).
    Memory,
    /// Share of time in which a task waited for input or output (PSI).
    Disk,
    /// Accept queue, of its limit.
    AcceptQueue,
    /// Requests of the bucket that are in flight, of this many.
    InFlight(u32),
}

impl Gauge {
    /// The level for the bucket with this index: a share, above 1 only for requests in flight.
    /// `None` where it was not sensed, or has no limit to be a share of.
    pub(crate) fn level(self, signals: &Signals, bucket: usize) -> Option<Reading<f64>> {
        let of_limit = |length: f64, limit: f64| {
            let share = length / limit;
            (limit >= 1.0 && share.is_finite() && share >= 0.0).then(|| share.min(1.0))
        };
        let share = |reading: Option<Reading<Share>>| {
            reading.map(|r| Reading { value: r.value.get(), age: r.age })
        };
        match self {
            Self::Cpu => share(signals.resource.cpu),
            Self::Memory => share(signals.resource.memory_pressure),
            Self::Disk => share(signals.resource.io_pressure),
            Self::Bandwidth => {
                let queue = signals.queue.interface?;
                let value = of_limit(queue.value.length, queue.value.limit)?;
                Some(Reading { value, age: queue.age })
            }
            Self::AcceptQueue => {
                let queue = signals.queue.accept?;
                let value = of_limit(queue.value.length as f64, queue.value.limit as f64)?;
                Some(Reading { value, age: queue.age })
            }
            Self::InFlight(limit) => {
                let jobs = signals.buckets.get(bucket)?.in_flight?;
                let value = jobs.value.min(1 << 40) as f64 / f64::from(limit.max(1));
                Some(Reading { value, age: jobs.age })
            }
        }
    }

    /// What an operator reads.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::Bandwidth => "interface queue",
            Self::Memory => "memory pressure",
            Self::Disk => "disk pressure",
            Self::AcceptQueue => "accept queue",
            Self::InFlight(_) => "requests in flight",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::signals::{AcceptQueue, BucketSignals, InterfaceQueue};

    #[test]
    fn a_queue_without_a_limit_is_no_level_and_a_full_one_is_one() {
        let mut s = Signals::default();
        assert_eq!(Gauge::Bandwidth.level(&s, 0), None);
        let table = [(5.0, 0.0, None), (35.0, 100.0, Some(0.35)), (120.0, 100.0, Some(1.0))];
        for (length, limit, expected) in table {
            s.queue.interface = Some(Reading::fresh(InterfaceQueue { length, limit }));
            assert_eq!(Gauge::Bandwidth.level(&s, 0).map(|r| r.value), expected, "{length}");
        }
        let odd = InterfaceQueue { length: f64::NAN, limit: 100.0 };
        s.queue.interface = Some(Reading::fresh(odd));
        assert_eq!(Gauge::Bandwidth.level(&s, 0), None);
        s.queue.accept = Some(Reading::fresh(AcceptQueue { length: 1, limit: 0 }));
        assert_eq!(Gauge::AcceptQueue.level(&s, 0), None);
    }

    #[test]
    fn requests_in_flight_are_those_of_the_bucket() {
        let mut s = Signals::default();
        assert_eq!(Gauge::InFlight(20).level(&s, 0), None);
        for jobs in [3_u64, 30] {
            let in_flight = Some(Reading::fresh(jobs));
            s.buckets.push(BucketSignals { in_flight, ..BucketSignals::default() });
        }
        assert_eq!(Gauge::InFlight(20).level(&s, 1).map(|r| r.value), Some(1.5));
        assert_eq!(Gauge::InFlight(0).level(&s, 0).map(|r| r.value), Some(3.0));
    }
}
