// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a load consists of.

use super::ask::{self, Mix, Session};
use super::manner::Manner;
use super::wire::{self, Transport};
use crate::error::{LabError, Result};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr, SocketAddrV4};
use tidegate_units::Nanos;
use tidegate_workload::{Arrivals, Process, Profile, Rng, Trace};

/// Most streams of one load.
pub(crate) const STREAMS_MAX: usize = 64;
/// Most phases of one load.
const PHASES_MAX: usize = 1_000;
/// Most slots of a time series.
pub(crate) const SLOTS_MAX: u64 = 100_000;
/// Connections that one process holds at most: below its limit of 20,000 descriptors.
pub(crate) const CONNECTIONS_MAX: usize = 18_000;
/// Most processes of one load.
const SHARDS_MAX: u32 = 64;

/// A whole load: streams side by side, phases one after the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoadPlan {
    /// The same seed gives the same arrivals.
    pub seed: u64,
    /// What is sent.
    pub streams: Vec<Stream>,
    /// Parts of the run that are reported one by one (by intended start); may be empty, and may
    /// leave gaps, in which arrivals count in the total only.
    pub phases: Vec<Phase>,
    /// Length of the steps of the time series (default 1 s).
    pub slot: Nanos,
    /// An answer counts as good within this time of its intended start (default 1 s).
    pub objective: Nanos,
    /// The client gives up this long after the intended start (default 10 s).
    pub timeout: Nanos,
    /// The client gives up if it is not connected so long after it began; 0 (default): it tries on
    /// until its time-out.
    pub connect_timeout: Nanos,
    /// A run in which more than 1 in 100 arrivals started later than this is void (default 20 ms).
    pub lag_bound: Nanos,
    /// Number of processes; 0 (default) takes as many as the connections need.
    pub shards: u32,
    /// When a closed-loop stream stops; open-loop streams end with their arrivals.
    pub closed_until: Nanos,
    /// Where the load is told by UDP to throttle, for streams with [`Stream::throttle`]: a rising number,
    /// then 0 or 1 for each ladder, with blanks between. Such a load has one process.
    pub told_at: Option<SocketAddrV4>,
}

impl Default for LoadPlan {
    fn default() -> Self {
        Self {
            seed: 1,
            streams: Vec::new(),
            phases: Vec::new(),
            slot: Nanos::SECOND,
            objective: Nanos::SECOND,
            timeout: Nanos::from_secs(10),
            connect_timeout: Nanos::ZERO,
            lag_bound: Nanos::from_millis(20),
            shards: 0,
            closed_until: Nanos::ZERO,
            told_at: None,
        }
    }
}

/// A named part of the run, by intended start: `start` included, `end` not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// Its name.
    pub name: String,
    /// Since the start of the run.
    pub start: Nanos,
    /// Since the start of the run.
    pub end: Nanos,
}

/// Requests of one kind from one group of clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stream {
    /// Its name in reports.
    pub name: String,
    /// When requests start.
    pub arrive: Arrive,
    /// The server.
    pub target: SocketAddr,
    /// Where they come from: one address a client, taken in turn; same family as the target.
    pub sources: Sources,
    /// Path and query of the request.
    pub path: String,
    /// Host header.
    #[serde(default = "default_host")]
    pub host: String,
    /// Differentiated services code point, 0…63.
    #[serde(default)]
    pub dscp: u8,
    /// How requests are carried.
    #[serde(default)]
    pub transport: Transport,
    /// Several requests a connection; without it each asks for `Connection: close`.
    #[serde(default)]
    pub keep_alive: Option<KeepAlive>,
    /// How requests are sent, where clients do not behave.
    #[serde(default)]
    pub manner: Manner,
    /// Source ports in turn, first and count; without them the kernel chooses. With few of them an
    /// address uses a tuple again that the server still has in TIME_WAIT. A client that
    /// finds its port still in use does not come; it counts as broken.
    #[serde(default)]
    pub ports: Option<(u16, u16)>,
    /// Ends a connection whose answer is complete by RST (linger 0) instead of FIN. It spares the
    /// server its TIME_WAIT, which no real client does: only for measuring the generator itself.
    #[serde(default)]
    pub abortive: bool,
    /// What is asked for, instead of `path` alone; results are told by kind, too.
    #[serde(default)]
    pub mix: Option<Mix>,
    /// Each arrival is a client that makes several requests.
    #[serde(default)]
    pub session: Option<Session>,
    /// An open loop that lengthens its intervals while it is told to.
    #[serde(default)]
    pub throttle: Option<Throttle>,
}

