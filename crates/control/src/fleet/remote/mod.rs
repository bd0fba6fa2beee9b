// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Remote limits: a server tells the hosts before it, its control nodes, what it can take.
//!
//! ```text
//!  server                                             control node
//!  own limit ─► Feedback ─► divide ─► RemoteLimit ─────► Authority ─► Held ─► rate of the service
//!                  ▲                                                            │
//!                  └──────── Hits: offered, refused, probe ◄────────────────────┘
//! ```
//!
//! | file | what it does |
//! | --- | --- |
//! | `authority.rs` | who may limit what, and which messages count |
//! | `held.rs` | one limit where it is enforced: clamped, and opened in steps after it expired |
//! | `inbound.rs` | all limits of a control node, and what they make of its services |
//! | `join.rs` | own limits and those of peers: the tighter one holds |
//! | `divide.rs` | one rate for several control nodes |
//! | `feedback.rs` | what a server sends: its own limit, and how it grows back |
//! | `answer.rs` | what an overloaded server answers to congested routers (NetDraino) |
//! | `uncounted.rs` | what a server tells routers that give no hit counters (FlowSpec) |
//! | `requests.rs` | what a server that hooks measure tells its gateways: requests, by its exchanges |
//! | `pushed.rs` | such a limit at the router: it relaxes, and ends with the congestion |
//!
//! It knows nothing of sessions and frames (tidegate-peer); time is an argument.

mod answer;
mod authority;
mod divide;
mod feedback;
mod held;
mod inbound;
pub mod join;
mod pushed;
mod requests;
mod uncounted;

pub use self::answer::{Answer, K, NOTICE_FOR, Reply};
pub use self::authority::{Authority, Grant, NotTaken, Way};
pub use self::divide::divide;
pub use self::feedback::{Feedback, GROWTH_PER_SECOND, Node};
pub use self::held::{Held, OPENING_STEPS};
pub use self::inbound::{DATAGRAMS_AT_ONCE, Flow, HITS_EVERY, InForce, Inbound, Part, Protected};
pub use self::pushed::{PUSHBACK, TTL};
pub use self::requests::RequestLaw;
pub use self::uncounted::{BEGIN_AFTER, CALM_AFTER, Steps, Uncounted};
pub use tidegate_policy::PushbackSpec;
