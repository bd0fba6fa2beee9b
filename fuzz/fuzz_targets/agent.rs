// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection of HAProxy's agent-check.
#![no_main]

#[path = "support/agent.rs"]
mod agent;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    thread_local! {
        static HARNESS: std::cell::RefCell<agent::Harness> = std::cell::RefCell::default();
    }
    HARNESS.with_borrow_mut(|harness| harness.run(bytes));
});
