// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every metric, once.

mod bus;
mod flowspec;
mod gateways;
mod in_band;
mod levels;
mod links;
mod over_time;
mod peers;
mod record;
mod requests;
mod router;

pub use over_time::{OVER_TIME, OverTime};
use tidegate_model::signals::{Family, Reading};
use tidegate_model::snapshot::{Bypassed, ServiceState, Snapshot};
use tidegate_model::totals::Histogram;
use tidegate_units::Share;

/// Longest label value, in bytes; what is longer is cut, so that no name can grow a page.
pub const LABEL_BYTES_MAX: usize = 128;

/// The reason of refusals of late requests, whose connections counted before.
const LATE: &str = "late";

/// What kind of number a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, until the dataplane's state is created anew.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Times by how long they were; only grows.
    Histogram,
}

/// A value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A count.
    Count(u64),
    /// Any finite number.
    Float(f64),
}

impl From<u64> for Number {
    fn from(n: u64) -> Self {
        Self::Count(n)
    }
}

impl From<f64> for Number {
    fn from(n: f64) -> Self {
        Self::Float(if n.is_finite() { n } else { 0.0 })
    }
}

impl From<bool> for Number {
    fn from(b: bool) -> Self {
        Self::Count(u64::from(b))
    }
}

/// Takes label values, in the order of the metric's labels, and the number.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(&[&str], Number);
/// The same of times.
pub(crate) type Times<'a> = &'a mut dyn FnMut(&[&str], &Histogram);

