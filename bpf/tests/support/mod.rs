// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the tests of the dataplane share. Nothing in here knows the product's C; only `plane` and
//! `object` know its loader.
#![allow(dead_code, reason = "each test uses its part of it")]
#![allow(unreachable_pub, reason = "each test is a crate of its own")]
#![allow(clippy::unwrap_used, reason = "tests")]

pub mod border;
pub mod built;
pub mod canary;
pub mod cases;
pub mod checksum;
pub mod connection;
pub mod decode;
pub mod dialog;
pub mod engine;
pub mod events;
pub mod exact;
pub mod frames;
pub mod gcov;
pub mod golden;
pub mod harness;
pub mod heads;
pub mod late;
pub mod learned;
pub mod namespace;
pub mod native;
#[path = "../netns/mod.rs"]
pub mod netns;
pub mod object;
pub mod packet;
pub mod place;
pub mod plane;
pub mod policies;
pub mod proved;
pub mod random;
pub mod recogniser;
pub mod reference;
pub mod replayed;
pub mod scene;
pub mod setup;
pub mod setups;
pub mod talk;
pub mod throttle;
pub mod time_wait;
