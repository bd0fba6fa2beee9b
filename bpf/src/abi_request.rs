// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mirror of bpf/abi/request.h. The loader compares the sizes with the maps that it creates.

use crate::abi::{HistogramRaw, Plain, REASONS_MAX, plain};
use tidegate_model::RANKS;
use tidegate_model::totals::HISTOGRAM_BUCKETS;

/// Number 0 is no rule.
pub(crate) const RULES_MAX: usize = tidegate_config::RULES_MAX + 1;
pub(crate) const BUCKETS_MAX: usize = tidegate_config::RULE_BUCKETS_MAX;
pub(crate) const PATH_MAX: usize = tidegate_config::PATH_MAX;
pub(crate) const HOSTS_MAX: usize = 1024;
pub(crate) const COOKIE_TESTS_MAX: usize = tidegate_config::COOKIE_TESTS_MAX;
pub(crate) const ANSWERS_MAX: usize = tidegate_config::ANSWER_TEXTS_MAX * ANSWER_VARIANTS;
pub(crate) const ANSWER_VARIANTS: usize = tidegate_config::ANSWER_VARIANTS;
pub(crate) const ANSWER_BYTES_MAX: usize = tidegate_config::ANSWER_BYTES_MAX;
pub(crate) const METHOD_ANY: u8 = 255;
#[cfg(test)]
pub(crate) const RULE_STEPS: usize = RULES_MAX - 1;
pub(crate) const RULE_TLS: u8 = 2;
pub(crate) const RULE_CLOSE: u8 = 4;
pub(crate) const RULE_COUNTS: usize = 12;
/// Where the slot stands in the key of a path.
pub(crate) const PATH_SLOT_AT: usize = 4;
/// Where the slot stands in the key of a host.
pub(crate) const HOST_SLOT_AT: usize = 8;
/// Bits of a path's key before the path.
pub(crate) const PATH_BITS: u32 = 16;
/// Bytes of `struct tg_request_chain`.
pub(crate) const BUCKET_LOCKED_SIZE: usize = 128;
/// Bytes of `struct tg_conn`.
pub(crate) const CONN_SIZE: usize = 96;
/// Where the result of the sweep stands in its packet (hook/sweep.bpf.c).
pub(crate) const SWEEP_AT: usize = 16;
/// Bytes of a histogram.
const HISTOGRAM_SIZE: usize = 16 + 8 * HISTOGRAM_BUCKETS;

plain! {
    /// Which rule set is in force, and for whom.
    struct RequestControl { slot: u32, services: u32, cookies: u32, pad: u32, since_ns: u64 } = 24;
    /// Key of the longest prefix of a path.
    struct PathKey { bits: u32, slot: u8, service: u8, path: [u8; PATH_MAX], pad: [u8; 2] } = 8 + PATH_MAX;
    /// Key of a host name.
    struct HostKey { hash: u64, slot: u8, pad: [u8; 7] } = 16;
    /// A cookie that rules ask for.
    struct CookieTestRaw { name: u64, value: u64 } = 16;
    /// One rule.
    struct RuleRaw {
        next: u16, flags: u8, refuse: u8, methods: u8, bucket: u8, answer: u16,
        host: u32, cookies_all: u32, cookies_none: u32, protect: u32,
    } = 24;
    /// One answer, whole.
    struct AnswerText {
        bytes: u16, head: u16, sum: u16, sum_head: u16, text: [u8; ANSWER_BYTES_MAX],
    } = 8 + ANSWER_BYTES_MAX;
    /// Counts of one rule on one CPU: admitted, refused, shadowed, lease, repeated, failed; then of
    /// what is followed begun, ended, started and its time, answered and its time.
    struct RuleCountsRaw { cell: [u64; RULE_COUNTS] } = 8 * RULE_COUNTS;
    /// Totals of one bucket on one CPU.
    struct BucketTotalsRaw {
        offered: [u64; RANKS], refused: [u64; RANKS], refused_first: u64, begun: u64, ended: u64,
        first_byte: HistogramRaw, end: HistogramRaw,
    } = 72 + 2 * HISTOGRAM_SIZE;
    /// In and out of the sweep.
    struct Sweep { now_ns: u64, freed: u32, kept: u32 } = 16;
}

