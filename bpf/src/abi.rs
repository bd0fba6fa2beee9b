// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mirror of bpf/abi/tidegate.h. The loader compares the sizes with the maps that it creates.

use tidegate_model::totals::HISTOGRAM_BUCKETS;
use tidegate_model::{CLASSES_MAX, SERVICES_MAX};

/// Version of the layout of all maps: part of the path of the pins.
pub const ABI_VERSION: u32 = 14;
/// Gauges of one service index: a new service at an index takes the next.
pub const GAUGES_EACH: u8 = 4;

pub(crate) const SLOTS: u32 = 2;
pub(crate) const PORT_EXACT: u8 = 1;
pub(crate) const PORT_ANY: u8 = 2;
pub(crate) const PORT_BYTES: usize = 65536 / 4;
pub(crate) const TABLE_NEVER: u32 = 1;
pub(crate) const TABLE_ORIGINS: u32 = 2;
pub(crate) const ORIGIN_BLOCK: u16 = 32768;
pub(crate) const ORIGIN_BLOCKS: usize = 2048;
pub(crate) const ORIGIN_ROWS: usize = 8192;
pub(crate) const ORIGIN_NEVER: u16 = 1;
/// Bytes of `struct tg_origins`.
pub(crate) const ORIGINS_SIZE: usize =
    2 * 65536 + 2 * 256 * ORIGIN_BLOCKS + SERVICES_MAX * ORIGIN_ROWS;
pub(crate) const DOORS_MAX: usize = 2048;
pub(crate) const DOORS_AT: usize = 4;
pub(crate) const DOOR_IPV4: u8 = 1;
pub(crate) const DOOR_IPV6: u8 = 2;
/// Bytes of `struct tg_doors`.
pub(crate) const DOORS_SIZE: usize = 2 * 65536 + 24 * DOORS_MAX;
/// Words of the key of the hash.
pub(crate) const KEYS: usize = 6;
pub(crate) const SERVICE_PREFIXES: u8 = 1;
pub(crate) const SERVICE_DSCP: u8 = 2;
pub(crate) const LISTEN_NEVER: u8 = 1;
pub(crate) const PREFIX_BITS: u32 = 16;
pub(crate) const REASONS_MAX: usize = 80;
pub(crate) const REASON_FIRST: usize = 20;
pub(crate) const REASON_REFUSED: usize = 30;
pub(crate) const REASON_VERDICTS: usize = 48;
pub(crate) const COUNT_ADMIT: usize = REASON_REFUSED - REASON_FIRST;
pub(crate) const COUNT_REFUSE: usize = REASON_VERDICTS - REASON_REFUSED;
pub(crate) const COUNTS: usize = COUNT_ADMIT + 6 * COUNT_REFUSE;
pub(crate) const ANSWER_TX: u32 = 0;
pub(crate) const ANSWER_REDIRECT: u32 = 1;
pub(crate) const FLOW_WAYS: usize = 4;
/// Bytes of `struct tg_pending`.
pub(crate) const PENDING_SIZE: usize = 32;
/// Bytes of `struct tg_senders`.
pub(crate) const SENDERS_SIZE: usize = 64 + 128;
/// Words of `struct tg_notes`.
pub(crate) const NOTES_WORDS: usize = 1;
/// Bytes that one connection takes in `struct tg_flow_set`, and in `struct tg_flow_times`.
pub(crate) const FLOW_SIZE: usize = 8;
/// See [`FLOW_SIZE`].
pub(crate) const FLOW_TIMES_SIZE: usize = 32;
/// See [`FLOW_SIZE`]: the place of its source.
pub(crate) const FLOW_SOURCE_SIZE: usize = 4;
/// Sources that share a set, and the bytes that one takes there.
pub(crate) const SOURCE_WAYS: usize = 4;
/// See [`SOURCE_WAYS`].
pub(crate) const SOURCE_WORD_SIZE: usize = 8;
/// Bits of a source's word that say how many of its connections are open.
pub(crate) const SOURCE_OPEN_BITS: u32 = 24;
/// Those bits.
pub(crate) const SOURCE_OPEN: u64 = (1 << SOURCE_OPEN_BITS) - 1;
/// Of what a gauge's listeners send before a response (`struct tg_flights`).
pub(crate) const FLIGHTS_SIZE: usize = 32;
/// Bytes of `struct tg_chain` before the state of the policy.
pub(crate) const STATE_AT: usize = 16;

