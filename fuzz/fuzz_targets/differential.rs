// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The native hook, in a process of its own, against the reference model, which guides the fuzzer:
//! it is instrumented as any Rust is.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use support::engine::Hook;
use support::harness::differential;
use support::native::{Native, Program};

mod support;

thread_local! {
    static NATIVE: RefCell<Option<Native>> = const { RefCell::new(None) };
}

fuzz_target!(|data: &[u8]| {
    NATIVE.with_borrow_mut(|native| {
        let native = native.get_or_insert_with(|| Native::start(Program::Ingress(Hook::Xdp)));
        differential(native, data);
    });
});
