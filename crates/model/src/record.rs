// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What happened to a service: summed up for whoever looks every 15 s ([`Sums`]), and event by event
//! for whoever looks the next morning ([`Event`]).

mod crowds;
mod words;

use crate::Mode;
use crate::limits::Cause;
use crate::signals::Family;
use crate::snapshot::ReasonCount;
use serde::{Deserialize, Serialize};
use tidegate_units::Nanos;

/// What a service went through since the process began. A rate over any span is a difference of two
/// looks, so that nothing between them is lost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sums {
    /// How long it shed, by cause and mode.
    pub shedding: Vec<Shed>,
    /// How often that began.
    pub episodes: u64,
    /// When the last episode began (monotonic clock); `None`: there was none.
    pub began: Option<Nanos>,
    /// When the last episode that is over ended.
    pub ended: Option<Nanos>,
    /// How long each family of signals reported a problem, in the order of [`FAMILIES`].
    pub alarmed: [Nanos; 4],
    /// Levels times the time for which they held, in seconds; `None`: never known.
    pub levels: Levels,
    /// For how long each level was known, in seconds. A limit is known while it is in force.
    #[serde(default)]
    pub known: Levels,
}

/// How long a service shed for one cause in one mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shed {
    /// Why.
    pub cause: Cause,
    /// Whether it was only computed.
    pub shadow: bool,
    /// How long.
    pub time: Nanos,
}

/// Levels times the time for which they held: the difference of two looks over the time between
/// them is the mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Levels {
    /// Share of the CPU time that the service may use.
    pub cpu: Option<f64>,
    /// Share of a CPU that its busiest thread used.
    pub busiest_thread: Option<f64>,
    /// Exchanges in flight; of a request bucket its requests in flight.
    pub waiting: Option<f64>,
    /// Connections that wait for accept.
    pub accept_queue: Option<f64>,
    /// Bytes per second, so this is bytes.
    pub sent: Option<f64>,
    /// Connections that are open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<f64>,
    /// Of them those whose client has sent no request yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent: Option<f64>,
    /// Those whose client is slow to send one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow: Option<f64>,
    /// Packets that wait in the interface that the responses leave by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface_queue: Option<f64>,
    /// Share of time that a task waited for CPU time, so this is seconds of waiting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_pressure: Option<f64>,
    /// The same for memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_pressure: Option<f64>,
    /// The same for input and output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_pressure: Option<f64>,
    /// Admissions per second that the limit allows, so this is admissions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_rate: Option<f64>,
    /// Depth of the limit's bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_burst: Option<f64>,
    /// Most connections that may wait at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_waiting: Option<f64>,
}

/// How many levels there are.
const LEVELS: usize = 15;

impl Levels {
    /// Each level by name.
    #[must_use]
    pub const fn named(&self) -> [(&'static str, Option<f64>); LEVELS] {
        [
            ("cpu", self.cpu),
            ("busiest_thread", self.busiest_thread),
            ("waiting", self.waiting),
            ("accept_queue", self.accept_queue),
            ("sent", self.sent),
            ("open", self.open),
            ("silent", self.silent),
            ("slow", self.slow),
            ("interface_queue", self.interface_queue),
            ("cpu_pressure", self.cpu_pressure),
            ("memory_pressure", self.memory_pressure),
            ("io_pressure", self.io_pressure),
            ("limit_rate", self.limit_rate),
            ("limit_burst", self.limit_burst),
            ("limit_waiting", self.limit_waiting),
        ]
    }

    /// In the order of [`Self::named`].
    const fn all_mut(&mut self) -> [&mut Option<f64>; LEVELS] {
        [
            &mut self.cpu,
            &mut self.busiest_thread,
            &mut self.waiting,
            &mut self.accept_queue,
            &mut self.sent,
            &mut self.open,
            &mut self.silent,
            &mut self.slow,
            &mut self.interface_queue,
            &mut self.cpu_pressure,
            &mut self.memory_pressure,
            &mut self.io_pressure,
            &mut self.limit_rate,
            &mut self.limit_burst,
            &mut self.limit_waiting,
        ]
    }
}

/// The families in the order of [`Sums::alarmed`].
pub const FAMILIES: [Family; 4] = [Family::Resource, Family::Queue, Family::Time, Family::Balance];

impl Sums {
    /// Adds what held for so many seconds. What is not known, or no level, adds nothing.
    pub fn hold(&mut self, now: &Levels, seconds: f64) {
        let sums = self.levels.all_mut().into_iter().zip(self.known.all_mut());
        for ((sum, known), (_, level)) in sums.zip(now.named()) {
            if let Some(level) = level.filter(|level| level.is_finite() && *level >= 0.0) {
                *sum.get_or_insert(0.0) += level * seconds;
                *known.get_or_insert(0.0) += seconds;
            }
        }
    }

