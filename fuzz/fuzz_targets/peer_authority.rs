// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Signed grants and limits: any bytes as a file, as a limit, and as a change to a signed limit.
#![no_main]

#[path = "support/authority.rs"]
mod authority;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| authority::bytes(bytes));
