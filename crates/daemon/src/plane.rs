// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The seams of the owner: what it steers ([`Plane`]) and what it senses with ([`Senses`]). The real
//! ones are the kernel's dataplane ([`crate::kernel`]) and [`tidegate_sense::Sense`]; tests bring
//! their own.

use crate::outlet::Outlet;
use crate::state::KeptCrowd;
use std::net::{IpAddr, Ipv4Addr};
use tidegate_bpf::HostMarks;
use tidegate_config::Config;
use tidegate_model::PRIORITIES;
use tidegate_model::in_band::InBandState;
use tidegate_model::record::What;
use tidegate_model::remote::{Arrived, Hits, Notice};
use tidegate_model::router::RouterState;
use tidegate_model::sharing::{BusState, DestinationReport, RouterReports};
use tidegate_model::signals::LinkUse;
use tidegate_model::snapshot::{
    Followed, GatewaysState, InterfaceState, Lately, PeerState, ReasonCount, RuleCounts, Sample,
    UnevaluatedCount, VerdictCount,
};
use tidegate_model::sources::SourceUse;
use tidegate_model::totals::Totals;
use tidegate_peer::OutgoingLimit;
use tidegate_peer::node::Notices;
use tidegate_peer::table::{Ended, Sessions};
use tidegate_sense::{Sense, Sensed, ServiceSource};
use tidegate_units::Nanos;

/// The dataplane did not do what it was told, or could not be read; says what and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PlaneError(pub String);

/// The dataplane of this host: limits go to it, it counts, and it has hooks.
pub trait Plane: Outlet + Counters + Lifecycle {}

impl<T: Outlet + Counters + Lifecycle> Plane for T {}

/// What the dataplane counted, since its state was made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counted {
    /// Of all services, in the order of the configuration, by class, verdict and reason.
    pub services: Vec<Vec<VerdictCount>>,
    /// Packets that passed untouched, by reason.
    pub passed: Vec<ReasonCount>,
    /// Packets whose marks a border has cleared; `None`: there is no border.
    pub cleared: Option<u64>,
    /// Options of congested routers that were added or read; `None`: nothing is marked.
    pub in_band: Option<InBandState>,
    /// What found no room in the tables of connections, by the key of its table in the configuration.
    pub table_losses: Vec<ReasonCount>,
    /// What a router measures; `None`: nothing.
    pub router: Option<RouterState>,
}

/// What the request rules of one service counted since their state was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// By rule, in the order of the configuration.
    pub rules: Vec<RuleCounts>,
    /// What passed without being evaluated, by reason.
    pub unevaluated: Vec<UnevaluatedCount>,
}

/// The rung of each priority as of the last arrival: 0 below its thresholds, then a severity, and the
/// last one discards.
pub type Rungs = [u8; PRIORITIES];

/// What is read from the dataplane, in the terms of the model.
pub trait Counters: Totals {
    /// The counters for people.
    ///
    /// # Errors
    /// When they could not be read.
    fn counts(&self, config: &Config) -> Result<Counted, PlaneError>;

    /// What the request rules counted, of all services, in the order of the configuration; and how
    /// full the table of connections with evaluated requests is (`None`: there is none).
    ///
    /// # Errors
    /// When it could not be read.
    fn request_counts(
        &self,
        config: &Config,
    ) -> Result<(Vec<RequestCounts>, Option<Followed>), PlaneError>;

    /// Where the policy of a service stands on its ladders of thresholds; `None`: it has none.
    ///
    /// # Errors
    /// When it could not be read.
    fn rungs(&self, _service: usize) -> Result<Option<Rungs>, PlaneError> {
        Ok(None)
    }

    /// The same of a request bucket.
    ///
    /// # Errors
    /// When it could not be read.
    fn bucket_rungs(&self, _service: usize, _bucket: usize) -> Result<Option<Rungs>, PlaneError> {
        Ok(None)
    }

    /// The sources that have connections open, of all services.
    ///
    /// # Errors
    /// When the table could not be read.
    fn sources(&self) -> Result<Vec<SourceUse>, PlaneError>;

    /// What was decided about a request at a gateway, as far as that is remembered.
    fn decisions(&self, _config: &Config, _request_id: &str) -> Vec<Sample> {
        Vec::new()
    }

    /// Who has probably refused a client in the last minute, as far as that is known.
    fn refused_lately(&self, _config: &Config, _client: IpAddr) -> Lately {
        Lately::default()
    }

    /// Sampled verdicts since the last call, oldest first, at most `most`.
    ///
    /// # Errors
    /// When they could not be read.
    fn samples(&mut self, config: &Config, most: usize) -> Result<Vec<Sample>, PlaneError>;
}

/// How the dataplane follows the configuration, and how it is attached.
pub trait Lifecycle {
    /// Whether the configuration could be followed; to be asked before anything changes.
    ///
    /// # Errors
    /// When hooks would change, and the privileges for that were given up.
    fn examine(&self, config: &Config) -> Result<(), PlaneError>;

    /// Makes the dataplane follow a configuration. On an error the one before still holds.
    ///
    /// # Errors
    /// When it is refused as a whole.
    fn apply(&mut self, config: &Config) -> Result<(), PlaneError>;

    /// The predecessor has left: detaches what was its and is not ours. Returns what does not
    /// evaluate now, one sentence each.
    fn commit(&mut self) -> Vec<String>;

    /// A successor began and did not come: makes hooks and pins ours again. Returns what is not,
    /// one sentence each.
    fn reassert(&mut self) -> Vec<String>;