    /// Adds to the time of a cause.
    pub fn shed(&mut self, cause: Cause, shadow: bool, more: Nanos) {
        let known = self.shedding.iter_mut().find(|s| s.cause == cause && s.shadow == shadow);
        match known {
            Some(shed) => shed.time += more,
            None => self.shedding.push(Shed { cause, shadow, time: more }),
        }
    }
}

/// A moment, on the clock of its boot and on the clock of the day, as they were then.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// The id of the boot.
    pub boot: String,
    /// Time since that boot, sleep included.
    pub up: Nanos,
    /// Time since 1970 as the machine believed it was.
    pub unix: Nanos,
}

impl Moment {
    /// The moment with the time of day that it has by the clocks of `now`: a clock that was set in
    /// the meantime moves nothing that was of this boot.
    #[must_use]
    pub fn seen_from(mut self, now: &Self) -> Self {
        if self.boot == now.boot {
            self.unix = now.unix.since(now.up.since(self.up));
        }
        self
    }
}

/// Something that an operator wants to know of later.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// One more each time, also over restarts.
    pub number: u64,
    /// When.
    pub at: Moment,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum What {
    /// A service, or a request bucket, began to shed.
    SheddingBegan(Began),
    /// And ended.
    SheddingEnded(Ended),
    /// The mode of a service is another.
    Mode {
        /// Name of the service.
        service: String,
        /// Now.
        mode: Mode,
        /// Of how many percent of the sources refusals are executed; `None`: of all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        percent: Option<f64>,
        /// Before.
        before: Mode,
        /// How long it shall hold; `None`: until another is set.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lasts: Option<Nanos>,
        /// Who did it.
        by: By,
    },
    /// The kill switch was thrown.
    Release {
        /// Whether everything passes now.
        on: bool,
        /// How long it shall hold; `None`: until it is switched.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lasts: Option<Nanos>,
        /// Who did it.
        by: By,
    },
    /// Another configuration is in force.
    Reload {
        /// Its number.
        generation: u64,
        /// What changed, one sentence each, the first few.
        changes: Vec<String>,
    },
    /// The way to the servers behind a router's interface is congested.
    CongestionBegan {
        /// Name of the interface.
        interface: String,
        /// The signs: `queue`, `drops`, `rate`.
        signs: Vec<String>,
    },
    /// And is not any more.
    CongestionEnded {
        /// Name of the interface.
        interface: String,
        /// How long it was.
        lasted: Nanos,
    },
    /// A peer limits new connections to a service.
    ConnectionsLimited {
        /// Name of the service.
        service: String,
        /// Connections per second that pass.
        rate: f64,
    },
    /// And not any more.
    ConnectionsUnlimited {
        /// Name of the service.
        service: String,
        /// How long it was.
        lasted: Nanos,
        /// SYNs that came.
        offered: u64,
        /// Of these refused because of the limit; in shadow what would have been.
        refused: u64,
    },
    /// A peer limits datagrams to a service.
    DatagramsLimited {
        /// Name of the service.
        service: String,
        /// Datagrams per second that pass.
        rate: f64,
    },
    /// And not any more.
    DatagramsUnlimited {
        /// Name of the service.
        service: String,
        /// How long it was.
        lasted: Nanos,
        /// Datagrams that came.
        offered: u64,
        /// Of these refused.
        refused: u64,
        /// That would have been refused: in shadow, or as the lease ended.
        #[serde(default)]
        would_refuse: u64,
    },
    /// A flash crowd came to a destination behind a router.
    CrowdBegan {
        /// The destination: an address with a port.
        destination: String,
        /// Why it is slow, as far as its neighbours show it yet.
        why: String,
        /// Exchanges that began per second, lately.
        demand: f64,
        /// Share of the exchanges that are slow for their size.
        slow: f64,
    },
    /// It is over: its responses are as fast as usual, or hardly anything comes.
    CrowdEnded {
        /// The destination.
        destination: String,
        /// Why it was slow.
        why: String,
        /// How long it was.
        lasted: Nanos,
        /// SYNs that its limits refused.
        #[serde(default)]
        refused: u64,
        /// SYNs beyond its limits that passed: in shadow, or as the lease ended.
        #[serde(default)]
        would_refuse: u64,
    },
    /// New connections to a destination with a flash crowd are limited.
    CrowdLimited {
        /// The destination.
        destination: String,
        /// New connections per second that pass.
        rate: f64,
        /// Refusals are only counted.
        shadow: bool,
    },
    /// And not any more, or not in this way.
    CrowdUnlimited {
        /// The destination.
        destination: String,
        /// Why.
        why: String,
        /// How long they were.
        lasted: Nanos,
        /// SYNs beyond the limit: refused, in shadow counted.
        refused: u64,
        /// Of the refused, those that were replied to with a RST.
        #[serde(default)]
        reset: u64,
        /// Refusals were only counted.
        shadow: bool,
    },
    /// Another router shares what it measures, and divides limits with this one.
    RouterHeard {
        /// Its name in the configuration.
        router: String,
    },
    /// It is not heard any more.
    RouterLost {
        /// Its name in the configuration.
        router: String,
        /// For how long it has been silent.
        silent: Nanos,
    },
    /// The bus over which routers share is connected.
    BusConnected {
        /// Its subject.
        subject: String,
    },
    /// It has not been connected for a while.
    BusLost {
        /// Its subject.
        subject: String,
        /// Why.
        why: String,
        /// For how long.
        lasts: Nanos,
    },
    /// Hooks of an interface are not there any more.
    HooksLost {
        /// The interface, with its namespace.
        interface: String,
        /// Which, and why.
        why: String,
        /// The hook that limits is one of them: everything passes.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        open: bool,
    },
    /// They are attached again.
    HooksAttached {
        /// The interface, with its namespace.
        interface: String,
    },
    /// Somebody removed pins, and the daemon made them again.
    PinsMade {
        /// Their directory.
        path: String,
    },
    /// Routers are told to limit a service (BGP FlowSpec), or another rate.
    RouteAnnounced {
        /// Name of the service.
        service: String,
        /// Which packets.
        route: String,
        /// How many pass, with the unit.
        rate: String,
        /// Why.
        why: String,
        /// It was only planned.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        shadow: bool,
    },
    /// And not any more.
    RouteWithdrawn {
        /// Name of the service.
        service: String,
        /// Which packets.
        route: String,
        /// Why.
        why: String,
        /// It was only planned.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        shadow: bool,
    },
    /// A rule of a router holds at this host (BGP FlowSpec), or with another rate.
    RuleImported {
        /// Name of the router.
        peer: String,
        /// Which packets.
        rule: String,
        /// How many pass, with the unit.
        rate: String,
        /// It is only counted.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        shadow: bool,
    },
    /// So many more, with no name.
    MoreRulesImported {
        /// Name of the router.
        peer: String,
        /// How many.
        count: u64,
        /// Within so long; without it all now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        within: Option<Nanos>,
        /// They are only counted.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        shadow: bool,
    },
    /// The BGP speaker does not list what a router sends.
    RoutesUnlisted {
        /// Name of the router.
        peer: String,
        /// Why.
        why: String,
    },
    /// And some do not any more.
    RulesEnded {
        /// Name of the router.
        peer: String,
        /// How many.
        count: u64,
        /// Within so long; without it all now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        within: Option<Nanos>,
        /// They were only counted.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        shadow: bool,
    },
    /// A process began.
    Started {
        /// Version of the program.
        version: String,
        /// It took over from one that ran.
        took_over: bool,
    },
    /// A process ended in order; one that was killed leaves no such event.
    Stopped {
        /// The hooks and their limits were left to the process that comes.
        kept: bool,
    },
}

