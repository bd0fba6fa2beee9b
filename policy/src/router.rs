// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a router measures and decides, for native host programs (`policy/router`): the rate of a
//! connection, durations by size class, hot spots, and the limit on new connections in a flash crowd.
#![allow(unsafe_code, reason = "the policies are C")]

use crate::abi::{
    self, CROWD_LIMITS, CrowdParams, CrowdState, DURATION_BUCKETS, Event, HOT_SHARE_ONE,
    HotAgedParams, HotList, SIZE_CLASSES, TswParams, Verdict as RawVerdict,
};
use crate::{BucketSpec, ParamsError, Verdict};
use tidegate_units::{Nanos, Share};

/// How the rate of a connection is smoothed (`struct tg_tsw_params`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TswSpec {
    params: TswParams,
}

impl TswSpec {
    /// A window, 1 ns to 4 s (what is longer is 4 s; zero measures nothing), and how many packets of a
    /// connection are skipped first.
    #[must_use]
    pub fn new(window: Nanos, skip: u32) -> Self {
        Self { params: TswParams { window_ns: window.0, skip, pad: 0 } }
    }
}

/// The rate of one connection (`struct tg_tsw`); the default has seen nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tsw {
    state: abi::Tsw,
}

impl Tsw {
    /// A packet of so many bytes.
    pub fn add(&mut self, spec: &TswSpec, now: Nanos, bytes: u32) {
        // SAFETY: both structures are the C ones; the state is exclusively borrowed.
        unsafe { abi::tg_native_tsw_add(&raw const spec.params, &raw mut self.state, now.0, bytes) }
    }

    /// Bytes per second as of the last packet.
    #[must_use]
    pub const fn last(&self) -> u32 {
        self.state.rate
    }

    /// Bytes per second as of now, if nothing has come since the last packet.
    #[must_use]
    pub fn rate(&self, spec: &TswSpec, now: Nanos) -> u32 {
        // SAFETY: as in `add`, read only.
        unsafe { abi::tg_native_tsw_rate(&raw const spec.params, &raw const self.state, now.0) }
    }
}

/// How long exchanges took, by the size of the response (`struct tg_durations`, 4 KiB).
#[derive(Clone, PartialEq, Eq)]
pub struct Durations {
    counts: Box<abi::Durations>,
}

impl std::fmt::Debug for Durations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sum: u64 = self.counts.count.iter().flatten().map(|n| u64::from(*n)).sum();
        write!(f, "Durations({sum} exchanges)")
    }
}

impl Default for Durations {
    fn default() -> Self {
        let count = [[0; DURATION_BUCKETS]; SIZE_CLASSES];
        Self { counts: Box::new(abi::Durations { count }) }
    }
}

impl Durations {
    /// Size classes.
    pub const CLASSES: usize = SIZE_CLASSES;
    /// Buckets of a class.
    pub const BUCKETS: usize = DURATION_BUCKETS;

    /// An exchange whose response had so many bytes took so long.
    pub fn add(&mut self, bytes: u64, took: Nanos) {
        // SAFETY: the structure is the C one, and is exclusively borrowed.
        unsafe { abi::tg_native_durations_add(&raw mut *self.counts, bytes, took.0 / 1000) }
    }

    /// The counts of a class by bucket; of the last one for a class that there is not.
    #[must_use]
    pub fn class(&self, class: usize) -> &[u32; DURATION_BUCKETS] {
        &self.counts.count[class.min(SIZE_CLASSES - 1)]
    }

    /// The class of a response.
    #[must_use]
    pub fn class_of(bytes: u64) -> usize {
        // SAFETY: plain numbers.
        unsafe { abi::tg_native_size_class(bytes) as usize }
    }

    /// Responses of a class, and of those before it, have fewer bytes than this; `None` of the last one.
    #[must_use]
    pub fn class_below(class: usize) -> Option<u64> {
        (0..u64::BITS).map(|log| 1 << log).find(|bytes| Self::class_of(*bytes) > class)
    }

