// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the measuring programs of `cargo xtask bench` share, and the subjects they measure. They
//! live here, not in the programs, so that a test can measure each of them once, too.
#![allow(dead_code, reason = "each program uses its part of it")]
#![allow(unreachable_pub, reason = "each program is a crate of its own")]

pub mod arena;
pub mod compile;
pub mod cores;
pub mod frames;
pub mod haproxy;
pub mod idle;
pub mod packets;
pub mod pushed;
pub mod random;
pub mod refusals;
pub mod requests;
pub mod router;
pub mod space;
pub mod tables;
pub mod turns;
pub mod worker;