/// Who changed something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum By {
    /// A command.
    Operator,
    /// The time for which it was set was over.
    Time,
    /// A reload.
    File,
    /// Somebody past the daemon, in what is pinned.
    Pins,
    /// The daemon: refusals rose while the service was calm.
    Guard,
}

/// What sheds, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    /// Name of the service.
    pub service: String,
    /// Name of the request bucket; `None`: the service itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<String>,
    /// `shadow`: it was only computed.
    pub mode: Mode,
    /// Why.
    pub cause: Cause,
}

impl Episode {
    /// The service, with its bucket.
    #[must_use]
    pub fn subject(&self) -> String {
        match &self.bucket {
            Some(bucket) => format!("{}, bucket {bucket}", self.service),
            None => self.service.clone(),
        }
    }
}

/// The begin of shedding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Began {
    /// What and why.
    #[serde(flatten)]
    pub episode: Episode,
    /// The families that reported a problem.
    pub families: Vec<Family>,
    /// The controller's sentence.
    pub why: String,
    /// What was measured.
    pub figures: Figures,
}

/// The end of shedding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// What and why.
    #[serde(flatten)]
    pub episode: Episode,
    /// How long it was, to the last moment in which something was shed.
    pub lasted: Nanos,
    /// It was ended by the process (which ended or was succeeded) or by a reload, and not by the end of the
    /// overload.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// A reload removed the service or the request bucket.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
    /// It ended without a word (killed, crashed): nothing is known of the outcome, and the episode
    /// lasted no longer than said.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub killed: bool,
    /// What came of it.
    pub outcome: Outcome,
}