/// What the value of each map of header rules measures.
pub(crate) const REQUEST_SIZES: [(&str, usize); 12] = [
    ("tg_request_control", size_of::<RequestControl>()),
    ("tg_paths", 4),
    ("tg_rules", size_of::<RuleRaw>()),
    ("tg_hosts", 4),
    ("tg_cookie_tests", size_of::<CookieTestRaw>()),
    ("tg_answer_texts", size_of::<AnswerText>()),
    ("tg_buckets", BUCKET_LOCKED_SIZE),
    ("tg_unevaluable", 4),
    ("tg_bucket_totals", size_of::<BucketTotalsRaw>()),
    ("tg_rule_counts", size_of::<RuleCountsRaw>()),
    ("tg_request_reasons", REASONS_MAX * 8),
    ("tg_conns", CONN_SIZE),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{methods, refusal};
    use tidegate_config::{Method, RuleAnswer};

    const HEADER: &str = include_str!("../abi/request.h");

    fn define(name: &str) -> u64 {
        let line = HEADER.lines().find_map(|line| {
            line.strip_prefix("#define ")?.strip_prefix(name)?.strip_prefix([' ', '\t'])
        });
        let value = line.and_then(|rest| rest.split_whitespace().next());
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name}"))
    }

    #[test]
    fn constants_are_those_of_the_header() {
        let pairs = [
            ("TG_RULES_MAX", RULES_MAX),
            ("TG_RULE_BUCKETS_MAX", BUCKETS_MAX),
            ("TG_PATH_MAX", PATH_MAX),
            ("TG_HOSTS_MAX", HOSTS_MAX),
            ("TG_COOKIE_TESTS_MAX", COOKIE_TESTS_MAX),
            ("TG_ANSWERS_MAX", ANSWERS_MAX),
            ("TG_ANSWER_VARIANTS", ANSWER_VARIANTS),
            ("TG_ANSWER_BYTES_MAX", ANSWER_BYTES_MAX),
            ("TG_METHOD_ANY", METHOD_ANY.into()),
            ("TG_RULE_STEPS", RULE_STEPS),
            ("TG_RULE_TLS", RULE_TLS.into()),
            ("TG_RULE_CLOSE", RULE_CLOSE.into()),
            ("TG_REFUSE_503", refusal(RuleAnswer::Busy).into()),
            ("TG_REFUSE_RESET", refusal(RuleAnswer::Reset).into()),
            ("TG_REFUSE_DROP", refusal(RuleAnswer::Drop).into()),
            ("TG_REFUSE_AUTO", refusal(RuleAnswer::Auto).into()),
            ("TG_RULE_COUNTS", RULE_COUNTS),
        ];
        for (name, value) in pairs {
            assert_eq!(define(name), value as u64, "{name}");
        }
        let cells = [
            "ADMITTED",
            "REFUSED",
            "SHADOWED",
            "LEASE",
            "REPEATED",
            "FAILED",
            "BEGUN",
            "ENDED",
            "STARTED",
            "STARTED_NS",
            "ANSWERED",
            "ANSWERED_NS",
        ];
        for (cell, name) in cells.iter().enumerate() {
            assert_eq!(define(&format!("TG_RULE_{name}")), cell as u64, "{name}");
        }
    }

    #[test]
    fn methods_have_the_bits_of_the_header() {
        for method in Method::ALL {
            let (bit, name) = (u64::from(methods(&[method])), method.name());
            assert_eq!(bit, define(&format!("TG_METHOD_{name}")), "{name}");
        }
        assert_eq!([methods(&[]), methods(&Method::ALL)], [METHOD_ANY; 2]);
    }
}