    /// The bucket of a duration.
    #[must_use]
    pub fn bucket_of(took: Nanos) -> usize {
        // SAFETY: plain numbers.
        unsafe { abi::tg_native_duration_bucket(took.0 / 1000) as usize }
    }

    /// The shortest duration of a bucket; zero of the first.
    #[must_use]
    pub fn from(bucket: usize) -> Nanos {
        let bucket = u32::try_from(bucket).unwrap_or(u32::MAX);
        // SAFETY: plain numbers.
        Nanos::from_micros(unsafe { abi::tg_native_duration_from_us(bucket) })
    }
}

fn share_code(share: Share) -> u32 {
    (share.get() * f64::from(HOT_SHARE_ONE)) as u32
}

/// Hot spots by Space-Saving counters (`struct tg_hot_list`): guaranteed heavy hitters. Keys are hashes
/// of destinations; 0 is nobody.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HotSpots {
    list: HotList,
}

impl HotSpots {
    /// Keys that are counted at once.
    pub const ENTRIES: usize = abi::HOT_ENTRIES;

    /// One new connection to this destination.
    pub fn hit(&mut self, key: u64) {
        // SAFETY: the structure is the C one, and is exclusively borrowed.
        unsafe { abi::tg_native_hot_hit(&raw mut self.list, key) }
    }

    /// Halves all counts: once an interval.
    pub fn fade(&mut self) {
        // SAFETY: as in `hit`.
        unsafe { abi::tg_native_hot_fade(&raw mut self.list) }
    }

    /// A connection to this destination was admitted.
    pub fn admitted(&mut self, key: u64) {
        // SAFETY: as in `hit`.
        unsafe { abi::tg_native_hot_admitted(&raw mut self.list, key) }
    }

    /// Hits that are certainly of this key.
    #[must_use]
    pub fn certain(&self, key: u64) -> u32 {
        // SAFETY: the structure is the C one, read only.
        unsafe { abi::tg_native_hot_certain(&raw const self.list, key) }
    }

    /// Hits that this key has at most; 0 if it is not in the list.
    #[must_use]
    pub fn at_most(&self, key: u64) -> u32 {
        let found = self.list.entry.iter().find(|entry| key != 0 && entry.key == key);
        found.map_or(0, |entry| entry.count)
    }

    /// All hits.
    #[must_use]
    pub const fn all(&self) -> u32 {
        self.list.all
    }

    /// Whether more than this share of all hits is certainly of this key.
    #[must_use]
    pub fn is_hot(&self, key: u64, share: Share) -> bool {
        // SAFETY: as in `certain`.
        unsafe { abi::tg_native_hot_is(&raw const self.list, key, share_code(share)) != 0 }
    }

    /// All keys that are hot, in the order of their places.
    #[must_use]
    pub fn hot(&self, share: Share) -> Vec<u64> {
        let keys = self.list.entry.iter().map(|entry| entry.key);
        keys.filter(|key| self.is_hot(*key, share)).collect()
    }

    /// Which share of what was admitted went to this destination.
    #[must_use]
    pub fn admitted_share(&self, key: u64) -> Share {
        // SAFETY: as in `certain`.
        let code = unsafe { abi::tg_native_hot_share(&raw const self.list, key) };
        Share::new(f64::from(code) / f64::from(HOT_SHARE_ONE))
    }
}

/// Hot spots by the published list: sampled, hashed, ageing (`tg_hot_aged_…`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgedHotSpots {
    params: HotAgedParams,
    list: HotList,
}

impl AgedHotSpots {
    /// A list of this share of the connections. An entry without a hit for so many seconds is free.
    #[must_use]
    pub fn new(sample: Share, out_s: u32) -> Self {
        let params = HotAgedParams { sample: share_code(sample), out_s };
        Self { params, list: HotList::default() }
    }

