// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who may limit what, across relays: signed grants, signed limits, and the receiver that checks them.
//!
//! ```text
//! operator (key offline) ── grant: holder's key, prefixes, ports, kinds, quota, expiry ─► router
//! server (holder)        ── limit, signed by the holder, for the router's session ─► … ─► router
//! ```
//!
//! Mutual TLS is hop by hop: it says who brings a limit. The holder's own signature says whose it is, so
//! a relay or a router that was taken over can neither make nor widen one. Nothing here does I/O or
//! reads a clock.
//!
//! A grant expires by the calendar, because the operator's key is offline; that is the only use of wall
//! clock time. A wrong clock can lose or keep a grant, and with it the limits that it allows; it never makes or tightens one.
//! Everything else is the receiver's monotonic clock.

mod grant;
mod key;
mod limit;
mod receiver;

pub use grant::{GrantBody, Kinds, Revocations, SignedGrant, SignedRevocations};
pub use key::{KeyError, SigningKey, VerifyingKey};
pub use limit::SignedLimit;
pub use receiver::{Accepted, Bounds, Denied, Receiver};
