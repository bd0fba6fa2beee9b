// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Today's traffic in the lab: sessions of several requests, TLS 1.3 and HTTP/2, on four servers,
//! judged as survival is.

pub(crate) mod alarms;
mod cell;
mod cover;
mod run;
mod scenario;
pub mod sim;
mod stage;
mod summary;

pub use cell::{Cell, REQUESTS, SERVERS, THINKS, TRANSPORTS, all, concurrent};
pub use cover::Choice;
pub use run::{Part, run};
pub use scenario::{Extent, Scenario};
pub use stage::{Lengths, Run, Seen, Stage, StageOptions};