/// Where the values of a metric stand.
#[derive(Clone, Copy)]
pub(crate) enum Read {
    Numbers(fn(&Snapshot, Sink<'_>)),
    Times(fn(&Snapshot, Times<'_>), Bounds),
}

/// Which ends of the dataplane's buckets are bounds of a histogram. They are always the same: a
/// bound that appears later would be missed by whoever forms a rate.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    first: usize,
    last: usize,
    each: usize,
}

impl Bounds {
    /// Each at most 12.5 % above the one before, from 131 µs to 34 s.
    pub(crate) const FINE: Self = Self { first: 39, last: 183, each: 1 };
    /// Two an octave, from 131 µs to 73 min.
    pub(crate) const COARSE: Self = Self { first: 39, last: 239, each: 4 };

    /// Bounds in seconds, each with what was counted since the one before; the last is infinite.
    pub(crate) fn of(self, times: &Histogram) -> Vec<(f64, u64)> {
        let mut out = Vec::new();
        let mut count = 0_u64;
        for (bucket, more) in times.buckets.iter().enumerate() {
            count = count.saturating_add(*more);
            let is_bound = (self.first..=self.last).contains(&bucket)
                && (bucket - self.first).is_multiple_of(self.each);
            if is_bound {
                out.push((Histogram::end(bucket).as_secs_f64(), std::mem::take(&mut count)));
            }
        }
        out.push((f64::INFINITY, count));
        out
    }
}

/// One metric.
pub struct Metric {
    /// Its name without `tidegate_`, unit and `_total`: `<subsystem>_<what>`.
    pub name: &'static str,
    /// Its unit; empty where the name says it all.
    pub unit: &'static str,
    /// Counter or gauge.
    pub kind: Kind,
    /// What it is, for people.
    pub help: &'static str,
    /// Its labels.
    pub labels: &'static [&'static str],
    pub(crate) read: Read,
}

impl Metric {
    /// The name as it is exported.
    #[must_use]
    pub fn full_name(&self) -> String {
        let unit = if self.unit.is_empty() { String::new() } else { format!("_{}", self.unit) };
        let total = if self.kind == Kind::Counter { "_total" } else { "" };
        format!("tidegate_{}{unit}{total}", self.name)
    }
}

const SERVICE: &[&str] = &["service"];
const SIGNAL: &[&str] = &["service", "signal"];

const fn gauge(
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
    read: fn(&Snapshot, Sink<'_>),
) -> Metric {
    Metric { name, unit, kind: Kind::Gauge, help, labels, read: Read::Numbers(read) }
}

const fn counter(
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
    read: fn(&Snapshot, Sink<'_>),
) -> Metric {
    Metric { name, unit, kind: Kind::Counter, help, labels, read: Read::Numbers(read) }
}

const fn histogram(
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
    bounds: Bounds,
    read: fn(&Snapshot, Times<'_>),
) -> Metric {
    let read = Read::Times(read, bounds);
    Metric { name, unit: "seconds", kind: Kind::Histogram, help, labels, read }
}

/// Every metric, in the order in which they are exported.
pub fn metrics() -> impl Iterator<Item = &'static Metric> {
    SERVICES
        .iter()
        .chain(record::METRICS)
        .chain(levels::METRICS)
        .chain(requests::METRICS)
        .chain(links::METRICS)
        .chain(peers::METRICS)
        .chain(bus::METRICS)
        .chain(in_band::METRICS)
        .chain(gateways::METRICS)
        .chain(flowspec::METRICS)
        .chain(router::METRICS)
}

const SERVICES: &[Metric] = &[
    gauge(
        "daemon_build_info",
        "",
        "Always 1; the version of the program is a label.",
        &["version"],
        |s, out| out(&[&s.version], Number::Count(1)),
    ),
    gauge("daemon_uptime", "seconds", "Time since this daemon took over.", &[], |s, out| {
        out(&[], s.now.since(s.started).as_secs_f64().into())
    }),
    gauge(
        "daemon_config_generation",
        "",
        "Number of the configuration in force: 1 at the start, one more a reload.",
        &[],
        |s, out| out(&[], s.config_generation.into()),
    ),
    gauge(
        "daemon_released",
        "",
        "1 while the kill switch is on: everything passes.",
        &[],
        |s, out| out(&[], s.released.into()),
    ),
    gauge(
        "daemon_warnings",
        "",
        "Problems that are not over, such as a signal that cannot be read.",
        &[],
        |s, out| out(&[], (s.warnings.len() as u64).into()),
    ),
    gauge("dataplane_limits_generation", "", "Number of the limits in force.", &[], |s, out| {
        out(&[], s.limits_generation.into())
    }),
    gauge(
        "dataplane_heartbeat_age",
        "seconds",
        "Time since the lease was renewed: above 3 s limits relax, above 10 s everything passes. Absent if it never was.",
        &[],
        |s, out| {
            if let Some(at) = s.heartbeat {
                out(&[], s.now.since(at).as_secs_f64().into())
            }
        },
    ),
    gauge(
        "dataplane_attached",
        "",
        "1 for every interface all of whose hooks are attached; layer is xdp, xdp-generic, tcx or clsact.",
        &["interface", "namespace", "layer"],
        |s, out| {
            for i in &s.interfaces {
                out(&[&i.name, &i.namespace, &i.attached], (!i.attached.is_empty()).into());
            }
        },
    ),
    counter(
        "dataplane_passed",
        "packets",
        "Packets that passed without being evaluated, by reason.",
        &["reason"],
        |s, out| {
            for p in &s.passed {
                out(&[&p.reason], p.count.into())
            }
        },
    ),
    counter(
        "dataplane_cleared",
        "packets",
        "Packets from outside whose marks of NetDraino were cleared at a border. Absent without one.",
        &[],
        |s, out| {
            if let Some(cleared) = s.cleared {
                out(&[], cleared.into());
            }
        },
    ),
    counter(
        "dataplane_table_losses",
        "connections",
        "Connections that found no room in a table, or lost it (handshakes: young notes of SYNs that were overwritten). They pass, and are missing in the signals; make the table larger.",
        &["table"],
        |s, out| {
            for l in &s.table_losses {
                out(&[&l.reason], l.count.into())
            }
        },
    ),
    counter(
        "service_offered",
        "syns",
        "Demand: new work that came, what was refused included, also while the kill switch is on or the lease has run out. SYNs of exempt sources are not in it. Feed the autoscaler with this.",
        SERVICE,
        |s, out| each(s, |v| out(&[&v.name], demand(v).into())),
    ),
    counter(
        "service_verdicts",
        "syns",
        "Verdicts on new work, and refusals of late requests (reason late). With shadow=\"true\" a refusal was only computed and the SYN passed: its count is an upper bound of what enforcing would refuse, because refused clients would have tried again elsewhere or given up.",
        &["service", "class", "verdict", "reason", "shadow"],
        |s, out| {
            each(s, |v| {
                for c in &v.counts {
                    let shadow = if c.shadow { "true" } else { "false" };
                    out(&[&v.name, &c.class, &c.verdict, &c.reason, shadow], c.count.into());
                }
            })
        },
    ),
    gauge("service_mode", "", "1 for the mode in force.", &["service", "mode"], |s, out| {
        each(s, |v| out(&[&v.name, &v.mode], Number::Count(1)))
    }),
    gauge(
        "service_bypassed",
        "connections",
        "Connections of the last minute that the service's listeners accepted while no hook saw a SYN of it: it is not protected. Absent while there are none.",
        SERVICE,
        |s, out| each(s, |v| optional(v, past(&v.bypassed), out)),
    ),
    gauge(
        "service_unreplied",
        "connections",
        "Connections of the last minute that the service's listeners accepted while the hooks saw their SYN and no packet of the server: replies leave by another way. Absent while there are none.",
        SERVICE,
        |s, out| each(s, |v| optional(v, past(&v.unreplied), out)),
    ),
    gauge(
        "service_waiting",
        "connections",
        "Exchanges in flight: connections to which the service owes a response. Silent ones are not among them.",
        SERVICE,
        |s, out| each(s, |v| optional(v, v.signals.time.waiting.map(|r| r.value as f64), out)),
    ),
    gauge(
        "service_open",
        "connections",
        "Verified connections that are open.",
        SERVICE,
        |s, out| each(s, |v| optional(v, v.signals.time.open.map(|r| r.value as f64), out)),
    ),
    gauge(
        "service_silent",
        "connections",
        "Open connections whose client has sent no request yet, and waits for nothing.",
        SERVICE,
        |s, out| each(s, |v| optional(v, v.signals.time.silent.map(|r| r.value as f64), out)),
    ),
    gauge(
        "service_slow",
        "connections",
        "Open connections whose client is slow to send a request.",
        SERVICE,
        |s, out| each(s, |v| optional(v, v.signals.time.slow.map(|r| r.value as f64), out)),
    ),
    gauge(
        "service_accept_queue",
        "connections",
        "Connections that wait for accept, all listeners summed.",
        SERVICE,
        |s, out| {
            each(s, |v| optional(v, v.signals.queue.accept.map(|r| r.value.length as f64), out))
        },
    ),
    gauge(
        "service_accept_queue_limit",
        "connections",
        "Connections that fit into the accept queues.",
        SERVICE,
        |s, out| {
            each(s, |v| optional(v, v.signals.queue.accept.map(|r| r.value.limit as f64), out))
        },
    ),
    gauge(
        "service_interface_queue",
        "packets",
        "Packets that wait in the interface that the responses leave by: mean of the last second.",
        SERVICE,
        |s, out| each(s, |v| optional(v, v.signals.queue.interface.map(|r| r.value.length), out)),
    ),
    gauge(
        "service_interface_queue_limit",
        "packets",
        "Packets that fit into that queue.",
        SERVICE,
        |s, out| each(s, |v| optional(v, v.signals.queue.interface.map(|r| r.value.limit), out)),
    ),
    gauge(
        "service_cpu",
        "ratio",
        "CPU time used over CPU time that the service may use.",
        SERVICE,
        |s, out| each(s, |v| optional(v, share(v.signals.resource.cpu), out)),
    ),
    gauge(
        "service_busiest_thread",
        "ratio",
        "Share of a CPU that the thread used in which the service works, where it works in one: a mean over its processes; absent where it works in several.",
        SERVICE,
        |s, out| {
            each(s, |v| optional(v, v.signals.resource.busiest_thread.map(|r| r.value.get()), out))
        },
    ),
    gauge(
        "service_pressure",
        "ratio",
        "Share of time that a task of the service waited (PSI, some), by resource.",
        &["service", "resource"],
        |s, out| {
            each(s, |v| {
                let r = &v.signals.resource;
                for (name, reading) in
                    [("cpu", r.cpu_pressure), ("memory", r.memory_pressure), ("io", r.io_pressure)]
                {
                    if let Some(value) = share(reading) {
                        out(&[&v.name, name], value.into())
                    }
                }
            })
        },
    ),
    gauge(
        "service_signal_age",
        "seconds",
        "How old a signal is; a signal that could not be read is absent.",
        SIGNAL,
        |s, out| {
            each(s, |v| {
                for (name, age) in ages(v) {
                    out(&[&v.name, name], age.into())
                }
            })
        },
    ),
    gauge(
        "service_alarmed",
        "",
        "1 while a family of signals reports a problem; the default controller sheds only when two agree.",
        &["service", "family"],
        |s, out| {
            each(s, |v| {
                for (family, name) in FAMILIES {
                    out(&[&v.name, name], v.limits.why.alarmed.contains(&family).into());
                }
            })
        },
    ),
    gauge("service_shedding", "", "1 while the controller sheds.", SERVICE, |s, out| {
        each(s, |v| out(&[&v.name], v.limits.why.shedding.into()))
    }),
    gauge(
        "service_limit_rate",
        "per_second",
        "Admissions per second that are allowed; absent without a limit.",
        SERVICE,
        |s, out| each(s, |v| optional(v, v.limits.rate.map(|r| r.get()), out)),
    ),
    gauge(
        "service_limit_burst",
        "syns",
        "Depth of the bucket; absent without a limit.",
        SERVICE,
        |s, out| each(s, |v| optional(v, v.limits.rate.map(|_| f64::from(v.limits.burst)), out)),
    ),
    gauge(
        "service_limit_waiting",
        "connections",
        "Most connections that may wait at once; absent without a limit.",
        SERVICE,
        |s, out| each(s, |v| optional(v, v.limits.waiting_max.map(|n| n as f64), out)),
    ),
];

pub(crate) const FAMILIES: [(Family, &str); 4] = [
    (Family::Resource, "resource"),
    (Family::Queue, "queue"),
    (Family::Time, "time"),
    (Family::Balance, "balance"),
];

fn each(snapshot: &Snapshot, visit: impl FnMut(&ServiceState)) {
    snapshot.services.iter().for_each(visit);
}

/// Verdicts, or what was offered as it was last read: under the kill switch there are no verdicts.
/// The greater one, so that the demand of a daemon that reads only one of them is whole.
fn demand(service: &ServiceState) -> u64 {
    let verdicts = service.counts.iter().filter(|of| of.reason != LATE).map(|of| of.count);
    let offered = service.totals.as_ref().map_or(0, |of| of.offered);
    verdicts.fold(0_u64, u64::saturating_add).max(offered)
}

fn past(found: &Option<Bypassed>) -> Option<f64> {
    found.as_ref().map(|found| found.connections as f64)
}

fn optional(service: &ServiceState, value: Option<f64>, out: Sink<'_>) {
    if let Some(value) = value {
        out(&[&service.name], value.into());
    }
}

fn share(reading: Option<Reading<Share>>) -> Option<f64> {
    reading.map(|r| r.value.get())
}

fn ages(service: &ServiceState) -> impl Iterator<Item = (&'static str, f64)> {
    fn age<T>(reading: &Option<Reading<T>>) -> Option<f64> {
        reading.as_ref().map(|r| r.age.as_secs_f64())
    }
    let s = &service.signals;
    let all = [
        ("cpu", age(&s.resource.cpu)),
        ("cpu_pressure", age(&s.resource.cpu_pressure)),
        ("memory_pressure", age(&s.resource.memory_pressure)),
        ("io_pressure", age(&s.resource.io_pressure)),
        ("bandwidth", age(&s.resource.bandwidth)),
        ("accept_queue", age(&s.queue.accept)),
        ("interface_queue", age(&s.queue.interface)),
        ("waiting", age(&s.time.waiting)),
        ("open", age(&s.time.open)),
        ("first_byte", age(&s.time.first_byte)),
        ("end", age(&s.time.end)),
        ("counts", age(&s.balance.counts)),
    ];
    all.into_iter().filter_map(|(name, age)| Some((name, age?)))
}