/// What was measured at one moment; what is not known is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Came in about the last second.
    pub offered: f64,
    /// Refused of these.
    pub refused: f64,
    /// Admissions per second that are allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<f64>,
    /// Exchanges in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u64>,
    /// Connections that wait for accept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accept_queue: Option<u64>,
    /// Share of the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    /// Median of the time to the first byte.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50: Option<Nanos>,
    /// 99th percentile of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99: Option<Nanos>,
}

/// What came of an episode.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// What came.
    pub offered: u64,
    /// Of it admitted.
    pub admitted: u64,
    /// Refused (in shadow: what would have been).
    pub refused: u64,
    /// By reason; empty where that is not counted apart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused_by: Vec<ReasonCount>,
    /// Exchanges that completed.
    pub completed: u64,
    /// Median of the times to the first byte of its responses; `None`: there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50: Option<Nanos>,
    /// 99th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99: Option<Nanos>,
}

impl Outcome {
    /// How many were refused by each reason, such as `rate 270, waiting 90`; `None`: that was not counted apart.
    #[must_use]
    pub fn reasons(&self) -> Option<String> {
        let by = self.refused_by.iter().map(|by| format!("{} {}", by.reason, by.count));
        let by: Vec<String> = by.collect();
        (!by.is_empty()).then(|| by.join(", "))
    }
}

impl What {
    /// The service that it is about; `None`: all.
    #[must_use]
    pub fn service(&self) -> Option<&str> {
        match self {
            Self::SheddingBegan(began) => Some(&began.episode.service),
            Self::SheddingEnded(ended) => Some(&ended.episode.service),
            Self::Mode { service, .. }
            | Self::ConnectionsLimited { service, .. }
            | Self::ConnectionsUnlimited { service, .. }
            | Self::DatagramsLimited { service, .. }
            | Self::DatagramsUnlimited { service, .. }
            | Self::RouteAnnounced { service, .. }
            | Self::RouteWithdrawn { service, .. } => Some(service),
            _ => None,
        }
    }
}

