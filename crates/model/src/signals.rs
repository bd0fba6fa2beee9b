// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What was sensed in one tick: four families of signals, each reading with its age.
//!
//! A signal that could not be read is `None`; one that was read long ago says so by its age.
//! Neither ever tightens a limit (fail open).

use crate::RANKS;
use serde::{Deserialize, Serialize};
use tidegate_units::{Nanos, Share};

/// A value and how long ago it was true.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reading<T> {
    /// What was read.
    pub value: T,
    /// How old it is at the time of the tick.
    pub age: Nanos,
}

impl<T: Copy> Reading<T> {
    /// A reading of this very moment.
    pub const fn fresh(value: T) -> Self {
        Self { value, age: Nanos::ZERO }
    }

    /// The value if it is no older than `age_max`.
    pub fn within(&self, age_max: Nanos) -> Option<T> {
        (self.age <= age_max).then_some(self.value)
    }
}

/// All that was sensed of one service in one tick.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Signals {
    /// Time of the tick.
    pub now: Nanos,
    /// Time since the tick before: counts below are over this span.
    pub period: Nanos,
    /// Family 1: the resources that the service may use.
    pub resource: Resource,
    /// Family 2: queues in front of the service.
    pub queue: Queue,
    /// Family 3: response time and in-flight (one family, by Little's law).
    pub time: Time,
    /// Family 4: arrivals against completions.
    pub balance: Balance,
    /// The requests that rules put into buckets, in the order of the service's configuration;
    /// empty where the service has no rules.
    #[serde(default)]
    pub buckets: Vec<BucketSignals>,
    /// What the service's back-ends reported of themselves, in the order of the configuration;
    /// empty where the service runs on this host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backends: Vec<Backend>,
}

/// What one back-end reported of itself. Where its last report is not valid any more there are no
/// readings: lost reports age out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Backend {
    /// Name of the peer.
    pub peer: String,
    /// Whether its last report is still valid.
    pub valid: bool,
    /// Time since the last report that was accepted; `None` before the first.
    pub age: Option<Nanos>,
    /// Its resources.
    pub resource: Resource,
    /// Its queues.
    pub queue: Queue,
    /// Connections to which it owes an answer.
    pub waiting: Option<Reading<u64>>,
    /// Answers that it completed between its last two reports of which both count, per second.
    pub completed_per_s: Option<Reading<f64>>,
}

/// Family 1. Shares are of the CPUs and the cgroup that the service may use, not of the machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Resource {
    /// CPU time used, softirq included, over CPU time allowed.
    pub cpu: Option<Reading<Share>>,
    /// Share of one CPU that the thread used in which the service works, where it works in one; the
    /// mean over its processes (docs/decisions/0011-busiest-thread.md). `None`: it works in several
    /// threads of a process, or is not known.
    #[serde(default)]
    pub busiest_thread: Option<Reading<Share>>,
    /// PSI `some` of the service's cgroup (or the machine): share of time that a task waited for CPU.
    pub cpu_pressure: Option<Reading<Share>>,
    /// PSI `some` for memory.
    pub memory_pressure: Option<Reading<Share>>,
    /// PSI `some` for input and output.
    pub io_pressure: Option<Reading<Share>>,
    /// Bytes per second sent on the interfaces that the answers leave by.
    #[serde(default)]
    pub bandwidth: Option<Reading<f64>>,
}

/// Family 2.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Queue {
    /// Connections that wait for `accept`, all listeners of the service summed.
    pub accept: Option<Reading<AcceptQueue>>,
    /// Packets that wait in the interfaces that the answers leave by.
    #[serde(default)]
    pub interface: Option<Reading<InterfaceQueue>>,
}

/// Length and limit of an accept queue, in connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptQueue {
    /// Connections waiting.
    pub length: u64,
    /// Connections that fit.
    pub limit: u64,
}

/// Backlog of the queueing disciplines of the interfaces that answers leave by, in packets: the mean
/// over the last second of samples every 10 to 20 ms, for it changes within 20 ms. Of several
/// interfaces the one that is fullest for its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct InterfaceQueue {
    /// Packets waiting, on average.
    pub length: f64,
    /// Packets that fit.
    pub limit: f64,
}

/// What an interface has sent and dropped, and what waits there. Counters begin anew with another
/// queue; those of packets wrap at 32 bits, as the kernel's do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkUse {
    /// Name of the interface.
    pub interface: String,
    /// Number of the interface, and one for the queues that count: with other ones the counters are others.
    pub identity: (u32, u64),
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Packets sent.
    pub sent_packets: u32,
    /// Packets that the queue dropped, or marked instead (ECN).
    pub dropped_packets: u32,
    /// What waits now; `None`: nothing waits at this interface.
    pub queue: Option<InterfaceQueue>,
    /// Bytes per second that it can send: the rate of its shaper, or of the card; `None`: not known.
    pub capacity: Option<f64>,
}

