// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a daemon finds of the one before: any bytes as its file.
#![no_main]

#[path = "support/state.rs"]
mod state;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| state::state(bytes));