/// What a client does that is told to throttle: until it is told to resume, each of its intervals is
/// longer by the gap. It stops when its profile ends, with what it has not sent by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Throttle {
    /// The ladder that it goes by: its place in the messages, from 0.
    pub ladder: usize,
    /// The gap.
    pub gap: Nanos,
}

fn default_host() -> String {
    "lab.test".to_owned()
}

/// Reuse of connections. An arrival takes an idle connection where there is one, else a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeepAlive {
    /// Most requests on one connection, at least 1.
    pub requests: u32,
    /// Most connections at a time; 0 (default): as many as the process can hold. A request that finds
    /// all of them busy is not sent: it fails as one without a handshake.
    #[serde(default)]
    pub connections: u32,
}

impl KeepAlive {
    /// So many requests a connection.
    #[must_use]
    pub const fn of(requests: u32) -> Self {
        Self { requests, connections: 0 }
    }
}

/// When requests start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Arrive {
    /// Open loop: a process of arrivals under a profile of rates.
    Open {
        /// Constant or Poisson.
        process: Process,
        /// The rates.
        profile: Profile,
    },
    /// Open loop: so many arrivals in each period.
    Trace {
        /// Arrivals by period.
        counts: Vec<u64>,
        /// Length of a period.
        period: Nanos,
    },
    /// Closed loop: so many clients, each starting again as soon as it has its answer. Only for
    /// measuring capacity: a closed loop slows down with the server and hides its waits.
    Closed {
        /// How many.
        clients: u32,
    },
}

/// A range of source addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sources {
    /// The first address.
    pub first: IpAddr,
    /// How many follow each other, at least 1.
    pub count: u32,
}

impl Sources {
    /// The address number `index`, in turn.
    #[must_use]
    pub fn get(&self, index: u64) -> IpAddr {
        let offset = index % u64::from(self.count.max(1));
        match self.first {
            IpAddr::V4(a) => IpAddr::V4(a.to_bits().wrapping_add(offset as u32).into()),
            IpAddr::V6(a) => IpAddr::V6(a.to_bits().wrapping_add(u128::from(offset)).into()),
        }
    }
}

impl LoadPlan {
    /// Checks the plan.
    ///
    /// # Errors
    /// [`LabError::Plan`] with what is wrong and where.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(LabError::Plan(what));
        if self.streams.is_empty() || self.streams.len() > STREAMS_MAX {
            return wrong(format!("{} streams, not 1 to {STREAMS_MAX}", self.streams.len()));
        }
        if self.phases.len() > PHASES_MAX || self.shards > SHARDS_MAX {
            return wrong(format!("more than {PHASES_MAX} phases or {SHARDS_MAX} processes"));
        }
        if self.slot == Nanos::ZERO || self.timeout == Nanos::ZERO {
            return wrong("slot and timeout must be longer than nothing".into());
        }
        if self.end().0 / self.slot.0 > SLOTS_MAX {
            return wrong(format!("more than {SLOTS_MAX} slots"));
        }
        for phase in &self.phases {
            if phase.start >= phase.end {
                return wrong(format!("phase {} ends before it starts", phase.name));
            }
        }
        if self.phases.windows(2).any(|p| p[1].start < p[0].end) {
            return wrong("phases overlap or are out of order".into());
        }
        let throttled = self.streams.iter().any(|s| s.throttle.is_some());
        if throttled && (self.told_at.is_none() || self.shard_count() != 1) {
            return wrong("throttled streams need told_at, and one process".into());
        }
        self.streams.iter().try_for_each(|s| s.check(self))
    }

    /// When the last arrival may start.
    #[must_use]
    pub fn duration(&self) -> Nanos {
        self.streams.iter().map(|s| s.arrive.duration(self.closed_until)).max().unwrap_or_default()
    }

    /// When the last client has given up.
    #[must_use]
    pub fn end(&self) -> Nanos {
        let sessions = self.streams.iter().filter_map(|s| s.session.as_ref());
        let longest = sessions.map(|s| s.longest(self.timeout)).max().unwrap_or_default();
        self.duration() + self.timeout.max(longest)
    }

    /// How many processes the load needs: all clients of the worst seconds may wait at once.
    #[must_use]
    pub fn shard_count(&self) -> u32 {
        if self.shards > 0 {
            return self.shards;
        }
        let stays = |s: &Stream| {
            s.session.as_ref().map_or(self.timeout, |session| session.longest(self.timeout))
        };
        let peak = |s: &Stream| {
            let peak = s.arrive.peak(stays(s).as_secs_f64());
            let bound = s.keep_alive.map(|k| k.connections).filter(|bound| *bound > 0);
            bound.map_or(peak, |bound| peak.min(f64::from(bound)))
        };
        let most: f64 = self.streams.iter().map(peak).sum();
        let needed = (most * 1.2 / CONNECTIONS_MAX as f64).ceil() as u32;
        needed.clamp(1, SHARDS_MAX)
    }
}

