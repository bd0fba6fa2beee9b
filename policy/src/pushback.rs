// SPDX-License-Identifier: Apache-2.0 OR MIT
//! NetDraino for native host programs: whether a link is congested and what comes for whom
//! (`policy/router/congestion.h`), how a server divides its rate among routers (`tailor.h`), and a
//! router's limit as soft state (`pushback.h`).
#![allow(unsafe_code, reason = "the policies are C")]

use crate::abi::{
    self, CongestionParams, LinkTick as RawTick, PushbackParams, PushbackState, TailorParams,
    TailorPart, Verdict as RawVerdict,
};
use crate::{Event, Verdict};
use tidegate_units::{Nanos, Rate, Share};

const SHARE_ONE: f64 = 65_536.0;

fn share(share: Share) -> u32 {
    (share.get() * SHARE_ONE) as u32
}

fn per_second(milli: u64) -> Rate {
    Rate::per_second(milli as f64 / 1e3)
}

/// When a link is congested (`struct tg_congestion_params`). A sign that is 0 is not looked at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CongestionSpec {
    /// Average queue in packets above this.
    pub queue: f64,
    /// Weight of the present queue in the average.
    pub weight: Share,
    /// Share of the packets that the queue drops above this.
    pub drops: Share,
    /// Share of the shaped rate that is used from here on.
    pub rate: Share,
    /// It ends when what is offered, with what limits refuse, is below this share of the shaped rate …
    pub fits: Share,
    /// … for so long.
    pub calm: Nanos,
}

impl CongestionSpec {
    /// By the average queue alone, as published.
    #[must_use]
    pub fn published(queue: f64, weight: f64) -> Self {
        let (weight, zero) = (Share::new(weight), Share::ZERO);
        Self { queue, weight, drops: zero, rate: zero, fits: zero, calm: Nanos::ZERO }
    }

    fn compile(&self) -> CongestionParams {
        CongestionParams {
            queue_milli: (self.queue.clamp(0.0, 1e6) * 1e3) as u32,
            weight: share(self.weight),
            drops: share(self.drops),
            rate: share(self.rate),
            fits: share(self.fits),
            pad: 0,
            calm_ns: self.calm.0,
        }
    }
}

/// What a link did lately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkTick {
    /// Since the tick before.
    pub elapsed: Nanos,
    /// The shaped rate times the time over which was counted; 0: not known.
    pub capacity_bytes: u64,
    /// Sent.
    pub sent_bytes: u64,
    /// Dropped by the queue.
    pub dropped_bytes: u64,
    /// Refused by limits, in front of the queue.
    pub refused_bytes: u64,
    /// Packets that came to the queue.
    pub packets: u32,
    /// Of these dropped.
    pub dropped: u32,
}

/// Whether a link of a router is congested (`struct tg_congestion`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Congestion {
    params: CongestionParams,
    state: abi::Congestion,
}

impl Congestion {
    /// A link of which nothing is known.
    #[must_use]
    pub fn new(spec: &CongestionSpec) -> Self {
        Self { params: spec.compile(), state: abi::Congestion::default() }
    }

    /// A packet comes while so many wait.
    pub fn queue(&mut self, waiting: usize) {
        let waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
        // SAFETY: both structures are the C ones; the state is exclusively borrowed.
        unsafe {
            abi::tg_native_congestion_queue(&raw const self.params, &raw mut self.state, waiting);
        }
    }

    /// So many wait. The look has a weight of its own: of the time since the one before.
    pub fn look(&mut self, waiting: usize, weight: Share) {
        let waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
        // SAFETY: as in `queue`.
        unsafe { abi::tg_native_congestion_look(&raw mut self.state, waiting, share(weight)) }
    }

    /// Nobody knows any more what the link does: it is not congested.
    pub fn unknown(&mut self) {
        // SAFETY: as in `queue`.
        unsafe { abi::tg_native_congestion_unknown(&raw mut self.state) }
    }

