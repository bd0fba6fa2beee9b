// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What tells services apart, through reloads and restarts, wherever they stand in a file.

/// The name of a service as a number: FNV-1a, never 0.
#[must_use]
pub fn service_identity(name: &str) -> u64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash | 1
}
