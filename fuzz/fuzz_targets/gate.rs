// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a proxy says to a gateway.
#![no_main]

#[path = "support/gate.rs"]
mod gate;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    gate::Harness::default().run(bytes);
});
