// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection to tidegate's own proxy.
#![no_main]

#[path = "support/proxy.rs"]
mod proxy;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    thread_local! {
        static HARNESS: std::cell::RefCell<proxy::Harness> = std::cell::RefCell::default();
    }
    HARNESS.with_borrow_mut(|harness| drop(harness.run(bytes)));
});
