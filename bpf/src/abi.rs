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

/// A value from the first of these bytes; `None` if there are too few.
pub(crate) fn read<T: zerocopy::FromBytes>(bytes: &[u8]) -> Option<T> {
    T::read_from_prefix(bytes).ok().map(|(value, _)| value)
}