    /// Attaches lost hooks again where that is possible. Returns those that are still lost, one
    /// sentence each. To be called once a tick by whoever is in charge, not while a successor
    /// starts: it may have attached its own.
    fn mend(&mut self) -> Vec<String>;

    /// Flash crowds behind this router, for the process that comes next.
    fn kept_crowds(&self) -> Vec<KeptCrowd> {
        Vec::new()
    }

    /// Goes on with those of the process before, kept so long ago.
    fn restore_crowds(&mut self, _kept: Vec<KeptCrowd>, _age: Nanos) {}

    /// Takes in what other routers told of destinations; what they are to be told, if it is time to.
    fn share(&mut self, _now: Nanos, _heard: Vec<RouterReports>) -> Option<Vec<DestinationReport>> {
        None
    }

    /// Once a tick: what this host says by marks in packets. Servers that have said since the last call that they are
    /// overloaded.
    fn mark(&mut self, _now: Nanos, _says: HostMarks) -> Vec<Ipv4Addr> {
        Vec::new()
    }

    /// What happened to hooks and pins since the last call, already logged.
    fn events(&mut self) -> Vec<What> {
        Vec::new()
    }

    /// What an operator should doubt of how interfaces are attached, one sentence each, for as long
    /// as it is so.
    fn doubts(&self) -> Vec<String>;

    /// The hooks as they are attached.
    fn hooks(&self) -> Vec<InterfaceState>;

    /// Opens the listeners of the gateways. To be called once privileges are given up.
    fn open(&mut self, _config: &Config) {}

    /// Whether requests of a service (by its index) are limited at the gate, and not its connections by the
    /// kernel.
    fn at_gate(&self, _service: usize) -> bool {
        false
    }

    /// The gateways as they are served; `None` where there are none.
    fn gateways(&self, _config: &Config) -> Option<GatewaysState> {
        None
    }

    /// Detaches all hooks and removes what is pinned: everything passes.
    ///
    /// # Errors
    /// When something could not be removed; says what is left.
    fn detach(self: Box<Self>) -> Result<(), PlaneError>;
}

/// What peers said of remote limits since the last call.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    /// The session of each peer that may limit this host: its random number and its epoch.
    pub sessions: Sessions,
    /// Limits of peers, of each in the order of its messages.
    pub limits: Vec<Arrived>,
    /// Limits of peers whose grant has ended.
    pub ended: Ended,
    /// Notices of congested routers, by the name of the router.
    pub notices: Notices,
    /// Hit counters of limits of this host, by the name of the control node.
    pub hits: Vec<(String, Hits)>,
}

/// What peers are told of remote limits.
#[derive(Clone, Debug, Default)]
pub struct Said {
    /// Limits of this host's services.
    pub limits: Vec<OutgoingLimit>,
    /// Hit counters of limits of peers, by the name of the peer.
    pub hits: Vec<(String, Hits)>,
    /// What comes for the services of peers while this host is congested, by the name of the peer.
    pub notices: Vec<(String, Notice)>,
}

/// Whatever turns counters and the system's state into signals.
pub trait Senses {
    /// One entry a service, in the order of the configuration.
    fn tick(&mut self, now: Nanos, totals: &dyn Totals) -> Vec<Sensed>;

    /// Other services from now on.
    fn reconfigure(&mut self, services: Vec<ServiceSource>);

    /// Other interfaces from now on, by which the answers leave.
    fn rename_interfaces(&mut self, _names: Vec<String>) {}

    /// Looks at what fills and empties between two ticks: the queues of the interfaces.
    fn sample(&mut self, _now: Nanos) {}

    /// Follows what a configuration says of peers; a fault shows in [`Self::problems`].
    fn join(&mut self, _config: &Config) {}

    /// What is wrong with the senses as a whole: subject and sentence.
    fn problems(&self, _now: Nanos) -> Vec<(String, String)> {
        Vec::new()
    }

    /// What the interfaces to the servers sent and dropped; one that is not there is left out.
    ///
    /// # Errors
    /// Why nothing is known of them at the moment.
    fn links(&mut self) -> Result<Vec<LinkUse>, String> {
        Ok(Vec::new())
    }

    /// What peers said of remote limits since the last call.
    fn remote(&mut self) -> Heard {
        Heard::default()
    }

    /// Tells peers their limits, and what became of theirs.
    fn say(&mut self, _said: Said) {}

    /// What other routers told of destinations since the last call.
    fn shared(&mut self) -> Vec<RouterReports> {
        Vec::new()
    }

    /// Tells other routers what this one sees of destinations.
    fn share(&mut self, _reports: Vec<DestinationReport>) {}

    /// The bus over which routers share; `None`: there is none.
    fn bus(&self, _now: Nanos) -> Option<BusState> {
        None
    }

    /// What has happened to it since the last call.
    fn events(&mut self, _now: Nanos) -> Vec<What> {
        Vec::new()
    }

    /// The hosts that report to this one, or to which it reports.
    fn peers(&self, _now: Nanos) -> Vec<PeerState> {
        Vec::new()
    }
}

impl Senses for Sense {
    fn tick(&mut self, now: Nanos, totals: &dyn Totals) -> Vec<Sensed> {
        Self::tick(self, now, totals)
    }

    fn reconfigure(&mut self, services: Vec<ServiceSource>) {
        Self::reconfigure(self, services);
    }

    fn rename_interfaces(&mut self, names: Vec<String>) {
        Self::rename_interfaces(self, names);
    }

    fn sample(&mut self, now: Nanos) {
        Self::sample(self, now);
    }
}
