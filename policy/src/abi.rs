// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The C as Rust has it, generated from `shim.h` and what that includes: structures, constants, and the
//! functions of `shim.c`. Methods stand in the files beside this one.
#![allow(
    missing_docs,
    unreachable_pub,
    unsafe_code,
    dead_code,
    reason = "generated; the headers explain"
)]

include!(concat!(env!("OUT_DIR"), "/abi.rs"));
