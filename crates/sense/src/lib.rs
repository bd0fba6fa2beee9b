// SPDX-License-Identifier: Apache-2.0 OR MIT
//! procfs, netlink and dataplane counters become [`Signals`](tidegate_model::signals::Signals).
//!
//! [`Sense`] is ticked by the daemon's owner task. Every source fails on its own: what cannot be
//! read is `None` (never zero) and is named in [`Sensed::problems`]; what was read a while ago
//! carries its age, up to [`HOLD_MAX`]. Work per tick is bounded: one listener dump a network
//! namespace, one read of `/proc/stat`, four small files a service (six once a second), the facts of
//! the watched interfaces, and a slice each of the searches for the service's processes and groups.
//! Between ticks, [`Sense::sample`] looks at the interfaces' queues: one dump of qdiscs.
//!
//! Nothing here reads a clock: the time of the tick is an argument.

mod addresses;
mod aside;
mod bypass;
mod cgroup;
mod connections;
mod cpu;
mod defer;
mod egress;
mod elsewhere;
mod file;
mod finder;
mod groups;
mod interfaces;
mod link;
mod listeners;
mod netlink;
mod netns;
mod passive;
mod pressure;
mod qdisc;
mod sense;
mod service;
mod space;
mod ssh;
mod stat;
mod threads;

pub use addresses::node_addresses;
pub use aside::Aside;
pub use elsewhere::{
    Elsewhere, Others, forwards_to, holder, is_silent_proxy, proxied_ports, proxy_sockets,
};
pub use link::{LinkFacts, default_way, is_of_host, links, links_within};
pub use listeners::{LISTENERS_MAX, Listener, ListenerSource, SockDiag};
pub use netns::in_namespace;
pub use qdisc::{Interface, InterfaceSource, RouteSource};
pub use sense::{HOLD_MAX, Problem, Roots, Sense, Sensed, ServiceSource};
pub use space::FindNamespace;
pub use ssh::{ssh_listeners, ssh_ports};
