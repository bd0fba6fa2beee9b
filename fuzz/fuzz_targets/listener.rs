// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection to the listener of an adapter.
#![no_main]

#[path = "support/listener.rs"]
mod listener;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    thread_local! {
        static HARNESS: std::cell::RefCell<listener::Harness> = std::cell::RefCell::default();
    }
    HARNESS.with_borrow_mut(|harness| harness.run(bytes));
});
