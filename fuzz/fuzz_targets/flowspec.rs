// SPDX-License-Identifier: Apache-2.0 OR MIT
//! FlowSpec: any bytes as a match, as attributes, and as a path.
#![no_main]

#[path = "support/flowspec.rs"]
mod flowspec;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    flowspec::bytes(bytes);
});
