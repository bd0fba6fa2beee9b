// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The part of bpf/tests/support that needs no kernel.
#![allow(dead_code, reason = "the tests use the rest")]

#[path = "../../../bpf/tests/support/built.rs"]
pub mod built;
#[path = "../../../bpf/tests/support/checksum.rs"]
pub mod checksum;
#[path = "../../../bpf/tests/support/decode.rs"]
pub mod decode;
#[path = "../../../bpf/tests/support/engine.rs"]
pub mod engine;
#[path = "../../../bpf/tests/support/harness.rs"]
pub mod harness;
#[path = "../../../bpf/tests/support/native.rs"]
pub mod native;
#[path = "../../../bpf/tests/support/packet.rs"]
pub mod packet;
#[path = "../../../bpf/tests/support/place.rs"]
pub mod place;
#[path = "../../../bpf/tests/support/random.rs"]
pub mod random;
#[path = "../../../bpf/tests/support/reference/mod.rs"]
pub mod reference;
#[path = "../../../bpf/tests/support/scene.rs"]
pub mod scene;
#[path = "../../../bpf/tests/support/setup.rs"]
pub mod setup;
#[path = "../../../bpf/tests/support/setups.rs"]
pub mod setups;
