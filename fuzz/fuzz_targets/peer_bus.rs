// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Routers that share over a bus: any messages, in any order.
#![no_main]

#[path = "support/bus.rs"]
mod bus;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    bus::message(bytes);
    bus::bus(bytes);
});
