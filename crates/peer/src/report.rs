// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is said of a service, and within which bounds.
//!
//! Integers only: a number that is none cannot be sent. Ages are the sender's, at the time of
//! sending; the receiver adds the time since arrival.

use serde::{Deserialize, Serialize};
use tidegate_model::NAME_MAX;
use tidegate_model::signals::{
    AcceptQueue, Backend, InterfaceQueue, Queue, Reading, Resource, Signals,
};
use tidegate_units::{Nanos, Share};

/// Longest validity, in ms (`tidegate_config::VALIDITY_RANGE`).
pub const VALIDITY_MAX_MS: u32 = 10_000;
/// Largest age of a value at its sender, in ms.
pub const AGE_MAX_MS: u32 = 60_000;
/// A share of one, in millionths.
pub const SHARE_ONE: u32 = 1_000_000;
/// Most connections or packets in a queue or in flight.
pub const COUNT_MAX: u64 = 1 << 32;
/// Most bytes per second: 100 Tbit/s.
pub const BANDWIDTH_MAX: u64 = 12_500_000_000_000;

/// How one service is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The number of the session.
    pub session: u64,
    /// The epoch of the session.
    pub epoch: u64,
    /// One more than that of the report before, from 1.
    pub sequence: u64,
    /// The sender's monotonic clock when it was sent, in ms, from any origin: tells the receiver
    /// which report was held up on its way.
    pub sent_ms: u64,
    /// The name of the service at the sender.
    pub service: String,
    /// How long it is valid, in ms; 0 ends what was said before, now (RFC 7339, section 4.3).
    pub validity_ms: u32,
    /// Its levels.
    pub levels: Levels,
    /// Answers completed since the service's counters began; only grows.
    pub completed: Option<u64>,
}

/// The levels of a service, each with its age.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Levels {
    /// CPU time used over CPU time allowed, in millionths.
    pub cpu: Option<Aged<u32>>,
    /// PSI of the CPU, in millionths.
    pub cpu_pressure: Option<Aged<u32>>,
    /// PSI of memory, in millionths.
    pub memory_pressure: Option<Aged<u32>>,
    /// PSI of input and output, in millionths.
    pub io_pressure: Option<Aged<u32>>,
    /// Bytes per second sent.
    pub bandwidth: Option<Aged<u64>>,
    /// Accept queue: length and limit, in connections.
    pub accept: Option<Aged<(u64, u64)>>,
    /// Interface queue: length and limit, in thousandths of a packet.
    pub interface: Option<Aged<(u64, u64)>>,
    /// Connections that wait for a response.
    pub waiting: Option<Aged<u64>>,
}

/// A value and its age at the sender, in ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aged<T> {
    /// The value.
    pub value: T,
    /// Its age, in ms.
    pub age_ms: u32,
}

/// A value outside its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: found {found}; allowed: {allowed}")]
pub struct RangeError {
    /// The field.
    pub field: &'static str,
    /// What was found.
    pub found: String,
    /// What is allowed.
    pub allowed: String,
}

fn range(field: &'static str, found: u64, max: u64) -> Result<(), RangeError> {
    if found <= max {
        return Ok(());
    }
    Err(RangeError { field, found: found.to_string(), allowed: format!("0 to {max}") })
}

/// Whether this may be the name of a service: 1 to 63 letters, digits, `-` or `_`, beginning with a
/// letter or digit.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    let first = name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    first && name.len() <= NAME_MAX && name.bytes().all(allowed)
}

impl Report {
    /// Whether every field is within its range.
    ///
    /// # Errors
    /// The first that is not.
    pub fn check(&self) -> Result<(), RangeError> {
        if !is_name(&self.service) {
            let found: String = self.service.chars().take(NAME_MAX).collect();
            let allowed = format!("1 to {NAME_MAX} letters, digits, - or _");
            return Err(RangeError { field: "service", found: format!("{found:?}"), allowed });
        }
        range("validity", self.validity_ms.into(), VALIDITY_MAX_MS.into())?;
        self.levels.check()
    }

    /// A report of these signals; session, epoch and sequence are the sender's to fill in.
    #[must_use]
    pub fn of(service: &str, signals: &Signals, validity: Nanos) -> Self {
        let validity_ms = u32::try_from(validity.0 / 1_000_000).unwrap_or(VALIDITY_MAX_MS);
        Self {
            service: service.to_owned(),
            validity_ms: validity_ms.min(VALIDITY_MAX_MS),
            levels: Levels::of(signals),
            ..Self::default()
        }
    }

    /// How long it is valid.
    #[must_use]
    pub fn validity(&self) -> Nanos {
        Nanos::from_millis(self.validity_ms.into())
    }
}

