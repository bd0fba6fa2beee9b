// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A service as a whole, on one host or on several: what holds whatever its controllers want; one set of controllers
//! for each back-end that reports, and the sum of what they admit.
//!
//! ```text
//!  signals ─► split ─► of back-end 1 ─► controllers 1 ─► clamp 1 ─┐
//!                  └─► of back-end 2 ─► controllers 2 ─► clamp 2 ─┴─ sum ─► limits of the service
//! ```
//!
//! | file | what it does |
//! | --- | --- |
//! | `governor.rs` | a service: its controllers, and what holds whatever they do |
//! | `steering.rs` | the controllers of a service, on this host or one set a back-end |
//! | `backends.rs` | a round of all back-ends |
//! | `split.rs` | what of the signals is one back-end's; the sum of limits |
//! | `clamp.rs` | what a report may do to a limit, whatever a controller makes of it |
//! | `bounds.rs` | what an operator said holds always; without fresh signals nothing becomes tighter |
//! | `remote/` | limits that one host gives to another |
//!
//! It knows nothing of sessions and frames: reports come as [`tidegate_model::signals::Backend`].

mod backends;
mod bounds;
mod clamp;
mod governor;
pub mod remote;
mod split;
mod steering;

use tidegate_units::Nanos;

/// How long limits of a predecessor, or those that were adopted after a crash, are kept while a new
/// controller does not shed yet: it needs a while to see what its predecessor saw.
pub const INHERIT: Nanos = Nanos::from_secs(3);

pub use self::backends::Backends;
pub use self::bounds::{Bounds, Operator, no_tighter};
pub use self::clamp::{Basis, Clamp, INTERVAL, RELEASE_AFTER};
pub use self::governor::{
    Failed, Governor, Maker, NewControllers, PANICS_MAX, SIGNAL_AGE_MAX, Stays, Terms,
};
pub use self::split::under_most_pressure;
pub use self::steering::Steering;