    /// One new connection to this destination, with 16 random bits.
    pub fn hit(&mut self, key: u64, random: u32, now: Nanos) {
        let now_s = (now.0 / 1_000_000_000) as u32;
        // SAFETY: both structures are the C ones; the list is exclusively borrowed.
        unsafe {
            abi::tg_native_hot_aged_hit(
                &raw const self.params,
                &raw mut self.list,
                key,
                random,
                now_s,
            );
        }
    }

    /// The destination with most hits, once what is out of date is gone; none without hits.
    pub fn top(&mut self, now: Nanos) -> Option<u64> {
        let now_s = (now.0 / 1_000_000_000) as u32;
        // SAFETY: as in `hit`.
        let key = unsafe {
            abi::tg_native_hot_aged_top(&raw const self.params, &raw mut self.list, now_s)
        };
        (key != 0).then_some(key)
    }

    /// Halves all counts: once an interval.
    pub fn fade(&mut self) {
        // SAFETY: as in `hit`.
        unsafe { abi::tg_native_hot_fade(&raw mut self.list) }
    }
}

/// Whom limits are for (`enum tg_crowd_rule`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CrowdRule {
    /// Each for its own destination.
    #[default]
    Own,
    /// The first one, for all destinations.
    All,
    /// The first one, for all; without a token bystanders are refused by the published chance.
    Shared,
}

/// A limit on new connections to a destination.
#[derive(Clone, Debug, PartialEq)]
pub struct CrowdLimit {
    /// The destination. With [`CrowdRule::Shared`]: the hot spot.
    pub key: u64,
    /// Rate and burst. Of the action that of the first limit counts.
    pub bucket: BucketSpec,
}

impl CrowdLimit {
    /// As the kernel has it (`struct tg_crowd_limit`).
    ///
    /// # Errors
    /// For a rate or a burst that is out of range.
    pub fn compiled(&self) -> Result<[u8; size_of::<abi::CrowdLimit>()], ParamsError> {
        let mut limit = abi::CrowdLimit::default();
        (limit.key, limit.bucket) = (self.key, self.bucket.compile()?.0);
        Ok(zerocopy::transmute!(limit))
    }
}

/// The limits of a router, and how much of them is used (`tg_crowd_params`, `tg_crowd_state`). The
/// default admits everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CrowdGate {
    params: CrowdParams,
    state: CrowdState,
}

impl CrowdGate {
    /// Limits at once, at most.
    pub const LIMITS: usize = CROWD_LIMITS;

    /// Puts limits in force, in place of those before; none admits everything. What was used of a
    /// destination's limit stays used if it keeps its place. Limits beyond [`Self::LIMITS`] are not
    /// taken.
    ///
    /// # Errors
    /// For a rate or a burst that is out of range; then nothing changes.
    pub fn set(&mut self, rule: CrowdRule, limits: &[CrowdLimit]) -> Result<(), ParamsError> {
        let rule = match rule {
            CrowdRule::Own => abi::TG_CROWD_OWN,
            CrowdRule::All => abi::TG_CROWD_ALL,
            CrowdRule::Shared => abi::TG_CROWD_SHARED,
        };
        let action = limits.first().map_or(0, |limit| limit.bucket.action.code().into());
        let mut params = CrowdParams { rule, action, ..CrowdParams::default() };
        for (place, limit) in params.limit.iter_mut().zip(limits) {
            (place.key, place.bucket) = (limit.key, limit.bucket.compile()?.0);
        }
        self.params = params;
        Ok(())
    }

    /// The verdict on a new connection; `event.key` is its destination.
    #[must_use]
    pub fn admit(&mut self, hot: &HotSpots, event: &Event) -> Verdict {
        let mut raw = RawVerdict::default();
        let (params, state) = (&raw const self.params, &raw mut self.state);
        // SAFETY: all structures are the C ones; the state is exclusively borrowed.
        unsafe { abi::tg_native_crowd_admit(params, state, &raw const hot.list, event, &mut raw) };
        raw.into()
    }
}