/// Family 3, read passively from the packets of both directions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Time {
    /// Exchanges in flight: the service owes these connections a response. One at most for each
    /// connection; silent ones are not among them.
    pub waiting: Option<Reading<u64>>,
    /// Connections that are open (verified by their handshake).
    pub open: Option<Reading<u64>>,
    /// Open connections whose client has sent no request yet, and waits for nothing.
    #[serde(default)]
    pub silent: Option<Reading<u64>>,
    /// Open connections whose client is slow to send a request.
    #[serde(default)]
    pub slow: Option<Reading<u64>>,
    /// How long a turn of a busy proxy's loop takes, on average over time; 0: none is seen. Absent without gateways.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_turn: Option<Reading<Nanos>>,
    /// First bytes of responses seen in this period, and their response times: of exchanges.
    pub first_byte: Option<Reading<Times>>,
    /// Connections that ended in this period, and their durations.
    pub end: Option<Reading<Times>>,
}

/// Count, sum and quantiles of the times that were measured in one period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// How many.
    pub count: u64,
    /// Their sum.
    pub sum: Nanos,
    /// Median, from a histogram with a relative error of about 6 %; zero when there were none.
    pub p50: Nanos,
    /// 99th percentile, likewise.
    pub p99: Nanos,
}

impl Times {
    /// Mean in seconds, if there were any.
    #[must_use]
    pub fn mean_s(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum.as_secs_f64() / self.count as f64)
    }
}

/// Family 4: counts of this period, from the dataplane; `None` when it could not be read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Balance {
    /// The counts.
    pub counts: Option<Reading<Counts>>,
}

/// What arrived and what became of it, in one period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// New work: SYNs without a socket, retransmissions of refused ones included.
    pub offered: u64,
    /// Of these, those that are known to be repetitions of a refused SYN.
    pub repeated: u64,
    /// Admitted (in shadow mode: all of the offered).
    pub admitted: u64,
    /// Refused, by drop or reject (in shadow mode: what would have been).
    pub refused: u64,
    /// Of these, those that a remote limit on requests has refused; `None`: they are not told apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused_remote: Option<u64>,
    /// Exchanges completed: first bytes of responses to admitted work.
    pub completed: u64,
    /// Exchanges that completed beside these, and whose time cannot be told from the packets: slow
    /// uploads, early data, responses to what was not recognised as a request.
    #[serde(default)]
    pub unknown: u64,
    /// Connections that went out of sight before their response: not seen is not lost.
    #[serde(default)]
    pub unseen: u64,
    /// What became of connections; `None` where the source cannot tell them from exchanges: then
    /// each exchange is taken for a connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<ConnectionCounts>,
}

impl Counts {
    /// All exchanges that completed, also those whose time is not known.
    #[must_use]
    pub const fn done(&self) -> u64 {
        self.completed.saturating_add(self.unknown)
    }
}

/// What became of connections in one period; each is counted once in each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionCounts {
    /// SYNs that the server replied to by a SYN-ACK.
    pub replied: u64,
    /// Handshakes that the client completed.
    pub proved: u64,
    /// Connections that sent a first request.
    pub asked: u64,
    /// Connections that got the first byte of their first response.
    pub answered: u64,
    /// Connections that asked and ended without a response.
    pub lost: u64,
    /// Of the answered, those that ended.
    pub ended: u64,
    /// Exchanges that these had.
    pub ended_exchanges: u64,
}

/// What was sensed of the requests of one bucket.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BucketSignals {
    /// Counts of this period.
    pub counts: Option<Reading<BucketCounts>>,
    /// Requests that were admitted and are not answered yet.
    pub in_flight: Option<Reading<u64>>,
    /// First bytes of answers seen in this period, and their response times.
    pub first_byte: Option<Reading<Times>>,
    /// Answers that were complete in this period, and the times from request to their end.
    pub end: Option<Reading<Times>>,
}

/// What arrived at a bucket and what became of it, in one period. Ranks: see [`RANKS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketCounts {
    /// Requests, by rank.
    pub offered: [u64; RANKS],
    /// Refused, by rank (in shadow mode: what would have been).
    pub refused: [u64; RANKS],
    /// Of the refused those that were the first request of their connection: that connection was
    /// admitted as a SYN, and did nothing else.
    pub refused_first: u64,
    /// Requests that were handed to the server.
    pub begun: u64,
    /// Requests whose answer is complete, or whose connection ended.
    pub ended: u64,
}

/// The four families; the default controller sheds only when two of them agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// CPU, PSI, memory, disk.
    Resource,
    /// Accept queue, interface queue.
    Queue,
    /// Response time, in-flight.
    Time,
    /// Arrivals above completions, sustained.
    Balance,
}
