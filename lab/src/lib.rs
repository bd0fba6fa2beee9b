// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Real time: a client, a router and a server in network namespaces, real servers, open-loop load,
//! and the product as a process.
//!
//! ```no_run
//! use tidegate_lab::{ApacheOptions, Arrive, Cost, Helper, Lab, LabOptions, LoadPlan, Mpm};
//! use tidegate_units::Nanos;
//! use tidegate_workload::Profile;
//!
//! # fn main() -> Result<(), tidegate_lab::LabError> {
//! // The running program must hand the arguments after `lab-helper` to `helper::main`.
//! let lab = Lab::new(LabOptions::new(Helper::this_program(&["lab-helper"])))?;
//! let cost = Cost::busy(Nanos::from_millis(4));
//! let server = lab.start_apache(&ApacheOptions::cgi(Mpm::Prefork, cost))?;
//! let capacity = lab.capacity(&server, &Default::default())?.rate.get();
//! let profile = Profile::constant(Nanos::from_secs(30), 2.0 * capacity);
//! let streams = vec![server.stream("crowd", Arrive::poisson(profile))];
//! let report = lab.run_load(&LoadPlan { streams, ..LoadPlan::default() }, &mut |_| {})?;
//! assert!(report.void.is_empty(), "{:?}", report.void);
//! println!("goodput {:.3} of capacity", report.streams[0].total.goodput / capacity);
//! # Ok(())
//! # }
//! ```
//!
//! Everything a lab makes carries its id and is removed by drop, by its guard process when its
//! owner dies, or by the next lab; see [`sweep`]. Two labs never meet.

mod attack;
mod bulk;
mod cgroup;
mod datagrams;
mod error;
mod flood;
mod gate;
mod graph;
mod guard;
pub mod helper;
mod idle;
mod lab;
pub mod load;
mod os;
mod process;
mod product;
mod registry;
mod relay;
mod road;
mod scrape;
pub mod server;
mod shape;
mod site;
mod topology;

pub use attack::{AttackCounts, AttackKind};
pub use bulk::Bulk;
pub use cgroup::Group;
pub use error::{LabError, Result};
pub use flood::Flood;
pub use gate::{Gate, GateOptions, GateProxy};
pub use graph::{End, Graph, GraphSpec, HostSpec, LinkSpec};
pub use helper::Helper;
pub use idle::{IdleMark, IdleMeter};
pub use lab::{CpuCut, CpuCutGuard, Lab, LabOptions};
pub use load::{
    Arrive, Capacity, CapacityOptions, Counts, EventDone, Hist, KeepAlive, LoadPlan, LoadReport,
    Manner, Mix, Percentiles, Phase, PhaseReport, Progress, Script, Session, Sessions, SlotPart,
    SlotReport, Sources, Stream, StreamProgress, StreamReport, Throttle, Totals, Transport,
};
pub use process::Managed;
pub use product::{Product, ProductConfig};
pub use registry::{ROOT, labs, owner_alive, remains, sweep, teardown};
pub use relay::{RelayCounts, Way};
pub use road::{
    Attacker, Bird, ControlCounts, ControlMeter, InBand, InBandOptions, InBandSeen, MarkCounts,
    MarkMeter, Pushback, Road, RoadHost, Sections,
};
pub use scrape::Scrape;
pub use server::tiny::{Body, TinyOptions};
pub use server::{
    ApacheOptions, Cgi, Change, Cost, CostKind, DatagramCounts, DatagramRule, EdgeLimit,
    EdgeOptions, EdgeProxy, FailsafePolicy, Front, FrontKind, Mpm, NftHook, NftLimit, NftRule,
    NginxOptions, NodeOptions, PagesOptions, QueueSeen, QueueWatch, QueuedOptions, Rungs, Server,
};
pub use shape::{Shaped, ShapedCounts, Shaping};
pub use site::{Foreign, ForeignVerdict, Site, SiteKind};
pub use topology::{
    CLIENTS_V4, CLIENTS_V6, NetworkOptions, Role, SERVER_INTERFACE, SERVER_V4, SERVER_V6,
};
