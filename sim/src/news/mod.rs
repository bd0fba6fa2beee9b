// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A flash crowd at a router, as in papers/news.txt, packet by packet.
//!
//! ```text
//! clients (8 distances) ┐                                        ┌ S1 fast
//!                       ├── R1 ══ 2 Mbit/s, 50 packets ══ R0 ────┼ S2 slow
//! bystander B1 ─────────┘                            (hooked)    └ S3 bystander's server
//! ```
//!
//! The router R0 sees both directions. It keeps a bounded table of connections, measures them with
//! the C of `policy/router`, feeds the detectors of `tidegate-control`, and limits new connections by
//! the same C. One run gives an [`Outcome`]; [`truth`] says when an uncontrolled run was overloaded.
//!
//! | file | what it knows |
//! | --- | --- |
//! | `spec.rs` | one setting |
//! | `flows.rs` | the router's table of connections, and what it measures |
//! | `router.rs` | detectors and limits at the router |
//! | `serve.rs` | servers: fast, limited by CPU, limited by memory |
//! | `world.rs` | topology, clients, bystanders |
//! | `outcome.rs` | what became of the clients |
//! | `truth.rs` | when it hurt |

mod flows;
mod outcome;
mod router;
mod serve;
mod spec;
pub mod truth;
mod world;

pub use flows::Ended;
pub use outcome::{Bin, Outcome, Served};
pub use router::{Alarm, Detector};
pub use spec::{Bystander, Control, NewsSpec, Protocol, ServerSpec, Static};
pub use world::run;

/// What the published detector is made from, for whoever runs it in virtual time without naming control.
pub use tidegate_control::crowd::{Adjust, PublishedSpec, Reset, Why};