impl Levels {
    fn check(&self) -> Result<(), RangeError> {
        let shares = [
            ("cpu", self.cpu),
            ("cpu pressure", self.cpu_pressure),
            ("memory pressure", self.memory_pressure),
            ("io pressure", self.io_pressure),
        ];
        for (field, share) in shares {
            if let Some(share) = share {
                range(field, share.value.into(), SHARE_ONE.into())?;
                range(field, share.age_ms.into(), AGE_MAX_MS.into())?;
            }
        }
        let counts =
            [("bandwidth", self.bandwidth, BANDWIDTH_MAX), ("waiting", self.waiting, COUNT_MAX)];
        for (field, count, max) in counts {
            if let Some(count) = count {
                range(field, count.value, max)?;
                range(field, count.age_ms.into(), AGE_MAX_MS.into())?;
            }
        }
        let queues = [("accept queue", self.accept, 1), ("interface queue", self.interface, 1000)];
        for (field, queue, unit) in queues {
            if let Some(queue) = queue {
                range(field, queue.value.0, COUNT_MAX * unit)?;
                range(field, queue.value.1, COUNT_MAX * unit)?;
                range(field, queue.age_ms.into(), AGE_MAX_MS.into())?;
            }
        }
        Ok(())
    }

    fn of(signals: &Signals) -> Self {
        let share = |r: &Option<Reading<Share>>| {
            aged(r, |share| (share.get() * f64::from(SHARE_ONE)).round() as u32)
        };
        let Signals { resource, queue, time, .. } = signals;
        Self {
            cpu: share(&busier(resource)),
            cpu_pressure: share(&resource.cpu_pressure),
            memory_pressure: share(&resource.memory_pressure),
            io_pressure: share(&resource.io_pressure),
            bandwidth: aged(&resource.bandwidth, |b| (b as u64).min(BANDWIDTH_MAX)),
            accept: aged(&queue.accept, |q| (q.length.min(COUNT_MAX), q.limit.min(COUNT_MAX))),
            interface: aged(&queue.interface, |q| (thousandths(q.length), thousandths(q.limit))),
            waiting: aged(&time.waiting, |waiting| waiting.min(COUNT_MAX)),
        }
    }

    /// Fills in what they say; `since` is the time since they arrived.
    pub(crate) fn tell(&self, since: Nanos, backend: &mut Backend) {
        fn reading<T: Copy, U>(
            level: Option<Aged<T>>,
            since: Nanos,
            map: impl Fn(T) -> U,
        ) -> Option<Reading<U>> {
            level.map(|aged| Reading {
                value: map(aged.value),
                age: Nanos::from_millis(aged.age_ms.into()) + since,
            })
        }
        let share = |ppm: u32| Share::new(f64::from(ppm) / f64::from(SHARE_ONE));
        backend.resource = Resource {
            cpu: reading(self.cpu, since, share),
            cpu_pressure: reading(self.cpu_pressure, since, share),
            memory_pressure: reading(self.memory_pressure, since, share),
            io_pressure: reading(self.io_pressure, since, share),
            bandwidth: reading(self.bandwidth, since, |bytes| bytes as f64),
            // Whoever reported has taken it for its CPU where it was more.
            busiest_thread: None,
        };
        backend.queue = Queue {
            accept: reading(self.accept, since, |(length, limit)| AcceptQueue { length, limit }),
            interface: reading(self.interface, since, |(length, limit)| InterfaceQueue {
                length: length as f64 / 1e3,
                limit: limit as f64 / 1e3,
            }),
        };
        backend.waiting = reading(self.waiting, since, |waiting| waiting);
    }
}

/// The CPU, or the thread that the service works in where that is nearer to its end: to whoever is
/// told, a service at the end of its thread is at the end of its CPU.
fn busier(resource: &Resource) -> Option<Reading<Share>> {
    let cpu = resource.cpu?;
    let thread = resource.busiest_thread.filter(|thread| thread.value > cpu.value);
    Some(thread.unwrap_or(cpu))
}

fn thousandths(packets: f64) -> u64 {
    ((packets * 1e3).round() as u64).min(COUNT_MAX * 1000)
}

/// What is older than [`AGE_MAX_MS`] is not said at all.
fn aged<T: Copy, U>(reading: &Option<Reading<T>>, map: impl Fn(T) -> U) -> Option<Aged<U>> {
    let reading = reading.as_ref()?;
    let age_ms = u32::try_from(reading.age.0.div_ceil(1_000_000)).ok()?;
    (age_ms <= AGE_MAX_MS).then(|| Aged { value: map(reading.value), age_ms })
}
