// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SYNs only: millions of clients in front of one filter, as section 6 of papers/abacus.txt has it.
//!
//! A request is one client that wants one connection. Its first SYN comes at a time that the
//! arrival process gives; the filter admits it (the request is connected that very moment), drops
//! it (the SYN comes again on the client's schedule, until the client gives up) or rejects it (the
//! request ends, or comes again, as the client's stack has it). Propagation takes no time, but
//! jitters; a server is not modelled.
//!
//! **Order.** Events are SYNs, ordered by (time, serial number of the request): at the same
//! nanosecond the request that came first goes first. A request has at most one SYN under way, so
//! the order is total. A time-out is no event, because nobody but the client sees it: its instant
//! is known, and booked, when the last SYN is refused.
//!
//! **Draws.** What a client draws (its kind, its jitters, the key of its SYNs) depends on the
//! seed, its serial number and its attempt alone: under another filter the same client draws the
//! same, so that filters are compared on common random numbers.
//!
//! **Checkers**, always on and O(1) an event: no event in the past; every request ends exactly
//! once; admissions stay inside the capacity over every interval. What they find is an error
//! ([`Broken`]), never a result.
//!
//! ```
//! use tidegate_sim::syn::{self, PolicyFilter, Spec};
//! use tidegate_policy::{Action, BucketSpec, Params};
//! use tidegate_units::{Nanos, Rate};
//!
//! let spec = Spec::paper();
//! let bucket = BucketSpec::new(Rate::per_second(120.0), 120, Action::Drop);
//! let filter = PolicyFilter::new(Params::token_bucket(&bucket)?);
//! let burst = std::iter::repeat_n(Nanos::ZERO, 200);
//! let outcome = syn::run(&spec, filter, burst, 1)?;
//! assert_eq!((outcome.offered, outcome.connected, outcome.syns), (200, 200, 280));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bound;
mod check;
mod draws;
mod filter;
mod greedy;
mod outcome;
pub mod parallel;
mod queue;
mod reference;
mod spec;
mod tokens;
mod world;

pub use bound::{Bound, bound, share_of_gap};
pub use check::Broken;
pub use filter::{Filter, PolicyFilter, Verdict};
pub use greedy::{Greedy, GreedySpec, Tokens};
pub use outcome::{Outcome, Series};
pub use reference::{AbacusReference, Counts};
pub use spec::{Capacity, Clients, Cost, Refill, Spec};
pub use world::run;