impl Stream {
    /// The same with a path so long that the head of the request has this many bytes, if it has not more.
    #[must_use]
    pub fn padded(mut self, bytes: usize) -> Self {
        let length = |path: &str| wire::request_bytes(&self, path, None).len();
        // The query's mark has one byte.
        if let Some(more) = bytes.checked_sub(length(&self.path) + 1) {
            self.path = format!("{}?{}", self.path, "x".repeat(more));
        }
        self
    }

    fn check(&self, plan: &LoadPlan) -> Result<()> {
        let wrong = |what: &str| Err(LabError::Plan(format!("stream {}: {what}", self.name)));
        if self.target.is_ipv4() != self.sources.first.is_ipv4() {
            return wrong("sources and target are of different families");
        }
        if self.sources.count == 0 || self.dscp > 63 {
            return wrong("needs at least one source, and a DSCP of 0 to 63");
        }
        if self.keep_alive.is_some_and(|k| k.requests == 0) {
            return wrong("keep_alive.requests must be at least 1");
        }
        let plain = |text: &str| text.bytes().all(|b| b.is_ascii_graphic());
        if !self.path.starts_with('/') || !plain(&self.path) || !plain(&self.host) {
            return wrong("path must begin with '/'; path and host hold no blanks");
        }
        ask::check(self)?;
        if let Err(what) = self.manner.check(self) {
            return wrong(what);
        }
        if self.ports.is_some_and(|(first, count)| count == 0 || first.checked_add(count).is_none())
        {
            return wrong("ports are a first one and how many, up to 65,535");
        }
        if self.throttle.is_some() && matches!(self.arrive, Arrive::Closed { .. }) {
            return wrong("a closed loop cannot throttle");
        }
        match &self.arrive {
            Arrive::Closed { clients: 0 } => wrong("a closed loop needs clients"),
            Arrive::Closed { .. } if plan.closed_until == Nanos::ZERO => {
                wrong("a closed loop needs closed_until")
            }
            Arrive::Trace { period: Nanos(0), .. } => wrong("a trace needs a period"),
            _ => Ok(()),
        }
    }
}

impl Arrive {
    /// Open loop under a profile.
    #[must_use]
    pub const fn poisson(profile: Profile) -> Self {
        Self::Open { process: Process::Poisson, profile }
    }

    /// Open loop at equal distances.
    #[must_use]
    pub const fn constant(profile: Profile) -> Self {
        Self::Open { process: Process::Constant, profile }
    }

    pub(crate) fn duration(&self, closed_until: Nanos) -> Nanos {
        match self {
            Self::Open { profile, .. } => profile.duration(),
            Self::Trace { counts, period } => Nanos(period.0.saturating_mul(counts.len() as u64)),
            Self::Closed { .. } => closed_until,
        }
    }

