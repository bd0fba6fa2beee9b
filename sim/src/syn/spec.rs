// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is simulated: clients, jitter, capacity, cost.

use super::check::Broken;
use tidegate_units::{Nanos, Rate};
use tidegate_workload::{Jitter, Mixture, OnReset, Schedule};

/// Kinds of clients in one run.
pub(super) const KINDS_MAX: usize = 16;
/// SYNs of one client, resets included.
pub(super) const ATTEMPTS_MAX: usize = 64;
/// Longest time between two SYNs of a client, and longest jitter: bounds the queues.
const GAP_MAX: Nanos = Nanos::from_secs(1 << 10);

/// One kind of client and its weight in the mixture.
#[derive(Clone, Copy, Debug)]
pub struct Clients {
    /// When it sends, when it gives up, what it does after a RST.
    pub schedule: Schedule,
    /// Weight, relative to the others; above 0.
    pub weight: f64,
}

/// How the tokens of the protected server arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refill {
    /// Evenly.
    Continuous,
    /// All at once, at every whole multiple of this time.
    Every(Nanos),
}

/// What may be admitted: at most `burst + rate·t` in any time t. The checker's own account; the
/// filter has its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// Tokens per second.
    pub rate: Rate,
    /// Depth, in tokens.
    pub burst: u32,
    /// How tokens arrive.
    pub refill: Refill,
}

impl Capacity {
    /// Tokens that arrive continuously.
    #[must_use]
    pub const fn continuous(rate: Rate, burst: u32) -> Self {
        Self { rate, burst, refill: Refill::Continuous }
    }
}

/// The paper's economy (section 4.2).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// r: of a rejection, and of a time-out on top of its delay.
    pub reject: f64,
    /// h: of one second of delay.
    pub delay: f64,
}

/// One run.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Kinds of clients; 1 to 16.
    pub clients: Vec<Clients>,
    /// When a client gives up, counted from its first SYN; `None`: as its schedule says.
    pub timeout: Option<Nanos>,
    /// How far SYNs stray from the schedule. The delay's deviation lies around zero here: first
    /// SYNs come when the arrival process says.
    pub jitter: Jitter,
    /// What may be admitted; `None`: the checker of capacity has nothing to compare with.
    pub capacity: Option<Capacity>,
    /// What delays and refusals cost.
    pub cost: Cost,
    /// Counts per bin of this width (1 µs at least); `None`: no series.
    pub series: Option<Nanos>,
}

impl Spec {
    /// Section 6 of the paper: classic clients, its jitter, 120/s with 120 tokens, r = 75, h = 1.
    #[must_use]
    pub fn paper() -> Self {
        let classic = Schedule::named("classic").copied();
        Self {
            clients: classic
                .map(|schedule| Clients { schedule, weight: 1.0 })
                .into_iter()
                .collect(),
            timeout: Some(Nanos::from_secs(75)),
            jitter: Jitter::PAPER,
            capacity: Some(Capacity::continuous(Rate::per_second(120.0), 120)),
            cost: Cost { reject: 75.0, delay: 1.0 },
            series: None,
        }
    }

    /// The same with one kind of clients, who give up as their schedule says.
    #[must_use]
    pub fn with_clients(mut self, schedule: Schedule) -> Self {
        self.clients = vec![Clients { schedule, weight: 1.0 }];
        self.timeout = None;
        self
    }

    /// The same with these kinds of clients (those of weight 0 left out), who give up as their
    /// schedules say.
    #[must_use]
    pub fn with_mixture(mut self, mixture: &Mixture) -> Self {
        let clients = |(schedule, weight): &(&'static Schedule, f64)| Clients {
            schedule: **schedule,
            weight: *weight,
        };
        let present = mixture.parts().iter().filter(|(_, weight)| *weight > 0.0);
        self.clients = present.map(clients).collect();
        self.timeout = None;
        self
    }
}

