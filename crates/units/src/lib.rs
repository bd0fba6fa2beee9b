// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Units in types: time in nanoseconds, rates in events per second, shares of one, and the two
//! traits through which time and randomness enter the system.

mod clock;
mod rate;
mod time;

pub use clock::{BootClock, Clock, DayClock, ManualClock, MonotonicClock, Random, ThreadCpuClock};
pub use rate::{Rate, Share};
pub use time::Nanos;