    /// Most clients at a time, when none is answered before it gives up.
    fn peak(&self, timeout: f64) -> f64 {
        match self {
            Self::Open { profile, .. } => {
                let rates = profile.segments.iter().map(|s| s.from.max(s.to));
                (rates.fold(0.0, f64::max) * timeout).min(profile.expected())
            }
            Self::Trace { counts, period } => {
                let most = counts.iter().copied().max().unwrap_or(0) as f64;
                let periods = (timeout / period.as_secs_f64().max(1e-9)).ceil() + 1.0;
                (most * periods).min(counts.iter().sum::<u64>() as f64)
            }
            Self::Closed { clients } => f64::from(*clients),
        }
    }

    /// The times of all arrivals; none for a closed loop.
    pub(crate) fn times(&self, seed: u64, stream: u64) -> Box<dyn Iterator<Item = Nanos>> {
        let rng = Rng::new(seed, stream);
        match self {
            Self::Open { process, profile } => {
                // A plan from a file has not been through Profile::new, which cleans the rates.
                let profile = Profile::new(&profile.segments);
                Box::new(Arrivals::new(*process, profile, rng))
            }
            Self::Trace { counts, period } => Box::new(Trace::new(counts.clone(), *period, rng)),
            Self::Closed { .. } => Box::new(std::iter::empty()),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn plan(rate: f64) -> LoadPlan {
        let stream = Stream {
            name: "all".into(),
            arrive: Arrive::poisson(Profile::constant(Nanos::from_secs(100), rate)),
            target: "10.2.0.2:80".parse().unwrap(),
            sources: Sources { first: "10.16.0.0".parse().unwrap(), count: 1_000 },
            path: "/".into(),
            host: default_host(),
            dscp: 0,
            keep_alive: None,
            transport: Transport::Clear,
            manner: Manner::Plain,
            ports: None,
            abortive: false,
            mix: None,
            session: None,
            throttle: None,
        };
        LoadPlan { streams: vec![stream], ..LoadPlan::default() }
    }

    #[test]
    fn a_plan_that_contradicts_itself_is_named() {
        plan(1.0).check().unwrap();
        type Break = fn(&mut LoadPlan);
        let cases: [(Break, &str); 8] = [
            (|p| p.streams.clear(), "0 streams"),
            (|p| p.slot = Nanos::ZERO, "slot"),
            (|p| p.streams[0].sources.count = 0, "source"),
            (|p| p.streams[0].dscp = 64, "DSCP"),
            (|p| p.streams[0].path = "x".into(), "path"),
            (|p| p.streams[0].target = "[fd00::1]:80".parse().unwrap(), "families"),
            (|p| p.streams[0].arrive = Arrive::Closed { clients: 1 }, "closed_until"),
            (
                |p| p.phases.push(Phase { name: "x".into(), start: Nanos(2), end: Nanos(1) }),
                "phase x",
            ),
        ];
        for (change, word) in cases {
            let mut wrong = plan(1.0);
            change(&mut wrong);
            let message = wrong.check().unwrap_err().to_string();
            assert!(message.contains(word), "{word}: {message}");
        }
    }

    #[test]
    fn as_many_processes_as_waiting_clients_need() {
        assert_eq!(plan(100.0).shard_count(), 1);
        assert_eq!(plan(3_000.0).shard_count(), 2);
        let mut bound = plan(3_000.0);
        bound.streams[0].keep_alive = Some(KeepAlive { requests: 10, connections: 1_000 });
        assert_eq!(bound.shard_count(), 1);
    }

    #[test]
    fn a_padded_request_has_the_bytes_that_are_wanted() {
        let stream = plan(1.0).streams.remove(0);
        let bytes = |stream: &Stream| wire::request_bytes(stream, &stream.path, None).len();
        let least = bytes(&stream);
        for wanted in [least + 1, 300] {
            assert_eq!(bytes(&stream.clone().padded(wanted)), wanted);
        }
        assert_eq!(stream.clone().padded(least), stream);
    }

    #[test]
    fn sources_come_in_turn_in_both_families() {
        let v4 = Sources { first: "10.16.0.255".parse().unwrap(), count: 3 };
        assert_eq!(v4.get(1).to_string(), "10.16.1.0");
        assert_eq!(v4.get(3), v4.first);
        let v6 = Sources { first: "fd00::ffff".parse().unwrap(), count: 2 };
        assert_eq!(v6.get(1).to_string(), "fd00::1:0");
    }
}
