// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which resource a bucket's requests use up, and where its level stands in the signals.

use tidegate_model::signals::{BucketSignals, Reading, Signals, Times};
use tidegate_units::{Nanos, Share};

/// A resource whose level a bucket's controller holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gauge {
    /// CPU used of what the service may use.
    Cpu,
    /// Queue of the interfaces that responses leave by, of its limit.
    Bandwidth,
    /// Share of time in which a task waited for memory (PSI).
    Memory,
    /// Share of time in which a task waited for input or output (PSI).
    Disk,
    /// Accept queue, of its limit.
    AcceptQueue,
    /// Requests of the bucket that are in flight, of this many.
    InFlight(u32),
    /// Share of time in which a task waited for the CPU (PSI).
    CpuPressure,
    /// Mean time to the first byte of the bucket's responses, of this long.
    FirstByte(Nanos),
    /// Mean time to the last byte of the bucket's responses, of this long.
    ResponseTime(Nanos),
    /// Connections of the service that wait for a response, of this many.
    Waiting(u32),
    /// Bytes per second that are sent, of this many.
    BytesSent(u64),
}

/// A response that takes longer than this multiple of what it may is only too late.
const LATE_MAX: f64 = 2.0;

impl Gauge {
    /// The level for the bucket with this index: a share, above 1 only where its whole is a number
    /// or a time that the operator named. `None` where it was not sensed, or has no limit to be a
    /// share of.
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
                Some(of_number(signals.buckets.get(bucket)?.in_flight?, limit))
            }
            Self::CpuPressure => share(signals.resource.cpu_pressure),
            Self::FirstByte(of) => {
                let bucket = signals.buckets.get(bucket)?;
                of_time(bucket.first_byte?, of, bucket)
            }
            Self::ResponseTime(of) => {
                let bucket = signals.buckets.get(bucket)?;
                of_time(bucket.end?, of, bucket)
            }
            Self::Waiting(limit) => Some(of_number(signals.time.waiting?, limit)),
            Self::BytesSent(limit) => {
                let sent = signals.resource.bandwidth?;
                let value = sent.value / limit.max(1) as f64;
                (value.is_finite() && value >= 0.0).then_some(Reading { value, age: sent.age })
            }
        }
    }

    /// How old what it reads is, also where that tells no level: of a server that answers nobody for
    /// a while the times are not lost.
    pub(crate) fn age(self, signals: &Signals, bucket: usize) -> Option<Nanos> {
        let own = signals.buckets.get(bucket);
        match self {
            Self::FirstByte(_) => own?.first_byte.map(|times| times.age),
            Self::ResponseTime(_) => own?.end.map(|times| times.age),
            _ => self.level(signals, bucket).map(|level| level.age),
        }
    }

    /// The level that the paper's laws aim at. Ours are those that the paper does not name: memory, where
    /// any waiting is slow for everybody; disk; an accept queue as in its SYN controller; half of the
    /// time for waiting for the CPU, half of what a response may take; all of a number.
    pub(crate) const fn reference(self) -> f64 {
        match self {
            Self::Cpu => 0.90,
            Self::Memory => 0.10,
            Self::Disk => 0.40,
            Self::AcceptQueue => 100.0 / 1024.0,
            Self::Bandwidth => 0.35,
            Self::CpuPressure | Self::FirstByte(_) | Self::ResponseTime(_) => 0.50,
            Self::InFlight(_) | Self::Waiting(_) | Self::BytesSent(_) => 1.0,
        }
    }

    /// Whether it is about the outgoing interface's queue, which has laws of its own.
    pub(crate) const fn is_link(self) -> bool {
        matches!(self, Self::Bandwidth)
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
            Self::CpuPressure => "CPU pressure",
            Self::FirstByte(_) => "time to first byte",
            Self::ResponseTime(_) => "response time",
            Self::Waiting(_) => "waiting connections",
            Self::BytesSent(_) => "bytes sent",
        }
    }
}

fn of_number(reading: Reading<u64>, limit: u32) -> Reading<f64> {
    let value = reading.value.min(1 << 40) as f64 / f64::from(limit.max(1));
    Reading { value, age: reading.age }
}

/// Where nobody was answered, nothing is slow as long as nobody waits; else nobody knows.
fn of_time(times: Reading<Times>, of: Nanos, bucket: &BucketSignals) -> Option<Reading<f64>> {
    let idle = || bucket.in_flight.filter(|jobs| jobs.value == 0).map(|_| 0.0);
    let mean_s = times.value.mean_s().or_else(idle)?;
    let value = (mean_s / of.as_secs_f64().max(1e-9)).min(LATE_MAX);
    Some(Reading { value, age: times.age })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::signals::{AcceptQueue, InterfaceQueue};

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

    /// Means of the objective; without responses they are nothing while nobody waits, and unknown else.
    #[test]
    fn times_are_shares_of_the_objective() {
        let objective = Nanos::from_millis(500);
        let mut s = Signals { buckets: vec![BucketSignals::default()], ..Signals::default() };
        let gauges = [Gauge::FirstByte(objective), Gauge::ResponseTime(objective)];
        let levels = |s: &Signals| gauges.map(|gauge| gauge.level(s, 0).map(|r| r.value));
        assert_eq!(levels(&s), [None, None]);
        let times = |count, ms| {
            Some(Reading::fresh(Times { count, sum: Nanos::from_millis(ms), ..Times::default() }))
        };
        s.buckets[0].first_byte = times(4, 200);
        s.buckets[0].end = times(2, 9_000);
        assert_eq!(levels(&s), [Some(0.1), Some(LATE_MAX)]);
        (s.buckets[0].first_byte, s.buckets[0].end) = (times(0, 0), times(0, 0));
        for (in_flight, level) in [(None, None), (Some(3), None), (Some(0), Some(0.0))] {
            s.buckets[0].in_flight = in_flight.map(Reading::fresh);
            assert_eq!(levels(&s), [level, level], "{in_flight:?}");
        }
    }

    #[test]
    fn numbers_are_shares_of_what_the_operator_names() {
        let mut s = Signals::default();
        let gauges = [Gauge::Waiting(50), Gauge::BytesSent(2_000)];
        let levels = |s: &Signals| gauges.map(|gauge| gauge.level(s, 0).map(|r| r.value));
        assert_eq!(levels(&s), [None, None]);
        s.time.waiting = Some(Reading::fresh(75));
        s.resource.bandwidth = Some(Reading::fresh(500.0));
        assert_eq!(levels(&s), [Some(1.5), Some(0.25)]);
        s.resource.bandwidth = Some(Reading::fresh(f64::NAN));
        assert_eq!(levels(&s)[1], None);
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
