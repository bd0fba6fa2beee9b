// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reports between hosts: any sequence of messages, both roles.
#![no_main]

#[path = "support/peer.rs"]
#[allow(dead_code, reason = "three targets share it")]
mod peer;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| peer::session(bytes));
