// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A limit of tidegate as a route.
//!
//! tidegate limits new connections; a router limits packets or bytes. One new connection is one SYN here. A SYN
//! that is sent again counts again, so a router lets fewer connections pass than the limit says when it drops.
//! Rounding never makes a limit tighter:
//!
//! | unit | value |
//! | --- | --- |
//! | packets | the rate, rounded up to a whole packet per second |
//! | bytes | the rate times the size of a usual SYN ([`SYN_V4`], [`SYN_V6`]), rounded up to a whole byte |
//!
//! The route carries an IEEE single: above 2²⁴ the value is the next one above that it can hold.

use crate::rule::{Action, Flags, Route, Rule, TCP, UDP};
use ipnet::IpNet;
use tidegate_model::remote::{RemoteLimit, Restriction, Scope};
use tidegate_units::{Nanos, Rate};

/// Bytes of an IPv4 SYN with the options that Linux sends: 20 of IP, 20 of TCP, 20 of options.
pub const SYN_V4: f64 = 60.0;
/// The same over IPv6.
pub const SYN_V6: f64 = 80.0;

/// What a router counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// traffic-rate-packets, where the routers know it.
    Packets,
    /// traffic-rate-bytes: every router knows it.
    Bytes,
}

/// What the limit is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// New TCP connections: SYN without ACK.
    Connections,
    /// UDP packets.
    Datagrams,
}

/// Why a limit is no route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The scope is a service's name, which a router does not know.
    #[error("its scope is a service, and no prefix")]
    Service,
    /// A share of what comes has no rate.
    #[error("it has no rate")]
    NoRate,
    /// FlowSpec knows no classes of clients.
    #[error("it is not about all classes")]
    Classes,
    /// Datagrams have no usual size.
    #[error("datagrams have no size by which a rate would be one of bytes")]
    Size,
    /// The limit's own fields are out of range, or it ends now.
    #[error("it is not in force")]
    Ended,
}

/// The route for a limit.
///
/// # Errors
/// Why it has none.
pub fn route(limit: &RemoteLimit, what: What, unit: Unit) -> Result<Route, Unfit> {
    if limit.check().is_err() || limit.validity == Nanos::ZERO {
        return Err(Unfit::Ended);
    }
    if limit.priority != 0 {
        return Err(Unfit::Classes);
    }
    let Scope::Destination { prefix, port } = limit.scope else { return Err(Unfit::Service) };
    let rate = match limit.restriction {
        Restriction::Loss(_) => None,
        restriction => restriction.rate(None),
    };
    let rate = rate.ok_or(Unfit::NoRate)?.get();
    let action = match (unit, what) {
        (Unit::Packets, _) => Action::Packets(whole(rate)),
        (Unit::Bytes, What::Datagrams) => return Err(Unfit::Size),
        (Unit::Bytes, What::Connections) => {
            let size = if matches!(prefix, IpNet::V4(_)) { SYN_V4 } else { SYN_V6 };
            // A whole SYN each second at least: less would let none pass.
            Action::Bytes(whole((rate * size).max(size)))
        }
    };
    let (protocol, flags) = match what {
        What::Connections => (TCP, Some(Flags::FIRST)),
        What::Datagrams => (UDP, None),
    };
    let mut rule = Rule { protocol: Some(protocol), flags, ..Rule::to(prefix.trunc()) };
    rule.to.extend(port.map(|port| port..=port));
    Ok(Route { rule, action })
}

/// Rounded up to a whole number, and to what a single can hold; at least 1.
fn whole(rate: f64) -> Rate {
    let up = rate.ceil().max(1.0);
    let single = up as f32;
    let held = if f64::from(single) < up { f32::from_bits(single.to_bits() + 1) } else { single };
    Rate::per_second(f64::from(held))
}
