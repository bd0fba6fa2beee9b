// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One setting. The defaults are the paper's where it prints a number (table I, section 5), else ours with
//! a reason.

use super::SERVERS;
use tidegate_policy::{CongestionSpec, PushbackSpec};
use tidegate_units::{Nanos, Share};

/// What protects servers and network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Nothing: what arrives at S0 above its rate is of no use, but nobody drops it.
    None,
    /// Each server drops what is above its rate.
    ServerOnly,
    /// And gives its whole rate as a limit to all routers within so many links (section 2.1).
    Naive(u32),
    /// As published: marks, options, statistics of samples.
    InBand,
    /// Ours: routers send notices with their counts.
    OutOfBand,
}

/// The two halves of S0's clients take turns: those of one side send so many times as much.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shift {
    /// How long a turn lasts.
    pub period: Nanos,
    /// How much more the side sends whose turn it is.
    pub times: f64,
}

/// One setting.
#[derive(Clone, Debug, PartialEq)]
pub struct NetdrainoSpec {
    /// Seed: times, losses, marks.
    pub seed: u64,
    /// How long the run lasts.
    pub lasts: Nanos,
    /// What is in force.
    pub control: Control,
    /// Clients.
    pub clients: u32,
    /// TCP connections of a client to S0, and to each other server.
    pub connections: (u32, u32),
    /// How many servers are overloaded: S0, and others of which each then has the same part of S0's load and limits.
    pub overloaded: u32,
    /// UDP of a client to S0, and to each other server, packets per second.
    pub udp: (f64, f64),
    /// Packets per second of a connection while it is on. Not printed. With 0.6, a third of the time, the
    /// network is full from 40 connections a client on, as in figure 10.
    pub on_rate: f64,
    /// S0's limits: TCP and UDP, packets per second. The sum is printed (400 in 5.1, 450 in 5.2), its
    /// division stands in figure 8, which we do not have: halves.
    pub rates: (f64, f64),
    /// Packets per second of both bottlenecks together.
    pub network: f64,
    /// Packets that wait in front of each.
    pub queue: u32,
    /// k.
    pub k: f64,
    /// When a link is congested.
    pub congestion: CongestionSpec,
    /// How limits age. Neither δ nor the number of steps is printed.
    pub pushback: PushbackSpec,
    /// p_a.
    pub append: f64,
    /// Share of the packets that a congested router marks. Not printed ("randomly").
    pub mark: f64,
    /// Estimated packets after which a rule is sent. Not printed.
    pub samples: u64,
    /// Length and age of `CServs`. Not printed ("usually small").
    pub cservs: (usize, Nanos),
    /// Least limit of a router.
    pub min_rate: f64,
    /// Turns of S0's clients.
    pub shift: Option<Shift>,
    /// Packets to clients go another way than past R0 and R1.
    pub asymmetric: bool,
    /// Clients relay SCN (section 4.1).
    pub relay: bool,
    /// So many of the clients forge: each of their packets has the mark of a congested router, and options of both
    /// routers, each time with another sequence number.
    pub forging: u32,
}

impl NetdrainoSpec {
    /// Table I, with ours for what is not printed. Congestion is that of [`Control::OutOfBand`]; in band it
    /// is published ([`Self::published`]).
    #[must_use]
    pub fn new(seed: u64, control: Control) -> Self {
        let share = Share::new;
        let congestion = CongestionSpec {
            queue: 15.0,
            weight: share(0.002),
            drops: share(0.01),
            rate: share(0.95),
            fits: share(0.9),
            calm: Nanos::SECOND,
        };
        // δ (steps + 1) is the longest validity of a remote limit, 10 s.
        let pushback =
            PushbackSpec { delta: Nanos::from_secs(2), steps: 4, burst: Nanos::from_millis(100) };
        Self {
            seed,
            lasts: Nanos::from_secs(60),
            control,
            clients: 25,
            connections: (100, 10),
            overloaded: 1,
            udp: (18.0, 4.0),
            on_rate: 0.6,
            rates: (200.0, 200.0),
            network: 900.0,
            queue: 30,
            k: 1.2,
            congestion,
            pushback,
            append: 0.1,
            mark: 0.1,
            samples: 200,
            cservs: (8, Nanos::from_secs(5)),
            min_rate: 5.0,
            shift: None,
            asymmetric: false,
            relay: false,
            forging: 0,
        }
    }

    /// The published sign of congestion: the average queue above this.
    #[must_use]
    pub fn published(queue: f64) -> CongestionSpec {
        CongestionSpec::published(queue, 0.002)
    }

    /// The rate of a class; none: not limited.
    pub(super) fn rate(&self, class: usize) -> Option<f64> {
        let (server, of) =
            (class / 2, if class.is_multiple_of(2) { self.rates.0 } else { self.rates.1 });
        (server < self.overloaded as usize).then(|| of / f64::from(self.overloaded))
    }

    /// Connections and datagrams per second of a client to a server.
    pub(super) fn load(&self, server: usize) -> (u32, f64) {
        debug_assert!(server < SERVERS);
        if server < self.overloaded as usize {
            (self.connections.0 / self.overloaded, self.udp.0 / f64::from(self.overloaded))
        } else {
            (self.connections.1, self.udp.1)
        }
    }
}