/// Plain data that the kernel shares.
///
/// # Safety
/// Only for `repr(C)` types of integers and arrays of them, without padding.
pub(crate) unsafe trait Plain: Sized {
    /// The bytes of the value.
    fn bytes(&self) -> &[u8] {
        // SAFETY: by the contract of the trait every byte of the value is initialised.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }

    /// The bytes of the value, to be written by the kernel.
    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; and every pattern of bytes is a value of the type.
        unsafe {
            std::slice::from_raw_parts_mut(std::ptr::from_mut(self).cast(), size_of::<Self>())
        }
    }

    /// A value of these bytes; `None` if there are too few.
    fn read(bytes: &[u8]) -> Option<Self> {
        // SAFETY: the length is checked, the read needs no alignment, any bytes are a value.
        (bytes.len() >= size_of::<Self>())
            .then(|| unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) })
    }
}

macro_rules! plain {
    ($($(#[$doc:meta])* struct $name:ident { $($field:ident : $type:ty),* $(,)? } = $size:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        #[repr(C)]
        pub(crate) struct $name { $(pub(crate) $field: $type),* }
        const _: () = assert!(size_of::<$name>() == $size);
        const _: () = assert!(0 $(+ size_of::<$type>())* == $size, "padding");
        // SAFETY: repr(C), integers and arrays only, no padding (the sizes of the fields add up).
        unsafe impl Plain for $name {}
        impl Default for $name {
            fn default() -> Self {
                // SAFETY: all zero is a value of every plain type.
                unsafe { std::mem::zeroed() }
            }
        }
    )*};
}
pub(crate) use plain;

plain! {
    /// The switches of the operator.
    struct Control { slot: u32, released: u32, seed: [u64; 2] } = 24;
    /// `struct tg_bucket_params`.
    struct BucketParams { rate_milli: u64, depth: u64, full_ns: u64 } = 24;
    /// One service of one classification.
    struct TableService {
        flags: u8, gauge: u8, pad: [u8; 6], identity: u64,
        priority: [u8; CLASSES_MAX], dscp: [u8; 64],
    } = 96;
    /// One classification.
    struct Table {
        flags: u32, sample_admitted: u32, sample_refused: u32, pad: u32, answers: BucketParams,
        answers_proved: BucketParams, service: [TableService; SERVICES_MAX],
        ports: [u8; PORT_BYTES],
    } = 64 + 96 * SERVICES_MAX + PORT_BYTES;
    /// Key of a listen address.
    struct ListenKey { addr: [u8; 16], port: u16, proto: u8, slot: u8 } = 20;
    /// What listens there.
    struct ListenValue { service: u8, flags: u8, pad: [u8; 2] } = 4;
    /// A listen address as it is read by port.
    struct Door { addr: [u8; 16], listen: ListenValue, any: u8, more: u8, pad: [u8; 2] } = 24;
    /// Key of a prefix.
    struct PrefixKey { bits: u32, slot: u8, service: u8, addr: [u8; 16], pad: [u8; 2] } = 24;
    /// Totals of a service on one CPU, without its histograms.
    struct TotalsHead {
        offered: u64, repeated: u64, admitted: u64, refused: u64,
        replied: u64, proved: u64, asked: u64, answered: u64, ended: u64, ended_exchanges: u64,
        unknown: u64, lost: u64,
    } = 96;
    /// A histogram.
    struct HistogramRaw { count: u64, sum_ns: u64, bucket: [u64; HISTOGRAM_BUCKETS] } = 16 + 8 * HISTOGRAM_BUCKETS;
    /// Totals of a service on one CPU.
    struct TotalsRaw { head: TotalsHead, first_byte: HistogramRaw, end: HistogramRaw } = 96 + 2 * (16 + 8 * HISTOGRAM_BUCKETS);
    /// Gauges of a service.
    struct GaugesRaw {
        waiting: i64, open: i64, untracked: u64, evicted: u64, forgotten: u64, silent: i64,
        slow: i64, sourceless: u64,
    } = 64;
    /// What is known of one source.
    struct SourceRaw {
        addr: [u8; 16], proved_ns: u64, held: i32, peak: u32, good: u32, bad: u32, exchanges: u32,
        gauge: u8, pad: [u8; 3], answered_ns: u64, spare: u64,
    } = 64;
    /// A sampled verdict.
    struct SampleRaw {
        now_ns: u64, src: [u8; 16], dst: [u8; 16], sport: u16, dport: u16,
        service: u8, class: u8, verdict: u8, reason: u8,
        shadow: u8, repeated: u8, priority: u8, listener: u8,
        accept_length: u32, accept_limit: u32, pad: u32, waiting: i64,
    } = 72;
    /// Read-only settings of one hook.
    struct SettingsRaw {
        key: [u64; KEYS], flow_timeout_ns: u64, loaded_ns: u64, flow_mask: u32,
        pending_mask: u32, answer: u32, trust_dscp: u32, source_mask: u32, pad: u32,
    } = 88;
    /// In and out of the heartbeat program.
    struct Heartbeat { now_ns: u64, reap_from: u32, reap_sets: u32 } = 16;
    /// In and out of the replay program.
    struct Replay {
        now_ns: u64, key: u64, random: u32, priority: u8, event_pad: u8, spared: u16,
        level: u32, event_pad_end: u32, kind: u8, reason: u8, repeated: u8, verdict_pad: u8, delay_us: u32,
        service: u32, found: u32,
    } = 48;
    /// `struct xdp_md`.
    struct XdpMd {
        data: u32, data_end: u32, data_meta: u32, ingress_ifindex: u32, rx_queue_index: u32,
        egress_ifindex: u32,
    } = 24;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_those_of_the_header() {
        let header = include_str!("../abi/tidegate.h");
        let define = |name: &str| -> u64 {
            let line = header.lines().find_map(|line| {
                line.strip_prefix("#define ")?.strip_prefix(name)?.strip_prefix(' ')
            });
            let value = line.and_then(|rest| rest.split_whitespace().next());
            value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name}"))
        };
        let pairs = [
            ("TG_ABI_VERSION", u64::from(ABI_VERSION)),
            ("TG_SERVICES_MAX", SERVICES_MAX as u64),
            ("TG_CLASSES_MAX", CLASSES_MAX as u64),
            ("TG_GAUGES_EACH", u64::from(GAUGES_EACH)),
            ("TG_SLOTS", u64::from(SLOTS)),
            ("TG_PORT_EXACT", u64::from(PORT_EXACT)),
            ("TG_PORT_ANY", u64::from(PORT_ANY)),
            ("TG_TABLE_NEVER", u64::from(TABLE_NEVER)),
            ("TG_TABLE_ORIGINS", u64::from(TABLE_ORIGINS)),
            ("TG_ORIGIN_BLOCK", u64::from(ORIGIN_BLOCK)),
            ("TG_ORIGIN_BLOCKS", ORIGIN_BLOCKS as u64),
            ("TG_ORIGIN_ROWS", ORIGIN_ROWS as u64),
            ("TG_ORIGIN_NEVER", u64::from(ORIGIN_NEVER)),
            ("TG_DOORS_MAX", DOORS_MAX as u64),
            ("TG_DOORS_AT", DOORS_AT as u64),
            ("TG_DOOR_IPV4", u64::from(DOOR_IPV4)),
            ("TG_DOOR_IPV6", u64::from(DOOR_IPV6)),
            ("TG_KEYS", KEYS as u64),
            ("TG_SERVICE_PREFIXES", u64::from(SERVICE_PREFIXES)),
            ("TG_SERVICE_DSCP", u64::from(SERVICE_DSCP)),
            ("TG_LISTEN_NEVER", u64::from(LISTEN_NEVER)),
            ("TG_SOURCE_WAYS", SOURCE_WAYS as u64),
            ("TG_SOURCE_OPEN_BITS", u64::from(SOURCE_OPEN_BITS)),
            ("TG_REASON_FIRST", REASON_FIRST as u64),
            ("TG_REASON_REFUSED", REASON_REFUSED as u64),
            ("TG_REASON_VERDICTS", REASON_VERDICTS as u64),
            ("TG_HISTOGRAM_BUCKETS", HISTOGRAM_BUCKETS as u64),
            ("TG_FLOW_WAYS", FLOW_WAYS as u64),
            ("TG_ANSWER_TX", u64::from(ANSWER_TX)),
            ("TG_ANSWER_REDIRECT", u64::from(ANSWER_REDIRECT)),
        ];
        for (name, value) in pairs {
            assert_eq!(define(name), value, "{name}");
        }
    }
}