/// One kind of client, computed once.
#[derive(Clone, Debug)]
pub(super) struct Kind {
    /// Nanoseconds from the k-th SYN to the next.
    pub(super) gaps: Vec<u64>,
    /// Nanoseconds from the first SYN until the client gives up.
    pub(super) gives_up: u64,
    /// Pause before the SYN that follows a RST; `None`: a RST ends the request.
    pub(super) again: Option<u64>,
    /// Upper bound of the draw (0 … 2³²) that chooses this kind.
    pub(super) share: u64,
}

/// A checked [`Spec`].
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) kinds: Vec<Kind>,
    pub(super) jitter: Jitter,
    /// Largest time from one SYN to the next, jitter included.
    pub(super) reach: u64,
}

impl Plan {
    pub(super) fn new(spec: &Spec) -> Result<Self, Broken> {
        let total: f64 = spec.clients.iter().map(|c| c.weight).sum();
        let weights = spec.clients.iter().all(|c| c.weight.is_finite() && c.weight > 0.0);
        if spec.clients.is_empty() || spec.clients.len() > KINDS_MAX || !weights {
            return Err(Broken::Spec("1 to 16 kinds of clients, with weights above 0"));
        }
        let mut kinds = Vec::with_capacity(spec.clients.len());
        let mut sum = 0.0;
        for clients in &spec.clients {
            sum += clients.weight;
            // 2³² at the end, so that every draw below it finds a kind
            let share = (sum / total * (1_u64 << 32) as f64) as u64;
            kinds.push(Kind { share, ..kind(&clients.schedule, spec.timeout)? });
        }
        if let Some(last) = kinds.last_mut() {
            last.share = 1 << 32;
        }
        let jitter = spec.jitter;
        let stray = jitter.rto_first.max(jitter.rto_later) + jitter.delay + jitter.delay;
        if stray > GAP_MAX {
            return Err(Broken::Spec("a jitter of more than 1024 s"));
        }
        let longest = |kind: &Kind| kind.gaps.iter().copied().chain(kind.again).max();
        let reach = kinds.iter().filter_map(longest).max().unwrap_or(0) + stray.0;
        Ok(Self { kinds, jitter, reach })
    }

    /// The kind that a draw of 32 bits chooses.
    pub(super) fn kind(&self, draw: u64) -> u8 {
        self.kinds.iter().position(|kind| draw < kind.share).unwrap_or(0) as u8
    }

    /// The waits of all clients before attempts 1, 2, …, if they are the same for all and exact.
    pub(super) fn exact_gaps(&self) -> Option<&[u64]> {
        match self.kinds.as_slice() {
            [one] if one.again.is_none() && self.jitter == Jitter::NONE => Some(&one.gaps),
            _ => None,
        }
    }
}

fn kind(schedule: &Schedule, timeout: Option<Nanos>) -> Result<Kind, Broken> {
    let times: Vec<Nanos> = (0..=ATTEMPTS_MAX).map_while(|n| schedule.at(n)).collect();
    let rising = times.windows(2).all(|pair| pair[0] < pair[1]);
    if times.is_empty() || times.len() > ATTEMPTS_MAX || !rising {
        return Err(Broken::Spec("a schedule must have 1 to 64 rising times"));
    }
    let gaps: Vec<u64> = times.windows(2).map(|pair| pair[1].since(pair[0]).0).collect();
    let gives_up = timeout.unwrap_or(Nanos::from_millis(u64::from(schedule.gives_up_ms)));
    let again = match schedule.on_reset {
        OnReset::Again(pause) => Some(pause.0),
        OnReset::Fail => None,
    };
    if gaps.iter().copied().chain(again).any(|gap| gap > GAP_MAX.0) || gives_up > GAP_MAX {
        return Err(Broken::Spec("a schedule with waits of more than 1024 s"));
    }
    Ok(Kind { gaps, gives_up: gives_up.0, again, share: 0 })
}
