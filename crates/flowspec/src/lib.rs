// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits as BGP FlowSpec routes (RFC 8955, RFC 8956 for IPv6, RFC 9117).
//!
//! ```text
//! export:  RemoteLimit ─ convert ─► Route ─ export ─► changes ─► GoBGP (gRPC) | ExaBGP (pipe) ─ BGP ─► router
//! import:  router ─ BGP ─► GoBGP ─ gobgp ─► paths ─ import ─► table of rules with rates
//! ```
//!
//! - [`nlri`] and [`attributes`] are bytes as they travel; [`rule`], [`convert`], [`export`] and [`import`]
//!   decide. All of them are pure: time is an argument.
//! - [`gobgp`] and [`exabgp`] talk to the BGP speaker. It is a process of ours: [`keeper`] ends it when we end
//!   or hang, so the routes go with us.
//!
//! There is no BGP speaker of our own here (decision 47). The daemon hands the rules of [`Importer`] to the ingress hooks.

pub mod attributes;
pub mod convert;
pub mod exabgp;
pub mod export;
pub mod gobgp;
pub mod import;
pub mod keeper;
pub mod nlri;
pub mod rule;
pub mod speaker;

pub use attributes::Attributes;
pub use convert::{Unfit, Unit, What, route};
pub use export::{Bounds, Change, Plan, Stand, Withheld};
pub use import::{Entry, Importer, Path, Policy, Refusal, Unicast};
pub use nlri::{Family, Flow, Malformed};
pub use rule::{Action, Flags, Ports, Route, Rule, Unheld};
pub use speaker::{Error, Exporter, Helper, Kind, Neighbor, Options, Password, Session, Speaker};
