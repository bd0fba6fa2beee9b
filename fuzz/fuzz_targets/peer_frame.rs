// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reports between hosts: any bytes as frames.
#![no_main]

#[path = "support/peer.rs"]
#[allow(dead_code, reason = "three targets share it")]
mod peer;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| peer::frame(bytes));