impl Began {
    fn sentence(&self) -> String {
        let Figures { offered, refused, limit, in_flight, accept_queue, cpu, p50, p99 } =
            self.figures;
        let mut parts = vec![format!("{offered:.0}/s came, {refused:.0}/s refused")];
        parts.extend(limit.map(|limit| format!("limit {limit:.1}/s")));
        parts.extend(in_flight.map(|n| format!("{n} in flight")));
        parts.extend(accept_queue.map(|n| format!("{n} in the accept queue")));
        parts.extend(cpu.map(|share| format!("CPU {:.0} %", share * 100.0)));
        parts.extend(p50.zip(p99).map(|(p50, p99)| format!("p50 {p50}, p99 {p99}")));
        let subject = self.episode.subject();
        let shadow =
            if self.episode.mode == Mode::Shadow { " (shadow: nothing is refused)" } else { "" };
        let (cause, figures) = (self.episode.cause.text(), parts.join(", "));
        format!("{subject}: shedding began{shadow}: {cause}; {figures}")
    }
}

impl Ended {
    fn sentence(&self) -> String {
        let shadow = if self.episode.mode == Mode::Shadow { " (shadow)" } else { "" };
        if self.killed {
            return format!(
                "{}: shedding is cut off{shadow}: the daemon ended without a word within {} of its begin, \
                 and its figures are lost; it had begun because {}",
                self.episode.subject(),
                self.lasted,
                self.episode.cause.text()
            );
        }
        let Outcome { offered, admitted, refused, completed, p50, p99, .. } = &self.outcome;
        let by = self.outcome.reasons().map(|by| format!(" ({by})")).unwrap_or_default();
        let times = p50.zip(*p99).map(|(p50, p99)| format!(", p50 {p50}, p99 {p99}"));
        let subject = self.episode.subject();
        let how = match (self.removed, self.cut) {
            (true, _) => "is cut off, for the configuration has it no more,",
            (false, true) => "is handed on or cut off",
            (false, false) => "ended",
        };
        format!(
            "{subject}: shedding {how}{shadow} after {}: {offered} came, {admitted} admitted, {refused} \
             refused{by}, {completed} completed{}; it had begun because {}",
            self.lasted,
            times.unwrap_or_default(),
            self.episode.cause.text()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One level a round: what it adds stands under its own name, in the sum and in its time.
    #[test]
    fn each_level_is_summed_under_its_name() {
        for place in 0..LEVELS {
            let mut now = Levels::default();
            *now.all_mut()[place] = Some(3.0);
            let mut sums = Sums::default();
            sums.hold(&now, 0.5);
            sums.hold(&Levels::default(), 7.0);
            let of = |levels: &Levels| {
                let known = levels.named().into_iter().filter_map(|(name, sum)| Some((name, sum?)));
                known.collect::<Vec<_>>()
            };
            let name = now.named()[place].0;
            assert_eq!((of(&sums.levels), of(&sums.known)), (vec![(name, 1.5)], vec![(name, 0.5)]));
        }
        let mut sums = Sums::default();
        sums.hold(&Levels { cpu: Some(f64::NAN), sent: Some(-1.0), ..Levels::default() }, 1.0);
        assert_eq!(sums, Sums::default());
    }

    #[test]
    fn a_clock_that_was_set_moves_nothing_of_this_boot() {
        let moment = |boot: &str, up, unix| Moment {
            boot: boot.into(),
            up: Nanos::from_secs(up),
            unix: Nanos::from_secs(unix),
        };
        // Set back by a day between the two.
        let now = moment("b", 200, 1_800_000_000);
        let then = moment("b", 100, 1_800_086_300);
        assert_eq!(then.seen_from(&now).unix, Nanos::from_secs(1_799_999_900));
        let other = moment("a", 100, 1_800_086_300);
        assert_eq!(other.clone().seen_from(&now), other, "of another boot nothing else is known");
    }
}
