// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Flash crowds at a router in front of servers (NEWS): found by what clients get, not by a request
//! rate that somebody has set.
//!
//! Two detectors, each with its control:
//! - [`Published`]: papers/news.txt, figures 4 to 6. Once an interval of T seconds it compares the
//!   response rate of the fastest connections, and the rate of admitted requests, with their
//!   long-term averages.
//! - [`Crowd`]: ours, one a destination, in seconds. Responses of this destination have become slow, each
//!   compared with those of its size, for longer than by chance; and more comes than usual on some
//!   time scale, or than completes. [`Crowds`] has all destinations, and says why: only the hot one is
//!   slow (its server), or its neighbours are slow, too (the link that they share).
//!
//! | file | what it knows |
//! | --- | --- |
//! | `published.rs` | detector and control as published; the authors' scored search |
//! | `fastest.rs` | the aggregate response rate of high-bandwidth connections |
//! | `slow.rs` | durations within size classes: a baseline, and a sequential test |
//! | `demand.rs` | what comes, on several time scales |
//! | `limit.rs` | the limit while a crowd is there, and when it is over |
//! | `bounds.rs` | how far a limit may go, whatever the law says |
//! | `crowd.rs` | one destination, from a tick to a limit |
//! | `crowds.rs` | all destinations, and which of them may be limited |
//! | `neighbours.rs` | what destinations say of each other: the reason |
//! | `sharing.rs` | several routers of one domain: what they see together, and the part of a limit that one has |
//! | `heard.rs` | what other routers told, and how much of it still counts |

mod bounds;
#[expect(clippy::module_inception, reason = "a crowd at one destination; the module is of crowds")]
mod crowd;
mod crowds;
mod demand;
mod fastest;
mod heard;
mod limit;
mod neighbours;
mod published;
mod sharing;
mod slow;

pub use bounds::LimitBounds;
pub use crowd::{Crowd, CrowdSaid, CrowdTick};
pub use crowds::{Beside, Crowds, Heard, Spared, Why};
pub use fastest::fastest;
pub use limit::{CrowdLimit, TakenBack};
pub use neighbours::Neighbours;
pub use published::{
    Adjust, Interval, Published, PublishedLimit, PublishedSaid, PublishedSpec, Reset,
};
pub use sharing::{Sharing, Sight};
pub use slow::Took;
