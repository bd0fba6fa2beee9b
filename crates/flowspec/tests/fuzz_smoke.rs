// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The harness of the fuzz target, bounded, without a fuzzer: random bytes, and what is near to well-made ones.

#[path = "../../../fuzz/fuzz_targets/support/flowspec.rs"]
mod flowspec;

use proptest::prelude::*;

/// To 192.0.2.7, TCP, port 80, SYN without ACK.
const V4: &[u8] = &[
    0x11, 0x01, 0x20, 192, 0, 2, 7, 0x03, 0x81, 0x06, 0x05, 0x81, 0x50, 0x09, 0x01, 0x02, 0xc2,
    0x10,
];
/// To 2001:db8:1::/48, UDP.
const V6: &[u8] = &[0x0c, 0x01, 0x30, 0x00, 0x20, 0x01, 0x0d, 0xb8, 0, 1, 0x03, 0x81, 0x11];
/// 1,000 packets/s.
const RATE: &[u8] = &[0xc0, 16, 8, 0x80, 0x0c, 0, 0, 0x44, 0x7a, 0, 0];

fn path(nlri: &[u8]) -> Vec<u8> {
    [&[nlri.len() as u8], nlri, RATE].concat()
}

/// Else the harness would only see what is refused.
#[test]
fn well_made_bytes_are_taken() {
    for nlri in [V4, V6] {
        assert_eq!(flowspec::bytes(&path(nlri)), 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        flowspec::bytes(&bytes);
    }

    #[test]
    fn changed_bytes(which in 0..2_usize, changes in prop::collection::vec((0..30_usize, any::<u8>()), 0..4)) {
        let nlri = [V4, V6][which];
        let mut bytes = path(nlri);
        for (at, value) in changes {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        flowspec::bytes(&bytes);
        flowspec::bytes(&bytes[1..=nlri.len()]);
    }
}
