// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Admission for HTTP gateways.
//!
//! A proxy asks before it passes a request on ([`Gate::ask`]), and reports what became of it
//! ([`Gate::complete`]). Between the two stand the routes of the configuration, by the matcher of
//! request rules, and the chain of `policy/chain`: the C that the kernel runs. What a [`Gate`] counts
//! has the shape of a service's totals in the dataplane, so the same detectors and laws find the
//! limit.
//!
//! ```text
//! proxy ─► adapter ─ Ask ─► route ─► service, class ─► bucket ─► chain ─► Answer: pass | refuse
//!                                                                  │
//! proxy ─► adapter ─ Completion ─► request in flight ─► totals ◄───┘
//! ```
//!
//! The core knows no sockets and no clock: time is an argument. Only [`Adapters`] have both. All methods take `&self`; each service
//! has a lock of its own around its chain, and requests in flight are spread over [`SHARDS`] locks.
//!
//! An adapter translates a protocol into [`Ask`] and [`Completion`], and [`Answer`] back. It takes the
//! client's address from the proxy's own field, never from a client's header, and passes a request
//! when it does not understand what the proxy said.

mod adapter;
mod agent;
mod asked;
mod beside;
mod classes;
mod counters;
mod flight;
mod gate;
mod onset;
mod refusal;
mod reports;
mod routes;
mod service;
mod sketch;
mod tls;
mod turns;
mod unguessable;
mod waiting;

pub use adapter::{
    Adapters, HaproxyTalk, Joined, Unbound, caddy_report, envoy_check, envoy_rate_limit,
    envoy_reports, forwarded_client, haproxy_report, nginx_report, traefik_export, traefik_report,
};
pub use agent::{Agents, UnboundAgents};
pub use flight::{Completed, Completion, Id, REQUESTS_MAX, SHARDS, Seen, Token};
pub use gate::{Answer, Ask, Gate, Headers, NoHeaders};
pub use refusal::{PROBLEM_TYPE, RateLimit, Refusal, STATUS};
pub use service::{Counted, GateState};
pub use tls::{Loaded, TlsError, examine_tls, load_tls};
pub use turns::Turn;
pub use unguessable::Unguessable;
pub use waiting::Waiting;
