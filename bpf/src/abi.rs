// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel and user space share, as Rust has it: generated from the headers in `bpf/abi`.
#![allow(missing_docs, unreachable_pub, dead_code, reason = "generated; the headers explain")]

use std::mem::offset_of;

include!(concat!(env!("OUT_DIR"), "/abi.rs"));

/// Those bits of a source's word that say how many of its connections are open.
pub(crate) const SOURCE_OPEN: u64 = (1 << SOURCE_OPEN_BITS) - 1;
/// Bits of the key of a prefix before the address.
pub(crate) const PREFIX_BITS: u32 =
    8 * (offset_of!(PrefixKey, addr) - offset_of!(PrefixKey, slot)) as u32;
/// Bits of the key of a path before the path.
pub(crate) const PATH_BITS: u32 =
    8 * (offset_of!(PathKey, path) - offset_of!(PathKey, slot)) as u32;

// Bounds that the configuration and the nouns have, too.
const _: () = {
    assert!(SERVICES_MAX == tidegate_model::SERVICES_MAX);
    assert!(CLASSES_MAX == tidegate_model::CLASSES_MAX);
    assert!(HISTOGRAM_BUCKETS == tidegate_model::totals::HISTOGRAM_BUCKETS);
    assert!(
        size_of::<BucketTotals>()
            == (2 * tidegate_model::RANKS + 3) * 8 + 2 * size_of::<Histogram>()
    );
    assert!(MARK_ROUTERS >= tidegate_config::TARGETS_MAX);
    // number 0 is no rule
    assert!(RULES_MAX == tidegate_config::RULES_MAX + 1 && RULES_MAX <= HOSTS_MAX);
    assert!(RULE_STEPS == tidegate_config::RULES_MAX);
    assert!(RULE_BUCKETS_MAX == tidegate_config::RULE_BUCKETS_MAX);
    assert!(PATH_MAX == tidegate_config::PATH_MAX);
    assert!(COOKIE_TESTS_MAX == tidegate_config::COOKIE_TESTS_MAX);
    assert!(ANSWER_VARIANTS == tidegate_config::ANSWER_VARIANTS);
    assert!(ANSWERS_MAX == tidegate_config::ANSWER_TEXTS_MAX * ANSWER_VARIANTS);
    assert!(ANSWER_BYTES_MAX == tidegate_config::ANSWER_BYTES_MAX);
};

/// Brings a CPU's copy of a bucket into the state that it is of: its counts, and the bucket if nobody
/// else has changed it since.
pub(crate) fn put_copy_back(state: &mut [u8], copy: &[u8]) {
    let (Some((counts, rest)), Some(copy)) =
        (state.split_at_mut_checked(size_of::<PolicyStats>()), copy.get(..size_of::<BucketCopy>()))
    else {
        return;
    };
    let (bucket, more) = (&copy[..16], &copy[offset_of!(BucketCopy, stats)..]);
    let seen = &copy[offset_of!(BucketCopy, seen)..][..16];
    for (count, more) in counts.chunks_exact_mut(8).zip(more.chunks_exact(8)) {
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
        count.copy_from_slice(&(word(count) + word(more)).to_ne_bytes());
    }
    if let Some(shared) = rest.get_mut(..16)
        && *shared == *seen
    {
        shared.copy_from_slice(bucket);
    }
}

/// A value from the first of these bytes; `None` if there are too few.
pub(crate) fn read<T: zerocopy::FromBytes>(bytes: &[u8]) -> Option<T> {
    T::read_from_prefix(bytes).ok().map(|(value, _)| value)
}
