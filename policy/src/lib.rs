// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The admission policies and the chain around them: the C of `policy/algo` and `policy/chain`, which the kernel runs as it stands,
//! and of `policy/router` (what a router measures and decides), compiled
//! natively for the simulator, the gateway and the tests.
//!
//! ```
//! use tidegate_policy::{Action, BucketSpec, Event, Params, State, VerdictKind, admit};
//! use tidegate_units::Rate;
//!
//! let bucket = BucketSpec::new(Rate::per_second(10.0), 1, Action::Reject);
//! let params = Params::token_bucket(&bucket)?;
//! let mut state = State::fresh();
//! let first = admit(&params, &mut state, &Event::at(0));
//! let second = admit(&params, &mut state, &Event::at(1));
//! assert_eq!((first.kind, second.kind), (VerdictKind::Admit, VerdictKind::Reject));
//! # Ok::<(), tidegate_policy::ParamsError>(())
//! ```

mod abi;
mod chain;
mod datagram;
mod ffi;
mod in_flight;
mod lately;
mod lease;
mod level;
mod min_rate;
mod params;
mod pushback;
mod refusal;
mod request;
mod router;
mod senders;
mod source;
mod throttle;

pub use abi::{
    DATAGRAMS_MERGED_MAX, DatagramLimit, Event, InFlight, Level, Limits, Params, RequestLimits,
    TOKEN,
};
pub use chain::{AcceptQueue, Ask, Chain, Circumstances, Decision};
pub use datagram::DatagramGate;
pub use ffi::{State, Verdict, VerdictKind, admit, evaluate};
pub use lately::{LatelyHash, LatelyLine, LatelySpan, LatelyTurn};
pub use lease::{Execution, Lease};
pub use min_rate::MinRate;
pub use params::{AbacusExactSpec, AbacusLearnedSpec, AbacusSpec, Action, BucketSpec, ParamsError};
pub use pushback::{
    Congestion, CongestionSpec, LinkTick, Offered, Part, Pushback, PushbackError, PushbackSpec,
    TailorSpec,
};
pub use refusal::{CrowdAction, CrowdFilter};
pub use request::{Rank, RequestChain};
pub use router::{
    AgedHotSpots, CrowdGate, CrowdLimit, CrowdRule, Durations, HotSpots, Tsw, TswSpec,
};
pub use senders::{Noted, Senders, refused};
pub use source::SourceKey;
pub use throttle::{GapSpec, PercentSpec, ThresholdSpec, Thresholds, Throttle, ThrottleError};

include!(concat!(env!("OUT_DIR"), "/policies.rs"));
include!(concat!(env!("OUT_DIR"), "/policy_words.rs"));
include!(concat!(env!("OUT_DIR"), "/reasons.rs"));

impl Policy {
    /// The policy with this name in policies.def.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|policy| policy.name() == name)
    }
}

impl Reason {
    /// The reason with this number in reasons.def.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| *reason as u8 == number)
    }
}