    /// Whether the average queue is above its threshold, as published.
    #[must_use]
    pub fn is_long(&self) -> bool {
        let (params, state) = (&raw const self.params, &raw const self.state);
        // SAFETY: as in `queue`, read only.
        unsafe { abi::tg_native_congestion_is_long(params, state) != 0 }
    }

    /// A tick has ended. Whether the link is congested.
    pub fn tick(&mut self, seen: &LinkTick) -> bool {
        let raw = RawTick {
            elapsed_ns: seen.elapsed.0,
            capacity_bytes: seen.capacity_bytes,
            sent_bytes: seen.sent_bytes,
            dropped_bytes: seen.dropped_bytes,
            refused_bytes: seen.refused_bytes,
            packets: seen.packets,
            dropped: seen.dropped,
        };
        let (params, state) = (&raw const self.params, &raw mut self.state);
        // SAFETY: as in `queue`.
        unsafe { abi::tg_native_congestion_tick(params, state, &raw const raw) != 0 }
    }

    /// Whether it was congested at the last tick.
    #[must_use]
    pub const fn is_congested(&self) -> bool {
        self.state.congested != 0
    }

    /// How often it has begun.
    #[must_use]
    pub const fn sequence(&self) -> u32 {
        self.state.sequence
    }

    /// The signs of the last tick: queue, drops, rate.
    #[must_use]
    pub const fn signs(&self) -> [bool; 3] {
        let signs = self.state.signs;
        [
            signs & abi::TG_SIGN_QUEUE != 0,
            signs & abi::TG_SIGN_DROPS != 0,
            signs & abi::TG_SIGN_RATE != 0,
        ]
    }
}

/// What comes for one destination, and what limits refuse of it (`struct tg_offered`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offered {
    state: abi::Offered,
}

impl Offered {
    /// Something comes.
    pub fn add(&mut self, refused: bool) {
        // SAFETY: the structure is the C one, and is exclusively borrowed.
        unsafe { abi::tg_native_offered_add(&raw mut self.state, refused.into()) }
    }

    /// A tick of so long has ended; `weight` is its weight in the averages.
    pub fn tick(&mut self, elapsed: Nanos, weight: Share) {
        // SAFETY: as in `add`.
        unsafe { abi::tg_native_offered_tick(&raw mut self.state, elapsed.0, share(weight)) }
    }

    /// What comes, per second, with what is refused.
    #[must_use]
    pub fn offered(&self) -> Rate {
        per_second(self.state.offered_milli)
    }

    /// What is refused, per second.
    #[must_use]
    pub fn refused(&self) -> Rate {
        per_second(self.state.refused_milli)
    }
}

/// How a server divides its rate (`struct tg_tailor_params`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TailorSpec {
    /// The server's own limit.
    pub rate: Rate,
    /// No router gets less, but for the rate itself.
    pub min_rate: Rate,
    /// k.
    pub k: f64,
}

/// What a router says of one destination.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Part {
    /// What comes to it, with what it refuses.
    pub offered: Rate,
    /// What its limit refuses of that.
    pub refused: Rate,
    /// The place of the next router towards the server.
    pub before: Option<usize>,
}

impl TailorSpec {
    /// Most routers of one server.
    pub const ROUTERS: usize = abi::TAILOR_ROUTERS;

    fn compile(&self) -> TailorParams {
        TailorParams {
            rate_milli: self.rate.as_milli(),
            min_rate_milli: self.min_rate.as_milli(),
            k_milli: (self.k.clamp(0.0, 16.0) * 1e3).round() as u32,
            pad: 0,
        }
    }

