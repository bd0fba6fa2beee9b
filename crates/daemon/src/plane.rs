// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The two seams of the owner: what it steers and what it senses with. The real ones are the
//! kernel's dataplane ([`crate::kernel`]) and [`tidegate_sense::Sense`]; tests bring their own.

use std::collections::BTreeSet;
use tidegate_model::intent::Config;
use tidegate_model::limits::Limits;
use tidegate_model::snapshot::{
    Followed, InterfaceState, PeerState, ReasonCount, RuleCounts, Sample, UnjudgedCount,
    VerdictCount,
};
use tidegate_model::sources::SourceUse;
use tidegate_model::totals::Totals;
use tidegate_sense::{Sense, Sensed, ServiceSource};
use tidegate_units::Nanos;

/// The dataplane did not do what it was told; says what and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PlaneError(pub String);

/// What the header rules of one service counted since their state was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// By rule, in the order of the configuration.
    pub rules: Vec<RuleCounts>,
    /// What passed without being judged, by reason.
    pub unjudged: Vec<UnjudgedCount>,
}

/// Limits that stay as they are in force while others are written, by their place in the
/// configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Services, their request buckets apart.
    pub services: BTreeSet<usize>,
    /// Request buckets: the service, and the bucket.
    pub buckets: BTreeSet<(usize, usize)>,
}

impl Kept {
    /// All services of a configuration, and all their request buckets.
    #[must_use]
    pub fn all(config: &Config) -> Self {
        let mut kept = Self::default();
        for (at, service) in config.services.iter().enumerate() {
            kept.services.insert(at);
            let buckets = service.requests.as_ref().map_or(0, |requests| requests.buckets.len());
            kept.buckets.extend((0..buckets).map(|bucket| (at, bucket)));
        }
        kept
    }

    /// Whether nothing is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && self.buckets.is_empty()
    }

    /// Keeps only what `others` keep, too.
    pub fn retain(&mut self, others: &Self) {
        self.services.retain(|service| others.services.contains(service));
        self.buckets.retain(|bucket| others.buckets.contains(bucket));
    }
}

/// A dataplane, in the terms of the model.
pub trait Plane: Totals {
    /// Makes the dataplane follow a configuration. On an error the one before still holds.
    ///
    /// # Errors
    /// When it is refused as a whole.
    fn apply(&mut self, config: &Config) -> Result<(), PlaneError>;

    /// The predecessor has left: takes off what was its and is not ours. Returns what does not
    /// judge now, one sentence each.
    fn commit(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// A successor began and did not come: makes hooks and pins ours again. Returns what is not,
    /// one sentence each.
    fn reassert(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// Whether refusals of a service (by its index) are only counted, and not executed.
    ///
    /// # Errors
    /// When it was not written; the caller sets the one before again, so that no later write
    /// brings it.
    fn set_shadow(&mut self, service: usize, shadow: bool) -> Result<(), PlaneError>;

    /// Hooks that were put on and are not there any more, one sentence each; those that can be are
    /// put on again first. To be called once a tick by whoever is in charge, not while a successor
    /// starts: it may have put on its own.
    fn mend(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// What an operator should doubt of how interfaces are attached, one sentence each, for as long
    /// as it is so.
    fn doubts(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether hooks can be changed; not any more when the privileges were given up.
    fn may_attach(&self) -> bool;

    /// Whether following this configuration changes hooks.
    fn needs_attach(&self, config: &Config) -> bool;

    /// Writes the limits of all services, in the order of the configuration, but of those that are
    /// kept. A service whose limits its policy refuses gets none, and is told by [`Self::refused`].
    ///
    /// # Errors
    /// When they could not all be written; the caller writes again.
    fn set_limits(
        &mut self,
        config: &Config,
        limits: &Limits,
        kept: &Kept,
    ) -> Result<(), PlaneError>;

    /// Whether what is in force is an earlier process's, adopted with its lease: to be asked before
    /// anything is written. Limits whose lease had ended are none by then.
    fn adopted(&self) -> bool {
        false
    }

    /// The services that have no limits because their policy refused what was decided last, and
    /// why.
    fn refused(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Number of the limits in force; grows by itself with [`Self::apply`].
    fn generation(&self) -> u64;

    /// Renews the lease.
    ///
    /// # Errors
    /// When it could not be renewed; after 3 s the limits begin to open.
    fn heartbeat(&mut self) -> Result<(), PlaneError>;

    /// The kill switch.
    ///
    /// # Errors
    /// When it could not be set.
    fn release(&mut self, on: bool) -> Result<(), PlaneError>;

    /// Whether the kill switch is on.
    ///
    /// # Errors
    /// When it could not be read.
    fn released(&self) -> Result<bool, PlaneError>;

    /// Counts of all services, in the order of the configuration, by class, verdict and reason,
    /// since their state was made.
    ///
    /// # Errors
    /// When they could not be read.
    fn counts(&self, config: &Config) -> Result<Vec<Vec<VerdictCount>>, PlaneError>;

    /// What the header rules counted, of all services, in the order of the configuration.
    ///
    /// # Errors
    /// When it could not be read.
    fn request_counts(&self, config: &Config) -> Result<Vec<RequestCounts>, PlaneError>;

    /// How full the table of connections with judged requests is; `None`: there is none.
    fn followed(&self) -> Option<Followed>;

    /// Packets that passed untouched, by reason.
    ///
    /// # Errors
    /// When they could not be read.
    fn passed(&self) -> Result<Vec<ReasonCount>, PlaneError>;

    /// What found no room in the tables of connections, by the key of its table in the configuration.
    ///
    /// # Errors
    /// When it could not be read.
    fn table_losses(&self) -> Result<Vec<ReasonCount>, PlaneError> {
        Ok(Vec::new())
    }

    /// The sources that have connections open, of all services.
    ///
    /// # Errors
    /// When the table could not be read.
    fn sources(&self) -> Result<Vec<SourceUse>, PlaneError> {
        Ok(Vec::new())
    }

    /// Sampled verdicts since the last call, oldest first, at most `most`.
    ///
    /// # Errors
    /// When they could not be read.
    fn samples(&mut self, config: &Config, most: usize) -> Result<Vec<Sample>, PlaneError>;

    /// The hooks as they are attached.
    fn hooks(&self) -> Vec<InterfaceState>;

    /// Takes all hooks off and removes what is pinned: everything passes.
    ///
    /// # Errors
    /// When something could not be removed; says what is left.
    fn detach(self: Box<Self>) -> Result<(), PlaneError>;
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

    /// Follows what a configuration says of peers; a fault shows in [`Self::troubles`].
    fn join(&mut self, _config: &Config) {}

    /// What is wrong with the senses as a whole: subject and sentence.
    fn troubles(&self, _now: Nanos) -> Vec<(String, String)> {
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
