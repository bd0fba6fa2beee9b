// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client machine: when it sends its next request, and by which schedule its SYNs.

use super::node::Told;
use super::spec::{ClientSpec, Spec, Spread};
use tidegate_units::{Nanos, Random};
use tidegate_workload::{Mixture, Rng, Schedule, Sessions, Trace};

/// Streams of random numbers of one seed.
pub(super) mod streams {
    pub(in super::super) const INTERFACE: u64 = 0;
    pub(in super::super) const FEEDBACK: u64 = 1;
    pub(in super::super) const FORGER: u64 = 2;
    pub(in super::super) const NODES: u64 = 1 << 8;
    pub(in super::super) const CLIENTS: u64 = 1 << 16;
}

/// Times at which requests come that nobody throttles, from the client's start.
enum Times {
    Constant { interval: Nanos, next: Nanos },
    Trace(Box<Trace>),
}

impl Times {
    /// Those of a client that sends for so long.
    fn new(spread: Spread, rate: f64, lasts: Nanos, rng: &mut Rng) -> Option<Self> {
        if rate <= 0.0 {
            return None;
        }
        match spread {
            Spread::Constant => {
                let interval = Nanos::from_secs_f64(1.0 / rate);
                let next = Nanos::from_secs_f64(rng.next_f64() / rate);
                Some(Self::Constant { interval, next })
            }
            Spread::Sessions { hurst, slot } => {
                let sessions = Sessions::new(rate * slot.as_secs_f64(), hurst)?;
                let slots = lasts.0.div_ceil(slot.0) as usize;
                let counts = sessions.counts(slots, rng);
                Some(Self::Trace(Box::new(Trace::new(counts, slot, rng.clone()))))
            }
        }
    }

    fn next(&mut self) -> Option<Nanos> {
        match self {
            Self::Constant { interval, next } => {
                let at = *next;
                *next += *interval;
                Some(at)
            }
            Self::Trace(trace) => trace.next(),
        }
    }
}

/// See the module.
pub(super) struct Client {
    pub(super) spec: ClientSpec,
    /// Place of its control node, where it has one.
    pub(super) node: Option<usize>,
    /// What the server told it, where it throttles itself.
    pub(super) told: Told,
    start: Nanos,
    times: Option<Times>,
    /// By how much its requests are later than unthrottled ones.
    shift: Nanos,
    draws: Rng,
}

impl Client {
    pub(super) fn new(spec: &Spec, index: usize, node: Option<usize>) -> Self {
        let own = spec.clients[index];
        let start = if own.priority == 0 { Nanos::ZERO } else { spec.lead };
        // Two streams, so that arrivals do not move when the schedules do.
        let stream = streams::CLIENTS + 2 * index as u64;
        let mut rng = Rng::new(spec.seed, stream);
        let lasts = spec.until().since(start);
        Self {
            spec: own,
            node,
            told: Told::default(),
            start,
            times: Times::new(spec.spread, own.rate, lasts, &mut rng),
            shift: Nanos::ZERO,
            draws: Rng::new(spec.seed, stream + 1),
        }
    }

    /// When it sends the next request; `gap`: so much later than after an ordinary interval.
    pub(super) fn next(&mut self, gap: Nanos) -> Option<Nanos> {
        self.shift += gap;
        let at = self.times.as_mut()?.next()?;
        Some(self.start + at + self.shift)
    }

    /// The schedule of its next request.
    pub(super) fn schedule(&mut self, mixture: &Mixture) -> &'static Schedule {
        mixture.draw(&mut self.draws)
    }
}