    /// The limit of each router, by what all say and what arrives at the server. Of more than
    /// [`Self::ROUTERS`] the first ones count.
    #[must_use]
    pub fn limits(&self, parts: &[Part], arrived: Rate) -> Vec<Rate> {
        let place = |before: usize| u32::try_from(before + 1).unwrap_or(0);
        let raw: Vec<TailorPart> = parts
            .iter()
            .take(Self::ROUTERS)
            .map(|part| TailorPart {
                offered_milli: part.offered.as_milli(),
                refused_milli: part.refused.as_milli(),
                before: part.before.map_or(0, place),
                pad: 0,
            })
            .collect();
        let (n, arrived, params) = (raw.len(), arrived.as_milli(), self.compile());
        let mut demand = abi::Tailor::default();
        // SAFETY: the pointers are to `n` parts and to the C structures; n is at most ROUTERS.
        unsafe { abi::tg_native_tailor_demand(&raw mut demand, raw.as_ptr(), n as u32, arrived) };
        let limit = |here: &u64| {
            // SAFETY: the structure is the C one, read only.
            let milli =
                unsafe { abi::tg_native_tailor_limit(&raw const params, *here, demand.all_milli) };
            per_second(milli)
        };
        demand.demand_milli[..n].iter().map(limit).collect()
    }

    /// The limit by the share of what arrives at the server, as published: `from` of `total`.
    #[must_use]
    pub fn published(&self, from: u64, total: u64) -> Rate {
        let params = self.compile();
        // SAFETY: the structure is the C one, read only.
        per_second(unsafe { abi::tg_native_tailor_published(&raw const params, from, total) })
    }
}

/// How limits of servers age at a router (`struct tg_pushback_params`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushbackSpec {
    /// δ.
    pub delta: Nanos,
    /// Steps towards the whole rate.
    pub steps: u32,
    /// Depth of the bucket, in time at the rate.
    pub burst: Nanos,
}

impl PushbackSpec {
    /// The shortest time to live that holds all steps.
    #[must_use]
    pub const fn ttl_min(&self) -> Nanos {
        Nanos(self.delta.0 * (self.steps as u64 + 1))
    }
}

/// Why a limit is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushbackError {
    /// The rate is 0, too high, or above the whole.
    Rate,
    /// The time to live does not hold all steps.
    Ttl,
    /// δ or the steps are out of range.
    Params,
}

/// The limit of one server at a router (`struct tg_pushback_state`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pushback {
    params: PushbackParams,
    state: PushbackState,
}

impl Pushback {
    /// No limit yet.
    #[must_use]
    pub fn new(spec: &PushbackSpec) -> Self {
        let params = PushbackParams {
            delta_ns: spec.delta.0,
            burst_ns: spec.burst.0,
            steps: spec.steps,
            pad: 0,
        };
        Self { params, state: PushbackState::default() }
    }

    /// A limit comes, of a server whose whole rate is this: it takes the place of the one before.
    ///
    /// # Errors
    /// Why it is not taken; then nothing changes.
    pub fn install(
        &mut self,
        (rate, whole): (Rate, Rate),
        ttl: Nanos,
        now: Nanos,
    ) -> Result<(), PushbackError> {
        let (params, state) = (&raw const self.params, &raw mut self.state);
        let (rate, whole) = (rate.as_milli(), whole.as_milli());
        // SAFETY: both structures are the C ones; the state is exclusively borrowed.
        match unsafe { abi::tg_native_pushback_install(params, state, rate, whole, ttl.0, now.0) } {
            0 => Ok(()),
            1 => Err(PushbackError::Rate),
            2 => Err(PushbackError::Ttl),
            _ => Err(PushbackError::Params),
        }
    }

    /// The rate that holds now; none: there is no limit. An idle router has none.
    pub fn rate(&mut self, now: Nanos, idle: bool) -> Option<Rate> {
        let (params, state) = (&raw const self.params, &raw mut self.state);
        // SAFETY: as in `install`.
        let milli = unsafe { abi::tg_native_pushback_rate(params, state, now.0, idle.into()) };
        (milli > 0).then(|| per_second(milli))
    }

    /// The verdict on what comes for the server.
    #[must_use]
    pub fn admit(&mut self, event: &Event) -> Verdict {
        let mut raw = RawVerdict::default();
        let (params, state) = (&raw const self.params, &raw mut self.state);
        // SAFETY: all structures are the C ones; the state is exclusively borrowed.
        unsafe { abi::tg_native_pushback_admit(params, state, event, &mut raw) };
        raw.into()
    }
}
