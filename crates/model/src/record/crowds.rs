// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Events of flash crowds behind a router, in words.

use super::What;

impl What {
    /// A flash crowd, its limit, or routers that share; else nothing.
    pub(super) fn of_crowds(&self) -> String {
        match self {
            Self::CrowdBegan { destination, why, demand, slow } => {
                let slow = slow * 100.0;
                format!(
                    "{destination}: flash crowd began: {why}; {demand:.0} exchanges/s, {slow:.0} % slow for their \
                     size"
                )
            }
            Self::CrowdEnded { destination, why, lasted, refused, would_refuse } => {
                let of = |n: &u64, what: &str| match n {
                    0 => String::new(),
                    n => format!("; {n} SYNs {what}"),
                };
                let (refused, more) =
                    (of(refused, "refused"), of(would_refuse, "beyond its limit passed"));
                format!("{destination}: flash crowd ended after {lasted}; {why}{refused}{more}")
            }
            Self::CrowdLimited { destination, rate, shadow } => {
                let done = if *shadow { "would be limited" } else { "are limited" };
                format!("{destination}: new connections {done} to {rate:.1}/s")
            }
            Self::CrowdUnlimited { destination, why, lasted, refused, reset, shadow } => {
                let (done, what) = match shadow {
                    true => ("would be limited", "would have been refused"),
                    false => ("are limited", "were refused"),
                };
                let reset = match reset {
                    0 => String::new(),
                    n => format!(", {n} of them with a RST"),
                };
                format!(
                    "{destination}: new connections {done} no longer, after {lasted}: {why}; {refused} SYNs \
                     {what}{reset}"
                )
            }
            Self::RouterHeard { router } => {
                format!("the router {router} shares what it measures")
            }
            Self::RouterLost { router, silent } => {
                format!("the router {router} has not been heard for {silent}")
            }
            Self::BusConnected { subject } => {
                format!("the bus is connected: routers share over {subject}")
            }
            Self::BusLost { subject, why, lasts } => {
                format!(
                    "the bus ({subject}) has not been connected for {lasts}: {why}; each router keeps its share"
                )
            }
            _ => String::new(),
        }
    }
}
